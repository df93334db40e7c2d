"""The file of the last split by loss, `loss_split.npz`: loss, posterior and side per pair."""

from pathlib import Path

import numpy as np
from jaxtyping import Int

from l2rm_jax.data.files import open_arrays, replace_arrays
from l2rm_jax.errors import DataError
from l2rm_jax.methods import LossSplit

SPLIT_FILE = "loss_split.npz"
_KEPT = ("a split of pairs", "the next epoch that the run trains writes it again")


def keep_split(
    workdir: Path, epoch: int, stored_image: Int[np.ndarray, " N"], split: LossSplit
) -> None:
    """Write the split made before an epoch (counted from 1); it replaces an earlier one."""
    arrays = {"epoch": np.array(epoch), "image": stored_image, **split._asdict()}
    replace_arrays(workdir / SPLIT_FILE, arrays)


def last_split(workdir: str | Path, stored_image: Int[np.ndarray, " N"]) -> LossSplit | None:
    """Read the last split of a run; None if the run has made none.

    Raises:
      DataError: the file is damaged, or of other pairs.
    """
    path = Path(workdir) / SPLIT_FILE
    if not path.exists():
        return None
    with open_arrays(path, *_KEPT) as file:
        image = file["image"]
        split = LossSplit(*(file[name] for name in LossSplit._fields))
    if not np.array_equal(image, stored_image):
        raise DataError(
            f"{path}: found a split of {len(image)} other pairs, expected the "
            f"{len(stored_image)} that the run trains on"
        )
    return split
