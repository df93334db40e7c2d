"""Accelerators by name, with the numbers of their makers' data sheets."""

from typing import NamedTuple


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
