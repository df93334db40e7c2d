"""Misaligned rows in an audit: search the pairs, judge the repaired ones, say both."""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from l2rm_jax.audit.lines import ROW, Lines
from l2rm_jax.data.files import open_array, replace_array
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.errors import DataError, expand_home
from l2rm_jax.jobs import Job
from l2rm_jax.jobs.files import replace_file
from l2rm_jax.jobs.regular_files import has_file, parse_json
from l2rm_jax.jobs.shares import WRITER, Part, wait_for
from l2rm_jax.joins import Finding, KnownModels, Misaligned, find_misaligned
from l2rm_jax.judging import Judgement, KeptJudge, read_judgement
from l2rm_jax.judging.content_keys import vector_keys
from l2rm_jax.linear.rows import Rows
from l2rm_jax.pages.examples import Example

FINDINGS, IMAGES, REPAIRED = "findings.json", "realigned.npy", "realigned_judgement.npz"
MOST = 300_000  # pairs that are searched: 4 to 6 kB of memory each
_SHOWN = 5  # findings that the verdict lists
_log = logging.getLogger(__name__)


def search_pairs(
    pairs: Pairs,
    seed: int = 0,
    lines: Lines | None = None,
    judge: KeptJudge | None = None,
) -> Misaligned:
    """Find misaligned rows of pairs.

    Args:
      pairs: pairs with one vector per image and per caption (`judging.rows_for`), in any order.
      seed: seed of all samples.
      lines: numbers of the pairs, in the order of the user's table; None: rows.
      judge: a kept judge, whose models are the evidence; None, or if they put nothing back of what
        they find: models are fitted to the pairs.
    """
    total = len(pairs)
    if total > MOST:
        nothing = np.zeros(total, bool)
        reason = f"more than {MOST:,} rows are not searched for misaligned rows"
        return Misaligned((), pairs.image_of, pairs.image_of, nothing, reason)
    lines = Lines(ROW, np.arange(total)) if lines is None else lines
    order = np.argsort(lines.numbers, kind="stable")
    ordered = pairs
    if np.any(np.diff(order) < 0):
        ordered = replace(pairs, words=None).take(order)
    search = partial(
        find_misaligned,
        ordered.images,
        ordered.captions,
        ordered.image_of.astype(np.int64),
        ids=pairs.ids,
        caption_ids=ordered.caption_ids,
        texts=ordered.texts,
        seed=seed,
    )
    found = search(known=judge and known_models(judge, pairs.images))
    if judge is not None and found and not found.changed.any():
        found = search()  # the pairs may just be unlike the judge's
    back = np.argsort(order)
    findings = [
        _named(finding, lines.numbers[order], lines.word.capitalize()) for finding in found.findings
    ]
    for finding in findings:
        _log.warning("misaligned rows: %s", finding.sentence)
    return Misaligned(
        tuple(findings),
        found.image_of[back],
        found.stored[back],
        found.suspicious[back],
        found.reason,
    )


def known_models(judge: KeptJudge, images: Rows) -> KnownModels:
    """Return the models of a kept judge as evidence on a table of these images."""
    models = [*map(judge.model, range(judge.about.folds))]
    codes = judge.images.astype(np.float32), judge.captions.astype(np.float32)
    fold = judge.fold_of(vector_keys(images))
    return KnownModels(models, *codes, fold, judge.about.temperature)


def _named(finding: Finding, numbers: Int[np.ndarray, " P"], unit: str) -> Finding:
    """Return the finding with a sentence in the user's lines."""

    def place(a: int, b: int) -> str:
        first, last = (int(numbers[min(max(k, 0), len(numbers) - 1)]) for k in (a, b - 1))
        return f"{unit} {first:,}" if first == last else f"{unit}s {first:,}-{last:,}"

    return replace(finding, sentence=finding.sentence_in(place, len(numbers)))


def realigned_pairs(pairs: Pairs, found: Misaligned) -> Pairs:
    """Return the pairs after the repair."""
    return replace(pairs, image_of=found.image_of, digest="")


def sentences(found: Misaligned | None, stored: Judgement, repaired: Judgement | None) -> list[str]:
    """Return the sentences of a search: the findings, then the rates before and after the repair.

    Args:
      found: the result of the search; None without a search.
      stored: judgement of the pairs as stored.
      repaired: judgement of the repaired pairs; None if nothing was put back.
    """
    if not found:
        return []
    lines = [finding.sentence for finding in found.findings[:_SHOWN]]
    if more := len(found.findings) - _SHOWN:
        lines += [f"{more:,} more findings are in {FINDINGS}."] if more > 0 else []
    if repaired is not None:
        count = sum(finding.repaired for finding in found.findings)
        things = "one misalignment" if count == 1 else f"{count} misalignments"
        lines.append(
            f"As stored: {_rate(stored)}. After undoing {things} "
            f"({np.count_nonzero(found.changed):,} rows): {_rate(repaired)}."
        )
    return lines


def _rate(judgement: Judgement) -> str:
    if judgement.unreliable_reason:
        return "cannot tell how many pairs are mismatched"
    percent = 100 * judgement.rate.estimate
    return f"{percent:.{int(percent < 10)}f}% mismatched"


def affected_share(found: Misaligned | None) -> float:
    """Return the share of the rows, as stored, that findings call mismatched."""
    return 0.0 if not found else float((found.changed | found.suspicious).mean())


def within_findings(judgement: Judgement, found: Misaligned) -> Judgement:
    """Limit proposals for rows that cannot be put back to captions of the same finding."""
    if not found.suspicious.any() or not judgement.proposal.shape[1]:
        return judgement
    proposal, probability = judgement.proposal.copy(), judgement.probability.copy()
    rows = np.flatnonzero(found.suspicious)
    outside = (proposal[rows] >= 0) & ~found.suspicious[proposal[rows]]
    proposal[rows] = np.where(outside, -1, proposal[rows])
    probability[rows] = np.where(outside, np.nan, probability[rows])
    # Proposals come first in their row, the best one in front.
    order = np.argsort(proposal[rows] < 0, axis=1, kind="stable")
    proposal[rows] = np.take_along_axis(proposal[rows], order, axis=1)
    probability[rows] = np.take_along_axis(probability[rows], order, axis=1)
    return replace(judgement, proposal=proposal, probability=probability)


def write_findings(found: Misaligned, pairs: Pairs, directory: Path) -> list[str]:
    """Write `findings.json`, and the image of each pair after a repair; return sentences."""
    ids = pairs.image_ids
    empty = np.setdiff1d(np.arange(len(ids)), found.image_of) if found else np.zeros(0, int)
    content = {
        "findings": [asdict(finding) for finding in found.findings],
        "reason": found.reason,
        "rows_put_back": int(np.count_nonzero(found.changed)),
        "rows_without_image": np.flatnonzero(found.suspicious).tolist(),
        "images_without_caption": [ids[image] for image in empty.tolist()],
    }
    what = found.reason or f"{len(found.findings)} found"
    notes = [f"{FINDINGS}: misaligned rows: {what}"]
    if found.changed.any():
        replace_array(directory / IMAGES, found.image_of)
        notes.append(f"{IMAGES}: row of the image of each pair after the repair")
    text = json.dumps(content, indent=1, ensure_ascii=False, default=_plain)
    replace_file(directory / FINDINGS, text.encode("utf-8", "replace"))  # the last one
    return notes


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else str(value)


def read_findings(directory: Path, stored: Int[np.ndarray, " pairs"]) -> Misaligned | None:
    """Read what `write_findings` wrote; None for an audit without a search.

    Raises:
      DataError: the file is damaged.
    """
    if not has_file(directory / FINDINGS):
        return None
    try:
        content = parse_json((directory / FINDINGS).read_bytes())
        findings = tuple(Finding(**finding) for finding in content["findings"])
        suspicious = np.zeros(len(stored), bool)
        suspicious[np.array(content["rows_without_image"], int)] = True
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise DataError(
            f"{directory / FINDINGS}: cannot be read ({error}), expected findings of an audit"
        ) from error
    file = directory / IMAGES
    image_of = np.array(open_array(file)) if has_file(file) else stored
    return Misaligned(findings, image_of, stored, suspicious, content["reason"])


def search_once(job: Job, pairs: Pairs, search: Callable[[], Misaligned]) -> Misaligned:
    """Search in the process that writes the results; the others wait for its findings."""
    folder = job.work / "found"
    if not (folder / FINDINGS).exists():
        if job.share.number == WRITER:
            folder.mkdir(exist_ok=True)
            write_findings(search(), pairs, folder)
        wait_for([Part(WRITER, folder / FINDINGS)])
    return read_findings(folder, pairs.image_of)


def read_repair(
    path: str | Path, stored: Int[np.ndarray, " pairs"]
) -> tuple[Misaligned, Judgement | None] | None:
    """Read the findings of an audit and the judgement of the repaired pairs, if there is one.

    Args:
      path: directory of the audit, or a file in it.
      stored: row of the image of each of its pairs.

    Returns:
      Both; None for an audit without a search.

    Raises:
      DataError: a file is damaged.
    """
    directory = _directory_of(path)
    found, file = read_findings(directory, stored), directory / REPAIRED
    if found is None:
        return None
    return found, read_judgement(file) if has_file(file) else None


def _directory_of(path: str | Path) -> Path:
    path = Path(expand_home(path))
    return path if path.is_dir() else path.parent


def read_sentences(path: str | Path) -> list[str]:
    """Return the sentences on misaligned rows of an audit, given its directory or a file of it."""
    file = _directory_of(path) / FINDINGS
    if not has_file(file):
        return []
    try:
        return [finding["sentence"] for finding in parse_json(file.read_bytes())["findings"]]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{file}: cannot be read ({error}), expected findings of an audit"
        ) from None


def examples(
    found: Misaligned | None, pairs: Pairs, pictures: Sequence | None, count: int = 3
) -> list[Example]:
    """Return a few rows that were put back, for the page."""
    rows = np.flatnonzero(found.changed) if found else []
    if not len(rows):
        return []
    shown, ids = [], pairs.image_ids
    for row in rows[np.unique(np.linspace(0, len(rows) - 1, count + 2).astype(int)[1:-1])].tolist():
        images = int(found.stored[row]), int(found.image_of[row])
        one, two = (ids[image] for image in images)
        both = pictures and (pictures[images[0]], pictures[images[1]])
        shown.append(Example(pairs.labels[row], (one, two), both))
    return shown


Judge = Callable[[Pairs, str], Judgement]  # pairs, and the name of their work


def judge_repaired(pairs: Pairs, found: Misaligned, judge: Judge) -> Judgement | None:
    """Judge the pairs after the repair; None if nothing was put back."""
    return judge(realigned_pairs(pairs, found), "realigned") if found.changed.any() else None
