"""Vectors of images and captions that share a part, for audits of a few seconds."""

import numpy as np

SHARED, OWN = 12, 4


def make_pairs(images: int, captions: int, rate: float, seed: int = 0, noise: float = 0.25):
    """Return vectors [images, 16] and [pairs, 18], the stored image of each pair, and the truth.

    A share `rate` of the captions is stored with other images, by permutation.
    """
    rng = np.random.default_rng(seed)
    shared = rng.standard_normal((images, SHARED))
    own = np.repeat(np.arange(images), captions)
    image_vectors = np.hstack([shared, rng.standard_normal((images, OWN))])
    said = shared[own] @ np.linalg.qr(rng.standard_normal((SHARED, SHARED)))[0]
    caption_vectors = np.hstack([said, rng.standard_normal((len(own), OWN + 2))])
    caption_vectors += noise * rng.standard_normal(caption_vectors.shape)
    stored = own.copy()
    moved = rng.permutation(len(own))[: int(rate * len(own))]
    stored[moved] = stored[np.roll(moved, 1)]
    return (
        image_vectors.astype(np.float32),
        caption_vectors.astype(np.float32),
        stored,
        stored != own,
    )
