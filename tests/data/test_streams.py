"""Streams of pairs: their order, restarts and resumes, the queue, hosts, and errors."""

import time
from dataclasses import replace

import jax
import numpy as np
import pytest

from l2rm_jax.data.batches import BUCKETS, WHOLE_BATCH
from l2rm_jax.data.streams import TrainStream
from l2rm_jax.data.train_pairs import TrainPairs
from l2rm_jax.devices.batch import Batch
from l2rm_jax.devices.hosts import Share
from l2rm_jax.errors import ConfigError, DataError
from tests.data.samples import IMAGES, PAIRS, CountedRows, check_batch, joined, make_dataset


def two_streams(dataset: TrainPairs) -> dict[str, np.ndarray]:
    rows = np.arange(PAIRS)
    return {"matched": rows[dataset.matched], "mismatched": rows[~dataset.matched]}


def make_stream(dataset, streams, batch_size=16, seed=0, epoch=0, **more) -> TrainStream:
    return TrainStream(dataset, streams, batch_size=batch_size, seed=seed, epoch=epoch, **more)


def same(left, right) -> bool:
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if left is None:
        return right is None
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


def test_batches_hold_the_pairs_they_name():
    dataset = make_dataset()
    items = list(make_stream(dataset, two_streams(dataset)).iterate())
    for item in items:
        assert list(item) == ["matched", "mismatched"]
        check_batch(dataset, item["matched"])
        check_batch(dataset, item["mismatched"])
        assert dataset.matched[item["matched"].pair_index].all()
        assert not dataset.matched[item["mismatched"].pair_index].any()


def test_an_epoch_is_one_pass_over_the_first_stream():
    dataset, rows = make_dataset(), np.arange(7, 107)
    stream = make_stream(dataset, {"all": rows})
    seen = np.concatenate([item["all"].pair_index for item in stream.iterate()])
    assert len(stream) == 6 and len(seen) == 96
    assert len(set(seen)) == 96 and set(seen) <= set(rows)
    assert not np.array_equal(seen, np.sort(seen))


def test_a_later_stream_restarts_reshuffled():
    dataset, rows = make_dataset(), np.arange(PAIRS)
    streams = {"matched": rows[:160], "mismatched": rows[160:]}  # ten batches and two and a half
    items = list(make_stream(dataset, streams).iterate())
    batches = [item["mismatched"].pair_index for item in items]
    passes = [np.concatenate(batches[i : i + 2]) for i in range(0, 10, 2)]
    assert all(len(set(turn)) == 32 and turn.min() >= 160 for turn in passes)
    assert len({tuple(turn) for turn in passes}) == 5
    assert set(np.concatenate(passes)) == set(
        rows[160:]
    )  # the rows dropped at the end of a pass vary


def test_a_stream_that_ends_is_left_out_of_later_steps():
    dataset, rows = make_dataset(), np.arange(PAIRS)
    streams = {"strict": rows[:96], "clean": rows[96:136], "noisy": rows[136:140]}
    stream = make_stream(dataset, streams, once={"clean", "noisy"})
    steps = [set(item) for item in stream.iterate()]
    assert steps == [{"strict", "clean", "noisy"}, {"strict", "clean"}, *[{"strict"}] * 4]
    items = list(stream.iterate())
    seen = [row for item in items[:2] for row in item["clean"].pair_index]
    assert len(set(seen)) == 32 and set(seen) <= set(rows[96:136])
    assert set(items[0]["noisy"].pair_index) == set(rows[136:140])  # filled up with its own pairs
    assert all(same(a, b) for a, b in zip(stream.iterate(1), items[1:], strict=True))


@pytest.mark.parametrize("size", [1, 5, 15])
@pytest.mark.parametrize("name", ["matched", "mismatched"])
def test_a_small_stream_is_completed_from_itself(size, name):
    dataset, rows = make_dataset(), np.arange(PAIRS)
    streams = {"matched": rows[:64], "mismatched": rows[64:128]}
    streams[name] = streams[name][:size]
    stream = make_stream(dataset, streams)
    assert len(stream) == (1 if name == "matched" else 4)
    for item in stream.iterate():
        counts = np.bincount(item[name].pair_index, minlength=PAIRS)[streams[name]]
        assert counts.sum() == 16
        assert counts.max() - counts.min() <= 2 and counts.min() >= 16 // size - 1


def test_order_depends_on_seed_epoch_and_stream_only():
    dataset, rows = make_dataset(), np.arange(PAIRS)

    def first(seed, epoch, name="a"):
        return tuple(
            next(make_stream(dataset, {name: rows}, 64, seed, epoch).iterate())[name].pair_index
        )

    orders = {first(*key) for key in [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (0, 0, "b")]}
    assert len(orders) == 6
    assert first(1, 1) == first(1, 1)


def test_order_is_the_same_in_every_process():
    dataset = make_dataset()
    item = next(make_stream(dataset, {"all": np.arange(PAIRS)}, 8, 3, 2).iterate())
    assert item["all"].pair_index.tolist() == [8, 71, 85, 66, 88, 64, 198, 191]


@pytest.mark.parametrize("queue_length", [0, 42])
@pytest.mark.parametrize("start", [0, 1, 4, 6, 7])
def test_continuing_gives_exactly_the_remaining_steps(start, queue_length):
    dataset = make_dataset()
    stream = make_stream(dataset, two_streams(dataset), 14, queue_length=queue_length)
    whole = list(stream.iterate())
    rest = list(
        make_stream(dataset, two_streams(dataset), 14, queue_length=queue_length).iterate(start)
    )
    assert len(whole) == len(stream) == 7
    assert len(rest) == 7 - start
    assert all(same(a, b) for a, b in zip(whole[start:], rest, strict=True))


def test_skipped_steps_are_not_read():
    dataset = make_dataset()
    counted = CountedRows(dataset.images.array)
    watched = replace(dataset, pairs=replace(dataset.pairs, images=counted))
    stream = make_stream(watched, {"all": np.arange(PAIRS)})
    list(stream.iterate(len(stream) - 2))
    assert len(counted.read) == 2 * 16


def test_steps_are_read_ahead():
    dataset = make_dataset()
    counted = CountedRows(dataset.images.array)
    steps = make_stream(
        replace(dataset, pairs=replace(dataset.pairs, images=counted)), {"all": np.arange(PAIRS)}
    ).iterate()
    next(steps)
    deadline = time.monotonic() + 10
    while len(counted.read) < 4 * 16 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(counted.read) >= 4 * 16


def test_all_streams_of_a_step_share_the_smallest_sufficient_bucket():
    dataset = make_dataset(longest=60)
    widths = set()
    for item in make_stream(dataset, two_streams(dataset), 4).iterate():
        longest = max(batch.lengths.max() for batch in item.values())
        shapes = {batch.tokens.shape for batch in item.values()}
        assert shapes == {(4, min(bucket for bucket in BUCKETS if bucket >= longest))}
        widths |= {shape[1] for shape in shapes}
    assert len(widths) > 1


def test_long_captions_are_clipped():
    dataset = make_dataset(longest=30)
    streams = two_streams(dataset)
    stream = make_stream(dataset, streams, max_words=12)
    assert any(len(dataset.tokens[k]) > 12 for k in streams["matched"])
    for item in stream.iterate():
        check_batch(dataset, item["matched"], max_words=12)
        assert item["matched"].tokens.shape[1] == 12


def test_rows_of_two_couples_make_two_batches():
    """A couple is the image of one pair and the caption of another, or of the same pair."""
    dataset, rng = make_dataset(), np.random.default_rng(5)
    rows = rng.integers(0, PAIRS, (50, 2, 2))
    rows[::3, 0, 1] = rows[::3, 0, 0]
    second_of = {tuple(row[0]): row[1] for row in rows}
    stream = make_stream(dataset, {"couples": rows})
    assert len(stream) == 50 // 16
    seen = 0
    for step in stream.iterate():
        first, second = step["couples"]
        assert first.tokens.shape[1] == second.tokens.shape[1]  # a method may exchange their rows
        for at in range(16):
            with_image = {
                row for row in second_of if dataset.stored_image[row[0]] == first.image_index[at]
            }
            tokens = first.tokens[at, : first.lengths[at]]
            [couple] = [row for row in with_image if np.array_equal(dataset.tokens[row[1]], tokens)]
            assert first.pair_index[at] == (couple[0] if couple[0] == couple[1] else -1)
            image_row, caption_row = second_of[couple]
            assert second.image_index[at] == dataset.stored_image[image_row]
            np.testing.assert_array_equal(
                second.images[at], dataset.images.rows([second.image_index[at]])[0]
            )
            np.testing.assert_array_equal(
                second.tokens[at, : second.lengths[at]], dataset.tokens[caption_row]
            )
            seen += 1
    assert seen == 48
    assert same_steps(make_stream(dataset, {"couples": rows}).iterate(2), stream.iterate(2))


def same_steps(left, right) -> bool:
    return all(
        same(a._asdict(), b._asdict())
        for one, two in zip(left, right, strict=True)
        for a, b in zip(one["couples"], two["couples"], strict=True)
    )


# Queue


@pytest.mark.parametrize("behind", [1, 3])
def test_queue_holds_the_batches_before(behind):
    dataset = make_dataset()
    stream = make_stream(dataset, two_streams(dataset), 8, queue_length=8 * (1 + behind))
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
        stream = make_stream(dataset, two_streams(dataset), 16, epoch=epoch, queue_length=length)
        return next(stream.iterate())["mismatched"].image_index[16:].tolist()

    assert drawn(0, 32) != drawn(1, 32)
    assert len(drawn(0, 160)) == 144


@pytest.mark.parametrize("queue_length", [0, 16])
def test_no_queue_beyond_the_batch(queue_length):
    dataset = make_dataset()
    item = next(make_stream(dataset, two_streams(dataset), queue_length=queue_length).iterate())
    assert all(len(batch.images) == len(batch.pair_index) == 16 for batch in item.values())


def test_no_queue_without_mismatched_pairs():
    item = next(make_stream(make_dataset(), {"matched": np.arange(50)}, queue_length=32).iterate())
    assert list(item) == ["matched"]


# Hosts


def is_batch(tree) -> bool:
    return isinstance(tree, Batch)


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

    def batches(share=WHOLE_BATCH, images=dataset.images) -> list:
        data = replace(dataset, pairs=replace(dataset.pairs, images=images))
        stream = make_stream(data, streams, queue_length=queue, share=share)
        return [batch for step in stream.iterate() for batch in jax.tree.leaves(step, is_batch)]

    whole = batches(images=CountedRows(counted[0].array))
    parts = [batches(Share(host, 4), counted[host]) for host in range(4)]
    for batch, again in zip(whole, joined(parts), strict=True):
        jax.tree.map(np.testing.assert_array_equal, batch, again)
    for rows, own in zip(counted, parts, strict=True):
        assert sorted(rows.read) == sorted(np.concatenate([batch.image_index for batch in own]))


# Errors


@pytest.mark.parametrize(
    ("streams", "batch_size", "error", "message"),
    [
        ({"all": np.arange(PAIRS)}, 201, DataError, "200 pairs"),
        ({"all": np.arange(5), "more": np.arange(0)}, 4, DataError, "no pairs in stream 'more'"),
        ({}, 4, DataError, "no stream"),
        ({"all": np.array([3, 200])}, 2, DataError, "rows 3 to 200"),
        ({"all": np.array([-1, 20])}, 2, DataError, "rows -1 to 20"),
    ],
)
def test_unusable_streams_are_refused(streams, batch_size, error, message):
    with pytest.raises(error, match=message):
        make_stream(make_dataset(), streams, batch_size)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"queue_length": 24}, "queue_length: found 24, .* multiple of the batch size 16"),
        ({"queue_length": -16}, "queue_length: found -16"),
    ],
)
def test_unusable_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        make_stream(make_dataset(), {"all": np.arange(PAIRS)}, **settings)


def test_length_groups_give_batches_of_similar_lengths():
    """Eight batches of 16 pairs, sorted together: each pair once, in an order that the seed gives.

    Any step can be built alone, and pairs of a group stay within their group.
    """
    dataset, rows = make_dataset(), np.arange(PAIRS)
    plain = make_stream(dataset, {"all": rows})
    stream = make_stream(dataset, {"all": rows}, length_groups=4)
    orders = [np.stack([each.pairs(n)["all"] for n in range(12)]) for each in (plain, stream)]
    assert len(plain) == len(stream) == 12
    for group in range(0, 12, 4):
        own = [set(order[group : group + 4].ravel()) for order in orders]
        assert own[0] == own[1] and len(own[1]) == 64
    spread = [np.ptp(dataset.lengths[order], axis=1).mean() for order in orders]
    assert spread[1] < 0.5 * spread[0]
    means = dataset.lengths[orders[1]].mean(axis=1)
    assert not np.array_equal(means, np.sort(means))  # batches are shuffled
    again = make_stream(dataset, {"all": rows}, length_groups=4)
    np.testing.assert_array_equal(again.pairs(7)["all"], orders[1][7])
    other = make_stream(dataset, {"all": rows}, length_groups=4, epoch=1)
    assert not np.array_equal(other.pairs(7)["all"], orders[1][7])


@pytest.mark.parametrize("shape", [(2,), (3, 2)])
def test_length_groups_of_combined_images_and_captions_look_at_the_captions(shape):
    dataset, rng = make_dataset(), np.random.default_rng(0)
    rows = rng.integers(0, PAIRS, (96, *shape))
    stream = make_stream(dataset, {"mixed": rows}, length_groups=3)
    taken = np.concatenate([stream.pairs(n)["mixed"] for n in range(len(stream))])
    assert sorted(map(str, taken)) == sorted(map(str, rows))
    longest = dataset.lengths[taken[..., 1]].reshape(len(taken), -1).max(axis=1)
    assert np.ptp(longest.reshape(6, 16), axis=1).mean() < 0.6 * np.ptp(longest)
