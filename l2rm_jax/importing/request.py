"""The request for an import, checked before anything is read."""

import importlib.util
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from l2rm_jax.data.shards import have_vectors
from l2rm_jax.errors import ConfigError, nearest_flag
from l2rm_jax.importing.splits import parse_shares
from l2rm_jax.jobs import Job


@dataclass(frozen=True)
class Request:
    """An import, as the flags of the command line say it.

    Attributes:
      out: directory to write.
      source: the user's table, archive or directory, or vectors in shards; "" for arrays alone.
      pictures: directory in which picture files are looked up; "" for the source's directory.
      image_column: column with the image; "" guesses.
      caption_columns: columns with captions; empty guesses.
      image_vectors: `.npy` file with one row per image; "" encodes pictures.
      caption_vectors: `.npy` file with one row per caption; "" for none.
      encoder: encoder of pictures and captions, `none` if the vectors are given.
      tokens: `patches` for states of patches and tokens instead of one vector each, or "".
      split: shares of train, dev and test; "" takes the source's split, else all are train, from
        which runs draw dev and test.
      seed: seed of the split by shares.
      max_rejected: largest share of rows that may be rejected.
      needs_captions: whether pictures without captions are an error, and not a gallery.
    """

    out: Path
    source: str = ""
    pictures: str = ""
    image_column: str = ""
    caption_columns: tuple[str, ...] = ()
    image_vectors: str = ""
    caption_vectors: str = ""
    encoder: str = ""
    tokens: str = ""
    split: str = ""
    seed: int = 0
    max_rejected: float = 0.01
    needs_captions: bool = False

    @property
    def job(self) -> Job:
        """The work on the directory."""
        return Job(self.out, "import")

    @property
    def is_encoded(self) -> bool:
        """Whether pictures are encoded."""
        return not self.image_vectors and not self.has_shards

    @cached_property
    def has_shards(self) -> bool:
        """Whether the source has vectors in shards, and no encoder is named."""
        if self.image_vectors or self.encoder or not self.source:
            return False
        return have_vectors(self.source)

    def check(self) -> None:
        """Check what can be checked without reading the source.

        Raises:
          ConfigError: the flags contradict each other, a library is missing, or the directory is
            there already.
        """
        if self.out.exists() and (not self.out.is_dir() or any(self.out.iterdir())):
            raise ConfigError(
                f"--out: {self.out} exists already, expected a new directory; complete directories "
                "are never overwritten",
                hint=f"--out={self.out}-2",
            )
        if self.image_vectors and self.encoder not in ("", "none"):
            raise ConfigError(f"--encoder={self.encoder} cannot be combined with --image_vectors")
        if self.is_encoded and not self.source:
            raise ConfigError(
                "--source: missing, expected a table of images and captions, or --image_vectors "
                "and --caption_vectors",
                hint="--source=pairs.csv",
            )
        if self.is_encoded and self.encoder in ("", "none"):
            raise ConfigError(
                "--encoder: missing, expected an encoder of pictures, or --image_vectors",
                hint="--encoder=transformers:openai/clip-vit-base-patch32",
            )
        if self.caption_vectors and self.is_encoded:
            raise ConfigError("--caption_vectors requires --image_vectors")
        if self.image_vectors and not (self.caption_vectors or self.source):
            raise ConfigError("--image_vectors requires --caption_vectors, or captions (--source)")
        if self.pictures and not Path(self.pictures).is_dir():
            raise ConfigError(
                f"--pictures: found no directory {self.pictures}",
                hint=nearest_flag("pictures", self.pictures),
            )
        if self.tokens and not self.is_encoded:
            raise ConfigError("--tokens requires --encoder")
        if not 0 <= self.max_rejected <= 1:
            raise ConfigError(f"--max_rejected: found {self.max_rejected}, expected 0 to 1")
        if self.seed < 0:
            raise ConfigError(f"--seed: found {self.seed}, expected 0 or more")
        if self.split:
            parse_shares(self.split)
        elif self.seed:
            raise ConfigError(f"--seed={self.seed} requires --split", hint="--split=0.8,0.1,0.1")
        if self.source and importlib.util.find_spec("datasets") is None:
            raise ConfigError(
                "import: the library datasets is not installed",
                hint="pip install 'l2rm_jax[import]'",
            )
