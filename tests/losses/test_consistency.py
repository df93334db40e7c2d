"""Labels from anchors and captions that are taken over, against plain loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax.losses import consistency

SIZE, MARGIN = 23, 0.2
RNG = np.random.default_rng(0)
SIMS = RNG.uniform(0, 0.8, (SIZE, SIZE)).astype(np.float32) + 0.25 * np.eye(SIZE, dtype=np.float32)


def unit(features: int, rows: int = SIZE) -> np.ndarray:
    x = RNG.normal(0.4, 1, (rows, features)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


IMAGES, CAPTIONS = unit(6), unit(5)
IMAGES[7], CAPTIONS[9] = -IMAGES[7], -CAPTIONS[9]
OTHER_IMAGES, OTHER_CAPTIONS = unit(6), unit(5)


def ratio(x, y):
    return x / y if x / y < 1 else y / x


def agreement(images, captions, anchors) -> list[float]:
    """One pair at a time; `anchors` are rows of IMAGES and CAPTIONS."""
    found = []
    for image, caption in zip(images, captions, strict=True):
        of_images = [image @ IMAGES[k] for k in anchors]
        of_captions = [caption @ CAPTIONS[k] for k in anchors]
        i, k = np.argmax(of_images), np.argmax(of_captions)
        found.append(ratio(of_images[i], of_captions[i]) + ratio(of_captions[k], of_images[k]))
    return [each / 2 for each in found]


@pytest.fixture(scope="module")
def order():
    return consistency.anchor_order(SIMS, margin=MARGIN)


def test_anchors_are_the_pairs_that_keep_most_of_the_margin(order):
    hinges = np.maximum(MARGIN + SIMS - np.diagonal(SIMS)[:, None], 0) * ~np.eye(SIZE, dtype=bool)
    others = np.maximum(MARGIN + SIMS - np.diagonal(SIMS), 0) * ~np.eye(SIZE, dtype=bool)
    kept = np.maximum(MARGIN - (hinges.mean(1) + others.mean(0)) / 2, 0)
    assert (kept == 0).sum() > 1  # several pairs tie
    np.testing.assert_array_equal(order, np.argsort(-kept, kind="stable"))
    assert [consistency.anchor_count(n) for n in (9, 10, SIZE, 128)] == [1, 2, 3, 13]


def test_labels_of_matched_pairs(order):
    anchors = np.asarray(order)[:3]
    expected = 0.5 + np.array(agreement(IMAGES, CAPTIONS, anchors)) / 2
    expected = np.clip(np.where(expected <= 0.55, 0, expected), 0, 1)
    assert (expected == 0).any()
    aligned = expected.copy()
    aligned[anchors] = 1
    found = consistency.labels_of_matched(IMAGES, CAPTIONS, order, threshold=0.55)
    np.testing.assert_allclose(found, aligned, atol=1e-5)
    shifted = np.ones(SIZE)
    for k, row in enumerate(np.asarray(order)[3:]):
        shifted[row] = expected[k]
    found = consistency.labels_of_matched(IMAGES, CAPTIONS, order, threshold=0.55, aligned=False)
    np.testing.assert_allclose(found, shifted, atol=1e-5)
    assert np.abs(shifted - aligned).max() > 0.5


def test_labels_of_mismatched_pairs(order):
    anchors = np.asarray(order)[:3]
    expected = np.array(agreement(OTHER_IMAGES, OTHER_CAPTIONS, anchors))
    assert (expected < 0).any() and (expected > 0.5).any()
    of_anchors = IMAGES[anchors], CAPTIONS[anchors]
    found = consistency.agreement(OTHER_IMAGES, OTHER_CAPTIONS, *of_anchors)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    found = consistency.labels_of_mismatched(
        OTHER_IMAGES, OTHER_CAPTIONS, *of_anchors, threshold=0.5
    )
    np.testing.assert_allclose(found, np.where(expected <= 0.5, 0, expected), atol=1e-5)


def test_orthogonal_vectors_do_not_agree():
    x, y = np.eye(2, dtype=np.float32)
    found = consistency.agreement(x[None], x[None], y[None], y[None])
    np.testing.assert_array_equal(found, [0.0])


def test_an_image_takes_over_the_caption_of_the_most_similar_one():
    rows, cosines = consistency.nearest_image(OTHER_IMAGES, IMAGES[:11])
    products = OTHER_IMAGES @ IMAGES[:11].T
    np.testing.assert_array_equal(rows, products.argmax(1))
    np.testing.assert_allclose(cosines, products.max(1), rtol=1e-6)
    labels = consistency.labels_of_taken_over(
        jnp.array([0.9, 0.9, 1.0]), jnp.array([0.5, 0.9, 0.5])
    )
    np.testing.assert_allclose(labels, [0, 0.81, 0.5], atol=1e-6)


def test_labels_have_no_gradient(order):
    def total(images):
        label = consistency.labels_of_matched(images, CAPTIONS, order, threshold=0.5)
        return jnp.sum(label) + jnp.sum(consistency.nearest_image(images, images)[1])

    assert not jax.grad(total)(IMAGES).any()
