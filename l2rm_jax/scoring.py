"""Score every image of a split with every caption."""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

from l2rm_jax.data import batches
from l2rm_jax.data.dataset import PairDataset
from l2rm_jax.models.encoders import ImageCode
from l2rm_jax.models.retrieval import RetrievalModel
from l2rm_jax.parallel import Replicas
from l2rm_jax.run_log import progress_bar

IMAGE_TILE = 128  # images scored at once on each device


class Scorer:
    """All-pairs scoring with the compiled functions of one model.

    Images and captions are encoded once; images are then spread over the devices, tile by tile,
    and meet one batch of captions at a time, so that memory does not grow with the captions.
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
        tiles = self._image_tiles(variables, dataset)
        images = len(dataset.images)
        sims = np.empty((images, len(dataset)), np.float32)
        size = self._batch_size
        with progress_bar(sims.size, f"scoring {dataset.split}") as bar:
            for tokens, lengths, rows, valid in batches.caption_batches(dataset, size):
                texts = self._encode_captions(variables, tokens, lengths)
                # Queue all tiles before the first result is fetched.
                blocks = [self._score(variables, tile, texts) for tile in tiles]
                block = np.concatenate([np.reshape(b, (-1, b.shape[-1])) for b in blocks])
                sims[:, rows[:valid]] = block[:images, :valid]
                bar.update(images * valid)
        return sims

    def _image_tiles(self, variables: Any, dataset: PairDataset) -> list[ImageCode]:
        """Image codes `[devices, tile, ...]`, each on its device, padded with zero images."""
        devices = len(self._replicas)
        tile = min(IMAGE_TILE, -(-len(dataset.images) // devices))
        return [
            self._encode_images(variables, *self._replicas.shard((images, regions)))
            for images, regions, _ in batches.image_batches(dataset, tile * devices)
        ]
