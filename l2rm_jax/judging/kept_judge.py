"""A judge that is kept: score pairs that an audit has not seen, each of its pair alone.

An audit keeps the models of its folds, and of each fold a sample of images, each with one caption.
The hash of a new image chooses a fold, whose model and sample score it; an image of the audit has
its own fold. A pair of the audit that comes again has the score that it had.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float16, Float32, Int, UInt64

from l2rm_jax.data.files import open_arrays, replace_arrays
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.data.text import Vocabulary
from l2rm_jax.data.vectors import CountedWords, Fits, rows_by
from l2rm_jax.errors import DataError, expand_home
from l2rm_jax.jobs.regular_files import has_file
from l2rm_jax.judging.content_keys import places
from l2rm_jax.judging.drift import Sample
from l2rm_jax.judging.folds import assign_folds
from l2rm_jax.judging.log_odds import log_mean_exp
from l2rm_jax.judging.reference import Reference
from l2rm_jax.judging.witnesses import (
    WITNESSES_FILE,
    Witnesses,
    open_witnesses,
    write_witnesses,
)
from l2rm_jax.linear.cca import Cca
from l2rm_jax.linear.rows import Rows
from l2rm_jax.linear.set_features import Pooling
from l2rm_jax.linear.word_features import WordWeights

if TYPE_CHECKING:
    from l2rm_jax.judging.judgement import Judgement

JUDGE_FILE, FORMAT = "judge.npz", 1
FEWEST_IMAGES, FEWEST_PAIRS = 300, 500  # of a reference; pairs by their weight
_ARRAYS = "images", "captions", "image_keys", "keys", "fold"
_NAME = "fit_{}_{}"  # of an array: side and field
_BLOCK = 512  # pairs; each block is filled up, so that all have the same shape


class About(NamedTuple):
    """Facts about the audit that kept the judge; other fields as in `Judgement` and `Provenance`.

    Attributes:
      images: number of its images with captions.
      temperature: divisor of the similarities.
      encoder: hashes of the encoders of its pairs (`Pairs.encoder`).
      format: of the file.
    """

    images: int
    folds: int
    seed: int
    temperature: float
    by: str
    rate: float
    auroc: float
    unreliable_reason: str
    data: str
    version: str
    encoder: str = ""
    format: int = FORMAT


class Judged(NamedTuple):
    """Scores of pairs by a kept judge, each of its pair alone.

    Attributes:
      p: [pairs] share of the matched pairs of the reference that fit no better.
      information: [pairs] in nats; 0 is no better than a random pair.
      similarity: [pairs] cosine of image and caption.
      contrast: [pairs] how differently the images of the fold fit the caption, in nats.
      likeness: [pairs] of the caption to captions of similar trusted images; NaN without any.
      witness: [pairs, 3] captions of the most similar trusted images, as places of
        `Witnesses.texts`; [pairs, 0] without them.
      fold: [pairs] fold whose model scored the pair.
      image_of: [pairs] row of the image.
      image_key: [pairs] hash of the image.
      pair_key: [pairs] hash of the pair.
      sample: some images with captions, for the test of drift.
    """

    p: Float[np.ndarray, " pairs"]
    information: Float32[np.ndarray, " pairs"]
    similarity: Float32[np.ndarray, " pairs"]
    contrast: Float32[np.ndarray, " pairs"]
    likeness: Float32[np.ndarray, " pairs"]
    witness: Int[np.ndarray, "pairs shown"]
    fold: Int[np.ndarray, " pairs"]
    image_of: Int[np.ndarray, " pairs"]
    image_key: UInt64[np.ndarray, " pairs"]
    pair_key: UInt64[np.ndarray, " pairs"]
    sample: Sample


class KeptJudge(NamedTuple):
    """The judge that an audit keeps.

    Attributes:
      models: of the folds, stacked.
      images: [folds, R, components] codes of the sampled images of each fold, by its model.
      captions: [folds, R, components] codes of one caption of each of them.
      image_keys: [folds, R] hashes of these images.
      keys: [images] hashes of all images of the audit, ascending.
      fold: [images] fold of each of them.
      reference: information of pairs of the audit, and of known mismatches.
      about: facts about the audit.
      fits: how features become vectors.
      witnesses: trusted images with captions; None without their file.
    """

    models: Cca
    images: Float16[np.ndarray, "folds R components"]
    captions: Float16[np.ndarray, "folds R components"]
    image_keys: UInt64[np.ndarray, "folds R"]
    keys: UInt64[np.ndarray, " images"]
    fold: Int[np.ndarray, " images"]
    reference: Reference
    about: About
    fits: Fits = Fits()
    witnesses: Witnesses | None = None

    def score(
        self,
        images: Pairs | Float[np.ndarray, "images di"],
        captions: Float[np.ndarray, "pairs dc"] | Sequence[str] | None = None,
        image_of: Int[np.ndarray, " pairs"] | None = None,
    ) -> Judged:
        """Score pairs, each on its own: the result does not depend on the other pairs.

        Args:
          images: [images, di] vectors of the encoder of the reference; or pairs.
          captions: [pairs, dc] vectors.
          image_of: [pairs] row of the image of each caption; None as for `Pairs.from_arrays`.

        Raises:
          DataError: a shape or value is wrong, or the vectors have other sizes.
        """
        from l2rm_jax.judging.kept_set import check_sides, score_pairs

        is_pairs = isinstance(images, Pairs)
        pairs = images if is_pairs else Pairs.from_arrays(images, captions, image_of)
        check_sides(self, pairs)
        return score_pairs(self, rows_by(pairs, self.fits))

    def finish(self, parts: Sequence[Judged]) -> "Judgement":
        """Judge the set of all scored pairs, for example of some shards (`kept_set.finish`)."""
        from l2rm_jax.judging.kept_set import finish

        return finish(self, parts)

    def model(self, fold: int) -> Cca:
        """Return the model of a fold."""
        return Cca(*(array[fold] for array in self.models))

    def fold_of(self, keys: UInt64[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Return the fold of images by their hashes: as in the audit, or by the hash alone."""
        at, other = places(self.keys, keys), assign_folds(keys, self.about.folds, self.about.seed)
        return np.where(at < 0, other, self.fold[at])

    def scores(
        self,
        vectors: tuple[Rows, Rows],
        image: Int[np.ndarray, " n"],
        caption: Int[np.ndarray, " n"],
        key: UInt64[np.ndarray, " n"],
        fold: Int[np.ndarray, " n"],
    ) -> Float32[np.ndarray, "3 n"]:
        """Return information, similarity and contrast of images with captions.

        Args:
          vectors: [images, di] and [captions, dc].
          image: row of the image of each pair.
          caption: row of its caption.
          key: hash of the image, which is left out of the comparison with its caption.
          fold: whose model scores the pair.
        """
        found, temperature = np.empty((3, len(image)), np.float32), self.about.temperature
        for k in np.unique(fold):
            rows, codes = np.flatnonzero(fold == k), (self.images[k], self.captions[k])
            own = places(self.image_keys[k], key[rows])
            for start in range(0, len(rows), _BLOCK):
                at = np.arange(start, min(start + _BLOCK, len(rows)))
                block = np.pad(at, (0, _BLOCK - len(at)), mode="edge")
                sides = (x[r[rows[block]]] for x, r in zip(vectors, (image, caption), strict=True))
                sides = (np.asarray(x, np.float32) for x in sides)
                model, divisor = self.model(k), np.float32(temperature)
                of_block = _compare(*sides, model, *codes, own[block], divisor)
                found[:, rows[at]] = np.asarray(of_block)[:, : len(at)]
        return found


@jax.jit
def _compare(
    images: jax.Array,
    captions: jax.Array,
    model: Cca,
    reference_images: jax.Array,
    reference_captions: jax.Array,
    own: jax.Array,
    temperature: jax.Array,
) -> jax.Array:
    """Return [3, B] information, similarity and contrast of B pairs with a fold's sample.

    Args:
      images: [B, di] vectors.
      captions: [B, dc].
      model: of the fold.
      reference_images: [R, components] codes.
      reference_captions: [R, components].
      own: [B] places of the sample to leave out; -1: none.
      temperature: divisor of the similarities.
    """
    codes = model.encode_images(images), model.encode_captions(captions)
    kept = jnp.arange(len(reference_images))[None] != own[:, None]
    count = kept.sum(axis=1).astype(jnp.float32)

    def compare(codes: jax.Array, others: jax.Array) -> tuple[jax.Array, jax.Array]:
        scaled = jnp.matmul(codes, others.astype(jnp.float32).T, precision="highest") / temperature
        mean_exp = log_mean_exp(scaled, kept, axis=1)
        return mean_exp, mean_exp - jnp.sum(scaled, axis=1, where=kept) / count

    (of_image, _), (of_caption, contrast) = map(
        compare, codes, (reference_captions, reference_images)
    )
    similarity = jnp.sum(codes[0] * codes[1], axis=1)
    return jnp.stack([similarity / temperature - (of_image + of_caption) / 2, similarity, contrast])


def write_judge(directory: Path, judge: KeptJudge) -> None:
    """Write a judge to a directory: `judge.npz`, and `witnesses.npz`, which may be removed."""
    arrays = {name: getattr(judge, name) for name in _ARRAYS}
    arrays |= judge.models._asdict() | judge.reference._asdict()
    arrays |= _arrays_of(judge.fits)
    about = np.array(json.dumps(judge.about._asdict()))
    replace_arrays(directory / JUDGE_FILE, arrays | {"about": about})
    if judge.witnesses is not None:
        write_witnesses(directory / WITNESSES_FILE, judge.witnesses)


def open_judge(path: str | Path) -> KeptJudge:
    """Open the judge that an audit has kept.

    Args:
      path: the directory of the audit, or its `judge.npz`.

    Raises:
      DataError: there is no judge, its file is damaged or of a later version, or its audit cannot
        be a reference: its rate is unreliable, or it had too few pairs.
    """
    path = Path(expand_home(path))
    path = path / JUDGE_FILE if path.is_dir() else path
    with open_arrays(path, "a kept judge", "expected the judge.npz of an audit") as file:
        about: dict[str, Any] = json.loads(str(file["about"]))
        judge = None
        if about["format"] <= FORMAT:
            models, reference = (
                kind(*(file[name] for name in kind._fields)) for kind in (Cca, Reference)
            )
            arrays = [file[name] for name in _ARRAYS]
            fits = Fits(*(_read_fit(file, side) for side in Fits._fields))
            judge = KeptJudge(models, *arrays, reference, About(**about), fits)
    if judge is None:
        raise DataError(
            f"{path}: found format {about['format']}, expected at most {FORMAT}: version "
            f"{about['version']} wrote it, a later one than this"
        )
    pairs = float(judge.reference.weight.sum())
    if judge.about.unreliable_reason:
        raise DataError(
            f"{path}: found a reference with an unreliable rate ({judge.about.unreliable_reason}), "
            "expected an audit that could tell it"
        )
    if judge.about.images < FEWEST_IMAGES or pairs < FEWEST_PAIRS:
        raise DataError(
            f"{path}: found a reference of {judge.about.images:,} images and {pairs:,.0f} matched "
            f"pairs (by probability), expected at least {FEWEST_IMAGES} and {FEWEST_PAIRS}"
        )
    file = path.with_name(WITNESSES_FILE)
    return judge._replace(witnesses=open_witnesses(file)) if has_file(file) else judge


def _arrays_of(fits: Fits) -> dict[str, np.ndarray]:
    """Return the arrays of the fits by the names that `_read_fit` reads."""
    arrays = {}
    for side, fit in fits._asdict().items():
        if isinstance(fit, CountedWords):
            words = np.array(json.dumps(dict(fit.vocabulary.word2idx)))
            of_side = {"vocabulary": words, **fit.weights._asdict()}
        else:
            of_side = {} if fit is None else fit._asdict()
        arrays |= {_NAME.format(side, name): array for name, array in of_side.items()}
    return arrays


def _read_fit(file: Mapping[str, np.ndarray], side: str) -> Pooling | CountedWords | None:
    """Read how the features of a side become vectors; None for single vectors."""

    def read(*names: str) -> list[np.ndarray]:
        return [file[_NAME.format(side, name)] for name in names]

    if _NAME.format(side, "vocabulary") in file:
        words = json.loads(str(*read("vocabulary")))
        return CountedWords(Vocabulary(words), WordWeights(*read(*WordWeights._fields)))
    is_pooled = _NAME.format(side, "rotation") in file
    return Pooling(*read(*Pooling._fields)) if is_pooled else None
