"""Compare new pairs with a reference: p-values, false discovery rates, and the mismatch rate.

The information of a new pair comes from one of four densities: matched pairs of the reference, and
its captions with random, similar and very similar images. Their shares in the new pairs are fitted
by maximum likelihood. A lower bound needs the density of matched pairs alone.

References:
    Vovk, Gammerman and Shafer, Algorithmic Learning in a Random World, 2005.
    Tibshirani et al., Conformal Prediction Under Covariate Shift, NeurIPS 2019: with weights.
    Bates et al., Testing for Outliers with Conformal p-values, Annals of Statistics 2023.
    Benjamini and Hochberg, Controlling the False Discovery Rate, JRSS B 1995.
    Dempster, Laird and Rubin, Maximum Likelihood from Incomplete Data via the EM Algorithm, JRSS B
    1977.
    Efron, Bootstrap Methods: Another Look at the Jackknife, Annals of Statistics 1979.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Int
from scipy.optimize import isotonic_regression

from l2rm_jax.judging.rate import Rate, scale_to_mean

# Shares of the matched pairs of the reference below each cut.
_CUTS = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_FINE_CUTS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, *_CUTS[3:])  # for the posterior
_LOW_CUTS = (0.05, 0.1, 0.2, 0.3, 0.5)
_LOW_ERRORS = 2.0
_STEPS, _DRAWS = 120, 200
_HIGH = 0.95  # quantile of the draws
_FLOOR = 1e-9  # of a density


class Reference(NamedTuple):
    """Information of n pairs of a reference, and of their captions with other images, in nats.

    Attributes:
      information: [n] of the pairs, by models that have not seen them.
      weight: [n] probability that each is matched, in [0, 1].
      image: [n] number of its image, from 0.
      random: [n] of the caption with a random image.
      similar: [n] with an image ranked within 2-20% by the similarity of the captions.
      very_similar: [n] within 0.2-2%.
      most_similar: [n] with the second most similar image.
    """

    information: Float32[np.ndarray, " n"]
    weight: Float32[np.ndarray, " n"]
    image: Int[np.ndarray, " n"]
    random: Float32[np.ndarray, " n"]
    similar: Float32[np.ndarray, " n"]
    very_similar: Float32[np.ndarray, " n"]
    most_similar: Float32[np.ndarray, " n"]

    def weights(self) -> Float[np.ndarray, " n"]:
        """Return the weights of the pairs, each image with the same total."""
        counts = np.bincount(self.image, minlength=1)
        return self.weight * counts[counts > 0].mean() / counts[self.image]


class Mixture(NamedTuple):
    """The rate and the posterior of new pairs.

    Attributes:
      rate: estimate and 90% interval; its low end assumes nothing about mismatched pairs.
      upper_bound: the high end if captions were swapped among the most similar images.
      posterior: [pairs] probability that each pair is mismatched; the mean is the estimate.
    """

    rate: Rate
    upper_bound: float
    posterior: Float[np.ndarray, " pairs"]


def fit_mixture(
    information: Float[np.ndarray, " pairs"],
    image: Int[np.ndarray, " pairs"],
    reference: Reference,
    seed: int,
) -> Mixture:
    """Estimate the rate and the posterior of new pairs.

    Args:
      information: of the new pairs, comparable with the reference's.
      image: number of the image of each pair, from 0; images are drawn for the interval.
      reference: known densities.
      seed: seed of the draws.
    """
    known = reference.information, *reference[3:]
    cuts = _weighted_quantiles(reference.information, reference.weight, _CUTS)
    new = _counts(information, image, cuts, np.ones(len(information)))
    weights = reference.weight, *[np.ones(len(reference.image))] * (len(known) - 1)
    of_reference = np.stack(
        [
            _counts(values, reference.image, cuts, weight)
            for values, weight in zip(known, weights, strict=True)
        ],
        axis=1,
    )
    rng = np.random.default_rng(seed)
    counts, densities = (
        np.concatenate([x.sum(axis=0)[None], _draws(x, rng)]) for x in (new, of_reference)
    )
    densities = densities / densities.sum(axis=2, keepdims=True).clip(_FLOOR)
    shares = _shares(counts, densities[:, :-1])
    rates, hardest = 1 - shares[:, 0], 1 - _shares(counts, densities)[:, 0]
    estimate, high = float(rates[0]), float(np.quantile(rates[1:], _HIGH))
    low = _low(counts, densities[:, 0])
    rate = Rate(estimate, min(low, estimate), max(high, estimate))
    most = max(float(np.quantile(hardest[1:], _HIGH)), rate.high)
    posterior = _posterior(information, known[:-1], weights, shares[0], reference)
    return Mixture(rate, most, scale_to_mean(posterior, estimate))


def _weighted_quantiles(
    values: np.ndarray, weight: np.ndarray, levels: tuple[float, ...]
) -> Float[np.ndarray, " levels"]:
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weight[order], dtype=np.float64)
    at = np.searchsorted(total, np.array(levels) * total[-1])
    return values[order[at.clip(max=len(order) - 1)]]


def _counts(
    values: np.ndarray, image: np.ndarray, cuts: np.ndarray, weight: np.ndarray
) -> Float[np.ndarray, "images cells"]:
    """Sum the weights of the values between cuts, by image."""
    images, cells = int(image.max()) + 1, len(cuts) + 1
    at = image * cells + np.searchsorted(cuts, values)
    return np.bincount(at, weight, minlength=images * cells).reshape(images, cells)


def _draws(counts: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Sum the counts of as many images as there are, drawn with replacement, for each draw."""
    images, flat = len(counts), counts.reshape(len(counts), -1)
    times = (np.bincount(rng.integers(0, images, images), minlength=images) for _ in range(_DRAWS))
    return np.stack([each @ flat for each in times]).reshape(_DRAWS, *counts.shape[1:])


def _shares(
    counts: Float[np.ndarray, "draws cells"], densities: Float[np.ndarray, "draws kinds cells"]
) -> Float[np.ndarray, "draws kinds"]:
    """Fit the share of each density by expectation-maximisation, from equal shares."""
    densities = np.maximum(densities, _FLOOR)
    weight = (counts / counts.sum(axis=1, keepdims=True))[:, None]
    shares = np.full(densities.shape[:2], 1 / densities.shape[1])
    for _ in range(_STEPS):
        parts = shares[:, :, None] * densities
        shares = (weight * parts / parts.sum(axis=1, keepdims=True)).sum(axis=2)
    return shares


def _low(
    counts: Float[np.ndarray, "draws cells"], matched: Float[np.ndarray, "draws cells"]
) -> float:
    """Return the largest excess of new pairs below a cut, less its error; at least 0."""
    at = [_CUTS.index(cut) for cut in _LOW_CUTS]
    below = (np.cumsum(counts, axis=1) / counts.sum(axis=1, keepdims=True))[:, at]
    expected = np.cumsum(matched, axis=1)[:, at]
    excess = (below - expected) / np.maximum(1 - expected, _FLOOR)
    return float(np.max(excess[0] - _LOW_ERRORS * excess[1:].std(axis=0), initial=0))


def _posterior(
    information: np.ndarray,
    known: tuple[np.ndarray, ...],
    weights: tuple[np.ndarray, ...],
    shares: Float[np.ndarray, " kinds"],
    reference: Reference,
) -> Float[np.ndarray, " pairs"]:
    """Return the probability of a mismatch at each information, by the fitted shares."""
    cuts = _weighted_quantiles(reference.information, reference.weight, _FINE_CUTS)
    nothing = np.zeros(len(reference.image), np.int64)
    cells = np.concatenate(
        [_counts(x, nothing, cuts, w) for x, w in zip(known, weights, strict=False)]
    )
    parts = shares[:, None] * (cells / cells.sum(axis=1, keepdims=True).clip(_FLOOR))
    total = np.maximum(parts.sum(axis=0), _FLOOR)
    falling = isotonic_regression(1 - parts[0] / total, weights=total, increasing=False).x
    return falling[np.searchsorted(cuts, information)]


def p_values(
    information: Float[np.ndarray, " pairs"],
    reference: Float[np.ndarray, " n"],
    weight: Float[np.ndarray, " n"],
) -> Float[np.ndarray, " pairs"]:
    """Return the share of the reference that fits no better than each pair, in (0, 1].

    For a matched pair it is uniform, as the pair and the reference are exchangeable. A weight is
    the probability that a pair of the reference is matched. Ties count against the new pair.

    Args:
      information: of new pairs.
      reference: of pairs that their models have not seen.
      weight: of these pairs, in [0, 1].
    """
    order = np.argsort(reference, kind="stable")
    total = np.append(0, np.cumsum(weight[order]))
    below = total[np.searchsorted(reference[order], information, "right")]
    return (1 + below) / (1 + total[-1])


def q_values(p: Float[np.ndarray, " pairs"]) -> Float[np.ndarray, " pairs"]:
    """Return the false discovery rate of the list that ends with each pair, in (0, 1]."""
    from scipy.stats import false_discovery_control  # this import takes half a second

    return false_discovery_control(p) if len(p) else p
