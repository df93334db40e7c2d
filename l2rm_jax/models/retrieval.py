"""The retrieval model: image encoder, text encoder and a similarity head."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from l2rm_jax.models.aggregate import AggregatedImageEncoder, AggregatedTextEncoder, Cosine
from l2rm_jax.models.augment import keep_regions, perturb_words
from l2rm_jax.models.cam import CAM
from l2rm_jax.models.encoders import (
    ImageCode,
    ImageEncoder,
    TextCode,
    TextEncoder,
    VectorTextEncoder,
)
from l2rm_jax.models.layers import l2_normalise, masked_mean, sample_keys
from l2rm_jax.models.omit import OMIT
from l2rm_jax.models.pem import PEM
from l2rm_jax.models.saf import SAF
from l2rm_jax.models.sgr import SGR
from l2rm_jax.models.vse import VSE

Tokens = Int[Array, "J L"] | Float[Array, "J L Dt"]

# How each head is made from the model's fields.
HEADS = {
    "sgr": lambda model: SGR(model.sim_dim, model.sgr_steps, model.chunk, model.few_slopes),
    "saf": lambda model: SAF(model.sim_dim, model.chunk, model.axis_name),
    "omit": lambda model: OMIT(
        model.matching, model.margins, model.match_epsilon, model.chunk, model.few_slopes
    ),
    "cam": lambda model: CAM(model.matching, model.chunk, model.few_slopes),
    "vse": lambda model: VSE(model.pooling),
    "pem": lambda model: PEM(),
    "aggregate": lambda model: Cosine(),
}
# The heads that look at the encoders' global vectors.
GLOBAL = ("sgr", "saf")
# And those that look at the products of an image's regions with each other.
PRODUCTS = ("cam",)


class RetrievalModel(nn.Module):
    """Scores images against captions; see `encode_images`, `encode_captions`, `similarity`.

    With `axis_name`, the model runs inside a mapped step that holds a slice of the batch on each
    device: normalisation and dropout then follow the global batch, and `global_similarity` returns
    the matrix of the global batch.

    With `few_slopes`, for a loss that leaves most similarities without a slope (hardest negatives),
    heads that score each pair by itself go back through the others alone; gradients are the same.
    """

    head: str  # a name in HEADS
    vocabulary_size: int  # 0: captions are vectors, not words
    embed_dim: int = 1024
    word_dim: int = 300
    sim_dim: int = 256
    sgr_steps: int = 3
    dropout: float = 0.4
    chunk: int = 0
    matching: str = "partial"
    margins: str = "uniform"
    match_epsilon: float = 0.02
    pooling: str = "mean"
    region_mask: float = 0.0
    word_noise: float = 0.0
    axis_name: str | None = None
    few_slopes: bool = False

    def setup(self):
        shared = (self.embed_dim, self.dropout, self.axis_name, self.head in GLOBAL)
        words = (self.vocabulary_size, self.word_dim)
        if self.head == "aggregate":
            self.image_encoder = AggregatedImageEncoder(self.embed_dim, self.axis_name)
            self.text_encoder = AggregatedTextEncoder(*words, *shared[:3])
        else:
            self.image_encoder = ImageEncoder(*shared, self.head in PRODUCTS)
            self.text_encoder = (
                TextEncoder(*words, *shared) if self.vocabulary_size else VectorTextEncoder(*shared)
            )
        self.similarity_head = HEADS[self.head](self)

    @property
    def one_product(self) -> bool:
        """Whether similarities are products, of `embed_images` with `embed_captions`."""
        return hasattr(type(HEADS[self.head](self)), "embed_images")

    def encode_images(
        self,
        images: Float[Array, "I R Dv"],
        regions: Int[Array, " I"] | None = None,
        train: bool = False,
    ) -> ImageCode:
        """The first `regions` rows of each image are its regions, 1 to R; None: all are.

        What stands in the other rows changes nothing.
        """
        if regions is None:
            regions = jnp.full(len(images), images.shape[1])
        if train and self.region_mask:
            images, regions = self._augment(keep_regions, images, regions, self.region_mask)
        return self.image_encoder(images, regions, train)

    def encode_captions(
        self, tokens: Tokens, lengths: Int[Array, " J"], train: bool = False
    ) -> TextCode:
        """Words by their indices `[J, L]`, or vectors `[J, L, Dt]` that stand for them."""
        if train and self.word_noise:
            settings = (self.word_noise, self.vocabulary_size)
            tokens, lengths = self._augment(perturb_words, tokens, lengths, *settings)
        return self.text_encoder(tokens, lengths, train)

    def _augment(self, change: Callable, samples: Array, counts: Array, *settings: Any):
        keys = sample_keys(self.make_rng("dropout"), len(samples), self.axis_name)
        return jax.vmap(lambda *sample: change(*sample, *settings))(keys, samples, counts)

    def embed_images(
        self, images: Float[Array, "I R Dv"], regions: Int[Array, " I"]
    ) -> Float[Array, "I D"]:
        """In eval mode; only of a head that is `one_product`."""
        return self.similarity_head.embed_images(self.encode_images(images, regions))

    def embed_captions(self, tokens: Tokens, lengths: Int[Array, " J"]) -> Float[Array, "J D"]:
        return self.similarity_head.embed_texts(self.encode_captions(tokens, lengths))

    def similarity(
        self, images: ImageCode, texts: TextCode, train: bool = False
    ) -> Float[Array, "I J"]:
        return self.similarity_head(images, texts, train)

    def global_similarity(
        self,
        images: Float[Array, "I/n R Dv"],
        tokens: Tokens,
        lengths: Int[Array, " J/n"],
        regions: Int[Array, " I/n"] | None = None,
        train: bool = False,
    ) -> Float[Array, "I J"]:
        """Similarities of the global batch, the same on each of the n devices.

        Each device encodes its own images and captions, receives the other devices' image codes,
        scores all images with its own captions, and receives the other columns. Captions are the
        side that stays put, because the statistics of SAF are per caption and then need no
        exchange inside the head.
        """
        image_code = self.encode_images(images, regions, train)
        text_code = self.encode_captions(tokens, lengths, train)
        return self.similarity_of_all(image_code, text_code, train)

    def similarity_of_all(
        self, images: ImageCode, texts: TextCode, train: bool = False
    ) -> Float[Array, "I J"]:
        """`similarity` of the images and captions of all devices, from the codes of each."""
        if self.axis_name is None:
            return self.similarity(images, texts, train)
        images = jax.lax.all_gather(images, self.axis_name, tiled=True)
        sims = self.similarity(images, texts, train)
        return jax.lax.all_gather(sims, self.axis_name, axis=1, tiled=True)

    def global_cosine(
        self,
        images: Float[Array, "I/n R Dv"],
        tokens: Tokens,
        lengths: Int[Array, " J/n"],
        regions: Int[Array, " I/n"] | None = None,
    ) -> Float[Array, "I J"]:
        """Train-mode cosines of mean region and mean word vectors, no head: the cost that L2RM
        Tab. 3 sets against the learned one."""
        image_code = self.encode_images(images, regions, train=True)
        text_code = self.encode_captions(tokens, lengths, train=True)
        image = l2_normalise(masked_mean(image_code.regions, image_code.mask))
        text = l2_normalise(masked_mean(text_code.words, text_code.mask))
        if self.axis_name is not None:
            image = jax.lax.all_gather(image, self.axis_name, tiled=True)
            text = jax.lax.all_gather(text, self.axis_name, tiled=True)
        return image @ text.T

    def __call__(self, images: Array, tokens: Array, lengths: Array) -> Array:
        return self.global_similarity(images, tokens, lengths)
