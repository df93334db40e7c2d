"""Ranks and recalls against full sorts, ties included; dual softmax; the printed table."""

import tracemalloc

import numpy as np
import pytest

from l2rm_jax.evaluation import recall


def full_sort_rank(row: np.ndarray, targets: list[int], kind: str = "stable") -> int:
    order = np.argsort(row, kind=kind)[::-1].tolist()
    return min(order.index(target) for target in targets)


# 23 images fit in one block of queries; 150 images and their captions do not.
@pytest.mark.parametrize("images", [23, 150])
@pytest.mark.parametrize("captions_per_image", [1, 3])
@pytest.mark.parametrize("levels", [1, 2, 5, 1000])
def test_ties_follow_a_reversed_stable_sort(images, captions_per_image, levels):
    rng = np.random.default_rng(levels)
    sims = rng.integers(0, levels, (images, images * captions_per_image)) / levels
    own = np.arange(images * captions_per_image).reshape(images, captions_per_image)
    expected = [full_sort_rank(sims[i], own[i].tolist()) for i in range(images)]
    np.testing.assert_array_equal(recall.text_ranks(sims, captions_per_image), expected)
    columns = range(sims.shape[1])
    expected = [full_sort_rank(sims[:, k], [k // captions_per_image]) for k in columns]
    np.testing.assert_array_equal(recall.image_ranks(sims, captions_per_image), expected)


@pytest.mark.parametrize("levels", [2, 1000])
def test_images_may_have_different_numbers_of_captions(levels):
    rng = np.random.default_rng(levels)
    counts = rng.integers(1, 7, 40)
    owner = [image for image, count in enumerate(counts) for _ in range(count)]
    sims = rng.integers(0, levels, (40, len(owner))) / levels
    own = [[k for k, image in enumerate(owner) if image == i] for i in range(40)]
    expected = [full_sort_rank(sims[i], own[i]) for i in range(40)]
    np.testing.assert_array_equal(recall.text_ranks(sims, counts), expected)
    expected = [full_sort_rank(sims[:, k], [image]) for k, image in enumerate(owner)]
    np.testing.assert_array_equal(recall.image_ranks(sims, counts), expected)
    halves = [slice(0, sum(counts[:20])), slice(sum(counts[:20]), None)]
    parts = [
        recall.recalls(sims[20 * i : 20 * i + 20, halves[i]], counts[20 * i :][:20]) for i in (0, 1)
    ]
    mean = np.mean([part["rsum"] for part in parts])
    assert recall.fold_recalls(sims, counts, folds=2)["rsum"] == pytest.approx(mean)


def test_without_ties_any_sort_gives_the_ranks():
    """The reference's default sort leaves only the order of ties open."""
    sims = np.random.default_rng(0).permutation(60 * 120).reshape(60, 120) / 7200
    expected = [full_sort_rank(sims[i], [2 * i, 2 * i + 1], "quicksort") for i in range(60)]
    np.testing.assert_array_equal(recall.text_ranks(sims, 2), expected)
    expected = [full_sort_rank(sims[:, k], [k // 2], "quicksort") for k in range(120)]
    np.testing.assert_array_equal(recall.image_ranks(sims, 2), expected)


def test_a_model_that_scores_all_alike_gets_chance():
    row = recall.recalls(np.zeros((100, 500), np.float32), 5)
    assert row["i2t_r10"] == pytest.approx(2.0) and row["t2i_r10"] == pytest.approx(10.0)
    assert row["t2i_mean"] == pytest.approx(50.5)


def test_ranking_takes_little_memory_beside_the_scores():
    sims = np.random.default_rng(0).random((600, 3000), dtype=np.float32)
    tracemalloc.start()
    recall.recalls(sims, 5)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < sims.nbytes / 2


def test_folds_are_consecutive_and_averaged():
    sims = np.random.default_rng(0).random((15, 30))
    parts = [recall.recalls(sims[3 * i : 3 * i + 3, 6 * i : 6 * i + 6], 2) for i in range(5)]
    folds = recall.fold_recalls(sims, 2, folds=5)
    assert folds.keys() == parts[0].keys()
    for key, value in folds.items():
        assert value == pytest.approx(np.mean([part[key] for part in parts])), key
    assert folds["rsum"] != pytest.approx(recall.recalls(sims, 2)["rsum"])


@pytest.mark.parametrize(
    ("shape", "per_image", "message"),
    [
        ((4, 10), 5, "expected 5 captions"),
        ((4, 4), 2, "expected 2 captions"),
        ((3, 7), np.array([2, 2, 2]), "expected 2 captions"),
        ((3, 6), np.array([4, 0, 2]), "expected 0 to 4 captions"),
    ],
)
def test_wrong_shape_is_refused(shape, per_image, message):
    with pytest.raises(ValueError, match=message):
        recall.recalls(np.zeros(shape), per_image)


def test_nan_is_refused():
    sims = np.zeros((3, 3))
    sims[1, 2] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        recall.recalls(sims, 1)


def test_folds_must_divide():
    with pytest.raises(ValueError, match="expected a multiple of 2"):
        recall.fold_recalls(np.zeros((5, 5)), 1, folds=2)


def test_rows_of_any_split_are_called_by_its_name():
    row = recall.chance_recalls(20, 5)
    names = ("custom", "custom, dual softmax 0.1", "runs/custom (vse), custom", "custom x")
    lines = recall.recall_table(dict.fromkeys(names, row), "dev").splitlines()
    shown = ["dev", "dev, dual softmax 0.1", "runs/custom (vse), dev", "custom x"]
    assert all(any(line.startswith(name) for line in lines[2:]) for name in shown)
    assert sum("custom" in line for line in lines) == 2


def test_table_shows_every_column_of_every_row():
    rng = np.random.default_rng(0)
    rows = {"custom": {"images": 12, **recall.recalls(rng.random((12, 24)), 2)}}
    rows["runs/f30k (saf), coco-1k-5fold"] = {**recall.recalls(rng.random((12, 24)), 2)}
    rows[f"mean of {'long ' * 30}"] = recall.chance_recalls(25_000, 5)
    lines = recall.recall_table(rows).splitlines()
    columns = ["R@1", "R@5", "R@10", "MedR", "MeanR"]
    assert lines[1].split() == ["images", *columns, *columns, "rSum"]
    assert max(map(len, lines)) <= 80 and len({len(line) for line in lines[1:3]}) == 1
    names = "\n".join(line for line in lines[2:] if not line[-1].isdigit())
    assert names.startswith("runs/f30k (saf), coco-1k-5fold\nmean of long long")
    values = [line for line in lines[2:] if line[-1].isdigit()]
    assert values[0].startswith("custom")
    for line, row in zip(values, rows.values(), strict=True):
        shown = [float(text) for text in line.removeprefix("custom").split()]
        np.testing.assert_allclose(shown, list(row.values()), rtol=1e-3, atol=0.0501)


@pytest.mark.parametrize(
    ("images", "captions_per_image"),
    [(40, 1), (20, 5), (7, 2), (1, 3), (24, np.repeat([1, 9], [18, 6]))],
)
def test_chance_is_the_mean_over_random_rankings(images, captions_per_image):
    rng = np.random.default_rng(images)
    captions = np.broadcast_to(captions_per_image, images).sum()
    drawn = [recall.recalls(rng.random((images, captions)), captions_per_image) for _ in range(300)]
    chance = recall.chance_recalls(images, captions_per_image)
    assert list(chance) == list(drawn[0])
    for key, value in chance.items():
        values = [row[key] for row in drawn]
        # With few queries, the median of a sample differs slightly from the expected median.
        slack = 1.0 if "median" in key else 1e-9
        assert value == pytest.approx(np.mean(values), abs=slack + 4 * np.std(values) / 17), key


def test_chance_of_folds_is_the_mean_of_their_chances():
    counts = np.array([1, 2, 3, 4])
    parts = [recall.chance_recalls(2, counts[:2]), recall.chance_recalls(2, counts[2:])]
    assert recall.fold_chance(4, counts, 2) == recall.mean_row(parts)


@pytest.mark.parametrize("temperature", [0.01, 0.5])
def test_dual_softmax_weighs_by_the_queries(temperature):
    rng = np.random.default_rng(0)
    sims = rng.uniform(-1, 1, (15, 30)).astype(np.float32)
    exponentials = np.exp(sims.astype(float) / temperature)
    for axis in (0, 1):
        product = sims * exponentials / exponentials.sum(axis, keepdims=True)
        expected = np.where(sims > 0, product, sims)
        scores = recall.dual_softmax(sims, temperature, axis)
        np.testing.assert_allclose(scores, expected, rtol=1e-9)
    by_images, by_captions = (recall.dual_softmax(sims, temperature, axis) for axis in (0, 1))
    row = recall.recalls(sims, 2, temperature)
    assert row["i2t_mean"] == recall.recalls(by_images, 2)["i2t_mean"]
    assert row["t2i_mean"] == recall.recalls(by_captions, 2)["t2i_mean"]
    assert row != recall.recalls(sims, 2)


def test_dual_softmax_keeps_the_order_of_negative_similarities():
    """Image 1 is nearest to caption 0, though all of its similarities are negative."""
    sims = np.array([[-0.6, 0.9], [-0.05, -0.5]], np.float32)
    scores = recall.dual_softmax(sims, 0.05, query_axis=0)
    np.testing.assert_array_equal(scores.argmax(1), [1, 0])
    # Queries that all have the same factors keep their ranking.
    spread = np.random.default_rng(0).uniform(-1, 0.2, (1, 9)).repeat(3, axis=0)
    scores = recall.dual_softmax(spread, 0.05, query_axis=0)
    np.testing.assert_array_equal(scores.argsort(1), spread.argsort(1))


@pytest.mark.parametrize("shift", [0.0, -1.0])  # similarities, or negated distances
def test_dual_softmax_demotes_a_hub(shift):
    """A caption that is the best match of every image then wins only for the closest of them."""
    sims = np.eye(4, dtype=np.float32) * 0.5
    sims[:, 0] = [0.9, 0.6, 0.6, 0.6]
    sims += shift
    assert recall.recalls(sims, 1)["i2t_r1"] == 25.0
    assert recall.recalls(sims, 1, 0.1)["i2t_r1"] == 100.0
