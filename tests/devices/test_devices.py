"""One device and several devices compute the same results."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from l2rm_jax import config as defaults
from l2rm_jax.devices.batch import Batch
from l2rm_jax.devices.hosts import Share, require_shared_directory
from l2rm_jax.devices.parallel import AXIS, Replicas
from l2rm_jax.errors import ConfigError
from l2rm_jax.methods import make_method
from l2rm_jax.models import make_model
from tests import tiny

WARMUP = {"warmup": True}
SIZE, REGIONS, FEATURES, WORDS, VOCABULARY = 20, 5, 7, 9, 30


def small_config(head: str, **l2rm):
    config = defaults.default()
    config.model.head = head
    config.model.update(tiny.MODEL)
    config.train.batch_size = SIZE
    config.train.warmup_epochs = 0
    config.optim.learning_rate = 2e-4
    config.l2rm.update(l2rm)
    return config


def random_batch(rng: np.random.Generator, images: int = SIZE) -> Batch:
    """Pairs whose images have different numbers of regions."""
    return Batch(
        images=rng.normal(size=(images, REGIONS, FEATURES)).astype(np.float32),
        regions=rng.integers(1, REGIONS + 1, images).astype(np.int32),
        tokens=rng.integers(4, VOCABULARY, (SIZE, WORDS)).astype(np.int32),
        lengths=rng.integers(2, WORDS + 1, SIZE).astype(np.int32),
        pair_index=np.arange(SIZE, dtype=np.int32),
        image_index=rng.integers(0, SIZE // 2, images).astype(np.int32),
    )


def report(config, streams: list[dict]) -> list[dict[str, np.ndarray]]:
    """Values of each metric in the steps of these batches, on one device and on four."""
    method = make_method(make_model(config, VOCABULARY, AXIS), config)
    first, reports = method.init(jax.random.key(3), next(iter(streams[0].values()))), []
    for devices in (1, 4):
        replicas, steps = Replicas(jax.devices()[:devices]), []
        state, step = replicas.replicate(first), replicas.map(method.step)
        for batch in streams:
            shards = {name: replicas.shard(b) for name, b in batch.items()}
            state, metrics = step(state, shards)
            steps.append({name: float(x) for name, x in replicas.unreplicate(metrics).items()})
            for value in metrics.values():  # equal on all devices
                for shard in value.addressable_shards:
                    np.testing.assert_allclose(shard.data, value, rtol=1e-6)
        reports.append({name: np.array([values[name] for values in steps]) for name in steps[0]})
    return reports


@pytest.mark.parametrize(
    ("head", "settings"),
    [
        ("saf", {"queue_length": 2 * SIZE, "mask": "same_image", "rho": 0.5}),
        ("vse", WARMUP),
    ],
)
@pytest.mark.slow
def test_steps_do_not_depend_on_the_device_count(head, settings):
    """Run twenty steps with dropout on 1 and on 4 devices."""
    warmup = settings == WARMUP
    config = small_config(head, **({} if warmup else settings))
    rng = np.random.default_rng(1)
    queue = config.l2rm.queue_length or SIZE
    if warmup:
        streams = [{"warmup": random_batch(rng)} for _ in range(20)]
    else:
        streams = [
            {"matched": random_batch(rng), "mismatched": random_batch(rng, queue)}
            for _ in range(20)
        ]
    one, four = report(config, streams)
    # Rounding in Adam's first steps changes gradient norms and iteration counts more than losses.
    for name in one.keys() - {"transport_iterations", "grad_norm"}:
        # In eval mode, biases that train mode cancels have an effect; their values are noise.
        rtol = 1e-3 if name == "loss_cost" else 1e-4
        np.testing.assert_allclose(four[name], one[name], rtol=rtol, atol=1e-6, err_msg=name)
    # Adam hides a constant factor in the gradients; the first norm shows it, before any rounding.
    np.testing.assert_allclose(four["grad_norm"][0], one["grad_norm"][0], rtol=1e-4)
    assert len(np.unique(one["loss"])) == 20  # the parameters change


def augmented_config(head: str, method: str):
    config = small_config(head)
    config.method, config.optim.weight_decay = method, 0.1
    config.model.update(region_mask=0.4, word_noise=0.5, margins="inter")
    return config


@pytest.mark.slow
def test_augmented_steps_do_not_depend_on_the_device_count():
    rng = np.random.default_rng(2)
    streams = [{"pairs": random_batch(rng)} for _ in range(4)]
    config = augmented_config("omit", "triplet")
    one, four = report(config, streams)
    for name in ("loss", "grad_norm"):
        np.testing.assert_allclose(four[name], one[name], rtol=1e-4, err_msg=name)
    assert len(np.unique(one["loss"])) == 4 and (one["grad_norm"] > 0).all()


def test_a_batch_that_does_not_divide_is_refused():
    with pytest.raises(ConfigError, match=r"30 .* 4 devices.* 28 .*32"):
        Replicas(jax.devices()[:4]).check_batch(30)
    with pytest.raises(ConfigError, match=r"3 .* 4"):
        Replicas(jax.devices()[:4]).check_batch(3)
    Replicas(jax.devices()[:4]).check_batch(32)
    uneven = [SimpleNamespace(process_index=host) for host in (0, 1, 0)]
    with pytest.raises(ConfigError, match=r"found 2 .*3 on 2 hosts"):
        Replicas(uneven).check_batch(30)


@pytest.mark.parametrize(("total", "hosts"), [(10, 1), (10, 3), (12, 4), (2, 4)])
def test_hosts_share_rows(monkeypatch, total, hosts):
    found = []
    for host in range(hosts):
        monkeypatch.setattr(Replicas, "share", Share(host, hosts))
        found.append(Replicas().host_rows(total))
    assert len({len(rows) for rows in found}) == 1  # gathered as they are
    np.testing.assert_array_equal(np.concatenate(found)[:total], np.arange(total))
    assert max(map(max, found)) < total


def test_a_directory_that_a_host_does_not_see_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr("l2rm_jax.devices.hosts.DIRECTORY_SECONDS", 0.0)
    require_shared_directory(tmp_path)
    with pytest.raises(ConfigError, match="hosts"):
        require_shared_directory(tmp_path / "missing")
