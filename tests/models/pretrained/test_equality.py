"""States, vectors, loss and gradients equal those of PyTorch's transformers (golden arrays)."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax.models.pretrained import TextTransformer, VisionTransformer
from l2rm_jax.pretrained.arrays import place_arrays
from tests.models.pretrained.golden import (
    KINDS,
    NOISE,
    places_of,
    read_bases,
    read_expected,
    read_parameters,
)

TAU = 0.1


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


@partial(jax.jit, static_argnums=0)
def encode(model, params, *inputs):
    """The output of a model in evaluation; compiled once for each model and shapes of inputs."""
    return model.apply({"params": params}, *inputs, False)


def encode_text(kind, expected, vector, remat=False, extra=0):
    base = read_bases(kind).text
    model = TextTransformer(base, vector=vector, remat=remat)
    tokens = np.pad(expected["ids"], ((0, 0), (0, extra)))
    return lambda params: encode(model, params, tokens, expected["lengths"])


def encode_images(kind, expected, vector):
    model = VisionTransformer(read_bases(kind).image, vector=vector)
    pixels = expected["pixels"].transpose(0, 2, 3, 1)
    return lambda params: encode(model, params, pixels)


def info_nce(one, other):
    logits = one @ other.T / TAU
    rows = jax.nn.log_softmax(logits), jax.nn.log_softmax(logits.T)
    return -sum(jnp.mean(jnp.diagonal(row)) for row in rows) / 2


def close(found, expected, noise):
    rounding = 2.0**-23 * np.abs(expected).max()  # of numbers of this size
    np.testing.assert_allclose(found, expected, rtol=0, atol=NOISE * max(float(noise), rounding))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_vectors(kind):
    expected, params = read_expected(kind), read_parameters(kind)
    vectors, lengths = encode_text(kind, expected, vector=True)(params["text_base"])
    assert vectors.shape[1] == 1 and (lengths == 1).all()
    noise = expected["noise/vectors"] / np.linalg.norm(expected["vectors"], axis=-1).min()
    close(vectors[:, 0], unit(expected["vectors"]), noise)
    if kind != "bert":
        vectors = encode_images(kind, expected, vector=True)(params["image_base"])
        norms = np.linalg.norm(expected["image_vectors"], axis=-1)
        noise = expected["noise/image_vectors"] / norms.min()
        close(vectors[:, 0], unit(expected["image_vectors"]), noise)


def test_states_of_a_bert_are_those_of_all_its_tokens():
    expected, params = read_expected("bert"), read_parameters("bert")
    states, lengths = encode_text("bert", expected, vector=False)(params["text_base"])
    np.testing.assert_array_equal(lengths, expected["lengths"])
    is_token = np.arange(states.shape[1]) < expected["lengths"][:, None]
    close(states[is_token], expected["states"][is_token], expected["noise/states"])
    assert not np.any(states[~is_token])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS[1:])
def test_states_of_dual_models_are_the_vector_and_then_words_or_patches(kind):
    """Through the same last layer as the vector, of unit length, as the importer has them."""
    expected, params = read_expected(kind), read_parameters(kind)
    states, counts = encode_text(kind, expected, vector=False)(params["text_base"])
    text = params["text_base"]["projection"]
    projected = unit(expected["states"] @ text["kernel"] + text.get("bias", 0.0))
    close(states[:, 0], unit(expected["vectors"]), 1e-5)
    words = projected[:, 1:] if kind == "clip" else projected
    ends = expected["ids"] == 1
    real = expected["lengths"] - 2 if kind == "clip" else (~ends).sum(axis=1)
    np.testing.assert_array_equal(counts, real + 1)
    for row, count in enumerate(real):
        close(states[row, 1 : count + 1], words[row, :count], 1e-5)
        assert not np.any(states[row, count + 1 :])
    states = encode_images(kind, expected, vector=False)(params["image_base"])
    close(states[:, 0], unit(expected["image_vectors"]), 1e-5)
    patches = expected["image_states"]
    if kind == "clip":
        norm = params["image_base"]["norm"]
        x = patches[:, 1:] - patches[:, 1:].mean(axis=-1, keepdims=True)
        x = x / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5) * norm["scale"] + norm["bias"]
        patches = x @ params["image_base"]["projection"]["kernel"]
    close(states[:, 1:], unit(patches), 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("remat", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_every_gradient(kind, remat):
    expected, params = read_expected(kind), read_parameters(kind)

    def loss(params):
        text = encode_text(kind, expected, vector=True, remat=remat)(params["text_base"])[0][:, 0]
        if kind == "bert":
            return info_nce(unit(expected["targets"]), text)
        return info_nce(
            encode_images(kind, expected, vector=True)(params["image_base"])[:, 0], text
        )

    value, gradients = jax.jit(jax.value_and_grad(loss))(params)
    close(value, expected["loss"], expected["noise/loss"])
    worst, noise = 0.0, 0.0
    for group, places in places_of(read_bases(kind)).items():
        golden = place_arrays(places, lambda name: expected[f"grad/{name}"])
        noises = place_arrays(
            places,
            lambda name: np.full_like(expected[f"grad/{name}"], expected[f"noise/grad/{name}"]),
        )
        assert jax.tree.structure(golden) == jax.tree.structure(gradients[group])
        leaves = zip(*map(jax.tree.leaves, (golden, noises, gradients[group])), strict=True)
        for one, spread, found in leaves:
            assert one.shape == found.shape
            largest = np.abs(one).max()
            if largest < 1e-6:  # key biases, which the softmax ignores
                np.testing.assert_allclose(found, one, rtol=0, atol=1e-6)
                continue
            worst = max(worst, np.abs(found - one).max() / largest)
            noise = max(noise, spread.max() / largest)
    print(f"{kind}: {worst:.1e}, PyTorch {noise:.1e}")
    assert worst <= NOISE * noise


@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_nothing(kind):
    """Neither more of it nor other ids in it."""
    expected, params = read_expected(kind), read_parameters(kind)["text_base"]
    states, counts = encode_text(kind, expected, vector=False)(params)
    wide, same = encode_text(kind, expected, vector=False, extra=3)(params)
    np.testing.assert_array_equal(counts, same)
    width = min(states.shape[1], wide.shape[1])
    np.testing.assert_allclose(wide[:, :width], states[:, :width], rtol=0, atol=2e-6)
    assert not np.any(wide[:, width:])
    if kind != "siglip":  # whose padding counts
        padding = np.arange(expected["ids"].shape[1]) >= expected["lengths"][:, None]
        other = {**expected, "ids": np.where(padding, 7, expected["ids"])}
        other = encode_text(kind, other, vector=False)(params)[0]
        np.testing.assert_array_equal(other, states)


def test_remat_keeps_less_memory():
    """The compiler says how much memory a gradient needs beyond its inputs and outputs."""
    base = read_bases("bert").text
    tokens, lengths = np.ones((64, 32), np.int32), np.full(64, 32, np.int32)
    params = read_parameters("bert")["text_base"]

    def temporary(remat):
        model = TextTransformer(base, vector=True, remat=remat)

        def loss(params):
            return jnp.sum(model.apply({"params": params}, tokens, lengths, False)[0] ** 4)

        compiled = jax.jit(jax.grad(loss)).lower(params).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporary(True) < 0.75 * temporary(False)
