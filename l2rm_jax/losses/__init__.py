"""Losses: pure functions of a similarity matrix whose diagonal holds the stored pairs.

Each file holds one family of losses, each function is one loss; `methods/` chooses among them.
May import nothing from the rest of l2rm_jax.
"""

from l2rm_jax.losses.complementary import (
    active_complementary,
    complementary_contrastive,
    draw_negatives,
    updated_labels,
)
from l2rm_jax.losses.consistency import (
    agreement,
    anchor_count,
    anchor_order,
    labels_of_matched,
    labels_of_mismatched,
    labels_of_taken_over,
    nearest_image,
)
from l2rm_jax.losses.contrastive import (
    info_nce,
    info_nce_per_pair,
    matched_probability,
    robust_info_nce,
    structure,
    symmetry,
)
from l2rm_jax.losses.evidential import (
    called_matched,
    evidence,
    evidential_loss,
    logit_tanh,
)
from l2rm_jax.losses.ranking import (
    hardest_k,
    per_pair_hinge,
    prediction,
    shrinking_count,
    smallest,
    soft_margin,
    triplet_hardest,
    triplet_mean,
    unviolated_margin,
)
from l2rm_jax.losses.rematching import jensen_shannon, kl, soft_info_nce, symmetric_kl
from l2rm_jax.losses.semi_paired import alignment, paired_triplet, robust_mining, uniformity

__all__ = [
    "active_complementary",
    "agreement",
    "alignment",
    "anchor_count",
    "anchor_order",
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
    "labels_of_matched",
    "labels_of_mismatched",
    "labels_of_taken_over",
    "logit_tanh",
    "matched_probability",
    "nearest_image",
    "paired_triplet",
    "per_pair_hinge",
    "prediction",
    "robust_info_nce",
    "robust_mining",
    "shrinking_count",
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
    "updated_labels",
]
