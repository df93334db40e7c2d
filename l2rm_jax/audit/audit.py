"""The audit: pairs judged, and what a person reads of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from l2rm_jax.audit.inputs import Inputs, inputs_of_arrays
from l2rm_jax.audit.of_run import OfRun
from l2rm_jax.audit.review import Decisions, ReviewedRate, draw_review, reviewed_rate
from l2rm_jax.executors import HERE, Executor
from l2rm_jax.judging import Judgement, judge_pairs


class Settings(NamedTuple):
    """What is shown of an audit: the fields of `config.audit`, and the seed of the review."""

    top: int = 5
    gallery: int = 1000
    max_share: float = 1.0
    review: str = ""
    seed: int = 0


class Audit(NamedTuple):
    """What an audit shows.

    Attributes:
      inputs: what was audited.
      judgement: of the pairs, as it was computed.
      settings: how it is shown.
      decisions: what a person has decided; None if nobody has.
      of_run: what a run says of the pairs; None for data without a run.
    """

    inputs: Inputs
    judgement: Judgement
    settings: Settings = Settings()
    decisions: Decisions | None = None
    of_run: OfRun | None = None

    def drawn(self) -> tuple[Int[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """The pairs of the blind review, and how many pairs each stands for."""
        return draw_review(self.judgement.posterior, seed=self.settings.seed)

    def reviewed(self) -> ReviewedRate | None:
        """The rate by eye; None where nothing of the review is decided."""
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
    executor: Executor = HERE,
) -> Judgement:
    """Audit pairs of vectors: which are mismatched, how many in all, and what would fit better.

    Args:
      images: one vector an image; may be memory-mapped.
      captions: one vector a caption, or the captions themselves.
      pair_image: row of the image that each caption is stored with; None if all images have the
        same number of captions, those of an image in a row.
      texts: the captions, if `captions` are vectors; they are a second opinion on which captions
        say the same.
      folds: number of folds.
      top: proposals for each doubted pair.
      seed: seed of the folds and the samples.
      keep: directory in which finished parts are kept, so that the same call goes on after a stop.
      executor: computes the parts (`judging.executor.Place.open`); this process, if not given.

    Raises:
      DataError: a wrong shape, or a value that is not finite; lists every problem.
      ConfigError: fewer than 3 folds.
    """
    inputs = inputs_of_arrays(images, captions, pair_image, texts)
    return judge_pairs(inputs.pairs, folds=folds, top=top, seed=seed, keep=keep, executor=executor)
