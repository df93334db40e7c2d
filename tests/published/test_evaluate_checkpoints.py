"""Published checkpoints and their ensembles give the recalls of the authors' code."""

import numpy as np
import pytest

from l2rm_jax.data.text import Vocabulary
from l2rm_jax.errors import ConfigError
from l2rm_jax.evaluate import evaluate_checkpoints
from l2rm_jax.evaluation.scoring import Scorer
from tests.published.checkpoint_files import data_config, golden, parts, save, tensors, write_data


@pytest.fixture
def test_data(tmp_path):
    arrays = golden("l_eval")
    split = [arrays[f"in/{name}"] for name in ("images", "captions", "lengths")]
    return arrays, write_data(tmp_path / "data", test=split)


@pytest.mark.slow
def test_recalls_of_checkpoints_and_ensembles(test_data, tmp_path, monkeypatch):
    arrays, directory = test_data
    sgr, saf = arrays.under("w_SGR/"), arrays.under("w_SAF/")

    # The golden captions are token numbers alone, without <start> and <end>.
    def encode(self, caption, sentences=None):
        return np.array([int(word[1:]) for word in caption.split()], np.int32)

    all_sims = []

    def record(*inputs):
        all_sims.append(similarities(*inputs))
        return all_sims[-1]

    similarities = Scorer.similarities
    monkeypatch.setattr(Vocabulary, "encode", encode)
    monkeypatch.setattr(Scorer, "similarities", record)
    # RCL's vocabulary ends with <mask>.
    embedding = np.pad(saf["txt_enc.embed.weight"], ((0, 1), (0, 0)))
    masked = {**saf, "txt_enc.embed.weight": embedding}
    config = data_config(directory)
    paths = [
        save(tmp_path / "a.pth.tar", sgr, net=tensors(sgr)),
        save(tmp_path / "b.pth.tar", masked, model=parts(masked)),
        save(tmp_path / "c.pth.tar", sgr, model_A=parts(sgr), model_B=parts(saf), opt=None),
    ]
    rows = evaluate_checkpoints(config, paths)
    a, b, c = paths
    names = [a, b, f"{c} (model_A)", f"{c} (model_B)", c, "mean of 3 checkpoints"]
    assert list(rows) == [*(f"{name}, custom" for name in names), "chance"]
    heads = ["SGR", "SAF", "SGR", "SAF", "SGRAF", "SGRAF"]
    for row, head in zip(list(rows.values())[:-1], heads, strict=True):
        for direction in ("i2t", "t2i"):
            keys = ("r1", "r5", "r10", "median", "mean")
            recalls = [row[f"{direction}_{key}"] for key in keys]
            np.testing.assert_allclose(recalls, arrays[f"out/{head}/{direction}"], rtol=1e-9)
    for sims, head in zip(all_sims, heads, strict=False):
        np.testing.assert_allclose(sims, arrays[f"out/{head}/sims"], rtol=0, atol=1e-5)
    for field in ("vocabulary", "path"):
        setattr(config.data, field, "")
        with pytest.raises(ConfigError, match=rf"--checkpoint requires data\.{field}"):
            evaluate_checkpoints(config, paths)
