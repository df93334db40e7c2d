"""Score every image of a split against every caption, or only selected pairs."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from l2rm_jax.console import progress_bar
from l2rm_jax.data import batches
from l2rm_jax.data.pairs import PairDataset
from l2rm_jax.devices.parallel import AXIS, Replicas, global_rows
from l2rm_jax.errors import ConfigError
from l2rm_jax.models.encoders import ImageCode
from l2rm_jax.models.retrieval import RetrievalModel

IMAGE_TILE = 128  # images scored at once on each device
CPU_IMAGE_TILE = 32  # the same on a CPU: intermediate arrays stay in the cache of a core
PAIR_TILE = 256  # pairs scored at once on each device by `pair_similarities`


class Scorer:
    """Scores images and captions with one model; its functions are compiled once.

    Each image and each caption is encoded once. If the head is a product of two vectors
    (`is_product`), all pairs are scored by a single matrix product. Otherwise images are spread
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
        self._replicas = replicas
        self._batch_size = batch_size
        self._encode_images = replicas.map_local(self._apply("encode_images"), (0, 0, 0))
        # Each device encodes all captions of a batch: cheaper than sending the codes to it.
        self._encode_captions = replicas.map_local(self._apply("encode_captions"), (0, None, None))
        self._score = replicas.map_local(self._apply("similarity"), (0, 0, 0))
        self._embed_images = replicas.map_local(self._apply("embed_images"), (0, 0, 0))
        self._embed_captions = replicas.map_local(self._apply("embed_captions"), (0, 0, 0))
        self._gather = replicas.map_local(_gather, (0,))
        self._score_pairs = replicas.map_local(self._score_rows, (0, 0, 0, 0, 0))

    def _apply(self, method: str) -> Callable:
        def apply(variables, *inputs):
            return self._model.apply(variables, *inputs, method=method)

        return apply

    def similarities(self, variables: Any, dataset: PairDataset) -> Float[np.ndarray, "I M"]:
        """Similarity of every image with every caption.

        Args:
          variables: "params" and "batch_stats", with a leading device axis.
          dataset: any split. All its images and captions are scored, and no caption is clipped.
        """
        if self._model.is_product:
            images, texts = self.embeddings(variables, dataset)
            return images @ texts.T
        own = self._replicas.host_rows(len(dataset.images))
        tiles, images = list(self._image_tiles(variables, dataset, own)), len(own)
        size = self._images_at_once(own)
        sims = np.empty((images, len(dataset)), np.float32)

        def calls() -> Iterator[tuple]:
            for tokens, lengths, rows, valid in batches.caption_batches(dataset, self._batch_size):
                texts = self._encode_captions(variables, tokens, lengths)
                for number, tile in enumerate(tiles):
                    tile_rows = slice(number * size, min((number + 1) * size, images))
                    yield (tile_rows, rows[:valid]), partial(self._score, variables, tile, texts)

        with progress_bar(sims.size, f"scoring {dataset.split}") as bar:
            for (tile_rows, captions), scores in self._replicas.run_ahead(calls()):
                count = tile_rows.stop - tile_rows.start
                block = np.reshape(scores, (-1, scores.shape[-1]))
                sims[tile_rows, captions] = block[:count, : len(captions)]
                bar.update(count * len(captions))
        return self._replicas.gather_host_rows(sims, len(dataset.images))

    def embeddings(
        self, variables: Any, dataset: PairDataset
    ) -> tuple[Float[np.ndarray, "I D"], Float[np.ndarray, "M D"]]:
        """Vectors of all images and of all captions; a similarity is the dot product of two.

        Raises:
          ConfigError: the head's similarity is not a product of two vectors (`is_product`).
        """
        if not self._model.is_product:
            raise ConfigError(
                f"model.head: {self._model.config.model.head} compares words with regions, "
                "expected a head whose similarity is a product of two vectors"
            )
        replicas, parts = self._replicas, []
        own = replicas.host_rows(len(dataset.images))
        for *inputs, valid in batches.image_batches(dataset, self._images_at_once(own), own):
            vectors = self._embed_images(variables, *replicas.shard(tuple(inputs)))
            parts.append(np.reshape(vectors, (-1, vectors.shape[-1]))[:valid])
        images = np.concatenate(parts)
        captions = dataset.take(replicas.host_rows(len(dataset)))
        texts = np.empty((len(captions), images.shape[1]), np.float32)
        devices = replicas.local_count
        size = -(-self._batch_size // devices) * devices
        for *inputs, rows, valid in batches.caption_batches(captions, size):
            vectors = self._embed_captions(variables, *replicas.shard(tuple(inputs)))
            texts[rows[:valid]] = np.reshape(vectors, (-1, vectors.shape[-1]))[:valid]
        images = replicas.gather_host_rows(images, len(dataset.images))
        return images, replicas.gather_host_rows(texts, len(dataset))

    def pair_similarities(
        self,
        variables: Any,
        dataset: PairDataset,
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
        images, captions = images[rows], captions[rows]
        all_images = np.arange(len(dataset.images))
        tiles = [self._gather(tile) for tile in self._image_tiles(variables, dataset, all_images)]
        codes = jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), *tiles)
        by_caption = np.argsort(captions, kind="stable")
        starts = np.searchsorted(captions[by_caption], np.arange(len(dataset) + 1))
        size = PAIR_TILE * self._replicas.local_count
        sims = np.empty(len(captions), np.float32)

        def calls() -> Iterator[tuple]:
            for tokens, lengths, rows, valid in batches.caption_batches(dataset, self._batch_size):
                texts = self._encode_captions(variables, tokens, lengths)
                own = [by_caption[starts[row] : starts[row + 1]] for row in rows[:valid]]
                slots = np.repeat(np.arange(valid), [len(pairs) for pairs in own])
                pairs = np.concatenate(own)
                for first in range(0, len(pairs), size):
                    chunk = pairs[first : first + size]
                    inputs = images[chunk], slots[first : first + size]
                    inputs = [np.resize(x, size).astype(np.int32) for x in inputs]  # pads
                    shards = self._replicas.shard(inputs)
                    yield chunk, partial(self._score_pairs, variables, codes, texts, *shards)

        with progress_bar(len(sims), f"scoring pairs of {dataset.split}") as bar:
            for chunk, scores in self._replicas.run_ahead(calls()):
                sims[chunk] = np.reshape(scores, -1)[: len(chunk)]
                bar.update(len(chunk))
        return self._replicas.gather_host_rows(sims, total)

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

    def _images_at_once(self, rows: Int[np.ndarray, " n"]) -> int:
        """Images per tile on all devices: an even split, so that the last tile has little padding.

        Args:
          rows: the image rows that this host encodes.
        """
        own = -(-len(rows) // self._replicas.local_count)
        tiles = -(-own // (CPU_IMAGE_TILE if self._replicas.on_cpu else IMAGE_TILE))
        return -(-own // tiles) * self._replicas.local_count

    def _image_tiles(
        self, variables: Any, dataset: PairDataset, rows: Int[np.ndarray, " n"]
    ) -> Iterator[ImageCode]:
        """Encode the images of `rows` tile by tile: codes `[devices, images, ...]` per tile.

        Each device holds the codes of its own images. The last tile is padded with zero images.
        """
        size = self._images_at_once(rows)
        for images, regions, _ in batches.image_batches(dataset, size, rows):
            yield self._encode_images(variables, *self._replicas.shard((images, regions)))


def _gather(tile: ImageCode) -> ImageCode:
    """Codes of the images of all devices of this host, in order, on each of them."""
    return jax.tree.map(lambda x: global_rows(x, AXIS), tile)
