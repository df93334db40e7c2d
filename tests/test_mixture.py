"""The mixtures against Bayes' rule, scikit-learn and degenerate input."""

import numpy as np
import pytest

from l2rm_jax.mixture import above_threshold, fit, fit_gaussian

KINDS = {"easy": ((2, 12), (9, 4)), "hard": ((2, 6), (5, 4)), "spiky": ((0.8, 20), (14, 6))}
RATES = (0.2, 0.4, 0.6, 0.8)
BOTH = pytest.mark.parametrize("fit_one", [fit, fit_gaussian])
DEGENERATE = {
    "zeros": np.zeros(10),
    "equal": np.full(7, 0.3),
    "one": np.array([1.5]),
    "two": np.array([0.0, 1.0]),
    "outlier": np.array([0.0] * 99 + [1.0]),
    "binary": np.array([0.0] * 50 + [1.0] * 50),
    "nearly equal": np.array([0.2, 0.2 + 1e-9, 0.2]),
    "uniform": np.linspace(0, 1, 50).astype(np.float32),
}


def draw(kind, rate, count, seed):
    rng = np.random.default_rng(seed)
    mismatched = np.arange(count) < round(rate * count)
    rng.shuffle(mismatched)
    clean, noisy = KINDS[kind]
    return np.where(mismatched, rng.beta(*noisy, count), rng.beta(*clean, count)), mismatched


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("kind", ["easy", "spiky"])
def test_separable_losses_reach_bayes_rule(kind, rate):
    losses, mismatched = draw(kind, rate, 3000, seed=3)
    mixture = fit(losses)
    assert np.mean((mixture.mismatched_posterior(losses) > 0.5) == mismatched) > 0.97
    assert mixture.weights[1] == pytest.approx(rate, abs=0.03)
    assert mixture.is_consistent and mixture.converged


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("seed", range(3))
def test_overlapping_losses_split_near_a_threshold(rate, seed):
    losses, mismatched = draw("hard", rate, 2000, seed)
    called_mismatched = fit(losses).mismatched_posterior(losses) > 0.5
    in_order = called_mismatched[np.argsort(losses)]
    assert np.mean(in_order != np.sort(in_order)) < 0.01
    assert np.mean(called_mismatched == mismatched) > 0.8


def test_moments_of_a_component_are_recovered():
    rng = np.random.default_rng(0)
    losses = np.concatenate([rng.beta(4, 30, 4000), rng.beta(30, 4, 2000), [0.0, 1.0]])
    mixture = fit(losses)
    np.testing.assert_allclose(mixture.weights, [2 / 3, 1 / 3], atol=0.01)
    np.testing.assert_allclose(mixture.alpha, [4, 30], rtol=0.1)
    np.testing.assert_allclose(mixture.beta, [30, 4], rtol=0.1)


@BOTH
def test_invariant_to_scale_shift_and_order(fit_one):
    losses, _ = draw("hard", 0.4, 500, seed=1)
    posterior = fit_one(losses).mismatched_posterior(losses)
    moved = 7.0 * losses[::-1] - 3.0
    found = fit_one(moved).mismatched_posterior(moved)[::-1]
    np.testing.assert_allclose(found, posterior, atol=1e-6 if fit_one is fit else 1e-9)


@BOTH
@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_losses_stay_finite(name, fit_one):
    losses = DEGENERATE[name]
    mixture = fit_one(losses)
    posterior = mixture.mismatched_posterior(losses)
    assert posterior.shape == losses.shape
    assert np.isfinite(posterior).all() and (posterior >= 0).all() and (posterior <= 1).all()
    assert all(np.isfinite(values).all() for values in mixture)
    if np.ptp(losses) == 0:
        assert not posterior.any()


def test_is_consistent_compares_at_the_low_end():
    losses, _ = draw("easy", 0.5, 500, seed=2)
    mixture = fit(losses)
    assert mixture.is_consistent
    # A wide component with the higher mean is likelier at 0.001 than a narrow one around 0.2.
    wide = mixture._replace(alpha=np.array([40.0, 0.8]), beta=np.array([160.0, 0.9]))
    assert not wide.is_consistent


@BOTH
@pytest.mark.usefixtures("unchecked_arrays")
@pytest.mark.parametrize("losses", [[], [[0.1, 0.2]], [0.1, np.nan], [np.inf, 0.2]])
def test_bad_losses_are_refused(losses, fit_one):
    with pytest.raises(ValueError, match="loss"):
        fit_one(np.array(losses))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rate", RATES)
def test_gaussians_are_those_of_scikit_learn_from_the_same_start(kind, rate):
    sklearn_mixture = pytest.importorskip("sklearn.mixture")
    losses, _ = draw(kind, rate, 2000, seed=4)
    ours = fit_gaussian(losses)
    scaled = (losses - losses.min()) / np.ptp(losses)
    upper = scaled >= scaled.mean()
    for _ in range(100):
        upper = scaled >= (scaled[upper].mean() + scaled[~upper].mean()) / 2
    theirs = sklearn_mixture.GaussianMixture(2, max_iter=10, tol=1e-2, reg_covar=5e-4)
    theirs._initialize(scaled[:, None], np.stack([~upper, upper], axis=1).astype(float))
    theirs._initialize_parameters = lambda *args, **kwargs: None  # keep this start
    theirs.fit(scaled[:, None])
    posterior = theirs.predict_proba(scaled[:, None])[:, theirs.means_[:, 0].argmin()]
    assert (ours.iterations, ours.converged) == (theirs.n_iter_, theirs.converged_)
    deviations = np.sqrt(theirs.covariances_)
    assert ours.separation == pytest.approx(np.ptp(theirs.means_) / deviations.sum())
    np.testing.assert_allclose(1 - ours.mismatched_posterior(losses), posterior, atol=1e-9)


def test_a_wide_component_takes_the_lowest_losses_too():
    losses, _ = draw("easy", 0.5, 500, seed=2)
    mixture = fit_gaussian(losses)
    assert mixture.is_consistent
    wide = mixture._replace(variances=np.array([5e-4, 0.5]))
    assert not wide.is_consistent
    assert 1 - wide.mismatched_posterior(losses[losses.argmin()][None])[0] < 0.5


@pytest.mark.parametrize(
    ("posterior", "mismatched"),
    [
        ([0.2, 0.5, 0.6], [0, 1]),
        ([0.7, *[0.9] * 98, 0.8], [0, 99]),
        ([0.7] + [1.0] * 200, [0]),
        ([1.0] * 5, []),
    ],
    ids=["some", "all-above", "ties", "equal"],
)
def test_some_pairs_always_count_as_matched(posterior, mismatched):
    called = above_threshold(np.array(posterior))
    np.testing.assert_array_equal(np.flatnonzero(~called), mismatched)
