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
from pathlib import Path

from ml_collections import ConfigDict

from experiments.machines import MACHINES, Machine
from experiments.sweep import add_settings, load_config, start, with_changes
from experiments.work import bench_operations, step_work
from l2rm_jax.errors import ConfigError

CONFIG = Path(__file__).parents[1] / "configs" / "coco.py"
ASSUMED_SHARE = 0.3


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


if __name__ == "__main__":
    start(main)
