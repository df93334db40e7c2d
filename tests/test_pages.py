"""The Markdown pages: links, commands, imports in code, lengths, tables of results."""

import ast
import contextlib
import importlib
import importlib.util
import pkgutil
import re
from pathlib import Path

import pytest

from experiments.pages import results_page
from l2rm_jax.config import default, flat
from tests.page_commands import command_problem, commands

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("configs", "experiments", "l2rm_jax", "tests")
PAGES = [path for path in ROOT.glob("*.md") if path.name != "CHANGELOG.md"]
PAGES += [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.md"))]
MOST_LINES = {
    "README.md": 200,
    "configs/README.md": 410,
    "tests/golden/README.md": 330,
}  # by path from the root
MOST_LINES_OF_OTHERS = 250

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


# Links.

FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^()\s]+)\)|<(?:img|a)\b[^>]*?(?:src|href)=\"([^\"]+)\"")
HEADING = re.compile(r"^#{1,6} +(.*?)[ #]*$", re.MULTILINE)


def link_problems(text: str, page: Path) -> list[str]:
    """Relative links of a page whose file or anchor does not exist."""
    problems = []
    prose = re.sub(r"`[^`\n]+`", "", FENCE.sub("", text))
    for match in LINK.finditer(prose):
        target = match[1] or match[2]
        if re.match(r"[a-z]+:", target):
            continue  # https:, mailto:
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or not file.is_relative_to(ROOT):
            problems.append(f"{target}: no such file")
        elif anchor:
            linked = text if file == page else file.read_text() if file.suffix == ".md" else ""
            if anchor not in anchors(linked):
                problems.append(f"{target}: no such heading")
    return problems


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    found: dict[str, int] = {}
    names = set()
    for heading in HEADING.findall(FENCE.sub("", text)):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        number = found.setdefault(name, 0)
        found[name] += 1
        names.add(f"{name}-{number}" if number else name)
    return names


@each_page
def test_links_resolve(page):
    assert link_problems(page.read_text(), page) == []


def test_broken_links_are_seen():
    page = ROOT / "experiments" / "README.md"
    text = (
        "# A `b_c`: d, e\n## Same\n## Same\n```bash\n# comment\n[x](in/code)\n```\n"
        "[1](#a-b_c-d-e) [2](#same-1) [3](../README.md) [4](https://a.b/c) `[5](code)` "
        "![6](figures/rho.png)"
    )
    assert link_problems(text, page) == []
    broken = "[1](#comment) [2](#same-2) ![3](missing.png) [4](../README.md#no) [5](../../etc)"
    assert [problem.split(":")[0] for problem in link_problems(f"{text} {broken}", page)] == [
        "#comment",
        "#same-2",
        "missing.png",
        "../README.md#no",
        "../../etc",
    ]


# Commands.


# Their commands are those of all scripts, or of large suites.
LONG = {ROOT / "experiments" / page for page in ("README.md", "RESULTS.md", "results/README.md")}
LONG.add(ROOT / "l2rm_jax" / "ot" / "MEASURED.md")


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page,
            id=str(page.relative_to(ROOT)),
            marks=pytest.mark.slow if page in LONG else (),
        )
        for page in PAGES
    ],
)
def test_commands_parse(page, monkeypatch):
    text = page.read_text()
    scripts = [code for _, language, code in FENCE.findall(text) if language == "bash"]
    prose = FENCE.sub("", text)
    scripts += re.findall(r"`((?:python -m (?:l2rm_jax|experiments\.)[^`]* |l2rm )[^`]*)`", prose)
    found = [words for script in scripts for words in commands(script)]
    problems = [command_problem(words, monkeypatch) for words in found]
    assert list(filter(None, problems)) == []
    for name in re.findall(r"`(?:python -m )?((?:l2rm_jax|experiments)\.[\w.]*\w)`", prose):
        assert _exists(name), name


def _exists(name):
    """Whether there is such a module, even if it needs a missing package, or name in a module."""
    parent, _, last = name.rpartition(".")
    with contextlib.suppress(ModuleNotFoundError):  # the parent is not a package
        if importlib.util.find_spec(name):
            return True
    return hasattr(pkgutil.resolve_name(parent), last)


SCRIPT = r"""
SMALL="--set seed=1 \
    --set data.name=x"   # python -m not.this
X=3 python -m a $SMALL --b=$OTHER && pip install -e '.[test]' && ../env/bin/python -m c 'd e' \
    --f="${X}y" > log 2>&1 < /dev/null &
for host in 0 1; do
  srun --nodes=2 python -m g --host=$host &
done; wait
on_all 'cd l2rm_jax; nohup ../env/bin/python -m h \
    --i=1 > log &'
X=1 l2rm check --j=2 | head
ssh host 'cd there && env/bin/l2rm --k=3'
cd l2rm_jax
"""


def test_commands_of_a_script():
    assert list(commands(SCRIPT)) == [
        ["a", "--set", "seed=1", "--set", "data.name=x", "--b=$OTHER"],
        ["c", "d e", "--f=${X}y"],
        ["g", "--host=0"],
        ["h", "--i=1"],
        ["l2rm", "check", "--j=2"],
        ["l2rm", "--k=3"],
    ]


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("l2rm_jax.main --workdirs=a", "--workdirs: no such flag"),
        ("l2rm_jax --mode=serve", "serve: no such mode"),
        ("l2rm_jax.main --config.optim.learning_rat=1", "learning_rat"),
        ("l2rm_jax.main --config.train.epochs=2.5", "2.5"),
        ("l2rm_jax.main --config=configs/missing.py", "missing.py"),
        ("l2rm_jax.main --config=configs/f30k.py:none", "f30k:none"),
        ("l2rm_jax.main --config.model.head=safe", "safe"),
        ("l2rm_jax.main train now", "now: not a flag"),
        ("l2rm chek", "no such mode"),
        ("experiments.missing --out=x", "No module named 'experiments.missing'"),
        ("experiments.papers.sweep --out=x", "required: --config"),
        ("experiments.papers.sweep --config=configs/missing.py --out=x", "no such config file"),
        ("experiments.papers.sweep --config=configs/scenes.py --out=x --st a=1", "unrecognized"),
        ("experiments.papers.sweep --config=scenes --out=x --set train.epoch=1", "train.epoch"),
        ("experiments.papers.sweep --config=scenes --out=x --vary method=l2rm,none", "none"),
        ("experiments.benchmark --suite=none", "--suite=none"),
        ("experiments.benchmark --suite=rcl-losses --set train.epoch=1", "train.epoch"),
        ("experiments.benchmark --suite=rcl-losses --row=none", "--row=none"),
        ("experiments.bench.step --head=saf --batch=two", "two"),
    ],
)
def test_wrong_commands_are_seen(command, reason, monkeypatch):
    assert reason in (command_problem(command.split(), monkeypatch) or "no problem")


@pytest.mark.parametrize(
    "command",
    [
        "l2rm_jax.main",
        "l2rm_jax.main --config=configs/coco.py:rcl --config.data.path=DIR --config.seed=3",
        "l2rm_jax --mode=evaluate --workdir=a --proposer=c --candidates=20 --candidates=0",
        "l2rm evaluate --workdir=a --workdir=b --data=DIR:test",
        "l2rm evaluate --help",
        "experiments.papers.sweep --config=configs/scenes.py:quick --out=x --vary seed=0,1",
        "experiments.benchmark --suite=rcl-losses --config=coco --out=x --set data.path=DIR",
        "experiments.bench.step --head=saf --batch=2",
        "l2rm_jax.main --config=PATH/mine.py",
        "pytest --whatever",
    ],
)
def test_right_commands_are_taken(command, monkeypatch):
    assert command_problem(command.split(), monkeypatch) is None


# Code, lengths, tables.


def import_problems(code: str) -> list[str]:
    """Names that a piece of code imports from this project and that are not there."""
    problems = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            wanted = [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            wanted = [(node.module, alias.name) for alias in node.names]
        else:
            continue
        for module, name in wanted:
            if module.split(".")[0] not in ("l2rm_jax", "experiments", "tests"):
                continue
            try:
                home = importlib.import_module(module)
                if name and not hasattr(home, name):
                    importlib.import_module(f"{module}.{name}")
            except ImportError as error:
                problems.append(str(error))
    return problems


@each_page
def test_python_code_can_be_imported(page):
    codes = [code for _, language, code in FENCE.findall(page.read_text()) if language == "python"]
    assert [problem for code in codes for problem in import_problems(code)] == []


def test_missing_imports_are_seen():
    assert import_problems("import json\nfrom l2rm_jax.ot import partial_sinkhorn, match") == []
    code = "from l2rm_jax.ot import nothing\nimport l2rm_jax.nowhere"
    assert len(import_problems(code)) == 2
    with pytest.raises(SyntaxError):
        import_problems("result = train(")


def copy_problems(text: str, root: Path) -> list[str]:
    """Blocks under a mark `<!-- from: FILE -->` that are not lines of that file."""
    marked = re.findall(
        r"^<!-- from: (\S+) -->\n+```\w+\n(.*?)^```", text, re.MULTILINE | re.DOTALL
    )
    return [name for name, code in marked if code not in (root / name).read_text()]


@each_page
def test_code_from_files_is_theirs(page):
    assert copy_problems(page.read_text(), ROOT) == []


def test_other_code_than_the_file_has_is_seen(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\ny = 2\n")
    page = "<!-- from: a.py -->\n```python\n{}```\n"
    assert copy_problems(page.format("y = 2\n"), tmp_path) == []
    assert copy_problems(page.format("y = 3\n"), tmp_path) == ["a.py"]


@each_page
def test_pages_are_short(page):
    most = MOST_LINES.get(str(page.relative_to(ROOT)), MOST_LINES_OF_OTHERS)
    assert len(page.read_text().splitlines()) <= most


@each_page
def test_tables_of_results_are_up_to_date(page):
    assert results_page.updated(page.read_text(), page) == page.read_text()


def test_an_outdated_table_is_seen():
    name = "results/scenes_sgraf.csv"
    page = f"<!-- table: {name} -->\n\n| old |\n\n<!-- end table -->\n"
    current = results_page.updated(page, ROOT / "README.md")
    assert current != page and results_page.updated(current, ROOT / "README.md") == current


def test_the_pages_that_a_newcomer_needs_are_there():
    names = {str(page.relative_to(ROOT)) for page in PAGES}
    rooms = ("", "data/", "importing/", "devices/", "methods/", "models/", "ot/")
    expected = {f"l2rm_jax/{room}README.md" for room in rooms}
    expected |= {"README.md", "configs/README.md", "tests/golden/README.md"}
    expected |= {f"experiments/{name}.md" for name in ("README", "RESULTS", "bench/README")}
    assert names >= expected


FIELDS = flat(default())
SECTIONS = {name.split(".")[0] for name in FIELDS if "." in name}


def unknown_fields(text: str) -> set[str]:
    """Names in the prose of a page that look like config fields and are none."""
    names = re.findall(r"`(?:--config\.)?(\w+\.\w+)(?:=[^`]*)?`", FENCE.sub("", text))
    found = {name for name in names if name.split(".")[0] in SECTIONS} - FIELDS.keys()
    return {name for name in found if name.split(".")[1] not in ("py", "md", "npz", "safetensors")}


@each_page
def test_fields_in_prose_exist(page):
    if page.parent.name == "golden":
        pytest.skip("it names modules of the authors' code")
    assert unknown_fields(page.read_text()) == set()


def test_unknown_fields_are_seen():
    text = (
        "`train.py` `train.epochs=3` `--config.l2rm.rho=0` `ot.match` `train.epoch` `rcl.los=mae`"
    )
    assert unknown_fields(text) == {"train.epoch", "rcl.los"}


def test_the_first_two_commands_of_the_readme_are_the_marked_ones():
    text = (ROOT / "README.md").read_text()
    blocks = re.findall(r"^<!-- (.*?) -->\n```bash\n(.*?)\n```", text, re.MULTILINE | re.DOTALL)
    assert blocks[:2] == [
        ("main job", "pip install -e . && python -m l2rm_jax.main"),
        ("test command", "pip install -e '.[test]' && python -m pytest -n 2 --dist=loadfile"),
    ]
    first_two = [code.strip() for _, _, code in FENCE.findall(text)[:2]]
    assert first_two == [code for _, code in blocks[:2]]
