"""Score every image of a split against every caption, or only selected pairs."""

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from l2rm_jax.console import progress_bar
from l2rm_jax.data import batches
from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.data.pairs import Tokens
from l2rm_jax.data.train_pairs import TrainPairs
from l2rm_jax.devices.parallel import AXIS, Replicas, global_rows
from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.models.encoders import ImageCode, TextCode
from l2rm_jax.models.pem import MIN_SQUARED_DISTANCE
from l2rm_jax.models.retrieval import RetrievalModel

IMAGE_TILE = 128  # images scored at once on each device
CPU_IMAGE_TILE = 32  # the same on a CPU: intermediate arrays stay in the cache of a core
PAIR_TILE = 256  # pairs scored at once on each device by `pair_similarities`
_ROWS = 1024  # sets of vectors read at once


def ignore_progress(count: int) -> None:
    """Report no progress."""


class Scorer:
    """Score images and captions with one model; its functions are compiled once.

    Each image and each caption is encoded once. If the head compares two vectors (`metric`), all
    pairs are scored by a single matrix product. Otherwise images are spread
    over the devices in tiles, and every tile is scored against one batch of captions at a time:
    device memory does not grow with the number of captions. Each host scores its share, and every
    host returns the whole result.

    Args:
      model: the model, with or without an axis name.
      replicas: the devices.
      batch_size: captions encoded at once.
    """

    def __init__(self, model: RetrievalModel, replicas: Replicas, batch_size: int):
        # In evaluation nothing is averaged over the batch, so devices need not communicate.
        self._model = model.clone(axis_name=None)
        self.metric = model.metric
        self._replicas = replicas
        self._batch_size = batch_size
        self._encode_images = replicas.map_local(self._apply("encode_images"), (None, 0))
        # Each device encodes all captions of a batch: cheaper than sending the codes to it.
        captions = self._apply("encode_captions")
        self._encode_captions = replicas.map_local(captions, (None, None), None)
        self._score = replicas.map_local(self._apply("similarity"), (None, 0, None))
        self._embed_images = replicas.map_local(self._apply("embed_images"), (None, 0))
        self._embed_captions = replicas.map_local(self._apply("embed_captions"), (None, 0))
        self._gather = replicas.map_local(_gather, (0,), None)
        self._score_pairs = replicas.map_local(self._score_rows, (None, None, None, 0, 0))

    def _apply(self, method: str) -> Callable:
        def apply(variables, *inputs):
            return self._model.apply(variables, *inputs, method=method)

        return apply

    def similarities(self, variables: Any, dataset: TrainPairs) -> Float[np.ndarray, "I M"]:
        """Similarity of every image with every caption.

        Args:
          variables: "params" and "batch_stats", whole on each device of this host.
          dataset: any split. All its images and captions are scored, and no caption is clipped.
        """
        if self.metric:
            return vector_similarities(*self._vectors(variables, dataset), self.metric)
        own = self._replicas.host_rows(len(dataset.images))
        tiles = self._image_tiles(variables, dataset.images, own)
        shape = (len(own), len(dataset))
        with progress_bar(math.prod(shape), f"scoring {dataset.split}") as bar:
            texts = self._caption_blocks(variables, dataset.tokens)
            sims = self._tile_similarities(variables, tiles, texts, shape, bar.update)
        return self._replicas.gather_host_rows(sims, len(dataset.images))

    def _tile_similarities(
        self,
        variables: Any,
        tiles: Iterable[ImageCode],
        texts: Iterable[tuple[Int[np.ndarray, " valid"], TextCode]],
        shape: tuple[int, int],
        done: Callable[[int], None],
    ) -> Float[np.ndarray, "I M"]:
        """Similarities of all images, from their tiles, with all captions; `shape` has both counts.

        Args:
          tiles: codes `[devices, images, ...]` of all images, in order; the last tile is padded.
          texts: rows of the valid captions of each block, and its codes, all on each device.
        """
        tiles, (images, _) = list(tiles), shape
        size = self._images_at_once(images)
        sims = np.empty(shape, np.float32)

        def calls() -> Iterator[tuple]:
            for rows, code in texts:
                for number, tile in enumerate(tiles):
                    tile_rows = slice(number * size, min((number + 1) * size, images))
                    yield (tile_rows, rows), partial(self._score, variables, tile, code)

        for (tile_rows, captions), scores in self._replicas.run_ahead(calls()):
            count = tile_rows.stop - tile_rows.start
            block = np.reshape(scores, (-1, scores.shape[-1]))
            sims[tile_rows, captions] = block[:count, : len(captions)]
            done(count * len(captions))
        return sims

    def embeddings(
        self, variables: Any, dataset: TrainPairs
    ) -> tuple[Float[np.ndarray, "I D"], Float[np.ndarray, "M D"]]:
        """Vectors of all images and of all captions; a similarity is the dot product of two.

        Raises:
          ConfigError: the head's similarity is not a product of two vectors (`is_product`).
        """
        if not self._model.is_product:
            what = "vectors by their distance" if self.metric else "words with regions"
            raise ConfigError(
                f"model.head: found {self._model.config.model.head}, which compares {what}, "
                "expected a head whose similarity is a product of two vectors"
            )
        return self._vectors(variables, dataset)

    def _vectors(
        self, variables: Any, dataset: TrainPairs
    ) -> tuple[Float[np.ndarray, "I D"], Float[np.ndarray, "M D"]]:
        """Vectors of all images and of all captions, of a head with a `metric`."""
        own = self._replicas.host_rows(len(dataset.images))
        images = self.image_vectors(variables, dataset.images.take(own))
        captions = dataset.take(self._replicas.host_rows(len(dataset)))
        texts = self.caption_vectors(variables, captions.tokens)
        images = self._replicas.gather_host_rows(images, len(dataset.images))
        return images, self._replicas.gather_host_rows(texts, len(dataset))

    def image_vectors(
        self, variables: Any, images: RegionFeatures, done: Callable[[int], None] = ignore_progress
    ) -> Float[np.ndarray, "I D"]:
        """Vectors of images, on this host; the head's `metric` must not be None.

        Args:
          variables: as in `similarities`.
          images: the images.
          done: called with the number of images that were encoded.
        """
        replicas, parts = self._replicas, []
        size = self._images_at_once(len(images))
        for batch, valid in batches.image_batches(images, size):
            vectors = self._embed_images(variables, replicas.shard_local(batch))
            parts.append(np.reshape(vectors, (-1, vectors.shape[-1]))[:valid])
            done(valid)
        return np.concatenate(parts)

    def caption_vectors(
        self, variables: Any, captions: Tokens, done: Callable[[int], None] = ignore_progress
    ) -> Float[np.ndarray, "M D"]:
        """Vectors of captions, on this host; arguments as in `image_vectors`."""
        replicas, texts = self._replicas, np.empty((0, 0), np.float32)
        devices, count = replicas.local_count, len(captions)
        size = -(-self._captions_at_once(count) // devices) * devices
        for batch, rows, valid in batches.caption_batches(captions, size):
            vectors = self._embed_captions(variables, replicas.shard_local(batch))
            if not len(texts):
                texts = np.empty((count, vectors.shape[-1]), np.float32)
            texts[rows[:valid]] = np.reshape(vectors, (-1, vectors.shape[-1]))[:valid]
            done(valid)
        return texts

    def pair_similarities(
        self,
        variables: Any,
        dataset: TrainPairs,
        images: Int[np.ndarray, " P"],
        captions: Int[np.ndarray, " P"],
    ) -> Float[np.ndarray, " P"]:
        """Similarities of selected pairs, spread over the devices.

        Every device holds the codes of all images, so memory grows with the images and the pairs.

        Args:
          variables: as in `similarities`.
          dataset: any split.
          images: image row of each pair.
          captions: caption row of each pair.
        """
        total, rows = len(captions), self._replicas.host_rows(len(captions))
        all_images = np.arange(len(dataset.images))
        tiles = self._image_tiles(variables, dataset.images, all_images)
        codes = jax.tree.map(lambda *parts: jnp.concatenate(parts), *map(self._gather, tiles))
        texts = self._caption_blocks(variables, dataset.tokens)
        pairs = images[rows], captions[rows]
        with progress_bar(len(rows), f"scoring pairs of {dataset.split}") as bar:
            sims = self._selected_similarities(
                variables, codes, texts, *pairs, len(dataset), bar.update
            )
        return self._replicas.gather_host_rows(sims, total)

    def _selected_similarities(
        self,
        variables: Any,
        codes: ImageCode,
        texts: Iterable[tuple[Int[np.ndarray, " valid"], TextCode]],
        images: Int[np.ndarray, " P"],
        captions: Int[np.ndarray, " P"],
        count: int,
        done: Callable[[int], None],
    ) -> Float[np.ndarray, " P"]:
        """Similarities of pairs of rows; `codes` has all images, and there are `count` captions."""
        by_caption = np.argsort(captions, kind="stable")
        starts = np.searchsorted(captions[by_caption], np.arange(count + 1))
        size = PAIR_TILE * self._replicas.local_count
        sims = np.empty(len(captions), np.float32)

        def calls() -> Iterator[tuple]:
            for rows, code in texts:
                own = [by_caption[starts[row] : starts[row + 1]] for row in rows]
                slots = np.repeat(np.arange(len(rows)), [len(pairs) for pairs in own])
                pairs = np.concatenate(own)
                for first in range(0, len(pairs), size):
                    chunk = pairs[first : first + size]
                    inputs = images[chunk], slots[first : first + size]
                    inputs = [np.resize(x, size).astype(np.int32) for x in inputs]  # pads
                    shards = self._replicas.shard_local(inputs)
                    yield chunk, partial(self._score_pairs, variables, codes, code, *shards)

        for chunk, scores in self._replicas.run_ahead(calls()):
            sims[chunk] = np.reshape(scores, -1)[: len(chunk)]
            done(len(chunk))
        return sims

    def _score_rows(
        self, variables, images, texts, image_rows, text_rows
    ) -> Float[jax.Array, " P"]:
        """Similarity of image `image_rows[p]` with caption `text_rows[p]`, for each p."""
        similarity = self._apply("similarity")

        def score(image_row, text_row):
            image = jax.tree.map(lambda x: x[image_row][None], images)
            text = jax.tree.map(lambda x: x[text_row][None], texts)
            return similarity(variables, image, text)[0, 0]

        return jax.vmap(score)(image_rows, text_rows)

    def _images_at_once(self, count: int) -> int:
        """Images per tile on all devices: an even split, so that the last tile has little padding.

        Few images make a tile of a power of two, so that any number of them needs few programs.

        Args:
          count: number of images that this host encodes.
        """
        own = -(-count // self._replicas.local_count)
        tiles = -(-own // (CPU_IMAGE_TILE if self._replicas.on_cpu else IMAGE_TILE))
        at_once = -(-own // tiles) if tiles > 1 else next_power(own)
        return at_once * self._replicas.local_count

    def _captions_at_once(self, count: int) -> int:
        """Captions encoded at once: `batch_size`, or a power of two for fewer captions."""
        return min(self._batch_size, next_power(count))

    def _image_tiles(
        self, variables: Any, images: RegionFeatures, rows: Int[np.ndarray, " n"]
    ) -> Iterator[ImageCode]:
        """Encode the images of `rows` tile by tile: codes `[devices, images, ...]` per tile.

        Each device holds the codes of its own images. The last tile is padded with zero images.
        """
        size = self._images_at_once(len(rows))
        for batch, _ in batches.image_batches(images, size, rows):
            yield self._encode_images(variables, self._replicas.shard_local(batch))

    def _caption_blocks(
        self, variables: Any, captions: Tokens
    ) -> Iterator[tuple[Int[np.ndarray, " valid"], TextCode]]:
        """Encode captions block by block: the rows that count, and codes, whole on each device."""
        size = self._captions_at_once(len(captions))
        for batch, rows, valid in batches.caption_batches(captions, size):
            yield rows[:valid], self._encode_captions(variables, batch)


def next_power(count: int) -> int:
    """The smallest power of two that is not below `count`."""
    return 1 << (count - 1).bit_length()


def vector_similarities(
    images: Float[np.ndarray, "I D"], texts: Float[np.ndarray, "M D"], metric: str
) -> Float[np.ndarray, "I M"]:
    """Compare vectors of images and captions.

    Args:
      images: vectors of images.
      texts: vectors of captions.
      metric: "ip" for inner products, "l2sq" for minus the Euclidean distance.
    """
    products = images @ texts.T
    if metric == "ip":
        return products
    squared = np.sum(images**2, axis=1)[:, None] + np.sum(texts**2, axis=1) - 2 * products
    return -np.sqrt(np.maximum(squared, MIN_SQUARED_DISTANCE))


def paired_similarities(
    images: Float[np.ndarray, "P D"], texts: Float[np.ndarray, "P D"], metric: str
) -> Float[np.ndarray, " P"]:
    """Compare each image vector with the caption vector of its row, as `vector_similarities`."""
    if metric == "ip":
        return np.einsum("pd,pd->p", images, texts)
    squared = np.sum((images - texts) ** 2, axis=1)
    return -np.sqrt(np.maximum(squared, MIN_SQUARED_DISTANCE))


def unit_means(features: RegionFeatures) -> Float[np.ndarray, "N D"]:
    """Directions of the means of each row's vectors.

    Raises:
      DataError: a mean is zero, or a value is not finite.
    """
    starts = range(0, len(features), _ROWS)
    blocks = (np.arange(start, min(start + _ROWS, len(features))) for start in starts)
    # The sum of a row's vectors has the direction of their mean.
    means = np.concatenate([features.rows(block).sum(axis=1) for block in blocks])
    norms = np.linalg.norm(means, axis=1, keepdims=True)
    if not norms.all():
        row = int(np.flatnonzero(norms[:, 0] == 0)[0])
        raise DataError(f"{features.name}: row {row}: found a zero mean, expected a direction")
    return means / norms


def _gather(tile: ImageCode) -> ImageCode:
    """Codes of the images of all devices of this host, in order, on each of them."""
    return jax.tree.map(lambda x: global_rows(x, AXIS), tile)
