"""The audit: from vectors to what is found.

Pairs are divided into folds, groups staying together; models that have not seen a fold score it;
known mismatches, scored alike, turn scores into a rate and probabilities. Nothing looks at the
truth, even where it is known.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from l2rm_jax.audit.canonical import Order, Reordered, canonical_order
from l2rm_jax.audit.findings import (
    PLACEHOLDER,
    SHIFTED,
    Audit,
    PairFindings,
    Repeated,
    Shift,
)
from l2rm_jax.audit.fold_pairs import fold_pairs
from l2rm_jax.audit.groups import Groups, content_keys, find_groups, first_of_equals, text_keys
from l2rm_jax.audit.inputs import Inputs, Settings, inputs_of_arrays
from l2rm_jax.audit.judge import Judgement, judge
from l2rm_jax.audit.kinds import DOUBTED, conflicts, kinds
from l2rm_jax.audit.neighbours import with_near_images
from l2rm_jax.audit.placeholders import find_placeholders
from l2rm_jax.audit.proposals import LIKE as PROPOSALS
from l2rm_jax.audit.proposals import Proposals, propose
from l2rm_jax.audit.scorers import LINEAR, Scorer, linear_scorer
from l2rm_jax.audit.scores import LIKE, Evidence, gather, score_fold
from l2rm_jax.audit.shift import find_shifts
from l2rm_jax.audit.stages import Stages
from l2rm_jax.audit.trained import check_scorer, trained_scorer
from l2rm_jax.crossfit.folds import assign_folds, check_folds
from l2rm_jax.crossfit.rows import Rows
from l2rm_jax.errors import ConfigError, DataError


def audit_pairs(
    images: Float[np.ndarray, "images di"],
    captions: Float[np.ndarray, "pairs dc"] | Sequence[str],
    pair_image: Int[np.ndarray, " pairs"] | None = None,
    *,
    texts: Sequence[str] | None = None,
    ids: Sequence[str] | None = None,
    folds: int = 5,
    top: int = 5,
    seed: int = 0,
) -> Audit:
    """Audit pairs of vectors: which are mismatched, how many in all, and what would fit better.

    Args:
      images: one vector an image; may be memory-mapped.
      captions: one vector a caption, or the captions themselves.
      pair_image: row of the image that each caption is stored with; None if all images have the
        same number of captions, those of an image in a row.
      texts: the captions, if `captions` are vectors; they are a second opinion on which captions
        say the same.
      ids: what the user calls each image.
      folds: number of folds.
      top: proposals for each doubted pair.
      seed: seed of the folds and the samples.

    Raises:
      DataError: a wrong shape, or a value that is not finite; lists every problem.
      ConfigError: fewer than 3 folds.
    """
    inputs = inputs_of_arrays(images, captions, pair_image, texts, ids)
    return audit_data(inputs, Settings(folds=folds, top=top, seed=seed))


def audit_data(inputs: Inputs, settings: Settings, keep: Path | None = None) -> Audit:
    """Audit what was read.

    Args:
      inputs: the pairs.
      settings: how to audit them.
      keep: directory in which stages are kept, so that a later call with the same inputs and
        settings goes on, and the runs of a trained scorer; None keeps nothing.

    Raises:
      DataError: a fold has images of fewer than two groups.
      ConfigError: fewer than 3 folds; a trained scorer for arrays, without `keep`, or that does not
        fit the config of the inputs. Scorers are refused before any work.
    """
    runs = _directory_of_runs(inputs, settings, keep)
    stages, seed = Stages(keep), settings.seed
    image_keys, vector_keys = content_keys(inputs.images), content_keys(inputs.captions)
    placeholders = find_placeholders(image_keys, inputs.captions, inputs.image_of)
    left_out = np.isin(first_of_equals(image_keys), [each.row for each in placeholders])
    if left_out[inputs.image_of].all():
        raise DataError(
            f"images: found the same picture for all {len(left_out):,} images, or one of "
            f"{len(placeholders)}, expected pictures that differ"
        )
    order = canonical_order(image_keys, vector_keys, inputs.image_of, left_out)
    said = vector_keys if inputs.texts is None else text_keys(inputs.texts)
    images, captions = (
        Reordered(vectors, rows)
        for vectors, rows in ((inputs.images, order.images), (inputs.captions, order.pairs))
    )
    groups = find_groups(images, image_keys[order.images], said[order.pairs], order.image_of, seed)
    image_fold = assign_folds(image_keys[order.images][groups.of_image], settings.folds, seed)
    check_folds(order.image_of, image_fold, groups.of_image)
    folds = Folds(order.image_of, image_fold, groups.of_image)
    scorer, models = linear_scorer(images, captions, *folds, seed, stages)
    spaces = [captions]
    if inputs.text_rows is not None:
        spaces.append(Reordered(inputs.text_rows, order.pairs))
    judging = nullcontext(scorer)
    if runs:
        judging = trained_scorer(inputs, settings, order, image_fold, runs)
    with judging as scorer:
        evidence = _evidence(scorer, images, spaces, folds, seed, stages)
    judgement = judge(evidence, folds.pair_image, folds.of_pair, folds.group_of_pair, seed)
    proposals = stages(
        "proposals",
        PROPOSALS,
        lambda: propose(
            images,
            captions,
            *folds,
            judgement.posterior > DOUBTED,
            judgement.posterior_set,
            settings.top,
            seed,
        ),
    )
    shifts = find_shifts(
        models,
        inputs.images,
        inputs.captions,
        inputs.image_of,
        order.to_input(folds.of_pair, -1),
    )
    audit = _in_order_of_input(
        inputs, settings, order, folds, groups, scorer, evidence, judgement, proposals, shifts
    )
    return replace(audit, placeholders=placeholders)


class Folds(NamedTuple):
    """Which pairs are stored with which image, and what is judged together.

    Attributes:
      pair_image: row of the image that each caption is stored with.
      image_fold: fold of each image.
      image_group: group of each image.
    """

    pair_image: Int[np.ndarray, " pairs"]
    image_fold: Int[np.ndarray, " images"]
    image_group: Int[np.ndarray, " images"]

    @property
    def of_pair(self) -> Int[np.ndarray, " pairs"]:
        """Fold of each pair."""
        return self.image_fold[self.pair_image]

    @property
    def group_of_pair(self) -> Int[np.ndarray, " pairs"]:
        """Group of each pair."""
        return self.image_group[self.pair_image]


def _directory_of_runs(inputs: Inputs, settings: Settings, keep: Path | None) -> Path | None:
    """Directory of the runs of the trained scorer; None for the linear one.

    Raises:
      ConfigError: the scorer cannot judge these inputs.
    """
    if settings.scorer == LINEAR:
        return None
    if inputs.config is None:
        raise ConfigError(
            f"settings.scorer: found {settings.scorer!r}, expected {LINEAR!r} for arrays; a "
            "trained scorer needs pairs that `read_inputs` has read"
        )
    if keep is None:
        raise ConfigError(
            f"keep: found None, expected a directory for the runs of the scorer {settings.scorer!r}"
        )
    check_scorer(inputs.config, settings)
    return keep / "runs"


def _evidence(
    scorer: Scorer,
    images: Rows,
    spaces: Sequence[Rows],
    folds: Folds,
    seed: int,
    stages: Stages,
) -> Evidence:
    """Score all folds, one stage each."""
    pair_image, image_fold, image_group = folds
    found, parts = {}, fold_pairs(pair_image, image_fold, image_group, seed)
    for fold, here in parts.items():

        def score(fold=fold, here=here) -> Evidence:
            near = with_near_images(here, spaces[0], image_group[here.images], seed)
            model = scorer.model_of(fold, np.sort(here.pairs))
            return score_fold(near, model, images, spaces, pair_image, image_group)

        found[fold] = stages(f"scores-{fold}", LIKE, score)
    return gather(parts, found, len(pair_image))


def _in_order_of_input(
    inputs: Inputs,
    settings: Settings,
    order: Order,
    folds: Folds,
    groups: Groups,
    scorer: Scorer,
    evidence: Evidence,
    judgement: Judgement,
    proposals: Proposals,
    shifts: list[Shift],
) -> Audit:
    """Put what was found in the order of the input."""
    image_row, missing = order.images, -1
    back = order.to_input
    apart = np.setdiff1d(np.arange(order.total), order.pairs)
    kind = kinds(evidence, judgement, groups, folds.pair_image)
    findings = PairFindings(
        image=inputs.image_of,
        fold=back(folds.of_pair, missing),
        group=back(image_row[folds.group_of_pair], missing),
        similarity=back(evidence.stored.similarity * scorer.unit, np.nan),
        information=back(evidence.stored.information, np.nan),
        posterior_set=back(judgement.posterior_set, 1),
        posterior_caption=back(judgement.posterior_caption, 1),
        posterior=back(judgement.posterior, 1),
        q=back(judgement.q, 1),
        kind=_with_shifts(back(kind, PLACEHOLDER), shifts),
        proposal=back(np.where(proposals.caption < 0, -1, order.pairs[proposals.caption]), missing),
        probability=back(proposals.probability, np.nan),
        none_fits=back(proposals.none_fits, np.nan),
        order=np.concatenate([order.pairs[judgement.order], apart]),
    )
    # A placeholder is like itself alone.
    near = np.repeat(np.arange(inputs.images.shape[0])[:, None], groups.near.shape[1], axis=1)
    near[image_row] = image_row[groups.near]
    return Audit(
        inputs=inputs,
        settings=settings,
        findings=findings,
        rate=judgement.rate,
        mechanisms=judgement.mechanisms,
        listed=judgement.listed,
        shifts=shifts,
        repeated=[Repeated(int(order.pairs[row]), images) for row, images in groups.repeated],
        conflicts=order.pairs[conflicts(evidence, kind, folds.pair_image)],
        near=near,
        scorer=scorer.name,
        cannot_tell=judgement.cannot_tell,
        auroc=judgement.auroc,
        ranks=judgement.ranks,
    )


def _with_shifts(kind: Int[np.ndarray, " pairs"], shifts: list[Shift]) -> Int[np.ndarray, " pairs"]:
    kind = kind.copy()
    for shift in shifts:
        run = kind[shift.first : shift.last + 1]
        run[run != PLACEHOLDER] = SHIFTED
    return kind
