"""Contents of the wheel, and where the installed package finds its configs."""

import zipfile
from pathlib import Path

import pytest
from hatchling import build

from l2rm_jax.run import config_file
from l2rm_jax.run.config_file import load_config, shipped_configs

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel of this clone."""
    directory = tmp_path_factory.mktemp("wheel")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        return directory / build.build_wheel(str(directory))


def test_the_wheel_holds_the_package_and_the_configs_alone(wheel):
    with zipfile.ZipFile(wheel) as archive:
        files = {name for name in archive.namelist() if ".dist-info/" not in name}
    sources = [
        file for file in (ROOT / "l2rm_jax").rglob("*")
        if file.suffix in (".py", ".css", ".js", ".html")
    ]  # fmt: skip
    package = {str(file.relative_to(ROOT)) for file in sources}
    configs = {f"l2rm_jax/{file.relative_to(ROOT)}" for file in (ROOT / "configs").glob("*.py")}
    assert {"l2rm_jax/data/scenes/world.py", "l2rm_jax/pages/gallery.js"} <= package
    assert "l2rm_jax/configs/f30k.py" in configs
    assert package | configs <= files
    assert not {name for name in files if name.endswith(".md") or not name.startswith("l2rm_jax/")}


def test_an_installed_package_has_its_own_configs(wheel, tmp_path, monkeypatch):
    in_clone = load_config("f30k:rcl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    monkeypatch.setattr(config_file, "__file__", str(tmp_path / "l2rm_jax/run/config_file.py"))
    assert shipped_configs()["f30k"] == tmp_path / "l2rm_jax" / "configs" / "f30k.py"
    assert load_config("f30k:rcl") == in_clone
