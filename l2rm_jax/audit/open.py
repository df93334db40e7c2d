"""Read a finished audit from its directory."""

from pathlib import Path
from typing import Any

import numpy as np

from l2rm_jax.audit.audit import Audit, Settings
from l2rm_jax.audit.misaligned import read_repair
from l2rm_jax.audit.table import columns_of_user, decisions_of, read_table
from l2rm_jax.data.layouts import picture_files
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.errors import DataError, expand_home
from l2rm_jax.jobs.regular_files import has_file, parse_json, refuse_other_kinds
from l2rm_jax.judging import JUDGEMENT_FILE, read_judgement


def open_audit(directory: str | Path) -> Audit:
    """Read an audit that `l2rm audit` or `Audit.write` has written.

    Its pairs have the captions, names, columns and picture files of the audited pairs, but no
    vectors: `images` has no dimensions.

    Raises:
      DataError: it is no directory of an audit, or a file is damaged.
      ConfigError: a package is missing that reads the table.
    """
    directory = Path(expand_home(directory))
    if not has_file(directory / JUDGEMENT_FILE):
        raise DataError(f"{directory}: found no {JUDGEMENT_FILE}, expected a finished audit")
    judgement = read_judgement(directory / JUDGEMENT_FILE, is_decided=False)
    refuse_other_kinds(directory / "report.json")
    try:
        report: dict[str, Any] = parse_json((directory / "report.json").read_bytes())
        inputs, settings = report["inputs"], Settings(**report["settings"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{directory}/report.json: cannot be read ({error}), expected the report of an audit"
        ) from error
    table = read_table(directory, len(judgement))
    ids = [*map(str, range(inputs["images"]))]
    for row, name in zip(judgement.image_of.tolist(), table["image"].tolist(), strict=True):
        ids[row] = name
    texts, caption_ids = table["caption"].tolist(), table["id"].tolist()
    has_texts = any(text is not None for text in texts)
    pairs = Pairs(
        np.zeros((inputs["images"], 0), np.float32),
        None,
        judgement.image_of,
        texts=[text or "" for text in texts] if has_texts else None,
        ids=ids,
        caption_ids=None if caption_ids == [*map(str, range(len(texts)))] else caption_ids,
        columns=columns_of_user(table),
        pictures=picture_files(inputs["name"], ids),
        name=inputs["name"],
        digest=inputs["digest"],
    )
    misaligned, repaired = read_repair(directory, judgement.image_of) or (None, None)
    known = {"misaligned": misaligned, "repaired": repaired}
    return Audit(pairs, judgement, settings, decisions_of(table), **known)
