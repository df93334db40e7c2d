"""The log of a run: records in `metrics.jsonl`, scalars for TensorBoard, means of step metrics."""

import errno
import importlib.metadata
import importlib.util
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import jax
import numpy as np
from rich.text import Text

from l2rm_jax import console
from l2rm_jax.errors import CheckpointError, ConfigError
from l2rm_jax.jobs.files import replace_file
from l2rm_jax.jobs.regular_files import has_file
from l2rm_jax.run.results import to_jsonable

SCALAR_KINDS = ("step", "epoch")  # kinds of records that are also written for TensorBoard
# Kinds of records of the start or the end of an epoch.
EPOCH_KINDS = ("epoch", "warning", "judgement")
END = "end"  # phase of the warnings at the end of a run; a resumed run writes them again
FLUSH_SECONDS = 10  # a killed run loses TensorBoard's points of at most this time


class RunLog:
    """Writer of `metrics.jsonl`: one JSON line per record, flushed at once.

    Every record holds `kind`, `step` and the fields of `header`. A resumed run removes the records
    after its checkpoint and writes them again, so a record must be written before the checkpoint
    of its step. Records of an epoch (`EPOCH_KINDS`) must be written before the checkpoint of a
    later step or of the end of that epoch. Warnings of the phase `END` come after all checkpoints.

    Args:
      workdir: work directory; created if missing.
      header: fields of every record (data, method, head, mismatch).
      resume_step: None starts a new file; otherwise records up to and including this step are
        kept, and new ones are appended.
      epochs: number of finished epochs at `resume_step`.
      tensorboard: also write the numbers of steps and epochs as scalars to `workdir/tensorboard`.
        Scalars of steps that a resumed run repeats are purged.
      primary: False on hosts that neither write nor print.

    Raises:
      CheckpointError: a line of the existing file is not a record.
      ConfigError: `tensorboard` is set, but the package tensorboardX is missing.
    """

    def __init__(
        self,
        workdir: str | Path,
        header: Mapping[str, Any],
        *,
        resume_step: int | None = None,
        epochs: int = 0,
        tensorboard: bool = False,
        primary: bool = True,
    ):
        self._header, self._file, self._scalars = dict(header), None, None
        if not primary:
            return
        first_step = 0 if resume_step is None else resume_step + 1
        if tensorboard:
            self._scalars = _scalar_writer(workdir, first_step)
        path = Path(workdir) / "metrics.jsonl"
        kept = [] if resume_step is None else _lines_up_to(path, resume_step, epochs)
        replace_file(path, "".join(kept).encode())
        self._file = path.open("ab", buffering=0)

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(self, *_: object) -> None:
        for file in (self._file, self._scalars):
            if file is not None:
                file.close()

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Append a record.

        Args:
          kind: `step`, `epoch`, `warning`, `skipped` or `judgement`.
          step: global step.
          **values: numbers, arrays of NumPy or JAX, or JSON values. NaN and infinity are written
            as null, as JSON has neither.

        Raises:
          OSError: the file cannot be written (the disk is full, for example); the error names it.
        """
        if self._file is None:
            return
        values = to_jsonable(values)
        record = {"kind": kind, "step": step, **to_jsonable(self._header), **values}
        _append(self._file, json.dumps(record, allow_nan=False) + "\n")
        if self._scalars is not None and kind in SCALAR_KINDS:
            for name, value in values.items():
                if isinstance(value, int | float):
                    self._scalars.add_scalar(f"{kind}/{name}", value, step)

    def warn(self, step: int, *, message: str, **values: Any) -> None:
        """Append a record of kind `warning` and print its message."""
        self.write("warning", step, **values, message=message)
        if self._file is not None:
            console.warn(message)

    def say(self, text: str | Text) -> None:
        """Print text to standard output, above the progress bar if one is shown."""
        if self._file is not None:
            console.say(text)


def require_tensorboard() -> None:
    """Raise `ConfigError` if the package tensorboardX, which writes for TensorBoard, is missing."""
    if importlib.util.find_spec("tensorboardX") is None:
        raise ConfigError(
            "train.tensorboard requires the package tensorboardX, which is not installed",
            hint="pip install 'l2rm_jax[tensorboard]'",
        )


def _scalar_writer(workdir: str | Path, first_step: int) -> Any:
    """Open a TensorBoard writer that hides earlier points from `first_step` on."""
    require_tensorboard()
    from tensorboardX import SummaryWriter  # an optional package, slow to import

    directory = Path(workdir) / "tensorboard"
    # Event files are named by the second and read in the order of their names. The suffix gives a
    # restart within the same second a new file that is read after the earlier one.
    earlier = len(list(directory.glob("events.*")))
    return SummaryWriter(
        str(directory),
        purge_step=first_step,
        flush_secs=FLUSH_SECONDS,
        filename_suffix=f".{earlier:04d}",
    )


def _append(file: BinaryIO, text: str) -> None:
    """Append to an unbuffered file; errors name the file."""
    line = text.encode()
    try:
        if file.write(line) < len(line):  # a full disk may store a part of the line
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        raise OSError(error.errno, error.strerror, file.name) from error


def _lines_up_to(path: Path, step: int, epochs: int) -> list[str]:
    """Complete records of `path` that precede the checkpoint of `step` with `epochs` finished."""
    if not has_file(path):
        return []
    lines = path.read_bytes().splitlines(keepends=True)
    if lines and not lines[-1].endswith(b"\n"):
        lines.pop()  # the run was killed while writing it

    def is_kept(number: int, line: bytes) -> bool:
        try:
            record = json.loads(line)
            if record["kind"] in EPOCH_KINDS and record["step"] == step:
                return record.get("epoch", 0) <= epochs and record.get("phase") != END
            return record["step"] <= step
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CheckpointError(
                f"{path}:{number}: not a record of a run ({type(error).__name__}); remove the line "
                "or the file to continue without it"
            ) from error

    return [line.decode() for number, line in enumerate(lines, 1) if is_kept(number, line)]


class Means:
    """Means of the step metrics over an epoch.

    Metrics stay on the device until `fetch`, so that training need not wait for them. A step with
    a metric that is not finite is left out of all means and counted in `skipped`.

    Args:
      state: the property `state` of earlier means to continue; a mapping without its keys starts
        new means.
    """

    def __init__(self, state: Mapping[str, Any]):
        sums = state.get("sums", {})
        self._sums = {name: list(pair) for name, pair in sums.items()}  # name -> [sum, count]
        self._recent: list[dict[str, float]] = list(state.get("recent", ()))
        self.skipped: int = state.get("skipped", 0)
        self._pending: list[dict] = []

    @property
    def state(self) -> dict[str, Any]:
        """Sums, counts and recent values fetched so far, as JSON values."""
        return {"sums": self._sums, "recent": self._recent, "skipped": self.skipped}

    def add(self, metrics: dict) -> None:
        """Add the metrics of one step, scalars that may still be on the device."""
        self._pending.append(metrics)

    def fetch(self) -> list[tuple[int, dict[str, float]]]:
        """Fetch the added metrics from the device and include them in the means.

        Returns:
          For each skipped step: its distance from the newest step (0 for the newest itself), and
          its metrics that are not finite.
        """
        fetched, self._pending = jax.device_get(self._pending), []
        skipped = []
        for ago, values in zip(range(len(fetched))[::-1], fetched, strict=True):
            metrics = {name: float(x) for name, x in values.items()}
            if bad := {name: x for name, x in metrics.items() if not math.isfinite(x)}:
                skipped.append((ago, bad))
                continue
            self._recent.append(metrics)
            for name, value in metrics.items():
                pair = self._sums.setdefault(name, [0.0, 0])
                pair[0] += value
                pair[1] += 1
        self.skipped += len(skipped)
        return skipped

    def flush(self) -> dict[str, float]:
        """Mean of each metric over the steps fetched since the last flush.

        Includes the metrics of the newest of these steps; empty if there are no such steps.
        """
        recent, self._recent = self._recent, []
        names = recent[-1] if recent else ()
        return {name: float(np.mean([step[name] for step in recent])) for name in names}

    def means(self) -> dict[str, float]:
        """Mean of each metric over all steps of the epoch that have it."""
        return {name: total / count for name, (total, count) in self._sums.items()}
