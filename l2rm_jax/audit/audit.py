"""Audit: judged pairs with everything that the report shows."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from l2rm_jax.audit.inputs import Inputs, inputs_of_arrays
from l2rm_jax.audit.review import Decisions, ReviewedRate, draw_review, reviewed_rate
from l2rm_jax.audit.run_columns import OfRun
from l2rm_jax.executors import LOCAL, Executor
from l2rm_jax.judging import Judgement, judge_pairs


class Settings(NamedTuple):
    """Display settings of an audit: the fields of `config.audit`, and the seed of the review."""

    top: int = 5
    gallery: int = 1000
    max_share: float = 1.0
    review: str = ""
    seed: int = 0


class Audit(NamedTuple):
    """Contents of the report of an audit.

    Attributes:
      inputs: the audited pairs.
      judgement: judgement of the pairs, before any decisions.
      settings: display settings.
      decisions: decisions of a reviewer; None without a review.
      of_run: columns from a run on the pairs; None for data without a run.
    """

    inputs: Inputs
    judgement: Judgement
    settings: Settings = Settings()
    decisions: Decisions | None = None
    of_run: OfRun | None = None

    def drawn(self) -> tuple[Int[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """Return the pairs of the blind review, and how many pairs each represents."""
        return draw_review(self.judgement.posterior, seed=self.settings.seed)

    def reviewed(self) -> ReviewedRate | None:
        """Return the rate by eye; None if no pair of the review is decided."""
        return self.decisions and reviewed_rate(self.decisions, self.drawn()[1])


def audit_pairs(
    images: Float[np.ndarray, "images di"],
    captions: Float[np.ndarray, "pairs dc"] | Sequence[str],
    pair_image: Int[np.ndarray, " pairs"] | None = None,
    *,
    texts: Sequence[str] | None = None,
    folds: int = 5,
    top: int = 5,
    seed: int = 0,
    keep: Path | None = None,
    executor: Executor = LOCAL,
) -> Judgement:
    """Find the mismatched pairs of a data set, estimate how many there are, and propose captions.

    The pairs are judged by linear models that have not seen them (`judge_pairs`). Use
    `l2rm_jax.audit.write_audit` to write the results to a directory, with a page to view them.

    Args:
      images: [images, di] one vector per image, of any float type; may be memory-mapped.
      captions: [pairs, dc] one vector per caption, or the captions themselves as strings.
      pair_image: [pairs] row of the image that each caption is stored with. None: all images have
        equally many captions, and the captions of one image are adjacent.
      texts: the captions as strings, if `captions` are vectors. Their words help to compare
        captions with each other.
      folds: number of folds, at least 3.
      top: captions to propose for each suspicious pair, 0 or more.
      seed: seed of the folds and of all samples, 0 or more.
      keep: directory for finished stages, from which the same call resumes after a stop.
      executor: computes the parts, in this process or in others (`l2rm_jax.executors`).

    Returns:
      The judgement, in the order of the captions; print it for a summary.

    Raises:
      DataError: a shape, type or value is wrong (lists all of them), or a fold has images of fewer
        than two groups.
      ConfigError: fewer than 3 folds.
    """
    inputs = inputs_of_arrays(images, captions, pair_image, texts)
    return judge_pairs(inputs.pairs, folds=folds, top=top, seed=seed, keep=keep, executor=executor)
