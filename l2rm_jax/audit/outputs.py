"""The files of an audit: table, report, page, and what is kept for training and for other tools."""

import importlib.util
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float

from l2rm_jax.audit import report
from l2rm_jax.audit.findings import ALTERNATE, KINDS, MATCHED, Audit
from l2rm_jax.audit.gallery import Gallery, write_gallery
from l2rm_jax.audit.inputs import Inputs
from l2rm_jax.audit.kept_table import write_kept_table
from l2rm_jax.audit.review import (
    FITS,
    WRONG,
    Decisions,
    check_sample,
    draw_review,
    read_decisions,
    reviewed_rate,
)
from l2rm_jax.data.files import new_directory, replace_array, replace_file
from l2rm_jax.retriever.pairs_table import Column, write_table
from l2rm_jax.retriever.sources import scene_pictures

GALLERY = "gallery.html"


def write_audit(audit: Audit, directory: str | Path) -> Path:
    """Write all files of an audit to a new directory, which appears when it is complete.

    Raises:
      ConfigError: the directory exists already.
      DataError: as `write_files`.
    """
    with new_directory(Path(directory)) as unfinished:
        write_files(audit, unfinished)
    return Path(directory)


def write_files(audit: Audit, directory: Path) -> None:
    """Write all files of an audit to a directory; the same audit gives the same bytes.

    Raises:
      DataError: the decisions of `settings.review` are not of this audit, or the table that the
        data were imported from cannot be read.
    """
    settings, pairs = audit.settings, len(audit.findings.image)
    decisions = read_decisions(settings.review, pairs) if settings.review else None
    rows, weight = draw_review(audit.findings.posterior, seed=settings.seed)
    reviewed = None
    if decisions is not None:
        check_sample(decisions, rows, weight)
        reviewed = reviewed_rate(decisions, weight)
    table = f"pairs{_table_ending()}"
    write_table(directory / table, _table_ending(), pair_columns(audit, decisions))
    kept = kept_pairs(audit, decisions)
    replace_array(directory / "kept.npy", np.flatnonzero(kept))
    replace_array(directory / "scores.npy", match_scores(audit, decisions))
    notes = [
        f"{table}: what is known of each pair",
        f"kept.npy: rows of the {np.count_nonzero(kept):,} pairs that are not doubted",
        "scores.npy: 1 - posterior of each pair, for data.filter_scores",
        _write_kept(audit, kept, directory),
    ]
    if decisions is not None:
        replace_array(directory / "known.npy", np.sort(decisions.rows(FITS)))
        notes.append("known.npy: rows of the pairs that fit by eye, for mismatch.paired_file")
    _write_page(audit, directory, rows, weight)
    notes.append(f"{GALLERY}: the page to look at the pairs and decide")
    text = report.page(audit, decisions, reviewed, notes)
    replace_file(directory / "report.md", text.encode("utf-8", "replace"))
    text = report.to_json(report.values(audit, decisions, reviewed))
    replace_file(directory / "report.json", text.encode("utf-8", "replace"))


def kept_pairs(audit: Audit, decisions: Decisions | None) -> Bool[np.ndarray, " pairs"]:
    """Which pairs are not doubted; what a person decided counts more than what was computed."""
    kept = np.isin(audit.findings.kind, (MATCHED, ALTERNATE))
    if decisions is not None:
        kept[decisions.rows(FITS)], kept[decisions.rows(WRONG)] = True, False
    return kept


def match_scores(audit: Audit, decisions: Decisions | None) -> Float[np.ndarray, " pairs"]:
    """Probability that each pair is matched: 1 where a person said that it fits, 0 where not."""
    scores = 1 - audit.findings.posterior
    if decisions is not None:
        scores[decisions.rows(FITS)], scores[decisions.rows(WRONG)] = 1, 0
    return scores


def pair_columns(audit: Audit, decisions: Decisions | None) -> dict[str, Column]:
    """The columns of the table of pairs, in the order of the data."""
    inputs, found = audit.inputs, audit.findings
    pairs = len(found.image)
    everywhere = np.ones(pairs, bool)
    columns = {
        "row": Column(np.arange(pairs), everywhere),
        "id": _texts(inputs.caption_ids or list(map(str, range(pairs))), pairs),
        "image": Column(np.array(inputs.ids, object)[found.image], everywhere),
        "image_row": Column(found.image, everywhere),
        "caption": _texts(inputs.texts, pairs),
        "fold": Column(found.fold, everywhere),
        "group": Column(found.group, everywhere),
        "similarity": _numbers(found.similarity),
        "information": _numbers(found.information),
        "posterior_set": _numbers(found.posterior_set),
        "posterior_caption": _numbers(found.posterior_caption),
        "posterior": _numbers(found.posterior),
        "q": _numbers(found.q),
        "kind": Column(np.array(KINDS, object)[found.kind], everywhere),
        "none_fits": _numbers(found.none_fits),
    }
    for place in range(found.proposal.shape[1]):
        is_known = found.proposal[:, place] >= 0
        columns[f"proposal_{place + 1}"] = Column(found.proposal[:, place], is_known)
        columns[f"probability_{place + 1}"] = Column(found.probability[:, place], is_known)
    if inputs.truth is not None:
        columns["mismatched_on_purpose"] = Column(inputs.truth, everywhere)
    if decisions is not None:
        decided, taken = np.full(pairs, "", object), np.full(pairs, -1)
        decided[decisions.row], taken[decisions.row] = decisions.decision, decisions.caption
        columns["decision"] = Column(decided, decided != "")
        columns["decision_caption"] = Column(taken, taken >= 0)
    return columns


def _texts(texts: list[str] | None, pairs: int) -> Column:
    if texts is None:
        return Column(np.full(pairs, "", object), np.zeros(pairs, bool))
    return Column(np.array(texts, object), np.ones(pairs, bool))


def _numbers(values: np.ndarray) -> Column:
    """A column of numbers; those that are not known are NaN and become empty cells."""
    return Column(values, ~np.isnan(values))


def _table_ending() -> str:
    return ".parquet" if importlib.util.find_spec("pyarrow") else ".csv"


def _write_kept(audit: Audit, kept: np.ndarray, directory: Path) -> str:
    """Write the user's table without the doubted rows; returns a sentence about it."""
    config, truth = audit.inputs.config, audit.inputs.truth
    if truth is not None:
        return "no kept table: the pairs were mismatched on purpose, unlike the user's table"
    return write_kept_table(config and config.data, kept, directory)


def _write_page(audit: Audit, directory: Path, rows: np.ndarray, weight: np.ndarray) -> None:
    inputs, settings = audit.inputs, audit.settings
    pairs, images = len(audit.findings.image), len(inputs.ids)
    captions = inputs.texts or inputs.caption_ids or [f"caption {row}" for row in range(pairs)]
    gallery = Gallery(
        title=f"{inputs.name}: {pairs:,} pairs, {images:,} images; seed {settings.seed}",
        key=inputs.digest,
        verdict=report.verdict(audit),
        details=report.tables(audit),
        findings=audit.findings,
        captions=captions,
        ids=inputs.ids,
        pictures=inputs.pictures or _draw_scenes(inputs, directory / "pictures"),
        near=audit.near,
        review=rows,
        review_weight=weight,
        shown=settings.gallery,
    )
    write_gallery(directory / GALLERY, gallery)


def _draw_scenes(inputs: Inputs, folder: Path) -> list[Path] | None:
    """Draw the pictures of the built-in data set; None for other data."""
    config = inputs.config
    draw = config and scene_pictures(f"{config.data.name}:train", config.data, folder)
    if not draw:
        return None
    folder.mkdir()
    return [draw(None, row) for row in range(len(inputs.ids))]
