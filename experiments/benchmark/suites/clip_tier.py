"""Fine-tune a model on noisy pairs that it has not seen: filter, draw or weigh them by its scores.

The data are those of `experiments.papers.clip_tier`, which says how they are divided. Every row
starts from the model of A, has the same settings and as many updates as five epochs of all pairs;
rows differ in the pairs and their weights alone. `fast` rows have the second learning rate.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from experiments.benchmark.suite import Grid, Row, Suite, equal_updates
from l2rm_jax.run.sampling import REMATCHED

SIZES = (1000, 300)
PROTOCOLS, RATES, SEEDS = ("image", "caption"), (0.2, 0.4, 0.6), (0, 1, 2)
TUNED, SECOND = 2e-5, 1e-4  # the first by validation of `all` at 0.4, among 1e-6 to 1e-2
SURE = 0.9  # posterior above which a pair is in NPC's bank


def start_directory(size: int) -> str:
    """Work directory of the model of A, in the directory of the data."""
    return f"start-{size}"


def start_file(size: int, protocol: str, rate: float, seed: int) -> str:
    """Scores of the pairs of B by the model of A."""
    return f"start-{size}-{protocol}{rate:g}-seed{seed}.npy"


def bank_file(size: int, protocol: str, rate: float, seed: int) -> str:
    """Posteriors by which NPC chooses its bank."""
    return f"bank-{size}-{protocol}{rate:g}-seed{seed}.npy"


def judged_file(protocol: str, rate: float, seed: int) -> str:
    """The judgement of the pairs of B."""
    return f"judged-{protocol}{rate:g}-seed{seed}.npz"


def _noise(config: ConfigDict) -> tuple[str, float, int]:
    return config.mismatch.protocol, config.mismatch.rate, config.seed


def _in(name: Callable[[ConfigDict], str]) -> Callable[[ConfigDict], str]:
    """Path of a file in the directory of the data; `name` is called with the config."""
    return lambda config: str(Path(config.data.path) / name(config))


def _by_file(value: float, name: Callable[[ConfigDict], str]) -> dict[str, Any]:
    """Keep the pairs whose score in a file is at least `value`."""

    def epochs(config: ConfigDict) -> int:
        file = Path(_in(name)(config))
        # Before the data are made, the runs can only be listed.
        kept = np.mean(np.load(file) >= value) if file.exists() else 1 - config.mismatch.rate
        return equal_updates(config, kept)["train.epochs"]

    filtered = {"data.filter": "score", "data.filter_value": value, "data.scores": _in(name)}
    return {**filtered, "train.epochs": epochs}


_OF_JUDGED = _in(lambda config: judged_file(*_noise(config)))
_JUDGED = {"judgement.path": _OF_JUDGED}


def _rematched_epochs(config: ConfigDict) -> int:
    """Return the epochs with as many updates as all pairs: one has the pairs that are drawn."""
    file, drawn = Path(_OF_JUDGED(config)), 1 - config.mismatch.rate
    if file.exists():  # else the runs can only be listed
        with np.load(file) as judged:
            posterior, weight = judged["posterior"], judged[f"{REMATCHED}_weight"]
            drawn = (np.sum(1 - posterior) + np.sum(weight)) / len(posterior)
    return equal_updates(config, drawn)["train.epochs"]


def _rows(size: int, rate: float) -> Mapping[str, Row]:
    """Rows that start from the model of the first `size` images of A."""

    def scores(config: ConfigDict) -> str:
        return start_file(size, *_noise(config))

    def bank(config: ConfigDict) -> str:
        return bank_file(size, *_noise(config))

    started = {
        "model.start": _in(lambda config: start_directory(size)),
        "data.path": _in(lambda config: "b"),
        "optim.learning_rate": rate,
    }
    share = {
        "data.filter": "share",
        "data.filter_value": lambda config: 1 - config.mismatch.rate,
        "data.scores": _in(scores),
    }
    weighted = {"train.weight": "start"}
    by_judgement = {"train.weight": "judgement", "train.weight_curve": "linear"}
    changes = {
        "start": ({"optim.learning_rate": 1e-12}, False),  # float32 does not move
        "all": ({}, False),
        "share": (share, True),
        "above theta": (_by_file(0.0, scores), False),
        "osa": (weighted, False),
        "osa code": ({**weighted, "train.weight_curve": "osa_code"}, False),
        "bank": (_by_file(SURE, bank), False),
        "judged filter": (
            {**_JUDGED, "data.filter": "judgement", "data.filter_value": 0.5},
            True,
        ),
        "judged draw": ({**_JUDGED, "train.draw": "judgement"}, True),
        "judged weight": ({**_JUDGED, **by_judgement}, False),
        "recipe": (
            {**_JUDGED, "train.draw": REMATCHED, "train.epochs": _rematched_epochs},
            False,
        ),
        "truth": ({"data.filter": "truth"}, True),
    }
    suffix = f" {size}" + ("" if rate == TUNED else " fast")
    return {
        f"{name}{suffix}": Row({**started, **fields}, drops=drops)
        for name, (fields, drops) in changes.items()
    }


_MAIN, _SMALL, _FAST = _rows(1000, TUNED), _rows(300, TUNED), _rows(1000, SECOND)
SIDE_RATE = 0.4  # of the smaller A and the second learning rate
GROUPS = {"1000": [*_MAIN], "300": [*_SMALL], "1000 fast": [*_FAST]}
SUITE = Suite(
    config="flickr8k:vectors",
    rows={**_MAIN, **_SMALL, **_FAST},
    grids=(
        Grid([*_MAIN], ("linear",), PROTOCOLS, RATES, SEEDS),
        Grid([*_SMALL, *_FAST], ("linear",), PROTOCOLS, (SIDE_RATE,), SEEDS),
    ),
    settings={
        "data.name": "flickr8k",
        "data.train_images": 0,
        "method": "infonce",
        "model.dropout": 0.0,
        "train.batch_size": 256,
        "optim.schedule": "cosine",
    },
    epochs=(0, 5),
)
