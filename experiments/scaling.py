"""What a training step asks of each of many devices, and how long it should take them.

python -m experiments.scaling                                 # a v5e pod of 256, 8 H200
python -m experiments.scaling --machine=h200 --devices=8 --batch=512,2048 --measured=step.json
python -m experiments.scaling --set precision=bfloat16 --set model.head=saf --machine=v5e

The step is traced for that many devices, none of which need be there, and its program is read:
the operations of its matrix products, and the bytes that each device receives from the others (the
codes of all images, columns of similarities, gradients). The prediction is

    step = operations / rate + bytes / link

- rate: what `experiments.bench.step --json=FILE` measured on one device of the kind, in the
  config's precision, given as --measured=FILE; else 30% of the peak at that precision, an
  assumption, and a hopeful one: a v5e's compiler expects 6 and 7% in bfloat16 of steps with SGR
  (4096 and 1024 pairs on 256 devices; `experiments.dry_run`). It is that of the whole step, so all
  that is no matrix product is in it, and it is taken to be the same at every size.
- link: what the maker says a device receives per second. Nothing is taken to overlap with the
  products, and no latency is counted: with many devices and small batches that is too optimistic.
- Every caption is taken to have --words words, of both streams of L2RM. Reading the input is taken
  to keep up, which `experiments.bench.input` measures.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import jax.extend.core
import numpy as np
from ml_collections import ConfigDict

from experiments.bench.measure import VOCABULARY
from experiments.bench.step import step_batches, step_config, streams
from experiments.machines import MACHINES, Machine
from experiments.sweep import add_settings, load_config, start, with_changes
from l2rm_jax.data.batches import Batch
from l2rm_jax.devices.parallel import AXIS
from l2rm_jax.errors import ConfigError
from l2rm_jax.methods import make_method
from l2rm_jax.methods.base import Method, TrainState
from l2rm_jax.models import make_model

CONFIG = Path(__file__).parents[1] / "configs" / "coco.py"
ASSUMED_SHARE = 0.3


class Work(NamedTuple):
    """Of one device in one step."""

    operations: float
    received: float  # bytes

    def times(self, count: int) -> "Work":
        return Work(self.operations * count, self.received * count)


def main() -> None:
    known = parser(__doc__)
    known.add_argument("--measured", type=Path, help="JSON file of experiments.bench.step")
    flags = known.parse_args()
    if flags.measured and not flags.machine:
        known.error("--measured: goes with --machine, the one that was measured")
    config = config_of(flags)
    print("machine  devices  batch  TFLOP  MB received  products ms  exchange ms  step ms  pairs/s")
    for name in machines_of(flags):
        machine = MACHINES[name]
        rate, source = _rate(machine, config.precision, flags.measured)
        for devices in flags.devices or [machine.devices]:
            for batch in flags.batch:
                print(f"{name:7}  {_row(config, flags, machine, rate, devices, batch)}")
        print(f"{name}: {rate / 1e12:.3g} TFLOP/s a device ({source})")


def parser(description: str | None) -> argparse.ArgumentParser:
    """Flags of a script about a step on machines that need not be there."""
    known = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    known.add_argument("--config", default=str(CONFIG), help="FILE.py or FILE.py:VARIANT")
    known.add_argument("--machine", choices=MACHINES, help="all, each at its size, when left out")
    known.add_argument("--devices", type=_sizes, help="numbers of devices")
    known.add_argument("--batch", type=_sizes, default=[512, 1024, 2048, 4096], help="all devices'")
    known.add_argument("--words", type=int, default=16, help="of a caption")
    known.add_argument("--regions", type=int, default=36, help="of an image")
    known.add_argument("--features", type=int, default=2048, help="of a region")
    add_settings(known, "set")
    return known


def config_of(flags: argparse.Namespace) -> ConfigDict:
    """The config that the flags ask for; prints what it is about."""
    config = with_changes(load_config(flags.config), flags.set)
    sizes = f"{config.model.embed_dim}/{config.model.sim_dim}"
    print(f"{config.method}, {config.model.head}, {sizes}, {config.precision}")
    return config


def machines_of(flags: argparse.Namespace) -> list[str]:
    return [flags.machine] if flags.machine else list(MACHINES)


def _sizes(text: str) -> list[int]:
    return [int(size) for size in text.split(",")]


def _row(config: ConfigDict, flags, machine: Machine, rate: float, devices: int, batch: int) -> str:
    if batch % devices:
        return f"{devices:7}  {batch:5}  the devices cannot share such a batch"
    shapes = flags.words, flags.regions, flags.features
    work = step_work(with_changes(config, {"train.batch_size": batch}), devices, *shapes)
    products, exchange = work.operations / rate, work.received / machine.link
    step = products + exchange
    return (
        f"{devices:7}  {batch:5}  {work.operations / 1e12:5.2f}  {work.received / 1e6:11.1f}"
        f"  {products * 1e3:11.2f}  {exchange * 1e3:11.2f}  {step * 1e3:7.2f}  {batch / step:7.0f}"
    )


def _rate(machine: Machine, precision: str, measured: Path | None) -> tuple[float, str]:
    """Operations a second of a device in a whole step, and where that is from.

    Raises:
      ConfigError: the file is none of `experiments.bench.step`, or of another device or precision.
    """
    if measured is None:
        share = f"{ASSUMED_SHARE:.0%} of the peak in {precision}, assumed"
        return machine.peak[precision] * ASSUMED_SHARE, share
    try:
        record = json.loads(measured.read_text(encoding="utf-8"))
        sizes = argparse.Namespace(**record["sizes"])
        seconds, kind = record["step_s"]["median"], record["machine"]["device"]
        operations = bench_operations(sizes)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{measured}: expected what experiments.bench.step --json writes ({error!r})"
        ) from error
    if machine.kind not in kind or sizes.precision != precision:
        raise ConfigError(
            f"{measured}: measured on {kind} in {sizes.precision}, expected {machine.kind} in "
            f"{precision}"
        )
    return operations / seconds, f"measured in {measured.name} on {kind}"


def bench_operations(sizes: argparse.Namespace) -> float:
    """Operations of the products of a step of `experiments.bench`, of these sizes on one device."""
    shapes = mean_words(sizes), sizes.regions, sizes.features
    return step_work(step_config(sizes), 1, *shapes).operations


def mean_words(sizes: argparse.Namespace) -> int:
    """Of the captions of a benchmark."""
    return int(np.mean(sizes.words))


def step_work(
    config: ConfigDict, devices: int, words: int, regions: int = 36, features: int = 2048
) -> Work:
    """Work of one device in a step after the warm-up, of `devices` that share the config's batch.

    Args:
      words, regions, features: of every caption, image and region.
    """
    method, state, batch = step_inputs(config, devices, words, regions, features)
    program = jax.make_jaxpr(method.step, axis_env=[(AXIS, devices)])(state, batch)
    return work_of(program.jaxpr, devices)


def step_inputs(
    config: ConfigDict, devices: int, words: int, regions: int, features: int
) -> tuple[Method, TrainState, dict]:
    """The method, and shapes of what its step after the warm-up takes on one of the devices."""
    method = make_method(make_model(config.model, VOCABULARY, AXIS), config)
    own = config.train.batch_size // devices

    def array(*shape: int, kind: str = "float32") -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((own, *shape), kind)

    index = array(kind="int32")
    pairs = Batch(array(regions, features), index, array(words, kind="int32"), index, index, index)
    state = jax.eval_shape(method.init, jax.random.key(0), pairs)
    return method, state, step_batches(streams(config.method), lambda: pairs)


def work_of(program: jax.extend.core.Jaxpr, devices: int) -> Work:
    """The work of a traced function: loops as often as they turn, of branches the largest.

    Loops that the data end count once: transport, and the gradients of hardest negatives, which
    are small beside the rest.
    """
    total = Work(0.0, 0.0)
    for equation in program.eqns:
        own = _equation_work(equation, devices)
        total = Work(total.operations + own.operations, total.received + own.received)
    return total


def _equation_work(equation, devices: int) -> Work:
    name, others = equation.primitive.name, (devices - 1) / devices
    if name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        factor = equation.invars[0].aval
        length = np.prod([factor.shape[axis] for axis in contracted], dtype=float)
        return Work(2.0 * equation.outvars[0].aval.size * length, 0.0)
    if name == "all_gather":
        return Work(0.0, _bytes(equation.outvars) * others)
    if name in ("reduce_scatter", "psum_scatter"):
        return Work(0.0, _bytes(equation.invars) * others)
    if name.startswith("psum"):  # a ring scatters the sum, then gathers it
        return Work(0.0, 2 * _bytes(equation.invars) * others)
    inner = [work_of(program, devices) for program in _programs(equation.params)]
    if name == "cond":
        return Work(*np.max(inner, axis=0))
    turns = equation.params["length"] if name == "scan" else 1
    return Work(*np.sum(inner, axis=0)).times(turns) if inner else Work(0.0, 0.0)


def _bytes(variables) -> float:
    return float(sum(x.aval.size * x.aval.dtype.itemsize for x in variables))


def _programs(parameters: dict) -> Iterator[jax.extend.core.Jaxpr]:
    """What an operation runs: the functions among its parameters."""
    for leaf in jax.tree.leaves(list(parameters.values())):
        program = getattr(leaf, "jaxpr", leaf)
        if isinstance(program, jax.extend.core.Jaxpr):
            yield program


if __name__ == "__main__":
    start(main)
