"""A split reads and encodes each image once, if the head compares vectors."""

from collections import Counter

import jax
import numpy as np
import pytest

from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.devices.parallel import Replicas
from l2rm_jax.models.retrieval import RetrievalModel
from l2rm_jax.run.initialise import open_run
from l2rm_jax.run.inputs import read_data
from tests.tiny import tiny_config

pytestmark = pytest.mark.usefixtures("shared_programs")

EPOCH = 1  # the first one after the warm-up


def scored(method: str, head: str, workdir, devices: int = 1, **train) -> tuple[list, Counter]:
    """Scores that the plan of an epoch asks for, and how often it reads each image."""
    replicas = Replicas(jax.devices()[:devices])
    config = tiny_config(method, head, **train)
    values, reads = [], Counter()
    read = RegionFeatures.rows

    def counted(self, indices):
        reads.update(np.asarray(indices).tolist())
        return read(self, indices)

    with open_run(config, read_data(config, workdir), workdir, replicas) as run:
        score_pairs = run.score_pairs(EPOCH)

        def kept(score):
            values.append(score_pairs(score))
            return values[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RegionFeatures, "rows", counted)
            run.method.plan(kept, run.data.train, EPOCH)
        assert set(reads) == set(run.data.train.stored_image.tolist())
    return values, reads


@pytest.mark.parametrize(
    ("method", "head", "devices", "networks"),
    [
        ("l2rm", "vse", 1, 1),
        pytest.param("l2rm", "vse", 2, 2, marks=pytest.mark.slow),
        pytest.param("ncr", "linear", 1, 2, marks=pytest.mark.slow),
        pytest.param("rcsl_nc", "aggregate", 2, 1, marks=pytest.mark.slow),
    ],
)
def test_each_image_is_read_once_and_scores_stay(
    method, head, devices, networks, tmp_path, monkeypatch
):
    inputs = {"method": method, "head": head, "devices": devices, "networks": networks}
    values, reads = scored(workdir=tmp_path / "once", **inputs)
    assert set(reads.values()) == {1}

    monkeypatch.setattr(RetrievalModel, "is_product", False)
    expected, reads = scored(workdir=tmp_path / "often", **inputs)
    assert sum(reads.values()) >= 100  # with each of its captions
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), values, expected)


@pytest.mark.slow
def test_images_that_a_head_compares_with_words_are_read_with_each_caption(tmp_path):
    _, reads = scored("l2rm", "sgr", tmp_path)
    assert sum(reads.values()) == 100
