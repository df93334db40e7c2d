"""The audit of a data set: judged pairs, and all that a person or a notebook asks of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, Unpack, overload

import numpy as np
from jaxtyping import Bool, Float, Int, Int64
from ml_collections import ConfigDict

from l2rm_jax.audit.arguments import claim, pairs_of
from l2rm_jax.audit.certificate import (
    Certificate,
    certificate_sentence,
    certify,
    draw_sample,
    goal_sentence,
    rank_kept,
)
from l2rm_jax.audit.misaligned import (
    judge_repaired,
    realigned_pairs,
    search_pairs,
    sentences,
    within_findings,
)
from l2rm_jax.audit.rates_by import GroupRate, rates_by
from l2rm_jax.audit.review import (
    FITS,
    SIZE,
    WRONG,
    Decisions,
    ReviewedRate,
    draw_review,
    reviewed_rate,
)
from l2rm_jax.audit.run_columns import OfRun
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.data.train_pairs import TrainPairs
from l2rm_jax.data.word_report import WordReport, report_texts
from l2rm_jax.devices.parallel import in_float32
from l2rm_jax.errors import DataError
from l2rm_jax.jobs import LOCAL, Executor, Stored
from l2rm_jax.joins import Misaligned
from l2rm_jax.judging import Judgement, KeptJudge, judge_pairs, rows_for
from l2rm_jax.judging.judgement import KEPT
from l2rm_jax.judging.rate import Rate
from l2rm_jax.judging.verdict import verdict

if TYPE_CHECKING:
    import pandas

    from l2rm_jax.audit.lines import Lines

SHOWN = 10  # most suspicious pairs that a notebook displays


class Settings(NamedTuple):
    """Display settings of an audit: the fields of `config.audit`, and the seed of the review."""

    top: int = 5
    gallery: int = 1000
    max_share: float = 1.0
    review: str = ""
    seed: int = 0
    by: str = ""
    decide: int = SIZE
    certify: float = 0.0


@dataclass(frozen=True, eq=False)
class Audit:
    """Judged pairs. Print it for the verdict; a notebook also displays the most suspicious pairs.

    Attributes:
      pairs: the audited pairs.
      judgement: judgement of the pairs, before any decisions.
      settings: display settings.
      decisions: decisions of a reviewer; None without a review.
      of_run: columns from a run on the pairs; None for data without a run.
      train: the pairs as training reads them; None for arrays, shards and audits read from disk.
      config: the config that describes them; None likewise.
      words: report on the vocabulary, if the captions are judged by their words; else None.
      again: shell command that audits again with the decisions of a review; "" if unknown.
      misaligned: misaligned rows, and the images of the captions after the repair; None without a
        search.
      repaired: judgement of the pairs after the repair; None if nothing was put back.
    """

    pairs: Pairs
    judgement: Judgement
    settings: Settings = field(default_factory=Settings)
    decisions: Decisions | None = None
    of_run: OfRun | None = None
    train: TrainPairs | None = None
    config: ConfigDict | None = None
    words: WordReport | None = None
    again: str = ""
    misaligned: Misaligned | None = None
    repaired: Judgement | None = None

    def __len__(self) -> int:
        return len(self.judgement)

    def __str__(self) -> str:
        return "\n".join(self.verdict())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from l2rm_jax.audit.notebook import audit_html

        return audit_html(self, SHOWN)

    @property
    def rate(self) -> Rate:
        """Share of pairs that match no better than random pairs, with its 90% interval."""
        return self.judgement.rate

    @property
    def unreliable_reason(self) -> str:
        """Why the rate and the posteriors are unreliable; "" if they are reliable."""
        return self.judgement.unreliable_reason

    @property
    def truth(self) -> Bool[np.ndarray, " pairs"] | None:
        """Whether each pair was mismatched deliberately; None if nothing is known."""
        if self.train is None or self.train.matched.all():
            return None
        return ~self.train.matched

    @property
    def decided(self) -> Judgement:
        """The judgement after the decisions of a reviewer, if there are any."""
        if self.decisions is None:
            return self.judgement
        return self.judgement.decided(self.decisions.rows(FITS), self.decisions.rows(WRONG))

    @cached_property
    def lines(self) -> "Lines":
        """Numbers of the pairs for everything that a person reads."""
        from l2rm_jax.audit.lines import find_lines

        path = self.pairs.name if self.config is None else self.config.data.path
        is_train = self.pairs.split == "train" and Path(path).is_dir()
        drawn = None if self.train is None else self.train.drawn  # by a run, from all pairs
        rows = np.arange(len(self)) if drawn is None else drawn.rows
        return find_lines(path if is_train else "", rows)

    def verdict(self) -> list[str]:
        """Return sentences on misaligned rows, rate, list, undetected mismatches, certificate."""
        lines = sentences(self.misaligned, self.judgement, self.repaired)
        if self.repaired is None or not self.unreliable_reason:
            lines += verdict(self.judgement, self.pairs.image_ids)
        # Else more pairs or other embeddings would not help.
        return lines + [line for line in (self.promise,) if line]

    def realigned(self) -> Pairs:
        """Return the pairs after the repair of misaligned rows; the same pairs without one."""
        if self.misaligned is None:
            return self.pairs
        return realigned_pairs(self.pairs, self.misaligned)

    def kept(self) -> Int64[np.ndarray, " kept"]:
        """Return the rows to keep, for `pairs.take`: not suspicious, or near duplicates."""
        return np.flatnonzero(np.isin(self.decided.kind, KEPT))

    def certified(self) -> Int64[np.ndarray, " certified"]:
        """Return the rows of the certificate, without those decided to be wrong; none without it.

        Leaving out wrong pairs lowers the share of wrong pairs, so the certificate still holds.
        """
        size = self.certificate.pairs if self.certificate else 0
        return np.intersect1d(self._ranked[:size], self.kept())

    def to_frame(self) -> "pandas.DataFrame":
        """Return a DataFrame with one row per pair, in the order of the input.

        The columns of the user's table come first, then the columns of `pairs.parquet`.

        Raises:
          ConfigError: pandas is missing.
        """
        from l2rm_jax.audit.table import frame, pair_columns

        return frame(pair_columns(self))

    def worst(self, pairs: int = SHOWN) -> "pandas.DataFrame":
        """Return the rows of `to_frame` of the most suspicious pairs, the worst one first."""
        return self.to_frame().iloc[self.judgement.order[:pairs]]

    def by(self, column: str) -> list[GroupRate]:
        """Estimate the mismatch rate for each value of a column of the user's table.

        Args:
          column: name of the column, such as the source of a pair.

        Returns:
          The rates with their intervals, the worst first (`audit.rates_by`).

        Raises:
          DataError: the pairs have no such column, or their rate cannot be told.
        """
        check_column(self.pairs, column)
        if self.unreliable_reason:
            raise DataError(f"by: the rate cannot be told: {self.unreliable_reason}")
        values, found = self.pairs.columns[column], self.judgement
        evidence = {"information": found.information, "image_of": found.image_of}
        return rates_by(values, found.posterior, **evidence, rate=found.rate)

    def write(self, directory: str | Path) -> Path:
        """Write the report, the page and the tables to a new directory (`open_audit` reads it).

        Raises:
          ConfigError: the directory exists already.
        """
        from l2rm_jax.audit.outputs import write_audit

        return write_audit(self, directory)

    def drawn(self) -> tuple[Int[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """Return the pairs of the blind review, and how many pairs each represents."""
        n, share, seed = self.settings.decide, self.settings.certify, self.settings.seed
        if share:
            return draw_sample(self._ranked, len(self), n, share, seed)
        return draw_review(self.judgement.posterior, n, seed)

    @cached_property
    def certificate(self) -> Certificate | None:
        """Tests of the kept pairs; None unless asked for and the whole review is decided."""
        if not self.settings.certify or self.decisions is None:
            return None
        rows, _ = self.drawn()
        words = self.decisions.of_review(rows)
        if not all(words):
            return None
        return certify(self._ranked, rows, words != FITS, self.settings.certify)

    @property
    def promise(self) -> str:
        """Sentence with the certificate, or on the decisions that it needs; "" if none is asked."""
        if self.certificate is not None:
            return certificate_sentence(self.certificate, len(self.certified()), self.decisions.by)
        share = self.settings.certify
        return goal_sentence(self._ranked, self.drawn()[0], share) if share else ""

    @cached_property
    def _ranked(self) -> Int[np.ndarray, " kept"]:
        """The kept pairs before any decisions, the least suspicious one first."""
        return rank_kept(self.judgement.order, self.judgement.kind)

    def reviewed(self) -> ReviewedRate | None:
        """Return the rate by eye; None if no pair of the review is decided."""
        return self.decisions and reviewed_rate(self.decisions, *self.drawn())


class _Settings(TypedDict, total=False):
    folds: int
    top: int
    seed: int
    judge: KeptJudge | None
    keep: Path | None
    executor: Executor


@overload
def audit_pairs(images: Pairs | str | Path, **settings: Unpack[_Settings]) -> Audit: ...
@overload
def audit_pairs(
    images: Float[np.ndarray, "images di"] | Sequence[str],
    captions: Float[np.ndarray, "pairs dc"] | Sequence[str],
    image_of: Int[np.ndarray, " pairs"] | None = None,
    *,
    texts: Sequence[str] | None = None,
    table: Any = None,
    model: Any = None,
    **settings: Unpack[_Settings],
) -> Audit: ...
@overload
def audit_pairs(
    images: Any, *, image: str, caption: str, model: Any = None, **settings: Unpack[_Settings]
) -> Audit: ...
@in_float32
def audit_pairs(
    images: Any,
    captions: Float[np.ndarray, "pairs dc"] | Sequence[str] | None = None,
    image_of: Int[np.ndarray, " pairs"] | None = None,
    *,
    texts: Sequence[str] | None = None,
    table: Any = None,
    image: str = "",
    caption: str = "",
    model: Any = None,
    folds: int = 5,
    top: int = 5,
    seed: int = 0,
    judge: KeptJudge | None = None,
    keep: Path | None = None,
    executor: Executor = LOCAL,
) -> Audit:
    """Find the mismatched pairs of a data set, estimate how many there are, and propose captions.

    The pairs are judged by linear models that have not seen them. "Image" and "caption" are names
    of the two sides: questions and answers, functions and their descriptions, or any two sides that
    have vectors or texts will do.

    Args:
      images: [images, di] one vector per image, of any float type, which may be memory-mapped; or
        texts. Or `Pairs`; or the directory of imported data; or, with `image` and `caption`, a
        DataFrame or a Hugging Face data set.
      captions: [pairs, dc] one vector per caption, or the captions themselves as texts.
      image_of: [pairs] row of the image that each caption is stored with. None: all images have
        equally many captions, and the captions of one image are adjacent.
      texts: the captions as texts, if `captions` are vectors. Their words help to compare captions
        with each other.
      table: further columns, one row per pair, for `Audit.by` and `Audit.to_frame`.
      image: name of the column of images, if `images` is a table (`Pairs.from_frame`).
      caption: likewise of the column of captions.
      model: encodes the sides that are not vectors, by `encode(list)`, row by row.
      folds: number of folds, at least 3.
      top: captions to propose for each suspicious pair, 0 or more.
      seed: seed of the folds and of all samples, 0 or more.
      judge: judge of an audit of trusted pairs (`open_judge`); None: models are fitted to these.
      keep: directory for finished stages, from which the same call resumes after a stop; other
        pairs or settings in the same directory are an error.
      executor: computes the parts, in this process or in others (`l2rm_jax.jobs`).

    Raises:
      DataError: a shape, type or value is wrong (lists all of them), or a fold has images of fewer
        than two groups.
      ConfigError: fewer than 3 folds, or `keep` has the stages of another call.

    Example:
      >>> audit = audit_pairs(image_vectors, caption_vectors, texts=captions, table=frame)
      >>> audit.rate.estimate, audit.worst(20), audit.by("source")
    """
    given = {"captions": captions, "image_of": image_of, "texts": texts, "table": table}
    pairs = pairs_of(images, given, image, caption, model)
    if keep is not None:
        of_judge = {} if judge is None else {"judge": judge.about.data}
        claim(Path(keep), pairs, folds=folds, top=top, seed=seed, **of_judge)

    rows = rows_for(pairs, judge)

    def judge_one(judged: Pairs, name: str = "judged") -> Judgement:
        settings = {"folds": folds, "top": top, "seed": seed, "judge": judge}
        settings["rows"] = rows.of_images(judged.image_of)
        stored = Stored(Path(keep) / name, executor) if keep else executor
        return judge_pairs(judged, executor=stored, **settings)

    found = judge_one(pairs)
    misaligned = search_pairs(rows.pairs, seed, judge=judge)
    found = within_findings(found, misaligned)
    repaired = judge_repaired(pairs, misaligned, judge_one)
    words = report_texts(pairs.texts) if pairs.captions is None else None
    known = {"words": words, "misaligned": misaligned, "repaired": repaired}
    return Audit(pairs, found, Settings(top=top, seed=seed), **known)


def check_column(pairs: Pairs, column: str) -> None:
    """Check that the pairs have a further column.

    Raises:
      DataError: they do not; lists those that they have.
    """
    if column not in pairs.columns:
        names = ", ".join(pairs.columns) or "none"
        raise DataError(f"by: found {column!r}, expected a further column of the pairs: {names}")
