"""Checkpoint files in the authors' layouts, made from their own weights, and data that fit them."""

import argparse
import collections
from pathlib import Path

import numpy as np
import pytest
from ml_collections import ConfigDict

from l2rm_jax import config as defaults
from l2rm_jax.data.text import Vocabulary
from tests.golden.fidelity.arrays import GOLDEN, Arrays

# Without PyTorch, every test module that imports this one is skipped.
torch = pytest.importorskip("torch")

PARTS = ("img_enc", "txt_enc", "sim_enc")


def golden(name: str) -> Arrays:
    return Arrays.load(GOLDEN / f"{name}.npz")


def tensors(weights, prefix=""):
    """A state dict, with the metadata that PyTorch gives it."""
    state = collections.OrderedDict()
    for name, x in weights.items():
        state[prefix + name] = torch.from_numpy(np.array(x))
    state._metadata = collections.OrderedDict(version=1)
    return state


def parts(weights, prefix=""):
    """The three state dicts that SGRAF's `state_dict` returns."""
    return [
        tensors({n.removeprefix(f"{p}."): x for n, x in weights.items() if n.startswith(p)}, prefix)
        for p in PARTS
    ]


def options(weights, **fields) -> argparse.Namespace:
    """The options that a network with these weights was trained with; `fields` replaces some."""
    vocabulary_size, word_dim = weights["txt_enc.embed.weight"].shape
    embed_size, img_dim = weights["img_enc.fc.weight"].shape
    sgr = any("SGR_module" in name for name in weights)
    values = {
        "data_name": "f30k_precomp",
        "module_names": ["SAF", "SGR"],  # not checked, so it may hold any plain value
        "resume": None,
        "learning_rate": 2e-4,
        "module_name": "SGR" if sgr else "SAF",
        "sgr_step": 3,
        "vocab_size": vocabulary_size,
        "word_dim": word_dim,
        "embed_size": embed_size,
        "sim_dim": weights["sim_enc.sim_eval_w.weight"].shape[1],
        "img_dim": img_dim,
        "num_layers": 1,
        "bi_gru": True,
        "no_imgnorm": False,
        "no_txtnorm": False,
    }
    return argparse.Namespace(**{**values, **fields})


def save(path: Path, weights, /, legacy: bool = False, **content) -> Path:
    """Write a checkpoint with the options of `weights`; `legacy` is the format before zip files."""
    content = {"epoch": 3, "best_rsum": 400.5, "opt": options(weights), **content}
    torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    return path


def write_data(directory: Path, **splits) -> Path:
    """Write files in SCAN's layout, with five captions per image and the vocabulary w4 .. w39.

    Args:
      splits: split name to image features, tokens [M, L] and caption lengths [M].
    """
    directory.mkdir()
    for split, (images, tokens, lengths) in splits.items():
        np.save(directory / f"{split}_ims.npy", images)
        lines = [
            " ".join(f"w{t}" for t in line[:n]) for line, n in zip(tokens, lengths, strict=True)
        ]
        (directory / f"{split}_caps.txt").write_text("\n".join(lines) + "\n")
    words = ["<pad>", "<start>", "<end>", "<unk>", *(f"w{i}" for i in range(4, 40))]
    Vocabulary({word: i for i, word in enumerate(words)}).write(directory / "vocabulary.json")
    return directory


def data_config(directory: Path) -> ConfigDict:
    config = defaults.default()
    config.data.name, config.data.path = "golden", str(directory)
    config.data.vocabulary = str(directory / "vocabulary.json")
    return config
