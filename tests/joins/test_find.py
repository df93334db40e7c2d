"""Misaligned rows are named and put back, and nothing is found where nothing happened."""

import numpy as np
import pytest

from l2rm_jax.errors import DataError
from l2rm_jax.joins import find_misaligned
from l2rm_jax.joins.find import TOO_FEW
from l2rm_jax.joins.findings import name_both
from tests.joins.further_kinds import FIRST
from tests.joins.kinds import KINDS
from tests.joins.kinds_of_order import UNREPAIRED
from tests.joins.tables import (
    Case,
    make_case,
    near_swaps,
    synthetic,
    topics,
    walk,
)
from tests.joins.tables import (
    flickr8k as real_pairs,
)

ROWS = 600
QUICK = (
    "late_by_one", "shard_late", "short_runs", "every_nth", "swapped_shards", "reversed_piece",
    "interleaved", "others_late", "text_order", "seeded_shuffle", "truncated_id", "part_as_key",
    "keys_of_captions", "reversed_in_groups", "shuffled_and_late", "sorted_and_late",
)  # fmt: skip


def case_of(name: str, share: float, noise: float = 0.0, seed: int = 1) -> Case:
    kind = KINDS[name]
    each = kind.each or 1
    return make_case(kind, synthetic(ROWS // each, each, seed), share, noise, seed)


def put_back(case: Case, image_of: np.ndarray) -> float:
    """Share of the misaligned rows that have their image."""
    wrong = (case.stored != case.truth) & (case.truth >= 0)
    return (image_of == case.truth)[wrong].mean()


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize("share", [0.25, 1.0])
def test_a_rule_is_named_and_undone(name, share):
    case = case_of(name, share)
    found = find_misaligned(**case.arguments())
    assert found.findings[0].kind in KINDS[name].names, str(found)
    assert put_back(case, found.image_of) > 0.9
    right = case.stored == case.truth
    assert (found.image_of != case.truth)[right].sum() <= 3
    assert (found.changed == (found.image_of != case.stored)).all()
    assert all(finding.repaired and finding.matched > 0.5 for finding in found.findings)


@pytest.mark.parametrize("name", ["other_split", "shuffled_in_batches", "captions_sorted"])
def test_rows_that_cannot_be_put_back_are_named(name):
    case = case_of(name, 0.25)
    found = find_misaligned(**case.arguments())
    [finding] = found.findings
    assert finding.kind in KINDS[name].names
    assert not finding.repaired and not found.changed.any()
    wrong = np.flatnonzero(case.stored != case.truth)
    assert found.suspicious[wrong].mean() > 0.9


@pytest.mark.parametrize("each", [1, 5])
@pytest.mark.parametrize("swapped", ["none", "random", "near"])
@pytest.mark.parametrize("order", ["random", "similar", "topics"])
def test_nothing_is_found_where_nothing_happened(order, swapped, each):
    pairs = synthetic(ROWS // each, each, 3)
    pairs = {"random": pairs, "similar": walk(pairs), "topics": topics(pairs)}[order]
    case = make_case(KINDS["clean"], pairs, noise=0.2 * (swapped == "random"), seed=4)
    case = near_swaps(case, 0.2, 4) if swapped == "near" else case
    found = find_misaligned(**case.arguments())
    assert not found and not found.changed.any(), str(found)


def test_a_repaired_table_is_clean():
    case = case_of("swapped_shards", 0.3, noise=0.1)
    arguments = case.arguments()
    first = find_misaligned(**arguments)
    assert first
    assert not find_misaligned(**arguments | {"image_of": first.image_of})


def test_images_may_be_listed_in_any_order():
    case = case_of("late_by_one", 0.4)
    order = np.random.default_rng(0).permutation(len(case.images))
    arguments = case.arguments()
    renumbered = arguments | {
        "images": case.images[order], "image_of": np.argsort(order)[case.stored],
        "ids": [arguments["ids"][i] for i in order],
    }  # fmt: skip
    found = find_misaligned(**renumbered)
    assert found.findings[0].kind == "shifted"
    assert put_back(case, order[found.image_of]) > 0.9


def test_shuffles_of_small_groups_speak_together():
    pairs = synthetic(ROWS, 1, 6)
    order = np.concatenate(
        [start + np.random.RandomState(0).permutation(20) for start in range(0, ROWS, 20)]
    )
    groups = np.arange(ROWS) // 20
    found = find_misaligned(pairs.images, pairs.captions[order], groups=groups)
    assert [finding.kind for finding in found.findings] == ["seeded_shuffle"]
    assert (found.image_of == order).mean() > 0.98


def test_no_ids_and_no_texts_are_needed():
    case = case_of("late_by_one", 0.4)
    found = find_misaligned(case.images, case.captions, case.stored)
    assert found.findings[0].kind == "shifted"


def test_repeated_ids_are_no_error():
    case = case_of("late_by_one", 0.4)
    ids = [f"photo-{i % 7}" for i in range(len(case.images))]
    found = find_misaligned(case.images, case.captions, case.stored, ids=ids)
    assert found.findings[0].kind == "shifted"


def test_too_few_rows_and_a_single_image_are_said():
    pairs = synthetic(99, 1, 0)
    assert str(find_misaligned(pairs.images, pairs.captions)) == TOO_FEW
    many = synthetic(1, 300, 0)
    assert find_misaligned(many.images, many.captions).reason == TOO_FEW


@pytest.mark.parametrize("each", [1, 5])
def test_rows_in_random_order_and_vectors_without_information_give_nothing(each):
    rng = np.random.default_rng(5)
    pairs = synthetic(ROWS // each, each, 6)
    mixed = rng.permutation(len(pairs.captions))
    assert not find_misaligned(pairs.images, pairs.captions[mixed], texts=pairs.texts)
    noise = rng.standard_normal(pairs.captions.shape).astype(np.float32)
    assert not find_misaligned(pairs.images, noise, ids=pairs.names, texts=pairs.texts)
    assert not find_misaligned(pairs.images, np.ones_like(noise))


def test_lengths_are_checked():
    pairs = synthetic(120, 1, 0)
    with pytest.raises(DataError, match="ids: found 3 entries, expected 120"):
        find_misaligned(pairs.images, pairs.captions, ids=["a", "b", "c"])
    with pytest.raises(DataError, match="expected 0 to 119"):
        find_misaligned(pairs.images, pairs.captions, np.full(120, 120))
    with pytest.raises(DataError, match="same number for each image"):
        find_misaligned(pairs.images[:50], pairs.captions)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FIRST - {*UNREPAIRED}))
def test_every_kind_on_photographs(name, flickr8k):
    kind = KINDS[name]
    each = kind.each or 1
    case = make_case(kind, real_pairs(flickr8k, 1500 // each, each, 30), 1.0, seed=30)
    found = find_misaligned(**case.arguments())
    assert found.findings[0].kind in kind.names, str(found)
    assert put_back(case, found.image_of) > 0.9


def test_offsets_that_two_searches_find_in_the_same_rows_are_one_drift():
    named = name_both([(100, 400, 1), (400, 600, 3)], [(250, 401, 1)], 1000)
    assert named.kind == "drifting" and len(named.rows) == 498
    assert named.details["pieces"] == [(100, 250, 1), (250, 399, 2), (401, 600, 3)]
