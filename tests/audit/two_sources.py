"""Vectors of 200 pairs with a table, of which one source is bad; a toy model."""

import numpy as np

from tests.judging.synthetic import make_pairs

IMAGES, CAPTIONS, IMAGE_OF, TRUTH = make_pairs(100, 2, 0.2)
PAIRS = len(IMAGE_OF)
TEXTS = [f"a {('red', 'blue', 'pale')[k % 3]} thing number {k}" for k in range(PAIRS)]
_random = np.random.default_rng(3).random(PAIRS)
TABLE = {
    "source": ["bad" if bad or k < 0.2 else "good" for bad, k in zip(TRUTH, _random, strict=True)],
    "uid": 2**60 + np.arange(PAIRS),
    "price": np.where(np.arange(PAIRS) % 7, _random, np.nan),
    "note": [None if k % 5 == 0 else f"note {k}" for k in range(PAIRS)],
    "kind": ["mine"] * PAIRS,
    "proposal_1": np.arange(PAIRS) % 2 == 0,
}


class Letters:
    """A toy model: counts of letters."""

    def encode(self, texts: list[str]) -> np.ndarray:
        counts = [np.bincount([ord(x) % 32 for x in text], minlength=32) for text in texts]
        return np.array(counts, np.float32)
