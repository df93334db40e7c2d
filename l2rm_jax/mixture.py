"""Two-component mixtures of per-pair losses, to find the mismatched pairs.

Mismatched pairs keep a high loss after the warm-up. L2RM fits two beta distributions to the losses
by expectation-maximisation (EM) and calls a pair mismatched if the posterior of the component with
the higher mean exceeds one half (L2RM section 3.2): `fit`. NCR and its relatives fit two Gaussians:
`fit_gaussian`. The fits run on the host, in float64.

References:
    Arazo et al., Unsupervised Label Noise Modeling and Loss Correction, ICML 2019: the mixture
    and its maximisation step, which uses weighted moments.
    Han et al., Learning to Rematch Mismatched Pairs for Robust Cross-Modal Retrieval, CVPR 2024.
    Huang et al., Learning with Noisy Correspondence for Cross-modal Matching, NeurIPS 2021 (NCR).
"""

from math import lgamma, tau
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

# Scaled losses are clipped to [_EDGE, 1 - _EDGE]: at 0 and 1 a beta density may be infinite.
_EDGE = 1e-3
_MAX_ITERATIONS = 100
# EM has converged when the mean log-likelihood per pair changes by less than this.
_TOLERANCE = 1e-4
# Lower bounds: of a component's variance, and of the share that every pair has in a component.
_SMALLEST_VARIANCE = 1e-6
_SMALLEST_WEIGHT = 1e-9
# A split with a smaller share of the pairs on one side counts as a failed fit.
_SMALLEST_SIDE = 0.02
# NCR's settings of the Gaussian mixture: EM stops early, and this is added to each variance.
_GAUSSIAN_ITERATIONS = 10
_GAUSSIAN_TOLERANCE = 1e-2
_ADDED_VARIANCE = 5e-4
# If the posterior calls all pairs matched, the worst one in this many counts as mismatched.
_ONE_IN = 100


class BetaMixture(NamedTuple):
    """A fitted mixture; component 0 (matched) has the lower mean, 1 (mismatched) the higher."""

    weights: Float[np.ndarray, "2"]  # share of each component, sums to 1
    alpha: Float[np.ndarray, "2"]  # shape parameters of the components, for scaled losses
    beta: Float[np.ndarray, "2"]
    low: float  # losses are scaled from [low, high] to [0, 1]
    high: float
    iterations: int
    converged: bool
    log_likelihood: float  # mean over pairs, for scaled losses

    def mismatched_posterior(
        self, losses: Float[np.ndarray, " pairs"]
    ) -> Float[np.ndarray, " pairs"]:
        """Posterior probability that each pair is mismatched (component 1), in [0, 1]."""
        return self._scaled_posterior(_scale(losses, self.low, self.high))

    @property
    def is_consistent(self) -> bool:
        """Whether component 0, with the lower mean, is also the likelier one at scaled loss 0.001.

        The paper takes the component with the lower mean for the matched pairs, the reference code
        the component that is likelier at 0.001. If the two differ, the split is unreliable and
        the caller should warn.
        """
        return bool(self._scaled_posterior(np.array([_EDGE]))[0] <= 0.5)

    @property
    def separation(self) -> float:
        """Distance between the two means, divided by the sum of the two standard deviations."""
        size = self.alpha + self.beta
        mean = self.alpha / size
        deviation = np.sqrt(mean * (1 - mean) / (size + 1))
        return float((mean[1] - mean[0]) / deviation.sum())

    def _scaled_posterior(self, scaled):
        return np.exp(_log_joint(scaled, self.weights, self.alpha, self.beta)[1])


def fit(losses: Float[np.ndarray, " pairs"]) -> BetaMixture:
    """Fit the mixture by EM with weighted moments, to convergence.

    EM converges to an optimum near its start, and the optimum with the higher likelihood is not
    always the better split: a wide component may cover both ends, so that the highest losses count
    as matched. `fit` therefore runs EM from several deterministic starts and keeps the result whose
    split is closest to a threshold on the loss, or the likelier one of equally close results. The
    starts are two-means clusters of the losses, the scaled losses as probabilities of a mismatch
    (Arazo et al.) and, if neither result is a split at a threshold, two-means clusters of the log
    odds.

    Args:
        losses: one finite loss per pair, on any scale. If all are equal, the mixture calls every
            pair matched.

    Returns:
        The mixture; its method `mismatched_posterior`, given the same losses, returns the
        probability that each pair is mismatched.

    Raises:
        ValueError: if ``losses`` is not a non-empty vector, or holds a value that is not finite.
    """
    losses, low, high = _checked(losses)
    if low == high:
        flat = np.ones(2)
        return BetaMixture(np.array([1.0, 0.0]), flat, flat, low, high, 0, True, 0.0)
    scaled = _scale(losses, low, high)
    fits: list[tuple[float, float, BetaMixture]] = []
    for start in (_two_means(scaled), scaled, _two_means(np.log(scaled) - np.log1p(-scaled))):
        mixture = _maximise(scaled, start)._replace(low=low, high=high)
        fits.append((_disorder(mixture, scaled), -mixture.log_likelihood, mixture))
        best = min(fits, key=lambda each: each[:2])
        if len(fits) >= 2 and best[0] == 0:
            break
    return best[2]


class GaussianMixture(NamedTuple):
    """A fitted mixture; component 0 (matched) has the lower mean, 1 (mismatched) the higher."""

    weights: Float[np.ndarray, "2"]  # share of each component, sums to 1
    means: Float[np.ndarray, "2"]  # of the scaled losses, in [0, 1]
    variances: Float[np.ndarray, "2"]
    low: float  # losses are scaled from [low, high] to [0, 1]
    high: float
    iterations: int
    converged: bool
    log_likelihood: float  # mean over pairs, for scaled losses

    def mismatched_posterior(
        self, losses: Float[np.ndarray, " pairs"]
    ) -> Float[np.ndarray, " pairs"]:
        """Posterior probability that each pair is mismatched (component 1), in [0, 1].

        It need not grow with the loss: the wider component also takes the lowest losses.
        """
        return self._scaled_posterior(_unit_scale(losses, self.low, self.high))

    @property
    def is_consistent(self) -> bool:
        """Whether component 0, with the lower mean, is also the likelier one at the lowest loss."""
        return bool(self._scaled_posterior(np.zeros(1))[0] <= 0.5)

    @property
    def separation(self) -> float:
        """Distance between the two means, divided by the sum of the two standard deviations."""
        return float((self.means[1] - self.means[0]) / np.sqrt(self.variances).sum())

    def _scaled_posterior(self, scaled):
        return np.exp(_gaussian_log_joint(scaled, self.weights, self.means, self.variances)[1][1])


Mixture = BetaMixture | GaussianMixture


def fit_gaussian(losses: Float[np.ndarray, " pairs"]) -> GaussianMixture:
    """Fit NCR's mixture of two Gaussians by a few iterations of EM.

    NCR stops EM long before it converges, usually after two or three iterations, so that the result
    depends on the start. The public code starts from k-means with random centres; this fit starts
    from `_two_means`, which is deterministic, and has the same stop rule: at most 10 iterations, or
    until the mean log-likelihood per pair changes by less than 0.01.

    Args:
        losses: one finite loss per pair, on any scale. If all are equal, the mixture calls every
            pair matched.

    Returns:
        The mixture; its method `mismatched_posterior`, given the same losses, returns each pair's
        posterior.

    Raises:
        ValueError: if ``losses`` is not a non-empty vector, or holds a value that is not finite.
    """
    losses, low, high = _checked(losses)
    if low == high:
        one, none = np.array([1.0, 0.0]), np.zeros(2)
        return GaussianMixture(one, none, np.full(2, _ADDED_VARIANCE), low, high, 0, True, 0.0)
    scaled = _unit_scale(losses, low, high)
    upper = _two_means(scaled)
    parameters = _gaussian_moments(scaled, np.stack([1 - upper, upper]))
    likelihood, change, iteration = -np.inf, np.inf, 0
    while change >= _GAUSSIAN_TOLERANCE and iteration < _GAUSSIAN_ITERATIONS:
        total, log_posterior = _gaussian_log_joint(scaled, *parameters)
        parameters = _gaussian_moments(scaled, np.exp(log_posterior))
        change, likelihood = abs(total.mean() - likelihood), total.mean()
        iteration += 1
    order = np.argsort(parameters[1], kind="stable")
    return GaussianMixture(
        *(each[order] for each in parameters),
        low=low,
        high=high,
        iterations=iteration,
        converged=bool(change < _GAUSSIAN_TOLERANCE),
        log_likelihood=float(likelihood),
    )


def above_threshold(
    matched_posterior: Float[np.ndarray, " pairs"], threshold: float = 0.5
) -> Bool[np.ndarray, " pairs"]:
    """Call pairs with a posterior above the threshold matched, as NCR does.

    If all pairs are above it, the threshold becomes the 1% quantile of the posteriors, so that the
    lowest 1% counts as mismatched; pairs at the quantile count as matched only if it is the highest
    posterior.

    Args:
        matched_posterior: posterior of each pair of being matched, in [0, 1].
        threshold: in [0, 1].

    Returns:
        True for the pairs that are called matched.
    """
    if matched_posterior.min() <= threshold:
        return matched_posterior > threshold
    quantile = np.sort(matched_posterior)[len(matched_posterior) // _ONE_IN]
    if quantile == matched_posterior.max():
        return matched_posterior == quantile
    return matched_posterior > quantile


def _checked(losses):
    """Check losses; return them in float64, and the ends of their range (equal if all are)."""
    losses = np.asarray(losses, np.float64)
    if losses.ndim != 1 or not losses.size:
        raise ValueError(f"losses: found shape {losses.shape}, expected a non-empty vector")
    if not np.isfinite(losses).all():
        row = int(np.flatnonzero(~np.isfinite(losses))[0])
        raise ValueError(f"losses[{row}]: found {losses[row]}, expected a finite number")
    low, high = float(losses.min()), float(losses.max())
    if high - low <= 1e-12 * max(abs(low), abs(high), 1e-300):
        high = low
    return losses, low, high


def _unit_scale(losses, low, high):
    """Scale losses from [low, high] to [0, 1], in float64."""
    losses = np.asarray(losses, np.float64)
    return (losses - low) / (high - low) if high > low else np.zeros_like(losses)


def _gaussian_moments(scaled, shares):
    """Weights, means and variances of the components, given each pair's shares in them."""
    counts = shares.sum(axis=1) + 10 * np.finfo(np.float64).eps
    means = shares @ scaled / counts
    variances = np.sum(shares * (scaled - means[:, None]) ** 2, axis=1) / counts
    return counts / counts.sum(), means, variances + _ADDED_VARIANCE


def _gaussian_log_joint(scaled, weights, means, variances):
    """Log density of each scaled loss, and its log posteriors of both components."""
    with np.errstate(divide="ignore"):
        log_weights = np.log(weights) - np.log(tau * variances) / 2
    joint = log_weights[:, None] - (scaled - means[:, None]) ** 2 / (2 * variances[:, None])
    total = np.logaddexp(joint[0], joint[1])
    return total, joint - total


def _scale(losses, low, high):
    """Scale losses from [low, high] to [1e-3, 1 - 1e-3], in float64."""
    return np.clip(_unit_scale(losses, low, high), _EDGE, 1 - _EDGE)


def _maximise(scaled, responsibility) -> BetaMixture:
    """Run EM, starting from each pair's probability of belonging to component 1."""
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
    """Beta parameters that match each component's weighted mean and variance."""
    shares = shares + _SMALLEST_WEIGHT
    shares = shares / shares.sum(axis=1, keepdims=True)
    mean = shares @ scaled
    variance = np.sum(shares * (scaled - mean[:, None]) ** 2, axis=1)
    size = mean * (1 - mean) / np.maximum(variance, _SMALLEST_VARIANCE) - 1
    return mean * size, (1 - mean) * size


def _log_joint(scaled, weights, alpha, beta):
    """Log density of each scaled loss, and its log posterior of component 1."""
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
    """Two-means clusters by Lloyd's algorithm: 1.0 for a loss in the upper one, else 0.0."""
    threshold, previous = scaled.mean(), None
    while threshold != previous:
        upper = scaled >= threshold
        previous, threshold = threshold, (scaled[upper].mean() + scaled[~upper].mean()) / 2
    return upper.astype(np.float64)


def _disorder(mixture, scaled) -> float:
    """Share of pairs that change sides if a loss threshold splits off the same number of pairs.

    Returns 1 for a mixture that puts (nearly) all pairs on one side.
    """
    mismatched = mixture._scaled_posterior(scaled) > 0.5
    share = mismatched.mean()
    if min(share, 1 - share) < _SMALLEST_SIDE:
        return 1.0
    ordered = mismatched[np.argsort(scaled, kind="stable")]
    return float(np.mean(ordered != np.sort(ordered)))
