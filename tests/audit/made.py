"""An audit with known findings, made by hand."""

import dataclasses
from pathlib import Path

import numpy as np

from l2rm_jax.audit.audit import Audit
from l2rm_jax.audit.outputs import write_files
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.data.train_pairs import TrainPairs
from l2rm_jax.jobs.files import new_directory
from l2rm_jax.judging import Judgement
from l2rm_jax.judging.groups import Repeated
from l2rm_jax.judging.judgement import (
    MATCHED,
    NEAR_DUPLICATE,
    SWAPPED_CAPTION,
    UNINFORMATIVE,
    Mechanism,
    Provenance,
)
from l2rm_jax.judging.rate import Rate

PAIRS, IMAGES = 40, 20
POSTERIOR = np.array([0.98, 0.92, 0.9, 0.9, 0.62, 0.02, *[0.0] * (PAIRS - 6)])
HOSTILE = "a <b>|dog|</b>\n `on` *a* [beach](x)"


FIELDS = [field.name for field in dataclasses.fields(Audit)]


def make_pairs(**changes) -> Pairs:
    rng = np.random.default_rng(0)
    images = rng.normal(size=(IMAGES, 4)).astype(np.float32)
    captions = rng.normal(size=(PAIRS, 3)).astype(np.float32)
    image_of = np.arange(PAIRS) // 2
    texts = [HOSTILE, *(f"caption {row}" for row in range(1, PAIRS))]
    pairs = Pairs(
        images,
        captions,
        image_of,
        texts,
        ids=[f"photos/{row}.jpg" for row in range(IMAGES)],
        name="data/mine",
        digest="0123456789abcdef",
    )
    return dataclasses.replace(pairs, **changes)


def mismatched_pairs(truth: np.ndarray) -> TrainPairs:
    """Training pairs of which these were mismatched on purpose."""
    pairs = make_pairs()
    return TrainPairs(pairs, np.where(truth, (pairs.image_of + 1) % IMAGES, pairs.image_of))


def make_judgement(**changes) -> Judgement:
    kind = np.full(PAIRS, MATCHED)
    kind[:5], kind[4], kind[5] = SWAPPED_CAPTION, UNINFORMATIVE, NEAR_DUPLICATE
    order = np.argsort(-POSTERIOR, kind="stable")
    q = np.empty(PAIRS)
    q[order] = np.cumsum(1 - POSTERIOR[order]) / np.arange(1, PAIRS + 1)
    proposal, probability = np.full((PAIRS, 2), -1), np.full((PAIRS, 2), np.nan)
    proposal[0], probability[0] = [3, 7], [0.4, 0.1]
    none_fits = np.full(PAIRS, np.nan)
    none_fits[0] = 0.5
    judgement = Judgement(
        image_of=np.arange(PAIRS) // 2,
        fold=np.arange(PAIRS) // 2 % 5,
        group=np.arange(PAIRS) // 2,
        similarity=np.linspace(-1, 1, PAIRS),
        information=np.linspace(-3, 5, PAIRS),
        posterior_set=POSTERIOR / 2,
        posterior_caption=POSTERIOR / 2,
        posterior=POSTERIOR,
        fdr=q,
        kind=kind,
        proposal=proposal,
        probability=probability,
        none_fits=none_fits,
        order=order,
        conflicts=np.array([[0, 1]]),
        nearest_images=np.zeros((IMAGES, 3), np.int64),
        rate=Rate(0.108, 0.05, 0.2),
        mechanisms=(
            Mechanism("image", 0.99, 0.9, 0.02, 0.95),
            Mechanism("near", 0.6, 0.04, 0.8, np.nan),
        ),
        list_length=4,
        repeated=(Repeated(0, 12),),
        placeholders=(),
        unreliable_reason="",
        auroc=0.93,
        is_rankable=True,
        made=Provenance("linear", "linear (CCA, nested)", 5, 0, "0" * 16, "0.1.0"),
        upper_bound=0.35,
        p=np.full(PAIRS, np.nan),
        likeness=np.full(PAIRS, np.nan),
        witness=np.zeros((PAIRS, 0), np.int32),
    )
    return dataclasses.replace(judgement, **changes)


def make_audit(**changes) -> Audit:
    """An audit; `changes` are fields of it or of its judgement."""
    own = {name: changes.pop(name) for name in FIELDS if name in changes}
    return Audit(**{"pairs": make_pairs(), "judgement": make_judgement(**changes)} | own)


def write(audit: Audit, directory: Path) -> Path:
    """Write the files of an audit to a new directory."""
    with new_directory(directory) as unfinished:
        write_files(audit, unfinished)
    return directory
