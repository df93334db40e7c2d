"""A judge that is kept: score pairs that an audit has not seen, one by one, and then as a set.

An audit keeps the models of its folds, and of each fold a sample of images, each with one caption.
The hash of a new image chooses a fold, whose model and sample score it; an image of the audit has
its own fold. So a score depends on the pair alone, and a pair of the audit that comes again has the
score that it had. `conformal` compares scores with those of the audit's pairs, `known_mixture`
estimates the rate, and `drift` tests whether new pairs are comparable.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float16, Float32, Int, UInt64

from l2rm_jax.data.files import open_arrays, replace_arrays
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.errors import DataError, expand_home
from l2rm_jax.judging.conformal import per_image
from l2rm_jax.judging.content_keys import Keys
from l2rm_jax.judging.drift import Codes
from l2rm_jax.judging.folds import assign_folds
from l2rm_jax.judging.known_mixture import Reference
from l2rm_jax.judging.witnesses import (
    WITNESSES_FILE,
    Witnesses,
    open_witnesses,
    write_witnesses,
)
from l2rm_jax.linear.cca import Cca
from l2rm_jax.linear.rows import Rows

if TYPE_CHECKING:
    from l2rm_jax.judging.judgement import Judgement

JUDGE_FILE = "judge.npz"
FORMAT = 1
FEWEST_IMAGES, FEWEST_PAIRS = 300, 500  # of a reference; pairs by their weight
_BLOCK = 512  # pairs; each block is filled up, so that all have the same shape
_SAMPLE = 1000  # most images of a set for the test of drift


class About(NamedTuple):
    """Facts about the audit that kept the judge.

    Attributes:
      images: number of its images with captions.
      pairs: number of its pairs.
      folds: number of its folds.
      seed: its seed.
      temperature: divisor of the similarities.
      by: scorer that the detector chose.
      rate: share of its pairs that match no better than random pairs.
      auroc: detection quality (`Judgement.auroc`).
      unreliable_reason: why its rate is unreliable; "" if it is reliable.
      data: hash of its pairs.
      version: version of this package.
      format: of the file.
    """

    images: int
    pairs: int
    folds: int
    seed: int
    temperature: float
    by: str
    rate: float
    auroc: float
    unreliable_reason: str
    data: str
    version: str
    format: int = FORMAT


class Sample(NamedTuple):
    """Up to 1000 images of a set, those with the smallest keys, with one caption each."""

    key: UInt64[np.ndarray, " q"]
    images: Float32[np.ndarray, "q di"]
    captions: Float32[np.ndarray, "q dc"]


class Judged(NamedTuple):
    """Scores of pairs by a kept judge: each of its pair alone.

    Attributes:
      p: [pairs] share of the matched pairs of the reference that fit no better.
      information: [pairs] in nats; 0 is no better than a random pair.
      similarity: [pairs] cosine of image and caption.
      contrast: [pairs] how differently the images of the fold fit the caption, in nats.
      fold: [pairs] fold whose model scored the pair.
      image_of: [pairs] row of the image.
      image_key: [pairs] hash of the image.
      pair_key: [pairs] hash of the pair.
      likeness: [pairs] of the caption to captions of similar trusted images; NaN without any.
      sample: some images with captions, for the test of drift.
    """

    p: Float[np.ndarray, " pairs"]
    information: Float32[np.ndarray, " pairs"]
    similarity: Float32[np.ndarray, " pairs"]
    contrast: Float32[np.ndarray, " pairs"]
    fold: Int[np.ndarray, " pairs"]
    image_of: Int[np.ndarray, " pairs"]
    image_key: UInt64[np.ndarray, " pairs"]
    pair_key: UInt64[np.ndarray, " pairs"]
    likeness: Float32[np.ndarray, " pairs"]
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
    witnesses: Witnesses | None = None

    def model(self, fold: int) -> Cca:
        """Return the model of a fold."""
        return Cca(*(array[fold] for array in self.models))

    def score(
        self,
        images: Pairs | Float[np.ndarray, "images di"],
        captions: Float[np.ndarray, "pairs dc"] | None = None,
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
        from l2rm_jax.judging.kept_set import score_pairs

        is_pairs = isinstance(images, Pairs)
        return score_pairs(
            self, images if is_pairs else Pairs.from_arrays(images, captions, image_of)
        )

    def finish(self, parts: Sequence[Judged]) -> "Judgement":
        """Judge the set of all scored pairs: rate, posterior, false discovery rates and kinds.

        Args:
          parts: results of `score`, for example one per shard. Images are numbered on from part to
            part.
        """
        from l2rm_jax.judging.kept_set import finish

        return finish(self, parts)

    def fold_models(self) -> list[Cca]:
        """Return the models of the folds."""
        return [*map(self.model, range(self.about.folds))]

    def fold_of(self, keys: UInt64[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Return the fold of images by their hashes: as in the audit, or by the hash alone."""
        at = np.searchsorted(self.keys, keys).clip(max=len(self.keys) - 1)
        other = assign_folds(keys, self.about.folds, self.about.seed)
        return np.where(self.keys[at] == keys, self.fold[at], other)

    def weights(self) -> Float[np.ndarray, " n"]:
        """Return the weights of the pairs of the reference, each image with the same total."""
        return per_image(self.reference.weight, self.reference.image)

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
        found = np.empty((3, len(image)), np.float32)
        for k in np.unique(fold):
            rows, temperature = np.flatnonzero(fold == k), np.float32(self.about.temperature)
            own, codes = _places(self.image_keys[k], key[rows]), (self.images[k], self.captions[k])
            for start in range(0, len(rows), _BLOCK):
                at = np.arange(start, min(start + _BLOCK, len(rows)))
                block = np.pad(at, (0, _BLOCK - len(at)), mode="edge")
                sides = (x[r[rows[block]]] for x, r in zip(vectors, (image, caption), strict=True))
                sides = (np.asarray(x, np.float32) for x in sides)
                of_block = _compare(*sides, self.model(k), *codes, own[block], temperature)
                found[:, rows[at]] = np.asarray(of_block)[:, : len(at)]
        return found

    def codes(self, sample: Sample) -> list[Codes]:
        """Return the codes of a sample by the model of each fold, for `find_drift`."""
        return [
            (
                np.asarray(m.encode_images(sample.images)),
                np.asarray(m.encode_captions(sample.captions)),
            )
            for m in self.fold_models()
        ]

    def own_codes(self) -> list[Codes]:
        """Return the codes of the sample of each fold, as `codes`."""
        sides = (x.astype(np.float32) for x in (self.images, self.captions))
        return [*zip(*sides, strict=True)]


def _places(
    keys: UInt64[np.ndarray, " R"], wanted: UInt64[np.ndarray, " n"]
) -> Int[np.ndarray, " n"]:
    """Return the place of each wanted key, or -1."""
    order = np.argsort(keys)
    at = order[np.searchsorted(keys, wanted, sorter=order).clip(max=len(keys) - 1)]
    return np.where(keys[at] == wanted, at, -1)


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
    others = reference_captions, reference_images
    kept = jnp.arange(len(reference_images))[None] != own[:, None]
    count = kept.sum(axis=1).astype(jnp.float32)

    def compare(codes: jax.Array, others: jax.Array) -> tuple[jax.Array, jax.Array]:
        scaled = jnp.matmul(codes, others.astype(jnp.float32).T, precision="highest") / temperature
        mean_exp = jax.nn.logsumexp(scaled, axis=1, where=kept) - jnp.log(count)
        return mean_exp, mean_exp - jnp.sum(scaled, axis=1, where=kept) / count

    (of_image, _), (of_caption, contrast) = map(compare, codes, others)
    similarity = jnp.sum(codes[0] * codes[1], axis=1)
    return jnp.stack([similarity / temperature - (of_image + of_caption) / 2, similarity, contrast])


def sample_of(pairs: Pairs, keys: Keys, image: Int[np.ndarray, " pairs"] | None = None) -> Sample:
    """Return the images of pairs with the smallest hashes, each with one caption."""
    order = np.argsort(keys.of_pairs(pairs.image_of), kind="stable")
    key, first = np.unique(keys.image[pairs.image_of[order]], return_index=True)
    rows = order[first[:_SAMPLE]]
    sides = pairs.images[pairs.image_of[rows]], pairs.captions[rows]
    return Sample(key[:_SAMPLE], *(np.asarray(x, np.float32) for x in sides))


def join_samples(samples: list[Sample]) -> Sample:
    """Return the sample of all shards."""
    key, images, captions = map(np.concatenate, zip(*samples, strict=True))
    key, first = np.unique(key, return_index=True)
    return Sample(key[:_SAMPLE], images[first[:_SAMPLE]], captions[first[:_SAMPLE]])


def write_judge(directory: Path, judge: KeptJudge) -> None:
    """Write a judge to a directory: `judge.npz`, and `witnesses.npz`, which may be removed."""
    arrays = {name: getattr(judge, name) for name in _ARRAYS}
    arrays |= judge.models._asdict() | judge.reference._asdict()
    about = np.array(json.dumps(judge.about._asdict()))
    replace_arrays(directory / JUDGE_FILE, arrays | {"about": about})
    if judge.witnesses is not None:
        write_witnesses(directory / WITNESSES_FILE, judge.witnesses)


_ARRAYS = "images", "captions", "image_keys", "keys", "fold"


def open_judge(path: str | Path) -> KeptJudge:
    """Open the judge that an audit has kept.

    Args:
      path: the directory of the audit, or its `judge.npz`.

    Raises:
      DataError: there is no judge, its file is damaged or of a later version, or its audit cannot
        be a reference: it could not tell matched from random pairs, or had too few pairs.
    """
    path = Path(expand_home(path))
    path = path / JUDGE_FILE if path.is_dir() else path
    with open_arrays(path, "a kept judge", "expected the judge.npz of an audit") as file:
        about: dict[str, Any] = json.loads(str(file["about"]))
        is_known = about["format"] <= FORMAT
        if is_known:
            models = Cca(*(file[name] for name in Cca._fields))
            reference = Reference(*(file[name] for name in Reference._fields))
            arrays = [file[name] for name in _ARRAYS]
            facts = About(**about)
    if not is_known:
        raise DataError(
            f"{path}: found format {about['format']}, expected at most {FORMAT}: version "
            f"{about['version']} wrote it, a later one than this"
        )
    file = path.with_name(WITNESSES_FILE)
    judge = KeptJudge(models, *arrays, reference, facts)
    _check(path, judge)
    return judge._replace(witnesses=open_witnesses(file)) if file.is_file() else judge


def _check(path: Path, judge: KeptJudge) -> None:
    """Check that the audit can be a reference."""
    about, pairs = judge.about, float(judge.reference.weight.sum())
    if about.unreliable_reason:
        raise DataError(
            f"{path}: found a reference whose rate is unreliable ({about.unreliable_reason}), "
            "expected an audit that could tell it"
        )
    if about.images < FEWEST_IMAGES:
        raise DataError(
            f"{path}: found a reference of {about.images:,} images, expected at least "
            f"{FEWEST_IMAGES}"
        )
    if pairs < FEWEST_PAIRS:
        raise DataError(
            f"{path}: found a reference of {pairs:,.0f} matched pairs, by their probabilities, "
            f"expected at least {FEWEST_PAIRS}"
        )


def check_dimensions(judge: KeptJudge, pairs: Pairs) -> None:
    """Check that pairs have vectors of the sizes that the judge was fitted to.

    Raises:
      DataError: they have not.
    """
    expected = judge.models.image_mean.shape[1], judge.models.caption_mean.shape[1]
    found = pairs.images.shape[1], pairs.captions.shape[1]
    for side, size, other in zip(("images", "captions"), expected, found, strict=True):
        if size != other:
            raise DataError(
                f"{pairs.name}: {side}: found vectors with {other} dimensions, expected {size}, as "
                "the pairs of the judge have"
            )
