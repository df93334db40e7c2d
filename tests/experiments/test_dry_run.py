"""The dry run, on devices that are present, and the cycles read from a program's text."""

import sys

import jax
import pytest

from experiments.machines import dry_run
from experiments.machines.dry_run import MACHINES, estimated_cycles
from l2rm_jax.errors import ConfigError
from tests.grid import tiny_config

SHAPES = 12, 5, 7
HERE = MACHINES["h200"]._replace(platform="cpu")
PROGRAM = """
%turn (x: f32[8]) -> f32[8] {
  ROOT %a = f32[8]{0:T(128)} fusion(%x), kind=kLoop, backend_config={"estimated_cycles":"10"}
}
%counted (c: (s32[])) -> pred[] {
  %n = s32[]{:T(128)} constant(3)
  %i = s32[]{:T(128)} get-tuple-element(%c), index=0
  ROOT %lt = pred[]{:T(512)} compare(%i, %n), direction=LT
}
%by_data (c: (s32[])) -> pred[] {
  %most = s32[]{:T(128)} constant(100)
  %lt.1 = pred[]{:T(512)} compare(%i, %most), direction=LT
  ROOT %and = pred[]{:T(512)} and(%lt.1, %more)
}
%to_data (c: (s32[], s32[])) -> pred[] {
  ROOT %lt.2 = pred[]{:T(512)} compare(%i, %end), direction=LT
}
%long (x: f32[8]) -> f32[8] {
  %b = f32[8]{0} fusion(%x), kind=kLoop, backend_config={"estimated_cycles":"700"}
  ROOT %e = f32[8]{0} call(%b), to_apply=%turn
}
ENTRY %main.1 (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %w = (s32[]) while(%t), condition=%counted, body=%turn, metadata={op_name="a/while"}
  %w.1 = (s32[]) while(%t), condition=%by_data, body=%turn
  %w.2 = (s32[]) while(%t), condition=%to_data, body=%turn
  %c = f32[8]{0} conditional(%k, %x, %x), branch_computations={%turn, %long}
  %c.1 = f32[8]{0} conditional(%k, %x, %x), true_computation=%turn, false_computation=%long
  ROOT %f = f32[8]{0} convolution(%x), backend_config={"estimated_cycles":"5000"}
}
"""


def test_cycles_of_loops_branches_and_calls():
    assert estimated_cycles(PROGRAM) == 3 * 10 + 10 + 10 + 2 * (700 + 10) + 5000


def test_no_cycles_are_found_in_a_program_of_another_device():
    with pytest.raises(ValueError, match="no estimates"):
        estimated_cycles(jax.jit(lambda x: x + 1).lower(1.0).compile().as_text())


@pytest.mark.slow
def test_each_device_holds_the_state_and_its_share_of_the_batch():
    config, count = tiny_config("triplet", "vse"), 4
    config.train.batch_size = 64
    devices = jax.devices()[:count]
    found = dry_run.compile_step(config, HERE, devices, SHAPES)
    _, *inputs = dry_run.step_inputs(config, count, *SHAPES)
    expected = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(inputs))
    assert found.given == pytest.approx(expected, rel=0.01)  # a key is two numbers
    assert found.working > 0 and found.compilation > 0 and found.step is None
    assert jax.local_devices()[0] is devices[0]  # the stand-in is gone


def test_table(monkeypatch, capsys):
    def compile_step(config, *_):
        if config.train.batch_size == 8:
            message = "RESOURCE_EXHAUSTED: used 17G of 15.75G hbm\nand more"
            raise jax.errors.JaxRuntimeError(message)
        working = HERE.memory if config.train.batch_size == 16 else 2**30
        return dry_run.Compiled(2**30, int(working), 3.2, 0.0125)

    monkeypatch.setattr(dry_run, "_use_cpu_only", lambda: None)
    monkeypatch.setattr(dry_run, "absent_devices", lambda machine, count: [None] * count)
    monkeypatch.setattr(dry_run, "compile_step", compile_step)
    command = "dry_run --config=configs/scenes.py:quick --machine=h200 --devices=2"
    monkeypatch.setattr(sys, "argv", [*command.split(), "--batch=4,8,9,16"])
    dry_run.main()
    fits, refused, unshared, too_large = capsys.readouterr().out.splitlines()[2:]
    assert fits.split()[2:] == ["4", "1.00", "1.00", "98.5", "3", "12.5"]
    assert refused.endswith("does not fit: RESOURCE_EXHAUSTED: used 17G of 15.75G hbm")
    assert unshared.endswith("cannot share such a batch")
    assert too_large.endswith("does not fit")


@pytest.mark.parametrize(("name", "extra"), [("v5e", "tpu"), ("h200", "cuda13")])
def test_a_compiler_that_is_not_installed_is_named(monkeypatch, name, extra):
    def none(*_, **__):
        raise RuntimeError("not installed")

    monkeypatch.setattr(dry_run.topologies, "get_topology_desc", none)
    with pytest.raises(ConfigError, match=rf'"jax\[{extra}\]".*not installed'):
        dry_run.absent_devices(MACHINES[name], 4)
