"""Two-stage ranking against full sorts of each query."""

import numpy as np
import pytest

from l2rm_jax.errors import ConfigError
from l2rm_jax.evaluation.protocols import PROTOCOLS, Protocol, recall_rows
from l2rm_jax.evaluation.recall import (
    image_ranks,
    recall_table,
    recalls,
    text_ranks,
)
from l2rm_jax.evaluation.two_stage import Shortlist

IMAGES, PER_IMAGE = 12, 3
OWNER = np.arange(IMAGES * PER_IMAGE) // PER_IMAGE


def make_vectors(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of small integers, so that many products are equal."""
    images = rng.integers(-1, 2, (IMAGES, 4)).astype(np.float32)
    return images, images[OWNER] + rng.integers(-1, 2, (len(OWNER), 4)).astype(np.float32)


def sorted_rows(scores: np.ndarray) -> list[int]:
    """Row numbers, best score first; of equal scores, the higher row first."""
    return sorted(range(len(scores)), key=lambda at: (-scores[at], -at))


def two_stage_ranks(proposed: np.ndarray, scores: np.ndarray, own: list[list[int]], k: int):
    """Rank of each query's best placed match, and percent of queries with no match proposed.

    Args:
      proposed: the proposer's scores [Q, C].
      scores: the second head's scores [Q, C].
      own: the true matches of each query.
      k: number of proposed candidates.
    """
    ranks, lost = [], []
    for query, targets in enumerate(own):
        order = sorted_rows(proposed[query])
        first = sorted(order[:k], key=lambda at: (-scores[query, at], -at))
        ranks.append(min((first + order[k:]).index(target) for target in targets))
        lost.append(not set(first) & set(targets))
    return np.array(ranks), 100 * np.mean(lost)


@pytest.mark.parametrize("k", [1, 3, 7, 1000])
def test_proposals_are_ranked_before_all_others(k):
    rng = np.random.default_rng(k)
    images, texts = make_vectors(rng)
    sims = rng.integers(0, 6, (IMAGES, len(OWNER))) / 6
    shortlist = Shortlist(images, texts, OWNER, "custom", [k])
    rows = shortlist.rows(sims[shortlist.pairs])
    [row] = rows.values()
    assert list(rows) == [f"top {k}, custom"]
    proposed = images @ texts.T
    captions = [np.flatnonzero(image == OWNER).tolist() for image in range(IMAGES)]
    for direction, (ranks, lost) in {
        "i2t": two_stage_ranks(proposed, sims, captions, k),
        "t2i": two_stage_ranks(proposed.T, sims.T, [[image] for image in OWNER], k),
    }.items():
        for r in (1, 5, 10):
            assert row[f"{direction}_r{r}"] == pytest.approx(100 * np.mean(ranks < r))
        assert row[f"{direction}_mean"] == pytest.approx(np.mean(ranks) + 1)
        assert row[f"{direction}_lost"] == pytest.approx(lost)
    pairs = list(zip(*shortlist.pairs, strict=True))
    assert len(set(pairs)) == len(pairs) <= 2 * k * len(OWNER)


def test_proposing_all_candidates_equals_ranking_all():
    rng = np.random.default_rng(0)
    sims = rng.integers(0, 9, (IMAGES, len(OWNER))).astype(np.float32)
    shortlist = Shortlist(*make_vectors(rng), OWNER, "custom", [len(OWNER)])
    [row] = shortlist.rows(sims[shortlist.pairs]).values()
    assert row == {**recalls(sims, PER_IMAGE), "i2t_lost": 0.0, "t2i_lost": 0.0}


def test_a_proposer_that_ranks_its_own_proposals_changes_nothing():
    images, texts = make_vectors(np.random.default_rng(0))
    sims = images @ texts.T
    shortlist = Shortlist(images, texts, OWNER, "custom", [1, 4])
    expected = recalls(sims, PER_IMAGE)
    lost = []
    for k, row in zip((1, 4), shortlist.rows(sims[shortlist.pairs]).values(), strict=True):
        assert {key: row[key] for key in expected} == expected
        assert row["i2t_lost"] == 100 * np.mean(text_ranks(sims, PER_IMAGE) >= k)
        assert row["t2i_lost"] == 100 * np.mean(image_ranks(sims, PER_IMAGE) >= k)
        lost.append(row["t2i_lost"])
    assert lost[0] > lost[1] > 0


def test_images_may_have_different_numbers_of_captions():
    owner = np.array([0, 0, 0, 1, 2, 2])
    rng = np.random.default_rng(1)
    shortlist = Shortlist(rng.normal(size=(3, 4)), rng.normal(size=(6, 4)), owner, "custom", [6])
    sims = rng.normal(size=(3, 6))
    [row] = shortlist.rows(sims[shortlist.pairs]).values()
    ranks = [
        min(sorted_rows(sims[image]).index(caption) for caption in np.flatnonzero(owner == image))
        for image in range(3)
    ]
    assert row["i2t_r1"] == pytest.approx(100 * np.mean(np.array(ranks) < 1))
    assert row["i2t_mean"] == pytest.approx(np.mean(ranks) + 1)


def test_proposals_stay_within_a_fold(monkeypatch):
    monkeypatch.setitem(PROTOCOLS, "small-3fold", Protocol(IMAGES, PER_IMAGE, folds=3))
    rng = np.random.default_rng(0)
    sims = rng.normal(size=(IMAGES, len(OWNER)))
    vectors = make_vectors(rng)
    shortlist = Shortlist(*vectors, OWNER, "small-3fold", [2])
    images, captions = shortlist.pairs
    assert len(images) > 0 and (images // 4 == OWNER[captions] // 4).all()
    [row] = shortlist.rows(sims[shortlist.pairs]).values()
    parts = []
    for fold in range(3):
        rows, columns = slice(4 * fold, 4 * fold + 4), slice(12 * fold, 12 * fold + 12)
        alone = Shortlist(vectors[0][rows], vectors[1][columns], OWNER[:12], "custom", [2])
        parts += alone.rows(sims[rows, columns][alone.pairs]).values()
    assert row == {key: pytest.approx(np.mean([part[key] for part in parts])) for key in row}


@pytest.mark.parametrize("counts", [[], [3, -1]])
def test_numbers_of_candidates_are_checked(counts):
    with pytest.raises(ConfigError, match="candidates: "):
        Shortlist(*make_vectors(np.random.default_rng(0)), OWNER, "custom", counts)


def test_the_table_shows_the_percentages_lost():
    rng = np.random.default_rng(0)
    sims = rng.random((IMAGES, len(OWNER)))
    shortlist = Shortlist(*make_vectors(rng), OWNER, "custom", [2])
    staged = shortlist.rows(sims[shortlist.pairs])
    lines = recall_table({**staged, **recall_rows(sims, PER_IMAGE, "custom")}).splitlines()
    [row] = staged.values()
    lost = f"(lost: i2t {row['i2t_lost']:.1f}%, t2i {row['t2i_lost']:.1f}%)"
    assert lines[2] == f"top 2, custom {lost}" and lines[3].endswith(f" {row['rsum']:.1f}")
    assert lines[4].startswith("custom ") and len(lines[4]) == len(lines[3])
