"""Accelerators by name, as their makers describe them."""

from typing import NamedTuple


class Machine(NamedTuple):
    """Accelerators of one kind, and how many of them are meant where nobody says."""

    platform: str
    kind: str  # what JAX's name of the device contains
    devices: int
    peak: dict[str, float]  # operations a second, by precision
    link: float  # bytes a second that a device receives from the others
    memory: float  # bytes that a program may use
    clock: float | None = None  # cycles a second, where a compiler counts in them


# Makers' data sheets: cloud.google.com/tpu/docs/v5e (1600 Gbit/s between chips); NVIDIA H200
# (bfloat16 without sparsity, NVLink in one direction). A TPU makes a product in all digits of
# float32 from six in bfloat16; a GPU makes it outside its tensor cores. Of its memory, a TPU's
# compiler leaves 15.75 GiB of 16; JAX takes three quarters of a GPU's.
# A v5e's clock is its peak, over what its four units of 128 x 128 do in a cycle.
MACHINES = {
    "v5e": Machine(
        platform="tpu",
        kind="TPU v5 lite",
        devices=256,
        peak={"float32": 197e12 / 6, "bfloat16": 197e12},
        link=200e9,
        memory=15.75 * 2**30,
        clock=197e12 / (4 * 128 * 128 * 2),
    ),
    "h200": Machine(
        platform="gpu",
        kind="H200",
        devices=8,
        peak={"float32": 67e12, "bfloat16": 989e12},
        link=450e9,
        memory=0.75 * 141e9,
    ),
}
