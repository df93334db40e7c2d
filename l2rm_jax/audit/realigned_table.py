"""Write the user's table after a repair: every column, each caption with its right image."""

from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from l2rm_jax.audit.audit import Audit
from l2rm_jax.audit.table import Column, user_columns, write_table
from l2rm_jax.data.record import read_record

REALIGNED = "realigned.csv"


def write_realigned(audit: Audit, directory: Path) -> list[str]:
    """Write `realigned.csv` if rows were put back; return sentences about it.

    Rows are in the order of the user's table. Captions of a finding without a repair keep their
    image, and the column `misaligned` names the rows that were moved or cannot be trusted.
    """
    found, pairs = audit.misaligned, audit.pairs
    if found is None or not found.changed.any():
        return []
    order = np.argsort(audit.lines.numbers, kind="stable")
    ids = np.array(pairs.image_ids, object)
    state = np.select([found.changed, found.suspicious], ["moved", "suspicious"], "")
    image, caption = _names(audit.config)
    columns = {
        image: ids[found.image_of],
        caption: np.array(pairs.labels, object),
        **user_columns(pairs),
        "image_as_stored": ids[found.stored],
        "misaligned": state.astype(object),
    }
    write_table(directory / REALIGNED, {name: _ordered(x, order) for name, x in columns.items()})
    bare = len(ids) - len(np.unique(found.image_of))
    note = f"{REALIGNED}: your table, {np.count_nonzero(found.changed):,} rows put back"
    if found.suspicious.any():
        note += f"; {np.count_nonzero(found.suspicious):,} rows cannot be put back"
    if bare:
        note += f"; {bare:,} images have no caption (listed in findings.json)"
    return [note]


def _names(config: ConfigDict | None) -> tuple[str, str]:
    """Return the user's names of the columns of images and captions."""
    record = read_record(config.data.path) if config is not None and config.data.path else None
    named = record["columns"] if record is not None else None
    if named is None or any(len(named[side]) != 1 for side in ("image", "captions")):
        return "image", "caption"
    return named["image"][0], named["captions"][0]


def _ordered(values: Column | np.ndarray, order: np.ndarray) -> Column:
    column = values if isinstance(values, Column) else Column(values, np.ones(len(values), bool))
    return column._replace(values=column.values[order], known=column.known[order])
