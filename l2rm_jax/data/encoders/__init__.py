"""Encoders that `--encoder` names: photographs and captions become features.

* `encoder`: what an encoder is;
* `dual`: CLIP, SigLIP and other models of transformers that compare images with captions;
* `sentence`: language models of transformers, for captions alone;
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

from l2rm_jax.data.encoders.encoder import CaptionEncoder, Encoder, ImageEncoder
from l2rm_jax.errors import ConfigError, nearest_path


class Kind(NamedTuple):
    """A kind of encoder: functions of a model's name, and of whether to give tokens too.

    Attributes:
      load: loads a model of pictures; with its side of captions, None if it has none.
      load_captions: loads a model of captions alone; None if there is none of this kind.
    """

    load: Callable[[str, bool], tuple[ImageEncoder, CaptionEncoder | None]]
    load_captions: Callable[[str, bool], CaptionEncoder] | None = None


def make_encoder(
    spec: str, tokens: str | None = None, more: Mapping[str, Kind] = MappingProxyType({})
) -> Encoder:
    """Load the encoder that `--encoder` names.

    `transformers:NAME` is a model that compares images with captions: CLIP, SigLIP, SigLIP 2 and
    others. It gives one vector an image and a caption. With `tokens="patches"`, CLIP, MetaCLIP 2,
    SigLIP and SigLIP 2 give the states of patches and tokens too, as regions and words.

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
      ConfigError: `spec` or `tokens` is invalid, or the model cannot do what they ask.
      DataError: the weights are missing or invalid, or an optional library is missing.
    """
    if tokens not in (None, "patches"):
        raise ConfigError(f"tokens: {tokens!r} is not patches", hint="--tokens=patches")
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
                f"encoder: {other}:{name} after + has no text side, expected transformers:NAME"
            )
        captions = load(name, with_tokens)
    return Encoder(spec, images, captions)


def _parts(spec: str, kinds: Mapping[str, Kind]) -> list[str]:
    """Kind and name of the model of pictures, and then of that of captions if it is another."""
    names = "|".join(kinds)
    parts = re.split(rf"\+(?=(?:{names}):)", spec)
    pairs = [part.partition(":") for part in parts]
    if len(pairs) > 2 or any(kind not in kinds or not name for kind, _, name in pairs):
        forms = ", ".join(f"{kind}:NAME" for kind in kinds)
        raise ConfigError(
            f"encoder: {spec!r} is none of {forms}, or timm:NAME+transformers:NAME; NAME may be a "
            "directory"
        )
    return [word for kind, _, name in pairs for word in (kind, name)]


def _refuse_missing_directory(name: str, spec: str) -> None:
    """Refuse a directory that does not exist, before libraries are loaded and the hub is asked.

    `encoders/clip` may be a directory or a name on the hub. It is a mistyped directory if one of a
    similar name exists, and the cache of the hub does not hold it.
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


# Each imports its libraries only when it is called.


def _load_dual(name: str, with_tokens: bool) -> tuple[ImageEncoder, CaptionEncoder]:
    from l2rm_jax.data.encoders.dual import load_dual

    return load_dual(name, with_tokens)


def _load_text_side(name: str, with_tokens: bool) -> CaptionEncoder:
    from l2rm_jax.data.encoders.dual import is_dual, load_dual
    from l2rm_jax.data.encoders.sentence import load_sentence_encoder

    if is_dual(name):
        return load_dual(name, with_tokens)[1]
    return load_sentence_encoder(name, with_tokens)


def _load_backbone(name: str, with_tokens: bool) -> tuple[ImageEncoder, None]:
    from l2rm_jax.data.encoders.backbone import load_backbone

    return load_backbone(name), None


def _load_pixels(name: str, with_tokens: bool) -> tuple[ImageEncoder, None]:
    from l2rm_jax.data.encoders.pixels import load_pixels

    if with_tokens:
        raise ConfigError("tokens: patches, expected none with pixels, which a run encodes")
    return load_pixels(name), None


_KINDS = {
    "transformers": Kind(_load_dual, _load_text_side),
    "timm": Kind(_load_backbone),
    "pixels": Kind(_load_pixels),
}
