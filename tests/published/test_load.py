"""A published checkpoint as a retriever: the similarities of the authors' code."""

import numpy as np
import pytest

import l2rm_jax
from l2rm_jax.data.text import Vocabulary
from l2rm_jax.errors import CheckpointError, ConfigError
from tests.published.checkpoint_files import data_config, golden, parts, save, write_data


@pytest.mark.slow
def test_a_file_with_two_networks_scores_as_their_mean(tmp_path, monkeypatch):
    arrays = golden("l_eval")
    split = [arrays[f"in/{name}"] for name in ("images", "captions", "lengths")]
    directory = write_data(tmp_path / "data", test=split)
    sgr, saf = arrays.under("w_SGR/"), arrays.under("w_SAF/")
    file = save(tmp_path / "c.pth.tar", sgr, model_A=parts(sgr), model_B=parts(saf), opt=None)
    with pytest.raises(ConfigError, match="requires the JSON file of the vocabulary"):
        l2rm_jax.load(file)

    # The golden captions are token numbers alone, without <start> and <end>.
    def encode_words(self, words):
        return np.array([int(word[1:]) for word in words], np.int32)

    monkeypatch.setattr(Vocabulary, "encode_words", encode_words)
    vocabulary = data_config(directory).data.vocabulary
    retriever = l2rm_jax.load(file, vocabulary=vocabulary)
    captions = (directory / "test_caps.txt").read_text().splitlines()
    images = retriever.encode_images(np.load(directory / "test_ims.npy"))
    sims = retriever.similarity(images, retriever.encode_captions(captions))
    expected = (arrays["out/SGR/sims"] + arrays["out/SAF/sims"]) / 2
    np.testing.assert_allclose(sims, expected, rtol=0, atol=1e-5)
    assert retriever.head == "sgr + saf"
    assert repr(retriever) == f"Retriever({file}: sgr, model_A; {file}: saf, model_B)"
    Vocabulary({"<pad>": 0, "<start>": 1, "<end>": 2, "<unk>": 3}).write(tmp_path / "words.json")
    with pytest.raises(
        CheckpointError, match="found a vocabulary of 4 words, expected the vocabulary"
    ):
        l2rm_jax.load(file, vocabulary=tmp_path / "words.json")
