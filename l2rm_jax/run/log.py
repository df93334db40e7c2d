"""The log of a run: `metrics.jsonl`, lines and a progress bar on screen, `results.json`."""

import errno
import importlib.metadata
import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from tqdm import tqdm

from l2rm_jax.data.files import replace_file
from l2rm_jax.errors import CheckpointError, ConfigError
from l2rm_jax.run.results import to_jsonable

SCALAR_KINDS = ("step", "epoch")  # records that TensorBoard shows
EPOCH_KINDS = ("epoch", "warning")  # records of an epoch's beginning or end
FLUSH_SECONDS = 10  # what TensorBoard may miss when a run is killed


class RunLog:
    """Writes one JSON line per event to `metrics.jsonl`, each flushed as it is written.

    Every line holds `kind`, `step` and the fields of `header`. A record belongs before the
    checkpoint of its step: what a resumed run finds after its own step, it writes again. A record
    of an epoch (`EPOCH_KINDS`) belongs before the checkpoint of a later step, or of its end.

    Args:
      workdir: directory of the run; created where missing.
      header: fields that every record and every epoch line carries (the mismatch protocol
        and its rates).
      resume_step: None starts the file anew; a step keeps the records up to it, that step
        included, and appends.
      epochs: how many were done at `resume_step`.
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
        self.close()

    def close(self) -> None:
        """Closes the files."""
        for file in (self._file, self._scalars):
            if file is not None:
                file.close()

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Appends a record; values may be numbers, 0-d arrays of either library, or JSON values.

        Not-a-number and infinity are written as null, which JSON can hold.

        Raises:
          OSError: the file, which it names, cannot be written: the disk is full, for example.
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

    def write_epoch(self, step: int, **values: Any) -> None:
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


def require_tensorboard() -> None:
    """Raises `ConfigError` where the package that writes for TensorBoard is missing."""
    if importlib.util.find_spec("tensorboardX") is None:
        raise ConfigError(
            "train.tensorboard: the package tensorboardX is missing; install it with "
            "pip install 'l2rm_jax[tensorboard]', or leave the field False"
        )


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


def _append(file: BinaryIO, text: str) -> None:
    """Appends to an unbuffered file, and names it where that fails; a full disk may take a part."""
    line = text.encode()
    try:
        if file.write(line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        raise OSError(error.errno, error.strerror, file.name) from error


def _lines_up_to(path: Path, step: int, epochs: int) -> list[str]:
    """Returns the whole records of `path` that a run at `step`, with `epochs` done, has written."""
    if not path.exists():
        return []
    lines = path.read_bytes().splitlines(keepends=True)
    if lines and not lines[-1].endswith(b"\n"):
        lines.pop()  # the run was killed while writing it

    def written(number: int, line: bytes) -> bool:
        try:
            record = json.loads(line)
            if record["kind"] in EPOCH_KINDS and record["step"] == step:
                return record.get("epoch", 0) <= epochs
            return record["step"] <= step
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CheckpointError(
                f"{path}:{number}: not a record of a run ({type(error).__name__}); remove the line "
                "or the file to go on without"
            ) from error

    return [line.decode() for number, line in enumerate(lines, 1) if written(number, line)]


def _fields(values: Mapping[str, Any]) -> str:
    """Returns `name value` pairs on one line, numbers to four significant digits."""
    parts = []
    for name, value in to_jsonable(values).items():
        parts.append(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}")
    return "  ".join(parts)
