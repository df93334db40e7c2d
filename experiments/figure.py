"""Style, flags and files of all figures."""

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from ml_collections import ConfigDict

from experiments.script import add_settings, load_base, new_parser
from l2rm_jax.data import scenes
from l2rm_jax.data.scenes import Scene
from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.run.config_file import check_workdir, with_changes
from l2rm_jax.train import OnEpoch, train

# Okabe and Ito's palette for colour-blind readers, without yellow, which is too faint for lines.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MATCHED, MISMATCHED = PALETTE[0], PALETTE[1]
MARKERS = "osD^vPX"

matplotlib.rcParams.update(
    {
        "figure.constrained_layout.use": True,
        "figure.dpi": 150,
        "font.size": 10,
        "axes.titlesize": 10,
        "figure.titlesize": 11,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": "#dddddd",
        "legend.frameon": False,
        "errorbar.capsize": 3,
        "svg.hashsalt": "l2rm_jax",
    }
)


def figure_parser(description: str | None, workdir: str | None = None) -> argparse.ArgumentParser:
    """Return a parser with the flag `--out`, and with a finished run if `workdir` describes it."""
    parser = new_parser(description)
    if workdir:
        parser.add_argument("workdir", type=Path, help=workdir)
    parser.add_argument("--out", required=True, type=Path, help="directory of the figure")
    return parser


def watched_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the flags of a figure about a run that the script trains itself."""
    parser = figure_parser(description)
    parser.add_argument("--config", required=True, help="NAME, FILE.py or FILE.py:VARIANT")
    parser.add_argument("--workdir", required=True, type=Path, help="directory of the run")
    add_settings(parser, "set")
    return parser


def config_of(flags: argparse.Namespace) -> ConfigDict:
    """Return the config that the flags of `watched_parser` ask for."""
    return with_changes(*load_base(flags.config, flags.set))


def train_watched(config: ConfigDict, workdir: Path, on_epoch: OnEpoch) -> None:
    """Train or continue a run; the hook, which `write_epoch` helps, sees each epoch."""
    check_workdir(workdir, config)
    if not (workdir / "results.json").exists():
        train(config, workdir, on_epoch=on_epoch)


def epoch_file(workdir: Path, name: str, epoch: int) -> Path:
    return workdir / name / f"epoch{epoch}.npz"


def write_epoch(workdir: Path, name: str, epoch: int, **arrays: np.ndarray) -> None:
    """Write the measurements of a hook after an epoch."""
    file = epoch_file(workdir, name, epoch)
    file.parent.mkdir(exist_ok=True)
    np.savez(file, **arrays)


def read_epochs(workdir: Path, name: str, epochs: Iterable[int]) -> dict[int, Any]:
    """Return the arrays that `write_epoch` wrote, by epoch.

    Raises:
      DataError: the file of an epoch is missing.
    """
    files = {epoch: epoch_file(workdir, name, epoch) for epoch in epochs}
    for file in files.values():
        if not file.exists():
            raise DataError(
                f"{file}: no such file; the run was trained without this script, which writes the "
                f"{name}: use another --workdir"
            )
    return {epoch: np.load(file) for epoch, file in files.items()}


def train_pictures(config: ConfigDict) -> list[Scene]:
    """Return the training pictures of a run on `scenes`.

    Raises:
      ConfigError: the run is on other data, which have no pictures.
    """
    data = config.data
    if data.name != "scenes":
        raise ConfigError(f"data.name is {data.name!r}: only scenes has pictures to show")
    return scenes.generate(data.scenes_train, data.scenes_seed, "train").scenes


def show_scene(axes: Axes, scene: Scene, **options: Any) -> None:
    """Draw a picture of `scenes` without ticks."""
    axes.imshow(scenes.draw(scene), **options)
    axes.set(xticks=[], yticks=[])
    axes.grid(False)


def save(figure: Figure, out: Path, name: str, ending: str = "png") -> None:
    """Write `out/name.png`, or with another ending, and print its path."""
    out.mkdir(parents=True, exist_ok=True)
    file = out / f"{name}.{ending}"
    about = {"metadata": {"Date": None}} if ending == "svg" else {}  # the same bytes on any day
    figure.savefig(file, **about)
    print(file)


def title(config: ConfigDict) -> str:
    """Return data, method, head, mismatch and seed of a run, as a title."""
    return (
        f"{config.data.name}, {config.method}, head {config.model.head.upper()}, protocol "
        f"{config.mismatch.protocol}, mismatch rate {config.mismatch.rate:g}, seed {config.seed}"
    )
