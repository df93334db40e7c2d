"""Judge the pairs of a data set: vectors in, a rate and a probability per pair out.

Pairs are split into folds; a group of images is never split across folds. A detector that has not
seen a fold scores its pairs and deliberate mismatches; these known mismatches calibrate the rate
and the probabilities. The truth is never used, even if it is known, and the result does not depend
on the order of the pairs.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Int, Shaped, UInt64

from l2rm_jax.console import progress_bar, stage_lines
from l2rm_jax.data.pairs import SUSPICIOUS, Pairs
from l2rm_jax.data.vectors import Fits, PairRows, fit_rows, rows_by
from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.jobs import LOCAL, Executor, Later
from l2rm_jax.judging.classify import with_groups
from l2rm_jax.judging.content_keys import Keys, content_keys, first_of_equals
from l2rm_jax.judging.detectors import LINEAR, Detector, FoldTask, Scorer, linear
from l2rm_jax.judging.folds import (
    FoldPairs,
    Folds,
    assign_folds,
    check_folds,
    fold_pairs,
    has_groups,
)
from l2rm_jax.judging.groups import Placeholder, Repeated, find_groups, find_placeholders
from l2rm_jax.judging.judgement import PLACEHOLDER, Judgement
from l2rm_jax.judging.keep_judge import keep_judge
from l2rm_jax.judging.kept_judge import KeptJudge
from l2rm_jax.judging.kept_set import check_sides, finish, score_pairs
from l2rm_jax.judging.linear import FoldModels, fold_models
from l2rm_jax.judging.posterior import find_posterior
from l2rm_jax.judging.proposals import Proposals, propose
from l2rm_jax.judging.scores import (
    LIKE,
    Evidence,
    fold_references,
    fold_tasks,
    gather,
    score_part,
)
from l2rm_jax.linear.cca import Cca
from l2rm_jax.linear.threads import limit_threads

_STAGES = "similar images", "models, each without one fold", "scores", "rate", "proposals"
_CCA = Cca(0, 0, 0, 0, 0)
_log = logging.getLogger(__name__)


def judge_pairs(
    pairs: Pairs,
    detector: Detector = linear,
    *,
    name: str = LINEAR,
    folds: int = 5,
    top: int = 0,
    seed: int = 0,
    judge: KeptJudge | None = None,
    rows: PairRows | None = None,
    executor: Executor = LOCAL,
) -> Judgement | None:
    """Estimate which pairs are mismatched, how many there are, and which captions would fit better.

    Args:
      pairs: the pairs; regions and words are pooled to one vector each (`data.vectors.as_rows`).
      detector: scores each fold without having seen it (`register_detector`); by default a linear
        model in closed form.
      name: name of the detector, for `Judgement.made`.
      folds: number of folds, at least 3.
      top: captions to propose for each suspicious pair, 0 or more; 0 skips that stage.
      seed: seed of the folds and of all samples, 0 or more. The same arguments give the same
        judgement.
      judge: a judge that an audit has kept (`open_judge`); it judges instead of the detector, with
        its own folds. None: models are fitted to these pairs.
      rows: `rows_for(pairs, judge)`, if it was computed before.
      executor: computes the parts, in this process or in others; with `Stored`, a call with the
        same arguments resumes after a stop (`l2rm_jax.jobs`).

    Returns:
      The judgement, in the order of `pairs`; print it for a summary. None if this process computes
      a share (`Stored`) and another process writes the results.

    Raises:
      DataError: a fold has images of fewer than two groups, a score is not finite, a
        stored part is damaged, or the vectors do not fit the kept judge.
      ConfigError: fewer than 3 folds, or a negative number.
    """
    for field, value in {"top": top, "seed": seed}.items():
        if value < 0:
            raise ConfigError(f"{field}: found {value}, expected 0 or more")
    if not len(pairs):
        raise DataError(f"{pairs.name}: found no pairs, expected some")
    pairs.check_vectors()
    with stage_lines("judging", _STAGES if top else _STAGES[:-1]) as say:
        return _judge(say, pairs, rows, detector, name, folds, top, seed, judge, executor)


def rows_for(pairs: Pairs, judge: KeptJudge | None = None, executor: Executor = LOCAL) -> PairRows:
    """Return pairs with one vector per image and per caption, by the fits of a kept judge if given.

    Raises:
      DataError: as `fit_rows`, or the pairs do not fit the judge.
    """
    if judge is None:
        return fit_rows(pairs, executor)
    check_sides(judge, pairs)
    return PairRows(rows_by(pairs, judge.fits), judge.fits)


def _judge(
    say: Callable[[int], None],
    pairs: Pairs,
    fitted: PairRows | None,
    detector: Detector,
    name: str,
    folds: int,
    top: int,
    seed: int,
    judge: KeptJudge | None,
    executor: Executor,
) -> Judgement | None:
    """Judge the pairs as `judge_pairs` does, and call `say` at the start of each stage."""
    say(0)
    fingerprint = pairs.fingerprint
    pairs, fits = fitted or rows_for(pairs, judge)
    keys = content_keys(pairs, executor)
    placeholders = find_placeholders(keys.image, pairs.captions, pairs.image_of)
    of_all = keys.of_all(pairs.image_of)
    rows = _without(placeholders, first_of_equals(keys.image)[pairs.image_of])
    every, count = pairs, len(pairs.image_of)
    if len(rows) < count:
        pairs, keys = pairs.take(rows), keys.take(rows)
    images, image_number = np.unique(first_of_equals(keys.image), return_inverse=True)
    if len(images) < len(image_number):
        _log.info(
            f"{pairs.name}: {len(image_number):,} rows of images are {len(images):,} images, as "
            "equal rows are one image"
        )
        pairs, keys = pairs.merge(images, image_number), keys._replace(image=keys.image[images])
    groups = find_groups(pairs.images, keys, pairs.image_of, seed, executor)
    if judge is None:
        of = Folds(pairs.image_of, assign_folds(groups.key, folds, seed), groups.of_image)
        check_folds(of)
        task = FoldTask(pairs, of, fold_pairs(of, keys, seed), (), rows, images)
        found = _by_models(say, task, keys, groups.key, seed, fits, detector, executor)
    else:
        say(2)
        of = Folds(pairs.image_of, judge.fold_of(keys.image), groups.of_image)
        found = executor.as_writer(lambda: finish(judge, [score_pairs(judge, pairs, keys)]))
        top *= has_groups(of)
    posterior, of_set = executor.once(lambda: (found.posterior, found.posterior_set), like=(0, 0))
    if top:
        say(4)
    proposals = propose(
        *(pairs.images, pairs.captions, of, keys, posterior > SUSPICIOUS),
        *(of_set, top, seed, executor),
    )
    if found is None:
        return None
    kind = with_groups(found.kind, found.information, groups, of.image_of, pairs.texts)
    made = found.made._replace(detector=name, data=of_all, fingerprint=fingerprint)
    found = replace(found, kind=kind, group=of.group_of_pair, made=made)
    return replace(
        _placed(found, proposals, rows, count),
        image_of=every.image_of,
        nearest_images=images[groups.near][image_number],
        repeated=tuple(Repeated(int(rows[row]), n) for row, n in groups.repeated),
        placeholders=tuple(placeholders),
    )


def _by_models(
    say: Callable[[int], None],
    task: FoldTask,
    keys: Keys,
    group_key: UInt64[np.ndarray, " images"],
    seed: int,
    fits: Fits | None,
    detector: Detector,
    executor: Executor,
) -> Judgement | None:
    """Fit models to the pairs of a task, judge them and keep the judge; None if another writes.

    Without `fits`, which make vectors of new pairs, no judge is kept.
    """
    pairs, of, drawn, *_ = task
    say(1)
    fitted = executor.once(
        lambda: fold_models(pairs.images, pairs.captions, of, drawn, group_key),
        like=FoldModels([_CCA] * of.count, 0),
    )
    models = [Cca(*map(np.asarray, model)) for model in fitted.models]
    scorer = detector(task._replace(models=models))
    say(2)
    evidence = _evidence(scorer, pairs, of, drawn, seed, executor)
    say(3)
    weights = np.asarray(fitted.weights)

    def judgement() -> Judgement:
        with limit_threads():  # more threads would only wait on these narrow matrices
            pair_key = keys.of_pairs(pairs.image_of)
            found = find_posterior(evidence, of, pair_key, weights, seed, scorer.name)
        if fits is None:
            return found
        kept = keep_judge(found, scorer, models, pairs, of, drawn, keys)
        return replace(found, judge=kept and kept._replace(fits=fits))

    return executor.as_writer(judgement)


def _without(
    placeholders: list[Placeholder], first_image: Int[np.ndarray, " pairs"]
) -> Int[np.ndarray, " kept"]:
    """Return the rows of the pairs whose picture is not a placeholder.

    Raises:
      DataError: no pair is left.
    """
    rows = np.flatnonzero(~np.isin(first_image, [each.row for each in placeholders]))
    if not len(rows):
        raise DataError(
            f"images: found only placeholder pictures ({len(placeholders)}) for all "
            f"{len(first_image):,} captions, expected pictures that differ"
        )
    return rows


def _evidence(
    scorer: Scorer,
    pairs: Pairs,
    folds: Folds,
    drawn: dict[int, FoldPairs],
    seed: int,
    executor: Executor,
) -> Evidence:
    """Score all folds, part by part."""
    group = folds.image_group
    spaces = [pairs.captions] if pairs.words is None else [pairs.captions, pairs.words]
    tasks = {fold: fold_tasks(here, group, seed) for fold, here in drawn.items()}

    def references(fold: int) -> Any:
        model = scorer.model_of(fold)
        return executor.put(fold_references(drawn[fold], model, pairs.images, spaces, group))

    def calls() -> Iterator[tuple]:
        shared = tuple(map(executor.put, (pairs.images, spaces)))
        for fold, of_fold in tasks.items():
            known = Later(partial(references, fold))
            yield from ((*task, known, *shared) for task, _ in of_fold)

    rows = [drawn[fold].pairs[at] for fold, of_fold in tasks.items() for _, at in of_fold]
    found = []
    with progress_bar(len(pairs.image_of), "judging: scores") as bar:
        for one, own in zip(executor.map(score_part, calls(), like=LIKE), rows, strict=True):
            found.append(one)
            bar.update(len(own))
    return gather(rows, found)


def _placed(
    found: Judgement, proposals: Proposals, rows: Int[np.ndarray, " kept"], total: int
) -> Judgement:
    """Put the results of the judged pairs at their rows, and fill those of placeholders."""

    def back(values: Shaped[np.ndarray, "kept ..."], fill: float) -> np.ndarray:
        placed = np.full((total, *values.shape[1:]), fill, values.dtype)
        placed[rows] = values
        return placed

    apart = np.setdiff1d(np.arange(total), rows)
    fills = {"fold": -1, "group": -1, "posterior_set": 1, "posterior_caption": 1, "posterior": 1}
    fills |= {"fdr": 1, "similarity": np.nan, "information": np.nan, "p": np.nan}
    fills |= {"likeness": np.nan, "witness": -1, "kind": PLACEHOLDER}
    return replace(
        found,
        **{name: back(getattr(found, name), fill) for name, fill in fills.items()},
        proposal=back(np.where(proposals.caption < 0, -1, rows[proposals.caption]), -1),
        probability=back(proposals.probability, np.nan),
        none_fits=back(proposals.none_fits, np.nan),
        order=np.concatenate([rows[found.order], apart]),
        conflicts=rows[found.conflicts],
    )
