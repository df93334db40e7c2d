"""A start without a model: covariation at all offsets, and blocks whose captions were shuffled."""

import numpy as np

from l2rm_jax.joins.blind import common, lag_spectrum, shuffled_within, whitened
from l2rm_jax.joins.maps import dealt, inverse
from l2rm_jax.joins.table import Table, make_table, principal
from tests.joins.further_kinds import KINDS
from tests.joins.tables import make_case, synthetic


def table_of(images: np.ndarray, captions: np.ndarray) -> Table:
    return make_table(principal(images, 48), principal(captions, 64), np.arange(len(images)))


def test_the_spectrum_is_the_covariation_at_each_offset():
    rng = np.random.default_rng(0)
    v, t = (rng.standard_normal((n, 5)).astype(np.float32) for n in (90, 70))
    lags, values = lag_spectrum(v, t, least=20)
    assert lags[0] == -50 and lags[-1] == 70
    for d, value in zip(lags.tolist(), values.tolist(), strict=True):
        first, end = max(0, -d), min(70, 90 - d)
        np.testing.assert_allclose(
            value, common(v[first + d : end + d], t[first:end]), rtol=2e-3, atol=1e-4
        )


def test_covariation_is_one_for_independent_sides():
    rng = np.random.default_rng(1)
    sides = (rng.standard_normal((2000, 12)).astype(np.float32) for _ in range(2))
    assert abs(common(*map(whitened, sides)) - 1) < 0.4


def test_blocks_with_shuffled_captions_vary_together():
    case = make_case(KINDS["shuffled_in_batches"], synthetic(3000, 1, 2))
    assert shuffled_within(table_of(case.images, case.captions))
    mixed = np.random.default_rng(3).permutation(3000)
    assert not shuffled_within(table_of(case.images, case.captions[mixed]))


def test_dealing_is_undone_by_its_inverse():
    rows = np.arange(23)
    order = dealt(rows, 4)
    assert order[:3].tolist() == [0, 4, 8]
    assert (order[inverse(order)] == rows).all()
