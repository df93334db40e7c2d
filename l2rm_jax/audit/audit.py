"""The audit: pairs judged, and what a person reads of it."""

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
    executor: Executor = LOCAL,
) -> Judgement:
    """Find the mismatched pairs of a data set, estimate how many there are, and propose captions.

    The pairs are judged by linear models that have not seen them (`judge_pairs`). Write what was
    found to a directory, with a page to look at it, by `l2rm_jax.audit.write_audit`.

    Args:
      images: [images, di] one vector per image, of any float type; may be memory-mapped.
      captions: [pairs, dc] one vector per caption, or the captions themselves as strings.
      pair_image: [pairs] row of the image that each caption is stored with. None: all images have
        equally many captions, and those of one image are adjacent.
      texts: the captions as strings, where `captions` are vectors. Their words help to tell which
        captions say the same.
      folds: number of folds, at least 3.
      top: captions that are proposed for each doubted pair, 0 or more.
      seed: seed of the folds and of all samples, 0 or more.
      keep: directory for finished stages, so that the same call goes on after a stop.
      executor: computes the parts, in this process or in others (`l2rm_jax.executors`).

    Returns:
      The judgement, in the order of the captions; printing it gives sentences.

    Raises:
      DataError: a shape, type or value is wrong (lists all of them), or a fold has images of fewer
        than two groups.
      ConfigError: fewer than 3 folds.
    """
    inputs = inputs_of_arrays(images, captions, pair_image, texts)
    return judge_pairs(inputs.pairs, folds=folds, top=top, seed=seed, keep=keep, executor=executor)
