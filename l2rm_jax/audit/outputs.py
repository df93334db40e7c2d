"""Write the files of an audit: table, report, page, and kept pairs for training and other tools."""

import csv
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool

from l2rm_jax.audit import report
from l2rm_jax.audit.audit import Audit, Settings
from l2rm_jax.audit.cleaned_table import write_kept_table
from l2rm_jax.audit.inputs import Inputs
from l2rm_jax.audit.review import FITS, WRONG, check_sample
from l2rm_jax.data.files import new_directory, replace_array, replace_file
from l2rm_jax.data.stored import SCENES, is_scenes
from l2rm_jax.errors import DataError
from l2rm_jax.judging import JUDGEMENT_FILE, Judgement, write_judgement
from l2rm_jax.judging.judgement import KINDS, MATCHED, NEAR_DUPLICATE
from l2rm_jax.judging.verdict import verdict
from l2rm_jax.pages import Gallery, write_gallery
from l2rm_jax.retriever.sources import scene_pictures

GALLERY, IDS = "gallery.html", "kept_ids.txt"
_BLOCK = 4096  # rows of the table converted to text at once


class Column(NamedTuple):
    """Column of text, integers, floats or booleans.

    Attributes:
      values: [rows] the values; an array of objects is text.
      known: [rows] whether each value is known; the other cells are empty.
    """

    values: np.ndarray
    known: Bool[np.ndarray, " rows"]


def write_audit(judgement: Judgement, inputs: Inputs, directory: str | Path) -> Path:
    """Write all files of an audit to a new directory, which appears when it is complete.

    Args:
      judgement: judgement of the pairs.
      inputs: the pairs, with texts, names and pictures (`inputs_of_arrays`).
      directory: the new directory.

    Raises:
      ConfigError: the directory exists already.
      DataError: the judgement belongs to other pairs.
    """
    if not np.array_equal(judgement.image, inputs.pair_image):
        raise DataError(
            f"judgement: found {len(judgement):,} other pairs, expected the "
            f"{len(inputs.pair_image):,} pairs of the inputs"
        )
    with new_directory(Path(directory)) as unfinished:
        settings = Settings(top=judgement.proposal.shape[1], seed=judgement.made.seed)
        write_files(Audit(inputs, judgement, settings), unfinished)
    return Path(directory)


def write_files(audit: Audit, directory: Path) -> None:
    """Write all files of an audit to a directory; the same audit gives the same bytes.

    Raises:
      DataError: the decisions belong to another audit, or the table that the data were imported
        from cannot be read.
    """
    decisions, judgement = audit.decisions, audit.judgement
    rows, weight = audit.drawn()
    decided = judgement
    if decisions is not None:
        check_sample(decisions, rows, weight)
        decided = judgement.decided(decisions.rows(FITS), decisions.rows(WRONG))
    reviewed = audit.reviewed()
    table = "pairs.parquet" if importlib.util.find_spec("pyarrow") else "pairs.csv"
    write_table(directory / table, pair_columns(audit))
    write_judgement(directory / JUDGEMENT_FILE, decided)
    kept = np.isin(decided.kind, (MATCHED, NEAR_DUPLICATE))
    replace_array(directory / "kept.npy", np.flatnonzero(kept))
    replace_array(directory / "scores.npy", 1 - decided.posterior)
    notes = [
        f"{table}: all results for each pair",
        f"{JUDGEMENT_FILE}: the same for training, --config.judgement.path",
        f"kept.npy: rows of the {np.count_nonzero(kept):,} pairs that are not suspicious",
        "scores.npy: 1 - posterior of each pair",
        *_write_ids(audit, kept, directory),
        _write_kept(audit, kept, directory),
    ]
    if decisions is not None:
        replace_array(directory / "known.npy", np.sort(decisions.rows(FITS)))
        notes.append("known.npy: rows of the pairs that fit by eye, for mismatch.paired_file")
    warnings = [f"Warning: {line}" for line in report.warnings(audit, reviewed)]
    _write_page(audit, directory, rows, weight, warnings)
    notes.append(f"{GALLERY}: the page to view the pairs and decide")
    text = report.page(audit, reviewed, notes)
    replace_file(directory / "report.md", text.encode("utf-8", "replace"))
    text = report.to_json(report.values(audit, reviewed))
    replace_file(directory / "report.json", text.encode("utf-8", "replace"))


def pair_columns(audit: Audit) -> dict[str, Column]:
    """Return the columns of the table of pairs, in the order of the data."""
    inputs, found, decisions = audit.inputs, audit.judgement, audit.decisions
    pairs = len(found)
    columns = {
        "row": _filled(np.arange(pairs)),
        "id": _filled(np.array(inputs.caption_ids or list(map(str, range(pairs))), object)),
        "image": _filled(np.array(inputs.ids, object)[found.image]),
        "image_row": _filled(found.image),
        "caption": Column(np.full(pairs, "", object), np.zeros(pairs, bool))
        if inputs.texts is None
        else _filled(np.array(inputs.texts, object)),
        "fold": _filled(found.fold),
        "group": _filled(found.group),
        "similarity": _numbers(found.similarity),
        "information": _numbers(found.information),
        "posterior_set": _numbers(found.posterior_set),
        "posterior_caption": _numbers(found.posterior_caption),
        "posterior": _numbers(found.posterior),
        "q": _numbers(found.q),
        "kind": _filled(np.array(KINDS, object)[found.kind]),
        "none_fits": _numbers(found.none_fits),
    }
    for place in range(found.proposal.shape[1]):
        is_known = found.proposal[:, place] >= 0
        columns[f"proposal_{place + 1}"] = Column(found.proposal[:, place], is_known)
        columns[f"probability_{place + 1}"] = Column(found.probability[:, place], is_known)
    if inputs.truth is not None:
        columns["mismatched_on_purpose"] = _filled(inputs.truth)
    if audit.of_run is not None:
        columns |= {
            "loss": _numbers(audit.of_run.loss),
            "loss_posterior": _numbers(audit.of_run.loss_posterior),
            "called": Column(audit.of_run.called, audit.of_run.called != ""),
            "dropped": Column(audit.of_run.dropped, audit.of_run.dropped != ""),
        }
    if decisions is not None:
        decided, taken = np.full(pairs, "", object), np.full(pairs, -1)
        decided[decisions.row], taken[decisions.row] = decisions.decision, decisions.caption
        columns["decision"] = Column(decided, decided != "")
        columns["decision_caption"] = Column(taken, taken >= 0)
    return columns


def _filled(values: np.ndarray) -> Column:
    """Make a column without empty cells."""
    return Column(values, np.ones(len(values), bool))


def _numbers(values: np.ndarray) -> Column:
    """Make a column of numbers; NaN becomes an empty cell."""
    return Column(values, ~np.isnan(values))


def write_table(path: Path, columns: Mapping[str, Column]) -> None:
    """Write columns of equal length to a file whose name ends in `.csv` or `.parquet`.

    CSV is UTF-8 with a header; unknown cells are empty, numbers have six digits.
    """
    if path.suffix == ".parquet":
        _write_parquet(path, columns)
        return
    rows = len(next(iter(columns.values())).known)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for start in range(0, rows, _BLOCK):
            block = slice(start, start + _BLOCK)
            writer.writerows(zip(*(_cells(x, block) for x in columns.values()), strict=True))


def _cells(column: Column, block: slice) -> list[str]:
    kind = column.values.dtype.kind
    write = {"b": lambda x: "true" if x else "false", "f": lambda x: f"{x:.6g}"}.get(kind, str)
    values = column.values[block].tolist(), column.known[block].tolist()
    return [write(x) if known else "" for x, known in zip(*values, strict=True)]


def _write_parquet(path: Path, columns: Mapping[str, Column]) -> None:
    import pyarrow
    import pyarrow.parquet

    arrays = {
        name: pyarrow.array(
            values, mask=~known, type=pyarrow.string() if values.dtype == object else None
        )
        for name, (values, known) in columns.items()
    }
    pyarrow.parquet.write_table(pyarrow.table(arrays), path)


def _write_ids(audit: Audit, kept: np.ndarray, directory: Path) -> list[str]:
    """Write the user's name of the image of each kept pair, unless names are row numbers.

    Returns:
      A sentence about the file, if it was written.
    """
    ids = audit.inputs.ids
    if ids == list(map(str, range(len(ids)))):
        return []
    lines = "".join(f"{ids[image]}\n" for image in audit.judgement.image[kept])
    replace_file(directory / IDS, lines.encode("utf-8", "replace"))
    return [f"{IDS}: your name of the image of each kept pair"]


def _write_kept(audit: Audit, kept: np.ndarray, directory: Path) -> str:
    """Write the user's table without the suspicious rows; return a sentence about it."""
    config, truth = audit.inputs.config, audit.inputs.truth
    if truth is not None:
        return "no kept table: the pairs were mismatched deliberately, so the table has other pairs"
    return write_kept_table(config and config.data, kept, directory)


def _write_page(
    audit: Audit, directory: Path, rows: np.ndarray, weight: np.ndarray, warnings: list[str]
) -> None:
    inputs, judgement, settings = audit.inputs, audit.judgement, audit.settings
    pairs, images = len(judgement), len(inputs.ids)
    captions = inputs.texts or inputs.caption_ids or [f"caption {row}" for row in range(pairs)]
    gallery = Gallery(
        title=f"{inputs.name}: {pairs:,} pairs, {images:,} images; seed {settings.seed}",
        key=inputs.digest,
        verdict=[*verdict(judgement, inputs.ids), *warnings],
        details=report.tables(audit),
        judgement=judgement,
        captions=captions,
        ids=inputs.ids,
        pictures=inputs.pictures or _draw_scenes(inputs, directory / "pictures"),
        review=rows,
        review_weight=weight,
        shown=settings.gallery,
    )
    write_gallery(directory / GALLERY, gallery)


def _draw_scenes(inputs: Inputs, folder: Path) -> list[Path] | None:
    """Draw the pictures of the built-in data set; None for other data."""
    config = inputs.config
    if config is None or not is_scenes(config.data):
        return None
    draw = scene_pictures(f"{SCENES}:train", config.data, folder)
    folder.mkdir()
    return [draw(None, row) for row in range(len(inputs.ids))]
