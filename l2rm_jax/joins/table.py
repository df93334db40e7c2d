"""Describe the rows of a table: vectors in principal components, scenes, and weights of rows.

Rows are not independent: captions of one image, near-duplicate neighbours and equal captions say
nearly the same, so together they count as little more than one row.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float32, Int

from l2rm_jax.joins import keys
from l2rm_jax.linear.directions import symmetric_directions
from l2rm_jax.linear.rows import BLOCK, Rows, unit_rows

IMAGE_COMPONENTS, CAPTION_COMPONENTS = 96, 160
_SAMPLED = 50_000  # most vectors that principal components are fitted to
_SCENE = 0.8  # cosine of consecutive images from which they are one scene
_ALIKE = 0.7  # correlation of the evidence of two rows of one scene


@dataclass(frozen=True, eq=False)
class Table:
    """Rows in the order of the user's table, and images in the order in which they are listed.

    Attributes:
      images, captions: principal components of the vectors.
      stored: image of each row.
      texts: captions as texts; None without texts.
      groups: group of each row, as numbers; None without groups.
      ranks: place of each image in orders of the ids.
      numbers: the number in the id of each image, all different; None without such numbers.
      collisions: numbers of keys that several ids share.
      keyed: image of each row by the user's keys of captions, -1 for none.
      lengths: characters and words of each caption.
      scene: number of the group of near-duplicate neighbours of each image.
      said_weight: weight of each row by the rows with an equal caption, 1 without such rows.
      stored_weight: the same, by the rows of its scene too.
      usual: usual number of captions per image.
    """

    images: Float32[np.ndarray, "I p"]
    captions: Float32[np.ndarray, "P q"]
    stored: Int[np.ndarray, " P"]
    texts: list[str] | None
    groups: Int[np.ndarray, " P"] | None
    ranks: dict[str, Int[np.ndarray, " I"]]
    numbers: list[int] | None
    collisions: dict[str, Int[np.ndarray, " I"]]
    keyed: dict[str, Int[np.ndarray, " P"]]
    lengths: dict[str, Int[np.ndarray, " P"]]
    scene: Int[np.ndarray, " I"]
    said_weight: Float32[np.ndarray, " P"]
    stored_weight: Float32[np.ndarray, " P"]
    usual: int

    def __len__(self) -> int:
        return len(self.stored)

    @property
    def siblings(self) -> float:
        """Number of rows that say as much as one independent row."""
        return float(1 / self.stored_weight.mean())


def make_table(
    v: Float32[np.ndarray, "I p"],
    t: Float32[np.ndarray, "P q"],
    stored: Int[np.ndarray, " P"],
    ids: list[str] | None = None,
    texts: list[str] | None = None,
    caption_ids: list[str] | None = None,
    groups: Int[np.ndarray, " P"] | None = None,
) -> Table:
    """Describe the rows of a table of `principal` components, and read its ids and texts."""
    numbers = None if ids is None else keys.numbers_of(ids)
    lengths = {}
    if texts is not None:
        lengths["by length"] = np.array([len(x) for x in texts])
        lengths["by number of words"] = np.array([len(x.split()) for x in texts])
    scene, said = _scenes(v), _numbered(t)
    said_weight, counts = shared_weights(said, said), np.bincount(stored)
    return Table(
        v,
        t,
        stored,
        texts,
        groups,
        ranks={} if ids is None else keys.ranks_of(ids),
        numbers=numbers if numbers and len(set(numbers)) == len(numbers) else None,
        collisions={} if ids is None else keys.collisions(ids),
        keyed={} if ids is None or caption_ids is None else keys.matches(caption_ids, ids),
        lengths=lengths,
        scene=scene,
        said_weight=said_weight,
        stored_weight=np.minimum(shared_weights(scene[stored], scene[stored]), said_weight),
        usual=int(np.median(counts[counts > 0])),
    )


def principal(vectors: Rows, most: int) -> Float32[np.ndarray, "n components"]:
    """Return the first principal components of the vectors, in the units of the data."""
    n = vectors.shape[0]
    some = np.asarray(vectors[np.arange(0, n, max(1, n // _SAMPLED))], np.float32)
    mean = some.mean(axis=0)
    some = some - mean
    directions = symmetric_directions(some.T @ some, min(most, max(1, len(some) // 3)))
    variance = (some @ directions).var(axis=0)
    kept = directions[:, variance > 1e-6 * variance.max(initial=1e-30)].astype(np.float32)
    components = np.empty((n, kept.shape[1]), np.float32)
    for start in range(0, n, BLOCK):
        rows = np.arange(start, min(start + BLOCK, n))
        components[rows] = (np.asarray(vectors[rows], np.float32) - mean) @ kept
    return components


def shared_weights(
    one: Int[np.ndarray, " P"], two: Int[np.ndarray, " P"]
) -> Float32[np.ndarray, " P"]:
    """Return 1 / (1 + .7 (n - 1)) for n rows with the same two numbers, each -1 or more."""
    both = (one + 1) * (int(two.max(initial=0)) + 2) + two + 1
    _, place, counts = np.unique(both, return_inverse=True, return_counts=True)
    return (1 / (1 + _ALIKE * (counts - 1)))[place].astype(np.float32)


def _numbered(t: Float32[np.ndarray, "P q"]) -> Int[np.ndarray, " P"]:
    """Return the same number for equal vectors, by a hash of their first components."""
    steps = np.round(t[:, :16] * (1e5 / max(float(t.std()), 1e-30))).astype(np.int64)
    factors = np.random.default_rng(0).integers(1, 2**62, steps.shape[1])
    return np.unique(steps @ factors, return_inverse=True)[1].ravel()


def _scenes(v: Float[np.ndarray, "I p"]) -> Int[np.ndarray, " I"]:
    unit = unit_rows(v)
    alike = np.einsum("nd,nd->n", unit[1:], unit[:-1]) > _SCENE
    return np.concatenate([[0], np.cumsum(~alike)])
