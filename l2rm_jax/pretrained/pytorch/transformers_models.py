"""Models of transformers: dual encoders of images and captions, and sentence encoders.

A dual encoder compares images with captions: CLIP, SigLIP, SigLIP 2 and others. Its vectors are the
outputs of its `get_image_features` and `get_text_features`, scaled to unit length, so that products
of vectors are the cosines that the model compares. With tokens, the same vector comes first, as the
region of the whole picture and the word of the whole caption. After it come the patches and the
words in reading order, without the tokens for class, start, end and padding. Their states go
through the same last layers as the vector: in CLIP, the final norm and the projection; in SigLIP,
whose vector of an image is an attention over patches, the final norm, and for words its last linear
layer. All have unit length.

A sentence encoder is a language model whose states are pooled to one vector of unit length, as the
files of sentence-transformers say, if the model has them: the mean of all tokens, the first or the
last one. Other steps, such as further layers, are rejected. A plain language model is pooled by the
mean.
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Int32
from PIL import Image

from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.pretrained.feature_encoder import (
    MAX_TOKENS,
    CaptionFeatures,
    PictureEncoder,
    as_float16,
)
from l2rm_jax.pretrained.pytorch.library import (
    describe_model,
    exact_inference,
    from_directory_cache_or_network,
    library,
    load_model,
    on_device,
    picture_encoder,
    unit_length,
)

_CLIPS = ("clip", "metaclip_2")
_SIGLIPS = ("siglip", "siglip2")
_BATCH = 128  # captions that a model gets at once
_MARKS = ("bos", "eos", "cls", "sep", "pad")  # tokens that are not part of a caption
_SENTENCE_FILES = "config.json, model.safetensors and the files of the tokenizer"

_log = logging.getLogger(__name__)


class CaptionModel:
    """A text model with its tokenizer, the caption half of an encoder.

    Args:
      name: name of the model, for messages.
      described: the model, as `describe_model` says.
      tokenizer: a tokenizer of transformers.
      limit: maximum number of tokens of the model, including start and end.
      encode: turns the tokenizer's output into vectors [n, D] and states of tokens [n, L, D], both
        tensors. Without `with_tokens` the states are not used and may be None.
      with_tokens: return the words of a caption, which is cut at `MAX_TOKENS`, after its vector.
      pads_to_limit: whether the model was trained on captions padded to the limit.

    Attributes:
      description: the model and the sizes of its vectors, for `dataset.json`.
      cut: number of captions so far that exceeded the limit and lost their end.
    """

    def __init__(
        self,
        name: str,
        described: Mapping[str, str],
        tokenizer: Any,
        limit: int,
        encode: Callable[[Any], tuple[Any, Any]],
        *,
        with_tokens: bool,
        pads_to_limit: bool = False,
    ):
        self._name, self._tokenizer, self._encode = name, tokenizer, encode
        self._limit = min(limit, MAX_TOKENS) if with_tokens else limit
        # The whole caption takes one position, tokens for start and end take none.
        self._width = self._limit + 1 - tokenizer.num_special_tokens_to_add()
        self._with_tokens = with_tokens
        self._padding = "max_length" if pads_to_limit else "longest"
        ids = [getattr(tokenizer, f"{mark}_token_id", None) for mark in _MARKS]
        self._mark_ids = [i for i in ids if i is not None]
        self.cut = 0
        self.description = {
            **described,
            "kind": "tokens" if with_tokens else "vector",
            "words": self._width if with_tokens else 1,
            "features": self._encode_batch(["a"])[0].shape[-1],
        }

    def encode(self, texts: Sequence[str]) -> CaptionFeatures:
        """Encode captions as unit vectors; with tokens, also their words.

        Captions of similar length share a batch. The batches depend only on `texts`.
        """
        ids = self._tokenizer(list(texts), verbose=False)["input_ids"]
        sizes = np.array([len(row) for row in ids])
        self._count_cut(texts, sizes)
        order = np.argsort(sizes, kind="stable")
        batches = [
            self._encode_batch([texts[row] for row in order[start : start + _BATCH]])
            for start in range(0, len(order), _BATCH)
        ]
        back = np.argsort(order)
        vectors, lengths = (np.concatenate(parts)[back] for parts in zip(*batches, strict=True))
        features = as_float16(self._name, unit_length(vectors))
        return features, lengths if self._with_tokens else None

    def _count_cut(self, texts: Sequence[str], sizes: Int[np.ndarray, " n"]) -> None:
        """Count captions that are too long; warn of the first one."""
        too_long = np.flatnonzero(sizes > self._limit)
        if len(too_long) and not self.cut:
            first = too_long[0]
            text = "%s: captions with more than %d tokens lose the rest; the first has %d: %r..."
            _log.warning(text, self._name, self._limit, sizes[first], texts[first][:40])
        self.cut += len(too_long)

    def _encode_batch(self, texts: list[str]) -> tuple[np.ndarray, Int32[np.ndarray, " n"]]:
        inputs = self._tokenizer(
            texts,
            padding=self._padding,
            truncation=True,
            max_length=self._limit,
            return_tensors="pt",
        )
        is_word = ~np.isin(inputs["input_ids"].numpy(), self._mark_ids)  # [n, L]
        with exact_inference():
            vectors, states = self._encode(inputs)
            vectors = vectors.cpu().numpy()
            if not self._with_tokens:
                return vectors, np.ones(len(texts), np.int32)
            states = states.cpu().numpy()
        # The vector of the caption, then of its words; zeros after the last one.
        packed = np.zeros((len(states), self._width, states.shape[2]), states.dtype)
        packed[:, 0] = vectors
        caption, _ = np.nonzero(is_word)
        place = is_word.cumsum(axis=1)[is_word]  # 1 for the first word of a caption
        packed[caption, place] = states[is_word]
        return packed, (1 + is_word.sum(axis=1)).astype(np.int32)


def load_dual(name: str, with_tokens: bool) -> tuple[PictureEncoder, CaptionModel]:
    """Load a dual encoder with its image processor and its tokenizer.

    Raises:
      ConfigError, DataError: as `make_encoder`.
    """
    config, is_dual = _read_config(name)
    if not is_dual:
        raise ConfigError(
            f"encoder: found transformers:{name}, expected a model that compares images with "
            "captions",
            hint=f"only for captions: --encoder=timm:NAME+transformers:{name}",
        )
    if with_tokens and config.model_type not in _CLIPS + _SIGLIPS:
        raise ConfigError(
            f"--tokens=patches: found {config.model_type} ({name}), expected one of "
            f"{', '.join(_CLIPS + _SIGLIPS)}"
        )
    transformers, model = library("transformers"), load_model(name)
    # Pillow resizes as the authors of CLIP do, whether or not torchvision is installed.
    load_processor = partial(transformers.AutoImageProcessor.from_pretrained, backend="pil")
    processor = from_directory_cache_or_network(load_processor, name)
    tokenizer = from_directory_cache_or_network(transformers.AutoTokenizer.from_pretrained, name)
    model = on_device(model)
    described = describe_model("transformers", name, model)

    def encode_pictures(pictures: Sequence[Image.Image]) -> Float[np.ndarray, "n ..."]:
        inputs = processor(
            images=list(pictures), input_data_format="channels_last", return_tensors="pt"
        ).to(model.device)
        output = model.get_image_features(**inputs)
        features = output.pooler_output
        if with_tokens:
            patches = _patches(model, output.last_hidden_state, inputs)
            features = library("torch").cat([features[:, None], patches], dim=1)
        return unit_length(features.cpu().numpy())

    def encode_texts(inputs: Any) -> tuple[Any, Any]:
        output = model.get_text_features(**inputs.to(model.device))
        if not with_tokens:
            return output.pooler_output, None
        project = model.text_model.head if is_siglip else model.text_projection
        return output.pooler_output, project(output.last_hidden_state)

    is_siglip = config.model_type in _SIGLIPS
    limit = min(tokenizer.model_max_length, model.config.text_config.max_position_embeddings)
    kind = "patches" if with_tokens else "vector"
    return picture_encoder(kind, described, encode_pictures), CaptionModel(
        name,
        described,
        tokenizer,
        limit,
        encode_texts,
        with_tokens=with_tokens,
        pads_to_limit=is_siglip,  # its vector is the state of the last token, padding or not
    )


def _read_config(name: str) -> tuple[Any, bool]:
    """Read the config of a model, and whether it has vectors of both images and captions."""
    transformers = library("transformers")
    config = from_directory_cache_or_network(transformers.AutoConfig.from_pretrained, name)
    made = transformers.MODEL_MAPPING.get(type(config), None)
    return config, hasattr(made, "get_image_features") and hasattr(made, "get_text_features")


def _patches(model: Any, states: Any, inputs: Any) -> Any:
    """Patches in the space of the vectors, [n, R, D]."""
    if model.config.model_type in _CLIPS:
        return model.visual_projection(model.vision_model.post_layernorm(states[:, 1:]))
    if "spatial_shapes" not in inputs:
        return states
    # Pictures of any shape (SigLIP 2 NaFlex), padded to the same number of patches: average each
    # in the largest square grid that does not exceed this number.
    torch = library("torch")
    side = int(states.shape[1] ** 0.5)
    grids = []
    for state, (height, width) in zip(states, inputs["spatial_shapes"].tolist(), strict=True):
        grid = state[: height * width].T.reshape(-1, height, width)
        grids.append(torch.nn.functional.adaptive_avg_pool2d(grid, side).flatten(1).T)
    return torch.stack(grids)


def load_captions(name: str, with_tokens: bool) -> CaptionModel:
    """Load the caption half of a dual encoder, or a sentence encoder.

    Raises:
      ConfigError, DataError: as `make_encoder`.
    """
    if _read_config(name)[1]:
        return load_dual(name, with_tokens)[1]
    model = load_model(name, _SENTENCE_FILES, unused=("pooler.",))
    model.pooler = None  # not used, and random where the file lacks it
    if model.config.is_encoder_decoder:
        raise ConfigError(f"encoder: found the encoder-decoder {name}, expected a text encoder")
    load_tokenizer = library("transformers").AutoTokenizer.from_pretrained
    tokenizer = from_directory_cache_or_network(load_tokenizer, name, _SENTENCE_FILES)
    model, weights_of = on_device(model), _POOLS[_pooling(name)]
    settings = _read_json(name, "sentence_bert_config.json") or {}
    limits = (
        settings.get("max_seq_length"),
        tokenizer.model_max_length,
        getattr(model.config, "max_position_embeddings", None),
    )

    def encode(inputs: Any) -> tuple[Any, Any]:
        inputs = inputs.to(model.device)
        states = model(**inputs).last_hidden_state
        weights = weights_of(inputs["attention_mask"])[:, :, None].to(states.dtype)
        pooled = states.masked_fill(weights == 0, 0) * weights
        return pooled.sum(dim=1) / weights.sum(dim=1).clamp(min=1), states

    limit = min(number for number in limits if number)
    described = describe_model("transformers", name, model)
    return CaptionModel(name, described, tokenizer, limit, encode, with_tokens=with_tokens)


def _read_json(name: str, file: str) -> Any:
    """Read a JSON file of a model; None if the model has no such file."""
    cached_file = library("transformers").utils.cached_file
    path = cached_file(
        name,
        file,
        local_files_only=Path(name).is_dir(),
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    if path is None:
        return None
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error}), expected JSON") from error


# The weight of each token in the vector of a caption, by the kind of pooling and the mask [n, L].
_POOLS: dict[str, Callable[[Any], Any]] = {
    "mean_tokens": lambda mask: mask,
    "cls_token": lambda mask: mask * (mask.cumsum(dim=1) == 1),
    "lasttoken": lambda mask: mask * (mask.cumsum(dim=1) == mask.sum(dim=1, keepdim=True)),
}


def _pooling(name: str) -> str:
    """Read the kind of pooling of a model, one of `_POOLS`.

    Raises:
      ConfigError: the model has another kind of pooling, or layers after it.
    """
    steps = [step["type"].rpartition(".")[2] for step in _read_json(name, "modules.json") or []]
    if not steps:
        return "mean_tokens"
    if steps[:2] != ["Transformer", "Pooling"] or set(steps[2:]) - {"Normalize"}:
        raise ConfigError(
            f"encoder: found the steps {', '.join(steps)} in {name}, expected Transformer, Pooling "
            "and optionally Normalize"
        )
    settings = _read_json(name, "1_Pooling/config.json") or {}
    modes = [mode for mode in settings if mode.startswith("pooling_mode_") and settings[mode]]
    modes = [mode.removeprefix("pooling_mode_") for mode in modes]
    if len(modes) != 1 or modes[0] not in _POOLS:
        raise ConfigError(
            f"encoder: found pooling by {', '.join(modes) or 'nothing'} in {name}, expected one of "
            f"{', '.join(_POOLS)}"
        )
    return modes[0]
