"""How many captions meet all images at once; what they compute is pinned by the golden arrays."""

from types import SimpleNamespace

import jax
import pytest

from l2rm_jax.models.attention import captions_at_once

REGIONS = jax.ShapeDtypeStruct((10, 36, 64), "float32")
WORDS = jax.ShapeDtypeStruct((12, 8, 64), "float32")
CAPTION = 6 * 10 * 8 * 64 * 4  # bytes that one caption takes with all images


def accelerator(memory: int | None) -> SimpleNamespace:
    stats = None if memory is None else {"bytes_limit": memory}
    return SimpleNamespace(platform="gpu", memory_stats=lambda: stats)


@pytest.mark.parametrize(
    ("memory", "expected"), [(16 * 5 * CAPTION, 5), (16 * 99 * CAPTION, 12), (1, 1), (None, 12)]
)
def test_an_accelerator_takes_the_captions_that_its_memory_holds(memory, expected):
    assert captions_at_once(0, REGIONS, WORDS, accelerator(memory)) == expected


def test_one_on_a_cpu_and_what_is_asked_for_anywhere():
    assert captions_at_once(0, REGIONS, WORDS) == 1
    for device in (None, accelerator(1)):
        assert captions_at_once(7, REGIONS, WORDS, device) == 7
