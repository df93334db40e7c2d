"""Image models of timm: average their last feature map in a grid, to use as regions.

`forward_features` returns the map, which is the input of the model's pooling and classifier. Tokens
of a vision transformer that are not patches are left out. The grid has 6 x 6 cells, or the size of
the map if that is smaller; bottom-up features have 36 regions too. Regions are not scaled.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from PIL import Image

from l2rm_jax.errors import ConfigError, StoppedError
from l2rm_jax.pretrained.feature_encoder import PictureEncoder
from l2rm_jax.pretrained.pytorch.library import (
    check_files,
    damaged_weights,
    describe_model,
    library,
    missing_weights,
    on_device,
    picture_encoder,
    quiet_hub,
)

_SIDE = 6
_FILES = (
    'config.json (at least {"architecture": "NAME OF THE MODEL IN TIMM"}) and model.safetensors or '
    "pytorch_model.bin"
)


def load_backbone(name: str) -> PictureEncoder:
    """Load a model of timm from a directory, or by its name in timm or on the hub.

    Raises:
      ConfigError: timm has no such model.
      DataError: the weights are missing or invalid.
    """
    timm, torch = library("timm"), library("torch")
    is_directory = Path(name).is_dir()
    check_files(name)
    if is_directory:
        source = f"local-dir:{name}"
    elif name.count("/") == 1 and not name.startswith((".", "/", "~")):
        source = f"hf-hub:{name}"
    elif timm.is_model(name):
        source = name
    else:
        raise ConfigError(
            f"encoder: found {name}, expected a model of timm or a directory with {_FILES}"
        )
    try:
        with quiet_hub():
            model = timm.create_model(source, pretrained=True)
    except StoppedError:
        raise
    except Exception as error:  # files of others may be wrong in any way
        if isinstance(error, OSError) and not is_directory:
            hub_name = name if "/" in name else f"timm/{name}"
            raise missing_weights(hub_name, _FILES, error, "timm") from error
        raise damaged_weights(name, _FILES, error) from error
    model = on_device(model)
    prepare = timm.data.create_transform(**timm.data.resolve_model_data_config(model))

    def encode(pictures: Sequence[Image.Image]) -> Float[np.ndarray, "n R D"]:
        """Regions of pictures, the cells of the grid in reading order."""
        device = next(model.parameters()).device
        inputs = torch.stack([prepare(picture) for picture in pictures]).to(device)
        feature_map = _as_map(name, model, model.forward_features(inputs))
        size = [min(_SIDE, side) for side in feature_map.shape[2:]]
        grid = torch.nn.functional.adaptive_avg_pool2d(feature_map, size)
        return grid.flatten(2).transpose(1, 2).cpu().numpy()

    return picture_encoder("grid", describe_model("timm", name, model), encode)


def _as_map(name: str, model: Any, features: Any) -> Any:
    """Reshape the output of `forward_features` to [n, D, height, width].

    Raises:
      ConfigError: the output is not a map: it has no positions, or an unknown layout.
    """
    if features.ndim == 4:
        is_last = getattr(model, "output_fmt", "NCHW") == "NHWC"
        return features.permute(0, 3, 1, 2) if is_last else features
    if features.ndim == 3:
        patches = features[:, getattr(model, "num_prefix_tokens", 0) :]
        count = patches.shape[1]
        grid = getattr(getattr(model, "patch_embed", None), "grid_size", None)
        height, width = grid if grid and grid[0] * grid[1] == count else [round(count**0.5)] * 2
        if height * width == count:
            return patches.transpose(1, 2).reshape(len(patches), -1, height, width)
    raise ConfigError(
        f"encoder: found features {list(features.shape[1:])} per picture from {name}, "
        "expected a map of height, width and features, or a square number of patches"
    )
