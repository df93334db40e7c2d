"""Small pictures, tables of them, and an encoder without a model, for the tests of the import."""

import contextlib
import csv
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

COUNT = 12  # pictures
SIDE = 16


class PixelEncoder:
    """Encodes a picture as its pixels, 4 x 4 of them, and a caption as counts of letters."""

    name = "pixels"
    cut_captions = 0

    def __init__(self, tokens: str | None = None, *, words: bool = False):
        self.tokens, self.words = tokens, words

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "tokens": self.tokens, "words": self.words}

    def image_key(self) -> str:
        return ""  # of no cache

    def encode_images(self, pictures) -> np.ndarray:
        assert {picture.mode for picture in pictures} == {"RGB"}
        small = [np.asarray(picture.resize((4, 4)), np.float16) / 255 for picture in pictures]
        sets = np.stack(small).reshape(len(small), 16, 3)
        return sets if self.tokens else sets.reshape(len(small), 48)

    def encode_captions(self, texts):
        if self.words:
            return None
        self.cut_captions += sum(len(text.split()) > 5 for text in texts)
        words = [[letters(word) for word in text.split()[:5]] for text in texts]
        if self.tokens is None:
            return np.stack([np.mean(each, 0) for each in words]).astype(np.float16), None
        lengths = np.array([len(each) for each in words], np.int32)
        tokens = np.zeros((len(texts), lengths.max(), 26), np.float16)
        for row, each in zip(tokens, words, strict=True):
            row[: len(each)] = each
        return tokens, lengths


def load_encoder(name: str, tokens: str | None) -> PixelEncoder:
    """The encoder of an import; one that is named `words` leaves captions as they are."""
    return PixelEncoder(tokens, words=name == "words")


class Imported(NamedTuple):
    """An imported directory and its record."""

    out: Path
    record: dict[str, Any]

    @property
    def files(self) -> dict[str, Any]:
        return read_directory(self.out)

    @property
    def pairs(self) -> dict[str, list[str]]:
        return pairs_by_image(self.out)

    @property
    def rejected(self) -> list[str]:
        """The lines of rejected rows."""
        return self.files["rejected.csv"][1:]


def imported(root: Path, source: Path | str, images: int = 0, **fields: Any) -> Imported:
    """Import a source into a new directory of `root`, which is `root/out` at first.

    Args:
      root: the directory.
      source: path of the source, from `root`.
      images: number of images with a vector, of which the n-th begins with 3n; 0 encodes pictures.
      fields: of the request.
    """
    from l2rm_jax.importing import Request  # of the extra `import`
    from l2rm_jax.importing.importer import import_data

    if images:
        np.save(root / "vectors.npy", np.arange(images * 3.0).reshape(images, 3))
        fields["image_vectors"] = str(root / "vectors.npy")
    encoder = "" if "image_vectors" in fields else "pixels"
    out = next(path for n in range(99) if not (path := root / f"out{n or ''}").exists())
    request = Request(out, source and str(root / source), **{"encoder": encoder, **fields})
    return Imported(out, import_data(request, load_encoder))


@contextlib.contextmanager
def interrupted(place: str, times: int = 1) -> Iterator[None]:
    """Stop the body, as Ctrl-C does, at some call of a function, which `place` names."""
    module, _, name = place.rpartition(".")
    owner, calls = resolve_name(module), []
    real = getattr(owner, name)

    def end(*inputs, **settings):
        calls.append(inputs)
        if len(calls) == times:
            raise KeyboardInterrupt
        return real(*inputs, **settings)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(owner, name, end)
        yield


def letters(word: str) -> np.ndarray:
    return np.bincount([(ord(c) - 97) % 26 for c in word.lower()], minlength=26)


def picture(number: int) -> Image.Image:
    """A picture of its own for each number: a block of colour on grey."""
    pixels = np.full((SIDE, SIDE, 3), 128, np.uint8)
    pixels[: 4 + number % 9, : 4 + number % 7] = (20 * number % 256, 90, 255 - 17 * number % 256)
    return Image.fromarray(pixels)


def encoded(image: Image.Image, kind: str = "PNG", **settings: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **settings)
    return file.getvalue()


def write_pictures(directory: Path, count: int = COUNT) -> list[str]:
    """Write pictures to `directory/images`; return their names from `directory`."""
    (directory / "images").mkdir(parents=True)
    names = [f"images/{number:03}.png" for number in range(count)]
    for number, name in enumerate(names):
        (directory / name).write_bytes(encoded(picture(number)))
    return names


def captions_of(number: int) -> list[str]:
    """One to three captions of a picture."""
    colours = ("red", "blue", "green", "pale")
    place = f"in place {number}"
    return [f"a {colours[number % 4]} block {place}", f"block {place}", f"das {place}"][
        : 1 + number % 3
    ]


def rows_of(names: list[str]) -> list[tuple[str, str]]:
    """Rows of name and caption; the rows of an image are apart from each other."""
    captions = [captions_of(number) for number in range(len(names))]
    return [
        (name, own[place])
        for place in range(3)
        for name, own in zip(names, captions, strict=True)
        if place < len(own)
    ]


def write_csv(path: Path, rows, header=("filepath", "title"), separator=",") -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow(header)
        writer.writerows(rows)
    return path


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def write_tar(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def read_directory(path: Path) -> dict[str, Any]:
    """The files of an imported directory, for comparison: texts as lines, arrays as arrays."""
    from pyarrow import parquet  # of the extra `import`

    found: dict[str, Any] = {}
    for file in sorted(path.iterdir()):
        if file.suffix == ".npy":
            found[file.name] = np.load(file)
        elif file.suffix == ".parquet":
            found[file.name] = parquet.read_table(file).to_pydict()
        elif file.suffix == ".json":
            found[file.name] = json.loads(file.read_text())
        else:
            found[file.name] = file.read_text().splitlines()
    return found


def pairs_by_image(path: Path) -> dict[str, list[str]]:
    """The captions of each image of an imported directory, over all splits."""
    content = read_directory(path)
    pairs: dict[str, list[str]] = {}
    for split in ("train", "dev", "test"):
        ids = content.get(f"{split}_ids.txt", [])
        rows = content.get(f"{split}_pairs.npy", np.zeros(0, int))
        assert (np.diff(rows) >= 0).all()
        for row, caption in zip(rows, content.get(f"{split}_caps.txt", []), strict=True):
            pairs.setdefault(ids[row], []).append(caption)
    return pairs
