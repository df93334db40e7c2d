"""Memory of a real training process against the size of its feature file."""

from pathlib import Path

import pytest

from experiments.machines import memory

SMALL, LARGE = 64, memory.uneven(256)  # images, half a GiB and two


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_anonymous_memory_does_not_grow_with_the_features(tmp_path, monkeypatch):
    """With a head that compiles fast; it reads the same rows."""
    settings = ["model.head=vse" if "head" in each else each for each in memory.SETTINGS]
    monkeypatch.setattr(memory, "SETTINGS", settings)
    peaks = {}
    for images in (SMALL, LARGE):
        directory = tmp_path / str(images)
        directory.mkdir()
        memory.write_data(directory, images)
        peaks[images] = memory.train(directory, steps=3)["RssAnon"]
    grown = (peaks[LARGE] - peaks[SMALL]) * 1024
    assert peaks[SMALL] > 0
    assert grown < (LARGE - SMALL) * memory.ROW_BYTES / 25
