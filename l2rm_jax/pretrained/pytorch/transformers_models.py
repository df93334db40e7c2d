"""Models of transformers that compare images with captions: CLIP, SigLIP, SigLIP 2 and others.

The vectors are the outputs of the model's `get_image_features` and `get_text_features`, scaled to
unit length, so that products of vectors are the cosines that the model compares.

With tokens, the same vector comes first, as the region of the whole picture and the word of the
whole caption. After it come the patches and the words in reading order, without the tokens for
class, start, end and padding. Their states go through the same last layers as the vector: in CLIP,
the final norm and the projection; in SigLIP, whose vector of an image is an attention over patches,
the final norm, and for words its last linear layer. All have unit length.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float, Float16
from PIL import Image

from l2rm_jax.errors import ConfigError
from l2rm_jax.pretrained.pytorch.captions import CaptionModel
from l2rm_jax.pretrained.pytorch.library import (
    as_float16,
    describe_model,
    exact_inference,
    from_directory_cache_or_network,
    library,
    load_model,
    on_device,
    unit_length,
)

_CLIPS = ("clip", "metaclip_2")
_SIGLIPS = ("siglip", "siglip2")
_BATCH = 32


def _read_config(name: str) -> Any:
    config = library("transformers").AutoConfig
    return from_directory_cache_or_network(config.from_pretrained, name)


def is_dual(name: str) -> bool:
    """Whether a model has vectors of both images and captions."""
    made = library("transformers").MODEL_MAPPING.get(type(_read_config(name)), None)
    return hasattr(made, "get_image_features") and hasattr(made, "get_text_features")


def load_dual(name: str, with_tokens: bool) -> tuple["DualImages", CaptionModel]:
    """Load a model with its image processor and its tokenizer.

    Raises:
      ConfigError, DataError: as `make_encoder`.
    """
    if not is_dual(name):
        raise ConfigError(
            f"encoder: found transformers:{name}, expected a model that compares images with "
            "captions",
            hint=f"only for captions: --encoder=timm:NAME+transformers:{name}",
        )
    config = _read_config(name)
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
    return (
        DualImages(name, model, processor, with_tokens),
        _caption_model(name, model, tokenizer, with_tokens),
    )


class DualImages:
    """The image half of a dual encoder."""

    def __init__(self, name: str, model: Any, processor: Any, with_tokens: bool):
        self._name, self._model, self._processor = name, model, processor
        self._with_tokens = with_tokens

    def describe(self) -> dict[str, Any]:
        *regions, features = self.encode([Image.new("RGB", (64, 64))]).shape[1:]
        return {
            **describe_model("transformers", self._name, self._model),
            "kind": "patches" if self._with_tokens else "vector",
            "regions": regions[0] if regions else 1,
            "features": features,
        }

    def encode(
        self, pictures: Sequence[Image.Image]
    ) -> Float16[np.ndarray, "n D"] | Float16[np.ndarray, "n R D"]:
        """Encode pictures as unit vectors; with tokens, also their patches."""
        starts = range(0, len(pictures), _BATCH)
        parts = [self._encode_batch(pictures[start : start + _BATCH]) for start in starts]
        return as_float16(self._name, unit_length(np.concatenate(parts)))

    def _encode_batch(self, pictures: Sequence[Image.Image]) -> Float[np.ndarray, "n ..."]:
        inputs = self._processor(
            images=list(pictures), input_data_format="channels_last", return_tensors="pt"
        ).to(self._model.device)
        with exact_inference():
            output = self._model.get_image_features(**inputs)
            vectors = output.pooler_output
            if not self._with_tokens:
                return vectors.cpu().numpy()
            patches = self._patches(output.last_hidden_state, inputs)
            return library("torch").cat([vectors[:, None], patches], dim=1).cpu().numpy()

    def _patches(self, states: Any, inputs: Any) -> Any:
        """Patches in the space of the vectors, [n, R, D]."""
        if self._model.config.model_type in _CLIPS:
            normed = self._model.vision_model.post_layernorm(states[:, 1:])
            return self._model.visual_projection(normed)
        if "spatial_shapes" not in inputs:
            return states
        # Pictures of any shape (SigLIP 2 NaFlex), padded to the same number of patches: average
        # each in the largest square grid that does not exceed this number.
        torch = library("torch")
        side = int(states.shape[1] ** 0.5)
        grids = []
        for state, (height, width) in zip(states, inputs["spatial_shapes"].tolist(), strict=True):
            grid = state[: height * width].T.reshape(-1, height, width)
            grids.append(torch.nn.functional.adaptive_avg_pool2d(grid, side).flatten(1).T)
        return torch.stack(grids)


def _caption_model(name: str, model: Any, tokenizer: Any, with_tokens: bool) -> CaptionModel:
    """Make the caption half of a dual encoder."""
    is_siglip = model.config.model_type in _SIGLIPS
    limit = min(tokenizer.model_max_length, model.config.text_config.max_position_embeddings)

    def encode(inputs: Any) -> tuple[Any, Any]:
        output = model.get_text_features(**inputs)
        if not with_tokens:
            return output.pooler_output, None
        project = model.text_model.head if is_siglip else model.text_projection
        return output.pooler_output, project(output.last_hidden_state)

    return CaptionModel(
        name,
        model,
        tokenizer,
        limit,
        encode,
        with_tokens=with_tokens,
        pads_to_limit=is_siglip,  # its vector is the state of the last token, padding or not
    )
