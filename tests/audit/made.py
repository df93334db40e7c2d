"""An audit with known findings, made by hand."""

from types import SimpleNamespace

import numpy as np
from l2rm_jax.audit.findings import (
    ALTERNATE,
    DOUBTFUL,
    MATCHED,
    SHIFTED,
    Mechanism,
    PairFindings,
    Rate,
    Repeated,
    Shift,
)

from l2rm_jax.audit.inputs import Inputs, Settings

PAIRS, IMAGES = 40, 20
POSTERIOR = np.array([0.98, 0.92, 0.9, 0.9, 0.62, 0.02, *[0.0] * (PAIRS - 6)])
HOSTILE = "a <b>|dog|</b>\n `on` *a* [beach](x)"


def make_inputs(**changes) -> Inputs:
    rng = np.random.default_rng(0)
    inputs = Inputs(
        name="data/mine",
        images=rng.normal(size=(IMAGES, 4)).astype(np.float32),
        captions=rng.normal(size=(PAIRS, 3)).astype(np.float32),
        image_of=np.arange(PAIRS) // 2,
        texts=[HOSTILE, *(f"caption {row}" for row in range(1, PAIRS))],
        text_rows=None,
        ids=[f"photos/{row}.jpg" for row in range(IMAGES)],
        caption_ids=None,
        pictures=None,
        truth=None,
        digest="0123456789abcdef",
        dataset=None,
    )
    return inputs._replace(**changes)


def make_findings(**changes) -> PairFindings:
    kind = np.full(PAIRS, MATCHED)
    kind[:5], kind[4], kind[5] = DOUBTFUL, SHIFTED, ALTERNATE
    order = np.argsort(-POSTERIOR, kind="stable")
    q = np.empty(PAIRS)
    q[order] = np.cumsum(1 - POSTERIOR[order]) / np.arange(1, PAIRS + 1)
    proposal, probability = np.full((PAIRS, 2), -1), np.full((PAIRS, 2), np.nan)
    proposal[0], probability[0] = [3, 7], [0.4, 0.1]
    none_fits = np.full(PAIRS, np.nan)
    none_fits[0] = 0.5
    findings = PairFindings(
        image=np.arange(PAIRS) // 2,
        fold=np.arange(PAIRS) // 2 % 5,
        group=np.arange(PAIRS) // 2,
        similarity=np.linspace(-1, 1, PAIRS),
        information=np.linspace(-3, 5, PAIRS),
        posterior_set=POSTERIOR / 2,
        posterior_caption=POSTERIOR / 2,
        posterior=POSTERIOR,
        q=q,
        kind=kind,
        proposal=proposal,
        probability=probability,
        none_fits=none_fits,
        order=order,
    )
    return findings._replace(**changes)


def make_audit(**changes) -> SimpleNamespace:
    values = {
        "findings": make_findings(),
        "rate": Rate(0.108, 0.05, 0.2, 0.11),
        "mechanisms": [
            Mechanism("image", 0.99, 0.9, 0.02, 0.95),
            Mechanism("near", 0.6, 0.04, 0.8, np.nan),
        ],
        "listed": 4,
        "shifts": [Shift(8, 30, -1)],
        "repeated": [Repeated(0, 12)],
        "conflicts": np.array([[0, 1]]),
        "cannot_tell": "",
        "auroc": 0.93,
        "ranks": True,
        "placeholders": [],
        "scorer": "linear (CCA, nested)",
        "near": np.zeros((IMAGES, 3), np.int64),
        "inputs": make_inputs(),
        "settings": Settings(),
    }
    return SimpleNamespace(**(values | changes))
