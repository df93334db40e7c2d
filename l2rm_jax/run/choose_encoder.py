"""Choose the encoder that `--encoder` names, which turns photographs and captions into features.

`transformers:NAME` and `timm:NAME` are PyTorch models and need the extra `encoders`. `jax:DIR`
reads the same directories as `transformers:DIR` and gives the same features within the rounding of
float16, on any device of JAX.
"""

import hashlib
import importlib.metadata
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from l2rm_jax.data.features import Pixels
from l2rm_jax.devices.parallel import matmul_precision
from l2rm_jax.errors import ConfigError, expand_home, nearest_path
from l2rm_jax.pretrained.directory import POOLING_FILE, Pretrained, open_pretrained, read_kind
from l2rm_jax.pretrained.feature_encoder import (
    AT_ONCE,
    MAX_TOKENS,
    PIXELS,
    CaptionFeatures,
    Encoder,
    ImageFeatures,
    PictureEncoder,
    as_float16,
)
from l2rm_jax.pretrained.preparation import prepare
from l2rm_jax.pretrained.pytorch.timm_models import load_backbone
from l2rm_jax.pretrained.pytorch.transformers_models import load_captions, load_dual
from l2rm_jax.pretrained.specs import Bases
from l2rm_jax.run.frozen_encoder import FrozenCaptions, FrozenImages

_BATCH = 128  # captions that a model gets at once


def make_encoder(spec: str, tokens: str | None = None) -> Encoder:
    """Load the encoder that `--encoder` names.

    `transformers:NAME` is a model that compares images with captions: CLIP, SigLIP, SigLIP 2 and
    others. It gives one vector per image and per caption. With `tokens="patches"`, CLIP,
    MetaCLIP 2, SigLIP and SigLIP 2 also give the states of patches and tokens, as regions and
    words.

    `timm:NAME` is an image model. It gives regions, an average of its feature map in a grid of at
    most 6 x 6. Captions stay words.

    `pixels:DIR` gives the pixels that the CLIP or SigLIP in DIR takes, for a run that encodes them.
    Captions stay words.

    `jax:DIR` is a CLIP or SigLIP in a directory, or after `+` also a BERT.

    `A+B` takes pictures from A and captions from B. B may also be a sentence encoder:
    `timm:NAME+transformers:sentence-transformers/all-MiniLM-L6-v2`.

    Args:
      spec: the encoder. NAME is a directory with the files of the model, or a name on the Hugging
        Face hub; the files then come from the user's cache, or from the network if they are not in
        it.
      tokens: None, or "patches".

    Raises:
      ConfigError: `spec` or `tokens` is invalid or not supported by the model.
      DataError: the weights are missing or invalid, or an optional library is missing.
    """
    if tokens not in (None, "patches"):
        raise ConfigError(f"tokens: found {tokens!r}, expected patches", hint="--tokens=patches")
    spec = re.sub(r"(?<=:)~[^+]*", lambda name: expand_home(name[0]), spec)
    with_tokens = tokens == "patches"
    kind, name, *of_captions = parts = _parts(spec)
    for each in parts[1::2]:
        _refuse_missing_directory(each, spec)
    images, captions = _KINDS[kind][0](name, with_tokens)
    if of_captions:
        other, name = of_captions
        load = _KINDS[other][1]
        if load is None:
            raise ConfigError(
                f"encoder: found {other}:{name} after +, which has no caption model, expected "
                "transformers:NAME"
            )
        captions = load(name, with_tokens)
    return Encoder(spec, images, captions)


def _parts(spec: str) -> list[str]:
    """Split `A+B` into (kind, name) of the image model and, if given, the caption model."""
    names = "|".join(_KINDS)
    parts = re.split(rf"\+(?=(?:{names}):)", spec)
    pairs = [part.partition(":") for part in parts]
    if len(pairs) > 2 or any(kind not in _KINDS or not name for kind, _, name in pairs):
        forms = ", ".join(f"{kind}:NAME" for kind in _KINDS)
        raise ConfigError(
            f"encoder: found {spec!r}, expected {forms}, or timm:NAME+transformers:NAME; NAME may "
            "be a directory"
        )
    return [word for kind, _, name in pairs for word in (kind, name)]


def _refuse_missing_directory(name: str, spec: str) -> None:
    """Reject a missing directory before libraries are loaded and the hub is queried.

    `encoders/clip` may be a directory or a name on the hub. It is a mistyped directory if a
    directory with a similar name exists and the hub's cache does not hold the name.
    """
    if Path(name).exists():
        return
    nearest = nearest_path(name)
    is_path = name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name
    if is_path or (name.count("/") == 1 and nearest is not None and not _is_cached(name)):
        hint = None if nearest is None else spec.replace(f":{name}", f":{nearest}")
        raise ConfigError(
            f"encoder: {name} is not a directory", hint=hint and f"--encoder={shlex.quote(hint)}"
        )


def _is_cached(name: str) -> bool:
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return False
    return isinstance(try_to_load_from_cache(name, "config.json"), str)


class JaxCaptions:
    """The caption half of a pretrained model.

    Attributes:
      description: the model and the sizes of its vectors, for `dataset.json`.
      cut: number of captions so far that had more tokens than the limit and lost the rest.
    """

    def __init__(self, opened: Pretrained, params: Any, with_tokens: bool):
        self._opened, self._with_tokens, self.cut = opened, with_tokens, 0
        self._encoder = FrozenCaptions(opened.bases.text, params, vector=not with_tokens)
        self.description = {
            **_describe(opened),
            "kind": "tokens" if with_tokens else "vector",
            "words": opened.pieces.limit if with_tokens else 1,  # at most
            "features": opened.bases.text.width,
        }

    def encode(self, texts: Sequence[str]) -> CaptionFeatures:
        """Unit vectors of captions; with tokens, the caption's vector and one for each word."""
        pieces = self._opened.pieces
        self.cut += int(pieces.counts(texts).is_cut.sum())
        with matmul_precision("float32"):
            blocks = [*self._encoder.blocks(pieces.encode_all(texts), _BATCH)]
        lengths = np.zeros(len(texts), np.int32)
        for rows, _, counts in blocks:
            lengths[rows] = counts
        vectors = np.zeros((len(texts), lengths.max(), self._opened.bases.text.width), np.float16)
        for rows, states, _ in blocks:
            states = states[:, : vectors.shape[1]]
            vectors[rows, : states.shape[1]] = states
        return (vectors, lengths) if self._with_tokens else (vectors[:, 0], None)


def _load_pixels(directory: str, with_tokens: bool) -> tuple[PictureEncoder, None]:
    """Read the preprocessing of the model in a directory.

    Raises:
      ConfigError: `with_tokens`, as the pixels are encoded only in a run.
      DataError: the directory lacks a file, or its model takes no pictures; lists every error.
    """
    if with_tokens:
        raise ConfigError(
            "--tokens cannot be combined with --encoder=pixels:DIR; a run encodes the pixels"
        )
    opened = open_pretrained(directory, image_encoder=read_kind(directory), with_weights=False)
    preparation = opened.bases.image.preparation
    description = {"model": f"pixels:{directory}", "kind": PIXELS, **preparation.resizing}
    return PictureEncoder(description, lambda pictures: prepare(pictures, preparation)), None


def _load(directory: str, with_tokens: bool) -> tuple[PictureEncoder, JaxCaptions]:
    kind = read_kind(directory)
    if kind == "bert":
        raise ConfigError(
            f"encoder: jax:{directory} does not compare images with captions",
            hint=f"for captions alone: --encoder=timm:NAME+jax:{directory}",
        )
    opened = _open(directory, with_tokens, text_encoder=kind, image_encoder=kind)
    params, base = opened.parameters(), opened.bases.image
    encoder = FrozenImages(base, params["image_base"], vector=not with_tokens)

    def encode(pictures: Sequence[Image.Image]) -> ImageFeatures:
        pixels = Pixels.from_array(prepare(pictures, base.preparation), "pictures")
        with matmul_precision("float32"):
            [(_, states, _)] = encoder.blocks(pixels, AT_ONCE)
        return as_float16(directory, states if with_tokens else states[:, 0])

    captions = JaxCaptions(opened, params["text_base"], with_tokens)
    description = {
        # The weights are hashed once.
        **{name: captions.description[name] for name in ("model", "jax", "weights")},
        "kind": "patches" if with_tokens else "vector",
        "regions": 1 + base.patches if with_tokens else 1,
        "features": base.width,
    }
    images = PictureEncoder(description, encode)
    return images, captions


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
    return open_pretrained(directory, **kinds, max_words=MAX_TOKENS if with_tokens else 0)


def _describe(opened: Pretrained) -> dict[str, str]:
    """Name, version and hashes of the weights, for `dataset.json`."""
    hashes = "".join(f"{name} {value}\n" for name, value in opened.hashes().items())
    return {
        "model": f"jax:{opened.directory}",
        "jax": importlib.metadata.version("jax"),
        "weights": hashlib.sha256(hashes.encode()).hexdigest(),
    }


# Functions of a model's name and of whether to return tokens too: one loads an image model with its
# caption model, None if it has none, and the other a model only for captions, None for other kinds.
_KINDS: dict[str, tuple[Callable[[str, bool], Any], Callable[[str, bool], Any] | None]] = {
    "transformers": (load_dual, load_captions),
    "timm": (lambda name, with_tokens: (load_backbone(name), None), None),
    "pixels": (_load_pixels, None),
    "jax": (_load, _load_captions),
}
