"""CRCL's schedules: fresh networks, labels that stay, rates that start again."""

import jax
import numpy as np
import pytest

from l2rm_jax.devices.parallel import Replicas
from l2rm_jax.errors import ConfigError
from l2rm_jax.methods import make_method
from l2rm_jax.methods.base import FRESH, LAST
from l2rm_jax.models import make_model
from l2rm_jax.run.initialise import begin_epoch
from l2rm_jax.train import train
from tests import tiny
from tests.grid import VOCABULARY, tiny_config

pytestmark = pytest.mark.usefixtures("shared_programs")


def config_of(**fields):
    config = tiny_config("crcl", "vse")
    config.update_from_flattened_dict(fields)
    return config


def test_each_schedule_has_a_warm_up_and_starts_afresh():
    fields = {"crcl.schedules": (2, 3), "train.warmup_epochs": 1, "train.epochs": 4}
    method = make_method(make_model(config_of(**fields), VOCABULARY), config_of(**fields))
    assert method.epochs == 3 + 4 + 5
    fresh = [epoch for epoch in range(method.epochs) if method.begin(epoch) == FRESH]
    assert fresh == [3, 7] and method.begin(0) == LAST
    for wrong in ((0,), (2, -1)):
        config = config_of(**{"crcl.schedules": wrong})
        with pytest.raises(ConfigError, match=r"crcl\.schedules: "):
            make_method(make_model(config, VOCABULARY), config)


@pytest.mark.slow
def test_the_network_starts_afresh_and_the_labels_stay(tmp_path):
    """One epoch of warm-up and one after it, twice."""
    config = tiny.tiny_config("crcl", warmup_epochs=1, epochs=1)
    config.crcl.schedules = (1,)
    seen = []

    def keep(run, epochs, recalls):
        state = jax.device_get(run.replicas.unreplicate(run.state))
        seen.append((jax.tree.leaves(state.params)[0], state.own["pairs"]["label"], state.step))
        if epochs == 2:  # as the loop does it before the next epoch
            kept, plan, run.plan = run.state, run.plan, None
            begin_epoch(run, 2)
            fresh = jax.device_get(run.replicas.unreplicate(run.state))
            seen.append((jax.tree.leaves(fresh.params)[0], fresh.own["pairs"]["label"], fresh.step))
            run.state, run.plan = kept, plan

    results = train(config, tmp_path / "run", Replicas(jax.devices()[:1]), on_epoch=keep)
    assert 0 < results["rsum"] < 600
    (first, labels_1, _), (second, labels_2, step_2), (fresh, labels_3, step_3), *_, last = seen
    assert len(seen) == 5 and last[2] == 2 * step_2
    assert not np.array_equal(fresh, second) and not np.array_equal(fresh, first)
    np.testing.assert_array_equal(labels_3, labels_2)
    assert step_3 == step_2
    # The first warm-up stores the probabilities of the pairs; then labels follow by a fifth.
    assert ((labels_1 > 0) & (labels_1 < 1)).all()
    changed = labels_2[labels_2 > 0]
    assert (np.abs(changed - 0.8 * labels_1[labels_2 > 0]) <= 0.2).all()
