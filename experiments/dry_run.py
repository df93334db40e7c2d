"""Compiles a training step for devices that are not there: will it compile, and fit in them?

pip install "jax[tpu]"       # a TPU's compiler; it needs no TPU
pip install "jax[cuda13]"    # a GPU's; it needs no GPU and no driver
python -m experiments.dry_run --machine=v5e --batch=1024
python -m experiments.dry_run --machine=h200 --devices=1 --batch=128 --set model.head=saf

The step after the warm-up, as a run of the config would compile it on each of so many devices,
every caption padded to --words words. Columns: what the step takes (state and batch), what it works
with beside that, and what a device has, in GiB; seconds of the compilation here; and, of a TPU, the
milliseconds that its compiler expects: cycles of all operations at the device's clock, loops as
often as they turn, those that the data end (transport, gradients of hardest negatives) once, and no
exchange between devices. Nothing is run, so that is no measurement. A GPU's products are those of
cuBLAS, as nothing can be tried out without one.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple
from unittest import mock

import jax
from jax.experimental import topologies
from ml_collections import ConfigDict

from experiments.hlo import estimated_cycles
from experiments.machines import MACHINES, Machine
from experiments.scaling import config_of, machines_of, parser, step_inputs
from experiments.sweep import start, with_changes
from l2rm_jax.devices.parallel import Replicas, matmul_precision
from l2rm_jax.errors import ConfigError
from l2rm_jax.methods.base import skip_non_finite

# What NVIDIA's data sheet and CUDA's limits of Hopper say, in the form that XLA reads.
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
# Without a GPU the compiler cannot choose among Triton's products, and its first choice may fail.
GPU_OPTIONS = {"xla_gpu_enable_triton_gemm": False}


class Device(NamedTuple):
    """What a model asks of the device that it runs on."""

    platform: str
    memory: float

    def memory_stats(self) -> dict[str, int]:
        return {"bytes_limit": int(self.memory)}


class Compiled(NamedTuple):
    """Of one device: bytes, seconds of the compilation, and those that a step should take."""

    given: int  # the state and the batch
    working: int
    compilation: float
    step: float | None


def main() -> None:
    flags = parser(__doc__).parse_args()
    _look_for_no_device()
    config = config_of(flags)
    shapes = flags.words, flags.regions, flags.features
    print("machine  devices  batch  given GiB  working GiB  of GiB  compiled in s  expected ms")
    for name in machines_of(flags):
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


def _look_for_no_device() -> None:
    """Before JAX looks for any: a CPU is enough, of this machine or of a real accelerator's.

    Programs of absent devices can be kept, but not read again.
    """
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_compilation_cache", False)
    settings = {
        "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # one process at a time may hold a TPU; none is held
        "TPU_SKIP_MDS_QUERY": "1",  # no question to the cloud about a TPU of this machine
        "TPU_ACCELERATOR_TYPE": "v5litepod-1",
        "TPU_WORKER_HOSTNAMES": "localhost",
    }
    for name, value in settings.items():
        os.environ.setdefault(name, value)


def absent_devices(machine: Machine, count: int) -> list[jax.Device]:
    """So many devices that can be compiled for.

    Raises:
      ConfigError: the machine's compiler is not installed, or knows no such number of devices.
    """
    try:
        if machine.platform == "tpu":
            found = topologies.get_topology_desc(_slice(count), "tpu")
        else:
            target = {"topology": f"1x1x{count}", "target_config": HOPPER.format(kind=machine.kind)}
            found = topologies.get_topology_desc(machine.kind, "cuda", **target)
        devices = list(found.devices)[:count]
    except (RuntimeError, NotImplementedError) as error:
        extra = {"tpu": "tpu", "gpu": "cuda13"}[machine.platform]
        raise ConfigError(
            f"no compiler for {count} devices of {machine.kind}; expected that of "
            f'`pip install "jax[{extra}]"`, which says: {error}'
        ) from error
    if len(devices) < count:
        raise ConfigError(f"{count} devices of {machine.kind}: expected at most {len(devices)}")
    return devices


def _slice(count: int) -> str:
    """The least slice of a v5e that has so many chips: 2 x 2, 2 x 4, 4 x 4."""
    doublings = max(2, (count - 1).bit_length())
    return f"v5e:{2 ** (doublings // 2)}x{2 ** (doublings - doublings // 2)}"


def compile_step(
    config: ConfigDict, machine: Machine, devices: list[jax.Device], shapes: tuple[int, int, int]
) -> Compiled:
    """The step of the config on these devices, whose batch they share.

    Args:
      shapes: words of a caption, regions of an image, features of a region.

    Raises:
      jax.errors.JaxRuntimeError: a TPU's compiler finds that the step does not fit.
    """
    method, *inputs = step_inputs(config, len(devices), *shapes)

    def on_each(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((len(devices), *x.shape), x.dtype)

    step = Replicas(devices).map(skip_non_finite(method.step), donate=True).function
    with matmul_precision(config.precision), _as_if_on(machine):
        lowered = step.lower(*jax.tree.map(on_each, inputs))
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
def _as_if_on(machine: Machine) -> Iterator[None]:
    """Heads choose how many captions they score at once, and what they keep, by the device that
    JAX names; within a step nobody can hand them another."""
    device = Device(machine.platform, machine.memory)
    with mock.patch.object(jax, "local_devices", lambda *_, **__: [device]):
        yield


def _row(config: ConfigDict, machine: Machine, devices: list, shapes: tuple) -> str:
    try:
        found = compile_step(config, machine, devices, shapes)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return f"does not fit: {_first_line(error)}"
    given, working, of = (x / 2**30 for x in (found.given, found.working, machine.memory))
    expected = "" if found.step is None else f"{found.step * 1e3:.1f}"
    line = f"{given:9.2f}  {working:11.2f}  {of:6.1f}  {found.compilation:13.0f}  {expected:>11}"
    return line if given + working <= of else f"{line}  does not fit"


def _first_line(error: Exception) -> str:
    return next(line for line in str(error).splitlines() if "RESOURCE_EXHAUSTED" in line)


if __name__ == "__main__":
    start(main, prepare=False)  # flags for a CPU would end a TPU's compiler
