"""RCL Fig. 4: the kinds of similarities, kept after each epoch of a run and drawn."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from experiments.figure import epoch_file
from experiments.papers import plot_similarities
from l2rm_jax.errors import DataError
from l2rm_jax.run.config_file import load_config, with_changes
from tests.tiny import write_vectors


def test_kinds_of_similarities():
    """Pairs 0 and 1 are of image 0, 2 of image 1; the captions of images 0 and 1 are swapped."""
    pairs = SimpleNamespace(caption_image=np.array([0, 0, 1]), stored_image=np.array([0, 1, 0]))
    rows = np.array([[0, 1, 2], [1, 2, 0], [2, 0, 1]])  # the captions of each pair's batch
    found = np.argmax(plot_similarities.kinds(pairs, rows), axis=0)
    true_positive, false_positive, true_negative, false_negative = range(4)
    np.testing.assert_array_equal(
        found,
        [
            [true_positive, false_negative, true_negative],
            [false_positive, false_negative, true_negative],
            [false_positive, false_negative, false_negative],
        ],
    )


@pytest.mark.slow
def test_a_run_keeps_and_draws_three_rows(tmp_path, monkeypatch):
    data, workdir = write_vectors(tmp_path / "data", train=20), tmp_path / "run"
    settings = {
        "data.path": str(data), "method": "rcl", "mismatch.rate": 0.6, "model.embed_dim": 8,
        "train.batch_size": 20, "train.warmup_epochs": 0, "train.epochs": 3,
    }  # fmt: skip
    words = [word for item in settings.items() for word in ("--set", "{}={}".format(*item))]
    command = ["plot_similarities", "--config=embeddings", f"--workdir={workdir}", *words]
    monkeypatch.setattr(sys, "argv", [*command, f"--out={tmp_path}"])
    plot_similarities.main()
    assert (tmp_path / "similarities.png").read_bytes().startswith(b"\x89PNG")

    config = with_changes(load_config("embeddings"), settings)
    figure = plot_similarities.plot(config, workdir)
    first, last = (epoch_file(workdir, "similarities", epoch) for epoch in (1, 3))
    with np.load(last) as kept:
        counts = dict(kept)
    matched = int(counts["true positives"].sum())
    assert 0 < matched < 100 == matched + counts["false positives"].sum()
    negatives = counts["true negatives"].sum() + counts["false negatives"].sum()
    assert negatives == 100 * 20 - 100  # of batches of 20 pairs
    assert (counts["positive pairs"].sum(), counts["negative pairs"].sum()) == (30, 5 * 30)
    for axes, kind in zip(figure.axes[8].patches, plot_similarities.DEV_KINDS, strict=True):
        np.testing.assert_allclose(axes.get_data().values, counts[kind] / counts[kind].sum())

    first.unlink()
    with pytest.raises(DataError, match=r"epoch1\.npz: no such file"):
        plot_similarities.plot(config, workdir)
