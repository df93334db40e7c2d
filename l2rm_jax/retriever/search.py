"""Search by vectors, among all pairs, or among proposed pairs."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from jaxtyping import Float, Int

from l2rm_jax.retriever import topk
from l2rm_jax.retriever.encodings import EncodedCaptions, EncodedImages, Encodings
from l2rm_jax.retriever.network import Network

Found = tuple[Int[np.ndarray, "Q k"], Float[np.ndarray, "Q k"]]  # gallery rows and scores
Done = Callable[[int], None]  # called with the number of rows or pairs that are done

_BLOCK = 1024  # gallery rows that heads without vectors score at once


def among_vectors(queries: Encodings, gallery: Encodings, k: int, done: Done) -> Found:
    """Search by vectors, in blocks of the gallery."""
    parts = list(queries.parts), list(gallery.parts)
    return topk.top_of_vectors(*parts, gallery.metric, k, done)


def among_all(
    networks: Sequence[Network], queries: Encodings, gallery: Encodings, k: int, done: Done
) -> Found:
    """Score all pairs, a block of the gallery at a time."""

    def blocks() -> Iterator[tuple[int, np.ndarray]]:
        for start in range(0, len(gallery), _BLOCK):
            block = gallery[start : start + _BLOCK]
            if isinstance(gallery, EncodedImages):
                yield start, mean_similarity(networks, block, queries, done).T
            else:
                yield start, mean_similarity(networks, queries, block, done)

    return topk.top_of_blocks(blocks(), k)


def among_proposed(
    networks: Sequence[Network],
    queries: Encodings,
    gallery: Encodings,
    proposed: Int[np.ndarray, "Q C"],
    k: int,
    done: Done,
) -> Found:
    """Score only the proposed gallery rows of each query."""
    asked = np.repeat(np.arange(len(queries)), proposed.shape[1])
    by_image = isinstance(queries, EncodedImages)
    images, captions = (queries, gallery) if by_image else (gallery, queries)
    rows = (asked, proposed.ravel()) if by_image else (proposed.ravel(), asked)
    used_images, image_rows = np.unique(rows[0], return_inverse=True)
    used_captions, caption_rows = np.unique(rows[1], return_inverse=True)
    parts = images[used_images].parts, captions[used_captions].parts
    pairs = np.stack([image_rows, caption_rows], axis=1)
    scores = np.zeros(len(pairs), np.float32)
    for network, *both in zip(networks, *parts, strict=True):
        scores += network.pair_similarities(*both, pairs) / np.float32(len(networks))
        done(len(pairs))
    return topk.sort_columns(proposed, scores.reshape(proposed.shape), k)


def mean_similarity(
    networks: Sequence[Network], images: EncodedImages, captions: EncodedCaptions, done: Done
) -> Float[np.ndarray, "I J"]:
    """Mean of the networks' similarities."""
    parts = zip(networks, images.parts, captions.parts, strict=True)
    first, *others = (network.similarity(*both, done) for network, *both in parts)
    return sum(others, first) / len(networks) if others else first
