"""The retrieval model: image encoder, text encoder and a similarity head."""

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt8
from ml_collections import FrozenConfigDict

from l2rm_jax.devices.batch import Batch
from l2rm_jax.models.augment import keep_regions, perturb_words
from l2rm_jax.models.encoders import ImageCode, TextCode
from l2rm_jax.models.head import make_head
from l2rm_jax.models.layers import l2_normalise, masked_mean, sample_keys
from l2rm_jax.models.pretrained import TextTransformer, VisionTransformer
from l2rm_jax.models.pretrained.vision import random_crop, to_numbers
from l2rm_jax.pretrained.specs import Bases


class RetrievalModel(nn.Module):
    """Scores images against captions; see `encode_images`, `encode_captions`, `similarity`.

    Attributes:
      config: the config's `head.SECTIONS`, frozen; `make_model` checks them.
      vocabulary_size: number of words in the vocabulary; 0 where captions are given as vectors.
      axis_name: mapped axis of the devices, or None. If set, each device holds a slice of the
        batch: normalisation and dropout follow the global batch, and `global_similarity` returns
        the matrix of the global batch.
      sparse_gradient: whether the loss gives most similarities a zero gradient, as a loss of
        hardest negatives does. Heads that score each pair independently then run the backward
        pass only through the pairs with a nonzero gradient. All gradients stay the same.
      bases: pretrained transformers in front of the encoders, which read their states as they read
        region features, or captions given as vectors; None without any.
    """

    config: FrozenConfigDict
    vocabulary_size: int
    axis_name: str | None = None
    sparse_gradient: bool = False
    bases: Bases | None = None

    def setup(self):
        head, model = make_head(self.config), self.config.model
        text, image = (self.bases.text, self.bases.image) if self.bases else (None, None)
        self.text_base = self.image_base = None
        shared = (model.remat, self.axis_name)
        if text is not None:
            self.text_base = TextTransformer(text, model.text_states == "vector", *shared)
        if image is not None:
            self.image_base = VisionTransformer(image, model.image_states == "vector", *shared)
        sizes = (model, 0 if text else self.vocabulary_size, self.axis_name)
        self.image_encoder, self.text_encoder = head.make_encoders(*sizes)
        self.similarity_head = head.clone(
            chunk=model.chunk,
            axis_name=self.axis_name,
            sparse_gradient=self.sparse_gradient,
        )

    @property
    def is_product(self) -> bool:
        """Whether similarities are inner products of `embed_images` and `embed_captions`."""
        return self.metric == "ip"

    @property
    def metric(self) -> str | None:
        """Metric between the vectors of images and captions, as `SimilarityHead.metric`."""
        return make_head(self.config).metric

    @property
    def has_alignment(self) -> bool:
        """Whether the head has an `alignment` of regions and words."""
        return make_head(self.config).has_alignment

    @nn.nowrap
    def bounded(self, sims: Float[Array, "..."]) -> Float[Array, "..."]:
        """Map similarities monotonically to [-1, 1]; see `SimilarityHead.bounded`."""
        return make_head(self.config).bounded(sims)

    def encode_images(self, batch: Batch, train: bool = False) -> ImageCode:
        """Encode images; in training, after augmentation by `model.region_mask`.

        Args:
          batch: rows after the last region of an image may hold anything. If the model has a base
            for images, `images` are pixels and `regions` are not used.
          train: whether to use dropout, and batch statistics instead of running averages.
        """
        images, regions = batch.images, batch.regions
        if self.image_base is not None:
            states = self._picture_states(images, train)
            return self.image_encoder(states, jnp.full(len(states), states.shape[1]), train)
        if train and (share := self.config.model.region_mask):
            images, regions = self._augment(keep_regions, images, regions, share)
        return self.image_encoder(images, regions, train)

    def _picture_states(
        self, pixels: UInt8[Array, "I S S 3"], train: bool
    ) -> Float[Array, "I R D"]:
        """States of the vision transformer; in training, of random crops and patches."""
        base = self.bases.image
        if train and base.smallest_crop:
            keys = sample_keys(self.make_rng("dropout"), len(pixels), self.axis_name)
            crop = partial(random_crop, smallest=base.smallest_crop)
            pixels = jax.vmap(crop)(keys, pixels)
        left_out = self.config.model.region_mask if train else 0.0
        return self.image_base(to_numbers(pixels, base.preparation), train, left_out)

    def encode_captions(self, batch: Batch, train: bool = False) -> TextCode:
        """Encode captions; in training, with dropout, after augmentation by `model.word_noise`."""
        tokens, lengths = batch.tokens, batch.lengths
        if train and (share := self.config.model.word_noise):
            ids = self.bases.text.ids if self.bases is not None and self.bases.text else None
            size = self.vocabulary_size if ids is None else ids.count
            settings = (share, size, ids)
            tokens, lengths = self._augment(perturb_words, tokens, lengths, *settings)
        if self.text_base is not None:
            tokens, lengths = self.text_base(tokens, lengths, train)
        return self.text_encoder(tokens, lengths, train)

    def encode(self, batch: Batch, train: bool = False) -> tuple[ImageCode, TextCode]:
        """Encode both sides of a batch."""
        return self.encode_images(batch, train), self.encode_captions(batch, train)

    def _augment(self, change: Callable, samples: Array, counts: Array, *settings: Any):
        keys = sample_keys(self.make_rng("dropout"), len(samples), self.axis_name)
        return jax.vmap(lambda *sample: change(*sample, *settings))(keys, samples, counts)

    def embed_images(self, batch: Batch) -> Float[Array, "I D"]:
        """Image vectors in evaluation mode, or the `vectors` of the batch.

        Needs a head with a `metric`.
        """
        if batch.vectors is not None:
            return batch.vectors
        return self.similarity_head.embed_images(self.encode_images(batch))

    def embed_captions(self, batch: Batch) -> Float[Array, "J D"]:
        """Caption vectors in evaluation mode; needs a head with a `metric`."""
        return self.similarity_head.embed_texts(self.encode_captions(batch))

    def similarity(
        self, images: ImageCode, texts: TextCode, train: bool = False
    ) -> Float[Array, "I J"]:
        """Similarities of this device's encoded images and captions."""
        return self.similarity_head(images, texts, train)

    def alignment(self, images: ImageCode, texts: TextCode) -> Float[Array, "P R L"]:
        """Weights of the regions of encoded image p with the words of encoded caption p.

        Needs a head whose `has_alignment` is True; `SimilarityHead` defines the weights.
        """
        return self.similarity_head.alignment(images, texts)

    def global_similarity(self, batch: Batch, train: bool = False) -> Float[Array, "all_I all_J"]:
        """Similarities of the global batch, the same on each of the n devices.

        Each device encodes its own images and captions, receives the encoded images of the other
        devices, scores all images with its own captions, and receives the other columns of the
        matrix. Captions stay on their device because SAF normalises per caption, which then needs
        no exchange inside the head.

        A batch with `vectors` of its images needs a head whose similarity is a product, and is
        scored in evaluation mode.
        """
        if batch.vectors is None:
            return self.similarity_across_devices(*self.encode(batch, train), train)
        texts = self.embed_captions(batch)
        return self._across_devices(lambda images: images @ texts.T, self.embed_images(batch))

    def similarity_across_devices(
        self, images: ImageCode, texts: TextCode, train: bool = False
    ) -> Float[Array, "all_I all_J"]:
        """Similarities of the encoded images and captions of all devices, the same on each."""
        return self._across_devices(lambda images: self.similarity(images, texts, train), images)

    def _across_devices(self, score: Callable, images: Any) -> Float[Array, "all_I all_J"]:
        """Score the images of all devices, a tree of arrays, with the captions of each device."""
        if self.axis_name is None:
            return score(images)
        images = jax.lax.all_gather(images, self.axis_name, tiled=True)
        return jax.lax.all_gather(score(images), self.axis_name, axis=1, tiled=True)

    def global_cosine(self, batch: Batch) -> Float[Array, "all_I all_J"]:
        """Cosines of mean region vectors and mean word vectors, in training mode.

        The head is not used. As an ablation (L2RM Tab. 3), 1 minus these cosines replaces the
        learned transport cost.
        """
        image, text = self.mean_vectors(batch, train=True)
        return image @ text.T

    def mean_vectors(
        self, batch: Batch, train: bool = False
    ) -> tuple[Float[Array, "all_I D"], Float[Array, "all_J D"]]:
        """Mean region vectors and mean word vectors of the global batch, as unit vectors."""
        return self.mean_of_codes(*self.encode(batch, train))

    def mean_of_codes(
        self, images: ImageCode, texts: TextCode
    ) -> tuple[Float[Array, "I D"], Float[Array, "J D"]]:
        """Compute `mean_vectors` from encoded images and captions, gathered from all devices."""
        image = l2_normalise(masked_mean(images.regions, images.mask))
        text = l2_normalise(masked_mean(texts.words, texts.mask))
        if self.axis_name is not None:
            image = jax.lax.all_gather(image, self.axis_name, tiled=True)
            text = jax.lax.all_gather(text, self.axis_name, tiled=True)
        return image, text

    def __call__(self, batch: Batch) -> Array:
        return self.global_similarity(batch)
