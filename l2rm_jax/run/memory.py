"""Memory of devices: training images that stay there, and flags that make a run need less.

Each batch takes its own images. An accelerator would otherwise wait until they are read, checked
and sent to it. On a CPU, the file stays memory-mapped.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from l2rm_jax.data.features import Pixels, RegionFeatures
from l2rm_jax.devices.batch import Batch
from l2rm_jax.devices.parallel import Replicas


class ResidentImages:
    """All images of a data set, whole on each device of one host.

    Raises:
      DataError: a feature is not finite.
    """

    def __init__(self, images: RegionFeatures | Pixels, replicas: Replicas):
        blocks = [replicas.replicate(images.rows(block)) for block in images.blocks()]
        self._images = jax.jit(jnp.concatenate, out_shardings=blocks[0].sharding)(blocks)
        self._take = replicas.map_local(lambda images, rows: images[rows], (None, 0))

    def add_to(self, batches: Any) -> Any:
        """Add the images of each sharded `Batch` in a tree that was read without them."""

        def add(batch: Batch) -> Batch:
            if batch.images is not None or batch.vectors is not None:
                return batch
            return batch._replace(images=self._take(self._images, batch.image_index))

        return jax.tree.map(add, batches, is_leaf=lambda tree: isinstance(tree, Batch))


def stay_on_device(platform: str, free: int, size: int, hosts: int) -> bool:
    """Whether images stay on the devices.

    Several hosts read their own part of each batch instead, as does a device without room for the
    images twice: while they are copied, and then for the training.

    Args:
      platform: name of the devices' platform.
      free: free bytes on each device.
      size: bytes of the images.
      hosts: number of hosts.
    """
    return platform != "cpu" and hosts == 1 and 2 * size <= free


def resident_images(images: RegionFeatures | Pixels, replicas: Replicas) -> ResidentImages | None:
    """Copy images to the devices, if these are accelerators with room for them; else return None.

    Raises:
      DataError: a feature is not finite.
    """
    size = math.prod(images.shape) * images.entry_bytes
    platform, hosts = replicas.devices[0].platform, replicas.share.hosts
    stays = stay_on_device(platform, _free_memory(replicas.devices), size, hosts)
    return ResidentImages(images, replicas) if stays else None


def _free_memory(devices: Sequence[jax.Device]) -> int:
    """Free bytes on each of this host's devices; 0 if one does not say."""
    own = [device for device in devices if device.process_index == jax.process_index()]
    stats = [device.memory_stats() or {} for device in own]
    return min(each.get("bytes_limit", 0) - each.get("bytes_in_use", 0) for each in stats)


def training_hints(config: Any, is_product: bool) -> list[str]:
    """Flags for a training step, the best one first; none for a field that is at its smallest.

    Args:
      config: config of the run.
      is_product: whether the model's similarity is a product of two vectors; `model.chunk` has then
        no effect.
    """
    batch, width = config.train.batch_size, config.model.embed_dim
    smaller = [f"--config.train.batch_size={max(2, batch // 2)}"] if batch > 2 else []
    narrower = [f"--config.model.embed_dim={width // 2}"] if width > 1 else []
    return smaller + _chunk_hint(config, is_product) + narrower


def scoring_hints(config: Any, is_product: bool) -> list[str]:
    """Flags for scoring a split, as in `training_hints`; they do not change the scores."""
    batch = config.evaluation.batch_size
    smaller = [f"--config.evaluation.batch_size={batch // 2}"] if batch > 1 else []
    return smaller + _chunk_hint(config, is_product)


def _chunk_hint(config: Any, is_product: bool) -> list[str]:
    chunk = config.model.chunk
    return [] if is_product or chunk == 1 else [f"--config.model.chunk={max(1, chunk // 2)}"]
