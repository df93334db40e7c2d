"""Base class of the similarity heads, and the registry of the heads by name."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import flax.linen as nn
from jaxtyping import Array, Float

from l2rm_jax.config import register_settings
from l2rm_jax.errors import ConfigError
from l2rm_jax.models.encoders import ImageEncoder, TextEncoder, VectorTextEncoder

# The sections of a config that describe a model.
SECTIONS = ("model", "cam", "imram", "naaf", "de", "own")
# Makes a head from a config; reads only the config's `SECTIONS`.
MakeHead = Callable[[Any], "SimilarityHead"]
HEADS: dict[str, MakeHead] = {}


class SimilarityHead(nn.Module, kw_only=True):
    """Base of the similarity heads, which score every image against every caption.

    A head is called as `head(images, texts, train)` with an `ImageCode` of I images and a
    `TextCode` of J captions, and returns similarities `[I, J]`. It never sees raw features.

    Class attributes, which declare the requirements of a head:
      choices: allowed names of fields of the config's section `model`.
      needs_global_vectors: whether the encoders also make one vector per image and per caption
        (`ImageCode.overall`, `TextCode.overall`).
      needs_all_regions: whether training needs every region of an image, in order; global vectors
        require this too.
      needs_region_products: whether the image encoder also makes the inner products of the regions
        of each image (`ImageCode.products`).

    A head whose similarity is one inner product of an image vector and a caption vector defines
    `embed_images(images) -> [I, D]` and `embed_texts(texts) -> [J, D]`. Searching, proposing and
    mining then cost one matrix product (see `is_product`).

    A head that compares regions with words defines `alignment(images, texts) -> [P, R, L]`: for
    image p with caption p, in evaluation mode, the weight of each region with each word, computed
    from the same numbers as the score. Weights are >= 0 and zero in the padding. The sum over the
    regions is the word's weight in the score; all weights of a pair sum to at most 1, and the rest
    went to dustbins or global vectors. See `has_alignment`.

    Attributes, which the model sets:
      chunk: number of captions scored at once, or 0 to choose it for the device (`chunks.py`);
        changes only speed and memory.
      axis_name: mapped axis of the devices, or None.
      sparse_gradient: whether the loss gives most similarities a zero gradient. A head that scores
        each pair independently may then skip the pairs with a zero gradient in the backward pass.
    """

    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    needs_global_vectors: ClassVar[bool] = False
    needs_all_regions: ClassVar[bool] = False
    needs_region_products: ClassVar[bool] = False

    chunk: int = 0
    axis_name: str | None = None
    sparse_gradient: bool = False

    @property
    def metric(self) -> str | None:
        """Metric between an image vector and a caption vector; None without such vectors.

        "ip" is their inner product, "l2sq" minus their Euclidean distance.
        """
        return "ip" if hasattr(type(self), "embed_images") else None

    @property
    def is_product(self) -> bool:
        """Whether a similarity is one inner product of an image vector and a caption vector."""
        return self.metric == "ip"

    @property
    def has_alignment(self) -> bool:
        """Whether `alignment` gives the weights of matching regions and words."""
        return hasattr(type(self), "alignment")

    def bounded(self, sims: Float[Array, "..."]) -> Float[Array, "..."]:
        """Map similarities of this head monotonically to [-1, 1]; cosines are returned as is."""
        return sims

    @classmethod
    def make_encoders(
        cls, sizes: Any, vocabulary_size: int, axis_name: str | None
    ) -> tuple[nn.Module, nn.Module]:
        """Make the image encoder and the text encoder of this head.

        Args:
          sizes: the config's section `model`.
          vocabulary_size: number of words in the vocabulary; 0 where captions are given as vectors.
          axis_name: mapped axis of the devices, or None.
        """
        shared = (sizes.embed_dim, sizes.dropout, axis_name, cls.needs_global_vectors)
        texts = (
            TextEncoder(vocabulary_size, sizes.word_dim, *shared)
            if vocabulary_size
            else VectorTextEncoder(*shared)
        )
        return ImageEncoder(*shared, cls.needs_region_products), texts


def register_head(name: str, make: MakeHead, settings: Mapping[str, Any] | None = None) -> None:
    """Add a similarity head that `config.model.head` can name.

    Call it at the top level of a module that `config.plugins` lists; `l2rm_jax/models/README.md`
    has an example.

    Args:
      name: name of the new head.
      make: `config -> SimilarityHead`; reads only the config's `SECTIONS`.
      settings: defaults of the head's own settings, which become the fields `config.own.FIELD`.

    Raises:
      ConfigError: another head has this name.
    """
    if name in HEADS:
        raise ConfigError(
            f"register_head: {name!r} of {make.__module__} is already registered by "
            f"{HEADS[name].__module__}; choose another name"
        )
    register_settings(make, settings or {})
    HEADS[name] = make


def make_head(config: Any) -> SimilarityHead:
    """Make the head that `config.model.head` names, without parameters."""
    return HEADS[config.model.head](config)
