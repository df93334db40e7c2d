"""Encode first and score later: compute the scores of `scoring` from stored codes."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.data.pairs import Tokens
from l2rm_jax.evaluation.scoring import Scorer, ignore_progress
from l2rm_jax.models.encoders import ImageCode, TextCode


class CodedCaptions(NamedTuple):
    """Encoded captions that are padded to the same number of words.

    Attributes:
      rows: row of each caption among all encoded captions.
      code: their codes, as NumPy arrays.
    """

    rows: Int[np.ndarray, " n"]
    code: TextCode


class CodeScorer(Scorer):
    """A scorer whose codes can be stored; it runs only on this host.

    It uses the batches and tiles of `Scorer.similarities`, so the scores are the same bit for bit.
    """

    def image_codes(
        self, variables: Any, images: RegionFeatures, done: Callable[[int], None] = ignore_progress
    ) -> ImageCode:
        """Codes `[I, ...]` of images, as NumPy arrays.

        Args:
          variables: as in `similarities`.
          images: the images.
          done: called with the number of encoded images.
        """
        parts, left = [], len(images)
        for tile in self._image_tiles(variables, images, np.arange(left)):
            parts.append(jax.tree.map(lambda x: np.reshape(x, (-1, *x.shape[2:]))[:left], tile))  # noqa: B023
            valid = len(parts[-1].mask)
            left -= valid
            done(valid)
        return jax.tree.map(lambda *x: np.concatenate(x), *parts)

    def caption_codes(
        self, variables: Any, captions: Tokens, done: Callable[[int], None] = ignore_progress
    ) -> list[CodedCaptions]:
        """Codes of captions, grouped by their padded number of words; as `image_codes`."""
        by_words: dict[int, list[tuple[np.ndarray, TextCode]]] = {}
        for rows, code in self._caption_blocks(variables, captions):
            code = jax.tree.map(lambda x: np.asarray(x)[: len(rows)], code)  # noqa: B023
            by_words.setdefault(code.mask.shape[1], []).append((rows, code))
            done(len(rows))
        return [
            CodedCaptions(
                np.concatenate([rows for rows, _ in blocks]),
                jax.tree.map(lambda *x: np.concatenate(x), *(code for _, code in blocks)),
            )
            for blocks in by_words.values()
        ]

    def code_similarities(
        self,
        variables: Any,
        images: ImageCode,
        captions: Sequence[CodedCaptions],
        done: Callable[[int], None] = ignore_progress,
    ) -> Float[np.ndarray, "I M"]:
        """Similarity of every image with every caption, from their codes.

        Args:
          variables: as in `similarities`.
          images: as `image_codes` returns them.
          captions: as `caption_codes` returns them.
          done: called with the number of scored pairs.
        """
        shape = len(images.mask), sum(len(part.rows) for part in captions)
        tiles = self._coded_tiles(images)
        texts = self._coded_blocks(captions, shape[1])
        return self._tile_similarities(variables, tiles, texts, shape, done)

    def code_pair_similarities(
        self,
        variables: Any,
        images: ImageCode,
        captions: Sequence[CodedCaptions],
        rows: Int[np.ndarray, "P 2"],
    ) -> Float[np.ndarray, " P"]:
        """Similarities of selected pairs of rows, image and caption, from codes."""
        codes = self._replicas.replicate(images)
        count = sum(len(part.rows) for part in captions)
        texts = self._coded_blocks(captions, count)
        return self._selected_similarities(variables, codes, texts, *rows.T, count, ignore_progress)

    def _coded_tiles(self, images: ImageCode) -> Iterator[ImageCode]:
        """Make the tiles of `_image_tiles` from codes."""
        count = len(images.mask)
        size = self._images_at_once(count)
        for start in range(0, count, size):
            rows = np.minimum(np.arange(start, start + size), count - 1)
            tile = jax.tree.map(lambda x: x[rows], images)  # noqa: B023
            yield self._replicas.shard_local(tile)

    def _coded_blocks(
        self, captions: Sequence[CodedCaptions], count: int
    ) -> Iterator[tuple[np.ndarray, TextCode]]:
        """Make the blocks of `_caption_blocks` from the codes of all `count` captions."""
        size = self._captions_at_once(count)
        for rows, code in captions:
            for start in range(0, len(rows), size):
                block = np.minimum(np.arange(start, start + size), len(rows) - 1)
                part = jax.tree.map(lambda x: x[block], code)  # noqa: B023
                yield rows[start : start + size], self._replicas.replicate(part)
