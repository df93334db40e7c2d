"""Tiny runs with the small BERT of `tests/golden/pretrained`."""

import shutil
from pathlib import Path

import jax
import numpy as np

from l2rm_jax.data import scenes
from l2rm_jax.data.loading import save_vocabulary_and_index
from l2rm_jax.devices.parallel import Replicas
from l2rm_jax.run.config_file import write_config
from l2rm_jax.run.initialise import open_run
from l2rm_jax.run.inputs import read_data
from l2rm_jax.train import train
from tests.models.pretrained.golden import GOLDEN
from tests.tiny import tiny_config

SIZES = {"train": 12, "dev": 4, "test": 6}


def bert_config(directory: Path | None = None, kind: str = "bert", **fields):
    """Config of a tiny run on `scenes`; `fields` are dotted keys, with `__` for the dot."""
    config = tiny_config("infonce", "vse", {"data.max_words": 32})
    config.model.text_encoder = kind
    config.model.pretrained = str(directory or GOLDEN / kind)
    config.update_from_flattened_dict({k.replace("__", "."): v for k, v in fields.items()})
    return config


def run(config, workdir: Path) -> dict:
    return train(config, workdir, Replicas(jax.devices()[:1]))


def copy_model(directory: Path, kind: str = "bert") -> Path:
    """A copy of the small model, which a test may remove."""
    shutil.copytree(GOLDEN / kind, directory, ignore=shutil.ignore_patterns("expected.npz"))
    return directory


def write_scenes(directory: Path) -> None:
    """Write the pictures and captions of `scenes` as files."""
    directory.mkdir()
    for split, images in SIZES.items():
        made = scenes.generate(images, 0, split)
        np.save(directory / f"{split}_ims.npy", made.features)
        (directory / f"{split}_caps.txt").write_text("\n".join(made.captions) + "\n")


def make_run(config, workdir: Path) -> None:
    """Make the directory of a run whose model is initialised and saved, but not trained."""
    data = read_data(config, workdir)
    with open_run(config, data, workdir, Replicas(jax.devices()[:1])) as opened:
        opened.finish_epoch(3, rsum=123.4)
        opened.checkpoints.wait()
    save_vocabulary_and_index(data, workdir)
    write_config(workdir, config)
