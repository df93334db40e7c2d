"""Encoders that `--encoder` names, which turn photographs and captions into features.

* `encoder`: the interface of an encoder;
* `dual`: CLIP, SigLIP and other models of transformers that compare images with captions;
* `sentence`: language models of transformers, only for captions;
* `backbone`: image models of timm;
* `captions`: text models, which the first two use;
* `weights`: the libraries, the weights and the device;
* `pixels`: no model, but the pixels that one takes;
* `packaged`: directories of models from packages with their weights.

All but `pixels` are PyTorch models and need the extra `encoders`. `run/encoders.py` adds our own
transformers. May import what `data` may.
"""

import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from l2rm_jax.errors import ConfigError, expand_home, nearest_path
from l2rm_jax.pretrained.feature_encoder import CaptionEncoder, Encoder, ImageEncoder
from l2rm_jax.pretrained.pytorch.pixels import load_pixels
from l2rm_jax.pretrained.pytorch.sentence import load_sentence_encoder
from l2rm_jax.pretrained.pytorch.timm_models import load_backbone
from l2rm_jax.pretrained.pytorch.transformers_models import is_dual, load_dual


class Kind(NamedTuple):
    """A kind of encoder: functions of a model's name and of whether to return tokens too.

    Attributes:
      load: loads an image model with its caption model, None if it has none.
      load_captions: loads a model only for captions; None if this kind has none.
    """

    load: Callable[[str, bool], tuple[ImageEncoder, CaptionEncoder | None]]
    load_captions: Callable[[str, bool], CaptionEncoder] | None = None


def make_encoder(
    spec: str, tokens: str | None = None, more: Mapping[str, Kind] = MappingProxyType({})
) -> Encoder:
    """Load the encoder that `--encoder` names.

    `transformers:NAME` is a model that compares images with captions: CLIP, SigLIP, SigLIP 2 and
    others. It gives one vector per image and per caption. With `tokens="patches"`, CLIP,
    MetaCLIP 2, SigLIP and SigLIP 2 also give the states of patches and tokens, as regions and
    words.

    `timm:NAME` is an image model. It gives regions, an average of its feature map in a grid of at
    most 6 x 6. Captions stay words.

    `pixels:DIR` gives the pixels that the CLIP or SigLIP in DIR takes. Captions stay words.

    `A+B` takes pictures from A and captions from B. B may also be a sentence encoder:
    `timm:NAME+transformers:sentence-transformers/all-MiniLM-L6-v2`.

    Args:
      spec: the encoder. NAME is a directory with the files of the model, or a name on the Hugging
        Face hub; the files then come from the user's cache, or from the network if they are not in
        it.
      tokens: None, or "patches".
      more: further kinds of encoders, by name.

    Raises:
      ConfigError: `spec` or `tokens` is invalid or not supported by the model.
      DataError: the weights are missing or invalid, or an optional library is missing.
    """
    if tokens not in (None, "patches"):
        raise ConfigError(f"tokens: found {tokens!r}, expected patches", hint="--tokens=patches")
    spec = re.sub(r"(?<=:)~[^+]*", lambda name: expand_home(name[0]), spec)
    with_tokens, kinds = tokens == "patches", {**_KINDS, **more}
    kind, name, *of_captions = parts = _parts(spec, kinds)
    for each in parts[1::2]:
        _refuse_missing_directory(each, spec)
    images, captions = kinds[kind].load(name, with_tokens)
    if of_captions:
        other, name = of_captions
        load = kinds[other].load_captions
        if load is None:
            raise ConfigError(
                f"encoder: found {other}:{name} after +, which has no caption model, expected "
                "transformers:NAME"
            )
        captions = load(name, with_tokens)
    return Encoder(spec, images, captions)


def _parts(spec: str, kinds: Mapping[str, Kind]) -> list[str]:
    """Split `A+B` into (kind, name) of the image model and, if given, the caption model."""
    names = "|".join(kinds)
    parts = re.split(rf"\+(?=(?:{names}):)", spec)
    pairs = [part.partition(":") for part in parts]
    if len(pairs) > 2 or any(kind not in kinds or not name for kind, _, name in pairs):
        forms = ", ".join(f"{kind}:NAME" for kind in kinds)
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


def _load_text_side(name: str, with_tokens: bool) -> CaptionEncoder:
    if is_dual(name):
        return load_dual(name, with_tokens)[1]
    return load_sentence_encoder(name, with_tokens)


_KINDS = {
    "transformers": Kind(load_dual, _load_text_side),
    "timm": Kind(lambda name, with_tokens: (load_backbone(name), None)),
    "pixels": Kind(load_pixels),
}
