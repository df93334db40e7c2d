"""What every similarity head has in common, and the table of the heads by name."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import flax.linen as nn
from jaxtyping import Array, Float

from l2rm_jax.config import register_settings
from l2rm_jax.errors import ConfigError
from l2rm_jax.models.encoders import (
    ImageCode,
    ImageEncoder,
    TextCode,
    TextEncoder,
    VectorTextEncoder,
)

# Make a head from a config, of which it reads the sections `model` and `own`.
MakeHead = Callable[[Any], "SimilarityHead"]
HEADS: dict[str, MakeHead] = {}


class SimilarityHead(nn.Module, kw_only=True):
    """Base of the similarity heads, which score every image against every caption.

    A head is called as `head(images, texts, train)` with an `ImageCode` of I images and a
    `TextCode` of J captions, and returns similarities `[I, J]`. It never sees raw features.

    Class attributes, by which a head says what it needs:
      choices: by field of the config's section `model`, the names that the field may have.
      needs_global_vectors: the encoders also make one vector per image and per caption
        (`ImageCode.overall`, `TextCode.overall`).
      needs_region_products: the image encoder also makes the inner products of an image's regions
        with each other (`ImageCode.products`).

    A head whose similarity is one inner product of an image vector and a caption vector defines
    `embed_images(images) -> [I, D]` and `embed_texts(texts) -> [J, D]`; searching, proposing and
    mining then cost one matrix product (see `is_product`).

    Attributes, which the model sets:
      chunk: captions scored at once, see `chunks.captions_at_once`; changes speed and memory alone.
      axis_name: mapped axis of the devices, or None.
      sparse_gradient: the loss gives most similarities no gradient. A head that scores each pair
        independently of the others may then skip those pairs in the backward pass.
    """

    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    needs_global_vectors: ClassVar[bool] = False
    needs_region_products: ClassVar[bool] = False

    chunk: int = 0
    axis_name: str | None = None
    sparse_gradient: bool = False

    @property
    def is_product(self) -> bool:
        """Whether a similarity is one inner product of an image vector and a caption vector."""
        return hasattr(type(self), "embed_images")

    @classmethod
    def make_encoders(
        cls, sizes: Any, vocabulary_size: int, axis_name: str | None
    ) -> tuple[nn.Module, nn.Module]:
        """The image encoder and the text encoder that this head goes with.

        Args:
          sizes: the config's section `model`.
          vocabulary_size: words known; 0 where captions are given as vectors.
          axis_name: mapped axis of the devices, or None.
        """
        shared = (sizes.embed_dim, sizes.dropout, axis_name, cls.needs_global_vectors)
        texts = (
            TextEncoder(vocabulary_size, sizes.word_dim, *shared)
            if vocabulary_size
            else VectorTextEncoder(*shared)
        )
        return ImageEncoder(*shared, cls.needs_region_products), texts

    def __call__(self, images: ImageCode, texts: TextCode, train: bool) -> Float[Array, "I J"]:
        raise NotImplementedError


def register_head(name: str, make: MakeHead, settings: Mapping[str, Any] | None = None) -> None:
    """Add a similarity head that `config.model.head` can name.

    Call it where the module that `config.plugins` names is imported; `l2rm_jax/models/README.md`
    has an example.

    Args:
      name: the new head's name.
      make: `config -> SimilarityHead`; reads the config's sections `model` and `own`.
      settings: defaults of the head's own fields, which become `config.own.FIELD`.

    Raises:
      ConfigError: another head has this name.
    """
    if name in HEADS:
        raise ConfigError(
            f"register_head: {name!r} of {make.__module__} is taken by {HEADS[name].__module__}"
        )
    register_settings(make, settings or {})
    HEADS[name] = make


def make_head(config: Any) -> SimilarityHead:
    """Make the head that `config.model.head` names, without parameters."""
    return HEADS[config.model.head](config)
