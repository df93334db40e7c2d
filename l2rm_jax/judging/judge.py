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
from pathlib import Path
from typing import NamedTuple, TypeVar

import jax
import numpy as np
from jaxtyping import Int, Shaped
from threadpoolctl import threadpool_limits

from l2rm_jax.console import progress_bar, stage_lines
from l2rm_jax.data.files import open_arrays, replace_arrays
from l2rm_jax.data.pairs import SUSPICIOUS, Pairs
from l2rm_jax.data.vectors import as_rows
from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.executors import LOCAL, Executor
from l2rm_jax.judging.classify import conflicts, kinds
from l2rm_jax.judging.content_keys import content_keys, first_of_equals
from l2rm_jax.judging.detectors import LINEAR, Detector, FoldTask, Scorer, linear
from l2rm_jax.judging.fold_samples import FoldPairs, fold_pairs
from l2rm_jax.judging.folds import Folds, assign_folds, check_folds
from l2rm_jax.judging.groups import Groups, Repeated, find_groups
from l2rm_jax.judging.judgement import PLACEHOLDER, SHIFTED, Judgement, Provenance
from l2rm_jax.judging.linear import FoldModels, fold_models
from l2rm_jax.judging.placeholders import Placeholder, find_placeholders
from l2rm_jax.judging.posterior import Posterior, find_posterior
from l2rm_jax.judging.proposals import LIKE as PROPOSALS
from l2rm_jax.judging.proposals import Proposals, propose
from l2rm_jax.judging.scores import (
    LIKE,
    Evidence,
    fold_references,
    fold_tasks,
    gather,
    score_part,
)
from l2rm_jax.judging.shift import Shift, find_shifts
from l2rm_jax.linear.cca import Cca
from l2rm_jax.version import __version__

_STAGES = "similar images", "models, each without one fold", "scores", "rate", "proposals"
_CCA = Cca(0, 0, 0, 0, 0)
_log = logging.getLogger(__name__)
_Tree = TypeVar("_Tree")


class _Stages:
    """Store finished stages in a directory, to resume after a stop; None stores nothing."""

    def __init__(self, directory: Path | None):
        self._directory = directory
        if directory:
            directory.mkdir(parents=True, exist_ok=True)

    def has(self, name: str) -> bool:
        """Return whether the result of a stage is stored."""
        return self._directory is not None and self._file(name).is_file()

    def __call__(self, name: str, like: _Tree, compute: Callable[[], _Tree]) -> _Tree:
        """Return the stored result of a stage, or compute and store it.

        Args:
          name: name of the stage.
          like: a pytree with the structure of the result and any leaves.
          compute: returns the result, a pytree of arrays.

        Raises:
          DataError: the stored result is damaged.
        """
        if not self._directory:
            return compute()
        file = self._file(name)
        if not file.is_file():
            leaves = jax.tree.leaves(compute())
            replace_arrays(file, {str(number): leaf for number, leaf in enumerate(leaves)})
        with open_arrays(file, "a stage of an audit", "remove the file to continue") as arrays:
            leaves = [arrays[str(number)] for number in range(len(arrays))]
        return jax.tree.unflatten(jax.tree.structure(like), leaves)

    def _file(self, name: str) -> Path:
        return self._directory / f"{name}.npz"


def judge_pairs(
    pairs: Pairs,
    detector: Detector = linear,
    *,
    name: str = LINEAR,
    folds: int = 5,
    top: int = 0,
    seed: int = 0,
    keep: Path | None = None,
    executor: Executor = LOCAL,
) -> Judgement:
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
      keep: directory for finished stages, from which a call with the same arguments resumes after
        a stop; None keeps nothing. Use one directory per judgement: arguments are not compared.
      executor: computes the parts, in this process or in others (`l2rm_jax.executors`).

    Returns:
      The judgement, in the order of `pairs`; print it for a summary.

    Raises:
      DataError: a fold has images of fewer than two groups, a score is not finite, or a file of
        `keep` is damaged.
      ConfigError: fewer than 3 folds, or a negative number.
    """
    for field, value in {"top": top, "seed": seed}.items():
        if value < 0:
            raise ConfigError(f"{field}: found {value}, expected 0 or more")
    if not len(pairs):
        raise DataError(f"{pairs.name}: found no pairs, expected some")
    pairs.check_vectors()
    with stage_lines("judging", _STAGES if top else _STAGES[:-1]) as say:
        return _judge(say, pairs, detector, name, folds, top, seed, _Stages(keep), executor)


def _judge(
    say: Callable[[int], None],
    pairs: Pairs,
    detector: Detector,
    name: str,
    folds: int,
    top: int,
    seed: int,
    stages: _Stages,
    executor: Executor,
) -> Judgement:
    """Judge the pairs as `judge_pairs` does, and call `say` at the start of each stage."""
    say(0)
    fingerprint, pairs = pairs.fingerprint, as_rows(pairs)
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
    image_fold = assign_folds(groups.key, folds, seed)
    of = Folds(pairs.image_of, image_fold, groups.of_image)
    check_folds(of)
    drawn = fold_pairs(of, keys, seed)
    say(1)
    fitted = stages(
        "models",
        FoldModels([_CCA] * of.count, 0),
        lambda: fold_models(pairs.images, pairs.captions, of, drawn, groups.key),
    )
    models = [Cca(*map(np.asarray, model)) for model in fitted.models]
    scorer = detector(FoldTask(pairs, of, drawn, models, rows, images))
    say(2)
    evidence = _evidence(scorer, pairs, of, drawn, seed, stages, executor)
    say(3)
    with threadpool_limits(1, "blas"):  # more threads would only wait on these narrow matrices
        found = find_posterior(
            evidence, of, keys.of_pairs(pairs.image_of), np.asarray(fitted.weights), seed
        )
    suspicious = found.posterior > SUSPICIOUS
    if top:
        say(4)
    proposals = stages(
        "proposals",
        PROPOSALS,
        lambda: propose(
            *(pairs.images, pairs.captions, of, keys, suspicious, found.posterior_set),
            *(top, seed, executor),
        ),
    )
    back = _Back(rows, count)
    fold = back(of.of_pair, -1)
    shifts = find_shifts(models, every.images, every.captions, every.image_of, fold, executor)
    made = Provenance(name, scorer.name, folds, seed, of_all, __version__, fingerprint)
    kind = kinds(evidence, found, groups, of.image_of, pairs.texts)
    judgement = _judgement(
        *(every.image_of, back, of, groups, evidence, found, kind, proposals, shifts),
        *(placeholders, made),
    )
    return replace(judgement, nearest_images=images[groups.near][image_number])


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


class _Back(NamedTuple):
    """Put values of the judged pairs at their rows in the data."""

    rows: Int[np.ndarray, " kept"]
    total: int

    def __call__(
        self, values: Shaped[np.ndarray, "kept ..."], fill: float
    ) -> Shaped[np.ndarray, "total ..."]:
        placed = np.full((self.total, *values.shape[1:]), fill, values.dtype)
        placed[self.rows] = values
        return placed


def _evidence(
    scorer: Scorer,
    pairs: Pairs,
    folds: Folds,
    drawn: dict[int, FoldPairs],
    seed: int,
    stages: _Stages,
    executor: Executor,
) -> Evidence:
    """Score all folds, part by part; stored parts are not computed again."""
    group = folds.image_group
    spaces = [pairs.captions] if pairs.words is None else [pairs.captions, pairs.words]
    vectors = pairs.images, spaces
    parts = [
        (fold, f"scores-{fold}-{number}", task, drawn[fold].pairs[at])
        for fold, here in drawn.items()
        for number, (task, at) in enumerate(fold_tasks(here, group, seed))
    ]

    def calls() -> Iterator[tuple]:
        images, spaces = map(executor.put, vectors)
        known, references = None, None
        for fold, name, task, _ in parts:
            if stages.has(name):
                continue
            if fold != known:
                model = scorer.model_of(fold)
                references = executor.put(fold_references(drawn[fold], model, *vectors, group))
                known = fold
            yield task, references, images, spaces

    found, results = [], executor.map(score_part, calls())
    with progress_bar(len(pairs.image_of), "judging: scores") as bar:
        for _, name, _, rows in parts:
            found.append(stages(name, LIKE, partial(next, results)))
            bar.update(len(rows))
    return gather([rows for *_, rows in parts], found)


def _judgement(
    image: Int[np.ndarray, " total"],
    back: _Back,
    folds: Folds,
    groups: Groups,
    evidence: Evidence,
    found: Posterior,
    kind: Int[np.ndarray, " kept"],
    proposals: Proposals,
    shifts: list[Shift],
    placeholders: list[Placeholder],
    made: Provenance,
) -> Judgement:
    """Assemble the judgement, in the order of the data."""
    rows = back.rows
    apart = np.setdiff1d(np.arange(back.total), rows)
    proposed = np.where(proposals.caption < 0, -1, rows[proposals.caption])
    return Judgement(
        image_of=image,
        fold=back(folds.of_pair, -1),
        group=back(folds.group_of_pair, -1),
        similarity=back(evidence.stored.model.similarity, np.nan),
        information=back(evidence.stored.information, np.nan),
        posterior_set=back(found.posterior_set, 1),
        posterior_caption=back(found.posterior_caption, 1),
        posterior=back(found.posterior, 1),
        fdr=back(found.fdr, 1),
        kind=_with_shifts(back(kind, PLACEHOLDER), shifts),
        proposal=back(proposed, -1),
        probability=back(proposals.probability, np.nan),
        none_fits=back(proposals.none_fits, np.nan),
        order=np.concatenate([rows[found.order], apart]),
        conflicts=rows[conflicts(evidence, kind, folds.image_of)],
        nearest_images=groups.near,
        rate=found.rate,
        mechanisms=found.mechanisms,
        list_length=found.list_length,
        shifts=tuple(shifts),
        repeated=tuple(Repeated(int(rows[row]), images) for row, images in groups.repeated),
        placeholders=tuple(placeholders),
        unreliable_reason=found.unreliable_reason,
        auroc=found.auroc,
        is_rankable=found.is_rankable,
        made=made,
        upper_bound=found.upper_bound,
    )


def _with_shifts(kind: Int[np.ndarray, " pairs"], shifts: list[Shift]) -> Int[np.ndarray, " pairs"]:
    kind = kind.copy()
    for shift in shifts:
        run = kind[shift.first : shift.last + 1]
        run[run != PLACEHOLDER] = SHIFTED
    return kind
