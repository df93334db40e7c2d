"""Devices, FIFOs and the like are refused at once, wherever a file is read as a whole."""

import os
import socket
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from l2rm_jax.data.captions import read_captions
from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.data.files import open_arrays
from l2rm_jax.data.layouts import open_pairs
from l2rm_jax.data.parquet_vectors import open_parquet
from l2rm_jax.data.pictures import UnreadableError, read_picture
from l2rm_jax.data.text import Vocabulary
from l2rm_jax.errors import CheckpointError, DataError
from l2rm_jax.importing.sources import open_source
from l2rm_jax.jobs.regular_files import check_regular, has_file, parse_json, read_regular
from l2rm_jax.pages.thumbnails import make_thumbnail
from l2rm_jax.published.checkpoint import read_checkpoint
from l2rm_jax.run.config_file import read_config

KINDS = {
    "fifo": "a FIFO",
    "socket": "a socket",
    "zero": "a device",
    "directory": "a directory",
    "kernel": "a file of /proc",
}


def make(kind: str, path: Path) -> Path:
    """Make a path of a kind; links for devices."""
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    elif kind == "kernel":  # it waits for the next line of the system's log
        path.symlink_to("/proc/kmsg")
    else:
        place = Path.cwd()
        os.chdir(path.parent)  # names of sockets are short
        with socket.socket(socket.AF_UNIX) as own:
            own.bind(path.name)
        os.chdir(place)
    return path


def read_table(path):
    return open_source(path, path.parent / "cache")


READERS = {
    "a.json": Vocabulary.read,
    "a.png": read_picture,
    "test_caps.txt": lambda path: read_captions(path.parent, "test"),
    "a.csv": read_table,
    "a.jsonl": read_table,
    "a.tar": read_table,
    "a.parquet": open_parquet,
    "a.pth": read_checkpoint,
    "test_ims.npy": RegionFeatures.read,
    "judgement.npz": lambda path: open_arrays(path, "a judgement", "judge again").__enter__(),
    "config.json": lambda path: read_config(path.parent),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", READERS)
def test_other_kinds_of_files_are_refused_at_once(tmp_path, name, kind):
    path = make(kind, tmp_path / name)
    with pytest.raises((DataError, UnreadableError, CheckpointError)) as caught:
        READERS[name](path)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_kind_is_named(tmp_path, kind):
    path = make(kind, tmp_path / "a")
    for read in (check_regular, lambda path: read_regular(path, 10)):
        with pytest.raises(DataError, match=f"a: found {KINDS[kind]}, expected a file"):
            read(path)
    assert make_thumbnail(path) == f"found {KINDS[kind]}, expected a file"


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "gone", "a/" * 3000, "half \ud800"])
def test_names_that_the_system_refuses_are_no_file(tmp_path, name):
    for read in (check_regular, lambda path: read_regular(path, 10)):
        with pytest.raises(DataError, match="no such file"):
            read(f"{tmp_path}/{name}")


def test_deep_json_is_damaged():
    assert parse_json(b'{"a": [1]}') == {"a": [1]}
    for opening in ("[", '{"a":'):
        with pytest.raises(ValueError, match="nested too deeply"):
            parse_json(100_000 * opening)


def test_the_size_is_limited(tmp_path):
    (tmp_path / "a").write_bytes(bytes(10))
    assert read_regular(tmp_path / "a", 10) == bytes(10)
    with pytest.raises(DataError, match="found 10 bytes, expected at most 9"):
        read_regular(tmp_path / "a", 9)
    with (tmp_path / "sparse.png").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UnreadableError, match="found 1,099,511,627,776 bytes"):
        read_picture(tmp_path / "sparse.png")


def test_a_link_to_a_file_is_read(tmp_path):
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "a.png")
    (tmp_path / "b.png").symlink_to("a.png")
    assert read_picture(tmp_path / "b.png") == (tmp_path / "a.png").read_bytes()


@pytest.mark.parametrize("name", ["caps.txt", "caps.tsv", "ids.txt", "columns.parquet", "ims.npy"])
def test_an_optional_file_of_another_kind_is_not_absent(tmp_path, name):
    for content in ("ims", "caps"):
        np.save(tmp_path / f"train_{content}.npy", np.ones((4, 3), np.float32))
    file = tmp_path / f"train_{name}"
    assert not has_file(tmp_path / "absent") and (not has_file(file) or name == "ims.npy")
    file.unlink(missing_ok=True)
    make("fifo", file)
    with pytest.raises(DataError, match=f"{name}: found a FIFO, expected a file"):
        open_pairs(tmp_path)
