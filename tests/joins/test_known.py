"""Models of other pairs are evidence: they are fitted to nothing of the table."""

import numpy as np
import pytest

from l2rm_jax.joins import KnownModels, evidence, find_misaligned
from l2rm_jax.joins.known import KnownFits
from l2rm_jax.linear import cca
from l2rm_jax.linear.rows import unit_rows
from tests.joins.kinds import KINDS
from tests.joins.tables import Case, make_case, synthetic

IMAGES, FOLDS = 600, 2


def halves() -> tuple[KnownModels, dict]:
    """Models of the first half of some pairs, and the second half as a table."""
    pairs = synthetic(2 * IMAGES, 1, 2)
    rows, models, codes = np.arange(IMAGES), [], []
    for fold in range(FOLDS):
        own, others = rows[rows % FOLDS == fold], rows[rows % FOLDS != fold]
        [moments] = cca.moments(
            pairs.images, pairs.captions, others, others, np.ones((1, len(others)))
        )
        model = cca.fit(moments, pairs.images.shape[1], cca.Ridge(1, 1))
        models.append(model)
        sides = model.encode_images(pairs.images[own]), model.encode_captions(pairs.captions[own])
        codes.append([*map(np.asarray, sides)])
    images, captions = map(np.stack, zip(*codes, strict=True))
    known = KnownModels(models, images, captions, rows % FOLDS, 0.1)
    new = pairs._replace(
        images=pairs.images[IMAGES:], captions=pairs.captions[IMAGES:],
        texts=pairs.texts[IMAGES:], names=pairs.names[IMAGES:],
    )  # fmt: skip
    return known, new


@pytest.fixture
def case(monkeypatch) -> Case:
    """A table in which all rows are late; models may not be fitted to it."""
    monkeypatch.setattr(evidence, "fit_evidence", None)
    return make_case(KINDS["late_by_one"], halves()[1], 1.0, 0.2, 3)


def test_a_rule_is_undone_though_all_rows_are_wrong(case):
    found = find_misaligned(**case.arguments(), known=halves()[0])
    assert found.findings[0].kind == "shifted"
    assert (found.image_of == case.truth)[case.truth >= 0].mean() > 0.98


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_nothing_is_found_where_nothing_happened(case, noise):
    known, new = halves()
    clean = make_case(KINDS["clean"], new, noise=noise, seed=4)
    assert not find_misaligned(**clean.arguments(), known=known)


def test_unrelated_captions_are_named_and_nothing_moves(case):
    others = synthetic(IMAGES, 1, 5).captions
    found = find_misaligned(
        case.images, others[: len(case.captions)], case.stored, known=halves()[0]
    )
    assert not found.changed.any()
    assert {finding.kind for finding in found.findings} <= {"unrelated"}


def test_images_that_are_all_similar_are_told_apart(case):
    """Models that do not subtract a mean: codes of the images lie in a cone, as CLIP's do."""
    rng = np.random.default_rng(0)
    shared = rng.standard_normal((2 * IMAGES, 24)).astype(np.float32)
    noise = rng.standard_normal((2, 2 * IMAGES, 24)).astype(np.float32)
    images, captions = (shared + 0.4 * x for x in noise)
    images[:, 0] += 12  # most of each vector
    side = np.zeros(24, np.float32), np.eye(24, dtype=np.float32)
    model = cca.Cca(*side, *side, np.zeros(0, np.float32))
    codes = [unit_rows(x[:IMAGES])[None] for x in (images, captions)]
    known = KnownModels([model], *codes, np.zeros(IMAGES, int), 0.05)
    stored = np.arange(IMAGES)
    stored[200:260] += 2
    found = find_misaligned(images[IMAGES:], captions[IMAGES:], stored, known=known)
    assert [finding.kind for finding in found.findings] == ["shifted"]
    assert (found.image_of == np.arange(IMAGES)).mean() > 0.99


def test_cosines_of_any_temperature_are_evidence(case):
    known, new = halves()
    fits = KnownFits(known._replace(temperature=0.004), new.images, new.captions, case.stored, 0)
    found = fits(case.stored)
    assert np.isfinite(found.image_level).all() and np.isfinite(found.caption_level).all()
    assert np.isfinite(found.nats(np.arange(9), np.arange(9))).all() and found.usable


def test_evidence_is_that_of_the_model_of_the_images_fold(case):
    known, new = halves()
    fits = KnownFits(known._replace(temperature=0.2), new.images, new.captions, case.stored, 0)
    join = case.stored[::-1].copy()
    found = fits(join)
    assert fits.without(join, None) is found and found.usable
    fold = known.fold[case.stored][join]
    np.testing.assert_array_equal(found.fold, fold)
    for row in (0, 7, 100):
        model = known.models[fold[row]]
        t = np.asarray(model.encode_captions(new.captions[[row]]))[0]
        v = np.asarray(model.encode_images(new.images))[case.stored]
        level_t = np.log(np.exp(known.images[fold[row]] @ t / 0.2).mean())
        levels_v = np.log(np.exp(v @ known.captions[fold[row]].T / 0.2).mean(axis=1))
        expected = v @ t / 0.2 - (level_t + levels_v) / 2
        images = np.arange(len(v))
        at = np.searchsorted(np.linspace(-12, 12, 4096), expected, "right") - 1
        steps = found.nats(np.full(len(v), row), images)
        slip = 0.05 + 0.95 * found.rate
        table = np.log((1 - slip) * found.ratios + slip)
        assert (np.abs(table[np.clip(at, 0, 4095)] - steps) < 1e-4).mean() > 0.99
