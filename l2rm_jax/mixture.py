"""Two-component beta mixture of per-pair losses: which pairs are mismatched?

Mismatched pairs keep a high loss after the warm-up. L2RM fits two beta distributions to the losses
by expectation-maximisation and calls a pair mismatched when the posterior of the component with
the higher mean exceeds one half (L2RM section 3.2). Runs on the host, in float64.

References:
    Arazo et al., Unsupervised Label Noise Modeling and Loss Correction, ICML 2019: the mixture
    and its maximisation step by weighted moments.
    Han et al., Learning to Rematch Mismatched Pairs for Robust Cross-Modal Retrieval, CVPR 2024.
"""

from math import lgamma
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

# Scaled losses stay off 0 and 1, where a beta density may be infinite.
_EDGE = 1e-3
_MAX_ITERATIONS = 100
# Converged when the mean log-likelihood of a pair changes by less.
_TOLERANCE = 1e-4
# A component never gets narrower than this variance, nor loses its last pair.
_SMALLEST_VARIANCE = 1e-6
_SMALLEST_WEIGHT = 1e-9
# A side of the split smaller than this share is taken for a failed fit.
_SMALLEST_SIDE = 0.02


class BetaMixture(NamedTuple):
    """A fitted mixture. Component 0 has the lower mean (matched), 1 the higher (mismatched)."""

    weights: Float[np.ndarray, "2"]  # shares of the components
    alpha: Float[np.ndarray, "2"]  # shape parameters of the scaled losses
    beta: Float[np.ndarray, "2"]
    low: float  # losses are scaled from [low, high] to [0, 1]
    high: float
    iterations: int
    converged: bool
    log_likelihood: float  # mean over pairs, of the scaled losses

    def mismatch(self, losses: Float[np.ndarray, " pairs"]) -> Float[np.ndarray, " pairs"]:
        """Posterior probability of the component with the higher mean, in [0, 1]."""
        return self._posterior(_scale(losses, self.low, self.high))

    @property
    def consistent(self) -> bool:
        """Whether the component with the lower mean is also the likelier one at loss 0.001.

        The paper calls the one clean, the reference code the other. Where they differ the split
        is doubtful and deserves a warning.
        """
        return bool(self._posterior(np.array([_EDGE]))[0] <= 0.5)

    @property
    def separation(self) -> float:
        """Distance of the two means in units of the sum of the two standard deviations."""
        size = self.alpha + self.beta
        mean = self.alpha / size
        deviation = np.sqrt(mean * (1 - mean) / (size + 1))
        return float((mean[1] - mean[0]) / deviation.sum())

    def _posterior(self, scaled):
        return np.exp(_log_joint(scaled, self.weights, self.alpha, self.beta)[1])


def fit(losses: Float[np.ndarray, " pairs"]) -> BetaMixture:
    """Fits the mixture by expectation-maximisation with weighted moments, to convergence.

    Expectation-maximisation finds a nearby optimum, and the likelier of two is not always the
    better split: a wide component may swallow both ends, so that the highest losses count as
    matched. So it runs from two deterministic starts (two-means of the losses; the scaled loss
    itself as the probability of a mismatch, as in Arazo et al.), from a third (two-means of the
    log odds) if neither splits at a threshold on the loss, and keeps the one closest to a
    threshold, the likelier of equals.

    Args:
        losses: one finite loss per pair, on any scale. Equal losses give a mixture that finds no
            pair mismatched.

    Returns:
        The mixture; `BetaMixture.mismatch` of the same losses gives the posterior.

    Raises:
        ValueError: if there is no loss, or one is not finite.
    """
    losses = np.asarray(losses, np.float64)
    if losses.ndim != 1 or not losses.size:
        raise ValueError(f"losses must be a non-empty vector, found shape {losses.shape}")
    if not np.isfinite(losses).all():
        row = int(np.flatnonzero(~np.isfinite(losses))[0])
        raise ValueError(f"loss {row} is {losses[row]}, expected a finite number")
    low, high = float(losses.min()), float(losses.max())
    if high - low <= 1e-12 * max(abs(low), abs(high), 1e-300):
        flat = np.ones(2)
        return BetaMixture(np.array([1.0, 0.0]), flat, flat, low, high, 0, True, 0.0)
    scaled = _scale(losses, low, high)
    found: list[tuple[float, float, BetaMixture]] = []
    for start in (_two_means(scaled), scaled, _two_means(np.log(scaled) - np.log1p(-scaled))):
        mixture = _maximise(scaled, start)._replace(low=low, high=high)
        found.append((_disorder(mixture, scaled), -mixture.log_likelihood, mixture))
        best = min(found, key=lambda each: each[:2])
        if len(found) >= 2 and best[0] == 0:
            break
    return best[2]


def _scale(losses, low, high):
    """Losses as float64 in [1e-3, 1 - 1e-3]."""
    losses = np.asarray(losses, np.float64)
    scaled = (losses - low) / (high - low) if high > low else np.zeros_like(losses)
    return np.clip(scaled, _EDGE, 1 - _EDGE)


def _maximise(scaled, responsibility) -> BetaMixture:
    """EM from the probability of each pair to be in component 1."""
    likelihood, change, iteration = -np.inf, np.inf, 0
    while change >= _TOLERANCE and iteration < _MAX_ITERATIONS:
        shares = np.stack([1 - responsibility, responsibility])
        weights = shares.mean(axis=1)
        alpha, beta = _moments(scaled, shares)
        total, log_posterior = _log_joint(scaled, weights, alpha, beta)
        responsibility = np.exp(log_posterior)
        change, likelihood = abs(total.mean() - likelihood), total.mean()
        iteration += 1
    order = np.argsort(alpha / (alpha + beta), kind="stable")
    return BetaMixture(
        weights=weights[order],
        alpha=alpha[order],
        beta=beta[order],
        low=0.0,
        high=1.0,
        iterations=iteration,
        converged=bool(change < _TOLERANCE),
        log_likelihood=float(likelihood),
    )


def _moments(scaled, shares):
    """Beta parameters with the weighted mean and variance of each component."""
    shares = shares + _SMALLEST_WEIGHT
    shares = shares / shares.sum(axis=1, keepdims=True)
    mean = shares @ scaled
    variance = np.sum(shares * (scaled - mean[:, None]) ** 2, axis=1)
    size = mean * (1 - mean) / np.maximum(variance, _SMALLEST_VARIANCE) - 1
    return mean * size, (1 - mean) * size


def _log_joint(scaled, weights, alpha, beta):
    """Log density of each loss, and log posterior of component 1."""
    with np.errstate(divide="ignore"):
        log_weights = np.log(weights)
    norm = np.array(
        [lgamma(a + b) - lgamma(a) - lgamma(b) for a, b in zip(alpha, beta, strict=True)]
    )
    joint = (
        (log_weights + norm)[:, None]
        + (alpha - 1)[:, None] * np.log(scaled)
        + (beta - 1)[:, None] * np.log1p(-scaled)
    )
    total = np.logaddexp(joint[0], joint[1])
    return total, joint[1] - total


def _two_means(scaled):
    """1.0 for the losses in the upper of two clusters, by Lloyd's algorithm."""
    threshold, previous = scaled.mean(), None
    while threshold != previous:
        upper = scaled >= threshold
        previous, threshold = threshold, (scaled[upper].mean() + scaled[~upper].mean()) / 2
    return upper.astype(np.float64)


def _disorder(mixture, scaled) -> float:
    """Share of pairs that a split of the same size at a threshold on the loss would change.

    A mixture that puts (nearly) all pairs on one side splits nothing: 1.
    """
    mismatched = mixture._posterior(scaled) > 0.5
    share = mismatched.mean()
    if min(share, 1 - share) < _SMALLEST_SIDE:
        return 1.0
    ordered = mismatched[np.argsort(scaled, kind="stable")]
    return float(np.mean(ordered != np.sort(ordered)))
