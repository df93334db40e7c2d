"""Names on the Hugging Face Hub stand for directories, from a cache as `huggingface_hub` has it."""

import shutil
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import l2rm_jax
from l2rm_jax.errors import DataError
from l2rm_jax.pretrained.directory import open_pretrained, read_kind
from l2rm_jax.pretrained.hub import find_directory
from l2rm_jax.run.load_trained import SAVED
from tests.models.pretrained.golden import GOLDEN, read_parameters
from tests.retriever.runs import make_run

constants = pytest.importorskip("huggingface_hub.constants")
filter_repo_objects = pytest.importorskip("huggingface_hub.utils").filter_repo_objects
REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of the Hub, which cannot be reached itself."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "cache"


def put(cache: Path, name: str, directory: Path) -> None:
    """Put a directory into the cache: files are links to their contents."""
    root = cache / f"models--{name.replace('/', '--')}"
    (root / "refs").mkdir(parents=True)
    (root / "blobs").mkdir()
    (root / "refs/main").write_text(REVISION)
    for number, file in enumerate(sorted(directory.rglob("*.*"))):
        link = root / "snapshots" / REVISION / file.relative_to(directory)
        link.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, root / "blobs" / str(number))
        link.symlink_to(root / "blobs" / str(number))


def test_weights_are_read_by_their_name(cache, tmp_path):
    put(cache, "someone/bert-tiny", GOLDEN / "bert")
    assert read_kind("someone/bert-tiny") == "bert"
    opened = open_pretrained("someone/bert-tiny", "bert", max_words=32)
    params = opened.parameters()["text_base"]
    jax.tree.map(np.testing.assert_array_equal, params, read_parameters("bert")["text_base"])
    opened.keep(tmp_path / "copy")
    assert REVISION in (tmp_path / "copy/source.json").read_text()
    assert not any(file.is_symlink() for file in (tmp_path / "copy").iterdir())


def test_a_saved_model_is_loaded_by_its_name(cache, tmp_path):
    make_run(tmp_path / "run", "vse", score=False)
    first = l2rm_jax.load(tmp_path / "run")
    first.save_pretrained(tmp_path / "saved")
    put(cache, "someone/retriever", tmp_path / "saved")
    second = l2rm_jax.load("someone/retriever")
    assert second.maker.fingerprint == first.maker.fingerprint
    assert second.title.startswith("someone/retriever: ")
    second.save_pretrained(tmp_path / "again")
    assert l2rm_jax.load(tmp_path / "again").maker.fingerprint == first.maker.fingerprint


def test_only_files_that_are_read_are_asked_for(cache, monkeypatch, tmp_path):
    """By the patterns of the Hub's own filter: no pickles, no other forms of the weights."""
    asked = []

    def download(name, *, allow_patterns):
        asked.append((name, allow_patterns))
        return str(GOLDEN / "bert")

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert read_kind("someone/bert-tiny") == "bert"
    find_directory("someone/retriever", SAVED)
    [(_, weights), (name, saved)] = asked
    assert name == "someone/retriever"
    shards = ["model-00001-of-00002.safetensors", "model.safetensors.index.json"]
    needed = ["config.json", "tokenizer.json", "model.safetensors", "1_Pooling/config.json"]
    others = ["pytorch_model.bin", "onnx/model.onnx", "onnx/config.json", "README.md", "x.py"]
    kept = [*filter_repo_objects([*needed, *shards, *others], allow_patterns=weights)]
    assert kept == [*needed, *shards]
    needed = ["config.json", "model.safetensors", "vocabulary.json", "results.json"]
    needed += ["pretrained/config.json", "pretrained/tokenizer.json"]
    kept = [*filter_repo_objects([*needed, *others, "checkpoints/1/x"], allow_patterns=saved)]
    assert kept == needed


def test_directories_and_other_names_are_left_alone(cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("runs/mine").mkdir(parents=True)
    names = ("runs/mine", "mine", "./runs/other", "/runs/other", "runs/mine/more", "../x")
    for name in (*names, "runs/mien"):  # as `runs` exists, it is no owner on the Hub
        assert find_directory(name, ()) == Path(name)


def test_what_cannot_be_fetched_is_one_error(cache, monkeypatch):
    for use in (read_kind, l2rm_jax.load):
        with pytest.raises(DataError, match="someone/bert") as found:
            use("someone/bert")
        assert len(found.value.args) == 1 and "\n" not in found.value.args[0]
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(DataError, match="someone/bert") as found:
        read_kind("someone/bert")
    assert found.value.hint == "pip install huggingface_hub"
