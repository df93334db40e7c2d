"""Checkpoints of a run: the newest two for an exact resume, and the best model by rSum.

A checkpoint is written by orbax in the background and becomes visible only when it is complete.
Every checkpoint carries a checksum of its contents, because neither orbax nor the array format
notices a flipped bit in an array.
"""

import base64
import contextlib
import io
import json
import logging
import shutil
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

from l2rm_jax.devices.hosts import is_primary, on_any_host
from l2rm_jax.errors import CheckpointError, first_line
from l2rm_jax.run.results import to_jsonable

PAUSES = (1.0, 4.0)  # seconds, before what cannot be read is tried again

PyTree = Any
T = TypeVar("T")
_logger = logging.getLogger(__name__)


class Resumed(NamedTuple):
    """What a run continues from, as it was given to `RunCheckpoints.save`."""

    state: PyTree
    plan: dict[str, np.ndarray]
    position: dict[str, Any]


class RunCheckpoints:
    """The checkpoints in `directory`: `latest/<step>` (newest 2) and `best/<step>` (the best).

    A step that is saved again takes the next free number: nothing is removed before what takes its
    place is complete.

    A context manager; leaving it waits for the saves in progress.
    """

    def __init__(self, directory: str | Path):
        root = Path(directory).absolute()  # orbax refuses relative paths
        self._latest, self._best = _manager(root / "latest", 2), _manager(root / "best", 1)

    def __enter__(self) -> "RunCheckpoints":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Waits for the saves in progress and releases their threads.

        Raises:
          CheckpointError: a save failed.
        """
        with contextlib.ExitStack() as both:
            for manager in (self._latest, self._best):
                both.enter_context(_saving(manager))
                both.callback(manager.close)

    def wait(self) -> None:
        """Returns when every save so far is complete on disk.

        Raises:
          CheckpointError: a save failed, of a full disk for example.
        """
        for manager in (self._latest, self._best):
            with _saving(manager):
                manager.wait_until_finished()

    def newest(self) -> Path | None:
        """The newest complete checkpoint; None where there is none."""
        self.wait()
        step = self._latest.latest_step()
        return None if step is None else self._latest.directory / str(step)

    def save(
        self,
        step: int,
        state: PyTree,
        plan: Mapping[str, np.ndarray],
        position: Mapping[str, Any],
    ) -> None:
        """Saves what a resume needs; of two saves of a step, the second one is the newer.

        What is given may be donated or changed as soon as this returns.

        Args:
          step: global step, the name of the checkpoint unless that or a later one is taken.
          state: pytree of arrays, typed PRNG keys among them; no Python scalars, no strings.
          plan: arrays of any shape and any numeric dtype; shapes may differ from save to save.
          position: JSON values and numbers of either array library (epoch, step in the epoch,
            best rSum so far, ...).

        Raises:
          CheckpointError: this save failed, or the one before it.
        """
        self.wait()  # on several hosts, two saves in progress would meet in one barrier
        with _saving(self._latest):
            newest = self._latest.latest_step()
            number = step if newest is None else max(step, newest + 1)
            progress = {
                "plan": {name: _encode(array) for name, array in plan.items()},
                "position": json.loads(json.dumps(position, default=to_jsonable)),
            }
            self._latest.save(number, args=_save_args(state, progress), force=True)

    def save_best(self, step: int, state: PyTree) -> None:
        """Saves `state` as the best model so far, in place of the one before.

        A step that is already kept stays as it is: a resumed run that passes it again
        computes the same model, and deleting the only copy first would risk it.

        Raises:
          CheckpointError: this save failed, or the one before it.
        """
        self.wait()
        with _saving(self._best):
            if step not in self._best.all_steps():
                self._best.save(step, args=_save_args(state, {}), force=True)

    def restore_latest(self, abstract_state: PyTree) -> Resumed | None:
        """Returns the newest intact checkpoint, or None where nothing was ever saved.

        A damaged checkpoint is named in a warning and set aside as `<step>.damaged`, and the one
        before it is used. Damaged is what cannot be read, tried repeatedly, on one of the hosts,
        all of which must call this.

        Args:
          abstract_state: pytree like the saved state, of arrays or `jax.ShapeDtypeStruct`
            (`jax.eval_shape` gives one). A leaf with a sharding is restored to it, any other
            to the first local device.

        Raises:
          CheckpointError: there are checkpoints and none can be restored.
        """
        self.wait()
        damaged: dict[int, str] = {}
        for step in sorted(self._latest.all_steps(), reverse=True):
            resumed, reason = None, "another host cannot read it"
            try:
                state, progress = _restore(self._latest.directory / str(step), abstract_state)
                plan = {name: _decode(text) for name, text in progress["plan"].items()}
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
        """Renames a damaged checkpoint, so that it cannot be taken for the newest again."""
        path = self._latest.directory / str(step)
        aside = path.with_name(f"{step}.damaged")
        _logger.warning("checkpoint %s is damaged, and now %s: %s", path, aside.name, why)
        if is_primary():
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)
        self._latest.delete(step)  # from the manager's list, on every host

    def restore_best(self, abstract_state: PyTree) -> PyTree:
        """Returns the best model's state; `abstract_state` as in `restore_latest`.

        Raises:
          CheckpointError: there is no best checkpoint, or it cannot be restored.
        """
        self.wait()
        step = self._best.latest_step()
        if step is None:
            raise CheckpointError(f"no checkpoint in {self._best.directory}: nothing trained yet")
        try:
            return _restore(self._best.directory / str(step), abstract_state)[0]
        except Exception as error:  # damage surfaces as nearly any type
            raise CheckpointError(
                f"checkpoint {self._best.directory / str(step)} cannot be restored: "
                f"{first_line(error)}"
            ) from error


def _manager(directory: Path, kept: int) -> ocp.CheckpointManager:
    options = ocp.CheckpointManagerOptions(preservation_policy=policies.LatestN(kept))
    return ocp.CheckpointManager(directory, options=options)


@contextlib.contextmanager
def _saving(manager: ocp.CheckpointManager) -> Iterator[None]:
    """What a save or the wait for one may raise, as an error of ours.

    A failed save leaves an unfinished directory, which nobody takes for a checkpoint.
    """
    try:
        yield
    except CheckpointError:  # of the other manager
        raise
    except Exception as error:  # a full disk surfaces as the array format's error
        raise CheckpointError(
            f"{manager.directory}: a checkpoint cannot be written ({first_line(error)}); the "
            "ones before it are whole"
        ) from error


def _save_args(state: PyTree, progress: dict[str, Any]) -> ocp.args.Composite:
    record = {"progress": progress, "checksum": _checksum(state, progress)}
    return ocp.args.Composite(state=ocp.args.StandardSave(state), record=ocp.args.JsonSave(record))


def _restore(directory: Path, abstract_state: PyTree) -> tuple[PyTree, dict[str, Any]]:
    """Returns (state, progress); raises on any damage, the checksum's included.

    Hosts read by themselves: orbax's manager would have one that succeeds wait for one that fails.
    """
    targets = jax.tree.map(_target, abstract_state)
    state, record = _patiently(
        lambda: (
            ocp.StandardCheckpointHandler().restore(
                directory / "state", args=ocp.args.StandardRestore(targets)
            ),
            ocp.JsonCheckpointHandler().restore(directory / "record", args=ocp.args.JsonRestore()),
        )
    )
    for leaf, target in zip(
        jax.tree.leaves(state), jax.tree.leaves(targets), strict=True
    ):  # where orbax's own metadata are lost, a typed PRNG key comes back as plain integers
        if (leaf.shape, leaf.dtype) != (target.shape, target.dtype):
            raise CheckpointError(
                f"found {leaf.dtype}{leaf.shape}, expected {target.dtype}{target.shape}"
            )
    if _checksum(state, record["progress"]) != record["checksum"]:
        raise CheckpointError("the contents do not agree with the checksum saved beside them")
    return state, record["progress"]


def _patiently(read: Callable[[], T]) -> T:
    """What it returns, tried again after pauses: a network file system may fail for a moment."""
    for pause in PAUSES:
        try:
            return read()
        except Exception as error:  # of the system, or of the array format about it
            _logger.info("a checkpoint cannot be read (%s); trying again", first_line(error))
            time.sleep(pause)
    return read()


def _target(leaf: Any) -> jax.ShapeDtypeStruct:
    sharding = getattr(leaf, "sharding", None)
    if sharding is None:  # without one, orbax would take the saved machine's devices
        sharding = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _checksum(state: PyTree, progress: dict[str, Any]) -> int:
    """Returns the CRC-32 of all array bytes in `state`, leaf by leaf, and of `progress`."""
    crc = zlib.crc32(json.dumps(progress, sort_keys=True).encode())
    for leaf in jax.tree.leaves(state):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        crc = zlib.crc32(np.ascontiguousarray(leaf).view(np.uint8), crc)
    return crc


def _encode(array: np.ndarray) -> str:
    """Returns the array as base64 text; orbax's own array items refuse empty arrays."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return base64.b64encode(buffer.getvalue()).decode()


def _decode(text: str) -> np.ndarray:
    return np.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False)
