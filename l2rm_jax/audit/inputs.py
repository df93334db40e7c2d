"""Read the inputs of an audit: training pairs of a directory or a run, or arrays of vectors."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Int
from ml_collections import ConfigDict

from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.data.ids import read_ids
from l2rm_jax.data.loading import load_train
from l2rm_jax.data.pairs import PairDataset
from l2rm_jax.data.record import read_record
from l2rm_jax.data.text import Vocabulary, tokenize
from l2rm_jax.data.word_report import WordReport, report_words
from l2rm_jax.devices.parallel import matmul_precision
from l2rm_jax.errors import DataError, Problems
from l2rm_jax.judging import Pairs
from l2rm_jax.linear.rows import Rows
from l2rm_jax.run.frozen_encoder import judged_vectors, with_vectors
from l2rm_jax.run.judged_pairs import judged_pairs, judged_texts, rows_of_texts
from l2rm_jax.run.pretrained import find_pretrained

SPLIT = "train"  # the split that an audit reads
_BLOCK = 65536  # rows checked at once
_SMALLEST, _LARGEST = 1e-6, 1e6  # vectors are rescaled if their largest value is outside


class Inputs(NamedTuple):
    """Pairs to audit, and their origin.

    Attributes:
      name: directory of the data, or of the run.
      pair_image: [pairs] row of the image that each caption is stored with.
      texts: [pairs] the captions as texts; None if only vectors exist.
      read_pairs: returns the pairs as they are judged; the first call may compute their vectors.
      ids: [images] the user's name of each image.
      digest: hash of everything that the judgement and the names depend on, in hexadecimal.
      caption_ids: [pairs] the user's name of each caption; None if the data have no such names.
      pictures: [images] picture files; None if the data do not name them.
      truth: [pairs] whether each pair is mismatched, if a run knows it. Only for the report.
      dataset: the pairs as training reads them; None for arrays.
      config: the config that describes them; None for arrays.
      words: report on the vocabulary, if the caption vectors are word counts; else None.
    """

    name: str
    pair_image: Int[np.ndarray, " pairs"]
    texts: Sequence[str] | None
    read_pairs: Callable[[], Pairs]
    ids: list[str]
    digest: str
    caption_ids: list[str] | None = None
    pictures: list[Path] | None = None
    truth: Bool[np.ndarray, " pairs"] | None = None
    dataset: PairDataset | None = None
    config: ConfigDict | None = None
    words: WordReport | None = None

    @property
    def pairs(self) -> Pairs:
        """The pairs as they are judged."""
        return self.read_pairs()


def read_inputs(config: ConfigDict, workdir: str | Path | None = None) -> Inputs:
    """Read the training pairs that a config describes, with its mismatch; no pair is filtered.

    All features are read once, to check and to hash them. Pretrained encoders named by the config
    compute the vectors of captions and pictures, with their pretrained weights. Vectors of regions
    and words are computed when `Inputs.pairs` is first read, which only judging does.

    Args:
      config: config of a run.
      workdir: work directory of the run whose pairs are read; None without a run.

    Raises:
      DataError, ConfigError: a file is missing or invalid, or a value is not finite; lists every
        problem.
    """
    data, problems = config.data, Problems()
    encoders = problems.attempt(find_pretrained, config, workdir=workdir)
    loaded = problems.attempt(
        load_train, data, config.mismatch, workdir=workdir, pretrained=encoders
    )
    train, vocabulary = loaded or (None, None)
    ids = problems.attempt(read_ids, data, train)
    problems.raise_all()
    (image_ids, caption_ids), has_words = ids, not isinstance(train.tokens, RegionFeatures)
    if encoders is not None:
        with matmul_precision(config.precision):
            vectors = judged_vectors(encoders, train, config.evaluation.batch_size)
        train, has_words = with_vectors(train, vectors), encoders.pieces is None
    image_ids = image_ids or [str(row) for row in range(len(train.images))]
    digest = hashlib.blake2b(digest_size=16)
    problems.attempt(_hash_features, digest, train.images)
    if isinstance(train.tokens, RegionFeatures):
        problems.attempt(_hash_features, digest, train.tokens)
    problems.raise_all()
    if encoders is not None:
        digest.update(repr(encoders.hashes()).encode())
    texts = judged_texts(data, train)
    hash_names(digest, train.stored_image, texts, image_ids, caption_ids)
    return Inputs(
        name=str(workdir or data.path or data.name),
        pair_image=train.stored_image,
        texts=texts,
        read_pairs=cache(partial(judged_pairs, data, train)),
        ids=image_ids,
        caption_ids=caption_ids,
        pictures=_pictures(data.path, image_ids),
        truth=None if train.matched.all() else ~train.matched,
        digest=digest.hexdigest(),
        dataset=train,
        config=config,
        words=report_words(SPLIT, train.captions, train.tokens, vocabulary) if has_words else None,
    )


def inputs_of_arrays(
    images: Float[np.ndarray, "images di"],
    captions: Float[np.ndarray, "pairs dc"] | Sequence[str],
    pair_image: Int[np.ndarray, " pairs"] | None = None,
    texts: Sequence[str] | None = None,
    ids: Sequence[str] | None = None,
) -> Inputs:
    """Check vectors and turn them into inputs.

    Args:
      images: one vector per image, float16, bfloat16, float32 or float64; may be memory-mapped.
      captions: one vector per caption, or the captions themselves, as a list, a generator, an array
        or a pandas Series of text.
      pair_image: row of the image that each caption is stored with; None if all images have the
        same number of captions and the captions of an image are adjacent.
      texts: the captions, if `captions` are vectors; None without.
      ids: the user's name of each image; None: its row number.

    Raises:
      DataError: a wrong shape, dtype or length, a row out of range, or a value that is not finite;
        lists every problem.
    """
    problems = Problems()
    attempt = problems.attempt
    captions = captions if hasattr(captions, "__len__") else list(captions)  # a generator
    is_text = _are_texts(captions)
    if is_text and texts is not None:
        raise DataError("texts cannot be combined with captions that are texts")
    texts = captions if is_text else texts
    if texts is not None:
        texts = attempt(_checked_texts, "captions" if is_text else "texts", texts)
        problems.raise_all()
    vectors = attempt(_checked_vectors, "images", images)
    if is_text:
        rows = rows_of_texts(texts)
    else:
        rows = attempt(_checked_vectors, "captions", captions)
        attempt(_check_length, "texts", rows, of="captions", values=texts)
    attempt(_check_length, "ids", vectors, of="images", values=ids)
    image_of = attempt(_checked_rows, vectors, rows, pair_image=pair_image)
    problems.raise_all()
    ids = [str(row) for row in range(len(vectors))] if ids is None else list(map(str, ids))
    digest = hashlib.blake2b(digest_size=16)
    for array in [vectors] if is_text else [vectors, rows]:
        _hash_array(digest, array)
    hash_names(digest, image_of, texts, ids, None)
    text_rows = None if is_text or texts is None else rows_of_texts(texts)
    return Inputs(
        name="arrays",
        pair_image=image_of,
        texts=texts,
        read_pairs=lambda: Pairs(vectors, rows, image_of, text_rows, texts),
        ids=ids,
        digest=digest.hexdigest(),
        words=_report(texts) if is_text else None,
    )


def _report(texts: Sequence[str]) -> WordReport:
    """Report on the vocabulary of texts that are judged by their word counts."""
    words = [tokenize(text) for text in texts]
    vocabulary = Vocabulary.from_words(words)
    tokens = [vocabulary.encode_words(line) for line in words]
    return report_words("captions", texts, tokens, vocabulary)


def _pictures(directory: str, ids: Sequence[str]) -> list[Path] | None:
    """Return the picture file of each image, if the directory was imported from files.

    The table of imported vectors may name pictures as well: use them if the first one exists.
    """
    record = read_record(directory) if directory else None
    if record is None:
        return None
    source = record["source"]
    if folder := source["pictures"]:
        return [Path(folder, name) for name in ids]
    files = [Path(source["path"] or directory).parent / name for name in ids]
    return files if files and files[0].is_file() else None


def _are_texts(captions: Any) -> bool:
    """Return whether captions are texts (some may be missing) rather than vectors."""
    array = np.asarray(captions, object) if not hasattr(captions, "dtype") else np.asarray(captions)
    if array.ndim != 1 or array.dtype.kind not in "OUT":
        return False
    return array.dtype.kind != "O" or any(isinstance(each, str) for each in array)


def _checked_texts(name: str, texts: Iterable[Any]) -> list[str]:
    """Convert texts, also from NumPy or pandas, to a list of Python strings.

    Raises:
      DataError: lists every entry that is not text.
    """
    values = list(texts)
    if wrong := [
        f"{name}: entry {at} is {each!r}, expected text"
        for at, each in enumerate(values)
        if not isinstance(each, str)
    ]:
        raise DataError(*wrong)
    return list(map(str, values))


def _checked_vectors(name: str, values: ArrayLike) -> np.ndarray:
    """Check an array of rank 2 by reading it once, and return it.

    bfloat16, which NumPy does not know, becomes float32. Only the direction of vectors matters, so
    vectors whose squares would overflow or underflow in float32 are rescaled.

    Raises:
      DataError: a wrong rank or dtype, an empty array, or one message per row that is not finite.
    """
    array = np.asarray(values)
    if array.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    if array.ndim != 2 or array.dtype.kind != "f" or 0 in array.shape:
        raise DataError(
            f"{name}: found {array.dtype} {list(array.shape)}, expected floats [{name}, dimensions]"
        )
    bad, largest = [], 0.0
    for start in range(0, len(array), _BLOCK):
        block = array[start : start + _BLOCK]
        finite = np.isfinite(block).all(axis=1)
        bad.append(start + np.flatnonzero(~finite))
        largest = max(largest, float(np.abs(block[finite]).max(initial=0)))
    if wrong := [f"{name}: row {row} is not finite" for row in np.concatenate(bad)]:
        raise DataError(*wrong)
    if largest and not _SMALLEST < largest < _LARGEST:
        array = (array / array.dtype.type(largest)).astype(np.float32)
    return array


def _checked_rows(
    images: np.ndarray, captions: Rows, pair_image: np.ndarray | None
) -> Int[np.ndarray, " pairs"]:
    """Return the image row of each caption.

    Raises:
      DataError: not exactly one row of `images` per caption; lists every row out of range.
    """
    captions = captions.shape[0]
    if pair_image is None:
        if captions % len(images):
            raise DataError(
                f"captions: found {captions} for {len(images)} images, expected a multiple of the "
                "number of images, or pair_image"
            )
        return np.arange(captions) // (captions // len(images))
    rows = np.asarray(pair_image)
    if rows.shape != (captions,) or rows.dtype.kind not in "iu":
        raise DataError(
            f"pair_image: found {rows.dtype} {list(rows.shape)}, expected integers [{captions}], "
            "one per caption"
        )
    outside = np.flatnonzero((rows < 0) | (rows >= len(images)))
    if len(outside):
        expected = f"expected 0 to {len(images) - 1}, a row of images"
        raise DataError(*(f"pair_image: entry {at} is {rows[at]}, {expected}" for at in outside))
    return rows.astype(np.int64)


def _check_length(name: str, rows: Rows, of: str, values: Sequence[str] | None) -> None:
    count = rows.shape[0]
    if values is not None and len(values) != count:
        raise DataError(f"{name}: found {len(values)}, expected {count}, one for each of the {of}")


def _hash_features(digest: "hashlib.blake2b", features: RegionFeatures) -> None:
    """Hash all features; raise an error that lists every row that is not finite."""
    problems = Problems()
    digest.update(str(features.shape).encode())
    for block in features.blocks():
        rows = problems.attempt(features.rows, block)
        if rows is not None:
            digest.update(np.ascontiguousarray(rows))
    problems.raise_all()
    _hash_array(digest, features.region_counts(np.arange(len(features))))


def _hash_array(digest: "hashlib.blake2b", array: np.ndarray) -> None:
    digest.update(f"{array.dtype.str} {array.shape}".encode())
    for start in range(0, len(array), _BLOCK):
        digest.update(np.ascontiguousarray(array[start : start + _BLOCK]))


def hash_names(
    digest: "hashlib.blake2b", image_of: np.ndarray, *names: Iterable[str] | None
) -> None:
    """Hash the image of each caption, the captions, and the names of images and captions."""
    _hash_array(digest, image_of.astype(np.int64))
    for texts in names:
        digest.update(b"\x01" if texts is None else b"\x02")
        for text in texts or ():
            encoded = text.encode("utf-8", "surrogatepass")
            digest.update(len(encoded).to_bytes(8, "little") + encoded)
