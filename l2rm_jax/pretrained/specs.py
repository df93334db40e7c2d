"""Descriptions of pretrained transformers: their sizes, and the names of their arrays in files.

A **base** is a pretrained transformer in front of an encoder of the retrieval model. This file
reads its sizes from a `config.json` written by Hugging Face's transformers; such a file leaves out
fields that have the default of transformers, so the defaults are repeated here. `preparation` reads
the preprocessing of its pictures, and `arrays` maps the arrays of a weight file to our parameters.
`directory` reads the files and `models.pretrained` computes; both use these descriptions and are
independent of each other.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from l2rm_jax.errors import DataError
from l2rm_jax.pretrained.preparation import Preparation, is_number

KINDS = ("bert", "clip", "siglip")  # of `model_type`
MOST_ROWS = 1 << 17  # of any size in a config.json: widths, positions, pixels of a side
MOST = {"num_hidden_layers": 256, "num_attention_heads": 1024, "vocab_size": 1 << 22}
ACTIVATIONS = {  # names in a config.json, and ours
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
}
POOLINGS = ("first", "mean", "end", "last")

_SIZES = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
}
_BERT = {
    **_SIZES,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "vocab_size": 30522,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
}
_CLIP = {"hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "attention_dropout": 0.0}
_CLIP_IMAGE = {**_SIZES, **_CLIP, "image_size": 224, "patch_size": 32}
_CLIP_TEXT = {
    **_SIZES,
    **_CLIP,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "intermediate_size": 2048,
    "vocab_size": 49408,
    "max_position_embeddings": 77,
}
_SIGLIP = {"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6, "attention_dropout": 0.0}
_SIGLIP_IMAGE = {**_SIZES, **_SIGLIP, "image_size": 224, "patch_size": 16}
_SIGLIP_TEXT = {
    **_SIZES,
    **_SIGLIP,
    "vocab_size": 32000,
    "max_position_embeddings": 64,
    "pad_token_id": 1,
}


@dataclass(frozen=True)
class Stack:
    """The layers of a transformer.

    Attributes:
      layers: number of layers, each of attention and two linear maps with an activation between.
      width: numbers in a state.
      heads: number of attention heads, a divisor of the width.
      inner: numbers between the two linear maps.
      activation: one of the values of `ACTIVATIONS`.
      epsilon: added to the variance in layer normalisation.
      norm_first: whether normalisation comes before attention and maps (CLIP), or after (BERT).
      dropout: rate of dropout of embeddings and after attention and maps.
      attention_dropout: rate of dropout of attention weights.
      adapter_rank: rank of the adapters that are added to the maps of attention; 0 adds none.
    """

    layers: int
    width: int
    heads: int
    inner: int
    activation: str
    epsilon: float
    norm_first: bool
    dropout: float
    attention_dropout: float
    adapter_rank: int = 0


@dataclass(frozen=True)
class PieceIds:
    """Ids of a tokenizer that the augmentation of captions needs.

    Attributes:
      count: ids are below this number.
      mask: id of the token for a hidden word.
      special: ids that are not pieces of a word, including `mask`.
      continuations: ids of pieces that continue the word of the previous piece.
    """

    count: int
    mask: int
    special: tuple[int, ...]
    continuations: tuple[int, ...]


@dataclass(frozen=True)
class TextBase:
    """A text transformer, `[J, L]` token ids to states.

    Attributes:
      kind: one of `KINDS`.
      stack: its layers.
      pieces: rows of its embedding table, so ids are 0 to `pieces - 1`.
      positions: maximum number of tokens per caption, including start and end.
      segments: rows of its table of segments; 0 without one. Captions are segment 0.
      pooling: state used as the vector of a caption: the first, the mean of all, the state at the
        caption's end, or the last position, padding or not (see `POOLINGS`).
      projection: size of this vector, if a final linear map computes it from the state; else 0.
      padding: id of the padding.
      ids: other ids of its tokenizer; None if that has no mask token, or is not read.
    """

    kind: str
    stack: Stack
    pieces: int
    positions: int
    segments: int
    pooling: str
    projection: int
    padding: int
    ids: PieceIds | None = None

    @property
    def width(self) -> int:
        """Numbers in a state."""
        return self.projection or self.stack.width

    @property
    def pads_to_limit(self) -> bool:
        """Whether every caption is padded to `positions` tokens, without a mask."""
        return self.kind == "siglip"


@dataclass(frozen=True)
class ImageBase:
    """A vision transformer, `[I, S, S, 3]` pixels to states.

    Attributes:
      kind: "clip" or "siglip".
      stack: its layers.
      image_size: S, height and width of a picture in pixels.
      patch_size: height and width of a patch in pixels, a divisor of S.
      projection: size of the vector of a picture, if a final linear map computes it; else 0.
      preparation: preprocessing of its pictures; None if it is not read.
      smallest_crop: smallest side of the random crops in training, relative to the whole; 0
        disables cropping.
    """

    kind: str
    stack: Stack
    image_size: int
    patch_size: int
    projection: int
    preparation: Preparation | None = None
    smallest_crop: float = 0.0

    @property
    def width(self) -> int:
        """Numbers in a state."""
        return self.projection or self.stack.width

    @property
    def patches(self) -> int:
        """Number of patches of a picture."""
        return (self.image_size // self.patch_size) ** 2


@dataclass(frozen=True)
class Bases:
    """Bases of a model; None for an encoder without a base."""

    text: TextBase | None = None
    image: ImageBase | None = None


def read_text_base(config: Mapping[str, Any], pooling: str = "first") -> TextBase:
    """Read the text transformer that a parsed config.json describes.

    Args:
      config: the object of the file.
      pooling: "first" or "mean": the vector of a BERT. CLIP and SigLIP define their own vector.

    Raises:
      DataError: an unknown `model_type`, or fields that are not supported or not valid numbers; the
        message lists all of them.
    """
    kind = read_model_type(config)
    if kind == "bert":
        reader = _Fields(config, "", _BERT)
        expected = {"position_embedding_type": "absolute", "is_decoder": False}
        for field, value in expected.items():
            if config.get(field, value) != value:
                reader.problems.append(f"{field}: found {config[field]!r}, expected {value!r}")
        rates = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    else:
        section = _section(config, "text_config")
        reader = _Fields(section, "text_config.", _CLIP_TEXT if kind == "clip" else _SIGLIP_TEXT)
        rates = ("", "attention_dropout")
    stack = _read_stack(reader, rates, norm_first=kind != "bert")
    pieces, positions = reader.size("vocab_size"), reader.size("max_position_embeddings")
    segments, projection, padding = 0, 0, 0
    if kind == "bert":
        segments = reader.size("type_vocab_size")
    elif kind == "clip":
        projection, pooling = _size_or(config, "projection_dim", 512, reader), "end"
    else:
        projection = _size_or(section, "projection_size", stack.width, reader)
        padding, pooling = reader.number("pad_token_id", 0), "last"
    reader.raise_all()
    return TextBase(kind, stack, pieces, positions, segments, pooling, projection, padding)


def read_image_base(config: Mapping[str, Any]) -> ImageBase:
    """Read the vision transformer that a parsed config.json describes.

    Raises:
      DataError: as `read_text_base`.
    """
    kind = read_model_type(config)
    if kind == "bert":
        raise DataError("model_type: found 'bert', a text model, expected clip or siglip")
    section = _section(config, "vision_config")
    reader = _Fields(section, "vision_config.", _CLIP_IMAGE if kind == "clip" else _SIGLIP_IMAGE)
    stack = _read_stack(reader, ("", "attention_dropout"), norm_first=True)
    image, patch = reader.size("image_size"), reader.size("patch_size")
    if section.get("num_channels", 3) != 3:
        reader.problems.append(
            f"vision_config.num_channels: found {section['num_channels']!r}, expected 3"
        )
    if patch and image % patch:
        reader.problems.append(
            f"vision_config.image_size: found {image}, expected a multiple of patch_size {patch}"
        )
    projection = _size_or(config, "projection_dim", 512, reader) if kind == "clip" else 0
    reader.raise_all()
    return ImageBase(kind, stack, image, patch, projection)


def read_model_type(config: Mapping[str, Any]) -> str:
    """Read the `model_type` of a parsed config.json, one of `KINDS`.

    Raises:
      DataError: it is another.
    """
    kind = config.get("model_type")
    if kind not in KINDS:
        raise DataError(
            f"model_type: found {kind!r}, expected {', '.join(KINDS[:-1])} or {KINDS[-1]}"
        )
    return kind


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a nested object; older files of CLIP keep differences from it in `{name}_dict`."""
    section: dict[str, Any] = {}
    for key in (name, f"{name}_dict"):
        part = config.get(key) or {}
        if not isinstance(part, Mapping):
            raise DataError(f"{key}: found a {type(part).__name__}, expected an object")
        section |= part
    return section


def _size_or(config: Mapping[str, Any], field: str, default: int, reader: "_Fields") -> int:
    own = _Fields(config, "", {field: default})
    size = own.size(field)
    reader.problems += own.problems
    return size


def _read_stack(reader: "_Fields", rates: tuple[str, str], norm_first: bool) -> Stack:
    width, heads = reader.size("hidden_size"), reader.size("num_attention_heads")
    if heads and width % heads:
        reader.problems.append(
            f"{reader.prefix}hidden_size: found {width}, expected a multiple of "
            f"num_attention_heads {heads}"
        )
    activation = reader.value("hidden_act")
    if activation not in ACTIVATIONS:
        reader.problems.append(
            f"{reader.prefix}hidden_act: found {activation!r}, expected {', '.join(ACTIVATIONS)}"
        )
    dropout, attention_dropout = (reader.rate(rate) if rate else 0.0 for rate in rates)
    return Stack(
        layers=reader.size("num_hidden_layers"),
        width=width,
        heads=heads,
        inner=reader.size("intermediate_size"),
        activation=ACTIVATIONS.get(activation, ""),
        epsilon=reader.number("layer_norm_eps", 0.0),
        norm_first=norm_first,
        dropout=dropout,
        attention_dropout=attention_dropout,
    )


class _Fields:
    """Reader of fields with defaults that collects the errors."""

    def __init__(self, config: Mapping[str, Any], prefix: str, defaults: Mapping[str, Any]):
        self._config, self.prefix, self._defaults = config, prefix, defaults
        self.problems: list[str] = []

    def value(self, field: str) -> Any:
        return self._config.get(field, self._defaults[field])

    def size(self, field: str) -> int:
        """Read a positive integer up to `MOST`; 0 if it is invalid."""
        most = MOST.get(field, MOST_ROWS)
        expected = f"a positive integer of at most {most:,}"
        return self._checked(field, lambda x: type(x) is int and 0 < x <= most, expected, 0)

    def rate(self, field: str) -> float:
        """Read a number from 0 to below 1."""
        return self._checked(field, lambda x: is_number(x) and 0 <= x < 1, "0 to below 1", 0.0)

    def number(self, field: str, least: float) -> Any:
        """Read a number of at least `least`."""
        expected = f"a number of at least {least}"
        return self._checked(field, lambda x: is_number(x) and x >= least, expected, least)

    def _checked(
        self, field: str, is_valid: Callable[[Any], bool], expected: str, otherwise: Any
    ) -> Any:
        value = self.value(field)
        if is_valid(value):
            return value
        self.problems.append(f"{self.prefix}{field}: found {value!r}, expected {expected}")
        return otherwise

    def raise_all(self) -> None:
        if self.problems:
            raise DataError(*self.problems)


def with_dropout(base: TextBase | ImageBase, rate: float) -> TextBase | ImageBase:
    """Copy a base with another dropout rate, wherever it has dropout."""
    stack = dataclasses.replace(base.stack, dropout=rate, attention_dropout=rate)
    return dataclasses.replace(base, stack=stack)
