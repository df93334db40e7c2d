"""Groups of images against naive comparisons."""

import numpy as np

from l2rm_jax.judging import groups
from l2rm_jax.judging.content_keys import Keys, text_keys, vector_keys
from l2rm_jax.judging.groups import find_groups, nearest_images


def make(images=200, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((images, 16)).astype(np.float32)


def naive_nearest(vectors):
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    likeness = unit @ unit.T
    np.fill_diagonal(likeness, -np.inf)
    return np.argsort(-likeness, axis=1)[:, :3]


def test_nearest_images_against_all_products():
    vectors = make()
    near, _ = nearest_images(vectors, vector_keys(vectors), seed=0)
    np.testing.assert_array_equal(near, naive_nearest(vectors))


def test_buckets_find_near_duplicates(monkeypatch):
    vectors = make(600)
    vectors[300:] = vectors[:300] + 1e-3 * make(300, 1)
    monkeypatch.setattr(groups, "_EXACT", 100)
    near, likeness = nearest_images(vectors, vector_keys(vectors), seed=0)
    twin = (np.arange(600) + 300) % 600
    assert (near[:, 0] == twin).mean() > 0.99 and (likeness > 0.99).mean() > 0.99


def test_what_makes_a_group():
    vectors = make()
    vectors[1] = vectors[0]  # the same image
    vectors[3] = vectors[2] + 1e-3  # a near duplicate
    texts = [f"text {row}" for row in range(200)]
    texts[5] = "  TEXT \u0034"  # says what caption 4 says
    for row in range(20, 40):
        texts[row] = "no caption"
    said = text_keys(texts)
    found = find_groups(vectors, Keys(vector_keys(vectors), said, said), np.arange(200), seed=0)
    for one, other in ((0, 1), (2, 3), (4, 5)):
        assert found.of_image[one] == found.of_image[other]
    assert len(np.unique(found.of_image[20:40])) > 15  # a text of many images groups none
    [repeated] = found.repeated
    assert repeated.row == 20 and repeated.images == 20
    assert found.text[5] == 4 and found.text[39] == 20
