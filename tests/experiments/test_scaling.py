"""Operations and bytes counted in a traced program, and the table of the prediction."""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.machines import scaling, work
from l2rm_jax.errors import ConfigError
from tests.grid import tiny_config

DEVICES = 4
X = jnp.ones((5, 5))
PRODUCT = 2 * 5 * 5 * 5
BYTES = 5 * 5 * 4


def gathered(x):
    return jax.lax.all_gather(x, "batch", tiled=True)


@pytest.mark.parametrize(
    ("function", "operations", "received"),
    [
        (lambda x: x @ x, PRODUCT, 0),
        (lambda x: jnp.einsum("ij,j->i", x, x[0]), PRODUCT / 5, 0),
        (lambda x: jax.lax.scan(lambda c, _: (c @ x, None), x, length=3)[0], 3 * PRODUCT, 0),
        (jax.grad(lambda x: jnp.sum(jax.checkpoint(jnp.dot)(x, x[:, 0]))), 3 * PRODUCT / 5, 0),
        (lambda x: jax.lax.cond(x[0, 0] > 0, lambda: x @ x @ x, lambda: x), 2 * PRODUCT, 0),
        (gathered, 0, DEVICES * BYTES * 3 / 4),
        (jax.grad(lambda x: gathered(x).sum()), 0, 2 * DEVICES * BYTES * 3 / 4),
        (lambda x: jax.lax.pmean(x, "batch"), 0, 2 * BYTES * 3 / 4),
        (lambda x: jax.jit(gathered)(x @ x), PRODUCT, DEVICES * BYTES * 3 / 4),
    ],
)
def test_work_of_a_program(function, operations, received):
    program = jax.make_jaxpr(function, axis_env=[("batch", DEVICES)])(X)
    assert work.work_of(program.jaxpr, DEVICES) == pytest.approx((operations, received))


@pytest.mark.slow
def test_devices_share_the_head_and_receive_all_images():
    config = tiny_config("l2rm", "saf")
    config.train.batch_size = 64
    one, four, eight = (work.step_work(config, n, 12, 5, 7) for n in (1, 4, 8))
    assert one.received == 0
    assert one.operations / 4 < four.operations < one.operations / 3
    codes = 64 * (5 + 1) * config.model.embed_dim * 4  # regions and the global vector
    assert eight.received > 2 * 2 * codes * 7 / 8  # both streams, there and back


@pytest.mark.slow
def test_table(monkeypatch, capsys, tmp_path):
    measured = tmp_path / "step.json"
    sizes = {
        **{"head": "saf", "embed_dim": 16, "sim_dim": 8, "words": [8, 16], "regions": 5},
        **{"features": 7, "precision": "float32", "batch": 8, "method": "triplet", "chunk": None},
    }
    record = {"sizes": sizes, "step_s": {"median": 0.5}, "machine": {"device": "NVIDIA H200"}}
    measured.write_text(json.dumps(record))
    command = f"scaling --config=configs/scenes.py:quick --devices=2,3 --batch=8 --regions=5 \
        --features=7 --machine=h200 --measured={measured}"
    monkeypatch.setattr(sys, "argv", command.split())
    scaling.main()
    lines = capsys.readouterr().out.splitlines()
    two = [float(value) for value in lines[2].split()[1:]]
    assert two[0] == 2 and np.isclose(two[4] + two[5], two[6], atol=0.02)
    assert "cannot share" in lines[3] and "NVIDIA H200" in lines[4]
    monkeypatch.setattr(sys, "argv", [*command.split(), "--set", "precision=bfloat16"])
    with pytest.raises(ConfigError, match="on NVIDIA H200 in float32, expected H200 in bfloat16"):
        scaling.main()
    monkeypatch.setattr(sys, "argv", [*command.split(), "--machine=v5e"])
    with pytest.raises(ConfigError, match="on NVIDIA H200 in float32, expected TPU v5 lite in"):
        scaling.main()
    monkeypatch.setattr(sys, "argv", ["scaling", f"--measured={measured}"])
    with pytest.raises(SystemExit):
        scaling.main()
    monkeypatch.setattr(sys, "argv", command.split())
    measured.write_text("{}")
    with pytest.raises(ConfigError, match=r"step\.json: expected what experiments\.bench\.step"):
        scaling.main()


@pytest.mark.parametrize(("name", "ratio"), [("v5e", 6), ("h200", 989 / 67)])
def test_the_assumed_rate_is_that_of_the_precision(name, ratio):
    fast, slow = (
        scaling._rate(scaling.MACHINES[name], precision, None)[0]
        for precision in ("bfloat16", "float32")
    )
    assert fast / slow == pytest.approx(ratio)
