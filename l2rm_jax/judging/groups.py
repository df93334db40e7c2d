"""Group images that are equal, near duplicates, or share a caption; find placeholder pictures.

A group is judged as a whole by models that saw none of it, and its members are never each other's
known mismatches. So a near duplicate in another fold can neither reveal nor hide a mismatch.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jaxtyping import Float, Int, UInt64
from scipy.sparse.csgraph import connected_components

from l2rm_jax.data.content_hashes import hash_keys
from l2rm_jax.jobs import LOCAL, Executor
from l2rm_jax.judging.content_keys import Keys, first_of_equals, map_rows
from l2rm_jax.linear.rows import BLOCK, Rows, padded_blocks, unit_rows

# A caption shared by this many images is boilerplate: listed, but not used for grouping.
BOILERPLATE = 10
_EXACT = 20_000  # images up to which all are compared; more are compared within buckets
_RARE = 0.999  # share of random image pairs that are less similar than near duplicates
_SAMPLE = 100_000  # random pairs
_NEAR = 3
_MOST = 0.1  # share of the images in one group, at most
_ALIKE = 0.9  # least cosine of near duplicates: clusters may be dense as well
_COPIES = 5  # a placeholder has at least this many images with the same picture,
_CAPTIONS = 10  # or at least this many captions,
_TIMES = 3  # and in either case at least this multiple of the median number of all pictures
_SAME_PICTURE = 0.5  # length of the mean of unit vectors: longer for captions of one real picture


class Repeated(NamedTuple):
    """A text stored with many images: `row` is the first of its captions."""

    row: int
    images: int


class Groups(NamedTuple):
    """Groups of near duplicates.

    Attributes:
      of_image: [images] smallest row of the image's group.
      key: [images] smallest key of an image of that group.
      near: [images, 3] rows of the most similar images, the most similar first.
      text: [pairs] smallest row of a caption with the same text.
      repeated: texts stored with many images, the most frequent first.
    """

    of_image: Int[np.ndarray, " images"]
    key: UInt64[np.ndarray, " images"]
    near: Int[np.ndarray, "images 3"]
    text: Int[np.ndarray, " pairs"]
    repeated: list[Repeated]


def find_groups(
    images: Rows,
    keys: Keys,
    image_of: Int[np.ndarray, " pairs"],
    seed: int,
    executor: Executor = LOCAL,
) -> Groups:
    """Find the groups.

    Images are in one group if they are equal, if they share a caption, or if they are near
    duplicates: each the most similar image of the other, with a cosine above 0.9 and above the
    cosine of 99.9% of random pairs. A text stored with many images is not used for grouping.

    Args:
      images: [images, di] vectors.
      keys: of the images and captions.
      image_of: row of the image that each caption is stored with.
      seed: seed of the samples.
      executor: compares the images.
    """
    near, likeness = nearest_images(images, keys.image, seed, executor)
    first = near[:, 0]
    rows = np.arange(len(first))
    rare = max(_rare_likeness(images, keys.image, seed), _ALIKE)
    mutual = (first[first] == rows) & (likeness > rare)
    text = first_of_equals(keys.said)
    with_text = np.unique(np.stack([text, image_of], axis=1), axis=0)
    counts = np.bincount(with_text[:, 0], minlength=len(text))  # images of each text
    linked = counts[with_text[:, 0]] < BOILERPLATE
    links = [
        np.stack([rows[mutual], first[mutual]], axis=1),
        np.stack([rows, first_of_equals(keys.image)], axis=1),
        # Images with the same text are linked through the image of its first caption.
        np.stack([with_text[linked, 1], image_of[with_text[linked, 0]]], axis=1),
    ]
    count, component = _components(links, len(rows))
    if np.bincount(component).max() > max(_MOST * len(rows), BOILERPLATE):
        # Short captions chain everything together: then they are no sign of duplicates.
        count, component = _components(links[:2], len(rows))
    least = np.full(count, np.iinfo(np.uint64).max, np.uint64)
    np.minimum.at(least, component, keys.image)
    often = np.flatnonzero(counts >= BOILERPLATE)
    often = often[np.argsort(-counts[often], kind="stable")]
    repeated = [Repeated(int(row), int(counts[row])) for row in often]
    return Groups(first_of_equals(component), least[component], near, text, repeated)


def _components(links: list[np.ndarray], images: int) -> tuple[int, Int[np.ndarray, " images"]]:
    """Return the number of connected components, and the component of each image."""
    pairs = np.concatenate(links)
    graph = scipy.sparse.coo_array((np.ones(len(pairs), bool), pairs.T), shape=(images, images))
    return connected_components(graph, directed=False)


def _rare_likeness(images: Rows, keys: UInt64[np.ndarray, " images"], seed: int) -> float:
    some = unit_rows(images[_sample(keys, _EXACT, seed)])
    i, j = np.random.default_rng(seed).integers(0, len(some), (2, _SAMPLE))
    different = np.array_split(np.stack([i, j])[:, i != j], _SAMPLE // BLOCK, axis=1)
    likeness = np.concatenate([np.einsum("nd,nd->n", some[i], some[j]) for i, j in different])
    return float(np.quantile(likeness, _RARE)) if len(likeness) else np.inf


def _sample(keys: UInt64[np.ndarray, " n"], most: int, seed: int) -> Int[np.ndarray, " m"]:
    """Draw the rows of a sample that does not depend on the order of the rows."""
    return np.argsort(hash_keys(keys, seed), kind="stable")[:most]


def nearest_images(
    images: Rows,
    keys: UInt64[np.ndarray, " images"],
    seed: int,
    executor: Executor = LOCAL,
) -> tuple[Int[np.ndarray, "images 3"], Float[np.ndarray, " images"]]:
    """Return the rows of the three most similar images, and the cosine of the first.

    More than 20,000 images are divided into buckets, each around a random image, and compared
    within their bucket. The number of buckets is the square root of the number of images. A near
    duplicate is nearly always in the same bucket.
    """
    total, shared = images.shape[0], executor.put(images)
    buckets = [np.arange(total)]
    if total > _EXACT:
        buckets = _buckets(images, shared, keys, seed, executor)
    near = np.zeros((total, _NEAR), np.int64)
    likeness = np.full(total, -np.inf, np.float32)
    calls = ((shared, rows) for rows in buckets)
    found = executor.map(_nearest_within, calls, like=(0, 0))
    for rows, values in zip(buckets, found, strict=True):
        near[rows], likeness[rows] = values
    return near, likeness


def _nearest_within(
    images: Rows, rows: Int[np.ndarray, " n"]
) -> tuple[Int[np.ndarray, "n 3"], Float[np.ndarray, " n"]]:
    """Compute `nearest_images` of some rows among themselves."""
    vectors = unit_rows(images[rows])
    size = -(-len(rows) // 512) * 512
    filled = np.pad(vectors, ((0, size - len(rows)), (0, 0)))
    near, likeness = np.zeros((len(rows), _NEAR), np.int64), np.empty(len(rows), np.float32)
    for at, count in padded_blocks(np.arange(len(rows)), 512):
        top, found = _most_similar(filled, vectors[at], at, len(rows))
        near[at[:count]] = rows[np.minimum(np.asarray(found)[:count], len(rows) - 1)]
        likeness[at[:count]] = np.asarray(top)[:count, 0]
    return near, likeness


def _buckets(
    images: Rows,
    shared: Any,
    keys: UInt64[np.ndarray, " images"],
    seed: int,
    executor: Executor,
) -> list[np.ndarray]:
    total = images.shape[0]
    count = round(total**0.5)
    centres = executor.put(unit_rows(images[_sample(keys, count, seed)]))
    nearest = map_rows(_nearest_centres, total, executor, shared, centres)
    order = np.argsort(nearest, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(nearest[order])) + 1)
    # Split crowded buckets, so that the work stays linear.
    return [cut for part in parts for cut in np.array_split(part, -(-len(part) // (8 * count)))]


def _nearest_centres(
    images: Rows, centres: Float[np.ndarray, "centres d"], start: int, stop: int
) -> Int[np.ndarray, " rows"]:
    blocks = padded_blocks(np.arange(start, stop), BLOCK)
    found = [np.asarray(_best(unit_rows(images[at]), centres))[:count] for at, count in blocks]
    return np.concatenate(found)


@jax.jit
def _best(vectors: jax.Array, centres: jax.Array) -> jax.Array:
    return jnp.argmax(jnp.matmul(vectors, centres.T, precision="highest"), axis=1)


@jax.jit
def _most_similar(
    all_vectors: jax.Array, vectors: jax.Array, own: jax.Array, count: int
) -> tuple[jax.Array, jax.Array]:
    """Find the most similar of the first `count` vectors, except the vector itself."""
    likeness = jnp.matmul(vectors, all_vectors.T, precision="highest")
    places = jnp.arange(len(all_vectors))[None]
    likeness = jnp.where((places == own[:, None]) | (places >= count), -jnp.inf, likeness)
    return tuple(jax.lax.top_k(likeness, _NEAR))


class Placeholder(NamedTuple):
    """A picture ("image not available") stored with many unrelated captions, none of which it fits.

    Left in, its pairs would merge many images into one group and widen the confidence interval.

    Attributes:
      row: row of the first image with this picture.
      images: number of images with this picture.
      pairs: number of captions stored with these images.
    """

    row: int
    images: int
    pairs: int


def find_placeholders(
    image_keys: UInt64[np.ndarray, " images"],
    captions: Rows,
    image_of: Int[np.ndarray, " pairs"],
) -> list[Placeholder]:
    """Find the placeholders, sorted by decreasing number of captions.

    Captions of one real picture are similar: the mean of their unit vectors, centred by the mean of
    all captions, is longer than 0.5. Captions of many pictures have a mean close to zero.

    Args:
      image_keys: equal for images with the same picture.
      captions: vectors of the captions.
      image_of: row of the image that each caption is stored with.
    """
    first = first_of_equals(image_keys)
    picture = first[image_of]
    copies = np.bincount(first[np.unique(image_of)], minlength=len(first))
    captions_of = np.bincount(picture, minlength=len(first))
    many_copies, many_captions = (
        max(fewest, _TIMES * np.median(numbers[numbers > 0]))
        for fewest, numbers in ((_COPIES, copies), (_CAPTIONS, captions_of))
    )
    found = np.flatnonzero((copies >= many_copies) | (captions_of >= many_captions))
    if not len(found):
        return []
    centre = unit_rows(captions[_some(np.arange(len(picture)))]).mean(axis=0)
    result = []
    for row in found:
        own = np.flatnonzero(picture == row)
        if _common_length(captions, own, image_of, centre) < _SAME_PICTURE:
            result.append(Placeholder(int(row), int(copies[row]), len(own)))
    return sorted(result, key=lambda each: -each.pairs)


def _some(rows: Int[np.ndarray, " n"]) -> Int[np.ndarray, " m"]:
    """Choose at most `BLOCK` rows, evenly spaced."""
    return rows[np.linspace(0, len(rows) - 1, min(BLOCK, len(rows))).astype(int)]


def _common_length(
    captions: Rows, rows: Int[np.ndarray, " n"], image_of: np.ndarray, centre: np.ndarray
) -> float:
    """Return the length of the mean direction of captions; siblings count as one caption."""
    rows = _some(rows)
    vectors = unit_rows(unit_rows(captions[rows]) - centre)
    images, position = np.unique(image_of[rows], return_inverse=True)
    if len(images) > 1:
        sums = np.zeros((len(images), vectors.shape[1]), np.float32)
        np.add.at(sums, position, vectors)
        vectors = unit_rows(sums)
    return float(np.linalg.norm(vectors.mean(axis=0)))
