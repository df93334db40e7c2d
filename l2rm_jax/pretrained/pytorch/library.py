"""PyTorch models: their libraries, weights, device and description."""

import functools
import hashlib
import importlib.metadata
import importlib.util
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from PIL import Image

from l2rm_jax.errors import DataError, StoppedError, first_line
from l2rm_jax.jobs.regular_files import check_regular
from l2rm_jax.pretrained.feature_encoder import ImageFeatures, PictureEncoder, as_float16
from l2rm_jax.pretrained.specs import MOST, MOST_ROWS
from l2rm_jax.pretrained.weight_files import read_object

_CONFIG = "config.json"

_log = logging.getLogger(__name__)

FILES = "config.json, model.safetensors, preprocessor_config.json and the files of the tokenizer"


def library(name: str) -> Any:
    """Import torch, transformers or timm.

    Raises:
      DataError: it is not installed, or it does not fit the installed PyTorch.
    """
    try:
        # Without this check, transformers and timm would fail with a longer message.
        if importlib.util.find_spec("torchvision"):
            importlib.import_module("torchvision")
        return importlib.import_module(name)
    except ImportError as error:
        raise DataError(
            f"encoder: {name} cannot be imported: {error}", hint='pip install "l2rm_jax[encoders]"'
        ) from error
    except RuntimeError as error:
        versions = " and ".join(
            f"{name} {importlib.metadata.version(name)}" for name in ("torch", "torchvision")
        )
        raise DataError(
            f"encoder: found incompatible versions, {versions}: {first_line(error)}",
            hint="install both from the same index, or uninstall torchvision if timm is not used",
        ) from error


def from_directory_cache_or_network(load: Callable[..., Any], name: str, files: str = FILES) -> Any:
    """Call a `from_pretrained` of transformers; if files are missing, say how to get them.

    Args:
      load: takes the name, and `local_files_only`.
      name: a directory, or a name on the hub. The network is used only if the cache lacks files.
      files: the files that the directory should hold.

    Raises:
      DataError: the files are missing or cannot be read.
    """
    check_files(name)
    for is_local in (True, False):
        try:
            with _silence():
                return load(name, local_files_only=is_local)
        except StoppedError:
            raise
        except Exception as error:  # files of others may be wrong in any way
            if Path(name).is_dir():
                raise damaged_weights(name, files, error) from error
            if not is_local:
                raise missing_weights(name, files, error, "transformers") from error
        _log.info("%s: not in the cache, asking huggingface.co", name)


def check_files(name: str) -> None:
    """Check a directory, if `name` is one, before a library reads it, which bounds nothing.

    Raises:
      DataError: a file is no regular one, or a size in `config.json` is beyond the limits of specs;
        lists every one.
    """
    directory = Path(name)
    files = [file for file in directory.rglob("*") if not file.is_dir()]
    for file in files:
        check_regular(file)
    if directory / _CONFIG in files:
        config = read_object(directory, _CONFIG)
        if problems := list(_beyond_limits(f"{directory / _CONFIG}: ", config)):
            raise DataError(*problems)


def _beyond_limits(where: str, config: Mapping[str, Any]) -> Iterator[str]:
    for field, value in config.items():
        is_depth = "layers" in field or "depth" in field
        limit = MOST["num_hidden_layers"] if is_depth else MOST.get(field, MOST_ROWS)
        is_size = is_depth or field in MOST or field.endswith(("size", "dim"))
        if isinstance(value, Mapping):
            yield from _beyond_limits(f"{where}{field}.", value)
        elif is_size and isinstance(value, int | float) and value > limit:
            yield f"{where}{field}: found {value!s:.20}, expected at most {limit:,}"


def load_model(name: str, files: str = FILES, unused: tuple[str, ...] = ()) -> Any:
    """Load a model of transformers; none of its arrays may be missing.

    Args:
      name: as in `from_directory_cache_or_network`.
      files: as there.
      unused: prefixes of the names of arrays that are not used.

    Raises:
      DataError: the files are missing or cannot be read, or an array is missing.
    """
    load = library("transformers").AutoModel.from_pretrained
    load = functools.partial(load, output_loading_info=True)
    model, info = from_directory_cache_or_network(load, name, files)
    # transformers fills missing arrays with random numbers.
    missing = [*info["missing_keys"], *(array for array, *_ in info["mismatched_keys"])]
    names = sorted(array for array in missing if not array.startswith(unused))
    if names:
        raise DataError(
            f"{name}: {len(names)} arrays of the model are missing from its weights, "
            f"the first is {names[0]}"
        )
    return model


@contextmanager
def quiet_hub() -> Iterator[None]:
    """Suppress the hub's messages about retries; `missing_weights` reports the result."""
    hub = library("huggingface_hub").logging
    level = hub.get_verbosity()
    hub.set_verbosity_error()
    try:
        yield
    finally:
        hub.set_verbosity(level)


@contextmanager
def _silence() -> Iterator[None]:
    """Suppress progress bars and warnings of transformers; `load_model` reports missing arrays."""
    logging = library("transformers").utils.logging
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with quiet_hub():
            yield
    finally:
        logging.set_verbosity(level)
        logging.enable_progress_bar()


def damaged_weights(name: str, files: str, error: Exception) -> DataError:
    """Make the error for a directory that a library cannot load."""
    return DataError(f"{name}: cannot be loaded, expected {files}: {first_line(error)}")


def missing_weights(name: str, files: str, error: Exception, kind: str) -> DataError:
    """Make the error for weights that are neither on disk nor reachable."""
    return DataError(
        f"encoder: {name} is not a directory, not in the cache, and cannot be downloaded "
        f"({first_line(error, 100)}); expected a directory DIR with the files of "
        f"huggingface.co/{name}: {files}",
        hint=f"--encoder={kind}:DIR",
    )


def on_device(model: Any) -> Any:
    """Move a model in float32 to the accelerator, if PyTorch has one, for inference."""
    torch = library("torch")
    accelerator = torch.accelerator
    device = accelerator.current_accelerator() if accelerator.is_available() else "cpu"
    return model.float().eval().to(device)


@contextmanager
def exact_inference() -> Iterator[None]:
    """Disable gradients, and make results reproducible."""
    torch = library("torch")
    cudnn = torch.backends.cudnn.flags(benchmark=False, deterministic=True, allow_tf32=False)
    with torch.inference_mode(), cudnn:
        yield


def describe_model(kind: str, name: str, model: Any) -> dict[str, str]:
    """Describe name, library versions and weights, for `dataset.json`.

    The weights are a SHA-256 of all arrays with their names, independent of their file format.
    """
    digest = hashlib.sha256()
    for key, array in sorted(model.state_dict().items()):
        values = np.ascontiguousarray(array.cpu().numpy())
        digest.update(f"{key} {values.dtype} {values.shape}\n".encode())
        digest.update(values)
    versions = {library: importlib.metadata.version(library) for library in ("torch", kind)}
    return {"model": f"{kind}:{name}", **versions, "weights": digest.hexdigest()}


def picture_encoder(
    kind: str,
    described: Mapping[str, str],
    encode: Callable[[Sequence[Image.Image]], Float[np.ndarray, "n ..."]],
) -> PictureEncoder:
    """Make the image half of an encoder.

    Args:
      kind: kind of its features.
      described: the model, as `describe_model` says.
      encode: turns a few pictures into features [n, D] or [n, R, D].
    """
    name = described["model"].partition(":")[2]

    def encode_batch(pictures: Sequence[Image.Image]) -> ImageFeatures:
        with exact_inference():
            return as_float16(name, encode(pictures))

    *regions, features = encode_batch([Image.new("RGB", (64, 64))]).shape[1:]
    sizes = {"regions": regions[0] if regions else 1, "features": features}
    return PictureEncoder({**described, "kind": kind, **sizes}, encode_batch)


def unit_length(vectors: Float[np.ndarray, "... D"]) -> Float[np.ndarray, "... D"]:
    """Scale vectors to length 1; zeros stay zeros."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.maximum(norms, np.finfo(np.float32).tiny)
