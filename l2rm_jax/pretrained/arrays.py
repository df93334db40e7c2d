"""Map the arrays of a weight file to our parameters.

PyTorch keeps the kernel of a linear layer as `[outputs, inputs]`, Flax as `[inputs, outputs]`. A
file has separate arrays for each layer; ours are stacked, `[layers, ...]`, as `nn.scan` requires.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from l2rm_jax.pretrained.specs import Bases, ImageBase, Stack, TextBase

Shape = tuple[int, ...]

_ATTENTION = ("query", "key", "value", "out")
_LINEAR = (*_ATTENTION, "inner", "outer")
_BERT_BLOCK = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "inner": "intermediate.dense",
    "outer": "output.dense",
    "map_norm": "output.LayerNorm",
}
_CLIP_BLOCK = {
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "out": "self_attn.out_proj",
    "attention_norm": "layer_norm1",
    "inner": "mlp.fc1",
    "outer": "mlp.fc2",
    "map_norm": "layer_norm2",
}
# Names, or prefixes of names, that a file may have in addition to the arrays of the model.
_UNUSED = {
    "bert": ("pooler.", "cls.", "classifier."),
    "clip": ("logit_scale",),
    "siglip": ("logit_scale", "logit_bias"),
}
# Prefixes of the names of each encoder of CLIP and SigLIP.
_TEXT, _IMAGE = ("text_",), ("vision_", "visual_")
_POSITION_IDS = "embeddings.position_ids"  # ending of a name in files of older versions


class ArrayPlace(NamedTuple):
    """An array of a file, and its place in our parameters.

    Attributes:
      name: its name in the file.
      shape: its shape in the file.
      path: keys of our parameters.
      change: converts the array of the file to ours.
      layer: the row of our array, if ours is stacked over the layers.
    """

    name: str
    shape: Shape
    path: tuple[str, ...]
    change: Callable[[np.ndarray], np.ndarray]
    layer: int | None = None


def text_places(base: TextBase) -> list[ArrayPlace]:
    """List the arrays of a text transformer."""
    width = base.stack.width
    if base.kind == "bert":
        table = "embeddings.{}_embeddings.weight"
        return [
            _as_is(table.format("word"), (base.pieces, width), "words"),
            _as_is(table.format("position"), (base.positions, width), "positions"),
            _as_is(table.format("token_type"), (base.segments, width), "segments"),
            *_norm("embeddings.LayerNorm", width, "norm"),
            *_blocks("encoder.layer", base.stack, _BERT_BLOCK),
        ]
    table = "text_model.embeddings.{}_embedding.weight"
    places = [
        _as_is(table.format("token"), (base.pieces, width), "words"),
        _as_is(table.format("position"), (base.positions, width), "positions"),
        *_blocks("text_model.encoder.layers", base.stack, _CLIP_BLOCK),
        *_norm("text_model.final_layer_norm", width, "norm"),
    ]
    if base.kind == "clip":
        return [*places, _kernel("text_projection", width, base.projection, "projection")]
    return [*places, *_linear("text_model.head", width, base.projection, "projection")]


def image_places(base: ImageBase) -> list[ArrayPlace]:
    """List the arrays of a vision transformer."""
    width, side, is_clip = base.stack.width, base.patch_size, base.kind == "clip"
    table = "vision_model.embeddings"
    positions = (base.patches + is_clip, width)
    patches = f"{table}.patch_embedding"
    places = [
        ArrayPlace(
            f"{patches}.weight", (width, 3, side, side), ("patches", "kernel"), _patch_kernel
        ),
        _as_is(f"{table}.position_embedding.weight", positions, "positions"),
        *_blocks("vision_model.encoder.layers", base.stack, _CLIP_BLOCK),
        *_norm("vision_model.post_layernorm", width, "norm"),
    ]
    if is_clip:
        return [
            *places,
            _as_is(f"{table}.class_embedding", (width,), "first"),
            *_norm("vision_model.pre_layrnorm", width, "embedding_norm"),
            _kernel("visual_projection", width, base.projection, "projection"),
        ]
    return [*places, _as_is(f"{patches}.bias", (width,), "patches", "bias"), *_pooling(base)]


def _pooling(base: ImageBase) -> Iterator[ArrayPlace]:
    """SigLIP's attention over the patches, whose query is learned."""
    width, head = base.stack.width, "vision_model.head"
    yield ArrayPlace(f"{head}.probe", (1, 1, width), ("pooling", "probe"), np.ravel)
    for row, name in enumerate(("query", "key", "value")):
        part = slice(row * width, (row + 1) * width)
        shape = (3 * width, width)
        path = ("pooling", "attention", name)
        yield ArrayPlace(
            f"{head}.attention.in_proj_weight", shape, (*path, "kernel"), _rows_of(part)
        )
        yield ArrayPlace(
            f"{head}.attention.in_proj_bias", shape[:1], (*path, "bias"), _part_of(part)
        )
    yield from _linear(f"{head}.attention.out_proj", width, width, "pooling", "attention", "out")
    yield from _norm(f"{head}.layernorm", width, "pooling", "norm")
    yield from _linear(f"{head}.mlp.fc1", width, base.stack.inner, "pooling", "inner")
    yield from _linear(f"{head}.mlp.fc2", base.stack.inner, width, "pooling", "outer")


def group_places(bases: Bases) -> dict[str, list[ArrayPlace]]:
    """List the arrays of each base, by the name of its parameter group."""
    places = {}
    if bases.text:
        places["text_base"] = text_places(bases.text)
    if bases.image:
        places["image_base"] = image_places(bases.image)
    return places


def place_arrays(
    places: Iterable[ArrayPlace], read: Callable[[str], np.ndarray]
) -> dict[str, np.ndarray | dict]:
    """Make the tree of our parameters.

    Args:
      places: the arrays and their places.
      read: returns the array of a name.
    """
    stacked: dict[tuple[str, ...], list[np.ndarray]] = {}
    for place in places:
        array = place.change(read(place.name))
        stacked.setdefault(place.path, []).append(array)
    layered = {place.path for place in places if place.layer is not None}
    tree: dict = {}
    for path, arrays in stacked.items():
        branch = tree
        for key in path[:-1]:
            branch = branch.setdefault(key, {})
        branch[path[-1]] = np.stack(arrays) if path in layered else arrays[0]
    return tree


def our_name(kind: str, name: str) -> str:
    """Normalise the name of an array; some files have a prefix or older endings."""
    if kind == "bert":
        name = name.removeprefix("bert.")
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight")
        name = name.replace("LayerNorm.beta", "LayerNorm.bias")
    return name


def may_be_left_over(bases: Bases, name: str) -> bool:
    """Whether a file may hold an array of this name that these bases do not use."""
    kind = (bases.text or bases.image).kind
    sides = (*(() if bases.text else _TEXT), *(() if bases.image else _IMAGE))
    return name.startswith((*_UNUSED[kind], *sides)) or name.endswith(_POSITION_IDS)


def _as_is(name: str, shape: Shape, *path: str) -> ArrayPlace:
    return ArrayPlace(name, shape, path, _same)


def _norm(name: str, width: int, *path: str) -> list[ArrayPlace]:
    return [
        _as_is(f"{name}.weight", (width,), *path, "scale"),
        _as_is(f"{name}.bias", (width,), *path, "bias"),
    ]


def _kernel(name: str, inputs: int, outputs: int, *path: str) -> ArrayPlace:
    return ArrayPlace(f"{name}.weight", (outputs, inputs), (*path, "kernel"), np.transpose)


def _linear(name: str, inputs: int, outputs: int, *path: str) -> list[ArrayPlace]:
    return [
        _kernel(name, inputs, outputs, *path),
        _as_is(f"{name}.bias", (outputs,), *path, "bias"),
    ]


def _blocks(prefix: str, stack: Stack, names: Mapping[str, str]) -> Iterator[ArrayPlace]:
    sizes = {"inner": (stack.width, stack.inner), "outer": (stack.inner, stack.width)}
    for layer in range(stack.layers):
        for ours, theirs in names.items():
            name = f"{prefix}.{layer}.{theirs}"
            path = ("blocks", "attention", ours) if ours in _ATTENTION else ("blocks", ours)
            if ours in _LINEAR:
                places = _linear(name, *sizes.get(ours, (stack.width, stack.width)), *path)
            else:
                places = _norm(name, stack.width, *path)
            yield from (place._replace(layer=layer) for place in places)


def _same(array: np.ndarray) -> np.ndarray:
    return array


def _patch_kernel(array: np.ndarray) -> np.ndarray:
    """Reshape a convolution `[D, 3, P, P]` to a linear map of flat patches `[P P 3, D]`."""
    return array.transpose(2, 3, 1, 0).reshape(-1, len(array))


def _rows_of(part: slice) -> Callable[[np.ndarray], np.ndarray]:
    return lambda array: array[part].T


def _part_of(part: slice) -> Callable[[np.ndarray], np.ndarray]:
    return lambda array: array[part]
