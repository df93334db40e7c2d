"""Compare new pairs with matched pairs of a reference: p-values and false discovery rates.

References:
    Vovk, Gammerman and Shafer, Algorithmic Learning in a Random World, 2005.
    Tibshirani et al., Conformal Prediction Under Covariate Shift, NeurIPS 2019: with weights.
    Bates et al., Testing for Outliers with Conformal p-values, Annals of Statistics 2023.
    Benjamini and Hochberg, Controlling the False Discovery Rate, JRSS B 1995.
"""

import numpy as np
from jaxtyping import Float, Int


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


def per_image(
    weight: Float[np.ndarray, " n"], image: Int[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """Return weights by which each image counts the same, whatever its number of captions."""
    counts = np.bincount(image, minlength=1)
    return weight * counts[counts > 0].mean() / counts[image]
