"""Make the judge that an audit keeps, of its models and its pairs."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Int

from l2rm_jax.data.pairs import SUSPICIOUS, Pairs
from l2rm_jax.judging.content_keys import Keys
from l2rm_jax.judging.detectors import COSINE, LINEAR, Scorer
from l2rm_jax.judging.folds import FoldPairs, Folds, first_pairs
from l2rm_jax.judging.judgement import Judgement
from l2rm_jax.judging.kept_judge import About, KeptJudge
from l2rm_jax.judging.linear import encode_rows
from l2rm_jax.judging.log_odds import TEMPERATURE
from l2rm_jax.judging.reference import Reference
from l2rm_jax.judging.witnesses import find_witnesses
from l2rm_jax.linear.cca import Cca
from l2rm_jax.linear.rows import BLOCK, Rows, unit_rows
from l2rm_jax.linear.threads import limit_threads

_PAIRS = 50_000  # most pairs whose information is kept
_RANKED = 64  # captions that share the ranks of their similar images
_ROUNDING = 1e-6  # of a sum
# Ranks of similar images, as shares of the sample.
_VERY_SIMILAR, _SIMILAR = (0.002, 0.02), (0.02, 0.2)


@limit_threads()  # more threads would mostly wait
def keep_judge(
    found: Judgement,
    scorer: Scorer,
    models: Sequence[Cca],
    pairs: Pairs,
    folds: Folds,
    drawn: Mapping[int, FoldPairs],
    keys: Keys,
) -> KeptJudge | None:
    """Make the judge of judged pairs; None if the detector is neither `linear` nor `cosine`.

    Args:
      found: the judgement of the pairs.
      scorer: scorer of the detector.
      models: linear models of the folds; cosines of the vectors themselves need none.
      pairs: the judged pairs, as vectors.
      folds: fold and group of each image.
      drawn: pairs and sample of each fold.
      keys: content hashes.
    """
    if scorer.name not in (LINEAR, COSINE):
        return None
    temperature, posterior, made = TEMPERATURE, found.posterior, found.made
    if scorer.name == COSINE:
        size, temperature = pairs.images.shape[1], scorer.model_of(min(drawn)).temperature
        side = np.zeros(size, np.float32), np.eye(size, dtype=np.float32)
        models = [Cca(*side, *side, np.zeros(0, np.float32))] * len(drawn)
    stored = np.unique(folds.image_of)
    about = About(
        *(len(stored), made.folds, made.seed, float(temperature), made.by, found.rate.estimate),
        *(found.auroc, found.unreliable_reason, keys.of_all(folds.image_of)),
        *(made.version, pairs.encoder),
    )
    stored = stored[np.argsort(keys.image[stored])]
    samples = [(here.images[here.references], here.pairs[here.replaced]) for here in drawn.values()]
    codes = [
        (model.encode_images(pairs.images[i]), model.encode_captions(pairs.captions[c]))
        for model, (i, c) in zip(models, samples, strict=True)
    ]
    nothing = np.zeros(0, np.float32)
    judge = KeptJudge(
        Cca(*(np.stack(part).astype(np.float32) for part in zip(*models, strict=True))),
        *(np.stack(side).astype(np.float16) for side in zip(*codes, strict=True)),
        np.stack([keys.image[images] for images, _ in samples]),
        keys.image[stored],
        folds.image_fold[stored].astype(np.int8),
        Reference(*[nothing] * len(Reference._fields)),
        about,
    )
    kept = {k: first_pairs(here, _PAIRS // len(drawn)) for k, here in drawn.items()}
    rows = np.concatenate([here.pairs for here in kept.values()])
    image, fold = folds.image_of[rows], folds.of_pair[rows]
    vectors = pairs.images, pairs.captions
    information = judge.scores(vectors, image, rows, keys.image[image], fold)[0]
    wrong = []
    for k, here in kept.items():
        others = _other_images(pairs, here, folds, posterior, [about.seed, k])
        wrong.append(_mismatched(judge, k, pairs.captions, here, others))
    weight = (1 - posterior[rows]).astype(np.float32)
    number = np.unique(image, return_inverse=True)[1].astype(np.int32)
    return judge._replace(
        reference=Reference(information, weight, number, *np.concatenate(wrong).T.copy()),
        witnesses=find_witnesses(judge.model(0), pairs, keys, posterior),
    )


def _mismatched(
    judge: KeptJudge,
    fold: int,
    captions: Rows,
    here: FoldPairs,
    others: Int[np.ndarray, "n k"],
) -> Float32[np.ndarray, "n k"]:
    """Return the information of the captions of a fold with images of its sample.

    It is `KeptJudge.scores` of these pairs, compared without either image, up to rounding errors.

    Args:
      judge: the judge, whose sample it is.
      fold: number of the fold.
      captions: vectors of all captions.
      here: the fold.
      others: places of the images in the sample.
    """
    temperature, model = np.float32(judge.about.temperature), judge.model(fold)
    images, sample = (side[fold].astype(np.float32) for side in (judge.images, judge.captions))
    of_image, count = _Exponentials.of(images @ sample.T / temperature), len(images)
    place = np.full(len(here.images), -1)
    place[here.references] = np.arange(count)
    own, information = place[here.position], []
    for start in range(0, len(own), BLOCK):
        at = slice(start, start + BLOCK)
        codes = encode_rows(model.encode_captions, captions, here.pairs[at])
        scaled = np.asarray(codes) @ images.T / temperature
        of_caption, row = _Exponentials.of(scaled), np.arange(len(scaled))[:, None]
        other, mine = others[at], np.broadcast_to(own[at, None], others[at].shape)
        means = of_image.without(other, other, mine) + of_caption.without(row, other, mine)
        information.append(scaled[row, other] - means / 2)
    return np.concatenate(information)


class _Exponentials(NamedTuple):
    """Exponentials of a matrix, relative to the highest value of each row, and their sums."""

    values: Float32[np.ndarray, "n R"]
    total: Float32[np.ndarray, " n"]
    highest: Float32[np.ndarray, " n"]

    @classmethod
    def of(cls, scaled: Float32[np.ndarray, "n R"]) -> "_Exponentials":
        """Return the exponentials of scaled similarities."""
        highest = scaled.max(axis=1)
        values = np.exp(scaled - highest[:, None])
        return cls(values, values.sum(axis=1), highest)

    def without(self, row: np.ndarray, *places: np.ndarray) -> Float32[np.ndarray, "n k"]:
        """Return the log-mean-exp of rows without some places; -1 leaves nothing out."""
        left, count = self.total[row], np.full(row.shape, self.values.shape[1], np.float32)
        for place in places:
            left = left - np.where(place < 0, 0, self.values[row, place])
            count = count - (place >= 0)
        least = _ROUNDING * self.total[row]
        return np.log(np.maximum(left, least)) + self.highest[row] - np.log(count)


def _other_images(
    pairs: Pairs,
    here: FoldPairs,
    folds: Folds,
    posterior: Float[np.ndarray, " pairs"],
    seed: Sequence[int],
) -> Int[np.ndarray, "n 4"]:
    """Return a random, a similar, a very similar and the second most similar image of captions.

    They are places in the sample.

    Images of the sample are ranked by the cosine of the caption with the mean vector of their
    captions; those whose captions are mostly suspicious are not similar to anything.
    """
    count = len(here.references)
    rng, n = np.random.default_rng(seed), len(here.pairs)
    every = np.flatnonzero(np.isin(here.position, here.references))
    of_sample = np.searchsorted(here.references, here.position[every])
    centre = np.asarray(pairs.captions[here.pairs[here.captions]], np.float32).mean(axis=0)
    total, trust = np.zeros((count, len(centre)), np.float32), np.zeros(count)
    np.add.at(total, of_sample, unit_rows(pairs.captions[here.pairs[every]] - centre))
    np.add.at(trust, of_sample, 1 - posterior[here.pairs[every]])
    trust = trust / np.bincount(of_sample, minlength=count) >= 1 - SUSPICIOUS
    means, group = unit_rows(total), folds.image_group[here.images[here.references]]
    near = 1, max(4, round(_VERY_SIMILAR[1] * count))
    far = near[1] - 1, max(near[1] + 1, round(_SIMILAR[1] * count))
    found = np.empty((n, 4), np.int64)
    found[:, 0] = here.wrong[here.position, rng.integers(0, here.wrong.shape[1], n)]
    for start in range(0, n, _RANKED):
        rows = slice(start, start + _RANKED)
        likeness = unit_rows(pairs.captions[here.pairs[rows]] - centre) @ means.T
        own = folds.image_group[here.images[here.position[rows]]]
        likeness[~trust[None] | (own[:, None] == group)] = -np.inf
        ranks = np.minimum([rng.integers(*far), rng.integers(*near), 1], count - 1)
        ranked = np.argpartition(-likeness, np.unique(ranks), axis=1)
        found[rows, 1:] = ranked[:, ranks]
    return found
