"""Encoders and heads against the reference's arrays."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax.losses.ranking import triplet_hardest
from l2rm_jax.models.encoders import GRU
from l2rm_jax.models.layers import l2_normalise
from l2rm_jax.recall import recalls
from l2rm_jax.torch_import import model_from_state_dict, variables_from_state_dict

HEADS = ["sgr", "saf"]


@partial(jax.jit, static_argnums=0)
def train_sims(model, variables, inputs):
    return model.apply(
        variables, *inputs, train=True, method="global_similarity", mutable=["batch_stats"]
    )


@partial(jax.jit, static_argnums=0, static_argnames="method")
def apply(model, variables, *inputs, method=None):
    return model.apply(variables, *inputs, method=method)


@pytest.fixture(params=HEADS)
def case(request, golden):
    arrays = golden(f"bc_sim_{request.param.upper()}")
    weights = arrays.under("w/")
    inputs = tuple(arrays[f"in/{name}"] for name in ("images", "captions", "lengths"))
    variables = variables_from_state_dict(weights)
    model = model_from_state_dict(weights, dropout=0.0, chunk=3)
    assert model.head == request.param
    return arrays, weights, model, variables, inputs


def test_import_fills_exactly_our_parameters(case):
    *_, model, variables, inputs = case
    fresh = jax.eval_shape(model.init, jax.random.key(0), *inputs)
    assert jax.tree.map(jnp.shape, fresh) == jax.tree.map(np.shape, variables)


def test_evaluation_mode(case):
    arrays, _, model, variables, (images, tokens, lengths) = case
    image_code = apply(model, variables, images, method="encode_images")
    text_code = apply(model, variables, tokens, lengths, method="encode_captions")
    close = {"rtol": 0, "atol": 1e-5}
    np.testing.assert_allclose(image_code.regions, arrays["out/eval/img_emb"], **close)
    np.testing.assert_allclose(text_code.words, arrays["out/eval/cap_emb"], **close)
    np.testing.assert_allclose(image_code.overall, arrays["out/eval/img_glo"], **close)
    np.testing.assert_allclose(text_code.overall, arrays["out/eval/cap_glo"], **close)
    sims = apply(model, variables, image_code, text_code, method="similarity")
    np.testing.assert_allclose(sims, arrays["out/eval/sims"], **close)
    np.testing.assert_allclose(np.diag(sims), arrays["out/eval/sims_individual"], **close)
    some = jax.tree.map(lambda x: x[:3], image_code)
    sims = apply(model, variables, some, text_code, method="similarity")
    np.testing.assert_allclose(sims, arrays["out/eval/sims_rect"], **close)


def test_training_mode_and_running_statistics(case):
    arrays, weights, model, variables, inputs = case
    sims, updated = train_sims(model, variables, inputs)
    np.testing.assert_allclose(sims, arrays["out/train/sims"], rtol=0, atol=1e-5)
    after = variables_from_state_dict({**weights, **arrays.under("out/train/bn_after/")})
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-5),
        updated["batch_stats"],
        after["batch_stats"],
    )


def test_gradients_of_every_parameter(case):
    arrays, weights, model, variables, inputs = case

    def loss(params):
        sims, _ = train_sims(model, {**variables, "params": params}, inputs)
        return triplet_hardest(sims, margin=0.2)

    value, grads = jax.jit(jax.value_and_grad(loss))(variables["params"])
    np.testing.assert_allclose(value, arrays["out/train/loss_max_violation"], rtol=1e-5)
    expected = variables_from_state_dict({**weights, **arrays.under("grad/")})["params"]
    # What the reference's float32 run differs from its float64 run by, spread over the array:
    # all there is of a gradient that is zero by construction.
    noise = arrays.under("grad_noise/")
    noise = {key: np.broadcast_to(noise.get(key, 0.0), x.shape) for key, x in weights.items()}
    noise = variables_from_state_dict(noise)["params"]
    jax.tree.map(
        lambda ours, theirs, noise: np.testing.assert_allclose(
            ours, theirs, rtol=0, atol=1e-4 * np.abs(theirs).max() + 4 * np.max(noise)
        ),
        grads,
        expected,
        noise,
    )


def test_encoders(golden):
    arrays = golden("a_encoders")
    weights = arrays.under("w/") | arrays.under("uni_w/")
    images, tokens, lengths = (arrays[f"in/{name}"] for name in ("images", "captions", "lengths"))
    linear = images @ arrays.under("w/")["img_enc.fc.weight"].T + weights["img_enc.fc.bias"]
    np.testing.assert_allclose(l2_normalise(linear), arrays["out/img_emb"], atol=1e-5)
    np.testing.assert_allclose(linear, arrays["out/img_emb_nonorm"], atol=1e-5)
    mask = (np.arange(tokens.shape[1]) < lengths[:, None]).astype(np.float32)
    embed_dim = weights["txt_enc.cap_rnn.weight_hh_l0"].shape[1]

    def run(source: str, suffix: str):
        w = arrays.under(source)
        name = "txt_enc.cap_rnn"
        params = {
            "input_kernel": w[f"{name}.weight_ih_l0{suffix}"].T,
            "input_bias": w[f"{name}.bias_ih_l0{suffix}"],
            "hidden_kernel": w[f"{name}.weight_hh_l0{suffix}"].T,
            "hidden_bias": w[f"{name}.bias_hh_l0{suffix}"],
        }
        gru = GRU(embed_dim, reverse=suffix == "_reverse")
        return gru.apply({"params": params}, w["txt_enc.embed.weight"][tokens], mask)

    both = (run("w/", "") + run("w/", "_reverse")) / 2
    np.testing.assert_allclose(both, arrays["out/cap_emb_nonorm"], atol=1e-5)
    np.testing.assert_allclose(l2_normalise(both), arrays["out/cap_emb"], atol=1e-5)
    one_way = l2_normalise(run("uni_w/", ""))
    np.testing.assert_allclose(one_way, arrays["out/cap_emb_uni"], atol=1e-5)


def test_evaluation_of_both_heads_and_their_mean(golden):
    arrays = golden("l_eval")
    inputs = tuple(arrays[f"in/{name}"] for name in ("images", "captions", "lengths"))
    per_image = inputs[1].shape[0] // inputs[0].shape[0]
    total = 0.0
    for name in ("SGR", "SAF"):
        weights = arrays.under(f"w_{name}/")
        model = model_from_state_dict(weights, dropout=0.0, chunk=7)
        sims = apply(model, variables_from_state_dict(weights), *inputs)
        np.testing.assert_allclose(sims, arrays[f"out/{name}/sims"], rtol=0, atol=1e-5)
        check_recalls(np.asarray(sims), per_image, arrays.under(f"out/{name}/"))
        total = total + np.asarray(sims)
    check_recalls(total / 2, per_image, arrays.under("out/SGRAF/"))


def check_recalls(sims, per_image, expected):
    row = recalls(sims, per_image)
    for direction in ("i2t", "t2i"):
        ours = [row[f"{direction}_{key}"] for key in ("r1", "r5", "r10", "median", "mean")]
        np.testing.assert_allclose(ours, expected[direction], rtol=1e-9)
