"""Write the files of an audit: table, report, page, and kept pairs for training and other tools."""

import importlib.util
from pathlib import Path

import numpy as np

from l2rm_jax.audit import report
from l2rm_jax.audit.audit import Audit
from l2rm_jax.audit.cleaned_table import Sorted, write_tables
from l2rm_jax.audit.misaligned import REPAIRED, examples, write_findings
from l2rm_jax.audit.realigned_table import write_realigned
from l2rm_jax.audit.review import FITS, check_sample, hash_decisions
from l2rm_jax.audit.suspects import write_suspects
from l2rm_jax.audit.table import FILES, pair_columns, write_table
from l2rm_jax.data.files import replace_array
from l2rm_jax.data.layouts import SCENES, is_scenes
from l2rm_jax.errors import expand_home
from l2rm_jax.jobs.files import new_directory, replace_file
from l2rm_jax.judging import JUDGE_FILE, JUDGEMENT_FILE, write_judge, write_judgement
from l2rm_jax.pages import Gallery, write_gallery
from l2rm_jax.retriever.sources import scene_pictures

GALLERY, IDS = "gallery.html", "kept_ids.txt"


def write_audit(audit: Audit, directory: str | Path) -> Path:
    """Write all files of an audit to a new directory, which appears when it is complete.

    Raises:
      ConfigError: the directory exists already.
    """
    directory = Path(expand_home(directory))
    with new_directory(directory) as unfinished:
        write_files(audit, unfinished)
    return directory


def write_files(audit: Audit, directory: Path) -> None:
    """Write all files of an audit to a directory; the same audit gives the same bytes.

    Raises:
      DataError: the decisions belong to another audit, or the table that the data were imported
        from cannot be read.
    """
    decisions, (rows, weight) = audit.decisions, audit.drawn()
    if decisions is not None:
        check_sample(decisions, rows, weight)
    decided = audit.decided
    reviewed = audit.reviewed()
    table = FILES[not importlib.util.find_spec("pyarrow")]
    write_table(directory / table, pair_columns(audit))
    before = None if decisions is None else audit.judgement
    write_judgement(directory / JUDGEMENT_FILE, decided, before)
    judge = audit.judgement.judge
    if judge is not None:
        write_judge(directory, judge)
    kept = np.zeros(len(audit), bool)
    kept[audit.kept()] = True
    certified = audit.certified()
    replace_array(directory / "kept.npy", audit.kept())
    replace_array(directory / "scores.npy", decided.matched)
    notes = [
        write_suspects(audit, directory),
        f"{table}: all results for each pair",
        f"{JUDGEMENT_FILE}: the same for training, --config.judgement.path",
        *([] if judge is None else [f"{JUDGE_FILE}: the judge, for new pairs: l2rm audit --judge"]),
        f"kept.npy: rows of the {np.count_nonzero(kept):,} pairs that are not suspicious",
        "scores.npy: 1 - posterior of each pair",
        *_write_ids(audit, kept, directory),
        *_write_misaligned(audit, directory),
        *_write_cleaned(audit, kept, directory),
    ]
    if len(certified):
        replace_array(directory / "certified.npy", certified)
        notes.append(f"certified.npy: rows of the {len(certified):,} certified pairs")
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


def _write_misaligned(audit: Audit, directory: Path) -> list[str]:
    if audit.misaligned is None:
        return []
    notes = write_findings(audit.misaligned, audit.pairs, directory)
    if audit.repaired is not None:
        write_judgement(directory / REPAIRED, audit.repaired)
        notes.append(f"{REPAIRED}: judgement of the pairs after the repair")
    return [*notes, *write_realigned(audit, directory)]


def _write_ids(audit: Audit, kept: np.ndarray, directory: Path) -> list[str]:
    """Write the user's name of the image of each kept pair, unless names are row numbers.

    Returns:
      A sentence about the file, if it was written.
    """
    ids = audit.pairs.ids
    if ids is None or list(ids) == list(map(str, range(len(ids)))):
        return []
    names = (" ".join(ids[image].splitlines()) for image in audit.judgement.image_of[kept])
    lines = "".join(f"{name}\n" for name in names)
    replace_file(directory / IDS, lines.encode("utf-8", "replace"))
    return [f"{IDS}: your name of the image of each kept pair"]


def _write_cleaned(audit: Audit, kept: np.ndarray, directory: Path) -> list[str]:
    """Divide the user's table into kept and dropped rows; return sentences about the tables."""
    config, decisions = audit.config, audit.decisions
    if audit.truth is not None:
        return [
            "no kept table: the pairs were mismatched deliberately, so the table has other pairs"
        ]
    taken = {} if decisions is None else decisions.taken
    sorted_pairs = Sorted(kept, audit.pairs.texts, taken, audit.certified())
    return write_tables(config and config.data, sorted_pairs, directory)


def _write_page(
    audit: Audit, directory: Path, rows: np.ndarray, weight: np.ndarray, warnings: list[str]
) -> None:
    pairs, judgement, ids = audit.pairs, audit.judgement, audit.pairs.image_ids
    rows_of_captions = (f"caption {row}" for row in range(len(pairs)))
    captions = pairs.texts or pairs.caption_ids or [*rows_of_captions]
    decided = [] if audit.decisions is None else audit.decisions.entries
    key = pairs.digest or pairs.fingerprint
    pictures = pairs.pictures or _draw_scenes(audit, directory / "pictures")
    gallery = Gallery(
        title=f"{pairs.name}: {len(pairs):,} pairs, {len(ids):,} images; "
        f"seed {audit.settings.seed}",
        key=f"{key}:{hash_decisions(decided)}" if decided else key,
        pairs=judgement.made.fingerprint,
        verdict=[*audit.verdict(), *warnings],
        details=report.tables(audit),
        judgement=judgement,
        captions=captions,
        ids=ids,
        pictures=pictures,
        review=rows,
        review_weight=weight,
        goal="" if audit.certificate else audit.promise,
        shown=audit.settings.gallery,
        word=audit.lines.word,
        lines=audit.lines.numbers,
        decided=decided,
        command=audit.again,
        examples=examples(audit.misaligned, pairs, pictures),
    )
    write_gallery(directory / GALLERY, gallery)


def _draw_scenes(audit: Audit, folder: Path) -> list[Path] | None:
    """Draw the pictures of the built-in data set; None for other data."""
    if audit.config is None or not is_scenes(audit.config.data):
        return None
    draw = scene_pictures(f"{SCENES}:train", audit.config.data, folder)
    folder.mkdir()
    return [draw(None, row) for row in range(audit.pairs.images.shape[0])]
