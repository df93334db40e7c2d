"""Image-caption pairs: one type for every data set, in memory or on disk.

"Image" and "caption" name the two sides; any two sides that have vectors or texts will do.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Int32, Shaped

from l2rm_jax.data.contents import (
    PART,
    are_texts,
    as_list,
    check_count,
    checked_rows,
    checked_texts,
    checked_vectors,
    hash_array,
    hash_names,
    rows_of_texts,
)
from l2rm_jax.data.features import Pixels, RegionFeatures
from l2rm_jax.data.frame_columns import columns_of, further_columns
from l2rm_jax.data.frames import read_sides
from l2rm_jax.data.text import Vocabulary
from l2rm_jax.errors import DataError, Problems
from l2rm_jax.linear.rows import Rows, TakenRows

_SAMPLED = 1024  # rows of features, evenly spaced, that a fingerprint hashes
SUSPICIOUS = 0.5  # a pair with a higher probability of being mismatched counts as mismatched

Images = RegionFeatures | Pixels | Rows
Tokens = list[Int32[np.ndarray, " words"]] | RegionFeatures  # word indices, or word vectors
Captions = Tokens | Rows


@dataclass(frozen=True, eq=False)
class Pairs:
    """Image-caption pairs. Pair k is caption k and the image that it is stored with.

    Attributes:
      images: [images] features, pictures, or one vector each; each image once.
      captions: [pairs] features, one vector each, or word indices; None: only texts.
      image_of: [pairs] row of the image that each caption is stored with.
      texts: [pairs] captions as texts; None: only vectors.
      ids: [images] the user's name of each image; None: row numbers.
      caption_ids: [pairs] the user's name of each caption; None: row numbers.
      columns: further columns of the user's table, by name, each [pairs].
      words: [pairs] vectors of the words of `texts`, a second embedding in which captions are
        compared; None where `captions` are words themselves (`data.vectors.as_rows`).
      vocabulary: of `captions` that are word indices; None: unknown.
      pictures: [images] picture files, their contents, or Pillow pictures; None: there are none.
      split: name of the split.
      name: path of the data, or another name for reports.
      digest: hash of all contents in their order, in hexadecimal; "" before they were read whole.
      encoder: hashes of the weights of the encoders that made the vectors; "" if unknown.
    """

    images: Images
    captions: Captions | None
    image_of: Int[np.ndarray, " pairs"]
    texts: Sequence[str] | None = None
    ids: Sequence[str] | None = None
    caption_ids: Sequence[str] | None = None
    columns: Mapping[str, Shaped[np.ndarray, " pairs"]] = field(default_factory=dict)
    words: Rows | None = None
    vocabulary: Vocabulary | None = None
    pictures: Sequence[Any] | None = None
    split: str = "train"
    name: str = "arrays"
    digest: str = ""
    encoder: str = ""

    @classmethod
    def from_arrays(
        cls,
        images: Float[np.ndarray, "images di"] | Sequence[str],
        captions: Float[np.ndarray, "pairs dc"] | Sequence[str],
        image_of: Int[np.ndarray, " pairs"] | None = None,
        *,
        texts: Sequence[str] | None = None,
        ids: Sequence[str] | None = None,
        table: Any = None,
    ) -> "Pairs":
        """Check vectors by reading them once, and make pairs of them.

        Args:
          images: one vector per image, float16, bfloat16, float32 or float64, which may be
            memory-mapped; or texts, which are compared by their words.
          captions: one vector per caption, or the captions themselves, as a list, a generator, an
            array or a column of text.
          image_of: row of the image that each caption is stored with; None if all images have the
            same number of captions and the captions of an image are adjacent.
          texts: the captions, if `captions` are vectors; None without.
          ids: the user's name of each image; None: its row number.
          table: further columns, one row per pair: a pandas or polars DataFrame, a table of
            pyarrow, a Hugging Face data set, or a mapping of names to columns.

        Raises:
          DataError: a wrong shape, dtype or length, a row out of range, or a value that is not
            finite; lists every problem.

        Example:
          >>> pairs = Pairs.from_arrays(np.eye(3), np.eye(3), texts=["a cat", "a dog", "a tree"])
          >>> pairs.take(np.array([0, 2])).texts
          ['a cat', 'a tree']
        """
        problems = Problems()
        attempt: Any = problems.attempt
        images, captions = (  # of generators
            side if hasattr(side, "__array__") else as_list(name, side)
            for name, side in (("images", images), ("captions", captions))
        )
        is_text = are_texts(captions)
        if is_text and texts is not None:
            raise DataError("texts cannot be combined with captions that are texts")
        texts = captions if is_text else texts
        if texts is not None:
            texts = attempt(checked_texts, "captions" if is_text else "texts", texts)
            problems.raise_all()
        names = attempt(checked_texts, "images", images) if are_texts(images) else None
        vectors = (
            attempt(checked_vectors, "images", images) if names is None else rows_of_texts(names)
        )
        rows = None if is_text else attempt(checked_vectors, "captions", captions)
        columns = attempt(further_columns, {} if table is None else columns_of(table))
        problems.raise_all()
        count = len(texts) if is_text else len(rows)
        attempt(check_count, "texts", texts, count, of="captions")
        ids = names if ids is None else [*map(str, as_list("ids", ids))]
        size = vectors.shape[0]
        attempt(check_count, "ids", ids, size, of="images")
        for name, values in columns.items():
            attempt(check_count, f"table: column {name!r}", values, count, of="captions")
        rows_of_images = attempt(checked_rows, size, count, image_of=image_of)
        problems.raise_all()
        digest = hashlib.blake2b(digest_size=16)
        for array in (vectors, rows):
            if isinstance(array, np.ndarray):
                hash_array(digest, array)
        of_images = [*map(str, range(size))] if ids is None else ids
        hash_names(digest, rows_of_images, texts, of_images, names)
        return cls(
            vectors,
            rows,
            rows_of_images,
            texts,
            ids,
            columns=columns,
            digest=digest.hexdigest(),
        )

    @classmethod
    def from_frame(cls, table: Any, image: str, caption: str, model: Any = None) -> "Pairs":
        """Make pairs of a table with a column of images and a column of captions.

        Args:
          table: as in `from_arrays`. Equal cells of the images are one image; a cell with a list of
            captions becomes several pairs. A DataFrame's index does not matter.
          image: name of the column of images: vectors, file names, pictures, or texts.
          caption: name of the column of captions: texts, lists of texts, or vectors.
          model: encodes the sides that are not vectors: an object with `encode(list) -> [n, d]`,
            such as a model of sentence-transformers, or two of them, for images and for captions;
            None for a side that is vectors already, or for captions that are to be compared by
            their words. It receives upright RGB pictures.

        Raises:
          DataError: a column is missing, or a cell cannot be read; lists every problem.
        """
        sides = read_sides(table, image, caption, model)
        captions: Any = sides.texts if sides.captions is None else sides.captions
        texts = None if sides.captions is None else sides.texts
        pairs = cls.from_arrays(
            sides.images,
            captions,
            sides.image_of,
            texts=texts,
            ids=sides.ids,
            table=sides.columns or None,
        )
        return replace(pairs, pictures=sides.pictures, name=f"{image} and {caption}")

    def __len__(self) -> int:
        return len(self.image_of)

    def __repr__(self) -> str:
        return f"Pairs({self.name}: {len(self):,} pairs, {self.images.shape[0]:,} images)"

    @property
    def image_ids(self) -> Sequence[str]:
        """The user's name of each image, or its row number."""
        return [*map(str, range(self.images.shape[0]))] if self.ids is None else self.ids

    @property
    def labels(self) -> Sequence[str]:
        """The captions as texts, or a placeholder that names the row of each."""
        if self.texts is not None:
            return self.texts
        name, rows = "captions", range(len(self))
        if isinstance(self.captions, RegionFeatures):
            name = Path(self.captions.name).name
            rows = rows if self.captions.labels is None else self.captions.labels
        return [f"{name} row {row}" for row in rows]

    @cached_property
    def fingerprint(self) -> str:
        """Hash the stored images' rows and the texts, or the vectors without texts; and own ids.

        Features in files are hashed too, by a sample of their rows, in a part that names their
        shape: so the same captions, rows and ids may have features of several encoders.
        """
        own = self._caption_fingerprint()
        own += _hash_sample("images", self.images) + _hash_sample("captions", self.captions)
        if self.ids is None or all(name == f"{row}" for row, name in enumerate(self.ids)):
            return own
        names = hashlib.blake2b(digest_size=16)
        hash_names(names, np.zeros(0, np.int64), self.ids)
        return f"{own}+ids:{names.hexdigest()}"

    def _caption_fingerprint(self) -> str:
        digest = hashlib.blake2b(f"{self.images.shape[0]}".encode(), digest_size=16)
        digest.update(self.image_of.astype(np.int64).tobytes())
        if self.texts is not None:
            for text in self.texts:
                digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
            return f"texts:{digest.hexdigest()}"
        self.check_vectors()
        for part in self.parts():
            digest.update(_rows(part.captions, np.arange(len(part))).tobytes())
        return f"vectors:{digest.hexdigest()}"

    def check_vectors(self) -> None:
        """Check that the pairs have vectors, or captions to compare.

        Raises:
          DataError: they have none, for example because they were read with `open_audit`.
        """
        if not self.images.shape[1] or (self.captions is None and self.texts is None):
            raise DataError(f"{self.name}: found pairs without vectors, as a finished audit has")

    def take(
        self, pairs: Int[np.ndarray, " taken"] | Bool[np.ndarray, " pairs"] | Sequence[int]
    ) -> "Pairs":
        """Return some of the pairs. All images are kept, even images without a remaining caption.

        Args:
          pairs: rows of the pairs, or a mask of all pairs.

        Raises:
          DataError: a mask of another length, or a row that does not exist.
        """
        rows = np.asarray(pairs)
        if rows.dtype == bool:
            check_count("take: mask", rows, len(self), of="pairs")
            rows = np.flatnonzero(rows)
        rows = rows.astype(np.int64) if not rows.size else rows
        if len(outside := rows[(rows < 0) | (rows >= len(self))]):
            raise DataError(f"take: found row {outside[0]}, expected 0 to {len(self) - 1}")
        return replace(
            self,
            image_of=self.image_of[rows],
            captions=taken(self.captions, rows),
            texts=taken(self.texts, rows),
            caption_ids=taken(self.caption_ids, rows),
            columns={name: values[rows] for name, values in self.columns.items()},
            words=taken(self.words, rows),
            digest="",
        )

    def parts(self, pairs: int = PART) -> Iterator["Pairs"]:
        """Yield the pairs in consecutive parts of at most `pairs`; vectors are not read yet."""
        for start in range(0, len(self), pairs):
            yield self.take(np.arange(start, min(start + pairs, len(self))))

    def head(self, images: int) -> "Pairs":
        """Return the first `images` images with their captions.

        Raises:
          DataError: there are fewer images.
        """
        count = self.images.shape[0]
        if not 1 <= images <= count:
            raise DataError(f"{self.name}: images: found {images}, expected 1 to {count}")
        pairs = self.take(np.flatnonzero(self.image_of < images))
        return replace(pairs, **self._of_images(np.arange(images)))

    def _of_images(self, rows: Int[np.ndarray, " n"]) -> dict[str, Any]:
        """Take rows of the fields that have one entry per image."""
        return {name: taken(getattr(self, name), rows) for name in ("images", "ids", "pictures")}

    def merge(
        self, images: Int[np.ndarray, " kept"], number: Int[np.ndarray, " images"]
    ) -> "Pairs":
        """Return the pairs with some images only, which replace the others.

        Args:
          images: rows of the images to keep.
          number: for each image, its place in `images`, or the place of the image that replaces it.
        """
        image_of = number[self.image_of]
        return replace(self, image_of=image_of, digest="", **self._of_images(images))

    def cross(self, images: Int[np.ndarray, " I"], captions: Int[np.ndarray, " M"]) -> "Pairs":
        """Return some images and some captions, without information about their pairs."""
        image_of = np.zeros(len(captions), np.int64)
        return replace(self.take(captions), image_of=image_of, **self._of_images(images))


def taken(values: Any, rows: Int[np.ndarray, " taken"]) -> Any:
    """Return some rows of features, vectors or a list; None stays None. Vectors are not read."""
    if values is None:
        return None
    if isinstance(values, RegionFeatures | Pixels):
        return values.take(rows)
    if hasattr(values, "shape"):
        return TakenRows(values, rows)
    return [values[row] for row in rows]


def _rows(captions: Any, rows: Int[np.ndarray, " n"]) -> np.ndarray:
    if isinstance(captions, RegionFeatures):
        return captions.rows(rows)
    if isinstance(captions, list):
        return np.concatenate([[len(words), *words] for words in captions]).astype(np.int64)
    return np.asarray(captions[rows], np.float32)


def _hash_sample(name: str, features: Any) -> str:
    """Return a part of a fingerprint: of features in a file; "" for computed ones, as bits vary."""
    if not isinstance(features, RegionFeatures) or not Path(features.name).is_file():
        return ""
    digest, count = hashlib.blake2b(digest_size=16), len(features)
    rows = np.arange(count) if count < _SAMPLED else np.arange(_SAMPLED) * count // _SAMPLED
    for row in rows:
        digest.update(features.rows([row]).tobytes())
    shape = "x".join(map(str, features.shape))
    return f"+{name}-{shape}:{digest.hexdigest()}"


def same_pairs(found: str, expected: str) -> bool:
    """Return whether two fingerprints may be of the same pairs.

    Only parts that both have are compared: one of texts says nothing of one of vectors.
    """
    parts = [
        dict(part.partition(":")[::2] for part in each.split("+") if part)
        for each in (found, expected)
    ]
    return all(parts[0][kind] == parts[1][kind] for kind in parts[0].keys() & parts[1].keys())
