"""Placeholder pictures: detected, excluded from judging, and named."""

import numpy as np
import pytest

import l2rm_jax
from l2rm_jax.errors import DataError
from l2rm_jax.judging.content_keys import vector_keys
from l2rm_jax.judging.groups import find_placeholders
from l2rm_jax.judging.judgement import PLACEHOLDER
from tests.judging.synthetic import make_pairs


def found(images, captions, stored):
    return find_placeholders(vector_keys(images), captions, stored)


@pytest.mark.parametrize("images", [60, 300, 1000])
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_a_picture_with_many_captions_is_found(images, share):
    vectors, captions, stored, _ = make_pairs(images, 1, 0.1, seed=images)
    assert found(vectors, captions, stored) == []
    own = np.random.default_rng(0).permutation(images)[: int(share * images)]
    vectors[own] = vectors[own[0]]
    of_own = stored[np.isin(stored, own)]
    expected = (own.min(), len(np.unique(of_own)), len(of_own))
    assert found(vectors, captions, stored) == [expected]


def test_copies_whose_captions_say_the_same_are_no_placeholder():
    """Images with many captions of their own, or with one caption too few, are no placeholders."""
    vectors, captions, stored, _ = make_pairs(40, 20, 0.0)
    assert found(vectors, captions, stored) == []
    vectors, captions, stored, _ = make_pairs(100, 1, 0.0)
    vectors[:20] = vectors[0]
    captions[:20] = captions[0] + 0.1 * captions[:20]
    assert found(vectors, captions, stored) == []
    vectors[50:54] = vectors[50]
    assert found(vectors, captions, stored) == []
    vectors[54] = vectors[50]
    assert found(vectors, captions, stored) == [(50, 5, 5)]


def test_one_image_with_many_captions_is_found_too():
    """The import may have joined rows with the same picture into one image."""
    vectors, captions, stored, _ = make_pairs(200, 1, 0.0)
    stored[:50] = 7
    assert found(vectors, captions, stored) == [(7, 1, 50)]
    vectors[3] = vectors[4] = vectors[7]  # images without captions do not count
    assert found(vectors, captions, stored) == [(3, 1, 50)]


@pytest.mark.slow
def test_the_rest_is_judged_as_if_the_placeholder_were_not_there():
    vectors, captions, stored, _ = make_pairs(300, 1, 0.1, seed=1)
    with_placeholder = vectors.copy()
    with_placeholder[:100] = vectors[0]
    audit = l2rm_jax.audit_pairs(with_placeholder, captions, stored, top=2).judgement
    apart = stored < 100
    rest = np.flatnonzero(~apart)
    alone = l2rm_jax.audit_pairs(vectors[100:], captions[rest], stored[rest] - 100, top=2).judgement
    assert audit.rate == alone.rate and audit.list_length == alone.list_length
    for name in ("posterior", "information", "fold", "kind", "none_fits"):
        np.testing.assert_array_equal(getattr(audit, name)[rest], getattr(alone, name), name)
    judged = audit.order[: len(rest)]
    np.testing.assert_array_equal(judged, rest[alone.order])
    assert set(audit.order[len(rest) :]) == set(np.flatnonzero(apart))
    assert (audit.kind[apart] == PLACEHOLDER).all()
    assert (audit.posterior[apart] == 1).all() and (audit.fold[apart] == -1).all()
    assert not np.isin(audit.proposal, np.flatnonzero(apart)).any()


def test_nothing_but_a_placeholder_is_refused():
    _, captions, stored, _ = make_pairs(60, 1, 0.0)
    with pytest.raises(DataError, match="of the 1 images"):
        l2rm_jax.audit_pairs(np.ones((60, 4), np.float32), captions, stored)
