"""Read published PyTorch checkpoints (`.pth.tar`) of L2RM, SGRAF, RCL, DECL, NCR and BiCro.

| written by | key of the networks | parameters of one network |
|---|---|---|
| L2RM | `net` | one flat state dict; `cost_function` next to it, except in warm-up files |
| SGRAF, RCL, DECL | `model` | list of three state dicts: image encoder, text encoder, similarity |
| NCR, BiCro | `model_A`, `model_B` | the same list for each of two networks trained together |

All files keep the training options, an `argparse.Namespace`, under `opt`. None holds optimiser
state.
"""

import argparse
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from l2rm_jax.data.text import Vocabulary
from l2rm_jax.errors import CheckpointError, ConfigError, DataError
from l2rm_jax.jobs.regular_files import check_regular
from l2rm_jax.published.conversion import check_state_dict, graph_steps

_LAYOUTS = (("net",), ("model",), ("model_A", "model_B"))
_PARTS = ("img_enc", "txt_enc", "sim_enc")


def read_checkpoint(path: str | Path) -> dict[str, dict[str, np.ndarray]]:
    """Read a file; check the name and shape of every parameter, and the saved options.

    Nothing in the file is executed: only tensors, plain containers and `argparse.Namespace` are
    unpickled. Tensors that were saved on an accelerator are loaded to the host.

    Returns:
      The parameters of each network, by its key in the file: float32 arrays under the authors' flat
      names. Two networks are an ensemble: their authors evaluate the mean of the two similarities.

    Raises:
      CheckpointError: PyTorch is not installed; the file cannot be read, needs another Python
        global, or has none of the layouts above; parameters are missing, unknown or of a wrong
        shape, or contradict the options.
    """
    content = _load(Path(path))
    layout = next((keys for keys in _LAYOUTS if content.keys() >= set(keys)), None)
    if layout is None:
        raise CheckpointError(
            f"{path}: found the keys {', '.join(map(str, content))}; expected "
            + ", or ".join(" and ".join(keys) for keys in _LAYOUTS)
        )
    networks = {key: _network(content[key], f"{path}: {key}") for key in layout}
    for key, weights in networks.items():
        sizes = check_state_dict(weights, f"{path}: {key}")
        _check_options(content.get("opt"), graph_steps(weights), sizes, f"{path}: {key}")
    return networks


def read_trained_vocabulary(data_config: ConfigDict) -> Vocabulary:
    """Read the vocabulary that a checkpoint was trained with, from the file `data.vocabulary`.

    A network's word embedding is indexed by the vocabulary of its training, so a vocabulary built
    from the given captions would not fit.

    Raises:
      ConfigError: `data.vocabulary` or `data.path` is empty.
      DataError: the vocabulary cannot be read.
    """
    for name, what, hint in (
        ("path", "the directory of the features and captions", "--data=DIR"),
        (
            "vocabulary",
            "the json file of the vocabulary that the checkpoint was trained with",
            "--config.data.vocabulary=FILE.json",
        ),
    ):
        if not data_config[name]:
            raise ConfigError(f"--checkpoint requires data.{name}, {what}", hint=hint)
    return Vocabulary.read(data_config.vocabulary)


def weights_for_data(
    weights: Mapping[str, np.ndarray],
    vocabulary_size: int,
    image_shape: tuple[int, int],
    where: str,
) -> dict[str, np.ndarray]:
    """Check a network's parameters against the data, and cut them to the vocabulary.

    Args:
      weights: one of the networks of `read_checkpoint`.
      vocabulary_size: number of words in the vocabulary.
      image_shape: number of regions of an image, and features of a region.
      where: the file and network, as the start of an error message.

    Raises:
      CheckpointError: the network was trained with another vocabulary or other image features.
    """
    weights = weights_for_vocabulary(weights, vocabulary_size, where)
    trained_on = (
        # This batch normalisation has one weight per region.
        len(weights["sim_enc.v_global_w.embedding_local.1.weight"]),
        weights["img_enc.fc.weight"].shape[1],
    )
    if trained_on != tuple(image_shape):
        raise CheckpointError(
            f"{where}: found images of {image_shape[0]} regions x {image_shape[1]} features in "
            f"the data, expected {trained_on[0]} x {trained_on[1]}, as in training"
        )
    return weights


def weights_for_vocabulary(
    weights: Mapping[str, np.ndarray], vocabulary_size: int, where: str
) -> dict[str, np.ndarray]:
    """Cut a network's parameters to the vocabulary; arguments as in `weights_for_data`.

    RCL, and sometimes L2RM, append a word `<mask>` to the vocabulary file. No caption contains it,
    so if the embedding has one extra row, its last row is dropped.

    Raises:
      CheckpointError: the network was trained with another vocabulary.
    """
    embedding = weights["txt_enc.embed.weight"]
    if not 0 <= len(embedding) - vocabulary_size <= 1:
        raise CheckpointError(
            f"{where}: found a vocabulary of {vocabulary_size} words, expected the vocabulary that "
            f"the network was trained with, of {len(embedding)} words"
        )
    return {**weights, "txt_enc.embed.weight": embedding[:vocabulary_size]}


def _load(path: Path) -> Mapping[str, Any]:
    """Unpickle the file's dictionary without executing anything in it."""
    try:
        import torch
    except ImportError as error:
        raise CheckpointError(
            f"{path}: reading this file requires PyTorch",
            hint="pip install 'l2rm_jax[torch]'",
        ) from error
    version = tuple(map(int, torch.__version__.split(".")[:2]))
    if version < (2, 6):
        raise CheckpointError(
            f"{path}: found PyTorch {torch.__version__}, expected 2.6 or newer, as older versions "
            "can execute code in a file (CVE-2025-32434)"
        )
    try:
        check_regular(path)
        file = path.open("rb")
    except DataError as error:
        raise CheckpointError(*error.args) from error
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        with file, torch.serialization.safe_globals([argparse.Namespace]):
            content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can raise nearly any type
        needed = re.search(r"GLOBAL (\S+)", str(error))
        reason = (
            f"found the Python global {needed[1]}, expected only argparse.Namespace"
            if needed
            else "the file is damaged, or was not written by torch.save"
        )
        raise CheckpointError(f"{path}: refused, {reason}") from error
    if not isinstance(content, Mapping):
        raise CheckpointError(
            f"{path}: found an object of type {type(content).__name__}, expected a dictionary"
        )
    return content


def _network(state: Any, where: str) -> dict[str, np.ndarray]:
    """Flat parameters, from a flat state dict or from a list with one state dict per part."""
    if not isinstance(state, list | tuple):
        return _arrays(state, where)
    if len(state) != len(_PARTS):
        raise CheckpointError(
            f"{where}: found {len(state)} state dicts, expected {', '.join(_PARTS)}"
        )
    return {
        f"{part}.{name}": array
        for part, arrays in zip(_PARTS, state, strict=True)
        for name, array in _arrays(arrays, f"{where}: {part}").items()
    }


def _arrays(state: Any, where: str) -> dict[str, np.ndarray]:
    """State dict as float32 arrays, without DataParallel's prefix and the batch counters."""
    if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
        raise CheckpointError(
            f"{where}: found an object of type {type(state).__name__}, expected a state dict"
        )
    if all(name.startswith("module.") for name in state):
        state = {name.removeprefix("module."): x for name, x in state.items()}
    return {
        name: _array(x, f"{where}: {name}")
        for name, x in state.items()
        if not name.endswith("num_batches_tracked")
    }


def _array(x: Any, where: str) -> np.ndarray:
    import torch

    if (
        not isinstance(x, torch.Tensor)
        or not x.is_floating_point()
        or (x.layout, x.device.type) != (torch.strided, "cpu")
    ):
        raise CheckpointError(
            f"{where}: found an object of type {type(x).__name__}, expected a dense tensor of "
            "floats on the CPU"
        )
    # An expanded tensor stores one number for many, so a few bytes could claim a lot of memory.
    if x.numel() * x.element_size() > x.untyped_storage().nbytes():
        raise CheckpointError(
            f"{where}: found fewer numbers than its shape {list(x.shape)} requires, expected all"
        )
    return x.detach().float().numpy()


def _check_options(options: Any, steps: int, sizes: Mapping[str, int], where: str) -> None:
    """Check that the network fits the options in the file.

    Only the options say whether vectors are normalised (`no_imgnorm`, `no_txtnorm`). This library
    always normalises them, which is the authors' default, so other settings are rejected.
    """
    if options is None:
        return
    options = vars(options) if isinstance(options, argparse.Namespace) else options
    if not isinstance(options, Mapping):
        raise CheckpointError(
            f"{where}: opt is of type {type(options).__name__}, expected the training options"
        )
    expected = {
        "module_name": "SGR" if steps else "SAF",
        **({"sgr_step": steps} if steps else {}),
        "vocab_size": sizes["V"],
        "word_dim": sizes["W"],
        "embed_size": sizes["D"],
        "sim_dim": sizes["S"],
        "img_dim": sizes["F"],
        "bi_gru": True,
        "num_layers": 1,
        "no_imgnorm": False,
        "no_txtnorm": False,
    }
    for name, value in expected.items():
        if name in options and str(options[name]) != str(value):
            raise CheckpointError(
                f"{where}: the options say {name} = {options[name]}, but the parameters belong to "
                f"a network with {name} = {value}"
            )
