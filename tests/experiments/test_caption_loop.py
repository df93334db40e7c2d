"""The PyTorch code that the benchmarks time computes the same as the authors' code."""

import argparse
import json
import sys

import jax
import numpy as np
import pytest

from tests.golden.fidelity.arrays import GOLDEN, Arrays
from tests.golden.fidelity.steps import NOISY

torch = pytest.importorskip("torch")
from experiments.bench import caption_loop, peer  # noqa: E402  (need torch)

torch.set_num_threads(1)  # around small matrices, threads wait for each other


def tensor(array: np.ndarray):
    return torch.from_numpy(np.array(array))


def pairs(arrays: Arrays, prefix: str = ""):
    names = (f"{prefix}{name}" for name in ("images", "captions", "lengths"))
    return caption_loop.Pairs(*(tensor(arrays[name]) for name in names))


def network(weights: Arrays, head: str, **fields) -> caption_loop.Network:
    vocabulary, word_dim = weights["txt_enc.embed.weight"].shape
    embed_dim, features = weights["img_enc.fc.weight"].shape
    model = caption_loop.Network(
        head,
        vocabulary=vocabulary,
        regions=len(weights["sim_enc.v_global_w.embedding_local.1.weight"]),
        features=features,
        word_dim=word_dim,
        embed_dim=embed_dim,
        sim_dim=weights["sim_enc.sim_eval_w.weight"].shape[1],
        **fields,
    )
    model.load_state_dict({name: tensor(x) for name, x in weights.items()})
    return model


@pytest.mark.parametrize("head", ["sgr", "saf"])
def test_scores_are_those_of_the_authors(head):
    arrays = Arrays.load(GOLDEN / f"bc_sim_{head.upper()}.npz")
    model, given = network(arrays.under("w/"), head), pairs(arrays, "in/")
    tokens = [row[:length] for row, length in zip(given.tokens, given.lengths, strict=True)]
    sims = caption_loop.score(model, given.images, tokens, given.lengths)
    np.testing.assert_allclose(sims, arrays["out/eval/sims"], atol=1e-5)


@pytest.mark.parametrize("head", ["sgr", "saf"])
def test_steps_are_those_of_the_authors(head):
    arrays = Arrays.load(GOLDEN / f"m_train_{head.upper()}.npz")
    opt, out, size = arrays.under("opt/"), arrays.under("out/"), len(arrays["in/imgs_queue0"])
    trainer = caption_loop.Trainer(
        network(arrays.under("w0/"), head, dropout=0.0),
        size,
        rho=float(opt["rho"]),
        epsilon=float(opt["reg"]),
        tau=float(opt["tau"]),
        margin=float(opt["margin"]),
        learning_rate=float(opt["lr"]),
        cost_learning_rate=float(opt["lr_cost"]),
        grad_clip=float(opt["grad_clip"]),
    )
    for iteration in range(3):
        given = arrays.under(f"in/{iteration}/")
        drawn = (given[name] for name in ("select_index", "key_img_idxs"))
        found = trainer.step(pairs(given, "clean_"), pairs(given, "noisy_"), *drawn)
        assert found["loss"] == pytest.approx(out["loss_per_iteration"][iteration], rel=1e-5)
        theirs = out["cost_loss_per_iteration"][iteration]
        assert found["loss_cost"] == pytest.approx(theirs, rel=1e-5 if iteration == 0 else 2e-3)
        theirs = out["grad_norm_before_clip"][iteration]
        assert found["grad_norm"] == pytest.approx(theirs, rel=1e-4)
    after = arrays.under("w_after/")
    for name, weight in trainer.network.state_dict().items():
        if not name.endswith(NOISY):
            np.testing.assert_allclose(weight, after[name], atol=1e-4, err_msg=name)


@pytest.mark.slow
@pytest.mark.skipif(jax.devices()[0].platform != "cpu", reason="compares on a CPU")
def test_both_are_timed(tmp_path, monkeypatch):
    file = tmp_path / "found.json"
    sizes = "--regions=3 --features=6 --embed_dim=8 --sim_dim=8 --batch=4 --images=3 --captions=6"
    flags = [*sizes.split(), "--head=saf", "--repeats=1", f"--json={file}"]
    monkeypatch.setattr(sys, "argv", ["peer", *flags])
    peer.main()
    found = json.loads(file.read_text())
    for name in ("step", "score"):
        ours, theirs = (found[f"{name}_{of}_s"]["median"] for of in ("ours", "torch"))
        assert found[f"{name}_ratio"] == pytest.approx(theirs / ours)
    sizes = argparse.Namespace(**found["sizes"])
    least = peer.scoring_operations(sizes) / (found["product_gflops"] * 1e9)
    assert found["score_bound"] == pytest.approx(found["score_torch_s"]["median"] / least)
