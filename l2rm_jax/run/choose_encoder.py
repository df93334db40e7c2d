"""Encoders for imports: all of `data/encoders`, and pretrained transformers by our own code.

`jax:DIR` reads the same directories as `transformers:DIR` and gives the same features within the
rounding of float16. It needs no PyTorch and runs on any device of JAX.
"""

import hashlib
import importlib.metadata
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from l2rm_jax.data.pixels import Pixels
from l2rm_jax.devices.parallel import matmul_precision
from l2rm_jax.errors import ConfigError
from l2rm_jax.pretrained.directory import POOLING_FILE, Pretrained, open_pretrained, read_kind
from l2rm_jax.pretrained.feature_encoder import CaptionFeatures, Encoder, ImageFeatures
from l2rm_jax.pretrained.preparation import prepare
from l2rm_jax.pretrained.pytorch.choose import Kind
from l2rm_jax.pretrained.pytorch.choose import make_encoder as make_imported
from l2rm_jax.pretrained.specs import Bases
from l2rm_jax.run.frozen_encoder import FrozenCaptions, FrozenImages

_BATCH, _CAPTION_BATCH = 32, 128
_MAX_TOKENS = 64  # of a caption given as words; training uses no more


def make_encoder(spec: str, tokens: str | None = None) -> Encoder:
    """Load the encoder that `--encoder` names, as `pytorch.choose.make_encoder` does.

    `jax:DIR` is added: a CLIP or SigLIP in a directory, or after `+` also a BERT.
    """
    return make_imported(spec, tokens, {"jax": Kind(_load, _load_captions)})


class JaxImages:
    """The image half of a pretrained model."""

    def __init__(self, opened: Pretrained, params: Any, with_tokens: bool):
        self._opened, self._with_tokens = opened, with_tokens
        self._encoder = FrozenImages(opened.bases.image, params, vector=not with_tokens)

    def describe(self) -> dict[str, Any]:
        """The model and the sizes of its features, for `dataset.json`."""
        base, with_tokens = self._opened.bases.image, self._with_tokens
        return {
            **_describe(self._opened),
            "kind": "patches" if with_tokens else "vector",
            "regions": 1 + base.patches if with_tokens else 1,
            "features": base.width,
        }

    def encode(self, pictures: Sequence[Image.Image]) -> ImageFeatures:
        """Unit vectors of pictures; with tokens, the picture's vector and its patches."""
        preparation = self._opened.bases.image.preparation
        pixels = prepare(pictures, preparation)
        with matmul_precision("float32"):
            blocks = [*self._encoder.blocks(Pixels.from_array(pixels, "pictures"), _BATCH)]
        states = np.concatenate([each for _, each, _ in blocks]).astype(np.float16)
        return states if self._with_tokens else states[:, 0]


class JaxCaptions:
    """The caption half of a pretrained model.

    Attributes:
      cut: number of captions so far that had more tokens than the limit and lost the rest.
    """

    def __init__(self, opened: Pretrained, params: Any, with_tokens: bool):
        self._opened, self._with_tokens, self.cut = opened, with_tokens, 0
        self._encoder = FrozenCaptions(opened.bases.text, params, vector=not with_tokens)

    def describe(self) -> dict[str, Any]:
        """The model and the sizes of its vectors, for `dataset.json`."""
        base, with_tokens = self._opened.bases.text, self._with_tokens
        return {
            **_describe(self._opened),
            "kind": "tokens" if with_tokens else "vector",
            "words": self._opened.pieces.limit if with_tokens else 1,  # at most
            "features": base.width,
        }

    def encode(self, texts: Sequence[str]) -> CaptionFeatures:
        """Unit vectors of captions; with tokens, the caption's vector and one for each word."""
        pieces = self._opened.pieces
        self.cut += int(pieces.counts(texts).is_cut.sum())
        with matmul_precision("float32"):
            blocks = [*self._encoder.blocks(pieces.encode_all(texts), _CAPTION_BATCH)]
        lengths = np.zeros(len(texts), np.int32)
        for rows, _, counts in blocks:
            lengths[rows] = counts
        vectors = np.zeros((len(texts), lengths.max(), self._opened.bases.text.width), np.float16)
        for rows, states, _ in blocks:
            states = states[:, : vectors.shape[1]]
            vectors[rows, : states.shape[1]] = states
        return (vectors, lengths) if self._with_tokens else (vectors[:, 0], None)


def _load(directory: str, with_tokens: bool) -> tuple[JaxImages, JaxCaptions]:
    kind = read_kind(directory)
    if kind == "bert":
        raise ConfigError(
            f"encoder: jax:{directory} does not compare images with captions",
            hint=f"for captions alone: --encoder=timm:NAME+jax:{directory}",
        )
    opened = _open(directory, with_tokens, text_encoder=kind, image_encoder=kind)
    params = opened.parameters()
    return (
        JaxImages(opened, params["image_base"], with_tokens),
        JaxCaptions(opened, params["text_base"], with_tokens),
    )


def _load_captions(directory: str, with_tokens: bool) -> JaxCaptions:
    kind = read_kind(directory)
    if kind == "bert" and with_tokens:
        raise ConfigError(
            f"tokens: patches of {kind} ({directory}) are not known, only those of clip and siglip"
        )
    opened = _open(directory, with_tokens, text_encoder=kind)
    if kind == "bert" and not (Path(directory) / POOLING_FILE).is_file():
        text = replace(opened.bases.text, pooling="mean")  # as the other encoders pool a plain BERT
        opened = replace(opened, bases=Bases(text=text))
    return JaxCaptions(opened, opened.parameters()["text_base"], with_tokens)


def _open(directory: str, with_tokens: bool, **kinds: str) -> Pretrained:
    return open_pretrained(directory, **kinds, max_words=_MAX_TOKENS if with_tokens else 0)


def _describe(opened: Pretrained) -> dict[str, str]:
    """Name, version and hashes of the weights, for `dataset.json`."""
    hashes = "".join(f"{name} {value}\n" for name, value in opened.hashes().items())
    return {
        "model": f"jax:{opened.directory}",
        "jax": importlib.metadata.version("jax"),
        "weights": hashlib.sha256(hashes.encode()).hexdigest(),
    }
