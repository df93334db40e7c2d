"""Galleries for tests, with invented results, and captions and names that try to be markup."""

from pathlib import Path

import numpy as np
from PIL import Image

from l2rm_jax.judging import Judgement
from l2rm_jax.judging.judgement import (
    MATCHED,
    NEAR_DUPLICATE,
    SWAPPED_CAPTION,
    SWAPPED_SET,
    Provenance,
)
from l2rm_jax.judging.rate import Rate
from l2rm_jax.pages.gallery import Gallery

TOP = 3
HOSTILE = (
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "<!-- <script> -->",
    "&lt;b&gt; \u202e right to left",
    "half a character \ud83d",
    "two\nlines\r\n",
)
WORDS = (
    "a", "two", "dog", "man", "ball", "red", "blue", "runs", "sits", "in", "under", "the", "grass",
    "snow", "field", "big",
)  # fmt: skip


def write_picture(path: Path, number: int) -> None:
    """Write a PNG of 60 x 40 pixels, whose colour is different for each number below 256."""
    Image.new("RGB", (60, 40), (number, 80, 255 - number)).save(path)


def make_judgement(pairs: int, per_image: int, seed: int = 0) -> Judgement:
    """Make a judgement in which one pair in five is suspicious and has `TOP` proposals."""
    rng = np.random.default_rng(seed)
    image = np.repeat(np.arange(-(-pairs // per_image)), per_image)[:pairs]
    suspicious = rng.random(pairs) < 0.2
    posterior = np.where(suspicious, rng.uniform(0.6, 1, pairs), rng.uniform(0, 0.3, pairs))
    kind = np.where(
        suspicious, np.where(rng.random(pairs) < 0.2, SWAPPED_SET, SWAPPED_CAPTION), MATCHED
    )
    kind[~suspicious & (rng.random(pairs) < 0.05)] = NEAR_DUPLICATE
    images = image[-1] + 1
    nearest = np.random.default_rng(seed + 1).integers(0, images, (images, 3))
    shares = rng.dirichlet(np.ones(TOP + 1), pairs)
    return Judgement(
        image_of=image,
        fold=image % 5,
        group=image,
        similarity=1 - posterior,
        information=np.where(suspicious, -0.5, 5) + rng.normal(size=pairs),
        posterior_set=posterior / 2,
        posterior_caption=posterior / 2,
        posterior=posterior,
        fdr=1 - posterior,
        kind=kind,
        proposal=np.where(suspicious[:, None], rng.integers(0, pairs, (pairs, TOP)), -1),
        probability=np.where(suspicious[:, None], -np.sort(-shares[:, :TOP]), 0),
        none_fits=np.where(suspicious, shares[:, TOP], np.nan),
        order=np.argsort(-posterior, kind="stable"),
        conflicts=np.zeros((0, 2), int),
        nearest_images=nearest,
        rate=Rate(float(posterior.mean()), 0.1, 0.3),
        mechanisms=(),
        list_length=int(suspicious.sum()),
        repeated=(),
        placeholders=(),
        unreliable_reason="",
        upper_bound=float("nan"),
        auroc=0.95,
        is_rankable=True,
        made=Provenance("linear", "linear", 5, 0, "0" * 16, "0.1.0"),
        p=np.full(pairs, np.nan),
        likeness=np.full(pairs, np.nan),
        witness=np.random.default_rng(seed + 2).integers(0, len(HOSTILE), (pairs, 3)),
        said=HOSTILE,
    )


def make_gallery(pairs: int, per_image: int = 5, pictures: list[Path] | None = None) -> Gallery:
    """Make a gallery in which the most suspicious pairs have hostile captions and image ids."""
    judgement = make_judgement(pairs, per_image)
    rng = np.random.default_rng(1)
    images = int(judgement.image_of[-1]) + 1
    captions = [" ".join(words) for words in rng.choice(WORDS, (pairs, 12))]
    ids = [f"photos/{number:010d}.jpg" for number in rng.integers(0, 10**10, images)]
    for row, text in zip(judgement.order, HOSTILE, strict=False):
        captions[row] = text
        ids[judgement.image_of[row]] = f"{text} {judgement.image_of[row]}"
    return Gallery(
        title=f"<b>data</b>: {pairs} pairs",
        key=f"hash of {pairs}",
        pairs="texts:0123",
        verdict=["20% of the pairs <i>match</i> no better than random.", "Second.", "Third."],
        details=[("Found & missed", ["mismatch", "AUROC"], [["image", ".98"], ["<u>", ".97"]])],
        judgement=judgement,
        captions=captions,
        ids=ids,
        pictures=pictures,
        review=rng.permutation(pairs)[: min(pairs // 2, 100)],
        review_weight=rng.uniform(1, 9, min(pairs // 2, 100)),
        shown=10,
    )
