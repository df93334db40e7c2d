"""Predict the time of a training step on many devices from the work of each.

python -m experiments.machines.scaling                                 # a v5e pod of 256, 8 H200
python -m experiments.machines.scaling --machine=h200 --devices=8 --batch=512,2048 \
    --measured=step.json
python -m experiments.machines.scaling --set precision=bfloat16 --set model.head=saf --machine=v5e

The step is traced for that number of devices, which need not be present. The traced program gives
the operations of the matrix products and the bytes that each device receives from the others (the
codes of all images, columns of similarities, gradients). The prediction is

    step = operations / rate + bytes / link

- rate: the operations per second of the whole step, including the time of all that is not a matrix
  product. --measured=FILE takes it from `experiments.bench.step --json=FILE`, run on one such
  device in the config's precision. Otherwise it is assumed to be 30% of the peak in that precision,
  which is optimistic: for steps with SGR in bfloat16, a v5e's compiler expects 6 and 7% (4096 and
  1024 pairs on 256 devices; `experiments.machines.dry_run`). The rate is assumed to be the same at
  every size.
- link: the bytes per second that a device receives, from its data sheet. The prediction assumes
  that communication does not overlap with the products, and that it has no latency, which is too
  optimistic for many devices and small batches.
- Every caption of both streams is assumed to have --words words. Reading the input is assumed to
  keep up; `experiments.bench.input` measures it.
"""

import argparse
import json
from pathlib import Path

from ml_collections import ConfigDict

from experiments.machines.known import MACHINES, Machine
from experiments.machines.work import bench_operations, step_work
from experiments.papers.sweep import add_settings, load_config, start, with_changes
from l2rm_jax.errors import ConfigError

CONFIG = Path(__file__).parents[2] / "configs" / "coco.py"
ASSUMED_SHARE = 0.3


def main() -> None:
    known = parser(__doc__)
    known.add_argument("--measured", type=Path, help="JSON file of experiments.bench.step")
    flags = known.parse_args()
    if flags.measured and not flags.machine:
        known.error("--measured: expected --machine too, the machine that was measured")
    config = config_of(flags)
    print("machine  devices  batch  TFLOP  MB received  products ms  exchange ms  step ms  pairs/s")
    for name in machines_of(flags):
        machine = MACHINES[name]
        rate, source = _rate(machine, config.precision, flags.measured)
        for devices in flags.devices or [machine.devices]:
            for batch in flags.batch:
                print(f"{name:7}  {_row(config, flags, machine, rate, devices, batch)}")
        print(f"{name}: {rate / 1e12:.3g} TFLOP/s per device ({source})")


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the flags of a script about a step on absent machines."""
    known = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    known.add_argument("--config", default=str(CONFIG), help="FILE.py or FILE.py:VARIANT")
    known.add_argument("--machine", choices=MACHINES, help="default: all, each with its own size")
    known.add_argument("--devices", type=_sizes, help="numbers of devices")
    known.add_argument(
        "--batch", type=_sizes, default=[512, 1024, 2048, 4096], help="pairs on all devices"
    )
    known.add_argument("--words", type=int, default=16, help="words per caption")
    known.add_argument("--regions", type=int, default=36, help="regions per image")
    known.add_argument("--features", type=int, default=2048, help="features per region")
    add_settings(known, "set")
    return known


def config_of(flags: argparse.Namespace) -> ConfigDict:
    """Return the config that the flags ask for and print its method, head and sizes."""
    config = with_changes(load_config(flags.config), flags.set)
    sizes = f"{config.model.embed_dim}/{config.model.sim_dim}"
    print(f"{config.method}, {config.model.head}, {sizes}, {config.precision}")
    return config


def machines_of(flags: argparse.Namespace) -> list[str]:
    """Return the names of the machines that the flags ask for."""
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
    """Return the operations per second of a device in a whole step, and their source.

    Raises:
      ConfigError: the file was not written by `experiments.bench.step`, or it was measured on
        another device or in another precision.
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


if __name__ == "__main__":
    start(main)
