"""Imports that are stopped and continued, and directories that are never overwritten."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from l2rm_jax.errors import ConfigError
from l2rm_jax.importing import chunks, importer
from l2rm_jax.importing.importer import import_data
from l2rm_jax.importing.request import Request
from tests.importing.made import (
    PixelEncoder,
    interrupted,
    load_encoder,
    rows_of,
    write_csv,
    write_pictures,
)

COUNT, SMALL = 48, 4  # pictures, and pictures of a shard
CHILD = """
from tests.importing.test_continued import *

chunks.SHARD, chunks.CAPTION_SHARD = SMALL, 2 * SMALL
print("begin", flush=True)
import_data(request(Path("out"), Path("pairs.csv")), lambda *_: SlowEncoder("patches"))
"""


class SlowEncoder(PixelEncoder):
    def encode_images(self, pictures):
        time.sleep(0.03)
        return super().encode_images(pictures)

    def encode_captions(self, texts):
        time.sleep(0.03)
        return super().encode_captions(texts)


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(importer, "load_encoder", load_encoder)
    monkeypatch.setattr(chunks, "SHARD", SMALL)
    monkeypatch.setattr(chunks, "CAPTION_SHARD", 2 * SMALL)


@pytest.fixture
def source(tmp_path) -> Path:
    names = write_pictures(tmp_path, COUNT)
    (tmp_path / names[5]).write_bytes(b"torn")
    return write_csv(tmp_path / "pairs.csv", rows_of(names))


def request(out: Path, source: Path, **fields) -> Request:
    settings = {"encoder": "pixels", "tokens": "patches", "max_rejected": 0.2, **fields}
    return Request(out, str(source), **settings)


def files(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir()}


@pytest.mark.slow
def test_two_kills(tmp_path, source):
    """Kill a process of its own at random moments; the result equals an undisturbed one's."""
    import_data(request(tmp_path / "whole", source))
    rng, out, killed, done = random.Random(0), tmp_path / "out", 0, [0]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    settings = {"stdout": subprocess.PIPE, "text": True, "cwd": tmp_path, "env": environment}
    for time_left in (rng.uniform(0, 1.2), rng.uniform(0, 1.2), 60):
        with subprocess.Popen([sys.executable, "-c", CHILD], **settings) as process:
            assert process.stdout.readline() == "begin\n"
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(time_left)
            process.kill()
        killed += process.returncode == -signal.SIGKILL
        done.append(len(list((tmp_path / "out.partial").rglob("*.npz"))))
        if out.exists():
            break
        assert done[-1] >= done[-2]  # finished shards stay
    assert files(out) == files(tmp_path / "whole") and killed
    assert not (tmp_path / "out.partial").exists()


STEPS = [
    ("l2rm_jax.importing.chunks.replace_arrays", 3),
    ("l2rm_jax.importing.chunks.replace_arrays", 20),
    ("l2rm_jax.importing.writing.replace_lines", 2),
    ("l2rm_jax.importing.writing.replace_array", 1),
    ("l2rm_jax.importing.features.writing.write_rows", 2),
    ("l2rm_jax.jobs.job.remove_unfinished", 1),
    ("l2rm_jax.jobs.job.Path.rename", 2),
]


@pytest.mark.parametrize(("place", "times"), STEPS)
def test_an_import_ends_anywhere_and_is_continued(tmp_path, source, monkeypatch, place, times):
    import_data(request(tmp_path / "whole", source))
    with interrupted(place, times):
        import_data(request(tmp_path / "out", source))
    assert not (tmp_path / "out").exists()
    encoded, encode = [], PixelEncoder.encode_images
    monkeypatch.setattr(
        PixelEncoder, "encode_images", lambda self, x: encoded.extend(x) or encode(self, x)
    )
    import_data(request(tmp_path / "out", source))
    assert files(tmp_path / "out") == files(tmp_path / "whole")
    if place.endswith("chunks.replace_arrays"):
        assert COUNT - len(encoded) >= SMALL * min(times - 1, COUNT // SMALL) - 1
    else:
        assert not encoded


def test_a_complete_directory_is_never_overwritten(tmp_path, source):
    import_data(request(tmp_path / "out", source))
    before = files(tmp_path / "out")
    with pytest.raises(ConfigError, match="out") as caught:
        import_data(request(tmp_path / "out", source))
    assert caught.value.hint == f"--out={tmp_path}/out-2"
    assert files(tmp_path / "out") == before and not (tmp_path / "out.partial").exists()


def test_another_import_in_progress_is_refused(tmp_path, source):
    with interrupted("l2rm_jax.importing.importer._write"):
        import_data(request(tmp_path / "out", source))
    with pytest.raises(ConfigError, match="seed"):
        import_data(request(tmp_path / "out", source, seed=3))
    with source.open("a") as file:
        file.write("images/007.png,one more\n")
    with pytest.raises(ConfigError, match="rows") as caught:
        import_data(request(tmp_path / "out", source))
    assert caught.value.hint == f"rm -r {tmp_path}/out.partial"


def test_two_processes_do_not_import_into_one_directory(tmp_path, source):
    program = (
        "import fcntl, sys, time; lock = open(sys.argv[1], 'w'); fcntl.flock(lock, fcntl.LOCK_EX)\n"
        "print(flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", program, tmp_path / "out.partial.lock"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        other.stdout.readline()  # it holds the lock
        with pytest.raises(ConfigError, match=r"out\.partial: another process imports into it"):
            import_data(request(tmp_path / "out", source))
        other.kill()
    import_data(request(tmp_path / "out", source))
    assert not list(tmp_path.glob("*.lock"))
