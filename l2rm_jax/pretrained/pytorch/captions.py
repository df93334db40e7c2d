"""Encode captions with a text model of transformers, as vectors or as vectors of words."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int, Int32

from l2rm_jax.pretrained.feature_encoder import CaptionFeatures
from l2rm_jax.pretrained.pytorch.library import (
    as_float16,
    describe_model,
    exact_inference,
    unit_length,
)

MAX_TOKENS = 64  # training uses no more of a caption
_BATCH = 128
_MARKS = ("bos", "eos", "cls", "sep", "pad")  # tokens that are not part of a caption

_log = logging.getLogger(__name__)


class CaptionModel:
    """A text model with its tokenizer, the caption half of an encoder.

    Args:
      name: name of the model, for messages.
      model: the model, on its device.
      tokenizer: a tokenizer of transformers.
      limit: maximum number of tokens of the model, including start and end.
      encode: turns inputs of the model into vectors [n, D] and states of tokens [n, L, D], both
        tensors. Without `with_tokens` the states are not used and may be None.
      with_tokens: return the words of a caption, which is cut at `MAX_TOKENS`, after its vector.
      pads_to_limit: whether the model was trained on captions padded to the limit.

    Attributes:
      cut: number of captions so far that exceeded the limit and lost their end.
    """

    def __init__(
        self,
        name: str,
        model: Any,
        tokenizer: Any,
        limit: int,
        encode: Callable[[Any], tuple[Any, Any]],
        *,
        with_tokens: bool,
        pads_to_limit: bool = False,
    ):
        self._name, self._model, self._tokenizer, self._encode = name, model, tokenizer, encode
        self._limit = min(limit, MAX_TOKENS) if with_tokens else limit
        # The whole caption takes one position, tokens for start and end take none.
        self._width = self._limit + 1 - tokenizer.num_special_tokens_to_add()
        self._with_tokens = with_tokens
        self._padding = "max_length" if pads_to_limit else "longest"
        ids = [getattr(tokenizer, f"{mark}_token_id", None) for mark in _MARKS]
        self._mark_ids = [i for i in ids if i is not None]
        self.cut = 0

    def describe(self) -> dict[str, Any]:
        """Describe the model and the sizes of its vectors, for `dataset.json`."""
        features = self._encode_batch(["a"])[0].shape[-1]
        return {
            **describe_model("transformers", self._name, self._model),
            "kind": "tokens" if self._with_tokens else "vector",
            "words": self._width if self._with_tokens else 1,
            "features": features,
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
            vectors, states = self._encode(inputs.to(self._model.device))
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
