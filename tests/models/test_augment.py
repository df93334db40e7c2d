"""Dropout and augmentation: shares, unchanged parts, and training mode alone."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax.devices.batch import Batch
from l2rm_jax.models.augment import MASK_TOKEN, keep_regions, perturb_words
from l2rm_jax.models.layers import Dropout, sample_keys
from l2rm_jax.pretrained.specs import PieceIds
from tests.grid import small_model

VOCABULARY = 1000
KEYS = sample_keys(jax.random.key(0), 300, None)


def test_kept_regions_are_a_random_part_of_the_image_s_regions():
    counts = np.tile([1, 2, 7, 10], 75)
    regions = np.broadcast_to(np.arange(10.0)[:, None], (300, 10, 1))
    keep = jax.jit(jax.vmap(lambda *x: keep_regions(*x, 0.4)))
    reordered, new_counts = jax.device_get(keep(KEYS, regions, counts))
    np.testing.assert_array_equal(new_counts, np.tile([1, 1, 4, 6], 75))
    kept = [np.asarray(row[:n, 0]) for row, n in zip(reordered, new_counts, strict=True)]
    for rows, count in zip(kept, counts, strict=True):
        assert len(set(rows)) == len(rows) and max(rows) < count
    frequencies = np.bincount(np.concatenate(kept[3::4]).astype(int), minlength=10) / 75
    assert (abs(frequencies - 0.6) < 0.25).all()  # more than four standard deviations


def perturbed(tokens, lengths, rate=0.2):
    change = jax.jit(jax.vmap(lambda *x: perturb_words(*x, rate, VOCABULARY)))
    tokens, lengths = change(KEYS[: len(tokens)], tokens, lengths)
    return np.asarray(tokens), np.asarray(lengths)


def test_words_are_masked_replaced_and_dropped_in_the_published_shares():
    tokens = np.tile(np.arange(1, 41, dtype=np.int32), (300, 1))
    after, lengths = perturbed(tokens, np.full(300, 40))
    words = [row[1 : n - 1] for row, n in zip(after, lengths, strict=True)]
    inner = 300 * 38
    shares = {
        "masked": sum((row == MASK_TOKEN).sum() for row in words) / inner,
        "replaced": sum((row > 40).sum() for row in words) / inner * VOCABULARY / (VOCABULARY - 41),
        "dropped": (40 - lengths).sum() / inner,
    }
    for name, share in {"masked": 0.1, "replaced": 0.02, "dropped": 0.08}.items():
        assert abs(shares[name] - share) < 5 * np.sqrt(share / inner), name
    for row, length in zip(after, lengths, strict=True):
        assert row[0] == 1 and row[length - 1] == 40 and not row[length:].any()
        own = row[(row > 0) & (row <= 40)]
        assert (np.diff(own) > 0).mean() > 0.9  # the remaining words keep their order


@pytest.mark.slow
def test_short_captions_and_the_ends_of_captions_stay():
    tokens = np.pad(np.arange(1, 7, dtype=np.int32), (0, 4))[None].repeat(50, 0)
    after, lengths = perturbed(tokens, np.full(50, 6), rate=0.9)
    np.testing.assert_array_equal(after, tokens)
    assert (lengths == 6).all()
    longer = np.arange(1, 8, dtype=np.int32)[None].repeat(50, 0)
    after, lengths = perturbed(longer, np.full(50, 7), rate=0.9)
    assert (lengths < 7).any() and (after[:, 0] == 1).all()
    assert (after[np.arange(50), lengths - 1] == 7).all()


@pytest.mark.parametrize("train", [True, False])
def test_model_augments_in_training_only(train):
    plain = small_model("vse", 50)
    augmenting = small_model("vse", 50, region_mask=0.5, word_noise=0.9)
    rng = np.random.default_rng(0)
    images = rng.normal(size=(8, 6, 5)).astype(np.float32)
    batch = Batch(images, np.full(8, 6), rng.integers(1, 50, (8, 9)), np.full(8, 9))
    variables = jax.jit(plain.init)(jax.random.key(0), batch)

    def counts(model):
        rngs = {"dropout": jax.random.key(1)}
        image, text = model.apply(variables, batch, train, rngs=rngs, method="encode")
        return jnp.sum(image.mask, 1), jnp.sum(text.mask, 1)

    regions, words = jax.jit(lambda: counts(augmenting))()
    assert (regions == (3 if train else 6)).all()
    assert bool((words < 9).any()) == train


@pytest.mark.slow
def test_pieces_of_a_word_share_its_fate():
    """Words of three pieces are masked, replaced or dropped as a whole; no other special token."""
    ids = PieceIds(count=600, mask=4, special=(0, 1, 2, 3, 4), continuations=(41, 42))
    word = [10, 41, 42]
    caption = np.array([2, *word, *word, *word, 3, 0, 0], np.int32)
    keys = jax.random.split(jax.random.key(0), 4000)
    change = jax.jit(
        jax.vmap(lambda key: perturb_words(key, caption, jnp.int32(11), 0.5, ids.count, ids))
    )
    tokens, lengths = jax.device_get(change(keys))
    rows = [row[:length].tolist() for row, length in zip(tokens, lengths, strict=True)]
    assert all(row[0] == 2 and row[-1] == 3 for row in rows)
    found = [row[at : at + 3] for row in rows for at in range(1, len(row) - 1, 3)]
    assert all(len(each) == 3 and not {0, 1, 2, 3} & set(each) for each in found)
    masked, whole = found.count([4, 4, 4]) / 12000, found.count(word) / 12000
    dropped = 1 - len(found) / 12000
    np.testing.assert_allclose([whole, masked, dropped], [0.5, 0.25, 0.2], atol=0.03)
    others = [each for each in found if each not in (word, [4, 4, 4])]
    touched = [each for each in others if set(each) & {*word, 4}]
    assert 400 < len(others) < 800 and len(touched) < 0.1 * len(others)  # random pieces


@partial(jax.jit, static_argnums=(0, 2))
def dropped(rate, x, train, key):
    return Dropout(rate).apply({}, x, train, rngs={"dropout": key})


def dropout(rate, x, train, seed=0):
    return np.asarray(dropped(rate, x, train, jax.random.key(seed)))


def test_dropout_keeps_the_mean_and_draws_each_sample_independently():
    x = jnp.ones((400, 60))
    out = dropout(0.4, x, True)
    np.testing.assert_allclose(np.unique(out), [0.0, 1 / 0.6], rtol=1e-6)
    assert abs(out.mean() - 1) < 0.02
    # The dropped units of a sample do not depend on the rest of the batch.
    np.testing.assert_array_equal(dropout(0.4, x[:7], True), out[:7])
    assert len(np.unique(out, axis=0)) == 400
    assert (dropout(0.4, x, True, seed=1) != out).any()


def test_no_dropout_in_evaluation_or_at_rate_zero():
    x = jnp.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(dropout(0.4, x, False), x)
    np.testing.assert_array_equal(dropout(0.0, x, True), x)
