"""Runs that start from a published checkpoint."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from l2rm_jax.errors import ConfigError, L2RMError
from l2rm_jax.published.adopt import adopt_checkpoint
from l2rm_jax.published.conversion import variables_from_state_dict
from tests.published.checkpoint_files import (
    data_config,
    golden,
    options,
    parts,
    save,
    tensors,
    write_data,
)

ROOT = Path(__file__).resolve().parents[2]
FC = "img_enc.fc.weight"


@pytest.fixture
def train_data(tmp_path):
    arrays = golden("l_eval")
    images, tokens, lengths = (arrays[f"in/{name}"] for name in ("images", "captions", "lengths"))
    tokens, lengths = np.maximum(tokens, 4), np.minimum(lengths, 6)  # one bucket to compile for
    splits = {"train": slice(0, 12), "dev": slice(9, 13), "test": slice(0, 13)}
    parts = {
        name: (images[s], tokens[5 * s.start : 5 * s.stop], lengths[5 * s.start : 5 * s.stop])
        for name, s in splits.items()
    }
    return write_data(tmp_path / "data", **parts)


def test_a_refused_checkpoint_leaves_no_trace(train_data, tmp_path):
    weights = golden("m_train_SAF").under("w_after/")
    wide = {**weights, FC: np.pad(weights[FC], ((0, 0), (0, 1)))}
    config = data_config(train_data)
    cases = [
        ({"model_A": parts(weights), "model_B": parts(weights)}, "holds 2 networks .*, expected 1"),
        (
            {"model": parts(wide), "opt": None},
            "found images of 36 regions x 12 .* expected 36 x 13",
        ),
        ({"model": parts(weights), "opt": options(wide)}, "the options say img_dim = 13"),
    ]
    for content, message in cases:
        path = save(tmp_path / "a.pth.tar", weights, **content)
        with pytest.raises(L2RMError, match=message):
            adopt_checkpoint(config, path, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="expected a new or an empty directory"):
        adopt_checkpoint(config, path, train_data)


def main(directory: Path, *arguments: str) -> subprocess.CompletedProcess:
    """Run the command line in a directory."""
    words = [sys.executable, "-m", "l2rm_jax.main", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(words, cwd=directory, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_a_run_goes_on_from_a_checkpoint(train_data, tmp_path):
    arrays = golden("m_train_SAF")
    weights, learned = arrays.under("w_after/"), arrays.under("w_cost_after/")
    path, workdir = tmp_path / "a.pth.tar", tmp_path / "run"
    save(path, weights, net=tensors(weights), cost_function=tensors(learned))
    flags = [
        "--config=f30k",
        "--config.evaluation.protocol=custom",
        f"--config.data.path={train_data}",
        f"--config.data.vocabulary={train_data / 'vocabulary.json'}",
        f"--checkpoint={path}",
    ]
    sizes = ["--config.train.batch_size=20", "--config.train.epochs=1"]
    done = main(tmp_path, "--mode=adopt", *flags, *sizes, f"--workdir={workdir}")
    assert done.returncode == 0, done.stderr
    assert f"{path}, validation" in " ".join(done.stdout.split())

    config = json.loads((workdir / "config.json").read_text())
    assert config["model"]["head"] == "saf" and config["model"]["embed_dim"] == 24
    [adopted] = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    assert adopted["kind"] == "adopt" and adopted["checkpoint"] == str(path)
    state = ocp.StandardCheckpointer().restore(workdir / "checkpoints" / "best" / "0" / "state")
    expected = variables_from_state_dict(weights)
    for name in ("params", "batch_stats"):
        jax.tree.map(np.testing.assert_array_equal, state[name], expected[name])
    np.testing.assert_array_equal(state["own"]["cost"]["kernel"], learned["fc.weight"].T)
    np.testing.assert_array_equal(state["own"]["cost"]["bias"], learned["fc.bias"])
    optimisers = jax.tree.leaves((state["opt_state"], state["own"]["cost_opt"]))
    assert optimisers and not any(np.any(x) for x in optimisers)

    done = main(tmp_path, f"--workdir={workdir}")
    assert done.returncode == 0, done.stderr
    results = json.loads((workdir / "results.json").read_text())
    assert 0 < results["rsum"] < 600 and results["head"] == "saf"
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    kinds = [(line["kind"], line.get("epoch")) for line in lines if line["kind"] != "warning"]
    assert kinds[0] == ("adopt", None) and kinds[-1] == ("epoch", 6)  # after five of warm-up
