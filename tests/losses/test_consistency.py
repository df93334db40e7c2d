"""Labels from anchors and captions that images take over, against plain loops."""

import jax.numpy as jnp
import numpy as np
import pytest

from l2rm_jax.losses import consistency, purification

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


def consistencies(images, captions, anchors) -> list[float]:
    """One pair at a time; `anchors` are rows of IMAGES and CAPTIONS."""
    found = []
    for image, caption in zip(images, captions, strict=True):
        of_images = [image @ IMAGES[k] for k in anchors]
        of_captions = [caption @ CAPTIONS[k] for k in anchors]
        i, k = np.argmax(of_images), np.argmax(of_captions)
        found.append(ratio(of_images[i], of_captions[i]) + ratio(of_captions[k], of_images[k]))
    return found


@pytest.fixture(scope="module")
def order() -> tuple[np.ndarray, np.ndarray]:
    """Rows of the other pairs and of the anchors."""
    rest, anchors = consistency.order_by_sureness(SIMS, margin=MARGIN)
    return np.asarray(rest), np.asarray(anchors)


def test_anchors_are_the_pairs_that_keep_most_of_the_margin(order):
    hinges = np.maximum(MARGIN + SIMS - np.diagonal(SIMS)[:, None], 0) * ~np.eye(SIZE, dtype=bool)
    others = np.maximum(MARGIN + SIMS - np.diagonal(SIMS), 0) * ~np.eye(SIZE, dtype=bool)
    kept = np.maximum(MARGIN - (hinges.mean(1) + others.mean(0)) / 2, 0)
    assert (kept == 0).sum() > 1  # several pairs tie
    np.testing.assert_array_equal(np.concatenate(order), np.argsort(kept, kind="stable"))
    assert len(order[1]) == 3


def test_labels_of_matched_pairs(order):
    rest, anchors = order
    found = consistency.consistency(IMAGES, CAPTIONS, IMAGES[anchors], CAPTIONS[anchors])
    expected = consistencies(IMAGES, CAPTIONS, anchors)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    labels = 0.5 + np.array(expected) / 4
    labels = np.clip(np.where(labels <= 0.55, 0, labels), 0, 1)
    assert (labels == 0).any()
    aligned, shifted = labels.copy(), np.ones(SIZE)
    aligned[anchors] = 1
    for k, row in enumerate(rest):
        shifted[row] = labels[k]
    ours = consistency.matched_labels(found, anchors, smallest=0.55)
    np.testing.assert_allclose(ours, aligned, atol=1e-5)
    ours = consistency.misplaced_labels(found, rest, smallest=0.55)
    np.testing.assert_allclose(ours, shifted, atol=1e-5)
    assert np.abs(shifted - aligned).max() > 0.5


def test_labels_of_mismatched_pairs(order):
    anchors = order[1]
    expected = np.array(consistencies(OTHER_IMAGES, OTHER_CAPTIONS, anchors)) / 2
    assert (expected < 0).any() and (expected > 0.5).any()
    found = consistency.consistency(
        OTHER_IMAGES, OTHER_CAPTIONS, IMAGES[anchors], CAPTIONS[anchors]
    )
    np.testing.assert_allclose(
        consistency.mismatched_labels(found), np.where(expected <= 0.5, 0, expected), atol=1e-5
    )


def test_orthogonal_vectors_do_not_agree():
    x, y = np.eye(2, dtype=np.float32)
    found = consistency.consistency(x[None], x[None], y[None], y[None])
    np.testing.assert_array_equal(found, [0.0])


def test_an_image_takes_over_the_caption_of_the_most_similar_one():
    rows, cosines = purification.nearest(OTHER_IMAGES, IMAGES[:11])
    products = OTHER_IMAGES @ IMAGES[:11].T
    np.testing.assert_array_equal(rows, products.argmax(1))
    np.testing.assert_allclose(cosines, products.max(1), rtol=1e-6)
    labels = purification.rematched_labels(jnp.array([0.9, 0.9, 1]), jnp.array([0.5, 0.9, 0.5]))
    np.testing.assert_allclose(labels, [0, 0.81, 0.5], atol=1e-6)


def test_penalties_compare_pairs_with_swapped_ones_and_images_with_captions():
    cells = [(i, j) for i in range(SIZE) for j in range(SIZE)]
    expected = np.mean([(SIMS[i, j] - SIMS[j, i]) ** 2 for i, j in cells])
    assert float(purification.symmetry(SIMS)) == pytest.approx(expected, rel=1e-5)
    expected = np.mean([(IMAGES[i] @ IMAGES[j] - CAPTIONS[i] @ CAPTIONS[j]) ** 2 for i, j in cells])
    found = purification.structure(IMAGES, CAPTIONS)
    assert float(found) == pytest.approx(expected, rel=1e-4)
