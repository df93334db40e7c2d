"""Describe the rows of a table: vectors in principal components, scenes, and weights of rows.

Rows are not independent: captions of one image, near-duplicate neighbours and equal captions say
nearly the same, so together they count as little more than one row.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float32, Int

from l2rm_jax.linear.rows import BLOCK, Rows, unit_rows

IMAGE_COMPONENTS, CAPTION_COMPONENTS = 96, 160
_SAMPLED = 50_000  # most vectors that principal components are fitted to
_SCENE = 0.8  # cosine of consecutive images from which they are one scene
_ALIKE = 0.7  # correlation of the evidence of two rows of one scene
_SAID = 64  # components by which captions are compared with each other


@dataclass(frozen=True, eq=False)
class Table:
    """Rows in the order of the user's table, and images in the order in which they are listed.

    Attributes:
      images, captions: principal components of the vectors.
      stored: image of each row.
      ids: the user's names of the images; None without names.
      texts: captions as texts; None without texts.
      keys: the user's key of each row; None without keys.
      groups: group of each row, as numbers; None without groups.
      scene: number of the group of near-duplicate neighbours of each image.
      said: number of the text of each row; equal captions have equal numbers.
      says: unit vectors of the captions, to compare them with each other.
      said_of: unit vectors of the mean caption of each image.
      said_weight, stored_weight: weight of each row, 1 for independent rows.
      usual: usual number of captions per image.
    """

    images: Float32[np.ndarray, "I p"]
    captions: Float32[np.ndarray, "P q"]
    stored: Int[np.ndarray, " P"]
    ids: list[str] | None
    texts: list[str] | None
    keys: list[str] | None
    groups: Int[np.ndarray, " P"] | None
    scene: Int[np.ndarray, " I"]
    said: Int[np.ndarray, " P"]
    says: Float32[np.ndarray, "P c"]
    said_of: Float32[np.ndarray, "I c"]
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
    keys: list[str] | None = None,
    groups: Int[np.ndarray, " P"] | None = None,
) -> Table:
    """Compute scenes and weights of the rows of a table from `principal` components."""
    scene = _scenes(v)
    says = unit_rows(t[:, :_SAID])
    sums = np.zeros((len(v), says.shape[1]), np.float32)
    np.add.at(sums, stored, says)
    said = _numbered(t)
    said_weight = shared_weights(said, said)
    of_scene = scene[stored]
    counts = np.bincount(stored)
    return Table(
        v, t, stored, ids, texts, keys, groups, scene, said, says, unit_rows(sums), said_weight,
        np.minimum(shared_weights(of_scene, of_scene), said_weight),
        int(np.median(counts[counts > 0])),
    )  # fmt: skip


def principal(vectors: Rows, most: int) -> Float32[np.ndarray, "n components"]:
    """Return the first principal components of the vectors, in the units of the data."""
    n = vectors.shape[0]
    some = np.asarray(vectors[np.arange(0, n, max(1, n // _SAMPLED))], np.float32)
    mean = some.mean(axis=0)
    some = some - mean
    values, directions = np.linalg.eigh((some.T @ some).astype(np.float64) / len(some))
    kept = np.argsort(-values)[: min(most, max(1, len(some) // 3))]
    kept = kept[values[kept] > 1e-6 * values.max(initial=1e-30)]
    directions = directions[:, kept].astype(np.float32)
    components = np.empty((n, len(kept)), np.float32)
    for start in range(0, n, BLOCK):
        rows = np.arange(start, min(start + BLOCK, n))
        components[rows] = (np.asarray(vectors[rows], np.float32) - mean) @ directions
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
