"""Means of step metrics: continued after a resume, and with steps that are not finite."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax.run.log import Means


def test_means_continue_from_their_state():
    first = Means({"epoch": 3})
    first.add({"loss": jnp.float32(1.0), "rare": jnp.float32(5.0)})
    first.add({"loss": jnp.float32(3.0)})
    assert first.fetch() == [] and first.flush() == {"loss": 2.0}
    first.add({"loss": jnp.float32(0.1)})
    first.fetch()
    second = Means(json.loads(json.dumps(first.state)))
    second.add({"loss": jnp.float32(8.0)})
    assert second.fetch() == []
    assert second.flush() == {"loss": (float(np.float32(0.1)) + 8.0) / 2}
    assert second.means() == pytest.approx({"loss": 12.1 / 4, "rare": 5.0})


def test_steps_that_are_not_finite_are_counted_and_left_out_of_all_means():
    means = Means({})
    for loss in (1.0, jnp.nan, jnp.inf, 3.0):
        means.add({"loss": jnp.float32(loss), "mass": jnp.float32(0.5)})
    [(three, nan), (two, inf)] = means.fetch()
    assert (three, two) == (2, 1) and np.isnan(nan["loss"]) and inf == {"loss": np.inf}
    assert means.skipped == 2 and Means(means.state).skipped == 2
    assert means.flush() == means.means() == {"loss": 2.0, "mass": 0.5}
    means.add({"loss": jnp.float32(jnp.nan)})
    assert len(means.fetch()) == 1 and means.flush() == {}
