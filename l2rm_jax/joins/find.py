"""Find misaligned rows in a table of images and captions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Int64

from l2rm_jax.errors import DataError
from l2rm_jax.joins import maps
from l2rm_jax.joins.blind import find_start
from l2rm_jax.joins.evidence import LEAST_IMAGES, Fits, OwnFits
from l2rm_jax.joins.findings import UNREPAIRED, Named, name_both, name_rules
from l2rm_jax.joins.known import KnownFits, KnownModels
from l2rm_jax.joins.maps import Orders, read_orders
from l2rm_jax.joins.placebo import passes
from l2rm_jax.joins.search import Explanation, follow
from l2rm_jax.joins.sentences import Place, sentence_of
from l2rm_jax.joins.table import (
    CAPTION_COMPONENTS,
    IMAGE_COMPONENTS,
    Table,
    make_table,
    principal,
)
from l2rm_jax.joins.unexplained import name_all_wrong, name_unexplained
from l2rm_jax.linear.rows import Rows, TakenRows
from l2rm_jax.linear.threads import limit_threads

LEAST_ROWS = 100
TOO_FEW = "too few rows to look for misaligned rows"


@dataclass(frozen=True, eq=False)
class Finding:
    """One misalignment.

    Attributes:
      kind: its name, for example "shifted".
      first: first row, from 0.
      end: row after the last one.
      rows: number of rows.
      sentence: what happened, with rows counted from 0.
      details: parameters of the kind.
      repaired: whether the rows are put back.
      matched: share of the rows that fit their image after the repair better than a random one.
    """

    kind: str
    first: int
    end: int
    rows: int
    sentence: str
    details: dict[str, Any]
    repaired: bool
    matched: float

    def sentence_in(self, place: Place, rows: int) -> str:
        """Return the sentence in the user's names of rows.

        Args:
          place: name of the rows from a first one to before an end, such as "Lines 2-9".
          rows: number of rows of the table.
        """
        is_whole = self.end - self.first > 0.98 * rows
        span = "All rows" if is_whole else place(self.first, self.end)
        return sentence_of(self.kind, self.details, self.rows, place, span)


@dataclass(frozen=True, eq=False)
class Misaligned:
    """Result of a search for misaligned rows.

    Attributes:
      findings: what happened, in the order of the table.
      image_of: image of each caption after the repair; as stored where nothing was put back.
      stored: image of each caption as stored.
      suspicious: rows of findings that cannot be put back.
      reason: why there was no search; "" if there was one.
    """

    findings: tuple[Finding, ...]
    image_of: Int64[np.ndarray, " P"]
    stored: Int64[np.ndarray, " P"]
    suspicious: Bool[np.ndarray, " P"]
    reason: str = ""

    @property
    def changed(self) -> Bool[np.ndarray, " P"]:
        """Whether the repair moved each caption to another image."""
        return self.image_of != self.stored

    def __bool__(self) -> bool:
        return bool(self.findings)

    def __str__(self) -> str:
        lines = [finding.sentence for finding in self.findings]
        return "\n".join(lines or [self.reason or "No misaligned rows were found."])


def find_misaligned(
    images: Rows,
    captions: Rows,
    image_of: Int[np.ndarray, " P"] | None = None,
    ids: Sequence[str] | None = None,
    caption_ids: Sequence[str] | None = None,
    texts: Sequence[str] | None = None,
    groups: Sequence | None = None,
    seed: int = 0,
    known: KnownModels | None = None,
) -> Misaligned:
    """Find rows whose captions belong to the images of other rows by a rule, and undo it.

    A caption column that is late by one row, a side that was sorted, shards in another order, keys
    that collide: each such rule leaves a table whose captions fit other images in a regular way.
    Single captions at random are left as they are; `audit_pairs` finds them.

    Args:
      images: [images, di] one vector per image, in the order of the user's list.
      captions: [P, dc] one vector per caption, in the order of the user's rows.
      image_of: [P] row of the image that each caption is stored with. None: all images have
        equally many captions, and the captions of one image are adjacent.
      ids: [images] the user's names of the images, such as file names.
      caption_ids: [P] the user's key of each caption.
      texts: [P] the captions as texts.
      groups: [P] folder, shard or batch of each row.
      seed: seed of the folds and of all samples.
      known: models of other pairs, which are the evidence; None: models are fitted to the rows.

    Raises:
      DataError: lengths contradict each other, or a row has an image that is not there.
    """
    stored = _checked(images, captions, image_of, ids, caption_ids, texts, groups)
    total = len(stored)
    if total < LEAST_ROWS or len(np.unique(stored)) < LEAST_IMAGES:
        return Misaligned((), stored, stored, np.zeros(total, bool), TOO_FEW)
    listed = _listed(stored, images.shape[0])
    place = np.argsort(listed)
    names = None if ids is None else [str(ids[i]) for i in listed]
    keys = None if caption_ids is None else [*map(str, caption_ids)]
    numbers = None if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1]
    texts = None if texts is None else list(texts)
    with limit_threads():  # around small matrices, threads wait for each other
        v = principal(TakenRows(images, listed), IMAGE_COMPONENTS)
        t = principal(captions, CAPTION_COMPONENTS)
        if min(v.shape[1], t.shape[1]) < 2:
            return Misaligned((), stored, stored, np.zeros(total, bool), "the vectors do not vary")
        table = make_table(v, t, place[stored], names, texts, keys, numbers)
        found = search(
            table,
            OwnFits(table, seed)
            if known is None
            else KnownFits(known, images, captions, listed, seed),
        )
    return Misaligned(found.findings, listed[found.image_of], stored, found.suspicious)


def search(table: Table, fits: Fits) -> Misaligned:
    """Search a table (`find_misaligned`)."""
    orders = read_orders(table)
    found = _search_once(table, orders, fits)
    if not found.changed.any():
        return found
    # A second rule may show once the first one is undone.
    v, t, names = table.images, table.captions, (table.ids, table.texts, table.keys)
    more = _search_once(make_table(v, t, found.image_of, *names, table.groups), orders, fits)
    if not (further := [finding for finding in more.findings if finding.repaired]):
        return found
    findings = _joined(found.findings, further, len(table))
    return replace(found, findings=findings, image_of=more.image_of)


def _joined(
    first: Sequence[Finding], further: Sequence[Finding], total: int
) -> tuple[Finding, ...]:
    """Join the findings of two searches; offsets of the same rows become one finding."""
    once, again = _of_shared_rows(first, further), _of_shared_rows(further, first)
    both = once + again
    kept = [x for x in (*first, *further) if x not in both]
    if both:
        named = name_both(
            *([part for x in side for part in x.details["pieces"]] for side in (once, again)), total
        )
        matched = np.average([x.matched for x in both], weights=[x.rows for x in both])
        kept.append(_finding(named, True, float(matched), total))
    return tuple(sorted(kept, key=lambda finding: finding.first))


def _of_shared_rows(findings: Sequence[Finding], others: Sequence[Finding]) -> list[Finding]:
    """Return the findings of offsets that share rows with offsets among the others."""
    spans = [(x.first, x.end) for x in others if "pieces" in x.details]
    return [
        x
        for x in findings
        if "pieces" in x.details and any(x.first < b and a < x.end for a, b in spans)
    ]


def _search_once(table: Table, orders: Orders, fits: Fits) -> Misaligned:
    found = _explained(table, orders, fits)
    image_of, suspicious = table.stored.copy(), np.zeros(len(table), bool)
    findings = []
    if found is None:
        named = name_all_wrong(table)
    else:
        named = name_rules(table, found) + name_unexplained(found)
    join = table.stored if found is None else found.join()
    for one in named:
        repaired = one.kind not in UNREPAIRED
        matched = 0.0
        if repaired:
            matched = passes(table, found, one, fits)
            if not matched:
                continue
            rows = one.rows[join[one.rows] >= 0]
            image_of[rows] = join[rows]
        else:
            suspicious[one.rows] = True
        findings.append(_finding(one, repaired, matched, len(table)))
    return Misaligned(
        tuple(sorted(findings, key=lambda x: x.first)), image_of, table.stored, suspicious
    )


def _explained(table: Table, orders: Orders, fits: Fits) -> Explanation | None:
    """Return the explanation of a table; None where nothing fits under any join."""
    found = None
    if (evidence := fits(table.stored)).usable:
        found = follow(table, orders, fits, maps.stored(table), [], is_blind=False)
        if not found.is_empty or evidence.rate < 0.5:
            return found
    start = find_start(table, orders, fits)
    if start is None or len(np.unique(start.images[start.images >= 0])) < LEAST_IMAGES:
        return found
    of_start = fits(start.images)
    if of_start.usable and of_start.rate < evidence.rate:
        known = [start] if start.name[0] != "windows" else []
        blind = follow(table, orders, fits, start, known, is_blind=True)
        if not blind.is_empty:
            return blind
    return found


def _finding(one: Named, repaired: bool, matched: float, total: int) -> Finding:
    finding = Finding(
        one.kind, one.first, one.end, len(one.rows), "", one.details, repaired, matched
    )
    return replace(finding, sentence=finding.sentence_in(_row_place, total))


def _row_place(a: int, b: int) -> str:
    return f"Row {a:,}" if b - a == 1 else f"Rows {a:,}-{b - 1:,}"


def _listed(stored: Int[np.ndarray, " P"], images: int) -> Int[np.ndarray, " images"]:
    """Return the images in the order of the table; those without a caption come last."""
    if (np.diff(stored) >= 0).all():
        return np.arange(images)
    shown, first = np.unique(stored, return_index=True)
    return np.concatenate([shown[np.argsort(first)], np.setdiff1d(np.arange(images), shown)])


def _checked(
    images: Rows, captions: Rows, image_of: Any, ids: Any, *of_rows: Any
) -> Int64[np.ndarray, " P"]:
    """Return the image of each row, after a check of all lengths."""
    count, total = images.shape[0], captions.shape[0]
    if image_of is None:
        if not count or total % count:
            raise DataError(
                f"captions: found {total:,} for {count:,} images, expected the same number for "
                "each image; or pass image_of"
            )
        image_of = np.arange(total) // (total // count)
    stored = np.asarray(image_of).astype(np.int64)
    names = ("caption_ids", "texts", "groups")
    lengths = [("image_of", stored, total), ("ids", ids, count)]
    lengths += [(name, value, total) for name, value in zip(names, of_rows, strict=True)]
    for name, value, length in lengths:
        if value is not None and len(value) != length:
            raise DataError(f"{name}: found {len(value):,} entries, expected {length:,}")
    if total and not 0 <= stored.min() <= stored.max() < count:
        raise DataError(
            f"image_of: found {stored.min()} to {stored.max()}, expected 0 to {count - 1}"
        )
    return stored
