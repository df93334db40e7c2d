"""Score a pair by its neighbourhood.

* agreement: does the caption agree with the other captions stored with the image?
* near images: does the caption agree with the captions of similar images?
* near captions: does the image resemble the images of similar captions?

The last two follow LEMoN: a neighbour that is itself badly matched counts less. Neighbours come
from a sample of the fold, so the cost is linear in the number of pairs.

References:
    Zhang et al., LEMoN: Label Error Detection using Multimodal Neighbors, ICML 2025.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Float32, Int

from l2rm_jax.judging.folds import FoldPairs, Part, first_pairs, part_of, parts_of
from l2rm_jax.linear.rows import BLOCK, Rows, padded_blocks, unit_rows

NEIGHBOURS = 30
_RANKS = 20
_PAIRS = 512  # in a block
_OF_MEANS = 40_000  # most pairs of a fold that the means are computed from
_EXCLUDED = -1e9


class Neighbours(NamedTuple):
    """Mean cosines; for known mismatches with a second axis after the pairs.

    Attributes:
      of_images: of the caption with the captions of similar images.
      of_captions: of the image with the images of similar captions.
      agreement: of the caption with its sibling captions, in each caption embedding; 0 without
        siblings.
    """

    of_images: Float32[np.ndarray, "..."]
    of_captions: Float32[np.ndarray, "..."]
    agreement: Float32[np.ndarray, "... spaces"]


class _Nearest(NamedTuple):
    """The k nearest neighbours of n items, and their weights."""

    at: jax.Array  # [n, k] places
    weight: jax.Array  # [n, k]; rows sum to 1, or to 0 if no neighbour is trusted

    def mean(self, values: jax.Array) -> jax.Array:
        """Average [n, others] values over the neighbours of each item, weighted."""
        return jnp.sum(self.weight * jnp.take_along_axis(values, self.at, axis=1), axis=1)


class NeighbourReferences(NamedTuple):
    """Samples of a fold, R images and C captions, from which neighbours are chosen."""

    vector: jax.Array  # [R, di]
    group: jax.Array  # [R]
    count: jax.Array  # [R] number of captions
    total: list[jax.Array]  # [R, dt] sum of the caption vectors, one array per embedding
    trust: jax.Array  # [R]
    replaced: list[jax.Array]  # [R, dt] vectors of the captions that wrong captions replace
    near: _Nearest  # [R, k] similar images
    caption: jax.Array  # [C, dt] in the first embedding
    caption_row: jax.Array  # [C]
    caption_group: jax.Array  # [C]
    caption_image: jax.Array  # [C, di] vectors of their images
    caption_likeness: jax.Array  # [C, R] cosines of their images with the R images
    caption_trust: jax.Array  # [C]
    image_mean: jax.Array  # [di] of the fold's vectors; all vectors are centred by it
    caption_mean: list[jax.Array]  # [dt]


class _Block(NamedTuple):
    """B pairs of a fold."""

    vector: jax.Array  # [B, di] of the image
    group: jax.Array  # [B]
    count: jax.Array  # [B] captions of the image
    total: list[jax.Array]  # [B, dt] sum of the vectors of its captions
    reference: jax.Array  # [B] place of the image in the references, or -1
    caption: list[jax.Array]  # [B, dt]
    row: jax.Array  # [B]
    wrong: jax.Array  # [B, k] places in the references


def neighbour_references(
    here: FoldPairs,
    images: Rows,
    spaces: Sequence[Rows],
    image_group: Int[np.ndarray, " images"],
    trust: Callable[[Part], Float32[np.ndarray, " n"]],
) -> NeighbourReferences:
    """Read the sampled images and captions of a fold, among which neighbours are looked for.

    Vectors are centred by their mean in the fold and scaled to unit length, so that their products
    are cosines.

    Args:
      here: the fold with its sample.
      images: as in `scores.fold_references`.
      spaces: likewise; neighbours are looked for in the first embedding.
      image_group: likewise.
      trust: maps n pairs to the `[n]` probabilities, by the model alone, that they are matched.
        Neighbours are weighted by it.
    """
    some = first_pairs(here, _OF_MEANS)
    image_mean = _mean(images, some.images)
    caption_mean = [_mean(space, some.pairs) for space in spaces]
    of_image = _Centred(images, image_mean)
    of_caption = [_Centred(*each) for each in zip(spaces, caption_mean, strict=True)]
    own = part_of(here, here.references)
    group, vectors = image_group[own.images], of_image[own.images]
    sampled = here.position[here.captions]
    places = np.union1d(here.references, sampled)
    [(both, at)] = parts_of(here, [places])
    trusted, counts = trust(both), np.bincount(both.position)
    of_reference = np.searchsorted(places, here.references)
    image_trust = (np.bincount(both.position, trusted) / counts)[of_reference].astype(np.float32)
    sample, of_sample = here.pairs[here.captions], here.images[sampled]
    sample_vectors = of_image[of_sample]
    references = NeighbourReferences(
        vectors,
        group,
        counts[of_reference].astype(np.float32),
        [_totals(vectors, own) for vectors in of_caption],
        image_trust,
        [vectors[here.pairs[here.replaced]] for vectors in of_caption],
        _near(vectors, group, image_trust),
        of_caption[0][sample],
        sample,
        image_group[of_sample],
        sample_vectors,
        _product(sample_vectors, vectors),
        trusted[np.searchsorted(at, here.captions)].astype(np.float32),
        image_mean,
        caption_mean,
    )
    return jax.tree.map(np.asarray, references)


def neighbour_scores(
    part: Part,
    of: NeighbourReferences,
    images: Rows,
    spaces: Sequence[Rows],
    groups: Int[np.ndarray, " m"],
) -> tuple[Neighbours, Neighbours]:
    """Return the scores of some pairs of a fold, and of their known mismatches.

    Args:
      part: the pairs.
      of: samples from which neighbours are chosen.
      images: [images, di] vectors.
      spaces: [pairs, dt] vectors of the captions.
      groups: group of each of `part.images`.
    """
    of_image = _Centred(images, of.image_mean)
    of_caption = [_Centred(*each) for each in zip(spaces, of.caption_mean, strict=True)]
    totals = [_totals(vectors, part) for vectors in of_caption]
    counts = np.bincount(part.position).astype(np.float32)
    of, parts = jax.tree.map(jnp.asarray, of), []
    for at, filled in padded_blocks(np.arange(len(part.pairs)), _PAIRS):
        image = part.position[at]
        block = _Block(
            of_image[part.images[image]],
            groups[image],
            counts[image],
            [total[image] for total in totals],
            part.reference[image],
            [vectors[part.pairs[at]] for vectors in of_caption],
            part.pairs[at],
            part.wrong[at],
        )
        found = _block_scores(block, of)
        parts.append(jax.tree.map(lambda x, n=filled: np.asarray(x)[:n], found))
    return jax.tree.map(lambda *arrays: np.concatenate(arrays), *parts)


def similar_ranks(images: int, seed: int) -> Int[np.ndarray, " images"]:
    """Draw the rank of the similar image among the most similar images: 2nd to 20th."""
    return np.random.default_rng(seed).integers(1, _RANKS, images)


def with_similar_images(
    part: Part,
    of: NeighbourReferences,
    captions: Rows,
    groups: Int[np.ndarray, " m"],
    ranks: Int[np.ndarray, " m"],
) -> Part:
    """Add two hard negatives to the wrong images of each pair: images with similar captions.

    Sampled images of other groups are ranked by the cosine of their mean caption vector: with the
    mean of all captions of the pair's image, and with its own caption, of which the second is used.
    The first is never used, because its captions may well fit.

    Args:
      part: n pairs of m images.
      of: the sample of the fold.
      captions: [pairs, dt] vectors of all captions, in the first embedding.
      groups: [m] group of each image of `part`.
      ranks: [m] rank of the image similar to each, 1 for the second (`similar_ranks`); the last one
        if there are fewer.

    Returns:
      The part whose `wrong`, `[n, k + 2]`, has them in the last columns.
    """
    vectors = _Centred(captions, of.caption_mean[0])
    total, ranks = _totals(vectors, part), np.minimum(ranks, len(of.group) - 2)
    near, hard = np.empty(len(total), np.int64), np.empty(len(part.pairs), np.int64)
    for at, filled in padded_blocks(np.arange(len(near)), _PAIRS):
        same = groups[at][:, None] == of.group
        found = _ranked(total[at], of.total[0], same, ranks[at])
        near[at[:filled]] = np.asarray(found)[:filled]
    for at, filled in padded_blocks(np.arange(len(hard)), _PAIRS):
        same = groups[part.position[at]][:, None] == of.group
        found = _second(vectors[part.pairs[at]], of.total[0], same)
        hard[at[:filled]] = np.asarray(found)[:filled]
    wrong = np.column_stack([part.wrong, near[part.position], hard])
    return part._replace(wrong=wrong)


@jax.jit
def _second(vectors: jax.Array, others: jax.Array, same: jax.Array) -> jax.Array:
    """Index of the second nearest vector; those in `same` rank last."""
    likeness = _likeness(vectors, others, same)
    first = jnp.argmax(likeness, axis=1)
    rest = likeness.at[jnp.arange(len(first)), first].set(-jnp.inf)
    # With only one vector outside the group, use that one.
    return jnp.where(jnp.isneginf(rest).all(axis=1), first, jnp.argmax(rest, axis=1))


@jax.jit
def _ranked(vectors: jax.Array, others: jax.Array, same: jax.Array, rank: jax.Array) -> jax.Array:
    """Index of the `rank`-th nearest vector (0 = nearest); those in `same` rank last."""
    likeness = _likeness(vectors, others, same)
    at = jax.lax.top_k(likeness, min(_RANKS, likeness.shape[1]))[1]
    return jnp.take_along_axis(at, rank[:, None], axis=1)[:, 0]


def _likeness(vectors: jax.Array, others: jax.Array, same: jax.Array) -> jax.Array:
    """Products of [n] vectors with [m] normalised others; -inf where `same`."""
    others = others / jnp.maximum(jnp.linalg.norm(others, axis=1, keepdims=True), 1e-12)
    return jnp.where(same, -jnp.inf, _product(vectors, others))


class _Centred(NamedTuple):
    """Vectors minus a mean, scaled to unit length; computed when they are read."""

    vectors: Rows
    mean: Float32[np.ndarray, " d"]

    def __getitem__(self, rows: Int[np.ndarray, " n"]) -> Float32[np.ndarray, "n d"]:
        return unit_rows(self.vectors[rows] - self.mean)


def _mean(vectors: Rows, rows: Int[np.ndarray, " n"]) -> Float32[np.ndarray, " d"]:
    blocks = padded_blocks(rows, BLOCK)
    total = sum(vectors[block][:count].sum(axis=0, dtype=np.float64) for block, count in blocks)
    return (total / len(rows)).astype(np.float32)


def _totals(vectors: _Centred, part: Part) -> Float32[np.ndarray, "m dt"]:
    """Sum the caption vectors of each image."""
    total = np.zeros((len(part.images), len(vectors.mean)), np.float32)
    for start in range(0, len(part.pairs), BLOCK):
        at = slice(start, start + BLOCK)
        np.add.at(total, part.position[at], vectors[part.pairs[at]])
    return total


def _product(a: jax.Array, b: jax.Array) -> jax.Array:
    """Multiply [n, d] by the transpose of [m, d] to [n, m]."""
    return jnp.matmul(a, b.T, precision="highest")


def _nearest(likeness: Float[jax.Array, "n m"], trust: Float[jax.Array, " m"]) -> _Nearest:
    """Find the nearest neighbours, weighted by trust."""
    top, at = jax.lax.top_k(likeness, min(NEIGHBOURS, likeness.shape[1]))
    weights = jnp.where(top > _EXCLUDED / 2, trust[at], 0)
    return _Nearest(at, weights / jnp.maximum(weights.sum(axis=1, keepdims=True), 1e-9))


@jax.jit
def _near(vectors: jax.Array, groups: jax.Array, trust: jax.Array) -> _Nearest:
    """Find the images similar to each of the R sampled images."""
    same = groups[:, None] == groups[None]
    return _nearest(jnp.where(same, _EXCLUDED, _product(vectors, vectors)), trust)


@jax.jit
def _block_scores(block: _Block, of: NeighbourReferences) -> tuple[Neighbours, Neighbours]:
    near_images = _by_images(block, of)
    near_captions = _by_captions(block, of)
    agreement = [_agreement(block, of, space) for space in range(len(block.caption))]
    return tuple(
        Neighbours(
            near_images[kind],
            near_captions[kind],
            jnp.stack([found[kind] for found in agreement], axis=-1),
        )
        for kind in range(2)
    )


def _by_images(block: _Block, of: NeighbourReferences) -> tuple[jax.Array, jax.Array]:
    fits = _product(block.caption[0], of.total[0] / of.count[:, None])  # [B, R]
    same = block.group[:, None] == of.group[None]
    near = _nearest(jnp.where(same, _EXCLUDED, _product(block.vector, of.vector)), of.trust)

    def of_wrong(fits: jax.Array, reference: jax.Array, wrong: jax.Array) -> jax.Array:
        # The neighbours of a wrong image may include the image that the caption is stored with, and
        # so the caption itself: leave it out.
        at, weight = of.near.at[wrong], of.near.weight[wrong]  # [k, neighbours]
        weight = jnp.where(at == reference, 0, weight)
        own = of.near.weight[wrong].sum(axis=1) - weight.sum(axis=1)
        return jnp.sum(weight * fits[at], axis=1) / jnp.maximum(1 - own, 1e-3)

    return near.mean(fits), jax.vmap(of_wrong)(fits, block.reference, block.wrong)


def _by_captions(block: _Block, of: NeighbourReferences) -> tuple[jax.Array, jax.Array]:
    likeness = _product(block.caption[0], of.caption)  # [B, C]
    likeness = jnp.where(block.row[:, None] == of.caption_row[None], _EXCLUDED, likeness)
    siblings = block.group[:, None] == of.caption_group[None]
    near = _nearest(jnp.where(siblings, _EXCLUDED, likeness), of.caption_trust)
    images = of.caption_image[near.at]  # [B, neighbours, di]
    mean = jnp.einsum("bk,bkd->bd", near.weight, images, precision="highest")
    stored = jnp.sum(block.vector * mean, axis=1)
    # Siblings of a moved caption stay where they are, and may be among its neighbours.
    near = _nearest(likeness, of.caption_trust)

    def of_wrong(at: jax.Array, weight: jax.Array, wrong: jax.Array) -> jax.Array:
        return weight @ of.caption_likeness[at[:, None], wrong[None]]

    return stored, jax.vmap(of_wrong)(near.at, near.weight, block.wrong)


def _agreement(block: _Block, of: NeighbourReferences, space: int) -> tuple[jax.Array, jax.Array]:
    caption, total = block.caption[space], block.total[space]
    rest = jnp.sum(caption * (total - caption), axis=1) / jnp.maximum(block.count - 1, 1)
    others = (of.total[space] - of.replaced[space]) / jnp.maximum(of.count - 1, 1)[:, None]
    wrong = jnp.einsum("bd,bkd->bk", caption, others[block.wrong], precision="highest")
    stored = jnp.where(block.count > 1, rest, 0)
    return stored, jnp.where(of.count[block.wrong] > 1, wrong, 0)
