"""Judge a set of new pairs by a kept judge: scores pair by pair, then the numbers of the set."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from l2rm_jax.data.features import Pixels, RegionFeatures
from l2rm_jax.data.pairs import SUSPICIOUS, Pairs
from l2rm_jax.data.vectors import Fits, are_sets
from l2rm_jax.errors import DataError
from l2rm_jax.judging.classify import kinds
from l2rm_jax.judging.content_keys import Keys, content_keys, hash_all
from l2rm_jax.judging.drift import FEWEST, draw_sample, find_drift, join_samples
from l2rm_jax.judging.judgement import MATCHED, UNLIKE, Judgement, Provenance, empty_fields
from l2rm_jax.judging.kept_judge import Judged, KeptJudge
from l2rm_jax.judging.posterior import FALSE_ALARMS
from l2rm_jax.judging.reference import fit_mixture, p_values, q_values
from l2rm_jax.judging.witnesses import likeness
from l2rm_jax.linear.rows import Rows
from l2rm_jax.linear.set_features import Pooling
from l2rm_jax.linear.threads import limit_threads
from l2rm_jax.linear.word_features import WordRows
from l2rm_jax.version import __version__

_SINGLE, _SEVERAL, _WORDS = "one vector each", "several vectors each", "texts"
LEAST_P = 0.05  # of a pair that fits like a matched one


def check_sides(judge: KeptJudge, pairs: Pairs) -> None:
    """Check that pairs have features of the same kind as the judge's.

    Raises:
      DataError: a side is of another kind or size, or of another encoder.
    """
    sizes = judge.models.image_mean.shape[1], judge.models.caption_mean.shape[1]
    for side, fit, size in zip(Fits._fields, judge.fits, sizes, strict=True):
        features = getattr(pairs, side)
        expected = _SEVERAL if isinstance(fit, Pooling) else _WORDS if fit else _SINGLE
        found = _kind(features)
        if found == _WORDS and pairs.texts is None:
            found = "numbers of words"
        if found != expected:
            raise DataError(
                f"{pairs.name}: {side}: found {found}, expected {expected}, as the pairs of the "
                "judge have"
            )
        size = fit.words.shape[1] if isinstance(fit, Pooling) else size
        if found != _WORDS and features.shape[-1] != size:
            raise DataError(
                f"{pairs.name}: {side}: found vectors with {features.shape[-1]} dimensions, "
                f"expected {size}, as the pairs of the judge have"
            )
    encoders = pairs.encoder, judge.about.encoder
    if all(encoders) and encoders[0] != encoders[1]:
        raise DataError(
            f"{pairs.name}: found vectors of the encoder {encoders[0]}, expected {encoders[1]}, "
            "which made the vectors of the judge"
        )


def _kind(features: RegionFeatures | Pixels | Rows | list | None) -> str:
    """Name the kind of images or captions, for messages."""
    if features is None or isinstance(features, list | WordRows):
        return _WORDS
    if isinstance(features, Pixels):
        return "pictures"
    return _SEVERAL if are_sets(features) else _SINGLE


def score_pairs(judge: KeptJudge, pairs: Pairs, keys: Keys | None = None) -> Judged:
    """Score pairs with one vector per image and caption; each score depends on its pair alone.

    Args:
      judge: the judge.
      pairs: the pairs.
      keys: their content hashes, if they are known.
    """
    keys = content_keys(pairs) if keys is None else keys
    image_of = pairs.image_of
    key = keys.image[image_of]
    fold, rows = judge.fold_of(key), np.arange(len(image_of))
    found = judge.scores((pairs.images, pairs.captions), image_of, rows, key, fold)
    p = p_values(found[0], judge.reference.information, judge.reference.weights())
    like, witness = np.full(len(p), np.nan, np.float32), np.zeros((len(p), 0), np.int32)
    if judge.witnesses is not None:
        like, witness = likeness(judge.witnesses, judge.model(0), pairs, keys.image)
    pair_key, sample = keys.of_pairs(image_of), draw_sample(pairs, keys)
    return Judged(p, *found, like, witness, fold, image_of, key, pair_key, sample)


@limit_threads()  # more threads would mostly wait
def finish(judge: KeptJudge, parts: Sequence[Judged]) -> Judgement:
    """Judge a set of scored pairs: rate, posterior, false discovery rates and drift.

    Args:
      judge: the judge that scored them.
      parts: the scores, in the order of the data; images are numbered on from part to part.
    """
    counts = [int(part.image_of.max(initial=-1)) + 1 for part in parts]
    starts = np.cumsum([0, *counts[:-1]])
    image_of = np.concatenate([x.image_of + at for x, at in zip(parts, starts, strict=True)])
    *columns, samples = zip(*parts, strict=True)
    p, information, similarity, contrast, like, witness, fold, _, key, pair_key = map(
        np.concatenate, columns
    )
    image = np.unique(key, return_inverse=True)[1]
    mixture = fit_mixture(information, image, judge.reference, judge.about.seed)
    q, posterior, about = q_values(p), mixture.posterior, judge.about
    sample, drift = join_samples(samples), None
    reason = (
        f"found {len(sample.key)} images, expected {FEWEST} or more for a rate and the test of "
        "drift"
    )
    if len(sample.key) >= FEWEST:
        models, known = map(judge.model, range(about.folds)), (judge.images, judge.captions)
        drift = find_drift(sample, models, known, about.temperature)
        reason = drift.reason
    least = np.ones(int(image_of.max()) + 1)
    np.minimum.at(least, image_of, posterior)
    together = np.where(np.bincount(image_of)[image_of] > 1, least[image_of], 0)
    kind = kinds(posterior, together > SUSPICIOUS, contrast, image_of)
    kind[(kind == MATCHED) & (p <= LEAST_P)] = UNLIKE
    return Judgement(
        image_of=image_of,
        fold=fold,
        group=image_of,
        similarity=similarity,
        information=information,
        posterior_set=together,
        posterior_caption=posterior,
        posterior=posterior,
        fdr=q,
        kind=kind,
        order=np.lexsort((pair_key, information)),
        conflicts=np.zeros((0, 2), np.int64),
        rate=mixture.rate,
        mechanisms=(),
        list_length=int(np.count_nonzero(q <= FALSE_ALARMS)),
        unreliable_reason=reason,
        auroc=about.auroc,
        is_rankable=drift is None or drift.is_told,
        made=Provenance(
            *(about.by, about.by, about.folds, about.seed, hash_all(pair_key), __version__),
            judge=about.data,
        ),
        upper_bound=mixture.upper_bound,
        notes=drift.notes if drift else (),
        **empty_fields(len(p)) | {"p": p, "likeness": like} | _shown(judge, witness),
    )


def _shown(judge: KeptJudge, witness: Int[np.ndarray, "pairs shown"]) -> dict[str, Any]:
    """Return the fields of a judgement with the texts of witnesses; none if they are not known."""
    texts = judge.witnesses.texts if judge.witnesses is not None else ()
    if not texts:
        return {}
    used, place = np.unique(witness, return_inverse=True)
    said = tuple(texts[caption] for caption in used)
    return {"witness": place.reshape(witness.shape).astype(np.int32), "said": said}
