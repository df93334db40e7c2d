"""Losses: pure functions of a similarity matrix whose diagonal holds the stored pairs.

Each file holds one family of losses, each function is one loss; `methods/` chooses among them.
May import nothing from the rest of l2rm_jax.
"""

from l2rm_jax.losses.complementary import (
    active_complementary,
    complementary_contrastive,
    draw_negatives,
    refined_labels,
)
from l2rm_jax.losses.consistency import (
    matched_labels,
    mismatched_labels,
    misplaced_labels,
    order_by_sureness,
)
from l2rm_jax.losses.contrastive import (
    info_nce,
    info_nce_per_pair,
    pair_probabilities,
    robust_info_nce,
    sigmoid_contrastive,
)
from l2rm_jax.losses.evidential import called_matched, evidence, evidential_loss
from l2rm_jax.losses.purification import nearest, rematched_labels, structure, symmetry
from l2rm_jax.losses.ranking import (
    hardest_k,
    per_pair_hinge,
    prediction,
    smallest,
    soft_margin,
    triplet_hardest,
    triplet_mean,
    unviolated_margin,
)
from l2rm_jax.losses.rematching import jensen_shannon, kl, soft_info_nce, symmetric_kl
from l2rm_jax.losses.semi_paired import alignment, paired_triplet, robust_mining, uniformity
from l2rm_jax.losses.weights import osa, osa_code

__all__ = [
    "active_complementary",
    "alignment",
    "called_matched",
    "complementary_contrastive",
    "draw_negatives",
    "evidence",
    "evidential_loss",
    "hardest_k",
    "info_nce",
    "info_nce_per_pair",
    "jensen_shannon",
    "kl",
    "matched_labels",
    "mismatched_labels",
    "misplaced_labels",
    "nearest",
    "order_by_sureness",
    "osa",
    "osa_code",
    "pair_probabilities",
    "paired_triplet",
    "per_pair_hinge",
    "prediction",
    "refined_labels",
    "rematched_labels",
    "robust_info_nce",
    "robust_mining",
    "sigmoid_contrastive",
    "smallest",
    "soft_info_nce",
    "soft_margin",
    "structure",
    "symmetric_kl",
    "symmetry",
    "triplet_hardest",
    "triplet_mean",
    "uniformity",
    "unviolated_margin",
]
