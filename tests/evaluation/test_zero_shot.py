"""Vectors of one space, evaluated without a run."""

import numpy as np
import pytest

from l2rm_jax import config as defaults
from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.evaluate import evaluate_vectors
from l2rm_jax.evaluation.recall import recalls
from l2rm_jax.main import main
from l2rm_jax.retriever import open_vectors

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
    with pytest.raises(DataError, match=r"found words as captions of test, expected vectors"):
        evaluate_vectors(config_of(tmp_path))
    (tmp_path / "test_caps.txt").unlink()
    np.save(tmp_path / "test_caps.npy", np.ones((2, SIZE + 1), np.float32))
    with pytest.raises(DataError, match="found vectors of 5 and 6 dimensions"):
        evaluate_vectors(config_of(tmp_path))
    config = config_of(directory)
    config.evaluation.protocol = "msvd"
    with pytest.raises(ConfigError, match=r"expected 670 .* msvd"):
        evaluate_vectors(config)


def test_search_finds_what_the_cosines_say(directory):
    retriever = open_vectors(directory)
    images = retriever.encode_images(f"{directory}:test")
    vectors = np.load(directory / "test_caps.npy")
    captions = retriever.encode_captions(vectors)
    sims = retriever.similarity(images, captions)
    hits = retriever.search(captions, images, top_k=2)
    np.testing.assert_array_equal(hits.rows, np.argsort(-sims.T, axis=1)[:, :2])
    means = np.load(directory / "test_ims.npy").mean(1)
    norms = np.linalg.norm(means, axis=1)[:, None] * np.linalg.norm(vectors, axis=1)
    np.testing.assert_allclose(sims, means @ vectors.T / norms, atol=1e-6)
    assert str(retriever) == f"Retriever({directory}: cosine of the stored vectors)"
    with pytest.raises(DataError, match="found vectors of 4 dimensions, expected 5"):
        retriever.encode_captions(np.ones((2, 4), np.float32))


def test_search_by_text_needs_the_encoder_of_the_data(directory):
    with pytest.raises(SystemExit, match="has no caption encoder"):
        main(["search", "--zero_shot", f"--gallery={directory}:test", "--query=a dog"])
    with pytest.raises(SystemExit, match="--zero_shot cannot be combined with --workdir"):
        main(["search", "--zero_shot", f"--gallery={directory}", "--query=x", "--workdir=w"])
