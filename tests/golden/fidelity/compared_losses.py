"""The compared methods NCR, DECL, BiCro, CRCL, SPS and CREAM: losses, labels and splits."""

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
from l2rm_jax.methods import cream as cream_method
from l2rm_jax.methods import decl as decl_method
from l2rm_jax.methods import sps as sps_method
from l2rm_jax.models.layers import l2_normalise
from tests.golden.fidelity.arrays import Arrays, difference, more_wrong
from tests.golden.fidelity.losses import value_and_gradient

WRONG = "wrong pairs, more than the stored fit's"
OTHERWISE = "pairs called otherwise"


def ncr(arrays: Arrays) -> None:
    [margin] = arrays.numbers("in/margin")

    def functions(labels, probability, target, target_of_2022, per_pair):
        """Return losses by their names. Columns are [n, 1], targets are their labels."""

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
        stored.check("margins", margins, "margins_exponential")
        for suffix in ("", "_f64"):
            raw = np.clip(stored[f"predict_raw{suffix}"], 0, 1)
            stored.check("predictions and targets", predicted, raw)
        for name, target in {"predict": predicted, **targets}.items():
            stored.check("predictions and targets", target, name)
        stored.check_losses(values)
    _check_gaussian_mixture(arrays.under("gmm/"))
    for case in arrays.cases("pred"):
        stored = arrays.under(f"{case}/")
        stored.add(OTHERWISE, np.sum(mixture.above_threshold(stored["prob"]) != stored["pred"]))


def _check_gaussian_mixture(arrays: Arrays) -> None:
    """Compare with fits from other starts: only as closely as theirs agree between seeds."""
    for case in arrays.cases("losses"):
        stored = arrays.under(f"{case}/")
        ours = mixture.fit_gaussian(stored["losses"])
        posterior = 1 - ours.mismatched_posterior(stored["losses"])
        beyond = difference(posterior, stored["prob"]) - float(stored["spread_over_5_seeds"])
        stored.add("posteriors, beyond their spread", beyond)
        stored.check("EM iterations", ours.iterations, "n_iter")
        stored.add(WRONG, more_wrong(posterior > 0.5, stored["clean"], stored["accuracy"]))
        parameters = np.concatenate([ours.weights, ours.means, ours.variances])
        stored.check("parameters of the mixture", parameters, "params")


def beta_mixture(arrays: Arrays, accuracy: str = "own/accuracy_arazo10") -> None:
    """Compare our mixture of two betas, which converges, with theirs of ten iterations."""
    for case in arrays.cases("losses"):
        stored = arrays.under(f"{case}/")
        losses, is_clean = stored["losses"], stored["clean"] == 1
        ours = mixture.fit(losses).mismatched_posterior(losses) <= 0.5
        stored.add(WRONG, more_wrong(ours, is_clean, stored[accuracy]))


def decl(arrays: Arrays) -> None:
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
        evidence = evidential.evidence(sims, tau=tau)
        return evidence, evidential.divergence(evidence), evidential.called_matched(sims, tau=tau)

    for case in arrays.cases("raw"):
        stored = arrays.under(f"{case}/")
        raw, preds = stored["raw"], stored["preds"]
        evidence, divergence, called = call(raw)
        stored.check("evidence / largest", np.tanh(raw), "tanh", relative=False)
        stored.check("evidence / largest", evidence, "evidence")
        stored.add(OTHERWISE, np.sum(np.asarray(called) != stored["called_matched"]))
        values = {}
        for name, matched in (("all", np.ones_like(preds)), ("preds", preds)):
            values[f"edl_{name}_i2t"] = edl(raw, matched)
            value, gradient = edl(raw.T, matched)
            values[f"edl_{name}_t2i"] = value, gradient.T
        for name in stored:
            if re.fullmatch(r"rdh_\d+", name):
                values[name] = rdh(raw, int(name[4:]))
        _check_exact(stored, {"kl_i2t": divergence} | {name: x for name, (x, _) in values.items()})
        for name, (_, gradient) in values.items():
            stored.check("gradients / largest", gradient, f"{name}_grad_f64")
        for name in stored.cases("grad_f64"):
            one = stored.under(f"{name}/")
            matched = np.ones_like(preds) if name.startswith("warmup") else preds
            k = decl_method.negatives(jnp.int32(name.split("_step")[1]), len(raw))
            one.check("k that differ", min(int(k), len(raw) - 1), "negatives")
            (loss, (edl_part, rdh_part)), gradient = step(raw, matched, one["negatives"])
            parts = {"loss": loss, "loss_edl": edl_part, "loss_rdh": rdh_part}
            _check_exact(one, parts, " of a step")
            one.check("gradients of a step / largest", gradient, "grad_f64")
    arrays.check("options", decl_method.FEWEST_NEGATIVES, "opt/mu")
    arrays.check("options", decl_method.NEGATIVES_PER_STEP, "opt/eta")
    stored = arrays.under("negatives/")
    size = int(stored["batch_size"])
    k = [decl_method.negatives(jnp.int32(step), size) for step in stored["step"]]
    stored.check("k that differ", k, "count")


def _check_exact(stored: Arrays, values: dict, where: str = "") -> None:
    """Compare with float64 and, apart from that, with their float32, which has lost digits."""
    for name, value in values.items():
        stored.check(f"losses{where}, relative", value, f"{name}_f64")
        both = f"losses{where}, relative to float32"
        stored.check(both, value, stored[name], relative=True)


def bicro(arrays: Arrays) -> None:
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
        stored.check("losses, relative", per_pair, "eval_loss")
        stored.check_losses(values)
    for case in arrays.cases("labelled_y"):
        _check_consistency(arrays.under(f"{case}/"), margin, float(case.split("_tem")[1]))
    beta_mixture(arrays.under("bmm/"), "accuracy")


def _check_consistency(stored: Arrays, margin: float, smallest: float) -> None:
    anchors = stored["anchors"].astype(int)
    scores = np.asarray(ranking.unviolated_margin(stored["sims"], margin=margin))
    _, ours = consistency.order_by_sureness(stored["sims"], margin=margin)
    # Equally sure pairs have no defined order in their code, so compare the scores themselves.
    stored.check("scores of the anchors", np.sort(scores[ours]), np.sort(scores[anchors]))
    vectors = {
        side: [
            l2_normalise(jnp.mean(stored[f"{side}_{kind}"], axis=1))
            for kind in ("regions", "words")
        ]
        for side in ("labelled", "unlabelled")
    }
    of_anchors = [each[anchors] for each in vectors["labelled"]]
    ratios = {}
    for side, pairs in vectors.items():
        cosines = [v @ a.T for v, a in zip(pairs, of_anchors, strict=True)]
        for kind, ours in zip(("image", "text"), cosines, strict=True):
            stored.check("cosines", ours, f"{side}_{kind}_cosines")
        ratios[side] = consistency.consistency(*pairs, *of_anchors)
        theirs = stored[f"{side}_ratio_image"] + stored[f"{side}_ratio_text"]
        stored.check("ratios / largest", ratios[side], theirs)
    rest = stored["rest"].astype(int)
    labels = {
        "unlabelled_y": consistency.mismatched_labels(ratios["unlabelled"], smallest=smallest),
        "labelled_y": consistency.misplaced_labels(ratios["labelled"], rest, smallest=smallest),
        "derived/labelled_y_aligned": consistency.matched_labels(
            ratios["labelled"], anchors, smallest=smallest
        ),
    }
    for name, ours in labels.items():
        stored.check("labels", ours, name)


def crcl(arrays: Arrays) -> None:
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
            one.check("labels after", after, "y_after")
            for part, value in {"loss": loss, **parts}.items():
                one.check("losses, relative", value, part)
            one.check("gradients / largest", gradient, "grad_f64")


def sps(arrays: Arrays) -> None:
    tau, symmetry, structure = arrays.numbers(
        "opt/tau", "opt/weight_symmetry", "opt/weight_structure"
    )

    @jax.jit
    def evaluate(sims, labels, images, captions):
        functions = {
            "warmup": partial(contrastive.info_nce, tau=tau),
            "eval_loss": partial(contrastive.info_nce_per_pair, tau=tau),
            "weighted": partial(contrastive.info_nce, weights=labels, tau=tau),
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
        stored.check("predictions", predicted, "predict")
        stored.check_losses(values)
    for case in arrays.cases("caption_row"):
        stored = arrays.under(f"{case}/")
        noisy, clean = (
            l2_normalise(jnp.mean(stored[f"{kind}_regions"], axis=1)) for kind in ("noisy", "clean")
        )
        rows, cosines = purification.nearest(noisy, clean)
        stored.add("captions taken over that differ", np.sum(rows != stored["caption_row"]))
        probability = contrastive.pair_probabilities(stored["sims_of_rematched"], tau=tau)
        labels = purification.rematched_labels(probability, cosines)
        stored.check("labels", labels, stored["label"][:, 0])

    subsets = sps_method.subsets(arrays["split/prob"])
    for name, theirs in (("strict", "strictly_clean"), ("clean", "clean"), ("noisy", "noisy")):
        expected = np.flatnonzero(arrays[f"split/{theirs}"])
        arrays.add(OTHERWISE, len(np.setxor1d(subsets[name], expected)))
    for name in ("symmetry", "structure"):
        arrays.check("options", sps_method.PENALTY, f"opt/weight_{name}")


def cream(arrays: Arrays) -> None:
    [tau] = arrays.numbers("opt/temperature")

    @jax.jit
    def evaluate(sims, labels, small, mean):
        soft = partial(contrastive.soft_targets, labels=labels, tau=tau)
        functions = {
            "warmup": partial(contrastive.info_nce, tau=tau),
            "eval": partial(contrastive.info_nce_per_pair, tau=tau),
            "soft_filter0": partial(soft, cutoff=0.0),
            "soft_filter_small": partial(soft, cutoff=small),
            "soft_filter_mean": partial(soft, cutoff=mean),
            "soft_filter1": partial(soft, cutoff=1.0),
        }
        values = {name: value_and_gradient(f, sims) for name, f in functions.items()}
        return contrastive.pair_probabilities(sims, tau=tau), values

    for case in arrays.cases("in/sims"):
        stored = arrays.under(f"{case}/")
        sims, *cutoffs = (stored[f"in/{name}"] for name in ("sims", "filter_small", "filter_mean"))
        predicted, values = evaluate(sims, stored["in/labels"][:, 0], *cutoffs)
        stored.check("predictions", predicted, stored["predict"][0])
        for name, (value, gradient) in values.items():
            stored.check("losses, relative", value, name if name == "eval" else f"{name}_loss")
            stored.check("gradients / largest", gradient, f"{name}_grad")
    split = arrays.under("split/")
    for case in split.cases("in/prob_A"):
        stored = split.under(f"{case}/")
        subsets = cream_method.subsets(stored["in/prob_A"], stored["in/prob_B"])
        for name, members in subsets.items():
            stored.add(OTHERWISE, np.sum(members != (stored[name] == 1)))
