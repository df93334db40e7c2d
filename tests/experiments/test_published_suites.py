"""Suites with published settings train each row, at full size, on stand-ins of their files."""

import numpy as np
import pytest

from experiments.benchmark.suite import find_suite, make_cell
from l2rm_jax.config import set_epochs
from l2rm_jax.run.config_file import with_changes
from l2rm_jax.train import train

IMAGES = {"train": 60, "dev": 10, "test": 10, "testall": 10}
REGIONS, DIMENSIONS = 36, 2048
# Few of the images, all of them tested at once, one epoch of each phase.
SHORT = {"evaluation.protocol": "custom", "data.dev_images": 0, "crcl.schedules": (1,)}
ROWS = [(name, row) for name in ("f30k", "coco", "cc152k") for row in find_suite(name).rows]

pytestmark = pytest.mark.exhaustive


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory):
    """Directories with the files of the data sets, by the number of captions of an image.

    A region shows one of the words of the captions, so that a model can tell which captions fit.
    """
    rng, made = np.random.default_rng(0), {}
    words = np.array([f"word{number}" for number in range(50)])
    looks = rng.normal(size=(len(words), DIMENSIONS)).astype(np.float32)
    for captions in (1, 5):
        made[captions] = tmp_path_factory.mktemp(f"captions{captions}")
        for split, images in IMAGES.items():
            shown = rng.integers(len(words), size=(images, REGIONS))
            np.save(made[captions] / f"{split}_ims.npy", looks[shown])
            lines = [" ".join(words[rng.choice(row, 9)]) for row in shown.repeat(captions, axis=0)]
            numbered = "".join(f"{row}\t{line}\n" for row, line in enumerate(lines))
            plain = "".join(f"{line}\n" for line in lines)
            suffix, text = ("tsv", numbered) if captions == 1 else ("txt", plain)
            (made[captions] / f"{split}_caps.{suffix}").write_text(text)
    return made


@pytest.mark.parametrize(("name", "row"), ROWS)
def test_every_row_trains(name, row, stand_ins, tmp_path):
    suite = find_suite(name)
    grid = suite.grids[0]
    noise = {"protocol": grid.protocols[0], "rate": grid.rates[0]}
    path = stand_ins[1 if name == "cc152k" else 5]
    config = make_cell(suite, row, "saf", noise, 0, path).config
    size = (config.model.embed_dim, config.model.sim_dim)
    assert size == (1024, 256)
    config = with_changes(config, {**SHORT, "train.batch_size": 32})
    set_epochs(config, 1, 1)
    results = train(config, tmp_path)
    assert 0 <= results["rsum"] <= 600 and results["method"] == config.method
