"""Check the arguments of `audit_pairs`, and make pairs of them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from l2rm_jax.data.frame_columns import columns_of
from l2rm_jax.data.layouts import open_pairs
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.jobs.files import replace_file
from l2rm_jax.jobs.job import differences

_TABLE = "table."  # before the names of further columns, which may be called like a side


def claim(keep: Path, pairs: Pairs, **settings: int | str) -> None:
    """Check that `keep` has no stages of another call; store the pairs and settings of this one."""
    own, file = settings | {"pairs": pairs.digest or pairs.fingerprint}, keep / "arguments.json"
    if names := differences(file, own):
        raise ConfigError(
            f"{keep}: found stages of other {' and '.join(names)}, expected none, or stages of the "
            "same call"
        )
    replace_file(file, json.dumps(own).encode())


def pairs_of(images: Any, given: dict[str, Any], image: str, caption: str, model: Any) -> Pairs:
    """Return the pairs of the arguments of `audit_pairs`."""
    if image or caption:
        _require_none("a table and its columns image and caption", given)
        return Pairs.from_frame(images, image, caption, model)
    if isinstance(images, Pairs | str | Path):
        _require_none("pairs or a directory", given | {"model": model})
        return images if isinstance(images, Pairs) else open_pairs(images)
    if given["captions"] is None:
        raise DataError(
            "captions: found none, expected vectors or texts; a table requires image=COLUMN and "
            "caption=COLUMN"
        )
    if model is None:
        return Pairs.from_arrays(images, **given)
    _require_none("model", {name: given[name] for name in ("image_of", "texts")})
    columns = {} if given["table"] is None else columns_of(given["table"])
    table = {f"{_TABLE}{name}": values for name, values in columns.items()}
    table |= {"images": images, "captions": given["captions"]}
    pairs = Pairs.from_frame(table, "images", "captions", model)
    columns = {name.removeprefix(_TABLE): values for name, values in pairs.columns.items()}
    return replace(pairs, columns=columns)


def _require_none(images: str, given: dict[str, Any]) -> None:
    if names := [name for name, value in given.items() if value is not None]:
        raise DataError(f"{', '.join(names)} cannot be combined with {images}")
