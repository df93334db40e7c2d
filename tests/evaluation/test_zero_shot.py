"""Vectors of one space, evaluated without a run."""

import numpy as np
import pytest

from l2rm_jax import config as defaults
from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.evaluate import evaluate_vectors
from l2rm_jax.evaluation.recall import recalls
from l2rm_jax.main import main

IMAGES, SIZE = 6, 5


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Two captions an image, and two regions."""
    path, rng = tmp_path_factory.mktemp("vectors"), np.random.default_rng(0)
    np.save(path / "test_ims.npy", rng.normal(size=(IMAGES, 2, SIZE)).astype(np.float32))
    np.save(path / "test_caps.npy", rng.normal(size=(2 * IMAGES, SIZE)).astype(np.float32))
    return path


def config_of(directory):
    config = defaults.default()
    config.data.path = str(directory)
    return config


def test_rows_are_those_of_the_cosines_of_means(directory):
    images, captions = (np.load(directory / f"test_{kind}.npy") for kind in ("ims", "caps"))
    images = images.mean(1)
    sims = images @ captions.T
    sims /= np.linalg.norm(images, axis=1)[:, None] * np.linalg.norm(captions, axis=1)
    rows = evaluate_vectors(config_of(directory))
    assert list(rows) == ["zero-shot cosine, custom", "chance"]
    assert rows["zero-shot cosine, custom"] == pytest.approx(recalls(sims, 2))


def test_command(directory, capsys):
    main(["evaluate", "--zero_shot", f"--data={directory}:test"])
    assert "zero-shot cosine" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["evaluate", "--zero_shot", f"--data={directory}", "--workdir=runs/mine"])


def test_words_and_other_sizes_are_refused(directory, tmp_path):
    np.save(tmp_path / "test_ims.npy", np.ones((2, SIZE), np.float32))
    (tmp_path / "test_caps.txt").write_text("a dog\na cat\n")
    with pytest.raises(DataError, match=r"captions of test are words, expected vectors"):
        evaluate_vectors(config_of(tmp_path))
    (tmp_path / "test_caps.txt").unlink()
    np.save(tmp_path / "test_caps.npy", np.ones((2, SIZE + 1), np.float32))
    with pytest.raises(DataError, match="found vectors of 5 and 6 numbers"):
        evaluate_vectors(config_of(tmp_path))
    config = config_of(directory)
    config.evaluation.protocol = "msvd"
    with pytest.raises(ConfigError, match="msvd needs 670 test images"):
        evaluate_vectors(config)
