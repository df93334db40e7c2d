"""Compile a training step for absent accelerators: does it compile, and does it fit in memory?

pip install "jax[tpu]"       # the TPU compiler, which needs no TPU
pip install "jax[cuda13]"    # the GPU compiler, which needs neither GPU nor driver
python -m experiments.machines.dry_run --machine=v5e --batch=1024
python -m experiments.machines.dry_run --machine=h200 --devices=1 --batch=128 --set model.head=saf

Compiles the step after the warm-up as a run of the config would, with every caption padded to
--words words. Columns, for one device: "given" is the memory of the step's inputs (state and
batch), "working" the memory it needs beside them, "of" the memory that the device has, all in GiB;
then the seconds that the compilation took here. "expected ms" is the TPU compiler's own estimate of
a step: the cycles of all operations at the device's clock, without communication between devices. A
loop counts as often as it runs; a loop whose end depends on the data (transport, gradients of
hardest negatives) counts once. Nothing is run, so this is not a measurement. For a GPU, matrix
products are those of cuBLAS, because other kernels would have to be tried on a GPU.
"""

import argparse
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import jax
from jax.experimental import topologies
from ml_collections import ConfigDict

from experiments.bench.step import step_inputs
from experiments.script import add_settings, load_base, new_parser, start, values_of
from l2rm_jax.devices.parallel import Replicas, matmul_precision
from l2rm_jax.errors import ConfigError
from l2rm_jax.methods.base import skip_non_finite
from l2rm_jax.run.config_file import with_changes

CONFIG = Path(__file__).parents[2] / "configs" / "coco.py"


class Machine(NamedTuple):
    """A number of accelerators of one kind."""

    platform: str
    kind: str  # part of the name that JAX gives the device
    devices: int  # how many, unless told otherwise
    memory: float  # bytes that a program may use
    clock: float | None = None  # cycles per second; None if the compiler estimates no cycles


# Sources: cloud.google.com/tpu/docs/v5e and NVIDIA's data sheet of the H200.
# Memory: the TPU compiler leaves 15.75 of 16 GiB to a program; JAX takes 3/4 of a GPU's memory.
# Clock: the peak of a v5e, 197 TFLOP/s, divided by the operations of its four 128 x 128 units in
# one cycle.
MACHINES = {
    "v5e": Machine(
        platform="tpu",
        kind="TPU v5 lite",
        devices=256,
        memory=15.75 * 2**30,
        clock=197e12 / (4 * 128 * 128 * 2),
    ),
    "h200": Machine(
        platform="gpu",
        kind="H200",
        devices=8,
        memory=0.75 * 141e9,
    ),
}
# H200: NVIDIA's data sheet and CUDA's limits for Hopper, in the format that XLA reads.
HOPPER = """
gpu_device_info {{
  cuda_compute_capability {{ major: 9 minor: 0 }}
  core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98
  threads_per_warp: 32 threads_per_block_limit: 1024 threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  registers_per_block_limit: 65536 registers_per_core_limit: 65536
  shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472 l2_cache_size: 52428800
  memory_bandwidth: 4800000000000 device_memory_size: 141000000000
}}
platform_name: "CUDA"
runtime_version {{ major: 13 minor: 0 }}
dnn_version_info {{ major: 9 minor: 12 }}
device_description_str: "NVIDIA {kind}"
"""
NAME = r"%([^ ,)}]+)"  # of an operation in the text of a program
# Without a GPU the compiler cannot time Triton's kernels, and the one it takes may not compile.
GPU_OPTIONS = {"xla_gpu_enable_triton_gemm": False}


class Device(NamedTuple):
    """Stands in for a `jax.Device` in the code of the heads."""

    platform: str
    memory: float  # bytes

    def memory_stats(self) -> dict[str, int]:
        return {"bytes_limit": int(self.memory)}


class Compiled(NamedTuple):
    """A compiled step: memory of one device in bytes, times in seconds."""

    given: int  # state and batch
    working: int  # all else
    compilation: float
    step: float | None  # the compiler's estimate; None for a GPU


def main() -> None:
    flags = parse_arguments()
    _use_cpu_only()
    config = with_changes(*load_base(flags.config, flags.set))
    sizes = f"{config.model.embed_dim}/{config.model.sim_dim}"
    print(f"{config.method}, {config.model.head}, {sizes}, {config.precision}")
    shapes = flags.words, flags.regions, flags.features
    print("machine  devices  batch  given GiB  working GiB  of GiB  compiled in s  expected ms")
    for name in [flags.machine] if flags.machine else MACHINES:
        machine = MACHINES[name]
        for count in flags.devices or [machine.devices]:
            devices = absent_devices(machine, count)
            for batch in flags.batch:
                start_of_row = f"{name:7}  {count:7}  {batch:5}"
                if batch % count:
                    print(f"{start_of_row}  the devices cannot share such a batch")
                    continue
                sized = with_changes(config, {"train.batch_size": batch})
                print(f"{start_of_row}  {_row(sized, machine, devices, shapes)}", flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = new_parser(__doc__)
    parser.add_argument("--config", default=str(CONFIG), help="FILE.py or FILE.py:VARIANT")
    parser.add_argument("--machine", choices=MACHINES, help="default: all, each with its own size")
    parser.add_argument("--devices", type=values_of(int), help="numbers of devices")
    parser.add_argument(
        "--batch", type=values_of(int), default=[512, 1024, 2048, 4096], help="pairs on all devices"
    )
    parser.add_argument("--words", type=int, default=16, help="words per caption")
    parser.add_argument("--regions", type=int, default=36, help="regions per image")
    parser.add_argument("--features", type=int, default=2048, help="features per region")
    add_settings(parser, "set")
    return parser.parse_args()


def _use_cpu_only() -> None:
    """Keep JAX and libtpu from looking for accelerators; call it before JAX is used.

    The compilation cache is off: it can store programs of absent devices but not load them.
    """
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_compilation_cache", False)
    settings = {
        "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # no TPU is held, so processes need not take turns
        "TPU_SKIP_MDS_QUERY": "1",  # do not ask the cloud about a TPU of this machine
        "TPU_ACCELERATOR_TYPE": "v5litepod-1",
        "TPU_WORKER_HOSTNAMES": "localhost",
    }
    for name, value in settings.items():
        os.environ.setdefault(name, value)


def absent_devices(machine: Machine, count: int) -> list[jax.Device]:
    """Return descriptions of `count` devices that a program can be compiled for.

    Raises:
      ConfigError: the compiler is not installed, or it does not know that many devices.
    """
    try:
        if machine.platform == "tpu":
            topology = topologies.get_topology_desc(_slice(count), "tpu")
        else:
            target = {"topology": f"1x1x{count}", "target_config": HOPPER.format(kind=machine.kind)}
            topology = topologies.get_topology_desc(machine.kind, "cuda", **target)
        devices = list(topology.devices)[:count]
    except (RuntimeError, NotImplementedError) as error:
        extra = {"tpu": "tpu", "gpu": "cuda13"}[machine.platform]
        raise ConfigError(
            f"cannot compile for {count} devices of {machine.kind}; this needs "
            f'`pip install "jax[{extra}]"`: {error}'
        ) from error
    if len(devices) < count:
        raise ConfigError(f"{count} devices of {machine.kind}: expected at most {len(devices)}")
    return devices


def _slice(count: int) -> str:
    """Return the smallest v5e slice with at least `count` chips: 2x2, 2x4, 4x4 and so on."""
    doublings = max(2, (count - 1).bit_length())
    return f"v5e:{2 ** (doublings // 2)}x{2 ** (doublings - doublings // 2)}"


def compile_step(
    config: ConfigDict, machine: Machine, devices: list[jax.Device], shapes: tuple[int, int, int]
) -> Compiled:
    """Compile the step of the config for devices that share its batch.

    Args:
      config: a config of the package.
      machine: the kind of the devices.
      devices: what `absent_devices` returns.
      shapes: words per caption, regions per image, features per region.

    Raises:
      jax.errors.JaxRuntimeError: the TPU compiler says that the step does not fit in memory.
    """
    method, state, batch = step_inputs(config, len(devices), *shapes)

    def per_device(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((len(devices), *x.shape), x.dtype)

    step = Replicas(devices).map(skip_non_finite(method.step), donate=True).function
    with matmul_precision(config.precision), _pretending_to_run_on(machine):
        lowered = step.lower(state, jax.tree.map(per_device, batch))
    begin = time.perf_counter()
    on_gpu = machine.platform == "gpu"
    compiled = lowered.compile(compiler_options=GPU_OPTIONS if on_gpu else None)
    seconds = time.perf_counter() - begin
    memory = compiled.memory_analysis()
    expected = estimated_cycles(compiled.as_text()) / machine.clock if machine.clock else None
    working = memory.temp_size_in_bytes + memory.generated_code_size_in_bytes
    working += memory.output_size_in_bytes - memory.alias_size_in_bytes
    return Compiled(memory.argument_size_in_bytes, working, seconds, expected)


@contextmanager
def _pretending_to_run_on(machine: Machine) -> Iterator[None]:
    """Make `jax.local_devices` return a stand-in for the machine's device.

    Heads ask it how much memory there is, to choose how many captions to score at once and what to
    keep for the backward pass. Within a step there is no other way to tell them.
    """
    device = Device(machine.platform, machine.memory)
    with mock.patch.object(jax, "local_devices", lambda *_, **__: [device]):
        yield


def _row(config: ConfigDict, machine: Machine, devices: list, shapes: tuple) -> str:
    try:
        compiled = compile_step(config, machine, devices, shapes)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        line = next(line for line in str(error).splitlines() if "RESOURCE_EXHAUSTED" in line)
        return f"does not fit: {line}"
    given, working, of = (x / 2**30 for x in (compiled.given, compiled.working, machine.memory))
    expected = "" if compiled.step is None else f"{compiled.step * 1e3:.1f}"
    line = f"{given:9.2f}  {working:11.2f}  {of:6.1f}  {compiled.compilation:13.0f}  {expected:>11}"
    return line if given + working <= of else f"{line}  does not fit"


def estimated_cycles(program: str) -> int:
    """Return the cycles that the compiler expects of a program, without communication.

    A loop counts as often as it runs, and of several branches the longest counts. A loop whose end
    depends on the data counts once: transport, and the gradients of hardest negatives.

    Args:
      program: the text of an optimised program, `Compiled.as_text()`.

    Raises:
      ValueError: the program holds no estimates because it was not compiled for a TPU.
    """
    bodies, entry = _computations(program)

    @cache
    def body_cycles(name: str) -> int:
        return sum(map(operation_cycles, bodies[name]))

    def operation_cycles(line: str) -> int:
        if " while(" in line:
            condition, body = (_called(line, part)[0] for part in ("condition", "body"))
            return _trip_count(bodies[condition]) * body_cycles(body)
        if " conditional(" in line:
            parts = "branch_computations", "true_computation", "false_computation"
            return max(body_cycles(name) for part in parts for name in _called(line, part))
        if " call(" in line:
            return body_cycles(*_called(line, "to_apply"))
        estimate = re.search(r'"estimated_cycles":"(\d+)"', line)
        return int(estimate[1]) if estimate else 0

    cycles = body_cycles(entry)
    if not cycles:
        raise ValueError("no estimates in the program, expected one that was compiled for a TPU")
    return cycles


def _computations(program: str) -> tuple[dict[str, list[str]], str]:
    """Return the lines of each computation's operations, and the name of the entry computation."""
    bodies, entry = {}, ""
    for line in program.splitlines():
        start = re.match(rf"(ENTRY )?{NAME} .*{{$", line)
        if start:
            operations = bodies[start[2]] = []
            entry = start[2] if start[1] else entry
        elif re.match(r"  (ROOT )?%", line):
            operations.append(line)
    return bodies, entry


def _called(line: str, part: str) -> list[str]:
    """Return the computations that an operation calls as `part`, such as "body"."""
    called = re.search(rf"[ ,]{part}=(\{{[^}}]*\}}|{NAME})", line)
    return re.findall(NAME, called[1]) if called else []


def _trip_count(condition: list[str]) -> int:
    """Return how often a loop runs that counts to a constant; 1 for any other loop."""
    *before, last = condition
    limits = [re.search(r" s32\[\][^ ]* constant\((\d+)\)", line) for line in before]
    counts = [int(limit[1]) for limit in limits if limit]
    is_counted = " compare(" in last and "direction=LT" in last and len(counts) == 1
    return counts[0] if is_counted else 1


if __name__ == "__main__":
    start(main, prepare=False)  # the TPU compiler refuses the CPU flags that `prepare` sets
