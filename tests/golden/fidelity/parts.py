"""The comparison of each kind of golden file, and its tolerances."""

import functools
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from tests.golden.fidelity import (
    clip_losses,
    compared_losses,
    compared_steps,
    dual_encoding,
    heads,
    in2r_step,
    losses,
    models,
    newer_heads,
    rectification,
    semi_paired,
    training,
    transport,
)
from tests.golden.fidelity.arrays import Arrays


class Part(NamedTuple):
    """Comparison of the files of one kind.

    Attributes:
      compare: function that compares the arrays of a file, which then hold the errors.
      tolerance: largest error allowed, by quantity.
    """

    compare: Callable[[Arrays], None]
    tolerance: dict[str, float]


LOSSES = {"losses, relative": 1e-5, "gradients / largest": 1e-4}
# One update of a model with a newer head.
UPDATE = {"gradient norm, relative": 1e-4, "weights after, beyond noise": 2e-5}
# Whole steps of the compared methods.
STEP = {
    "losses of the steps, relative": 1e-5,
    "gradient norms, relative": 1e-4,
    "first gradients / largest": 1e-4,
    "weights after, beyond noise": 2e-5,
}

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
            **LOSSES,
        },
    ),
    "d_losses*": Part(losses.losses, LOSSES),
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
            **LOSSES,
            "losses of the step, relative": 1e-5,
            "gradients of the step / largest": 1e-4,
            "a bias without gradient, in steps": 2.0,
            "weights after": 2e-5,
        },
    ),
    "j_metrics*": Part(models.metrics, {"recalls and ranks": 1e-9, "ranks that differ": 0.0}),
    "k_bmm*": Part(compared_losses.beta_mixture, {"wrong pairs, more than the stored fit's": 10.0}),
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
    "n_ncr_step_*": Part(compared_steps.ncr_step, {"predictions": 5e-4, "labels": 2e-4, **STEP}),
    "n_ncr*": Part(
        compared_losses.ncr,
        {
            "margins": 1e-6,
            "predictions and targets": 1e-5,
            **LOSSES,
            "posteriors, beyond their spread": 1e-4,
            "parameters of the mixture": 1e-2,
            "EM iterations": 0.0,
            "wrong pairs, more than the stored fit's": 5.0,  # of 1200
            "pairs called otherwise": 0.0,
        },
    ),
    "o_decl_step_*": Part(
        compared_steps.decl_step,
        {"options": 1e-9, "split": 1e-5, "pairs called otherwise": 0.0, **STEP},
    ),
    "o_decl*": Part(
        compared_losses.decl,
        {
            "evidence / largest": 1e-5,
            "pairs called otherwise": 0.0,
            "k that differ": 0.0,
            "options": 1e-9,
            "losses, relative": 1e-5,
            "losses, relative to float32": 3e-3,
            "gradients / largest": 1e-5,
            "losses of a step, relative": 1e-5,
            "losses of a step, relative to float32": 1e-3,
            "gradients of a step / largest": 1e-5,
        },
    ),
    "p_bicro_step_*": Part(compared_steps.bicro_step, {"options": 1e-9, "labels": 1e-5, **STEP}),
    "p_bicro*": Part(
        compared_losses.bicro,
        {
            **LOSSES,
            "scores of the anchors": 1e-6,
            "cosines": 1e-6,
            "ratios / largest": 1e-4,
            "labels": 1e-5,
            "wrong pairs, more than the stored fit's": 10.0,  # of 1200
        },
    ),
    "q_crcl_step_*": Part(compared_steps.crcl_step, {"options": 1e-9, "labels": 1e-5, **STEP}),
    "q_crcl*": Part(compared_losses.crcl, {**LOSSES, "labels after": 1e-5}),
    "r_sps_step_*": Part(compared_steps.sps_step, STEP),
    "r_sps*": Part(
        compared_losses.sps,
        {
            "predictions": 1e-5,
            **LOSSES,
            "captions taken over that differ": 0.0,
            "labels": 1e-5,
            "pairs called otherwise": 0.0,
            "options": 1e-9,
        },
    ),
    "s_in2r": Part(
        rectification.in2r,
        {
            **LOSSES,
            "centred vectors": 1e-6,
            "queue": 0.0,
            "places": 0.0,
            "means of the nearest": 1e-6,
        },
    ),
    "s_in2r_step*": Part(
        in2r_step.in2r_step,
        {"options": 1e-6, "vectors": 1e-5, **STEP, "queue": 1e-5, "places": 0.0},
    ),
    "t_chan*": Part(
        newer_heads.chan,
        {
            "similarities": 1e-5,
            "word maxima": 1e-5,
            "region attention": 1e-5,
            "codes": 1e-5,
            "similarities / largest": 1e-5,
            **LOSSES,
            "gradients of a model / largest": 1e-4,
            **UPDATE,
        },
    ),
    "u_naaf*": Part(
        newer_heads.naaf_head,
        {
            "similarities": 1e-5,
            "similarities of evaluation": 1e-5,
            "parts of words": 1e-5,
            "thresholds": 1e-5,
            "captions drawn otherwise": 0.0,
            "statistics of the draws": 1e-5,
            "codes": 1e-6,
            **LOSSES,
            "gradients of a model / largest": 1e-4,
            **UPDATE,
        },
    ),
    "v_de*": Part(
        dual_encoding.dual_encoding,
        {"vectors": 1e-5, "similarities": 1e-5, "running statistics": 1e-5, **LOSSES, **UPDATE},
    ),
    "w_cream_step_*": Part(
        compared_steps.cream_step,
        # Their own float32 and float64 runs differ by 2e-5 in losses and labels of later updates,
        # and by 7e-5 in the first gradients.
        {
            "labels": 1e-4,
            "cutoffs": 1e-4,
            **STEP,
            "gradient norms, relative": 5e-4,
            "first gradients / largest": 3e-4,
            "losses of later steps, relative": 1e-4,
        },
    ),
    "w_cream*": Part(
        compared_losses.cream, {"predictions": 1e-6, **LOSSES, "pairs called otherwise": 0.0}
    ),
    "x_osa*": Part(
        clip_losses.osa_file,
        {
            "weights": 5e-5,  # t^2 (1 - t^2) cancels near 1
            "weights of the paper": 1e-6,
            "losses, relative": 2e-4,
            "gradients / largest": 1e-4,
            "thresholds, relative": 1e-5,
            "logits of the estimator, relative": 1e-5,
            "losses of the steps, relative": 2e-4,
            "first gradients / largest": 1e-4,
            "weights after / largest": 1e-4,
        },
    ),
    "z_ncu": Part(
        clip_losses.ncu,
        {
            "predictions": 1e-5,
            "pairs forgotten otherwise": 0.0,
            "plans, their iterations / largest": 1e-5,
            "plans, converged / largest": 1e-5,
            "marginals, converged, relative": 1e-5,
            "targets": 1e-5,
            **LOSSES,
        },
    ),
}

# Arrays that need not be read, in files that are compared, by the reason.
NOT_COMPARED = {
    "PyTorch's count of forward passes": ("*.num_batches_tracked",),
    "belongs to the adaptive margin, which L2RM's training does not use": (
        "*/probs",
        "*/triplet_max_violation_s_adaptive",
    ),
    "the places of the reserved images, on which the loss does not depend": ("in/*/key_img_idxs",),
    "attention of another paper, which we do not have": ("cam/CAN/*",),
    "softmax over regions; ours is SCAN's, over words": ("cam/VSACN/*",),
    "the same, in the other direction, and with the maximum only": ("coding/[TV][HS]ACoding/*",),
    "poolings over words other than the mean": ("cam/SCAN/[!Mw]*Pooling", "cam/SCAN/MaxPooling"),
    "first images of a queue as long as the batch, replaced before use": ("in/imgs_queue0",),
    "how well own/pi_converged converged": ("own/worst_marginal_err",),
    "RCSL's training does not call it": ("loss/ContrastiveLoss.*", "loss/neg_loss*"),
    "a shift, which the softmax cancels": ("*.linear1.bias",),
    "a batch normalisation that is never called": ("*.mlp.bns.1.*",),
    "names of parameters without a gradient": ("step/no_grad_params",),
    "accuracy of Bayes' rule, which a fit need not reach": ("*/oracle_accuracy",),
    "the similarities of evaluation": ("*/sigmoid",),
    "the share of the stored label, a constant here": ("opt/alpha",),
    "the weight of the divergence, a constant here": ("opt/lambda2",),
    "its rows' maxima are compared, as pairs called matched": ("*/norm_evidence*",),
    "logged only": ("*/uncertainty_f64", "*row_mean", "*col_mean"),
    "another loss of BiCro's code, which its defaults do not take": ("*/noise_hard*",),
    "their means over words count the padding, which is zero": ("predict_*/*_lengths",),
    "of a fit of ten iterations; ours runs to convergence": (
        "bmm/*/posterior_clean",
        "bmm/*/posterior_at_lowest_loss",
        "bmm/*/params",
    ),
    "logged without the labels; compared where the similarities are given": (
        "*/loss_positive_mean*",
    ),
    "the labels are compared, in which the anchors have 1": ("*/anchors", "*/rest"),
    "rows of the stored labels, which are given in order": ("*/pair_index",),
    "statistics of the batch before, which the code does not read": ("*/before/[sm]*_*",),
    "one direction of losses that are compared in both": ("*_t2i", "*_i2t", "*_[it]2[it]_f64"),
    "the vectors made of it are compared": (
        "out/eval/*_concatenated",
        "out/eval/gru_outputs_of_row0",
    ),
    "the frames are cut": ("in/frame_count_before_cut",),
    "the branch of concepts, which RCL does not use": ("hybrid/*",),
    "an option that is off by default": ("*/smooth_*",),
    "InfoNCE without soft targets, an option that is off by default": (
        "*/hard_loss*",
        "*/hard_grad",
    ),
    "the gradient without the one through the targets": ("*_grad_weights_held",),
    "inputs of values that are compared": ("*/derived/weight_*", "*/derived/soft_filter0_loss*"),
    "of a function without gradient": ("*/predict_grad",),
    "difference of the authors' float32 and float64 runs": ("noise/*",),
    "codings and poolings of CHAN's code that its published rows do not have": (
        "THACoding/*",
        "VSACoding/*",
        "VHACoding/S*Pooling/sims",
        "VHACoding/MaxPooling/sims",
    ),
    "a fit of ten iterations; ours runs to convergence": ("*/own/params_arazo10",),
    "IN2R's refiner, which is not here": (
        *("refiner/*", "opt/correction_weight", "*_refiner_[it]2[it]/*", "derived/paper_*"),
    ),
    "sums of compared losses of the two directions": ("*/loss_of_images*", "*/loss_of_texts*"),
    "the rates of the updates are given": ("step/opt/*",),
    "less than one pair to forget: theirs divides 0 by 0, ours refuses it": (
        "*/nothing_to_forget/*",
    ),
}


def kind_of(path: Path) -> str:
    """Return the kind of a file, its key in `PARTS`; "" if nothing compares it."""
    return next((kind for kind in PARTS if fnmatch(path.stem, kind)), "")


@functools.cache
def compare(path: Path) -> Arrays:
    """Compare a file, once; its arrays hold the errors.

    Raises:
      ValueError: a quantity has no tolerance.
    """
    part, arrays = PARTS[kind_of(path)], Arrays.load(path)
    part.compare(arrays)
    if unknown := arrays.errors.keys() - part.tolerance.keys():
        raise ValueError(f"{path}: no tolerance for {', '.join(sorted(unknown))}")
    return arrays


def unread(arrays: Arrays) -> list[str]:
    """Return the keys of arrays that were not read and are not in `NOT_COMPARED`."""
    patterns = [pattern for group in NOT_COMPARED.values() for pattern in group]
    return [key for key in arrays.unread if not any(fnmatch(key, each) for each in patterns)]
