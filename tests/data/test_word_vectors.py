"""Word vectors: the files, the words without one, and the start of a run."""

import jax
import numpy as np
import pytest

from l2rm_jax.data.loading import load_data, save_vocabulary_and_index
from l2rm_jax.data.run_words import describe_unknown, read_word_vectors
from l2rm_jax.data.text import Vocabulary
from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.run.pretrained import with_word_vectors
from tests.grid import make_cell, tiny_config

WORDS = Vocabulary.from_words([["dog", "runs", ". . ."]], min_count=1)


def test_text_and_array_give_the_same(tmp_path):
    text, array = tmp_path / "glove.txt", tmp_path / "vectors.npy"
    text.write_text("3 2\nrocket 9 9\ndog 1 2\n. . . 0.5 -1\ndog 7 7\n", encoding="utf-8")
    np.save(array, np.array([[9, 9], [1, 2], [0.5, -1]], np.float32))
    array.with_suffix(".txt").write_text("rocket\ndog\n. . .\n")
    for path in (text, array):
        vectors = read_word_vectors(path, WORDS)
        assert vectors.shape == (7, 2) and describe_unknown(vectors).startswith("5 of 7 words")
        np.testing.assert_array_equal(vectors[WORDS.word2idx["dog"]], [1, 2])
        np.testing.assert_array_equal(vectors[WORDS.word2idx[". . ."]], [0.5, -1])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("rocket 9 9\n", "found none of the 7 words"),
        ("dog 1 2\nruns 1\n", ":2: found 2 parts"),
        ("dog 1 x\n", ":1: .*could not convert string"),
        ("dog 1 nan\n", ":1: found a value that is not finite"),
    ],
)
def test_faulty_text_is_refused(tmp_path, content, message):
    (tmp_path / "glove.txt").write_text(content)
    with pytest.raises(DataError, match=message):
        read_word_vectors(tmp_path / "glove.txt", WORDS)


def test_a_run_starts_from_them_and_keeps_them(tmp_path):
    config = tiny_config("ncr", "vse")
    file = tmp_path / "glove.txt"
    file.write_text("red 1 2 3 4 5 6\nunheard 1 1 1 1 1 1\n")
    config.data.word_vectors = str(file)
    workdir = tmp_path / "run"
    workdir.mkdir()
    data = load_data(config.data, config.mismatch, workdir=workdir)
    assert np.isnan(data.word_vectors[:, 0]).sum() == len(data.vocabulary) - 1
    save_vocabulary_and_index(data, workdir)
    file.unlink()
    again = load_data(config.data, config.mismatch, workdir=workdir)
    np.testing.assert_array_equal(again.word_vectors, data.word_vectors)


def test_all_networks_get_them_and_other_sizes_are_refused():
    cell = make_cell(tiny_config("ncr", "vse"))
    shapes = jax.tree.map(lambda x: np.zeros(x.shape, np.float32), cell.state.params)
    words = shapes["text_encoder"]["words"]["embedding"].shape[1]
    vectors = np.full((words, 6), np.nan, np.float32)
    vectors[3] = 1.5
    embedding = with_word_vectors(shapes, vectors)["text_encoder"]["words"]["embedding"]
    assert embedding.shape == (2, words, 6) and (embedding[:, 3] == 1.5).all()
    assert not np.delete(embedding, 3, axis=1).any()
    with pytest.raises(ConfigError, match=r"model\.word_dim: found 6"):
        with_word_vectors(shapes, np.ones((words, 7), np.float32))
    with pytest.raises(ConfigError, match="embeddings"):
        with_word_vectors({"a": np.ones(2)}, vectors)
