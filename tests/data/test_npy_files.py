"""Arrays written row by row, and errors of a full disk."""

import errno
import hashlib
import os
import resource
from pathlib import Path

import numpy as np
import pytest

from l2rm_jax.data.contents import checked_vectors, hash_array
from l2rm_jax.data.features import Pixels, RegionFeatures
from l2rm_jax.data.files import open_array
from l2rm_jax.data.npy_files import RowFile, still_whole, write_array
from l2rm_jax.data.shards import ShardRows
from l2rm_jax.errors import DataError
from l2rm_jax.importing.features import scan_vectors
from l2rm_jax.jobs.files import new_directory, new_file, replace_file
from l2rm_jax.jobs.full_disk import named_if_full

FULL = Path("/dev/full")


@pytest.mark.parametrize("dtype", ["<f4", "<f2", "|u1", "<i8", ">f8"])
@pytest.mark.parametrize("shape", [(1,), (7, 3), (5, 2, 3), (4, 0)])
def test_a_written_array_has_the_bytes_that_numpy_writes(tmp_path, dtype, shape):
    array = np.random.default_rng(0).integers(0, 9, shape).astype(dtype)
    write_array(tmp_path / "a.npy", array)
    np.save(tmp_path / "b.npy", array)
    assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()


def test_columns_first_arrays_keep_their_values(tmp_path):
    array = np.asfortranarray(np.arange(10_000.0).reshape(5000, 2))
    write_array(tmp_path / "a.npy", array)
    assert np.array_equal(np.load(tmp_path / "a.npy"), array)


@pytest.mark.parametrize("seed", range(5))
def test_rows_are_written_in_any_order_and_in_any_blocks(tmp_path, seed):
    rng = np.random.default_rng(seed)
    array = rng.normal(size=(50, 3)).astype(np.float32)
    with RowFile(tmp_path / "a.npy", array.dtype, array.shape) as file:
        for rows in np.array_split(rng.permutation(50), rng.integers(1, 9)):
            file.write(rows, array[rows])
    assert np.array_equal(np.load(tmp_path / "a.npy"), array)


def test_rows_of_another_width_are_refused(tmp_path):
    file = RowFile(tmp_path / "a.npy", np.dtype(np.float32), (4, 3))
    with pytest.raises(ValueError, match="broadcast"), file:
        file.write(np.arange(2), np.zeros((2, 5), np.float32))


def test_rows_that_are_never_written_are_zeros(tmp_path):
    with RowFile(tmp_path / "a.npy", np.dtype(np.int64), (4, 2)) as file:
        file.write(np.array([1]), np.array([[5, 6]]))
    assert np.load(tmp_path / "a.npy").tolist() == [[0, 0], [5, 6], [0, 0], [0, 0]]


needs_full = pytest.mark.skipif(not FULL.exists(), reason="/dev/full: only on Linux")


@needs_full
def test_an_array_on_a_full_disk_names_its_file(tmp_path):
    path = tmp_path / "a.npy"
    path.symlink_to(FULL)
    with pytest.raises(OSError, match="No space left") as refused:
        write_array(path, np.zeros((50_000, 8)))
    assert (refused.value.errno, refused.value.filename) == (errno.ENOSPC, str(path))


@pytest.mark.parametrize(
    "make",
    [
        lambda path: write_array(path, np.zeros((1000, 8))),
        lambda path: RowFile(path, np.dtype(np.float64), (1000, 8)).__exit__(),
    ],
)
def test_without_room_an_array_is_refused_before_it_is_computed(tmp_path, make):
    """The error names file and bytes, and no row has been written yet."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"64,128 bytes.*a\.npy"):
            make(tmp_path / "a.npy")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    make(tmp_path / "a.npy")


def shorten(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize(
    ("name", "array", "read"),
    [
        ("test_ims.npy", np.zeros((600, 3, 8), np.float32), RegionFeatures.read),
        ("test_ims.npy", np.zeros((600, 8), np.float16), RegionFeatures.read),
        ("test_pixels.npy", np.zeros((600, 4, 4, 3), np.uint8), Pixels.read),
    ],
)
def test_a_file_that_shrinks_is_an_error_and_no_signal(tmp_path, name, array, read):
    np.save(tmp_path / name, array)
    opened = read(tmp_path / name)
    parts = [
        opened,
        opened.head(500),
        opened.take(np.arange(400)),
        opened.take(np.arange(9)).head(2),
    ]
    for part in parts:
        part.rows(np.arange(len(part)))
    shorten(tmp_path / name)
    for part in parts:
        with pytest.raises(DataError, match=rf"{name}: found [\d,]+ bytes, expected"):
            part.rows([0])


def test_other_mapped_arrays_that_shrink(tmp_path):
    for name in ("a.npy", "b.npy"):
        np.save(tmp_path / name, np.ones((600, 8), np.float32))
    arrays = [open_array(tmp_path / name) for name in ("a.npy", "b.npy")]
    shorten(tmp_path / "b.npy")
    rows = ShardRows(arrays)
    rows[np.arange(600)]
    for read in (
        lambda: rows[np.arange(1200)],
        lambda: checked_vectors("images", arrays[1]),
        lambda: scan_vectors(arrays[1], "vectors", None),
        lambda: hash_array(hashlib.blake2b(), arrays[1][5:]),
    ):
        with pytest.raises(DataError, match=r"b\.npy: found [\d,]+ bytes, expected"):
            read()


def test_a_file_that_was_replaced_is_still_read(tmp_path):
    """By another of the same name: the process keeps the file that it has opened."""
    np.save(tmp_path / "a.npy", np.ones((600, 8)))
    array = open_array(tmp_path / "a.npy")
    np.save(tmp_path / "b.npy", np.zeros((1, 8)))
    (tmp_path / "b.npy").replace(tmp_path / "a.npy")
    assert still_whole(array).all()


def fill(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(FULL)
    with path.open("wb", buffering=0) as file:
        file.write(b"x")


@needs_full
def test_every_writer_names_its_file(tmp_path):
    with pytest.raises(OSError) as refused, new_file(tmp_path / "page.html") as unfinished:
        fill(unfinished)
    assert refused.value.filename == str(tmp_path / "page.html")
    with pytest.raises(OSError) as refused, new_directory(tmp_path / "audit") as unfinished:
        fill(unfinished / "table.csv")
    assert refused.value.filename == str(tmp_path / "audit.partial" / "table.csv")
    with pytest.raises(OSError, match="no room for 9 bytes") as refused:
        (tmp_path / f"a.{os.getpid()}.unfinished").symlink_to(FULL)
        replace_file(tmp_path / "a", b"123456789")
    assert refused.value.filename == str(tmp_path / "a")
    with pytest.raises(OSError) as refused, named_if_full(tmp_path / "copy"):
        raise OSError(errno.ENOSPC, "No space left", "source", None, "target")
    assert refused.value.filename == "target"


def test_other_errors_stay(tmp_path):
    error = OSError(errno.EIO, os.strerror(errno.EIO))
    with pytest.raises(OSError) as refused, named_if_full(tmp_path):
        raise error
    assert refused.value is error
    replace_file(tmp_path / "a", b"1")
    assert (tmp_path / "a").read_bytes() == b"1"
