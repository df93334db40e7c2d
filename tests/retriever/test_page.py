"""Blocks of the retriever's page, run in their order in a directory with such runs."""

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

import l2rm_jax.retriever
from l2rm_jax.cli.parse import parse
from l2rm_jax.main import MODES
from tests.retriever.runs import make_run

PAGE = Path(l2rm_jax.retriever.__file__).with_name("README.md")
BLOCKS = re.compile(r"^```(bash|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXTRAS = ("usearch", "faiss")  # libraries that a block may need, and that may be missing


def run_commands(script: str) -> None:
    """Run the `l2rm` commands of a script in this process, except training."""
    for line in script.replace("\\\n", "").splitlines():
        words = shlex.split(line, comments=True)[1:]
        if words and not words[0].startswith("--"):
            command = parse(words, MODES)
            command.mode.run(command)


@pytest.mark.slow
def test_the_blocks_of_the_page_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, head in (("balls", "vse"), ("saf", "saf")):
        make_run(tmp_path / "runs" / name, head, score=False)
    names: dict = {}
    blocks = BLOCKS.findall(PAGE.read_text())
    assert len(blocks) >= 7
    for language, code in blocks:
        if any(f"import {name}" in code and find_spec(name) is None for name in EXTRAS):
            continue
        if language == "bash":
            run_commands(code)
        else:
            exec(code, names)
    assert "Retriever(runs/balls: vse, triplet" in capsys.readouterr().out
    assert (names["backwards"].rows == 0).all()


@pytest.mark.parametrize("library", EXTRAS)
def test_other_tools_find_the_same(library, tmp_path, capsys):
    pytest.importorskip(library)
    make_run(tmp_path / "runs" / "balls", "vse", score=False)
    retriever = l2rm_jax.load(tmp_path / "runs" / "balls")
    gallery, captions = retriever.encode_images("scenes:test"), retriever.encode_captions("a ball")
    names = {"gallery": gallery, "captions": captions, "vectors": gallery.vectors()}
    [code] = [code for _, code in BLOCKS.findall(PAGE.read_text()) if f"import {library}" in code]
    exec("import numpy as np\n" + code, names)
    rows = names["found"].keys if library == "usearch" else names["rows"][0]
    assert list(rows) == retriever.search(captions, gallery, 3).rows[0].tolist()
