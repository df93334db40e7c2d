from types import SimpleNamespace

import numpy as np
import pytest

from l2rm_jax.data.features import Pixels, RegionFeatures
from l2rm_jax.data.layouts.precomp import undo_repeats
from l2rm_jax.errors import DataError
from l2rm_jax.run.inputs import check_values

RNG = np.random.default_rng(0)


def features(images: int, dtype=np.float32) -> np.ndarray:
    if dtype == np.int8:
        return RNG.integers(-128, 128, (images, 4, 6)).astype(dtype)
    return RNG.normal(size=(images, 4, 6)).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_rows_of_a_file_are_float32(tmp_path, dtype):
    stored = features(7, dtype)
    np.save(tmp_path / "train_ims.npy", stored)
    images = RegionFeatures.read(tmp_path / "train_ims.npy")
    assert images.shape == (7, 4, 6) and len(images) == 7
    rows = images.rows([5, 0, 5])
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows, stored[[5, 0, 5]].astype(np.float32))


def test_int8_rows_are_scaled_per_dimension(tmp_path):
    stored, scale = features(7, np.int8), RNG.random(6).astype(np.float32)
    np.save(tmp_path / "train_ims.npy", stored)
    np.save(tmp_path / "ims_scale.npy", scale)
    rows = RegionFeatures.read(tmp_path / "train_ims.npy").rows(np.array([6, 2]))
    assert rows.dtype == np.float32
    np.testing.assert_allclose(rows, stored[[6, 2]] * scale, rtol=1e-6)


def test_reading_maps_the_file_and_changes_nothing(tmp_path):
    np.save(tmp_path / "train_ims.npy", features(7))
    images = RegionFeatures.read(tmp_path / "train_ims.npy")
    assert isinstance(images.array.base, np.memmap)
    assert not images.array.flags.writeable
    images.rows([1])[:] = 0
    assert images.rows([1]).any()


def test_head_of_features():
    stored = features(7)
    images = RegionFeatures.from_array(stored, "mine").head(3)
    assert images.shape == (3, 4, 6)
    np.testing.assert_array_equal(images.rows([2]), stored[[2]])
    for wrong in (0, 4):
        with pytest.raises(DataError, match=f"mine: .*3 images.*{wrong}"):
            images.head(wrong)


@pytest.mark.parametrize("wrong", [-1, 7])
def test_rows_out_of_range_are_refused(wrong):
    images = RegionFeatures.from_array(features(7), "mine")
    with pytest.raises(DataError, match=f"mine: .*index {wrong}"):
        images.rows([0, wrong])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_row_that_is_not_finite_is_named(tmp_path, bad, dtype):
    stored = features(7, dtype)
    stored[4, 3, 1] = bad
    np.save(tmp_path / "train_ims.npy", stored)
    images = RegionFeatures.read(tmp_path / "train_ims.npy")
    images.rows([0, 3])
    with pytest.raises(DataError, match=rf"ims\.npy: row 4: found {bad} \(region 3, dimension 1\)"):
        images.rows([3, 4])


@pytest.mark.parametrize("sign", [1, -1])
def test_float64_beyond_float32_is_named(tmp_path, sign):
    stored = features(7, np.float64)
    stored[2, 1, 0] = sign * 3.4e38
    stored[4, 3, 1] = sign * 1e39
    np.save(tmp_path / "train_ims.npy", stored)
    images = RegionFeatures.read(tmp_path / "train_ims.npy")
    assert np.isfinite(images.rows([2])).all()
    with pytest.raises(DataError, match=r"row 4: .*-?1e\+39 .*float32"):
        images.rows([2, 4])


def test_all_values_are_checked_in_blocks(tmp_path, monkeypatch):
    stored = features(7)
    stored[[1, 6], 3, 1] = np.nan
    np.save(tmp_path / "train_ims.npy", stored)
    images = RegionFeatures.read(tmp_path / "train_ims.npy")
    monkeypatch.setattr("l2rm_jax.data.features._BLOCK_BYTES", 3 * stored[0].nbytes)
    assert [block.tolist() for block in images.blocks()] == [[0, 1, 2], [3, 4, 5], [6]]
    with pytest.raises(DataError) as error:
        check_values(SimpleNamespace(images=images, tokens=[]))
    assert [message.split(": found")[0][-5:] for message in error.value.args] == ["row 1", "row 6"]
    check_values(SimpleNamespace(images=images.head(1), tokens=[]))


def test_rows_that_were_taken_keep_their_numbers_in_errors():
    """A filter drops pairs; an error names the row of the file all the same."""
    stored = features(7)
    stored[5, 3, 1] = np.nan
    images = RegionFeatures.from_array(stored, "train_caps.npy").take(np.array([1, 5, 6]))
    with pytest.raises(DataError, match=r"row 5: .*nan"):
        images.rows([1])
    with pytest.raises(DataError, match=r"row 5: .*nan"):
        images.take(np.array([1, 2])).head(1).rows([0])


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (features(7)[0, 0], r"found float32 \[6\].*rank 3"),
        (features(7).astype(np.int16), r"found int16 \[7, 4, 6\].*float16"),
        (features(7)[:0], "no data"),
        (features(7, np.int8), "ims_scale.npy: no such file"),
    ],
)
def test_wrong_array_is_refused(tmp_path, array, message):
    np.save(tmp_path / "train_ims.npy", array)
    with pytest.raises(DataError, match=message):
        RegionFeatures.read(tmp_path / "train_ims.npy")


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (np.ones(5, np.float32), r"found float32 \[5\]"),
        (np.ones(6, int), r"found int64 \[6\]"),
        (np.array([1, 1, np.nan, 1, 1, 1], np.float32), "entry 2: found nan"),
        (np.array([1, 1, 1, 1e300, 1, 1]), "entry 3: found inf"),
        (np.array([1, np.inf, 1, 1, np.nan, 1], np.float32), "entry 1: found inf"),
    ],
)
def test_wrong_scale_is_refused(tmp_path, scale, message):
    np.save(tmp_path / "train_ims.npy", features(7, np.int8))
    np.save(tmp_path / "ims_scale.npy", scale)
    with pytest.raises(DataError, match=rf"ims_scale\.npy: {message}"):
        RegionFeatures.read(tmp_path / "train_ims.npy")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content[:40], "not a .npy file"),
        (lambda content: b"", "not a .npy file"),
        (lambda content: b"PK" + content, "not a .npy file"),
        (lambda content: content + b"\0", "longer than its header says"),
    ],
)
def test_damaged_file_is_refused(tmp_path, change, message):
    path = tmp_path / "train_ims.npy"
    np.save(path, features(7))
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=message) as error:
        RegionFeatures.read(path)
    assert str(path) in str(error.value)


# Images with fewer regions


def write_counted(path, counts, dtype=np.float32) -> np.ndarray:
    """Write features and counts; values after an image's last region are NaN."""
    stored = features(len(counts), dtype)
    if dtype != np.int8:
        stored[np.arange(4) >= np.asarray(counts)[:, None]] = np.nan
    np.save(path / "train_ims.npy", stored)
    np.save(path / "train_regions.npy", counts)
    return stored


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8])
def test_rows_are_zero_past_the_regions_of_an_image(tmp_path, dtype):
    np.save(tmp_path / "ims_scale.npy", np.ones(6, np.float32))
    stored = write_counted(tmp_path, np.array([4, 1, 3], np.int64), dtype)
    images = RegionFeatures.read(tmp_path / "train_ims.npy")
    rows = images.rows([2, 0, 1])
    for row, image, count in zip(rows, stored[[2, 0, 1]], [3, 4, 1], strict=True):
        np.testing.assert_array_equal(row[:count], image[:count].astype(np.float32))
        assert not row[count:].any()
    counts = images.region_counts([2, 0])
    assert counts.tolist() == [3, 4] and counts.dtype == np.int32
    assert images.head(2).region_counts([1]).tolist() == [1]
    with pytest.raises(DataError, match="index 2"):
        images.head(2).region_counts([2])


def test_a_region_that_is_not_finite_is_named_among_padding(tmp_path):
    stored = write_counted(tmp_path, np.array([4, 1, 3]))
    stored[2, 1, 5] = np.inf
    np.save(tmp_path / "train_ims.npy", stored)
    with pytest.raises(DataError, match=r"row 2: .*inf .*1, .*5"):
        RegionFeatures.read(tmp_path / "train_ims.npy").rows([0, 1, 2])


@pytest.mark.usefixtures("unchecked_arrays")
@pytest.mark.parametrize(
    ("counts", "message"),
    [
        (np.ones(7), r"found float64 \[7\]"),
        (np.ones(6, np.int32), r"found int32 \[6\]"),
        (np.ones((7, 1), np.int32), r"found int32 \[7, 1\]"),
        (np.array([1, 4, 0, 4, 4, 4, 4]), "entry 2: found 0"),
        (np.array([1, 4, 4, 4, 4, 4, 5], np.uint8), "entry 6: found 5"),
    ],
)
def test_wrong_counts_are_refused(tmp_path, counts, message):
    np.save(tmp_path / "train_ims.npy", features(7))
    np.save(tmp_path / "train_regions.npy", counts)
    with pytest.raises(DataError, match=rf"train_regions\.npy: {message}"):
        RegionFeatures.read(tmp_path / "train_ims.npy")
    with pytest.raises(DataError, match=f"mine, region counts: {message}"):
        RegionFeatures.from_array(features(7), "mine", counts)


@pytest.mark.parametrize("images", [1, 3, 200])
def test_repeats_are_undone(images):
    stored = features(images)
    stored[0, 0, 0] = np.nan  # identical bytes, though not equal
    seen = undo_repeats(RegionFeatures.from_array(np.repeat(stored, 5, axis=0), "mine"))
    assert seen.shape == (images, 4, 6)
    last = [images - 1]
    if images > 1:
        np.testing.assert_array_equal(seen.rows(last), stored[last])
        np.testing.assert_array_equal(seen.head(2).rows([1]), stored[[1]])
    with pytest.raises(DataError, match=r"row 0: .*nan"):
        seen.rows([0])


@pytest.mark.parametrize("rows", [500, 502])
def test_rows_that_are_no_repeats_are_left_alone(rows):
    images = RegionFeatures.from_array(features(rows), "mine")
    assert undo_repeats(images) is images


@pytest.mark.parametrize("row", [0, 33, 104, 999])
def test_partly_repeated_rows_are_refused(row):
    stored = np.repeat(features(200), 5, axis=0)
    stored[row, 0, 2] += 1
    first = row // 5 * 5
    with pytest.raises(DataError, match=f"mine: rows {first} to {first + 4}: found different"):
        undo_repeats(RegionFeatures.from_array(stored, "mine"))


# Images with fewer regions


def test_repeats_are_undone_with_their_counts():
    counts = RNG.integers(1, 5, 200)
    stored = np.repeat(features(200), 5, axis=0)
    rows = np.repeat(counts, 5)
    padding = np.arange(4) >= rows[:, None]
    stored[padding] = RNG.normal(size=(padding.sum(), 6))  # unequal within a repeated image
    seen = undo_repeats(RegionFeatures.from_array(stored, "mine", rows))
    assert len(seen) == 200
    np.testing.assert_array_equal(seen.region_counts(np.arange(200)), counts)
    np.testing.assert_array_equal(seen.head(9).region_counts([8]), counts[[8]])
    assert seen.rows([3])[0].any(axis=1).sum() == counts[3]


@pytest.mark.parametrize("row", [0, 33, 999])
def test_repeats_of_unequal_counts_are_refused(row):
    counts = np.full(1000, 3)
    counts[row] = 2
    first = row // 5 * 5
    message = rf"mine: rows {first} to {first + 4}: found \[.*2.*\] regions for one repeated image"
    with pytest.raises(DataError, match=message):
        undo_repeats(RegionFeatures.from_array(np.repeat(features(200), 5, 0), "mine", counts))


# Pictures


def random_pixels(images=5, size=4):
    return np.random.default_rng(0).integers(0, 256, (images, size, size, 3), np.uint8)


def test_rows_are_bytes_of_the_mapped_file(tmp_path):
    array = random_pixels()
    np.save(tmp_path / "dev_pixels.npy", array)
    pixels = Pixels.read(tmp_path / "dev_pixels.npy")
    assert (
        isinstance(pixels.array.base, np.memmap)
        and pixels.shape == (5, 4, 4, 3)
        and len(pixels) == 5
    )
    assert pixels.rows([1]).dtype == np.uint8
    np.testing.assert_array_equal(pixels.rows([3, 0, 3]), array[[3, 0, 3]])
    np.testing.assert_array_equal(pixels.region_counts([3, 0]), [1, 1])
    taken = pixels.take(np.array([4, 2])).take(np.array([1, 0]))
    np.testing.assert_array_equal(taken.rows([0, 1]), array[[2, 4]])
    np.testing.assert_array_equal(pixels.head(2).rows([0, 1]), array[:2])
    np.testing.assert_array_equal(np.concatenate([*pixels.blocks()]), np.arange(5))
    for wrong in (lambda: pixels.rows([5]), lambda: pixels.rows([-1])):
        with pytest.raises(DataError, match=r"index -?\d"):
            wrong()
    with pytest.raises(DataError, match=r"5 images.* 6"):
        pixels.head(6)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((2, 4, 4, 3), np.float32),
        np.zeros((2, 4, 5, 3), np.uint8),
        np.zeros((2, 4, 4), np.uint8),
        np.zeros((2, 3, 4, 4), np.uint8),
        np.zeros((0, 4, 4, 3), np.uint8),
    ],
)
def test_other_arrays_are_refused(array):
    with pytest.raises(DataError, match=r"x: found .*"):
        Pixels.from_array(array, "x")
