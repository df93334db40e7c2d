"""Which function compares which golden files, and how close ours must be."""

import functools
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.fidelity import (
    heads,
    losses,
    models,
    retrieval,
    semi_paired,
    training,
    transport,
)
from experiments.fidelity.arrays import Arrays, Errors


class Part(NamedTuple):
    """What is compared in the files of one kind.

    Attributes:
      errors: yields (quantity, error) from a file's arrays.
      tolerance: largest error allowed, by quantity.
    """

    errors: Callable[[Arrays], Errors]
    tolerance: dict[str, float]


PARTS = {
    "a_encoders*": Part(models.encoders, {"regions": 1e-5, "words": 1e-5}),
    "bc_sim_*": Part(
        models.similarity,
        {
            "parameter tree": 0.0,
            "codes": 1e-5,
            "similarities, eval": 1e-5,
            "similarities, train": 1e-5,
            "running statistics": 1e-5,
            "triplet loss, relative": 1e-5,
            "gradients, each / its largest": 1e-4,
        },
    ),
    "c2_noisy_*": Part(
        training.rematching_batch,
        {
            "similarities": 1e-5,
            "learned cost": 1e-5,
            "iterations": 0.0,
            "plan / largest": 1e-4,
            "losses, relative": 1e-5,
            "gradients / largest": 1e-4,
        },
    ),
    "d_losses*": Part(losses.losses, {"losses, relative": 1e-5, "gradients / largest": 1e-4}),
    "e_cost*": Part(
        training.learned_cost,
        {
            "start": 0.0,
            "cost": 1e-5,
            "loss, relative": 1e-5,
            "gradients": 1e-6,
            "parameters after each step": 1e-7,  # steps of 2e-6
        },
    ),
    "f_partial_ot_*": Part(
        transport.transport,
        {
            "iterations, mode l2rm": 0.0,
            "plans, mode l2rm / largest": 1e-4,
            "mass, mode l2rm, relative": 1e-4,
            "plans, converged / largest": 1e-4,
            "mass, mode converged, relative": 1e-5,
            "mask and marginals": 2e-5,
            "unsolved, mode converged": 0.0,
            "optimality": 1e-5,
        },
    ),
    "g_ccl*": Part(
        losses.complementary_losses, {"losses, relative": 1e-5, "gradients / largest": 1e-5}
    ),
    "h_omit*": Part(
        heads.heads,
        {
            "full matching, their floor": 1e-5,
            "gradients / largest": 1e-4,
            "dustbins, derived": 1e-5,
            "OMIT's head, lambda 0.5": 1e-5,
            "VSE, mean": 1e-5,
            "CAM": 1e-5,
            "losses, relative": 1e-5,
        },
    ),
    "i_rcsl*": Part(
        semi_paired.rcsl,
        {
            "embeddings": 1e-5,
            "similarities": 1e-5,
            "losses, relative": 1e-5,
            "gradients / largest": 1e-4,
            "losses of the step, relative": 1e-5,
            "gradients of the step / largest": 1e-4,
            "a bias without gradient, in steps": 2.0,
            "weights after": 2e-5,
        },
    ),
    "j_metrics*": Part(retrieval.metrics, {"recalls and ranks": 1e-9, "ranks that differ": 0.0}),
    "k_bmm*": Part(retrieval.beta_mixture, {"accuracy below the stored fit's": 5e-3}),
    "l_eval*": Part(models.evaluation, {"similarities": 1e-5, "recalls and ranks": 1e-9}),
    "m_train_*": Part(
        training.training,
        {
            "losses, relative": 1e-5,
            "first cost loss, relative": 1e-5,
            "later cost losses, relative": 5e-4,
            "gradient norms, relative": 1e-4,
            "first gradients / largest": 1e-4,
            "learned cost after": 1e-7,
            "weights after, beyond noise": 2e-5,
        },
    ),
}

# Files of parts that are not there yet; nothing compares them.
NOT_BUILT = {}

# Arrays that nothing needs to read, in files that are compared.
NOT_COMPARED = {
    "*.num_batches_tracked": "PyTorch's count of forward passes",
    "*/probs": "of the adaptive margin, which L2RM's training does not use",
    "*/triplet_max_violation_s_adaptive": "the same",
    "in/*/key_img_idxs": "where the reserved images are put, which the loss does not depend on",
    "cam/CAN/*": "attention of another paper, which no head of ours has",
    "cam/VSACN/*": "attention that is sharpened over regions; ours is SCAN's, over words",
    "coding/[TV][HS]ACoding/*": "the same, in the other direction, and by the best alone",
    "cam/SCAN/[!Mw]*Pooling": "poolings over words but the mean",
    "cam/SCAN/MaxPooling": "the same",
    "in/imgs_queue0": "first images of a queue as long as the batch, replaced before use",
    "own/worst_marginal_err": "how well own/pi_converged converged",
    "loss/ContrastiveLoss.*": "which RCSL's training does not call",
    "loss/neg_loss*": "the same",
    "*.linear1.bias": "a shift that the softmax does not see",
    "*.mlp.bns.1.*": "of a batch normalisation that nothing runs through",
    "step/no_grad_params": "its names",
    "*/oracle_accuracy": "of Bayes' rule, which no fit need reach where the components overlap",
    "*/own/params_arazo10": "a fit of ten iterations; ours runs to convergence",
}


class Found(NamedTuple):
    errors: dict[str, float]  # largest by quantity; one that the file has no array of is absent
    tolerance: dict[str, float]
    unread: list[str]  # keys of arrays that nothing read

    @property
    def outside(self) -> list[str]:
        """Quantities outside their tolerance; NaN is."""
        return [name for name, error in self.errors.items() if not error <= self.tolerance[name]]


def part_of(path: Path) -> Part | None:
    return next((part for kind, part in PARTS.items() if _is(path, kind)), None)


def compared_files(directory: Path) -> list[Path]:
    return [path for path in sorted(directory.glob("*.npz")) if part_of(path)]


def unaccounted(directory: Path) -> list[str]:
    """Files that no part consumes and kinds without a file, in words."""
    paths = sorted(path for path in directory.iterdir() if path.name != "README.md")
    strangers = [
        path
        for path in paths
        if path.suffix != ".npz" or not any(_is(path, kind) for kind in (*PARTS, *NOT_BUILT))
    ]
    empty = [kind for kind in PARTS if not any(_is(path, kind) for path in paths)]
    return [f"{path}: nothing compares this file" for path in strangers] + [
        f"{directory}: no file {kind}.npz" for kind in empty
    ]


@functools.cache
def consume(path: Path) -> Found:
    """Everything that is compared in one file, computed once."""
    part = part_of(path)
    arrays = Arrays.load(path)
    found: dict[str, float] = {}
    for quantity, error in part.errors(arrays):
        # Not Python's max, which may lose a NaN.
        found[quantity] = float(np.maximum(found.get(quantity, 0.0), error))
    errors = {quantity: found.pop(quantity) for quantity in part.tolerance if quantity in found}
    if found:
        raise ValueError(f"{path}: no tolerance for {', '.join(found)}")
    unread = [key for key in arrays.unread if not any(fnmatch(key, k) for k in NOT_COMPARED)]
    return Found(errors, part.tolerance, unread)


def _is(path: Path, kind: str) -> bool:
    return fnmatch(path.stem, kind)
