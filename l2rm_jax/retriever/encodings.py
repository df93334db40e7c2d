"""Encoded images and captions: vectors, or codes of regions and words."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import jax
import numpy as np
from jaxtyping import Float, Int

from l2rm_jax.data.features import Pixels, RegionFeatures
from l2rm_jax.data.files import open_array
from l2rm_jax.data.npy_files import write_array
from l2rm_jax.data.pairs import taken
from l2rm_jax.errors import ConfigError, DataError, expand_home, first_line
from l2rm_jax.evaluation.codes import CodedCaptions
from l2rm_jax.jobs.files import new_directory
from l2rm_jax.jobs.regular_files import parse_json, refuse_other_kinds
from l2rm_jax.models.encoders import ImageCode, TextCode

FILE = "encodings.json"
Rows = int | slice | Sequence[int] | Int[np.ndarray, " n"]
E = TypeVar("E", bound="Encodings")


@dataclasses.dataclass(frozen=True)
class Maker:
    """The retriever that made encodings.

    Attributes:
      name: its runs or files.
      fingerprint: hash of its networks; only equal ones can compare their encodings.
      heads: the head of each network.
      metrics: metric between the vectors of each network: "ip", "l2sq", or None without vectors.
    """

    name: str
    fingerprint: str
    heads: tuple[str, ...]
    metrics: tuple[str | None, ...]

    @property
    def head(self) -> str:
        """Head of the run, or all heads of an ensemble: `sgr + saf`."""
        return " + ".join(self.heads)

    @property
    def metric(self) -> str | None:
        """Metric between vectors; None without vectors. See `Encodings.metric`."""
        if set(self.metrics) == {"ip"}:
            return "ip"
        return "l2sq" if self.metrics == ("l2sq",) else None

    def require_vectors(self) -> None:
        """Raise `ConfigError` if there are no vectors."""
        if self.metric is None:
            raise ConfigError(
                f"{self.name}: found {self.head}, expected heads with vectors: vse, aggregate, "
                "centred, linear or (without an ensemble) pem"
            )


@dataclasses.dataclass(frozen=True, repr=False)
class Encodings:
    """Base of `EncodedImages` and `EncodedCaptions`, which a `Retriever` creates.

    `len(encodings)` is their number; `encodings[rows]` takes one row, a slice or several rows.

    Attributes:
      maker: the retriever that made them.
      parts: the encodings by each of its networks.
      ids: the user's id of each row: a path, an id; the row number by default.
      texts: a text to show for each: the caption itself, or a caption of the image; None without.
      source: the encoded source, for a second retriever; None if they were read from a file.
    """

    kind: ClassVar[str] = ""
    extras: ClassVar[tuple[str, ...]] = ()  # fields that only this kind has, kept in its file too

    maker: Maker
    parts: tuple[Any, ...]
    ids: Sequence[str]
    texts: Sequence[str] | None = None
    source: RegionFeatures | Pixels | Sequence[str] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        size = ""
        if self.metric:
            numbers = sum(part.shape[1] for part in self.parts)
            size = f", {numbers} numbers"
        return f"{type(self).__name__}({len(self):,} {self.kind}, {self.head}{size})"

    @property
    def head(self) -> str:
        """Head of the run, or all heads of an ensemble: `sgr + saf`."""
        return self.maker.head

    @property
    def metric(self) -> str | None:
        """Metric between `vectors()`: "ip", inner product; "l2sq", squared Euclidean distance.

        None without vectors. usearch and faiss use the same names.
        """
        return self.maker.metric

    def vectors(self) -> Float[np.ndarray, "N d"]:
        """The vectors, float32, for a vector database; row n belongs to `ids[n]`.

        Heads whose `metric` is "ip" have unit vectors, and a similarity is their inner product.
        The vectors of an ensemble are concatenated and divided by the root of their number, so that
        the product is the mean. `pem` has a distance instead of a product (`metric` "l2sq"): its
        similarity is minus the root of it, and its vectors must not be scaled.

        Raises:
          ConfigError: the head compares words with regions, so it has no vectors; or an ensemble
            mixes products with other similarities.

        Example:
          >>> gallery = retriever.encode_images("data/mine:test")
          >>> index = usearch.index.Index(ndim=gallery.vectors().shape[1], metric=gallery.metric)
          >>> index.add(np.arange(len(gallery)), gallery.vectors())
        """
        self.maker.require_vectors()
        if len(self.parts) == 1:
            return self.parts[0]
        side_by_side = np.concatenate(self.parts, axis=1)
        return side_by_side / np.float32(np.sqrt(len(self.parts)))

    def __getitem__(self: E, rows: Rows) -> E:
        some = np.atleast_1d(np.arange(len(self))[rows])
        return dataclasses.replace(
            self,
            parts=tuple(self._take(part, some) for part in self.parts),
            ids=taken(self.ids, some),
            texts=taken(self.texts, some),
            source=taken(self.source, some),
            **self._taken(some),
        )

    def save(self, path: str | Path) -> None:
        """Write them to a new directory, which `Retriever.open` reads.

        Raises:
          ConfigError: `path` exists already.

        Example:
          >>> retriever.encode_images("data/mine:test").save("gallery")
          >>> gallery = retriever.open("gallery")
        """
        header = {
            "kind": self.kind,
            "maker": dataclasses.asdict(self.maker),
            "ids": list(self.ids),
            "texts": None if self.texts is None else list(self.texts),
            **{name: getattr(self, name) for name in self.extras},
        }
        with new_directory(Path(expand_home(path))) as directory:
            for number, part in enumerate(self.parts):
                for name, array in _arrays(part):
                    write_array(directory / f"{number}-{name}.npy", np.asarray(array))
            # ASCII: a text may hold a lone surrogate, which UTF-8 cannot write.
            (directory / FILE).write_text(json.dumps(header))

    def _taken(self, rows: Int[np.ndarray, " n"]) -> dict[str, Any]:
        """Select rows of the fields that only this kind of encodings has."""
        return {}

    @staticmethod
    def _take(part: Any, rows: Int[np.ndarray, " n"]) -> Any:
        return jax.tree.map(lambda x: x[rows], part)


@dataclasses.dataclass(frozen=True, repr=False)
class EncodedImages(Encodings):
    """Encoded images; see `Encodings`.

    Attributes:
      folder: directory of the pictures that the ids name; None if unknown.
      captions: the stored captions of each image; None without.
    """

    kind = "images"
    extras = ("folder", "captions")

    folder: str | None = None
    captions: Sequence[Sequence[str]] | None = None

    def picture(self, row: int) -> Path | None:
        """Find the picture file of an image; None if its id does not name a file."""
        if self.folder is not None:
            return Path(self.folder, self.ids[row])
        path = Path(self.ids[row])
        return path if os.path.isfile(path) else None

    def _taken(self, rows: Int[np.ndarray, " n"]) -> dict[str, Any]:
        return {"captions": taken(self.captions, rows)}


class EncodedCaptions(Encodings):
    """Encoded captions; see `Encodings`."""

    kind = "captions"

    @staticmethod
    def _take(part: Any, rows: Int[np.ndarray, " n"]) -> Any:
        if isinstance(part, np.ndarray):
            return part[rows]
        groups = []
        for group in part:
            own = np.flatnonzero(np.isin(rows, group.rows))  # where the taken rows of this group go
            order = np.argsort(group.rows)
            places = order[np.searchsorted(group.rows[order], rows[own])]
            if len(own):
                code = jax.tree.map(lambda x: x[places], group.code)  # noqa: B023
                groups.append(CodedCaptions(own, code))
        return groups


def open_encodings(path: str | Path) -> EncodedImages | EncodedCaptions:
    """Open encodings written by `Encodings.save`; arrays stay in their files.

    Raises:
      DataError: the directory holds no encodings, or damaged ones.
    """
    path = Path(expand_home(path))
    header, parts = _read(path)
    try:
        fields = header["maker"].items()
        maker = Maker(**{name: tuple(x) if isinstance(x, list) else x for name, x in fields})
        kind = {kind.kind: kind for kind in (EncodedImages, EncodedCaptions)}[header["kind"]]
        extras = {name: header[name] for name in kind.extras}
        encodings = kind(maker, tuple(parts), header["ids"], header["texts"], **extras)
        counts = {len(encodings), len(encodings.texts or encodings.ids), *map(_row_count, parts)}
    except (AttributeError, KeyError, TypeError) as error:
        raise DataError(f"{path / FILE}: damaged ({first_line(error)})") from error
    if len(counts) > 1 or len(parts) != len(maker.heads):
        raise DataError(f"{path}: found files with different numbers of rows, expected the same")
    return encodings


def _arrays(part: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the arrays of a network with their names; names of captions have the padded length."""
    if isinstance(part, np.ndarray):
        yield "vectors", part
    elif isinstance(part, ImageCode):
        yield from _fields(part)
    else:
        for rows, code in part:
            for name, array in (("rows", rows), *_fields(code)):
                yield f"{code.mask.shape[1]}-{name}", array


def _fields(code: ImageCode | TextCode) -> Iterator[tuple[str, np.ndarray]]:
    for field in dataclasses.fields(code):
        value = getattr(code, field.name)
        if isinstance(value, np.ndarray):
            yield field.name, value


def _read(path: Path) -> tuple[dict[str, Any], list[Any]]:
    """Read the header, and map the arrays of each network."""
    refuse_other_kinds(path / FILE)
    try:
        header = parse_json((path / FILE).read_bytes())
    except FileNotFoundError:
        raise DataError(f"{path}: found no encodings, expected a directory of save()") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path / FILE}: damaged ({first_line(error)})") from error
    arrays: dict[str, dict[str, np.ndarray]] = {}
    for file in sorted(path.glob("*.npy")):
        number, _, name = file.stem.partition("-")
        arrays.setdefault(number, {})[name] = open_array(file)
    try:
        return header, [_part(arrays[str(number)]) for number in range(len(arrays))]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: found a missing array ({first_line(error)})") from error


def _part(arrays: Mapping[str, np.ndarray]) -> Any:
    """Rebuild the encodings by a network from its arrays and their names."""
    if "vectors" in arrays:
        return arrays["vectors"]
    if "regions" in arrays:
        return ImageCode(**arrays)
    groups: dict[str, dict[str, np.ndarray]] = {}
    for name, array in arrays.items():
        words, _, field = name.partition("-")
        groups.setdefault(words, {})[field] = array
    return [CodedCaptions(group.pop("rows"), TextCode(**group)) for group in groups.values()]


def _row_count(part: Any) -> int:
    """Number of images or captions in a network's encodings; -1 if its arrays differ."""
    groups = part if isinstance(part, list) else [part]
    sizes = [{len(array) for array in jax.tree.leaves(group)} for group in groups]
    return sum(map(max, sizes)) if all(len(size) == 1 for size in sizes) else -1
