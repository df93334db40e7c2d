"""The compared methods NCR, DECL, BiCro, CRCL and SPS: their losses, labels and splits."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from l2rm_jax import mixture
from l2rm_jax.losses import (
    complementary,
    consistency,
    contrastive,
    evidential,
    purification,
    ranking,
)
from l2rm_jax.methods import decl as decl_method
from l2rm_jax.methods import sps as sps_method
from l2rm_jax.models.layers import l2_normalise
from tests.golden.fidelity.arrays import Arrays, Errors, both_precisions, difference, more_wrong


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
            "labelled_target": w + (1 - w) * predicted[None],
            "of_2022/labelled_target": w + (1 - w) * predicted[0],
            "derived/labelled_target_per_pair": w + (1 - w) * predicted[:, None],
        }
        losses = functions(labels, w, *targets.values())
        margins = ranking.soft_margin(labels, margin=margin)
        values = {name: value_and_gradient(f, sims) for name, f in losses.items()}
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
        called = mixture.above_threshold(stored["prob"])
        yield "pairs called otherwise", np.sum(called != stored["pred"])


def _gaussian_mixture(arrays: Arrays) -> Errors:
    """Compare with fits from other starts: only as closely as theirs agree between seeds."""
    for case in arrays.cases("losses"):
        stored = arrays.under(f"{case}/")
        ours = mixture.fit_gaussian(stored["losses"])
        posterior = 1 - ours.mismatched_posterior(stored["losses"])
        beyond = difference(posterior, stored["prob"]) - float(stored["spread_over_5_seeds"])
        yield "posteriors, beyond their spread", max(beyond, 0.0)
        yield "EM iterations", abs(ours.iterations - stored["n_iter"])
        called = posterior > 0.5
        yield (
            "wrong pairs, more than the stored fit's",
            more_wrong(called, stored["clean"], stored["accuracy"]),
        )
        parameters = np.concatenate([ours.weights, ours.means, ours.variances])
        yield "parameters of the mixture", difference(parameters, stored["params"])


def value_and_gradient(f, sims):
    """Value of a loss, and the gradient of its sum."""
    return f(sims), jax.grad(lambda sims: jnp.sum(f(sims)))(sims)


def _losses(values, stored: Arrays) -> Errors:
    for name, (value, gradient) in values.items():
        is_zero = not stored[f"{name}_f64"].any()  # then the error is absolute
        error = both_precisions(value, stored, name, relative=not is_zero)
        yield "losses, relative", error
        theirs = stored[f"{name}_grad_f64"]
        yield "gradients / largest", difference(gradient, theirs, relative=not is_zero)


def decl(arrays: Arrays) -> Errors:
    tau, margin, weight = arrays.numbers("opt/tau", "opt/margin", "opt/lambda1")

    # Few programs, for any k and both directions, because compilation takes most of the time.
    @jax.jit
    def edl(raw, matched):
        def per_query(raw):
            return evidential.query_losses(jnp.tanh(raw), matched, tau=tau)

        return value_and_gradient(per_query, raw)

    @jax.jit
    def rdh(raw, k):
        per_pair = lambda raw: ranking.hardest_k(jnp.tanh(raw), k, margin=margin)  # noqa: E731
        return value_and_gradient(per_pair, raw)

    @jax.jit
    @partial(jax.value_and_grad, has_aux=True)
    def step(raw, matched, k):
        sims = jnp.tanh(raw)
        edl = evidential.evidential_loss(sims, matched, tau=tau)
        rdh = weight * jnp.sum(matched * ranking.hardest_k(sims, k, margin=margin))
        return edl + rdh, (edl, rdh)

    @jax.jit
    def call(raw):
        sims = jnp.tanh(raw)
        found = evidential.evidence(sims, tau=tau)
        return found, evidential.divergence(found), evidential.called_matched(sims, tau=tau)

    for case in arrays.cases("raw"):
        stored = arrays.under(f"{case}/")
        raw, preds = stored["raw"], stored["preds"]
        found, divergence, called = call(raw)
        yield "evidence / largest", difference(np.tanh(raw), stored["tanh"])
        yield "evidence / largest", both_precisions(found, stored, "evidence", relative=True)
        yield "pairs called otherwise", np.sum(np.asarray(called) != stored["called_matched"])
        values = {}
        for name, matched in (("all", np.ones_like(preds)), ("preds", preds)):
            values[f"edl_{name}_i2t"] = edl(raw, matched)
            value, gradient = edl(raw.T, matched)
            values[f"edl_{name}_t2i"] = value, gradient.T
        for name in stored:
            if re.fullmatch(r"rdh_\d+", name):
                values[name] = rdh(raw, int(name[4:]))
        yield from _exact_losses({"kl_i2t": divergence}, stored, "")
        yield from _exact_losses({name: value for name, (value, _) in values.items()}, stored, "")
        for name, (_, gradient) in values.items():
            theirs = stored[f"{name}_grad_f64"]
            yield "gradients / largest", difference(gradient, theirs, relative=True)
        for name in stored.cases("grad_f64"):
            one = stored.under(f"{name}/")
            matched = np.ones_like(preds) if name.startswith("warmup") else preds
            k = decl_method.negatives(jnp.int32(name.split("_step")[1]), len(raw))
            yield "k that differ", abs(min(int(k), len(raw) - 1) - int(one["negatives"]))
            (loss, (edl_part, rdh_part)), gradient = step(raw, matched, one["negatives"])
            parts = {"loss": loss, "loss_edl": edl_part, "loss_rdh": rdh_part}
            yield from _exact_losses(parts, one, " of a step")
            theirs = one["grad_f64"]
            yield "gradients of a step / largest", difference(gradient, theirs, relative=True)
    fewest, per_step = arrays.numbers("opt/mu", "opt/eta")
    yield "options", abs(fewest - decl_method.FEWEST_NEGATIVES)
    yield "options", abs(per_step - decl_method.NEGATIVES_PER_STEP)
    stored = arrays.under("negatives/")
    size = int(stored["batch_size"])
    k = np.array([decl_method.negatives(jnp.int32(step), size) for step in stored["step"]])
    yield "k that differ", np.max(np.abs(k - stored["count"]))


def bicro(arrays: Arrays) -> Errors:
    [margin] = arrays.numbers("opt/margin")

    @partial(jax.jit, static_argnames="shares")
    def evaluate(sims, labels, shares):
        per_pair = partial(ranking.per_pair_hinge, margin=margin)
        margins = ranking.soft_margin(labels, margin=margin)
        # Their vector is the margin of the caption in both directions.
        of_column = jnp.broadcast_to(margins, sims.shape)
        functions = {
            **{
                f"warmup_sele_{share}": lambda sims, share=share: ranking.smallest(
                    per_pair(sims), float(share)
                )
                for share in shares
            },
            "noise_soft": lambda sims: ranking.triplet_hardest(sims, margin=of_column),
        }
        return per_pair(sims), {n: value_and_gradient(f, sims) for n, f in functions.items()}

    for case in arrays.cases("noise_soft"):
        stored = arrays.under(f"{case}/")
        names = [re.fullmatch(r"warmup_sele_([0-9.]+)", key) for key in stored]
        shares = tuple(name[1] for name in names if name)
        per_pair, values = evaluate(stored["sims"], stored["labels"], shares)
        yield "losses, relative", both_precisions(per_pair, stored, "eval_loss", relative=True)
        yield from _losses(values, stored)
    for case in arrays.cases("labelled_y"):
        yield from _consistency(arrays.under(f"{case}/"), margin, float(case.split("_tem")[1]))
    yield from _beta_mixture(arrays.under("bmm/"))


def _consistency(stored: Arrays, margin: float, smallest: float) -> Errors:
    anchors = stored["anchors"].astype(int)
    scores = np.asarray(ranking.unviolated_margin(stored["sims"], margin=margin))
    _, ours = consistency.order_by_sureness(stored["sims"], margin=margin)
    # Equally sure pairs have no defined order in their code, so compare the scores themselves.
    yield "scores of the anchors", difference(np.sort(scores[ours]), np.sort(scores[anchors]))
    vectors = {
        side: [
            l2_normalise(jnp.mean(stored[f"{side}_{kind}"], axis=1))
            for kind in ("regions", "words")
        ]
        for side in ("labelled", "unlabelled")
    }
    of_anchors = [each[anchors] for each in vectors["labelled"]]
    found = {}
    for side, pairs in vectors.items():
        cosines = [v @ a.T for v, a in zip(pairs, of_anchors, strict=True)]
        for kind, ours in zip(("image", "text"), cosines, strict=True):
            yield "cosines", difference(ours, stored[f"{side}_{kind}_cosines"])
        found[side] = consistency.consistency(*pairs, *of_anchors)
        theirs = stored[f"{side}_ratio_image"] + stored[f"{side}_ratio_text"]
        yield "ratios / largest", difference(found[side], theirs, relative=True)
    labels = consistency.mismatched_labels(found["unlabelled"], smallest=smallest)
    yield "labels", both_precisions(labels, stored, "unlabelled_y")
    rest = stored["rest"].astype(int)
    labels = consistency.misplaced_labels(found["labelled"], rest, smallest=smallest)
    yield "labels", both_precisions(labels, stored, "labelled_y")
    labels = consistency.matched_labels(found["labelled"], anchors, smallest=smallest)
    yield "labels", difference(labels, stored["derived/labelled_y_aligned"])


def _beta_mixture(arrays: Arrays) -> Errors:
    """Our mixture of two betas, which converges, against theirs of ten iterations."""
    for case in arrays.cases("losses"):
        stored = arrays.under(f"{case}/")
        losses, is_clean = stored["losses"], stored["clean"] == 1
        ours = mixture.fit(losses).mismatched_posterior(losses) <= 0.5
        yield (
            "wrong pairs, more than the stored fit's",
            more_wrong(ours, is_clean, stored["accuracy"]),
        )


def crcl(arrays: Arrays) -> Errors:
    [tau] = arrays.numbers("opt/tau")
    last_warm = int(arrays["opt/warm_epoch"]) - 1
    situations = (
        f"warm_epoch{last_warm - 1}",
        "last_warm_epoch",
        "last_warm_epoch_schedule1",
        "refining",
    )

    @jax.jit
    def step(sims, stored, warm):
        probabilities = contrastive.pair_probabilities(sims, tau=tau)
        labels = complementary.refined_labels(stored, probabilities, warm=warm)

        def whole(sims):
            active, negative = complementary.active_complementary(sims, labels, tau=tau)
            return active + complementary.NEGATIVE_WEIGHT * negative, negative

        (loss, negative), gradient = jax.value_and_grad(whole, has_aux=True)(sims)
        positive = contrastive.info_nce(sims, tau=tau)
        parts = {"loss_positive_mean": positive, "loss_negative_mean": negative}
        return loss, gradient, probabilities, labels, parts

    for case in arrays.cases("sims"):
        stored = arrays.under(f"{case}/")
        for name in situations:
            one = stored.under(f"{name}/")
            loss, gradient, probabilities, labels, parts = step(
                stored["sims"], stored["y_last"].astype(np.float32), name != "refining"
            )
            after = probabilities if name == "last_warm_epoch" else labels
            yield "labels after", difference(after, one["y_after"])
            yield "losses, relative", both_precisions(loss, one, "loss", relative=True)
            for part, value in parts.items():
                yield "losses, relative", difference(value, one[part], relative=True)
            yield "gradients / largest", difference(gradient, one["grad_f64"], relative=True)


def sps(arrays: Arrays) -> Errors:
    tau, symmetry, structure = arrays.numbers(
        "opt/tau", "opt/weight_symmetry", "opt/weight_structure"
    )

    @jax.jit
    def evaluate(sims, labels, images, captions):
        functions = {
            "warmup": partial(contrastive.info_nce, tau=tau),
            "eval_loss": partial(contrastive.info_nce_per_pair, tau=tau),
            "weighted": partial(contrastive.weighted_info_nce, labels=labels, tau=tau),
            "symmetry": lambda sims: symmetry * purification.symmetry(sims),
        }
        values = {name: value_and_gradient(f, sims) for name, f in functions.items()}

        def of_vectors(images):
            vectors = l2_normalise(images), l2_normalise(captions)
            return structure * purification.structure(*vectors)

        values["structure"] = value_and_gradient(of_vectors, images)
        return contrastive.pair_probabilities(sims, tau=tau), values

    for case in arrays.cases("sims"):
        stored = arrays.under(f"{case}/")
        vectors = stored["image_vectors"], stored["text_vectors"]
        predicted, values = evaluate(stored["sims"], stored["labels"][:, 0], *vectors)
        yield "predictions", both_precisions(predicted, stored, "predict")
        yield from _losses(values, stored)
    for case in arrays.cases("caption_row"):
        stored = arrays.under(f"{case}/")
        noisy, clean = (
            l2_normalise(jnp.mean(stored[f"{kind}_regions"], axis=1)) for kind in ("noisy", "clean")
        )
        rows, cosines = purification.nearest(noisy, clean)
        yield "captions taken over that differ", np.sum(rows != stored["caption_row"])
        probability = contrastive.pair_probabilities(stored["sims_of_rematched"], tau=tau)
        labels = purification.rematched_labels(probability, cosines)
        yield "labels", difference(labels, stored["label"][:, 0])

    subsets = sps_method.subsets(arrays["split/prob"])
    for name, theirs in (("strict", "strictly_clean"), ("clean", "clean"), ("noisy", "noisy")):
        expected = np.flatnonzero(arrays[f"split/{theirs}"])
        yield "pairs called otherwise", len(np.setxor1d(subsets[name], expected))
    yield "options", abs(symmetry - sps_method.PENALTY) + abs(structure - sps_method.PENALTY)


def _exact_losses(values: dict, stored: Arrays, what: str) -> Errors:
    """Compare with float64 and, apart from that, with their float32, which has lost digits."""
    for name, value in values.items():
        error = difference(value, stored[f"{name}_f64"], relative=True)
        yield f"losses{what}, relative", error
        error = difference(value, stored[name], relative=True)
        yield f"losses{what}, relative to float32", error
