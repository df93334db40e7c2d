"""Checkpoints of a run: the newest two for an exact resume, and the best model by rSum.

Orbax writes a checkpoint in the background and makes it visible only when it is complete.
"""

import contextlib
import json
import logging
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from absl import logging as absl_logging

from l2rm_jax.console import unconfigured_root
from l2rm_jax.devices.hosts import is_primary, on_any_host
from l2rm_jax.errors import CheckpointError, first_line
from l2rm_jax.run.checkpoint_format import (
    decode,
    encode,
    newest_checkpoint,
    orbax,
    restore,
    save_args,
)
from l2rm_jax.run.config_file import check_plain_path
from l2rm_jax.run.results import to_jsonable

if TYPE_CHECKING:
    import orbax.checkpoint as ocp

PyTree = Any
_logger = logging.getLogger(__name__)


def hide_repeated_errors() -> None:
    """Hide messages about a failed save that repeat the `CheckpointError` of `RunCheckpoints`.

    Threads of orbax and of its array format print a traceback each, before the main thread learns
    of the failure.
    """
    absl_logging.get_absl_logger().addFilter(
        lambda record: record.levelno < logging.ERROR or "orbax" not in record.pathname
    )
    report = sys.unraisablehook

    def report_other(failure: Any) -> None:
        # The first of several failed writes ends orbax's event loop; the others find it closed.
        closed = "Event loop is closed"
        if not isinstance(failure.exc_value, RuntimeError) or str(failure.exc_value) != closed:
            report(failure)

    sys.unraisablehook = report_other


hide_repeated_errors()


class Resumed(NamedTuple):
    """Contents of a restored checkpoint, as they were passed to `RunCheckpoints.save`."""

    state: PyTree
    plan: dict[str, np.ndarray]
    position: dict[str, Any]


class RunCheckpoints:
    """The checkpoints in `directory`: the newest two in `latest/<step>`, the best in `best/<step>`.

    A step that is saved again gets the next free number: an old checkpoint is removed only when
    its replacement is complete.

    Use it as a context manager; on exit it waits for the saves in progress.
    """

    def __init__(self, directory: str | Path):
        check_plain_path(directory)
        root = Path(directory).absolute()  # orbax refuses relative paths
        self._logging = contextlib.ExitStack()
        self._logging.enter_context(unconfigured_root())
        self._latest, self._best = _manager(root / "latest", 2), _manager(root / "best", 1)

    def __enter__(self) -> "RunCheckpoints":
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for the saves in progress, release their threads, and raise if a save failed."""
        with self._logging, contextlib.ExitStack() as both:
            for manager in (self._latest, self._best):
                both.enter_context(_save_errors(manager))
                both.callback(manager.close)

    def wait(self) -> None:
        """Wait until every save so far is complete on disk.

        Raises:
          CheckpointError: a save failed, because the disk is full for example.
        """
        for manager in (self._latest, self._best):
            with _save_errors(manager):
                manager.wait_until_finished()

    def newest(self) -> Path | None:
        """Directory of the newest checkpoint, or None; waits for a save in progress."""
        self.wait()
        return newest_checkpoint(Path(self._latest.directory))

    def describe_loss(self) -> str:
        """Name the training that is lost if the process ends now; does not wait for a save."""
        newest = newest_checkpoint(Path(self._latest.directory))
        return f"all training after checkpoint {newest.name}" if newest else "all training so far"

    def save(
        self,
        step: int,
        state: PyTree,
        plan: Mapping[str, np.ndarray],
        position: Mapping[str, Any],
    ) -> None:
        """Save everything that a resume needs.

        The arguments may be donated or modified as soon as this returns. If a step is saved twice,
        the second save counts as the newer one.

        Args:
          step: global step; names the checkpoint, or the next free number does.
          state: pytree of arrays, which may include typed PRNG keys; no Python scalars or strings.
          plan: arrays of any shape and numeric dtype; shapes may differ from save to save.
          position: JSON values, NumPy or JAX numbers (epoch, step in the epoch, best rSum, ...).

        Raises:
          CheckpointError: this save or the previous one failed, or the first cannot be read back.
        """
        self.wait()  # on several hosts, two saves in progress would share one barrier
        with _save_errors(self._latest):
            newest = self._latest.latest_step()
            number = step if newest is None else max(step, newest + 1)
            progress = {
                "plan": {name: encode(array) for name, array in plan.items()},
                "position": json.loads(json.dumps(position, default=to_jsonable)),
            }
            self._latest.save(number, args=save_args(state, progress), force=True)
        if newest is None:  # a run of days must not end without a checkpoint
            self._read_back(number, state)

    def _read_back(self, step: int, state: PyTree) -> None:
        """Read the first checkpoint of a run; raise `CheckpointError` if that fails."""
        self.wait()
        path = self._latest.directory / str(step)
        try:
            restore(path, state)
        except Exception as error:  # damage surfaces as nearly any type
            raise CheckpointError(
                f"{path}: the first checkpoint cannot be read back ({first_line(error, 300)}); "
                "try another --workdir"
            ) from error

    def save_best(self, step: int, state: PyTree) -> None:
        """Save `state` as the best model; it replaces the previous best.

        A step that is already saved is not written again: a resumed run that repeats the step has
        the same model, and orbax would delete the only copy first.

        Raises:
          CheckpointError: this save or the previous one failed.
        """
        self.wait()
        with _save_errors(self._best):
            if step not in self._best.all_steps():
                self._best.save(step, args=save_args(state, {}), force=True)

    def restore_latest(self, abstract_state: PyTree) -> Resumed | None:
        """Restore the newest intact checkpoint; None if nothing was ever saved.

        A checkpoint is damaged if any host fails to read it after retries. It is renamed to
        `<step>.damaged` with a warning, and the one before it is used. All hosts must call this.

        Args:
          abstract_state: pytree with the structure of the saved state, of arrays or
            `jax.ShapeDtypeStruct` (from `jax.eval_shape`). A leaf with a sharding is restored to
            that sharding, any other leaf to the first local device.

        Raises:
          CheckpointError: there are checkpoints, but none can be restored.
        """
        self.wait()
        damaged: dict[int, str] = {}
        for step in sorted(self._latest.all_steps(), reverse=True):
            resumed, reason = None, "another host cannot read it"
            try:
                state, progress = restore(self._latest.directory / str(step), abstract_state)
                plan = {name: decode(text) for name, text in progress["plan"].items()}
                resumed = Resumed(state, plan, progress["position"])
            except Exception as error:  # damage surfaces as nearly any type
                reason = first_line(error)
            if on_any_host(resumed is None):
                damaged[step] = reason
                continue
            for bad_step, reason in damaged.items():
                self._set_aside(bad_step, f"{reason}; {step} is used instead")
            return resumed
        if damaged:
            raise CheckpointError(
                f"no checkpoint in {self._latest.directory} can be restored: "
                + "; ".join(f"step {step}: {reason}" for step, reason in damaged.items())
            )
        return None

    def _set_aside(self, step: int, why: str) -> None:
        """Rename a damaged checkpoint, so that it is not read as the newest one again."""
        path = self._latest.directory / str(step)
        renamed = path.with_name(f"{step}.damaged")
        _logger.warning("checkpoint %s is damaged, renamed to %s: %s", path, renamed.name, why)
        if is_primary():
            shutil.rmtree(renamed, ignore_errors=True)
            path.rename(renamed)
        self._latest.delete(step)  # from orbax's list of steps, on every host

    def restore_best(self, abstract_state: PyTree) -> PyTree:
        """Restore the state of the best model; `abstract_state` as in `restore_latest`.

        Raises:
          CheckpointError: there is no best checkpoint, or it cannot be restored.
        """
        self.wait()
        step = self._best.latest_step()
        if step is None:
            raise CheckpointError(f"no checkpoint in {self._best.directory}: nothing trained yet")
        try:
            return restore(self._best.directory / str(step), abstract_state)[0]
        except Exception as error:  # damage surfaces as nearly any type
            raise CheckpointError(
                f"checkpoint {self._best.directory / str(step)} cannot be restored: "
                f"{first_line(error)}"
            ) from error


def _manager(directory: Path, kept: int) -> "ocp.CheckpointManager":
    ocp = orbax()
    policy = ocp.checkpoint_managers.LatestN(kept)
    options = ocp.CheckpointManagerOptions(preservation_policy=policy)
    return ocp.CheckpointManager(directory, options=options)


@contextlib.contextmanager
def _save_errors(manager: "ocp.CheckpointManager") -> Iterator[None]:
    """Raise errors of a save, or of the wait for it, as `CheckpointError`.

    A failed save leaves an unfinished directory, which is never read as a checkpoint.
    """
    try:
        yield
    # The first is already converted, for the other manager; the second means that a host is lost.
    except (CheckpointError, jax.errors.JaxRuntimeError):
        raise
    except Exception as error:  # a full disk surfaces as an error of the array format
        system = re.search(r"([^:\[\]]+) \[os_error_code=|\[Errno \d+\] ([^:]+)", str(error))
        reason = (system[1] or system[2]).strip() if system else first_line(error)
        raise CheckpointError(
            f"{manager.directory}: a checkpoint cannot be written ({reason}); earlier ones are "
            "intact"
        ) from error
