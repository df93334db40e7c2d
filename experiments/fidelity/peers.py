"""The compared methods NCR, DECL, BiCro, CRCL and SPS: their losses, labels and splits."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from experiments.fidelity.arrays import Arrays, Errors, both_precisions, difference
from l2rm_jax import mixture
from l2rm_jax.losses import complementary, consistency, contrastive, evidential, ranking
from l2rm_jax.models.layers import l2_normalise

NEGATIVE_WEIGHT = 5.0  # of CRCL's complementary loss, whose file has it without the weight


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
        is_zero = not stored[f"{name}_f64"].any()  # then the error is absolute
        error = both_precisions(value, stored, name, relative=not is_zero)
        yield "losses, relative", error
        theirs = stored[f"{name}_grad_f64"]
        yield "gradients / largest", difference(gradient, theirs, relative=not is_zero)


def decl(arrays: Arrays) -> Errors:
    tau, margin, weight, rate = arrays.numbers("opt/tau", "opt/margin", "opt/lambda1", "opt/eta")
    settings = {"every": round(1 / rate), "least": int(arrays["opt/mu"])}

    # Few programs, for any k and both directions, because compilation takes most of the time.
    @jax.jit
    def edl(raw, matched):
        def per_query(raw):
            found = evidential.evidence(jnp.tanh(raw), tau=tau)
            return evidential.evidential_per_query(found, matched)

        return _value_and_gradient(per_query, raw)

    @jax.jit
    def rdh(raw, k):
        per_pair = lambda raw: ranking.hardest_k(jnp.tanh(raw), k, margin=margin)  # noqa: E731
        return _value_and_gradient(per_pair, raw)

    @jax.jit
    @partial(jax.value_and_grad, has_aux=True)
    def step(raw, matched, k):
        t = jnp.tanh(raw)
        edl = evidential.evidential_loss(t, matched, tau=tau)
        rdh = weight * jnp.sum(matched * ranking.hardest_k(t, k, margin=margin))
        return edl + rdh, (edl, rdh)

    @jax.jit
    def call(raw, probability):
        t, found = jnp.tanh(raw), evidential.evidence(jnp.tanh(raw), tau=tau)
        return (
            evidential.logit_tanh(probability),
            found,
            evidential.divergence_from_none(found),
            evidential.called_matched(t, tau=tau),
        )

    for case in arrays.cases("raw"):
        stored = arrays.under(f"{case}/")
        raw, preds = stored["raw"], stored["preds"]
        t, found, divergence, called = call(raw, stored["sigmoid"])
        yield "tanh from the sigmoid", difference(t, stored["tanh"])
        yield "evidence / largest", both_precisions(found, stored, "evidence", relative=True)
        yield "pairs called otherwise", np.sum(called != stored["called_matched"])
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
            kind, count = name.split("_step")
            matched = np.ones_like(preds) if kind == "warmup" else preds
            k = ranking.shrinking_count(int(count), len(raw), **settings)
            yield "k that differ", abs(int(k) - one["negatives"])
            (loss, (edl_part, rdh_part)), gradient = step(raw, matched, k)
            parts = {"loss": loss, "loss_edl": edl_part, "loss_rdh": rdh_part}
            yield from _exact_losses(parts, one, " of a step")
            theirs = one["grad_f64"]
            yield "gradients of a step / largest", difference(gradient, theirs, relative=True)
    stored = arrays.under("negatives/")
    k = ranking.shrinking_count(stored["step"], int(stored["batch_size"]), **settings)
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
        return per_pair(sims), {n: _value_and_gradient(f, sims) for n, f in functions.items()}

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


def _consistency(stored: Arrays, margin: float, threshold: float) -> Errors:
    anchors = stored["anchors"].astype(int)
    order = jnp.concatenate([anchors, stored["rest"].astype(int)])
    ours = consistency.anchor_order(stored["sims"], margin=margin)[: len(anchors)]
    scores = np.asarray(ranking.unviolated_margin(stored["sims"], margin=margin))
    # Pairs of equal score have no defined order in their code, so compare the scores themselves.
    yield "scores of the anchors", difference(scores[ours], scores[anchors])
    vectors = {
        f"{side}_{kind}": l2_normalise(jnp.mean(stored[f"{side}_{kind}"], axis=1))
        for side in ("labelled", "unlabelled")
        for kind in ("regions", "words")
    }
    of_anchors = vectors["labelled_regions"][anchors], vectors["labelled_words"][anchors]
    for side in ("labelled", "unlabelled"):
        pairs = vectors[f"{side}_regions"], vectors[f"{side}_words"]
        cosines = [v @ a.T for v, a in zip(pairs, of_anchors, strict=True)]
        for kind, ours in zip(("image", "text"), cosines, strict=True):
            yield "cosines", difference(ours, stored[f"{side}_{kind}_cosines"])
        ratios = (stored[f"{side}_ratio_image"] + stored[f"{side}_ratio_text"]) / 2
        agreement = consistency.agreement(*pairs, *of_anchors)
        yield "ratios / largest", difference(agreement, ratios, relative=True)
    labels = consistency.labels_of_mismatched(*pairs, *of_anchors, threshold=threshold)
    yield "labels", both_precisions(labels, stored, "unlabelled_y")
    pairs = vectors["labelled_regions"], vectors["labelled_words"]
    label = partial(consistency.labels_of_matched, *pairs, order, threshold=threshold)
    yield "labels", both_precisions(label(aligned=False), stored, "labelled_y")
    yield "labels", difference(label(), stored["derived/labelled_y_aligned"])


def _beta_mixture(arrays: Arrays) -> Errors:
    """Our mixture of two betas, which converges, against theirs of ten iterations."""
    for case in arrays.cases("losses"):
        stored = arrays.under(f"{case}/")
        losses, is_clean = stored["losses"], stored["clean"] == 1
        ours = mixture.fit(losses).mismatched_posterior(losses) <= 0.5
        yield "accuracy below the stored fit's", stored["accuracy"] - np.mean(ours == is_clean)


def crcl(arrays: Arrays) -> Errors:
    tau, momentum = arrays.numbers("opt/tau", "opt/alpha")
    last_warm = int(arrays["opt/warm_epoch"]) - 1
    situations = {  # keep, replace
        f"warm_epoch{last_warm - 1}": (True, False),
        "last_warm_epoch": (True, True),
        "last_warm_epoch_schedule1": (True, False),
        "refining": (False, False),
    }

    @jax.jit
    def step(sims, stored, keep, replace):
        predicted = contrastive.matched_probability(sims, tau=tau)
        labels, after = complementary.updated_labels(
            stored, predicted, momentum=momentum, keep=keep, replace=replace
        )
        loss, gradient = jax.value_and_grad(complementary.active_complementary)(
            sims, labels, tau=tau
        )
        weighted = contrastive.info_nce(sims, tau=tau, weights=labels)
        parts = {
            "loss_positive_mean": contrastive.info_nce(sims, tau=tau),
            "loss_negative_mean": (loss - weighted) / NEGATIVE_WEIGHT,
        }
        return loss, gradient, after, parts

    for case in arrays.cases("sims"):
        stored = arrays.under(f"{case}/")
        for name, flags in situations.items():
            one = stored.under(f"{name}/")
            loss, gradient, after, parts = step(
                stored["sims"], stored["y_last"].astype(np.float32), *flags
            )
            yield "losses, relative", both_precisions(loss, one, "loss", relative=True)
            for part, value in parts.items():
                yield "losses, relative", difference(value, one[part], relative=True)
            yield "gradients / largest", difference(gradient, one["grad_f64"], relative=True)
            yield "labels after", difference(after, one["y_after"])


def sps(arrays: Arrays) -> Errors:
    tau, symmetry, structure = arrays.numbers(
        "opt/tau", "opt/weight_symmetry", "opt/weight_structure"
    )

    @jax.jit
    def evaluate(sims, labels, images, captions):
        functions = {
            "warmup": partial(contrastive.info_nce, tau=tau),
            "eval_loss": partial(contrastive.info_nce_per_pair, tau=tau),
            "weighted": partial(contrastive.info_nce, tau=tau, weights=labels),
            "symmetry": lambda sims: symmetry * contrastive.symmetry(sims),
        }
        values = {name: _value_and_gradient(f, sims) for name, f in functions.items()}

        def of_vectors(images):
            v, t = l2_normalise(images), l2_normalise(captions)
            return structure * contrastive.structure(v @ v.T, t @ t.T)

        values["structure"] = _value_and_gradient(of_vectors, images)
        return contrastive.matched_probability(sims, tau=tau), values

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
        rows, cosines = consistency.nearest_image(noisy, clean)
        yield "captions taken over that differ", np.sum(rows != stored["caption_row"])
        probability = contrastive.matched_probability(stored["sims_of_rematched"], tau=tau)
        labels = consistency.labels_of_taken_over(probability, cosines)
        yield "labels", difference(labels, stored["label"][:, 0])
    subsets = mixture.split_in_three(arrays["split/prob"])
    for name, theirs in (("strict", "strictly_clean"), ("clean", "clean"), ("noisy", "noisy")):
        yield "pairs called otherwise", np.sum(subsets[name] != arrays[f"split/{theirs}"])


def _exact_losses(values: dict, stored: Arrays, what: str) -> Errors:
    """Compare with float64 and, apart from that, with their float32, which has lost digits."""
    for name, value in values.items():
        error = difference(value, stored[f"{name}_f64"], relative=True)
        yield f"losses{what}, relative", error
        error = difference(value, stored[name], relative=True)
        yield f"losses{what}, relative to float32", error
