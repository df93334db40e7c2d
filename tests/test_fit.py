"""`l2rm_jax.fit`: which pairs it trains on, and runs of it that a person can use."""

from dataclasses import replace

import numpy as np
import pytest

import l2rm_jax
from l2rm_jax import Pairs, Retriever, fit
from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.fitting import EpochReport, split_pairs
from tests.judging import synthetic
from tests.tiny import write_vectors

IMAGES, PER_IMAGE = 40, 5


def make_pairs(texts: bool = False, seed: int = 0) -> Pairs:
    """Five captions per image, which share its hidden cause, in a random order of the pairs."""
    rng = np.random.default_rng(seed)
    to_image, to_caption = np.random.default_rng(1).normal(size=(2, 4, 6))
    cause, image_of = rng.normal(size=(IMAGES, 4)), np.repeat(np.arange(IMAGES), PER_IMAGE)
    captions = cause[image_of] @ to_caption + 0.3 * rng.normal(size=(len(image_of), 6))
    words = [f"{'left' if c[0] > 0 else 'right'} {'up' if c[1] > 0 else 'down'}" for c in cause]
    said = [f"{words[image]} number {k}" for k, image in enumerate(image_of)]
    order = rng.permutation(len(image_of))
    sides = [said[row] for row in order] if texts else captions[order].astype(np.float32)
    ids = [f"{k}.jpg" for k in range(IMAGES)]
    images = (cause @ to_image).astype(np.float32)
    return Pairs.from_arrays(images, sides, image_of[order], ids=ids)


def contents(pairs: Pairs) -> set[tuple[str, bytes]]:
    """The name of the image of each pair and its caption."""
    captions, every = pairs.captions, np.arange(len(pairs))
    rows = captions.rows(every)[:, 0] if hasattr(captions, "rows") else captions[every]
    names = [pairs.ids[image] for image in pairs.image_of]
    return {(name, row.tobytes()) for name, row in zip(names, rows, strict=True)}


def test_the_public_function_is_not_hidden_by_a_module():
    for name in l2rm_jax.__all__:
        assert getattr(l2rm_jax, name) is getattr(l2rm_jax, name)
    assert callable(l2rm_jax.fit)


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5])
def test_each_pair_is_in_one_split_and_captions_are_adjacent(share):
    pairs = make_pairs()
    splits = split_pairs(pairs, share)
    [train, dev] = map(contents, splits)
    assert train | dev == contents(pairs) and not train & dev
    assert len(splits[1].images) == share * IMAGES and [s.split for s in splits] == ["train", "dev"]
    for split in splits:
        assert (np.diff(split.image_of) >= 0).all() and len(split.ids) == len(split.images)
        assert set(split.image_of) == set(range(len(split.images)))
        own = [int(name.split(".")[0]) for name in split.ids]
        np.testing.assert_array_equal(split.images.rows(range(len(own)))[:, 0], pairs.images[own])


def test_the_splits_do_not_depend_on_the_order():
    pairs = make_pairs()
    rng = np.random.default_rng(9)
    rows, images = rng.permutation(len(pairs)), rng.permutation(IMAGES)
    place = np.argsort(images)
    other = Pairs.from_arrays(
        pairs.images[images],
        pairs.captions[rows],
        place[pairs.image_of[rows]],
        ids=[pairs.ids[row] for row in images],
    )
    for first, second in zip(split_pairs(pairs, 0.2), split_pairs(other, 0.2), strict=True):
        assert contents(first) == contents(second)


def test_equal_images_are_in_one_split():
    pairs = make_pairs()
    twins = replace(pairs, images=pairs.images[np.arange(IMAGES) // 2])
    for split in split_pairs(twins, 0.3):
        own = sorted(int(name.split(".")[0]) for name in split.ids)
        assert [k ^ 1 for k in own] == [*np.array(own).reshape(-1, 2)[:, ::-1].ravel()]


def test_images_without_captions_are_left_out():
    pairs = make_pairs()
    rest = pairs.take(pairs.image_of % 4 > 0)
    splits = split_pairs(rest, 0.2)
    assert sum(len(split.images) for split in splits) == 30
    assert contents(splits[0]) | contents(splits[1]) == contents(rest)


@pytest.mark.parametrize("share", [0, 1, -0.1, 1.5, float("nan")])
def test_a_share_is_between_0_and_1(share):
    with pytest.raises(ConfigError, match=f"dev: found {share}, expected more than 0 and less"):
        fit(make_pairs(), dev=share)


def test_too_few_images_are_counted():
    pairs = make_pairs()
    few = pairs.take(pairs.image_of < 3)
    with pytest.raises(DataError, match="found 3 distinct images, expected at least 4"):
        fit(few)
    with pytest.raises(DataError, match="found 40 distinct images"):
        fit(pairs, dev=0.99)
    equal = replace(pairs, images=np.ones_like(pairs.images))
    with pytest.raises(DataError, match="found 1 distinct image"):
        fit(equal)


def test_what_is_no_pairs_is_refused(tmp_path):
    with pytest.raises(DataError, match="pairs: found ndarray, expected Pairs or a directory"):
        fit(np.ones((8, 4)))
    np.save(tmp_path / "train_pixels.npy", np.zeros((8, 4, 4, 3), np.uint8))
    (tmp_path / "train_caps.txt").write_text("".join(f"caption {k}\n" for k in range(8)))
    with pytest.raises(DataError, match="found pictures, expected vectors or features"):
        fit(tmp_path)
    with pytest.raises(DataError, match="found pictures, expected vectors or features"):
        l2rm_jax.audit_pairs(tmp_path)


def test_a_wrong_recipe_is_named():
    with pytest.raises(ConfigError, match="soup"):
        fit(make_pairs(), recipe="soup")


def found_at_once(retriever: Retriever, pairs: Pairs) -> float:
    """Share of captions whose image is among the five nearest of 40."""
    images = retriever.encode_images(pairs.images)
    captions = pairs.texts or pairs.captions
    hits = retriever.search(captions, images, top_k=5)
    return float((hits.rows == pairs.image_of[:, None]).any(axis=1).mean())


@pytest.mark.slow
@pytest.mark.parametrize("texts", [False, True])
def test_pairs_in_memory_train_a_retriever(texts):
    pairs, reports = make_pairs(texts), []
    retriever = fit(pairs, epochs=2, dev=0.2, on_epoch=reports.append)
    assert isinstance(retriever, Retriever)
    assert [(type(each), each.epoch, each.epochs) for each in reports] == [
        (EpochReport, 1, 2),
        (EpochReport, 2, 2),
    ]
    for each in reports:
        assert 0 <= each.rsum <= 600 and each.rsum == each.recalls["rsum"]
    if not texts:
        assert found_at_once(retriever, pairs) > 0.5  # by chance 1 in 8


@pytest.mark.slow
def test_a_workdir_is_resumed(tmp_path):
    pairs, reports = make_pairs(), []
    first = fit(pairs, tmp_path / "run", epochs=2, on_epoch=reports.append)
    assert len(reports) == 2
    second = fit(pairs, str(tmp_path / "run"), epochs=2, on_epoch=reports.append)
    assert len(reports) == 2  # nothing was left to train
    vectors = [each.encode_images(pairs.images).vectors() for each in (first, second)]
    np.testing.assert_array_equal(*vectors)
    with pytest.raises(DataError, match="found a judgement of other captions"):
        fit(make_pairs(seed=5), tmp_path / "run", epochs=2)


@pytest.mark.slow
def test_directories_and_kept_pairs(tmp_path):
    images, captions, image_of, _ = synthetic.make_pairs(60, 3, 0.3)
    audit = l2rm_jax.audit_pairs(images, captions, image_of, top=0)
    kept = audit.pairs.take(audit.kept())
    assert 0 < len(kept) < len(audit)
    for pairs in (kept, str(write_vectors(tmp_path / "data", train=60))):
        assert isinstance(fit(pairs, epochs=1), Retriever)
