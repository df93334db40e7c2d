"""`shard_map` computes what `pmap` computes."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax.devices import parallel
from l2rm_jax.devices.parallel import AXIS, Replicas
from l2rm_jax.methods import make_method
from l2rm_jax.models import make_model
from tests.devices import test_devices
from tests.devices.test_devices import VOCABULARY, random_batch, small_config
from tests.devices.test_hosts import free_port

STEPS = 4
MAIN, WARMUP = ("matched", "mismatched"), ("warmup",)  # streams of a step


def trainer(monkeypatch, replicas: Replicas, streams: tuple[str, ...], head: str):
    """Return a function that takes a step with each of these maps, on the state of the step before.

    Steps are those of `l2rm`, whose transport has a `while_loop` after the warm-up. Each map is
    compiled once.
    """
    config = small_config(head, mask="same_image", rho=0.5)
    method = make_method(make_model(config, VOCABULARY, AXIS), config)
    sample = random_batch(np.random.default_rng(0), test_devices.SIZE)
    first = method.init(jax.random.key(3), sample)
    steps = {}
    for name in ("pmap", "shard_map"):
        monkeypatch.setattr(parallel, "MAPPED_BY", name)
        steps[name] = replicas.map(method.step)
    if replicas.share.hosts > 1:
        steps["pmap"] = pmap_of_hosts(method.step, replicas)

    def train(mapped_by: list[str]):
        rng, state, metrics = np.random.default_rng(1), replicas.replicate(first), None
        for name in mapped_by:
            batch = {stream: random_batch(rng, test_devices.SIZE) for stream in streams}
            own = jax.tree.map(replicas.share.take, batch)
            shards = {stream: replicas.shard(rows) for stream, rows in own.items()}
            state, metrics = steps[name](state, shards)
        host = replicas.unreplicate(state.replace(key=jax.random.key_data(state.key)))
        return jax.device_get(host), jax.device_get(replicas.unreplicate(metrics))

    return train


def pmap_of_hosts(step, replicas: Replicas):
    """Map a step by `pmap` over the devices of several hosts, which the library does not do."""
    mapped = jax.pmap(step, axis_name=AXIS, devices=replicas.devices)

    def call(state, shards):
        copies = [replicas.unreplicate(state)] * replicas.local_count
        rows = [[shard.data for shard in x.addressable_shards] for x in jax.tree.leaves(shards)]
        rows = jax.tree.unflatten(jax.tree.structure(shards), map(np.concatenate, rows))
        results = mapped(jax.tree.map(lambda *x: jnp.stack(x), *copies), rows)
        return replicas.replicate(jax.tree.map(lambda x: x.addressable_data(0)[0], results))

    return call


def assert_same_bits(found, expected):
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    for x, y in pairs:
        np.testing.assert_array_equal(x, y)


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "streams"), [(1, WARMUP), (2, MAIN)])
def test_steps_are_bit_equal_and_either_continues_the_other(monkeypatch, devices, streams):
    """Also half of the steps with one map and half with the other, which is a resumed run.

    Transport communicates in its loop, so its steps are taken where there are two devices.
    """
    train = trainer(monkeypatch, Replicas(jax.devices()[:devices]), streams, "linear")
    expected = train(["pmap"] * STEPS)
    assert streams == WARMUP or expected[1]["transport_iterations"] > 1
    assert_same_bits(train(["shard_map"] * STEPS), expected)
    for first, second in (("pmap", "shard_map"), ("shard_map", "pmap")):
        names = [first] * (STEPS // 2) + [second] * (STEPS // 2)
        assert_same_bits(train(names), expected)


@pytest.mark.slow
def test_steps_are_bit_equal_on_eight_devices():
    """In a process of its own, as this one simulates four."""
    check_in_processes(8, ["check(8, 1, 24)"])


@pytest.mark.slow
def test_steps_are_bit_equal_on_two_hosts():
    join = f"jax.distributed.initialize('127.0.0.1:{free_port()}', 2, {{}})"
    check_in_processes(2, [f"import jax; {join.format(host)}; check(4, 2, 20)" for host in (0, 1)])


def check_in_processes(devices: int, codes: list[str]) -> None:
    environment = {
        **os.environ,
        "JAX_NUM_CPU_DEVICES": str(devices),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    commands = [[sys.executable, "-c", f"from {__name__} import check; {code}"] for code in codes]
    started = [subprocess.Popen(command, env=environment, **streams) for command in commands]
    outputs = [process.communicate()[0] for process in started]
    for process, output in zip(started, outputs, strict=True):
        assert process.returncode == 0, output[-3000:]


def check(devices: int, hosts: int, size: int) -> None:
    replicas = Replicas()
    assert (len(replicas), replicas.share.hosts) == (devices, hosts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(test_devices, "SIZE", size)
        train = trainer(patch, replicas, WARMUP, "vse")  # recurrent layers; its step compiles fast
        assert_same_bits(train(["shard_map"] * STEPS), train(["pmap"] * STEPS))


def test_local_maps_agree(monkeypatch):
    replicas, rows = Replicas(jax.devices()[:2]), np.arange(8, dtype=np.float32).reshape(2, 4)

    def function(x, whole):
        return {"sum": jax.lax.psum(x, AXIS), "scaled": x * whole["factor"]}

    results = []
    for name in ("pmap", "shard_map"):
        monkeypatch.setattr(parallel, "MAPPED_BY", name)
        mapped = replicas.map_local(function, (0, None))
        results.append(mapped(rows, {"factor": np.float32(3)}))
    assert_same_bits(*results)
    np.testing.assert_array_equal(results[1]["scaled"], 3 * rows)
