"""How many pairs are mismatched, and how probable it is of each: by a null that is known exactly.

Captions with random other images are mismatched whatever the data hold, so their scores are what
mismatched pairs look like: the null. Doubts are scores too; the higher, the worse a pair fits.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import brentq, isotonic_regression

from l2rm_jax.audit.findings import Rate

LAMBDA = 0.5
STRICT_LAMBDA = 0.8
_DRAWS = 1000
_INTERVAL = (0.05, 0.95)
_FLOOR = 1e-9  # of a probability, so that its log odds are finite


def estimate_rate(
    doubt: Float[np.ndarray, " pairs"],
    null: Float[np.ndarray, "..."],
    group: Int[np.ndarray, " pairs"],
    seed: int,
) -> Rate:
    """Estimate the share of pairs that are as doubtful as random ones.

    A share lambda of the null is below its lambda-quantile, and hardly any matched pair is above.
    So the share of pairs above, divided by 1 - lambda, is the share of mismatched ones: Storey's
    estimator of the share of true null hypotheses.

    Args:
      doubt: of the pairs.
      null: of known mismatches.
      group: group of each pair; the bootstrap draws whole groups.
      seed: seed of the bootstrap.

    References:
        Storey, A Direct Approach to False Discovery Rates, JRSS B 2002.
        Efron, Bootstrap Methods: Another Look at the Jackknife, Annals of Statistics 1979.
    """
    above = doubt > np.quantile(null, LAMBDA)
    estimate = above.mean() / (1 - LAMBDA)
    strict = (doubt > np.quantile(null, STRICT_LAMBDA)).mean() / (1 - STRICT_LAMBDA)
    position = np.unique(group, return_inverse=True)[1]
    kinds, times = np.unique(
        np.stack([np.bincount(position), np.bincount(position, above)], axis=1),
        axis=0,
        return_counts=True,
    )
    # Groups with as many pairs, and as many of them above, are alike: their numbers are drawn.
    drawn = np.random.default_rng(seed).multinomial(times.sum(), times / times.sum(), size=_DRAWS)
    sizes, counts = kinds.T
    draws = drawn @ counts / (drawn @ sizes) / (1 - LAMBDA)
    low, high = np.quantile(draws, _INTERVAL)
    return Rate(*(float(min(x, 1)) for x in (estimate, low, high, strict)))


class Separation(NamedTuple):
    """How far matched pairs are from known mismatches; each number less its standard error.

    Attributes:
      auroc: share of (known mismatch, matched pair) that the doubt tells apart. What is left of the
        pairs after the rate is taken away counts as matched.
      fall: by how much the rate falls from lambda .5 to lambda .8.
    """

    auroc: float
    fall: float


def measure_separation(
    doubt: Float[np.ndarray, " pairs"],
    null: Float[np.ndarray, "..."],
    group: Int[np.ndarray, " pairs"],
) -> Separation:
    """Measure whether the rate can be trusted: if matched pairs are doubtful too, it is too high.

    Where doubts of matched pairs and of the null are normal with the same variance, clean pairs
    with a rate of .10 have an AUROC of .92 and a fall of .07; with .20, of .90 and .12; and with
    .70, of .86 and .15. Other mismatched pairs among them leave the AUROC as it is. It is that of
    one score, not of a fit to these pairs, which would tell pairs apart that are all alike.

    Args:
      doubt: of the pairs.
      null: of known mismatches.
      group: group of each pair; groups are independent of each other.
    """
    ordered = np.sort(null, axis=None)
    place = sum(np.searchsorted(ordered, doubt, side) for side in ("left", "right"))
    place = place / (2 * len(ordered))
    above = place > LAMBDA
    fall = above / (1 - LAMBDA) - (place > STRICT_LAMBDA) / (1 - STRICT_LAMBDA)
    # A share `rate` of the pairs has places like the null's: one half on average. Of these, as many
    # lie below the median as above it.
    matched = max(1 - above.mean() / (1 - LAMBDA), _FLOOR)
    auroc = np.sum(1 - place - above) / len(doubt) / matched
    influence = auroc + (1 - place - above - auroc * (1 - above / (1 - LAMBDA))) / matched
    return Separation(_low_mean(influence, group), _low_mean(fall, group))


def _low_mean(values: Float[np.ndarray, " pairs"], group: Int[np.ndarray, " pairs"]) -> float:
    """Mean over pairs of independent groups, less its standard error."""
    mean, position = values.mean(), np.unique(group, return_inverse=True)[1]
    deviation = np.bincount(position, values - mean)
    return float(mean - np.sqrt(np.sum(deviation**2)) / len(values))


class Curve(NamedTuple):
    """Ratio of the density of the null to that of the pairs, by doubt: it never falls."""

    doubt: Float[np.ndarray, " steps"]
    ratio: Float[np.ndarray, " steps"]

    def posterior(
        self, doubt: Float[np.ndarray, "*shape"], rate: float
    ) -> Float[np.ndarray, "*shape"]:
        """Probability that pairs of such doubt are mismatched, if a share `rate` is, in [0, 1]."""
        return np.minimum(rate * self.at(doubt), 1)

    def at(self, doubt: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
        """Ratio at each doubt."""
        place = np.searchsorted(self.doubt, doubt, "right") - 1
        return self.ratio[np.clip(place, 0, len(self.doubt) - 1)]


def density_ratio(doubt: Float[np.ndarray, " pairs"], null: Float[np.ndarray, "..."]) -> Curve:
    """Fit the ratio by isotonic regression of "null or pair" on the doubt.

    References:
        Barlow et al., Statistical Inference under Order Restrictions, 1972.
    """
    null = null.ravel()
    values = np.concatenate([doubt, null])
    order = np.argsort(values, kind="stable")
    is_null = order >= len(doubt)
    weights = np.where(is_null, len(doubt) / len(null), 1.0)
    share = isotonic_regression(is_null.astype(float), weights=weights).x
    first = np.append(True, np.diff(share) > 0)
    share = share[first]
    return Curve(values[order][first], share / np.maximum(1 - share, 1e-12))


def scale_to_mean(
    posterior: Float[np.ndarray, " pairs"], mean: float
) -> Float[np.ndarray, " pairs"]:
    """Add one number to all log odds, so that the mean of the posterior is `mean`."""
    if mean <= 0:
        return np.zeros_like(posterior)
    odds = np.clip(posterior, _FLOOR, 1 - _FLOOR)
    odds = np.log(odds) - np.log1p(-odds)

    def shifted(by: float) -> np.ndarray:
        return 1 / (1 + np.exp(-(odds + by)))

    if mean >= shifted(50).mean():
        return shifted(50)
    return shifted(brentq(lambda by: shifted(by).mean() - mean, -50, 50))


def false_alarms(
    posterior: Float[np.ndarray, " pairs"], order: Int[np.ndarray, " pairs"]
) -> Float[np.ndarray, " pairs"]:
    """Expected share of false alarms among each pair and those before it in the order."""
    shares = np.empty(len(posterior))
    shares[order] = np.cumsum(1 - posterior[order]) / np.arange(1, len(order) + 1)
    return shares
