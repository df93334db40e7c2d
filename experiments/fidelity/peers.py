"""The compared methods NCR, DECL, BiCro, CRCL and SPS: their losses, labels and splits."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments.fidelity.arrays import Arrays, Errors, both_precisions, difference
from l2rm_jax import mixture
from l2rm_jax.losses import ranking


def ncr(arrays: Arrays) -> Errors:
    [margin] = arrays.numbers("in/margin")

    def functions(labels, probability, target, target_of_2022, per_pair):
        """Losses of similarities by their names. Columns are [n, 1], targets are their labels."""

        def hardest(labels, kind="exponential"):
            margins = ranking.soft_margin(labels, margin=margin, kind=kind)
            return lambda sims: ranking.triplet_hardest(sims, margin=margins)

        def of_row(column):  # their column is the margin of the image in both directions
            return jnp.broadcast_to(column, target.shape)

        return {
            "warmup": lambda sims: ranking.triplet_mean(sims, margin=margin),
            "eval_loss": lambda sims: ranking.per_pair_hinge(sims, margin=margin),
            "hard": lambda sims: ranking.triplet_hardest(sims, margin=margin),
            **{f"soft_{kind}": hardest(of_row(labels), kind) for kind in ranking.SOFT_MARGINS},
            "labelled_loss": hardest(target),
            "of_2022/labelled_loss": hardest(of_row(target_of_2022)),
            "derived/labelled_loss_per_pair": hardest(of_row(per_pair)),
            "derived/labelled_loss_paper": hardest(per_pair[:, 0]),
        }

    @jax.jit
    def evaluate(sims, labels, w):
        predicted = ranking.prediction(sims, margin=margin)
        targets = {
            "labelled_target": w + (1 - w) * predicted,
            "of_2022/labelled_target": w + (1 - w) * predicted[0],
            "derived/labelled_target_per_pair": w + (1 - w) * predicted[:, None],
        }
        losses = functions(labels, w, *targets.values())
        margins = ranking.soft_margin(labels, margin=margin)
        values = {name: _value_and_gradient(f, sims) for name, f in losses.items()}
        return predicted, margins, targets, values

    for case in arrays.cases("sims"):
        stored = arrays.under(f"{case}/")
        predicted, margins, targets, values = evaluate(
            stored["sims"], stored["labels"], stored["prob"]
        )
        yield "margins", difference(margins, stored["margins_exponential"])
        for suffix in ("", "_f64"):
            raw = np.clip(stored[f"predict_raw{suffix}"], 0, 1)
            yield "predictions and targets", difference(predicted, raw)
        yield "predictions and targets", both_precisions(predicted, stored, "predict")
        for name, target in targets.items():
            yield "predictions and targets", difference(target, stored[name])
        yield from _losses(values, stored)
    yield from _gaussian_mixture(arrays.under("gmm/"))
    for case in arrays.cases("pred"):
        stored = arrays.under(f"{case}/")
        called = mixture.call_matched(stored["prob"])
        yield "pairs called otherwise", np.sum(called != stored["pred"])


def _gaussian_mixture(arrays: Arrays) -> Errors:
    """Compare with fits from other starts: only as closely as theirs agree between seeds."""
    for case in arrays.cases("losses"):
        stored = arrays.under(f"{case}/")
        ours = mixture.fit_gaussian(stored["losses"])
        posterior = ours.matched_posterior(stored["losses"])
        beyond = difference(posterior, stored["prob"]) - float(stored["spread_over_5_seeds"])
        yield "posteriors, beyond their spread", max(beyond, 0.0)
        yield "EM iterations", abs(ours.iterations - stored["n_iter"])
        accuracy = np.mean((posterior > 0.5) == stored["clean"])
        yield "accuracy below the stored fit's", stored["accuracy"] - accuracy
        parameters = np.concatenate([ours.weights, ours.means, ours.variances])
        yield "parameters of the mixture", difference(parameters, stored["params"])


def _value_and_gradient(f, sims):
    """Value of a loss, and the gradient of its sum."""
    return f(sims), jax.grad(lambda sims: jnp.sum(f(sims)))(sims)


def _losses(values, stored: Arrays) -> Errors:
    for name, (value, gradient) in values.items():
        yield "losses, relative", both_precisions(value, stored, name, relative=True)
        theirs = stored[f"{name}_grad_f64"]
        yield "gradients / largest", difference(gradient, theirs, relative=True)
