"""Batches for scoring and evaluation, and the options with which they are read ahead."""

import jax
import numpy as np
import pytest

from l2rm_jax.data.batches import (
    WHOLE_BATCH,
    caption_batches,
    image_batches,
    scoring_batches,
    smallest_bucket,
)
from l2rm_jax.devices.hosts import Share
from l2rm_jax.errors import DataError
from tests.data.samples import IMAGES, PAIRS, check_batch, joined, make_dataset, with_nan


@pytest.mark.parametrize("batch_size", [16, 50, 200, 300])
def test_scoring_sees_every_pair_exactly_once(batch_size):
    dataset = make_dataset()
    seen = []
    for batch, rows in scoring_batches(dataset, batch_size=batch_size, seed=0, epoch=3):
        check_batch(dataset, batch)
        assert len(batch.pair_index) == batch_size and 0 < len(rows) <= batch_size
        np.testing.assert_array_equal(batch.pair_index[: len(rows)], rows)
        seen += rows.tolist()
        if batch_size <= PAIRS:  # what completes a batch is not in it already
            assert len(set(batch.pair_index)) == batch_size
    assert sorted(seen) == list(range(PAIRS))
    assert seen != sorted(seen)


def test_scoring_order_depends_on_seed_and_epoch():
    dataset = make_dataset()

    def first(seed, epoch):
        batches = scoring_batches(dataset, batch_size=32, seed=seed, epoch=epoch)
        return tuple(next(batches)[0].pair_index)

    assert len({first(0, 0), first(0, 1), first(1, 0)}) == 3
    assert first(1, 2) == first(1, 2)


@pytest.mark.parametrize(
    "batches",
    [
        lambda pairs, share: scoring_batches(pairs, batch_size=32, seed=0, epoch=0, share=share),
        lambda pairs, share: image_batches(pairs.images, 32, share=share),
    ],
    ids=["pairs", "images"],
)
def test_hosts_take_their_shares_of_the_same_batches(batches):
    parts = [list(batches(make_dataset(), Share(host, 2))) for host in range(2)]
    together = joined([[batch for batch, _ in part] for part in parts])
    whole = batches(make_dataset(), WHOLE_BATCH)
    for (batch, rows), again, *of_hosts in zip(whole, together, *parts, strict=True):
        jax.tree.map(np.testing.assert_array_equal, batch, again)
        for _, known in of_hosts:
            np.testing.assert_array_equal(known, rows)


@pytest.mark.parametrize("batch_size", [1, 7, 40, 64])
def test_image_batches_drop_nothing(batch_size):
    dataset = make_dataset()
    rows, counts = [], []
    for (images, regions, *_), valid in image_batches(dataset.images, batch_size):
        assert images.shape == (batch_size, 3, 4) and images.dtype == np.float32
        assert regions.shape == (batch_size,) and regions.dtype == np.int32
        assert not images[valid:].any() and (regions[valid:] == 1).all()
        rows.append(images[:valid])
        counts += regions[:valid].tolist()
    every = np.arange(IMAGES)
    np.testing.assert_array_equal(np.concatenate(rows), dataset.images.rows(every))
    np.testing.assert_array_equal(counts, every % 3 + 1)


@pytest.mark.parametrize("batch_size", [1, 7, 64, 256])
def test_caption_batches_drop_and_clip_nothing(batch_size):
    dataset = make_dataset(longest=110)
    seen, shapes = [], set()
    for batch, rows, valid in caption_batches(dataset.tokens, batch_size):
        tokens, lengths = batch.tokens, batch.lengths
        assert len(tokens) == len(lengths) == len(rows) == batch_size
        shapes.add(tokens.shape)
        assert tokens.shape[1] == smallest_bucket(lengths.max())
        for line, length, row in zip(tokens, lengths, rows, strict=True):
            np.testing.assert_array_equal(line[:length], dataset.tokens[row])
            assert not line[length:].any()
        seen += rows[:valid].tolist()
    assert sorted(seen) == list(range(PAIRS))
    assert max(width for _, width in shapes) == 128


@pytest.mark.parametrize(
    "batches",
    [
        lambda dataset: scoring_batches(dataset, batch_size=16, seed=0, epoch=0),
        lambda dataset: image_batches(dataset.images, 16),
    ],
)
def test_a_bad_row_is_reported_while_reading_ahead(batches):
    dataset = make_dataset()
    row = dataset.stored_image[17]
    with pytest.raises(DataError, match=f"mine: row {row}: .*nan"):
        list(batches(with_nan(dataset, row)))


def test_smallest_bucket():
    lengths = (1, 8, 9, 64, 65, 96, 97)
    assert [smallest_bucket(length) for length in lengths] == [8, 8, 12, 64, 96, 96, 128]
    assert smallest_bucket(41, (10, 40)) == 64
