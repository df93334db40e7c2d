"""A missing optional package is one line, with the command that installs it."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from l2rm_jax import main
from l2rm_jax.cli.error_lines import EXTRAS

ROOT = Path(main.__file__).resolve().parents[1]
DEVELOPERS = ("browser", "peers", "test", "weights")  # extras that the library imports nothing of


def test_every_package_of_an_extra_is_known():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {
        (re.match(r"[\w-]+", each)[0].replace("-", "_"), extra)
        for extra, packages in extras["optional-dependencies"].items()
        for each in packages
        if extra not in DEVELOPERS
    }
    assert set(EXTRAS) == {name for name, _ in named}
    assert set(EXTRAS.items()) <= named


@pytest.mark.parametrize("name", [*EXTRAS, "pyarrow.parquet"])
def test_a_missing_package_names_the_command(monkeypatch, name):
    def run(_):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    [weights] = [each for each in main.MODES if each.name == "weights"]
    monkeypatch.setattr(main, "MODES", (weights._replace(run=run),))
    with pytest.raises(SystemExit) as ended:
        main.main(["weights"])
    extra = EXTRAS[name.partition(".")[0]]
    assert ended.value.code.splitlines()[-1] == f"  try: pip install 'l2rm_jax[{extra}]'"


def test_another_missing_module_is_no_message_but_a_bug(monkeypatch):
    def run(_):
        raise ModuleNotFoundError("No module named 'l2rm_jax.nowhere'", name="l2rm_jax.nowhere")

    [weights] = [each for each in main.MODES if each.name == "weights"]
    monkeypatch.setattr(main, "MODES", (weights._replace(run=run),))
    with pytest.raises(ModuleNotFoundError):
        main.main(["weights"])


def without(names: list[str], code: str) -> list[str]:
    """Return a command that runs code where these packages are missing."""
    missing = (
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name.partition('.')[0] in {names!r}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Missing())\n"
    )
    return [sys.executable, "-c", missing + code]


def test_training_and_audits_need_no_optional_package():
    code = "import l2rm_jax.audit, l2rm_jax.check, l2rm_jax.main, l2rm_jax.retriever, l2rm_jax.run"
    done = subprocess.run(without([*EXTRAS], code), capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pyarrow", "import --image_vectors=x.npy --caption_vectors=x.npy --out=o"),
        ("datasets", "import --source=x.csv --encoder=timm:x --out=o"),
        ("pyarrow", "audit --data=d --out=a"),
        ("tensorboardX", "check --config=scenes:quick --config.train.tensorboard=True"),
        ("safetensors", "--config=scenes:quick --pretrained=p"),
        ("torch", "evaluate --checkpoint=x.pth --config=f30k"),
    ],
)
def test_no_command_ends_in_a_traceback_without_a_package(tmp_path, name, words):
    code = (
        "import numpy as np, pathlib\n"
        "np.save('x.npy', np.random.default_rng(0).normal(size=(60, 4)).astype('f4'))\n"
        "pathlib.Path('x.csv').write_text('image,caption\\na.jpg,a\\nb.jpg,b\\n')\n"
        f"sys.argv = ['l2rm', *{words.split()!r}]\n"
        "from l2rm_jax.__main__ import run_command\n"
        "run_command()"
    )
    done = subprocess.run(without([name], code), cwd=tmp_path, capture_output=True, text=True)
    assert "Traceback" not in done.stderr
