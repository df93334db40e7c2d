"""DE: its encoders with the authors' inputs, losses, gradients and one update."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from l2rm_jax.losses import ranking
from l2rm_jax.methods.base import Optimiser
from l2rm_jax.models.de import FRAME_WIDTHS, WORD_WIDTHS, Levels
from l2rm_jax.published.conversion import gru_from_state_dict, linear_from_state_dict
from tests.golden.fidelity.arrays import Arrays, largest, largest_entry, tree_difference
from tests.golden.fidelity.newer_heads import one_update

MARGIN, LEARNING_RATE, GRAD_CLIP = 0.2, 1e-4, 2.0
SIDES = {"vid": ("vid_encoding", "visual_mapping"), "text": ("text_encoding", "text_mapping")}


def dual_encoding(arrays: Arrays) -> None:
    weights, out, latent = arrays.under("w/"), arrays.under("out/eval/"), arrays.under("hybrid/")
    run = _Run(arrays, weights)
    params, statistics = _params(weights), _statistics(weights)
    whole = run.inputs()
    vectors = run.evaluate(params, statistics, whole)
    out.check("similarities", vectors["vid"] @ vectors["text"].T, "sims")
    for side, name, rows in (
        ("vid", "vid_emb", "rows_without_longest"),
        ("text", "cap_emb", "caption_rows_without_longest"),
    ):
        out.check("vectors", vectors[side], name)
        latent.check("vectors", vectors[side], f"eval/{side}_latent")  # the same layers
        # In a batch without the longest ones, padding is shorter, and the vectors are others.
        fewer = run.inputs(side, arrays[f"in/{rows}"])
        shorter = run.evaluate(params, statistics, {**whole, side: fewer[side]})
        out.check("vectors", shorter[side], f"{name}_without_longest")

    stored = arrays.under("out/train/")
    grad = jax.jit(jax.value_and_grad(run.loss(statistics), (0, 1), has_aux=True))
    (_, (vectors, after)), (of_params, of_frames) = grad(params, whole["vid"][0])
    for side, name in (("vid", "vid_emb"), ("text", "cap_emb")):
        stored.check("vectors", vectors[side], name)
        latent.check("vectors", vectors[side], f"train/{side}_latent")
    sims = vectors["vid"] @ vectors["text"].T
    stored.check("similarities", sims, "sims")
    theirs = _statistics(stored.under("bn_after/"))
    stored.add("running statistics", tree_difference(after, theirs))
    for name, value in _losses(sims).items():
        stored.check("losses, relative", value, name)
    latent.check("losses, relative", _losses(sims)["loss_hard"], "train/loss_latent")

    kept = arrays["grad_frames"]
    stored.check("gradients / largest", of_frames[:, : kept.shape[1]], kept)
    theirs = _params(arrays.under("grad/"))
    stored.add("gradients / largest", tree_difference(of_params, theirs, relative=True))
    optimiser = Optimiser(LEARNING_RATE, 50, grad_clip=GRAD_CLIP)
    norm, ours = one_update(optimiser, params, of_params)
    stored.check("gradient norm, relative", norm, "grad_norm_before_clip")
    # The bias before a batch normalisation has no gradient, nor has the bias of a filter that is
    # positive for all of the batch; Adam turns their rounding into steps of the whole rate.
    least = 1e-6 * largest_entry(theirs)
    beyond = jax.tree.map(
        lambda a, b, gradient: np.max(np.abs(a - b) * (np.abs(gradient) > least)),
        ours,
        _params(arrays.under("w_after/")),
        theirs,
    )
    stored.add("weights after, beyond noise", largest(jax.tree.leaves(beyond)))


class _Run:
    """Both encoders as in the code, which does not pack the frames."""

    def __init__(self, arrays: Arrays, weights: Arrays):
        self.arrays = arrays
        shared = {"dropout": 0.0, "packed": False}
        self.levels = {}
        for side, widths in (("vid", FRAME_WIDTHS), ("text", WORD_WIDTHS)):
            encoding, mapping = SIDES[side]
            sizes = (
                weights[f"{encoding}.rnn.weight_hh_l0"].shape[1],
                widths,
                len(weights[f"{encoding}.convs1.0.bias"]),
                len(weights[f"{encoding}.{mapping}.fc1.bias"]),
            )
            self.levels[side] = Levels(*sizes, words=side == "text", **shared)
        self.table = weights["text_encoding.embed.weight"]

    def inputs(self, only: str = "", rows=slice(None)) -> dict[str, tuple]:
        """Return frames or token ids, mask and first level; of one side, only `rows` if given."""
        lengths = {"vid": self.arrays["in/video_lengths"], "text": self.arrays["in/cap_lens"]}
        sequences = {"vid": self.arrays["in/frames"], "text": self.arrays["in/captions"]}
        first = {"vid": self.arrays["in/frame_mean"], "text": self.arrays["in/bow"]}
        found = {}
        for side in SIDES:
            own = rows if side == only else slice(None)
            counts = lengths[side][own]
            longest = counts.max()
            mask = (np.arange(longest) < counts[:, None]).astype(np.float32)
            found[side] = (sequences[side][own][:, :longest], mask, first[side][own])
        if only != "vid":
            assert (found["vid"][1] == self.arrays["in/video_mask"]).all()
        return found

    def vectors(self, params: dict, statistics: dict, inputs: dict, train: bool) -> tuple:
        """Return the vectors of each side, and the running statistics after them."""
        found, after = {}, {}
        for side, levels in self.levels.items():
            sequence, mask, first = inputs[side]
            own = dict(params[side])
            if side == "text":
                sequence = jnp.asarray(own.pop("embedding"))[sequence]
            variables = {"params": own, "batch_stats": statistics[side]}
            found[side], collections = levels.apply(
                variables, sequence, jnp.asarray(mask), first, train, mutable=["batch_stats"]
            )
            after[side] = collections["batch_stats"]
        return found, after

    @partial(jax.jit, static_argnums=0)
    def evaluate(self, params: dict, statistics: dict, inputs: dict) -> dict:
        return self.vectors(params, statistics, inputs, train=False)[0]

    def loss(self, statistics: dict):
        """Return the hardest triplet loss as a function of the parameters and of the frames."""
        inputs = self.inputs()

        def loss_of(params, frames):
            given = {**inputs, "vid": (frames, *inputs["vid"][1:])}
            vectors, after = self.vectors(params, statistics, given, train=True)
            return _losses(vectors["vid"] @ vectors["text"].T)["loss_hard"], (vectors, after)

        return loss_of


def _losses(sims) -> dict:
    """Return their losses: of the hardest negatives and of all, both directions; and the means."""
    size = len(sims)
    hard = ranking.triplet_hardest(sims, margin=MARGIN)
    whole = size * ranking.triplet_mean(sims, margin=MARGIN)
    # The mean is over a direction's terms: one for each pair, or one for each pair of pairs.
    return {
        "loss_hard": hard,
        "loss_sum": whole,
        "loss_hard_mean": hard / size,
        "loss_sum_mean": whole / size**2,
    }


def _params(weights: Arrays) -> dict:
    params = {}
    for side, (encoding, mapping) in SIDES.items():
        prefix = f"{encoding}.{mapping}."
        kernels = {}
        widths = FRAME_WIDTHS if side == "vid" else WORD_WIDTHS
        for n, width in enumerate(widths):
            kernel = weights[f"{encoding}.convs1.{n}.weight"][:, 0]  # filters, width, states
            kernels[f"kernel_{width}"] = np.moveaxis(kernel, 0, 2)
            kernels[f"bias_{width}"] = weights[f"{encoding}.convs1.{n}.bias"]
        params[side] = {
            "forward": gru_from_state_dict(weights, f"{encoding}.rnn", ""),
            "backward": gru_from_state_dict(weights, f"{encoding}.rnn", "_reverse"),
            "mapping": linear_from_state_dict(weights, f"{prefix}fc1"),
            "norm": {
                "scale": weights[f"{prefix}bn_1.weight"],
                "bias": weights[f"{prefix}bn_1.bias"],
            },
            **kernels,
        }
    params["text"]["embedding"] = weights["text_encoding.embed.weight"]
    return params


def _statistics(weights: Arrays) -> dict:
    return {
        side: {
            "norm": {
                "mean": weights[f"{encoding}.{mapping}.bn_1.running_mean"],
                "var": weights[f"{encoding}.{mapping}.bn_1.running_var"],
            }
        }
        for side, (encoding, mapping) in SIDES.items()
    }
