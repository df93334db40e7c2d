"""Contents of one checkpoint on disk: the state, the progress and a checksum of both.

Neither orbax nor its array format detects a flipped bit in an array, hence the checksum.
"""

import base64
import io
import json
import logging
import time
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import numpy as np

from l2rm_jax.console import unconfigured_root
from l2rm_jax.errors import CheckpointError, first_line
from l2rm_jax.run.config_file import check_plain_path

if TYPE_CHECKING:
    import orbax.checkpoint as ocp

RETRY_PAUSES = (1.0, 4.0)  # seconds before a failed read is tried again

PyTree = Any
T = TypeVar("T")
_logger = logging.getLogger(__name__)


@cache
def orbax() -> ModuleType:
    """Import orbax when a checkpoint is read or written; it takes a second, and logs."""
    with unconfigured_root():
        import orbax.checkpoint as ocp
    return ocp


def newest_checkpoint(directory: Path) -> Path | None:
    """Find the complete checkpoint of the highest step in a directory; None without any."""
    steps = [int(path.name) for path in directory.glob("*") if path.name.isdecimal()]
    return directory / str(max(steps)) if steps else None


def read_checkpoint(directory: Path, make_abstract: Callable[[dict[str, Any]], PyTree]) -> PyTree:
    """Restore the state of a checkpoint by the shapes that it records itself.

    Args:
      directory: directory of the checkpoint.
      make_abstract: maps the recorded shapes, a dictionary, to the abstract state, as
        `RunCheckpoints.restore_latest` takes it.

    Raises:
      CheckpointError: the checkpoint cannot be restored.
    """
    check_plain_path(directory)
    directory = directory.absolute()  # orbax takes no other path
    try:
        with unconfigured_root():
            metadata = _retry(
                lambda: orbax().StandardCheckpointHandler().metadata(directory / "state")
            )
            shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), metadata.tree)
            return restore(directory, make_abstract(shapes))[0]
    except Exception as error:  # damage surfaces as nearly any type
        raise CheckpointError(
            f"checkpoint {directory} cannot be restored: {first_line(error)}"
        ) from error


def save_args(state: PyTree, progress: dict[str, Any]) -> "ocp.args.Composite":
    """Return what a manager of orbax saves; `restore` reads it."""
    record = {"progress": progress, "checksum": _checksum(state, progress)}
    args = orbax().args
    return args.Composite(state=args.StandardSave(state), record=args.JsonSave(record))


def restore(directory: Path, abstract_state: PyTree) -> tuple[PyTree, dict[str, Any]]:
    """Read (state, progress) and raise on any damage, a wrong checksum included.

    Each host reads on its own: with orbax's manager, a host that succeeds would wait for one that
    fails.
    """
    ocp, targets = orbax(), jax.tree.map(_restore_target, abstract_state)
    state, record = _retry(
        lambda: (
            ocp.StandardCheckpointHandler().restore(
                directory / "state", args=ocp.args.StandardRestore(targets)
            ),
            ocp.JsonCheckpointHandler().restore(directory / "record", args=ocp.args.JsonRestore()),
        )
    )
    for leaf, target in zip(
        jax.tree.leaves(state), jax.tree.leaves(targets), strict=True
    ):  # if orbax's own metadata are lost, a typed PRNG key comes back as plain integers
        if (leaf.shape, leaf.dtype) != (target.shape, target.dtype):
            raise CheckpointError(
                f"found {leaf.dtype}{leaf.shape}, expected {target.dtype}{target.shape}"
            )
    if _checksum(state, record["progress"]) != record["checksum"]:
        raise CheckpointError("the contents do not match the saved checksum")
    return state, record["progress"]


def _retry(read: Callable[[], T]) -> T:
    """Call `read`, again after pauses if it fails: a network file system may fail for a moment."""
    for pause in RETRY_PAUSES:
        try:
            return read()
        except Exception as error:  # of the system, or of the array format
            _logger.info("a checkpoint cannot be read (%s); trying again", first_line(error))
            time.sleep(pause)
    return read()


def _restore_target(leaf: Any) -> jax.ShapeDtypeStruct:
    sharding = getattr(leaf, "sharding", None)
    if sharding is None:  # without one, orbax would use the devices of the saved run
        sharding = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _checksum(state: PyTree, progress: dict[str, Any]) -> int:
    """CRC-32 of `progress` as JSON and of all array bytes in `state`, leaf by leaf."""
    crc = zlib.crc32(json.dumps(progress, sort_keys=True).encode())
    for leaf in jax.tree.leaves(state):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        crc = zlib.crc32(np.ascontiguousarray(leaf).view(np.uint8), crc)
    return crc


def encode(array: np.ndarray) -> str:
    """Encode an array as base64 text, because orbax rejects empty arrays."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return base64.b64encode(buffer.getvalue()).decode()


def decode(text: str) -> np.ndarray:
    """Decode an array that `encode` returned."""
    return np.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False)
