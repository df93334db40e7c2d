"""The log of a run: `metrics.jsonl`, lines and a progress bar on screen, `results.json`."""

import importlib.metadata
import importlib.util
import json
import math
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import jax
import numpy as np
from tqdm import tqdm

import l2rm_jax
from l2rm_jax.data.files import replace_file
from l2rm_jax.errors import ConfigError
from l2rm_jax.parallel import is_primary

QUIET_SECONDS = 30.0  # between two lines of a bar away from a terminal
SCALAR_KINDS = ("step", "epoch")  # records that TensorBoard shows
FLUSH_SECONDS = 10  # what TensorBoard may miss when a run is killed


class RunLog:
    """Writes one JSON line per event to `metrics.jsonl`, each flushed as it is written.

    Every line holds `kind`, `step` and the fields of `header`. A record belongs before the
    checkpoint of its step: what a resumed run finds after its own step, it writes again.

    Args:
      workdir: directory of the run; created where missing.
      header: fields that every record and every epoch line carries (the mismatch protocol
        and its rates).
      resume_step: None starts the file anew; a step keeps the records up to it, that step
        included, and appends.
      tensorboard: also write the numbers of steps and epochs as scalars to `workdir/tensorboard`;
        those of the steps that a resumed run repeats are purged.
      primary: False on the hosts that neither write nor print.

    Raises:
      ConfigError: TensorBoard is asked for and the package that writes for it is missing.
    """

    def __init__(
        self,
        workdir: str | Path,
        header: Mapping[str, Any],
        *,
        resume_step: int | None = None,
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
        kept = [] if resume_step is None else _lines_up_to(path, resume_step)
        replace_file(path, "".join(kept).encode())
        self._file = path.open("a", encoding="utf-8")

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files."""
        for file in (self._file, self._scalars):
            if file is not None:
                file.close()

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Appends a record; values may be numbers, 0-d arrays of either library, or JSON values.

        Not-a-number and infinity are written as null, which JSON can hold.
        """
        if self._file is None:
            return
        values = plain(values)
        record = {"kind": kind, "step": step, **plain(self._header), **values}
        self._file.write(json.dumps(record, allow_nan=False) + "\n")
        self._file.flush()
        if self._scalars is not None and kind in SCALAR_KINDS:
            for name, value in values.items():
                if isinstance(value, int | float):
                    self._scalars.add_scalar(f"{kind}/{name}", value, step)

    def epoch(self, step: int, **values: Any) -> None:
        """Appends a record of kind `epoch` and prints it as one line."""
        self.write("epoch", step, **values)
        fields = _fields({"step": step, **values})
        self.say(f"{fields}  [{_fields(self._header)}]" if self._header else fields)

    def warn(self, step: int, *, message: str, **values: Any) -> None:
        """Appends a record of kind `warning` and prints its message."""
        self.write("warning", step, **values, message=message)
        self.say(f"warning: {message}")

    def say(self, text: str) -> None:
        """Prints a line to standard output, above a progress bar if one is shown."""
        if self._file is not None:
            tqdm.write(text, file=sys.stdout)
            sys.stdout.flush()


class Means:
    """Means of the step metrics over an epoch, fetched from the device only when asked.

    Args:
      sums: `sums` of the means that are continued.
    """

    def __init__(self, sums: Mapping[str, Sequence[float]]):
        self.sums = {name: list(pair) for name, pair in sums.items()}  # name -> [sum, count]
        self._pending: list[dict] = []

    def add(self, metrics: dict) -> None:
        self._pending.append(metrics)

    def flush(self) -> list[dict[str, float]]:
        """The metrics of each step since the last flush."""
        pending, self._pending = jax.device_get(self._pending), []
        for metrics in pending:
            for name, value in metrics.items():
                pair = self.sums.setdefault(name, [0.0, 0])
                pair[0] += float(value)
                pair[1] += 1
        return pending

    def means(self) -> dict[str, float]:
        return {name: total / count for name, (total, count) in self.sums.items()}


def average(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean over steps of each metric that the last of them has."""
    return {name: float(np.mean([step[name] for step in metrics])) for name in metrics[-1]}


def require_tensorboard() -> None:
    """Raises `ConfigError` where the package that writes for TensorBoard is missing."""
    if importlib.util.find_spec("tensorboardX") is None:
        raise ConfigError(
            "train.tensorboard: the package tensorboardX is missing; install it with "
            "pip install 'l2rm_jax[tensorboard]', or leave the field False"
        )


def progress_bar(total: int, description: str, *, initial: int = 0) -> tqdm:
    """A bar on the first host's standard error: counts pairs and shows their rate and the ETA.

    Call `update(pairs)`, `set_postfix(loss=...)` where the loss is at hand, and `close()`, or use
    it as a context. Away from a terminal it prints a plain line every half minute, so nothing
    for what takes less.
    """
    terminal = sys.stderr.isatty()
    return _Bar(
        total=total,
        initial=initial,
        desc=description,
        unit=" pairs",
        unit_scale=True,
        file=sys.stderr if terminal else _PlainLines(sys.stderr),
        mininterval=0.5 if terminal else QUIET_SECONDS,
        delay=0 if terminal else QUIET_SECONDS,
        dynamic_ncols=terminal,
        leave=not terminal,
        disable=not is_primary(),
    )


def write_results(workdir: str | Path, results: Mapping[str, Any]) -> None:
    """Writes `results.json` in one piece: a reader sees the old file or the new, never half."""
    write_json(Path(workdir) / "results.json", results)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Writes `value` as indented JSON, in one piece: a reader sees the old file or the new one."""
    content = json.dumps(plain(value), indent=2, allow_nan=False) + "\n"
    replace_file(path, content.encode())


def plain(value: Any) -> Any:
    """Returns `value` as JSON holds it: arrays and tuples as lists, non-finite numbers as None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return plain(np.asarray(value).tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def versions() -> dict[str, Any]:
    """Returns what a result depends on besides its config: software versions and devices."""
    packages = ("jax", "jaxlib", "flax", "optax", "ott-jax", "numpy")
    return {
        "l2rm_jax": l2rm_jax.__version__,
        **{name: importlib.metadata.version(name) for name in packages},
        "python": platform.python_version(),
        "device": jax.devices()[0].device_kind,
        "device_count": jax.device_count(),
    }


class _Bar(tqdm):
    """A bar whose postfix waits for the next refresh instead of forcing one."""

    def set_postfix(self, **values: Any) -> None:
        super().set_postfix(refresh=False, **values)


class _PlainLines:
    """A stream for tqdm that turns its carriage returns into whole lines."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def write(self, text: str) -> None:
        if line := text.strip():
            self._stream.write(line + "\n")

    def flush(self) -> None:
        self._stream.flush()


def _scalar_writer(workdir: str | Path, first_step: int) -> Any:
    """A TensorBoard writer that hides what was written before from `first_step` on."""
    require_tensorboard()
    from tensorboardX import SummaryWriter  # optional, and slow to import

    directory = Path(workdir) / "tensorboard"
    # Event files are named by the second and read in the order of their names: the suffix keeps a
    # quick restart off the earlier file, and behind it.
    earlier = len(list(directory.glob("events.*")))
    return SummaryWriter(
        str(directory),
        purge_step=first_step,
        flush_secs=FLUSH_SECONDS,
        filename_suffix=f".{earlier:04d}",
    )


def _lines_up_to(path: Path, step: int) -> list[str]:
    """Returns the whole records of `path` whose step is at most `step`."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines.pop()  # the run was killed while writing it
    return [line for line in lines if json.loads(line)["step"] <= step]


def _fields(values: Mapping[str, Any]) -> str:
    """Returns `name value` pairs on one line, numbers to four significant digits."""
    parts = []
    for name, value in plain(values).items():
        parts.append(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}")
    return "  ".join(parts)
