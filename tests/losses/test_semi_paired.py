"""RCSL's losses against plain loops over pairs."""

from functools import partial

import jax
import numpy as np
import pytest

from l2rm_jax.losses import semi_paired

SIZE = 7
RNG = np.random.default_rng(0)
SIMS = RNG.uniform(-0.3, 0.9, (SIZE, SIZE)).astype(np.float32)
PAIRED = np.array([1, 0, 1, 1, 0, 0, 1], bool)


def unit(seed: int) -> np.ndarray:
    x = np.random.default_rng(seed).normal(size=(SIZE, 5))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def test_triplet_loss_reads_known_pairs_alone():
    total = 0.0
    rows = np.flatnonzero(PAIRED)
    for i in rows:
        others = [j for j in rows if j != i]
        total += max(0, *(0.2 + SIMS[i, j] - SIMS[i, i] for j in others))
        total += max(0, *(0.2 + SIMS[j, i] - SIMS[i, i] for j in others))
    compiled = jax.jit(jax.value_and_grad(partial(semi_paired.paired_triplet, margin=0.2)))
    loss, gradient = compiled(SIMS, PAIRED)
    assert float(loss) == pytest.approx(total, rel=1e-5)
    assert not gradient[~PAIRED].any() and not gradient[:, ~PAIRED].any() and gradient.any()
    one = np.arange(SIZE) == 2
    assert compiled(SIMS, one)[0] == 0.0


def test_alignment_is_the_mean_distance_of_pairs():
    images, captions = unit(1), unit(2)
    expected = np.mean(np.sum((images - captions)[PAIRED] ** 2, axis=1))
    assert float(semi_paired.alignment(images @ captions.T, PAIRED)) == pytest.approx(expected)
    assert semi_paired.alignment(images @ captions.T, np.zeros(SIZE, bool)) == 0.0


def test_uniformity_is_over_distinct_embeddings():
    x = unit(3)
    distances = [np.sum((x[i] - x[j]) ** 2) for i in range(SIZE) for j in range(i)]
    expected = np.log(np.mean(np.exp(-2 * np.array(distances))))
    assert float(semi_paired.uniformity(x @ x.T)) == pytest.approx(expected, rel=1e-5)


def test_robust_mining_is_bounded_for_mismatched_pairs():
    rows = np.exp(SIMS / 0.1)
    right = np.diag(rows)
    expected = np.sum(1 - (right / rows.sum(1) + right / rows.sum(0)) / 2)
    assert float(semi_paired.robust_mining(SIMS, tau=0.1)) == pytest.approx(expected, rel=1e-5)
    hopeless = 1 - np.eye(SIZE)
    assert float(semi_paired.robust_mining(hopeless, tau=0.01)) == pytest.approx(SIZE, rel=1e-5)
