"""How many captions meet all images at once, and the way back through few pairs alone."""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax.models.cam import CAM
from l2rm_jax.models.chunks import captions_at_once, fits, widths
from l2rm_jax.models.encoders import ImageCode, TextCode, region_products
from l2rm_jax.models.layers import l2_normalise
from l2rm_jax.models.omit import OMIT
from l2rm_jax.models.saf import SAF
from l2rm_jax.models.sgr import SGR

IMAGES = jax.ShapeDtypeStruct((10, 36), "float32")
TEXTS = jax.ShapeDtypeStruct((12, 8), "float32")
CAPTION = 6 * 10 * 8 * 64 * 4  # bytes that one caption takes with all images


def accelerator(memory: int | None) -> SimpleNamespace:
    stats = None if memory is None else {"bytes_limit": memory}
    return SimpleNamespace(platform="gpu", memory_stats=lambda: stats)


@pytest.mark.parametrize(
    ("memory", "expected"), [(16 * 6 * CAPTION, 6), (16 * 99 * CAPTION, 12), (1, 1), (None, 12)]
)
def test_an_accelerator_takes_the_captions_that_its_memory_holds(memory, expected):
    assert captions_at_once(0, 64, IMAGES, TEXTS, accelerator(memory)) == expected


@pytest.mark.parametrize(
    ("captions", "held", "expected"),
    [(128, 112, 64), (128, 19, 16), (100, 49, 25), (127, 112, 112)],
)
def test_an_accelerator_takes_parts_of_one_size_where_there_are_some(captions, held, expected):
    texts = jax.ShapeDtypeStruct((captions, 8), "float32")
    device = accelerator(16 * held * CAPTION)
    assert captions_at_once(0, 64, IMAGES, texts, device) == expected


@pytest.mark.parametrize(
    ("images", "captions", "expected"),
    [(10, 12, 12), (200, 12, 6), (1000, 12, 2), (10**5, 12, 2), (1000, 11, 2), (10, 1, 2)],
)
def test_a_cpu_takes_what_its_caches_hold_and_at_least_two(images, captions, expected):
    images = jax.ShapeDtypeStruct((images, 36), "float32")
    texts = jax.ShapeDtypeStruct((captions, 8), "float32")
    assert captions_at_once(0, 64, images, texts) == expected


@pytest.mark.parametrize(("head", "numbers"), [("sgr", 8), ("saf", 8), ("cam", 5), ("omit", 5)])
def test_heads_that_make_no_vectors_take_more_captions(head, numbers, monkeypatch):
    """So many numbers a word and image: a vector as long as theirs, or one for each region."""
    asked = []

    def captions_of(_, numbers, *others):
        asked.append(numbers)
        return 3

    monkeypatch.setattr("l2rm_jax.models.chunks.captions_at_once", captions_of)
    jax.eval_shape(partial(with_gradients, HEADS[head](chunk=0)), *codes(), SLOPES)
    assert asked and all(found == numbers + (head == "omit") for found in asked)


def test_what_is_asked_for_anywhere():
    for device in (None, accelerator(1)):
        assert captions_at_once(7, 64, IMAGES, TEXTS, device) == 7


@pytest.mark.parametrize(
    ("device", "most"), [(None, 2**28), (accelerator(2**36), 2**31), (accelerator(None), 2**29)]
)
def test_what_a_head_may_keep(device, most):
    assert fits(most, device) and not fits(most + 1, device)


@pytest.mark.parametrize(
    ("length", "expected"), [(1, [1]), (5, [4, 5]), (8, [4, 8]), (20, [12, 16, 20])]
)
def test_widths(length, expected):
    assert widths(length) == expected


HEADS = {
    "sgr": partial(SGR, 6, 2),
    "saf": partial(SAF, 6),
    "cam": partial(CAM, "partial"),
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
def with_gradients(head, images: ImageCode, texts: TextCode, slopes):
    """Similarities, running statistics and the gradients of all similarities times their slopes."""
    variables = head.init(jax.random.key(0), images, texts, True)

    def loss(params, images, texts):
        applied = {**variables, "params": params}
        sims, updated = head.apply(applied, images, texts, True, mutable=["batch_stats"])
        return jnp.sum(sims * slopes), (sims, updated)

    gradient = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)
    return gradient(variables.get("params", {}), images, texts)


def codes(lengths: list[int] = LENGTHS) -> tuple[ImageCode, TextCode]:
    """Four images and seven captions."""
    rng = np.random.default_rng(0)
    images, texts = code(ImageCode, rng, [3, 5, 1, 4], 5), code(TextCode, rng, lengths, 6)
    return images.replace(products=region_products(images.regions)), texts


def assert_close(found, expected):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, 1e-4, 1e-5), found, expected)


SLOPES = np.random.default_rng(1).normal(size=(4, 7))


@pytest.mark.parametrize("head", HEADS)
def test_scores_and_gradients_do_not_depend_on_the_captions_at_once(head):
    """Two or three, each padded to what it needs and fewer in the last, or all; in any order."""
    for lengths, chunks in ((LENGTHS, (2, 3)), (sorted(LENGTHS), (2,))):
        inputs = (*codes(lengths), SLOPES)
        expected = with_gradients(HEADS[head](chunk=7), *inputs)  # padded to the longest
        for chunk in chunks:
            assert_close(with_gradients(HEADS[head](chunk=chunk), *inputs), expected)


@pytest.mark.parametrize("head", ["sgr", "saf", "cam"])
def test_where_nothing_can_be_kept_it_is_not_and_gradients_are_the_same(head, monkeypatch):
    inputs = (HEADS[head](chunk=2), *codes(), SLOPES)

    def found() -> tuple:
        return with_gradients(*inputs), stored(with_gradients.trace(*inputs).jaxpr)

    expected, kept = found()
    monkeypatch.setattr("l2rm_jax.models.chunks.fits", lambda _: False)
    jax.clear_caches()  # of programs that keep what fits
    again, less = found()
    jax.clear_caches()  # of those that keep nothing
    assert_close(again, expected)
    # Of six captions in chunks of two: cosines of four images with five regions, six words each.
    assert kept - less >= 6 * 4 * 5 * 6


def stored(jaxpr) -> int:
    """Numbers that the loops of a program hand on."""
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


PAIRWISE = {
    **{name: HEADS[name] for name in ("sgr", "cam", "omit")},
    "omit, inter": partial(OMIT, "partial", "inter", 0.02),
}


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("head", PAIRWISE)
def test_gradients_through_few_pairs_are_those_through_all(head, share):
    """None, some (two images of a caption, two captions of an image) and all have a slope."""
    slopes = np.where(np.random.default_rng(2).uniform(size=SLOPES.shape) < share, SLOPES, 0.0)
    expected = with_gradients(PAIRWISE[head](chunk=2), *codes(), slopes)
    assert_close(
        with_gradients(PAIRWISE[head](chunk=2, sparse_gradient=True), *codes(), slopes), expected
    )


def test_pairs_without_a_slope_are_not_visited():
    """The gradient of seven pairs, a whole turn, is finite where another pair's would not be."""
    slopes = np.zeros((4, 7))
    slopes[[0, 0, 2, 2, 2, 3, 3], [0, 1, 1, 2, 6, 4, 5]] = 1.0
    broken = np.zeros((4, 1, 1))
    broken[1] = np.nan
    images, texts = codes()
    images = images.replace(regions=images.regions + broken)
    for sparse in (False, True):
        _, (of_params, _, _) = with_gradients(
            HEADS["sgr"](chunk=2, sparse_gradient=sparse), images, texts, slopes
        )
        finite = all(np.isfinite(x).all() for x in jax.tree.leaves(of_params))
        assert finite == sparse
