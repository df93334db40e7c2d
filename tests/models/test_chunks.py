"""Chunks of captions: their size and width, arrays stored for the backward pass, and the sparse
gradient."""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax.models.cam import CAM
from l2rm_jax.models.chunks import captions_per_chunk, keep_for_backward, map_captions
from l2rm_jax.models.encoders import ImageCode, TextCode, region_products
from l2rm_jax.models.imram import IMRAM
from l2rm_jax.models.layers import l2_normalise
from l2rm_jax.models.omit import OMIT
from l2rm_jax.models.saf import SAF
from l2rm_jax.models.sgr import SGR

IMAGES = np.zeros((10, 36), np.float32)
TEXTS = np.zeros((12, 8), np.float32)
CAPTION = 6 * 10 * 8 * 64 * 4  # bytes of one caption with all images in the backward pass


def accelerator(memory: int | None) -> SimpleNamespace:
    stats = None if memory is None else {"bytes_limit": memory}
    return SimpleNamespace(platform="gpu", memory_stats=lambda: stats)


@pytest.mark.parametrize(
    ("memory", "expected"), [(16 * 6 * CAPTION, 6), (16 * 99 * CAPTION, 12), (1, 1), (None, 12)]
)
def test_on_an_accelerator_a_chunk_is_what_its_memory_holds(memory, expected):
    assert captions_per_chunk(0, 64, IMAGES, TEXTS, accelerator(memory)) == expected


@pytest.mark.parametrize(
    ("captions", "held", "expected"),
    [(128, 112, 64), (128, 19, 16), (100, 49, 25), (127, 112, 112)],
)
def test_chunks_have_one_size_if_a_large_one_divides_the_captions(captions, held, expected):
    texts = np.zeros((captions, 8), np.float32)
    device = accelerator(16 * held * CAPTION)
    assert captions_per_chunk(0, 64, IMAGES, texts, device) == expected


@pytest.mark.parametrize(
    ("images", "captions", "expected"),
    [(10, 12, 12), (200, 12, 6), (1000, 12, 2), (10**5, 12, 2), (1000, 11, 2), (10, 1, 2)],
)
def test_on_a_cpu_a_chunk_is_what_the_cache_holds_and_at_least_two(images, captions, expected):
    images = np.zeros((images, 36), np.float32)
    texts = np.zeros((captions, 8), np.float32)
    assert captions_per_chunk(0, 64, images, texts) == expected


HEADS = {
    "sgr": partial(SGR, 6, 2),
    "saf": partial(SAF, 6),
    "cam": partial(CAM, "partial"),
    "cam, i2t": partial(CAM, "partial", "i2t"),
    "imram": partial(IMRAM, 3, 9.0),
    "omit": partial(OMIT, "prompt", "norm", 0.02),
}


def code(kind: type, rng: np.random.Generator, counts: list[int], width: int):
    """Unit vectors of a few regions or words, zero after the last."""
    mask = np.arange(width) < np.array(counts)[:, None]
    raw = rng.normal(size=(*mask.shape, 8)) * mask[..., None]
    overall = l2_normalise(rng.normal(size=(len(counts), 8)))
    norms = np.linalg.norm(raw, axis=-1)
    return jax.tree.map(jnp.float32, kind(l2_normalise(raw), mask, overall, norms))


LENGTHS = [2, 6, 1, 3, 6, 4, 5]  # of the captions


@partial(jax.jit, static_argnums=0)
def with_gradients(head, images: ImageCode, texts: TextCode, cotangents):
    """Similarities, running statistics and the gradients for these cotangents."""
    variables = head.init(jax.random.key(0), images, texts, True)

    def loss(params, images, texts):
        applied = {**variables, "params": params}
        sims, updated = head.apply(applied, images, texts, True, mutable=["batch_stats"])
        return jnp.sum(sims * cotangents), (sims, updated)

    gradient = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)
    return gradient(variables.get("params", {}), images, texts)


def codes(lengths: list[int] = LENGTHS) -> tuple[ImageCode, TextCode]:
    """Four images and seven captions."""
    rng = np.random.default_rng(0)
    images, texts = code(ImageCode, rng, [3, 5, 1, 4], 5), code(TextCode, rng, lengths, 6)
    return images.replace(products=region_products(images.regions)), texts


def assert_close(found, expected):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, 1e-4, 1e-5), found, expected)


COTANGENTS = np.random.default_rng(1).normal(size=(4, 7))


@pytest.mark.slow
@pytest.mark.parametrize("head", HEADS)
def test_scores_and_gradients_do_not_depend_on_the_chunk(head):
    """Chunks of three, the last one filled up, or one chunk; captions in any order."""
    for lengths in (LENGTHS, sorted(LENGTHS)):
        inputs = (*codes(lengths), COTANGENTS)
        expected = with_gradients(HEADS[head](chunk=7), *inputs)  # one chunk
        assert_close(with_gradients(HEADS[head](chunk=3), *inputs), expected)


@pytest.mark.slow
@pytest.mark.parametrize("head", ["sgr", "cam"])
def test_arrays_that_do_not_fit_are_recomputed_with_the_same_gradients(head, monkeypatch):
    inputs = (HEADS[head](chunk=2), *codes(), COTANGENTS)

    def found() -> tuple:
        return with_gradients(*inputs), stored(with_gradients.trace(*inputs).jaxpr)

    expected, kept = found()
    monkeypatch.setattr("l2rm_jax.models.chunks.fits", lambda _: False)
    jax.clear_caches()  # of programs that store arrays
    again, less = found()
    jax.clear_caches()  # of those that store none
    assert_close(again, expected)
    # Cosines of seven captions of six words with four images of five regions.
    assert kept - less >= 7 * 6 * 4 * 5


def stored(jaxpr) -> int:
    """Count the numbers that the loops of a program return."""
    loops = [eqn for eqn in all_equations(jaxpr.jaxpr) if eqn.primitive.name == "scan"]
    return sum(var.aval.size for eqn in loops for var in eqn.outvars)


def all_equations(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jax.tree.leaves(list(eqn.params.values()), is_leaf=is_jaxpr):
            if is_jaxpr(inner):
                yield from all_equations(getattr(inner, "jaxpr", inner))


def is_jaxpr(x) -> bool:
    return hasattr(x, "eqns")


KERNEL = jnp.arange(40.0).reshape(8, 5) / 10


def waves(kernel, images: ImageCode, texts: TextCode):
    """A score whose product with the kernel is worth storing."""
    made = keep_for_backward(texts.words @ kernel, 1, texts)
    found = jnp.einsum("clk,clk,cl->c", jnp.sin(made), jnp.cos(made), texts.mask)
    return found * images.regions.sum()


def total(*inputs):
    return jnp.sum(map_captions(waves, *inputs, chunk=2) ** 2)


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [[1, 2, 3], [6, 6, 1], [4, 3, 5, 2], [6, 5, 5, 6]])
def test_gradients_are_those_of_the_plain_score(lengths):
    """In float64; masks are constants."""
    with jax.enable_x64(True):
        inputs = jax.tree.map(np.float64, (KERNEL, *codes(lengths)))
        found = jax.value_and_grad(total, (0, 1, 2))(*inputs)
        plain = jax.value_and_grad(lambda *inputs: jnp.sum(waves(*inputs) ** 2), (0, 1, 2))
        value, gradients = plain(*inputs)
        constant = (code.replace(mask=0 * code.mask) for code in gradients[1:])
        expected = value, (gradients[0], *constant)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, 1e-9, 1e-9), found, expected)


@pytest.mark.parametrize(("fit", "expected"), [(True, 3), (False, 4)])
def test_a_stored_product_is_not_computed_again(fit, expected, monkeypatch):
    """The product and two for its gradients; one more where it is not stored. For both widths."""
    monkeypatch.setattr("l2rm_jax.models.chunks.fits", lambda _: fit)
    gradient = jax.jit(lambda *inputs: jax.grad(total, (0, 2))(*inputs))
    compiled = gradient.lower(KERNEL, *codes()).compile().as_text()
    assert compiled.count(" dot(") == 2 * expected


@pytest.mark.parametrize("head", ["sgr", "omit"])
def test_chunks_do_not_store_their_inputs(head):
    """No loop returns a copy of the images for each chunk."""
    inputs = (HEADS[head](chunk=2), *codes(), COTANGENTS)
    jaxpr = with_gradients.trace(*inputs).jaxpr
    images = (4, 5 + (head == "omit"), 8)
    loops = [eqn for eqn in all_equations(jaxpr.jaxpr) if eqn.primitive.name == "scan"]
    shapes = [var.aval.shape for eqn in loops for var in eqn.outvars]
    assert images in shapes  # their gradient, a sum over chunks
    assert not any(len(shape) == 4 and shape[1:] == images for shape in shapes)


PAIRWISE = {
    **{name: HEADS[name] for name in ("sgr", "cam", "omit", "imram")},
    "omit, inter": partial(OMIT, "partial", "inter", 0.02),
}


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("head", PAIRWISE)
def test_a_sparse_gradient_is_the_dense_one(head, share):
    """None, some (two images of a caption, two captions of an image) and all are not zero."""
    cotangents = np.where(
        np.random.default_rng(2).uniform(size=COTANGENTS.shape) < share, COTANGENTS, 0.0
    )
    expected = with_gradients(PAIRWISE[head](chunk=2), *codes(), cotangents)
    sparse = PAIRWISE[head](chunk=2, sparse_gradient=True)
    assert_close(with_gradients(sparse, *codes(), cotangents), expected)


@pytest.mark.slow
def test_pairs_without_a_cotangent_are_not_visited():
    """The gradient of seven pairs, a whole turn, is finite where another pair's would not be."""
    cotangents = np.zeros((4, 7))
    cotangents[[0, 0, 2, 2, 2, 3, 3], [0, 1, 1, 2, 6, 4, 5]] = 1.0
    broken = np.zeros((4, 1, 1))
    broken[1] = np.nan
    images, texts = codes()
    images = images.replace(regions=images.regions + broken)
    for sparse in (False, True):
        head = HEADS["sgr"](chunk=2, sparse_gradient=sparse)
        _, (of_params, _, _) = with_gradients(head, images, texts, cotangents)
        finite = all(np.isfinite(x).all() for x in jax.tree.leaves(of_params))
        assert finite == sparse
