"""Scores of a fold against naive loops."""

import jax
import numpy as np
import pytest

from l2rm_jax.judging.log_odds import Model
from l2rm_jax.judging.neighbours import NEIGHBOURS
from l2rm_jax.judging.scores import fold_references, fold_tasks, score_part
from tests.judging.parts import divided
from tests.judging.synthetic import make_pairs

TEMPERATURE = 0.3


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def scored():
    images, captions, stored, _ = make_pairs(120, 2, 0.2)
    group = np.arange(120)
    here = divided(images, captions, stored, 3)[2][1]
    codes = unit(images[:, :8]), unit(captions[:, :8])

    def similarity(i, c):
        return codes[0][i] @ codes[1][c].T

    model = Model(similarity, TEMPERATURE)
    of = fold_references(here, model, images, [captions], group)
    (task, at), *more = fold_tasks(here, group, seed=0)
    assert not more
    evidence = score_part(*task, of, images, [captions])
    found = jax.tree.map(lambda values: values[np.argsort(at)], evidence)  # in the fold's order
    return here, found, images, captions, stored, similarity


def test_wrong_images_are_of_the_fold_and_not_the_own(scored):
    here, found, _, _, stored, _ = scored
    assert np.isin(found.wrong.image, here.images).all()
    assert (found.wrong.image != stored[here.pairs][:, None]).all()
    assert (stored[found.wrong.replaced] == found.wrong.image).all()
    assert (found.near.image != stored[here.pairs][:, None]).all()


def test_hard_images_against_loops(scored):
    here, found, _, captions, stored, similarity = scored
    said = unit(captions - captions[here.pairs].mean(axis=0))
    references = here.images[here.references]
    means = unit(np.array([said[here.pairs[stored[here.pairs] == i]].mean(0) for i in references]))
    compared = here.pairs[here.captions]
    for n in range(0, len(here.pairs), 7):
        caption = here.pairs[n]
        likeness = np.where(references == stored[caption], -np.inf, means @ said[caption])
        hard = references[np.argsort(-likeness)[1]]
        assert found.hard_image[n] == hard
        gone = here.pairs[here.replaced[references == hard]]
        others = references[references != stored[caption]]
        of_captions = np.log(np.mean(np.exp(similarity(others, caption[None]) / TEMPERATURE)))
        rest = compared[compared != gone]
        of_images = np.log(np.mean(np.exp(similarity(hard[None], rest) / TEMPERATURE)))
        value = similarity(hard[None], caption[None])[0, 0] / TEMPERATURE
        expected = value - (of_captions + of_images) / 2
        assert found.hard[n] == pytest.approx(expected, abs=1e-4)


def test_agreement_against_loops(scored):
    here, found, _, captions, stored, _ = scored
    centred = unit(captions - captions[here.pairs].mean(axis=0))
    for n in range(0, len(here.pairs), 9):
        caption = here.pairs[n]
        siblings = [c for c in here.pairs if stored[c] == stored[caption] and c != caption]
        expected = np.mean([centred[c] @ centred[caption] for c in siblings]) if siblings else 0
        value = found.stored.neighbours.agreement[n, 0]
        assert value == pytest.approx(expected, abs=1e-4)
        image, gone = found.wrong.image[n, 0], found.wrong.replaced[n, 0]
        rest = [c for c in here.pairs if stored[c] == image and c != gone]
        expected = np.mean([centred[c] @ centred[caption] for c in rest]) if rest else 0
        value = found.wrong.scores.neighbours.agreement[n, 0, 0]
        assert value == pytest.approx(expected, abs=1e-4)


def test_near_captions_against_loops(scored):
    here, found, images, captions, stored, _ = scored
    said = unit(captions - captions[here.pairs].mean(axis=0))
    seen = unit(images - images[here.images].mean(axis=0))
    trust = 1 / (1 + np.exp(-found.stored.information))
    some = here.captions
    for n in (3, 11):
        own = stored[here.pairs[n]]
        others = [m for m in some if stored[here.pairs[m]] != own]
        near = sorted(others, key=lambda m: -said[here.pairs[m]] @ said[here.pairs[n]])[:NEIGHBOURS]
        weights = trust[near] / trust[near].sum()
        fits = seen[stored[here.pairs[near]]] @ seen[own]
        value = found.stored.neighbours.of_captions[n]
        assert value == pytest.approx(weights @ fits, abs=1e-4)


def test_neighbours_of_known_mismatches_against_loops(scored):
    here, found, images, captions, stored, _ = scored
    said = unit(captions - captions[here.pairs].mean(axis=0))
    seen = unit(images - images[here.images].mean(axis=0))
    trust = 1 / (1 + np.exp(-found.stored.information))
    of_image = [np.flatnonzero(here.position == place) for place in range(len(here.images))]
    image_trust = np.array([trust[pairs].mean() for pairs in of_image])
    means = np.array([said[here.pairs[pairs]].mean(axis=0) for pairs in of_image])
    references = here.references
    for n in (2, 17):
        caption, own = here.pairs[n], here.position[n]
        wrong = np.flatnonzero(here.images == found.wrong.image[n, 0])[0]
        likeness = seen[here.images[references]] @ seen[here.images[wrong]]
        likeness[references == wrong] = -np.inf
        near = references[np.argsort(-likeness)[:NEIGHBOURS]]
        weights = image_trust[near] / image_trust[near].sum()
        kept = near != own
        expected = weights[kept] @ (means[near[kept]] @ said[caption]) / weights[kept].sum()
        value = found.wrong.scores.neighbours.of_images[n, 0]
        assert value == pytest.approx(expected, abs=1e-4)

        others = here.captions[here.pairs[here.captions] != caption]
        near = others[np.argsort(-said[here.pairs[others]] @ said[caption])[:NEIGHBOURS]]
        weights = trust[near] / trust[near].sum()
        expected = weights @ (seen[stored[here.pairs[near]]] @ seen[here.images[wrong]])
        value = found.wrong.scores.neighbours.of_captions[n, 0]
        assert value == pytest.approx(expected, abs=1e-4)
