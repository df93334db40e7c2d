"""Sentence encoders: language models of transformers whose token states are pooled to one vector.

The pooling is read from the files of sentence-transformers, if the model has them: the mean of all
tokens, the first or the last one. Other steps after the model, such as further layers, are
rejected. A plain language model is pooled by the mean. Vectors have unit length.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.pretrained.pytorch.captions import CaptionModel
from l2rm_jax.pretrained.pytorch.library import (
    from_directory_cache_or_network,
    library,
    load_model,
    on_device,
)

_FILES = "config.json, model.safetensors and the files of the tokenizer"


def _mean(states: Any, mask: Any) -> Any:
    weights = mask[:, :, None].to(states.dtype)
    return (states * weights).sum(dim=1) / weights.sum(dim=1)


def _first(states: Any, mask: Any) -> Any:
    return states[range(len(states)), mask.argmax(dim=1)]


def _last(states: Any, mask: Any) -> Any:
    places = mask * library("torch").arange(mask.shape[1], device=mask.device)
    return states[range(len(states)), places.argmax(dim=1)]


_POOLS = {"mean_tokens": _mean, "cls_token": _first, "lasttoken": _last}


def load_sentence_encoder(name: str, with_tokens: bool) -> CaptionModel:
    """Load a language model with its tokenizer.

    Raises:
      ConfigError, DataError: as `make_encoder`.
    """
    model = load_model(name, _FILES, unused=("pooler.",))
    model.pooler = None  # not used, and random where the file lacks it
    if model.config.is_encoder_decoder:
        raise ConfigError(f"encoder: found the encoder-decoder {name}, expected a text encoder")
    load_tokenizer = library("transformers").AutoTokenizer.from_pretrained
    tokenizer = from_directory_cache_or_network(load_tokenizer, name, _FILES)
    model, pool = on_device(model), _pooling(name)
    settings = _read_json(name, "sentence_bert_config.json") or {}
    limits = (
        settings.get("max_seq_length"),
        tokenizer.model_max_length,
        getattr(model.config, "max_position_embeddings", None),
    )

    def encode(inputs: Any) -> tuple[Any, Any]:
        states = model(**inputs).last_hidden_state
        return pool(states, inputs["attention_mask"]), states

    limit = min(number for number in limits if number)
    return CaptionModel(name, model, tokenizer, limit, encode, with_tokens=with_tokens)


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


def _pooling(name: str) -> Callable[[Any, Any], Any]:
    """Return the function that pools states [n, L, D] with a mask [n, L] to vectors [n, D].

    Raises:
      ConfigError: the model has another kind of pooling, or layers after it.
    """
    steps = [step["type"].rpartition(".")[2] for step in _read_json(name, "modules.json") or []]
    if not steps:
        return _mean
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
    return _POOLS[modes[0]]
