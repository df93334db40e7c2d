"""Inputs of an audit, and inputs that it refuses."""

import numpy as np
import pytest

from l2rm_jax.audit.inputs import read_training_pairs
from l2rm_jax.config import default
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.data.vectors import as_rows, fit_rows, rows_by
from l2rm_jax.errors import DataError

rng = np.random.default_rng(0)
IMAGES = rng.normal(size=(6, 4)).astype(np.float32)
CAPTIONS = rng.normal(size=(12, 3)).astype(np.float32)
TEXTS = [f"a dog number {k} on a beach" for k in range(12)]


def config_of(path, **mismatch):
    config = default()
    config.data.name, config.data.path = "mine", str(path)
    config.mismatch.update(mismatch)
    return config


def read(config):
    return read_training_pairs(config)[0]


def write_train(path, images=IMAGES, captions=CAPTIONS, texts=None):
    np.save(path / "train_ims.npy", images)
    if captions is not None:
        np.save(path / "train_caps.npy", captions)
    if texts is not None:
        (path / "train_caps.txt").write_text("\n".join(texts) + "\n")


def test_vectors_of_a_directory_without_dev_and_test(tmp_path):
    write_train(tmp_path)
    (tmp_path / "train_ids.txt").write_text("".join(f"{k}.jpg\n" for k in range(6)))
    pairs, every = as_rows(read(config_of(tmp_path))), np.arange(12)
    np.testing.assert_array_equal(pairs.images[every[:6]], IMAGES)
    np.testing.assert_array_equal(pairs.captions[every], CAPTIONS)
    np.testing.assert_array_equal(pairs.image_of, every // 2)
    assert pairs.ids == [f"{k}.jpg" for k in range(6)] and pairs.name == str(tmp_path)
    assert pairs.texts is pairs.words is pairs.pictures is None


def test_text_beside_vectors_is_a_second_kind_of_rows(tmp_path):
    write_train(tmp_path, texts=TEXTS)
    pairs = as_rows(read(config_of(tmp_path)))
    assert pairs.texts == TEXTS and pairs.words.shape[0] == 12
    np.testing.assert_array_equal(pairs.captions[np.arange(12)], CAPTIONS)


def test_a_mismatch_on_purpose_is_the_truth(tmp_path):
    write_train(tmp_path, captions=None, texts=TEXTS)
    pairs, train, _ = read_training_pairs(config_of(tmp_path, protocol="caption", rate=0.5))
    np.testing.assert_array_equal(~train.matched, pairs.image_of != np.arange(12) // 2)

    assert not train.matched.all()


def test_fits_to_some_pairs_make_the_vectors_of_others(tmp_path):
    write_train(tmp_path, captions=None, texts=TEXTS)
    every = np.arange(12)
    for pairs in (read(config_of(tmp_path)), Pairs.from_arrays(IMAGES, TEXTS)):
        rows, fits = fit_rows(pairs)
        again = rows_by(Pairs.from_arrays(IMAGES, TEXTS[::-1]), fits)
        np.testing.assert_array_equal(again.captions[every[::-1]], rows.captions[every])
        np.testing.assert_array_equal(again.images[every[:6]], IMAGES)
    assert fit_rows(Pairs.from_arrays(list("abcdef"), TEXTS))[1] is None
    assert fit_rows(Pairs(IMAGES, [np.arange(4)] * 12, every // 2))[1] is None


def test_the_digest_sees_every_input(tmp_path):
    write_train(tmp_path, texts=TEXTS)
    digests = [read(config_of(tmp_path)).digest]
    assert digests == [read(config_of(tmp_path)).digest]
    digests.append(read(config_of(tmp_path, protocol="caption", rate=0.5)).digest)
    write_train(tmp_path, texts=[*TEXTS[:-1], "another one"])
    digests.append(read(config_of(tmp_path)).digest)
    write_train(tmp_path, images=IMAGES + np.float32(1e-3))
    digests.append(read(config_of(tmp_path)).digest)
    write_train(tmp_path, captions=CAPTIONS + np.float32(1e-3))
    digests.append(read(config_of(tmp_path)).digest)
    (tmp_path / "train_ids.txt").write_text("".join(f"{k}.jpg\n" for k in range(6)))
    digests.append(read(config_of(tmp_path)).digest)
    assert len(set(digests)) == 6


def test_all_problems_of_a_directory_come_before_any_work(tmp_path):
    images, captions = IMAGES.copy(), CAPTIONS.copy()
    images[3, 1], captions[7, 0], captions[9, 2] = np.nan, np.inf, np.nan
    write_train(tmp_path, images, captions)
    with pytest.raises(DataError) as error:
        read(config_of(tmp_path))
    assert len(error.value.args) == 3


def test_arrays_and_texts():
    pairs = as_rows(Pairs.from_arrays(IMAGES, CAPTIONS, texts=TEXTS))
    np.testing.assert_array_equal(pairs.image_of, np.arange(12) // 2)
    assert pairs.image_ids == list("012345") and pairs.words.shape[0] == 12
    own = np.arange(12) % 6
    pairs = as_rows(Pairs.from_arrays(IMAGES.astype(np.float16), TEXTS, own, ids=list("abcdef")))
    np.testing.assert_array_equal(pairs.image_of, own)
    assert pairs.texts == TEXTS and pairs.words is None and pairs.ids == list("abcdef")


def test_wrong_arrays_are_listed_together():
    images = IMAGES.copy()
    images[[1, 4]] = np.nan
    with pytest.raises(DataError) as error:
        Pairs.from_arrays(images, CAPTIONS[:, 0], None, texts=["a"], ids=["b"])
    starts = ("images: row 1: ", "images: row 4: ", "captions: found float32 [12]")
    assert all(map(str.startswith, error.value.args, starts)) and len(error.value.args) == 3
    with pytest.raises(DataError) as error:
        Pairs.from_arrays(IMAGES, CAPTIONS, np.arange(12), texts=["a"], ids=["b"])
    starts = ("texts: found 1", "ids: found 1", "image_of: entry 6 is 6")
    assert all(map(str.startswith, error.value.args, starts))
    with pytest.raises(DataError, match=r"11 .*6 images"):
        Pairs.from_arrays(IMAGES, CAPTIONS[:11])


WORDS = [f"a {('red', 'blue')[at % 2]} {('ball', 'cup', 'boat')[at % 3]}" for at in range(12)]
TEXT_FORMS = {
    "a tuple": tuple,
    "a generator": lambda texts: (text for text in texts),
    "an array": np.array,
    "an array of objects": lambda texts: np.array(texts, object),
    "NumPy's strings": lambda texts: np.array(texts, np.dtypes.StringDType()),
    "a Series": lambda texts: pytest.importorskip("pandas").Series(texts, index=range(5, 17)),
    "NumPy's scalars": lambda texts: [np.str_(text) for text in texts],
}


@pytest.mark.parametrize("form", TEXT_FORMS)
def test_texts_in_every_form(form):
    images = np.random.default_rng(0).normal(size=(12, 4))
    expected = Pairs.from_arrays(images, WORDS)
    found = Pairs.from_arrays(images, TEXT_FORMS[form](WORDS))
    assert found.texts == WORDS and {type(text) for text in found.texts} == {str}
    assert found.digest == expected.digest
    vectors = np.ones((12, 3))
    second = Pairs.from_arrays(images, vectors, texts=TEXT_FORMS[form](WORDS))
    assert second.digest == Pairs.from_arrays(images, vectors, texts=WORDS).digest


@pytest.mark.parametrize("missing", [None, float("nan"), 7])
def test_a_missing_text_is_one_clear_error(missing):
    images, texts = np.ones((12, 4)), [*WORDS[:-1], missing]
    with pytest.raises(DataError) as caught:
        Pairs.from_arrays(images, texts)
    assert caught.value.args[0].startswith(f"captions: entry 11 is {missing!r}")
    with pytest.raises(DataError) as caught:
        Pairs.from_arrays(images, np.ones((12, 3)), texts=texts)
    assert caught.value.args[0].startswith(f"texts: entry 11 is {missing!r}")


def test_numbers_of_any_size_and_of_16_bits():
    import ml_dtypes

    vectors = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
    for scale in (1e30, 1e-30):
        rows = Pairs.from_arrays(vectors * np.float32(scale), vectors).images
        assert rows.dtype == np.float32
        np.testing.assert_allclose(rows * np.abs(vectors).max(), vectors, rtol=1e-5)
    small = vectors.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(
        Pairs.from_arrays(small, vectors).images, small.astype(np.float32)
    )
