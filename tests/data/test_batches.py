import time
from dataclasses import replace

import jax
import numpy as np
import pytest

from l2rm_jax.data import mismatch
from l2rm_jax.data.batches import (
    BUCKETS,
    WHOLE,
    Batch,
    bucket_of,
    caption_batches,
    image_batches,
    read_options,
    scoring_batches,
)
from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.data.pairs import PairDataset
from l2rm_jax.data.streams import TrainStream
from l2rm_jax.devices.hosts import Share
from l2rm_jax.errors import ConfigError, DataError

IMAGES, PAIRS = 40, 200


@pytest.mark.parametrize(("cores", "threads"), [(1, 2), (6, 6), (64, 16)])
def test_a_thread_reads_for_each_core_up_to_some(monkeypatch, cores, threads):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)), raising=False)
    assert read_options().num_threads == threads
    assert read_options().prefetch_buffer_size >= threads
    monkeypatch.delattr("os.sched_getaffinity")
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    assert read_options().num_threads == threads


class CountedRows:
    """Features that remember which rows were read."""

    def __init__(self, array: np.ndarray):
        self.array, self.read = array, []

    shape = property(lambda self: self.array.shape)

    def __len__(self) -> int:
        return len(self.array)

    def rows(self, indices: np.ndarray) -> np.ndarray:
        self.read += list(indices)
        return self.array[indices]

    def region_counts(self, indices: np.ndarray) -> np.ndarray:
        return np.full(len(indices), self.array.shape[1], np.int32)


def make_dataset(longest: int = 20) -> PairDataset:
    rng = np.random.default_rng(1)
    own = np.arange(PAIRS) // 5
    tokens = [rng.integers(1, 99, rng.integers(3, longest + 1)).astype(np.int32) for _ in own]
    array = rng.normal(size=(IMAGES, 3, 4)).astype(np.float32)
    images = RegionFeatures.from_array(array, "mine", np.arange(IMAGES) % 3 + 1)
    captions = [f"caption {k}" for k in own]
    clean = PairDataset("train", images, captions, tokens, own, own)
    return clean.with_mismatch(mismatch.generate("caption", 0.5, 0, own, IMAGES))


def two_streams(dataset: PairDataset) -> dict[str, np.ndarray]:
    rows = np.arange(PAIRS)
    return {"matched": rows[dataset.matched], "mismatched": rows[~dataset.matched]}


def stream_of(dataset, streams, batch_size=16, seed=0, epoch=0, **more) -> TrainStream:
    return TrainStream(dataset, streams, batch_size=batch_size, seed=seed, epoch=epoch, **more)


def same(left, right) -> bool:
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


def check_batch(dataset: PairDataset, batch: Batch, max_words: int = 64) -> None:
    """Every row of a batch is the pair that it says it is."""
    assert batch.images.dtype == np.float32
    assert {batch.tokens.dtype, batch.lengths.dtype} == {np.dtype(np.int32)}
    assert {batch.pair_index.dtype, batch.image_index.dtype} == {np.dtype(np.int32)}
    np.testing.assert_array_equal(batch.image_index, dataset.stored_image[batch.pair_index])
    np.testing.assert_array_equal(batch.images, dataset.images.rows(batch.image_index))
    np.testing.assert_array_equal(batch.regions, batch.image_index % 3 + 1)
    for tokens, length, pair in zip(batch.tokens, batch.lengths, batch.pair_index, strict=True):
        np.testing.assert_array_equal(tokens[:length], dataset.tokens[pair][:max_words])
        assert not tokens[length:].any()


# Training


def test_batches_hold_the_pairs_they_name():
    dataset = make_dataset()
    items = list(stream_of(dataset, two_streams(dataset)).iterate())
    for item in items:
        assert list(item) == ["matched", "mismatched"]
        check_batch(dataset, item["matched"])
        check_batch(dataset, item["mismatched"])
        assert dataset.matched[item["matched"].pair_index].all()
        assert not dataset.matched[item["mismatched"].pair_index].any()


def test_an_epoch_is_one_pass_over_the_first_stream():
    dataset, rows = make_dataset(), np.arange(7, 107)
    stream = stream_of(dataset, {"all": rows})
    seen = np.concatenate([item["all"].pair_index for item in stream.iterate()])
    assert len(stream) == 6 and len(seen) == 96
    assert len(set(seen)) == 96 and set(seen) <= set(rows)
    assert not np.array_equal(seen, np.sort(seen))


def test_a_later_stream_restarts_reshuffled():
    dataset, rows = make_dataset(), np.arange(PAIRS)
    streams = {"matched": rows[:160], "mismatched": rows[160:]}  # ten batches and two and a half
    items = list(stream_of(dataset, streams).iterate())
    batches = [item["mismatched"].pair_index for item in items]
    passes = [np.concatenate(batches[i : i + 2]) for i in range(0, 10, 2)]
    assert all(len(set(turn)) == 32 and turn.min() >= 160 for turn in passes)
    assert len({tuple(turn) for turn in passes}) == 5
    assert set(np.concatenate(passes)) == set(rows[160:])  # the tail dropped is not always the same


@pytest.mark.parametrize("size", [1, 5, 15])
@pytest.mark.parametrize("name", ["matched", "mismatched"])
def test_a_small_stream_is_completed_from_itself(size, name):
    dataset, rows = make_dataset(), np.arange(PAIRS)
    streams = {"matched": rows[:64], "mismatched": rows[64:128]}
    streams[name] = streams[name][:size]
    stream = stream_of(dataset, streams)
    assert len(stream) == (1 if name == "matched" else 4)
    for item in stream.iterate():
        counts = np.bincount(item[name].pair_index, minlength=PAIRS)[streams[name]]
        assert counts.sum() == 16
        assert counts.max() - counts.min() <= 2 and counts.min() >= 16 // size - 1


def test_order_depends_on_seed_epoch_and_stream_only():
    dataset, rows = make_dataset(), np.arange(PAIRS)

    def first(seed, epoch, name="a"):
        return tuple(
            next(stream_of(dataset, {name: rows}, 64, seed, epoch).iterate())[name].pair_index
        )

    orders = {first(*key) for key in [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (0, 0, "b")]}
    assert len(orders) == 6
    assert first(1, 1) == first(1, 1)


def test_order_is_the_same_in_every_process():
    dataset = make_dataset()
    item = next(stream_of(dataset, {"all": np.arange(PAIRS)}, 8, 3, 2).iterate())
    assert item["all"].pair_index.tolist() == [8, 71, 85, 66, 88, 64, 198, 191]


@pytest.mark.parametrize("queue_length", [0, 42])
@pytest.mark.parametrize("start", [0, 1, 4, 6, 7])
def test_continuing_gives_exactly_the_remaining_steps(start, queue_length):
    dataset = make_dataset()
    stream = stream_of(dataset, two_streams(dataset), 14, queue_length=queue_length)
    whole = list(stream.iterate())
    rest = list(
        stream_of(dataset, two_streams(dataset), 14, queue_length=queue_length).iterate(start)
    )
    assert len(whole) == len(stream) == 7
    assert len(rest) == 7 - start
    assert all(same(a, b) for a, b in zip(whole[start:], rest, strict=True))


def test_skipped_steps_are_not_read():
    dataset = make_dataset()
    counted = CountedRows(dataset.images.array)
    watched = replace(dataset, images=counted)
    stream = stream_of(watched, {"all": np.arange(PAIRS)})
    list(stream.iterate(len(stream) - 2))
    assert len(counted.read) == 2 * 16


def test_steps_are_read_ahead():
    dataset = make_dataset()
    counted = CountedRows(dataset.images.array)
    steps = stream_of(replace(dataset, images=counted), {"all": np.arange(PAIRS)}).iterate()
    next(steps)
    deadline = time.monotonic() + 10
    while len(counted.read) < 4 * 16 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(counted.read) >= 4 * 16


def test_all_streams_of_a_step_share_the_smallest_sufficient_bucket():
    dataset = make_dataset(longest=60)
    widths = set()
    for item in stream_of(dataset, two_streams(dataset), 4).iterate():
        longest = max(batch.lengths.max() for batch in item.values())
        shapes = {batch.tokens.shape for batch in item.values()}
        assert shapes == {(4, min(bucket for bucket in BUCKETS if bucket >= longest))}
        widths |= {shape[1] for shape in shapes}
    assert len(widths) > 1


def test_long_captions_are_clipped():
    dataset = make_dataset(longest=30)
    streams = two_streams(dataset)
    stream = stream_of(dataset, streams, max_words=12)
    assert any(len(dataset.tokens[k]) > 12 for k in streams["matched"])
    for item in stream.iterate():
        check_batch(dataset, item["matched"], max_words=12)
        assert item["matched"].tokens.shape[1] == 12


@pytest.mark.parametrize("behind", [1, 3])
def test_queue_holds_the_batches_before(behind):
    dataset = make_dataset()
    stream = stream_of(dataset, two_streams(dataset), 8, queue_length=8 * (1 + behind))
    before, drawn = [], None
    for item in stream.iterate():
        batch = item["mismatched"]
        newest, older = batch.image_index[:8], batch.image_index[8:]
        assert batch.images.shape == (8 * (1 + behind), 3, 4)
        assert len(batch.pair_index) == len(batch.tokens) == 8
        np.testing.assert_array_equal(newest, dataset.stored_image[batch.pair_index])
        np.testing.assert_array_equal(batch.images, dataset.images.rows(batch.image_index))
        np.testing.assert_array_equal(batch.regions, batch.image_index % 3 + 1)
        assert item["matched"].images.shape[0] == 8
        drawn = older if drawn is None else drawn
        expected = np.concatenate([*before[::-1], drawn])[: 8 * behind]
        np.testing.assert_array_equal(older, expected)
        before.append(newest)
    assert len(set(drawn)) == len(drawn)
    assert len(before) > behind


def test_queue_at_the_start_differs_between_epochs_and_may_exceed_the_images():
    dataset = make_dataset()

    def drawn(epoch, length):
        stream = stream_of(dataset, two_streams(dataset), 16, epoch=epoch, queue_length=length)
        return next(stream.iterate())["mismatched"].image_index[16:].tolist()

    assert drawn(0, 32) != drawn(1, 32)
    assert len(drawn(0, 160)) == 144


@pytest.mark.parametrize("queue_length", [0, 16])
def test_no_queue_beyond_the_batch(queue_length):
    dataset = make_dataset()
    item = next(stream_of(dataset, two_streams(dataset), queue_length=queue_length).iterate())
    assert all(len(batch.images) == len(batch.pair_index) == 16 for batch in item.values())


def test_no_queue_without_mismatched_pairs():
    item = next(stream_of(make_dataset(), {"matched": np.arange(50)}, queue_length=32).iterate())
    assert list(item) == ["matched"]


@pytest.mark.parametrize(
    ("streams", "batch_size", "error", "message"),
    [
        ({"all": np.arange(PAIRS)}, 201, DataError, "200 pairs, expected at least .* of 201"),
        ({"all": np.arange(5), "more": np.arange(0)}, 4, DataError, "stream 'more' is empty"),
        ({}, 4, DataError, "no stream"),
        ({"all": np.array([3, 200])}, 2, DataError, "pairs 3 to 200, expected rows 0 to 199"),
        ({"all": np.array([-1, 20])}, 2, DataError, "pairs -1 to 20"),
    ],
)
def test_unusable_streams_are_refused(streams, batch_size, error, message):
    with pytest.raises(error, match=message):
        stream_of(make_dataset(), streams, batch_size)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"queue_length": 24}, "queue_length is 24, .* multiple of the batch size 16"),
        ({"queue_length": -16}, "queue_length is -16"),
        ({"buckets": (8, 8)}, "ascending"),
        ({"buckets": ()}, "ascending"),
        ({"max_words": 0}, "max_words is 0"),
    ],
)
def test_unusable_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        stream_of(make_dataset(), {"all": np.arange(PAIRS)}, **settings)


def with_nan(dataset: PairDataset, row: int) -> PairDataset:
    array = dataset.images.array.copy()
    array[row, 0, 0] = np.nan
    return replace(dataset, images=RegionFeatures.from_array(array, "mine"))


@pytest.mark.parametrize(
    "batches",
    [
        lambda dataset: stream_of(dataset, {"all": np.arange(PAIRS)}, PAIRS // 4).iterate(),
        lambda dataset: scoring_batches(dataset, batch_size=16, seed=0, epoch=0),
        lambda dataset: image_batches(dataset, 16),
    ],
)
def test_a_bad_row_found_while_reading_ahead_reaches_the_reader(batches):
    dataset = make_dataset()
    row = dataset.stored_image[17]
    with pytest.raises(DataError, match=f"mine: row {row} holds nan"):
        list(batches(with_nan(dataset, row)))


# Hosts


def is_batch(tree) -> bool:
    return isinstance(tree, Batch)


def joined(parts) -> list:
    """What several hosts read of the same batches, together."""
    steps = zip(*parts, strict=True)
    return [jax.tree.map(lambda *rows: np.concatenate(rows), *each) for each in steps]


@pytest.mark.parametrize(
    ("streams", "queue"),
    [
        (two_streams(make_dataset()), 0),
        (two_streams(make_dataset()), 32),
        ({"pairs": np.random.default_rng(0).integers(0, PAIRS, (60, 2, 2))}, 0),
    ],
)
def test_hosts_read_their_shares_of_the_same_batches(streams, queue):
    dataset = make_dataset()
    counted = [CountedRows(dataset.images.rows(np.arange(IMAGES))) for _ in range(4)]

    def batches(share=WHOLE, images=dataset.images) -> list:
        data = replace(dataset, images=images)
        stream = stream_of(data, streams, queue_length=queue, share=share)
        return [batch for step in stream.iterate() for batch in jax.tree.leaves(step, is_batch)]

    whole = batches(images=CountedRows(counted[0].array))
    parts = [batches(Share(host, 4), counted[host]) for host in range(4)]
    for batch, again in zip(whole, joined(parts), strict=True):
        jax.tree.map(np.testing.assert_array_equal, batch, again)
    for rows, own in zip(counted, parts, strict=True):
        assert sorted(rows.read) == sorted(np.concatenate([batch.image_index for batch in own]))


def test_hosts_score_their_shares_of_the_same_batches():
    def batches(share=WHOLE) -> list:
        return list(scoring_batches(make_dataset(), batch_size=32, seed=0, epoch=0, share=share))

    parts = [batches(Share(host, 2)) for host in range(2)]
    together = joined([[batch for batch, _ in part] for part in parts])
    for (batch, rows), again, *of_hosts in zip(batches(), together, *parts, strict=True):
        jax.tree.map(np.testing.assert_array_equal, batch, again)
        for _, known in of_hosts:
            np.testing.assert_array_equal(known, rows)


# Scoring and evaluation


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


@pytest.mark.parametrize("batch_size", [1, 7, 40, 64])
def test_image_batches_drop_nothing(batch_size):
    dataset = make_dataset()
    rows, counts = [], []
    for images, regions, valid in image_batches(dataset, batch_size):
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
    for tokens, lengths, rows, valid in caption_batches(dataset, batch_size):
        assert len(tokens) == len(lengths) == len(rows) == batch_size
        shapes.add(tokens.shape)
        assert tokens.shape[1] == bucket_of(lengths.max())
        for line, length, row in zip(tokens, lengths, rows, strict=True):
            np.testing.assert_array_equal(line[:length], dataset.tokens[row])
            assert not line[length:].any()
        seen += rows[:valid].tolist()
    assert sorted(seen) == list(range(PAIRS))
    assert max(width for _, width in shapes) == 128


@pytest.mark.parametrize(
    ("length", "bucket"), [(1, 8), (8, 8), (9, 12), (64, 64), (65, 96), (96, 96), (97, 128)]
)
def test_bucket_of(length, bucket):
    assert bucket_of(length) == bucket


def test_bucket_beyond_an_uneven_last_one():
    assert bucket_of(41, (10, 40)) == 64


def test_rows_of_couples_make_batches_row_by_row():
    """Image of one pair, caption of another; `pair_index` where they are one."""
    dataset, rng = make_dataset(), np.random.default_rng(5)
    rows = rng.integers(0, PAIRS, (50, 2, 2))
    rows[::3, 0, 1] = rows[::3, 0, 0]
    key = {tuple(row[0]): row[1] for row in rows}
    stream = stream_of(dataset, {"couples": rows})
    assert len(stream) == 50 // 16
    seen = 0
    for step in stream.iterate():
        own, found = step["couples"]
        assert own.tokens.shape[1] == found.tokens.shape[1]  # as rows may be exchanged
        for at in range(16):
            image = {row for row in key if dataset.stored_image[row[0]] == own.image_index[at]}
            tokens = own.tokens[at, : own.lengths[at]]
            [pair] = [row for row in image if np.array_equal(dataset.tokens[row[1]], tokens)]
            assert own.pair_index[at] == (pair[0] if pair[0] == pair[1] else -1)
            image_row, caption_row = key[pair]
            assert found.image_index[at] == dataset.stored_image[image_row]
            np.testing.assert_array_equal(
                found.images[at], dataset.images.rows([found.image_index[at]])[0]
            )
            np.testing.assert_array_equal(
                found.tokens[at, : found.lengths[at]], dataset.tokens[caption_row]
            )
            seen += 1
    assert seen == 48
    assert same_steps(stream_of(dataset, {"couples": rows}).iterate(2), stream.iterate(2))


def same_steps(left, right) -> bool:
    return all(
        same(a._asdict(), b._asdict())
        for one, two in zip(left, right, strict=True)
        for a, b in zip(one["couples"], two["couples"], strict=True)
    )
