"""Results of a run: `results.json`, chance, and software versions."""

import importlib.metadata
import json
import math
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from l2rm_jax.data.train_pairs import TrainPairs
from l2rm_jax.evaluation.protocols import chance_rows
from l2rm_jax.jobs.files import replace_file
from l2rm_jax.jobs.regular_files import JSON, parse_json, read_regular
from l2rm_jax.version import __version__

RESULTS_FILE = "results.json"


def chance_of(test: TrainPairs, evaluation: ConfigDict) -> dict[str, dict]:
    """Rows of the result table for random rankings of the test split, one for each size."""
    return chance_rows(len(test.images), test.captions_per_image, evaluation.protocol)


def write_results(workdir: str | Path, results: Mapping[str, Any]) -> None:
    """Write `results.json` in `workdir`."""
    write_json(Path(workdir) / RESULTS_FILE, results)


def is_finished(workdir: str | Path, config: ConfigDict) -> bool:
    """Whether the run in `workdir` has been finished with exactly this config."""
    try:
        results = parse_json(read_regular(Path(workdir) / RESULTS_FILE, JSON))
    except (OSError, ValueError):
        return False
    return results.get("config") == to_jsonable(config.to_dict())


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write indented JSON atomically: a reader sees the old file or the new one, never a part."""
    content = json.dumps(to_jsonable(value), indent=2, allow_nan=False) + "\n"
    replace_file(path, content.encode())


def to_jsonable(value: Any) -> Any:
    """Convert to JSON types: arrays and tuples to lists, NaN and infinity to None."""
    if isinstance(value, Mapping):
        return {str(key): to_jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_jsonable(item) for item in value]
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return to_jsonable(np.asarray(value).tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def versions() -> dict[str, Any]:
    """Software versions, the kind of device and the number of devices."""
    packages = ("jax", "jaxlib", "flax", "optax", "ott-jax", "numpy")
    return {
        "l2rm_jax": __version__,
        **{name: importlib.metadata.version(name) for name in packages},
        "python": platform.python_version(),
        "device": jax.devices()[0].device_kind,
        "device_count": jax.device_count(),
    }
