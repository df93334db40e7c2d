"""Score every image of a split with every caption, or only chosen pairs."""

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
CPU_IMAGE_TILE = 32  # on a CPU, so that what is computed of them stays in the cache of a core
PAIR_TILE = 256  # pairs, where only chosen ones are


class Scorer:
    """Scoring with the compiled functions of one model, which encodes images and captions once.

    Of a head that is `one_product`, all pairs are one product of vectors. Of another, images are
    spread over the devices, tile by tile, and meet one batch of captions at a time, so that memory
    does not grow with the captions. Each host scores its part, and all get the whole.
    """

    def __init__(self, model: RetrievalModel, replicas: Replicas, batch_size: int):
        # Nothing is averaged over the batch in evaluation: every device works alone.
        self._model = model.clone(axis_name=None)
        self._replicas = replicas
        self._batch_size = batch_size
        self._encode_images = replicas.map_over(self._apply("encode_images"), (0, 0, 0))
        # Each device encodes all captions of a batch: cheaper than to send it the codes.
        self._encode_captions = replicas.map_over(self._apply("encode_captions"), (0, None, None))
        self._score = replicas.map_over(self._apply("similarity"), (0, 0, 0))
        self._embed_images = replicas.map_over(self._apply("embed_images"), (0, 0, 0))
        self._embed_captions = replicas.map_over(self._apply("embed_captions"), (0, 0, 0))
        self._gather = replicas.map_over(_gather, (0,))
        self._score_pairs = replicas.map_over(self._pairs, (0, 0, 0, 0, 0))

    def _apply(self, method: str) -> Callable:
        def apply(variables, *inputs):
            return self._model.apply(variables, *inputs, method=method)

        return apply

    def similarities(self, variables: Any, dataset: PairDataset) -> Float[np.ndarray, "I M"]:
        """Similarity of every image with every caption.

        Args:
          variables: "params" and "batch_stats", with a leading device axis.
          dataset: any split; no image and no caption is left out.
        """
        if self._model.one_product:
            images, texts = self.embeddings(variables, dataset)
            return images @ texts.T
        own = self._replicas.rows(len(dataset.images))
        tiles, images = list(self._image_tiles(variables, dataset, own)), len(own)
        size = self._images_at_once(own)
        sims = np.empty((images, len(dataset)), np.float32)

        def calls() -> Iterator[tuple]:
            for tokens, lengths, rows, valid in batches.caption_batches(dataset, self._batch_size):
                texts = self._encode_captions(variables, tokens, lengths)
                for number, tile in enumerate(tiles):
                    place = slice(number * size, min((number + 1) * size, images)), rows[:valid]
                    yield place, partial(self._score, variables, tile, texts)

        with progress_bar(sims.size, f"scoring {dataset.split}") as bar:
            for (of_tile, captions), found in self._replicas.run_ahead(calls()):
                count = of_tile.stop - of_tile.start
                block = np.reshape(found, (-1, found.shape[-1]))
                sims[of_tile, captions] = block[:count, : len(captions)]
                bar.update(count * len(captions))
        return self._replicas.join(sims, len(dataset.images))

    def embeddings(
        self, variables: Any, dataset: PairDataset
    ) -> tuple[Float[np.ndarray, "I D"], Float[np.ndarray, "M D"]]:
        """The vectors of all images and of all captions; similarities are their products.

        Raises:
          ConfigError: the head is not `one_product`.
        """
        if not self._model.one_product:
            raise ConfigError(
                f"model.head: {self._model.head} compares words with regions, expected a head "
                "whose similarity is a product of two vectors"
            )
        replicas, parts = self._replicas, []
        own = replicas.rows(len(dataset.images))
        for *inputs, valid in batches.image_batches(dataset, self._images_at_once(own), own):
            found = self._embed_images(variables, *replicas.shard(tuple(inputs)))
            parts.append(np.reshape(found, (-1, found.shape[-1]))[:valid])
        images = np.concatenate(parts)
        captions = dataset.take(replicas.rows(len(dataset)))
        texts = np.empty((len(captions), images.shape[1]), np.float32)
        devices = replicas.local_count
        size = -(-self._batch_size // devices) * devices
        for *inputs, rows, valid in batches.caption_batches(captions, size):
            found = self._embed_captions(variables, *replicas.shard(tuple(inputs)))
            texts[rows[:valid]] = np.reshape(found, (-1, found.shape[-1]))[:valid]
        return replicas.join(images, len(dataset.images)), replicas.join(texts, len(dataset))

    def pair_similarities(
        self,
        variables: Any,
        dataset: PairDataset,
        images: Int[np.ndarray, " P"],
        captions: Int[np.ndarray, " P"],
    ) -> Float[np.ndarray, " P"]:
        """Similarities of some pairs, which the devices share.

        Memory grows with the pairs and the codes of the images, which every device holds.

        Args:
          variables: as in `similarities`.
          dataset: any split.
          images: image row of each pair.
          captions: caption row of each pair.
        """
        total, rows = len(captions), self._replicas.rows(len(captions))
        images, captions = images[rows], captions[rows]
        every = np.arange(len(dataset.images))
        tiles = [self._gather(tile) for tile in self._image_tiles(variables, dataset, every)]
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
                    here = pairs[first : first + size]
                    places = images[here], slots[first : first + size]
                    places = [np.resize(x, size).astype(np.int32) for x in places]
                    shards = self._replicas.shard(places)
                    yield here, partial(self._score_pairs, variables, codes, texts, *shards)

        with progress_bar(len(sims), f"scoring pairs of {dataset.split}") as bar:
            for here, found in self._replicas.run_ahead(calls()):
                sims[here] = np.reshape(found, -1)[: len(here)]
                bar.update(len(here))
        return self._replicas.join(sims, total)

    def _pairs(self, variables, images, texts, image_rows, text_rows) -> Float[jax.Array, " P"]:
        similarity = self._apply("similarity")

        def score(image_row, text_row):
            image = jax.tree.map(lambda x: x[image_row][None], images)
            text = jax.tree.map(lambda x: x[text_row][None], texts)
            return similarity(variables, image, text)[0, 0]

        return jax.vmap(score)(image_rows, text_rows)

    def _images_at_once(self, rows: Int[np.ndarray, " n"]) -> int:
        """As many in each tile, so that little of the last one is padding."""
        own = -(-len(rows) // self._replicas.local_count)
        tiles = -(-own // (CPU_IMAGE_TILE if self._replicas.on_cpu else IMAGE_TILE))
        return -(-own // tiles) * self._replicas.local_count

    def _image_tiles(
        self, variables: Any, dataset: PairDataset, rows: Int[np.ndarray, " n"]
    ) -> Iterator[ImageCode]:
        """Image codes `[devices, tile, ...]`, each on its device, padded with zero images."""
        size = self._images_at_once(rows)
        for images, regions, _ in batches.image_batches(dataset, size, rows):
            yield self._encode_images(variables, *self._replicas.shard((images, regions)))


def _gather(tile: ImageCode) -> ImageCode:
    """The codes of the images of all devices of a host, in order."""
    return jax.tree.map(lambda x: global_rows(x, AXIS), tile)
