"""A program on the public names, which `mypy` checks and nobody runs: the types that users see.

`assert_type` fails where a type is lost. Each `type: ignore[CODE]` marks a wrong call, and fails
too if the checker does not object to it.
"""

from pathlib import Path
from typing import Any, assert_type

import jax
import numpy as np

import l2rm_jax
from l2rm_jax.joins import Misaligned
from l2rm_jax.judging import Judgement
from l2rm_jax.judging.rate import Rate
from l2rm_jax.methods import EpochPlan, Method, TrainState
from l2rm_jax.models import RetrievalModel, SimilarityHead
from l2rm_jax.ot import PartialSinkhornResult
from l2rm_jax.retriever import EncodedCaptions, EncodedImages, Hit, Hits

assert_type(l2rm_jax.__version__, str)


def use_solver(cost: jax.Array) -> None:
    solved = l2rm_jax.partial_sinkhorn(cost, 0.5, epsilon=0.1, mode="fixed", max_iterations=5)
    assert_type(solved, PartialSinkhornResult)
    assert_type(solved.plan, jax.Array)
    assert_type(solved.converged, jax.Array)
    l2rm_jax.partial_sinkhorn(cost, 0.5)  # type: ignore[call-arg]
    l2rm_jax.partial_sinkhorn(cost, 0.5, epsilon=0.1, mode="fast")  # type: ignore[arg-type]


def use_retriever() -> None:
    retriever = l2rm_jax.load("runs/mine")
    assert_type(retriever, l2rm_jax.Retriever)
    assert_type(retriever.name, str)
    gallery = retriever.encode_images("data/mine:test")
    assert_type(gallery, EncodedImages)
    captions = retriever.encode_captions(["a red ball", "two stars"], ids=["1", "2"])
    assert_type(captions, EncodedCaptions)
    assert_type(gallery.ids[0], str)
    assert retriever.similarity(gallery, captions).ndim == 2
    hits = retriever.search("a red ball", gallery, top_k=3, proposer=retriever)
    assert_type(hits, Hits)
    assert_type(hits[0], list[Hit])
    assert_type(hits[0][0].score, float)
    assert_type(hits.to_json(), str)
    hits.to_html(Path("page.html"))
    retriever.search("a red ball", gallery, top_k="3")  # type: ignore[arg-type]
    retriever.similarity(captions, gallery)  # type: ignore[arg-type]
    retriever.encode_image("data/mine")  # type: ignore[attr-defined]


def use_audit(images: np.ndarray, captions: np.ndarray) -> None:
    audit = l2rm_jax.audit_pairs(images, captions, texts=["a red ball"], top=3)
    assert_type(audit, l2rm_jax.Audit)
    assert_type(audit.judgement, Judgement)
    assert_type(audit.pairs, l2rm_jax.Pairs)
    assert_type(l2rm_jax.audit_pairs(l2rm_jax.open_pairs("data/mine")), l2rm_jax.Audit)
    assert_type(audit.rate, Rate)
    assert_type(audit.rate.estimate, float)
    assert_type(audit.unreliable_reason, str)
    assert_type(audit.pairs.take(audit.kept()), l2rm_jax.Pairs)
    assert_type(l2rm_jax.find_misaligned(images, captions), Misaligned)
    assert_type(audit.by("source")[0].estimate, float)
    assert_type(audit.write("audit"), Path)
    assert_type(l2rm_jax.open_audit("audit"), l2rm_jax.Audit)
    assert_type(l2rm_jax.audit_pairs({"a": []}, image="a", caption="b"), l2rm_jax.Audit)
    assert_type(l2rm_jax.fit(audit.pairs, epochs=3), l2rm_jax.Retriever)
    l2rm_jax.audit_pairs()  # type: ignore[call-overload]
    l2rm_jax.audit_pairs(images)  # type: ignore[call-overload]
    l2rm_jax.audit_pairs(images, captions, top=3.5)  # type: ignore[call-overload]


class Cosine(SimilarityHead):
    """A head of one's own."""


def make_method(model: RetrievalModel, config: Any) -> Method:
    def init(key: jax.Array, batch: Any) -> TrainState:
        raise NotImplementedError

    def step(state: TrainState, batch: dict[str, Any]) -> tuple[TrainState, dict[str, jax.Array]]:
        return state, {}

    return Method(
        init=init,
        plan=lambda score, dataset, epoch: EpochPlan({"pairs": np.arange(len(dataset))}),
        step=step,
    )


l2rm_jax.register_head("mine", lambda config: Cosine(), settings={"sharpness": 2.0})
l2rm_jax.register_method("mine", make_method)
l2rm_jax.register_head("mine", Cosine)  # type: ignore[arg-type]
l2rm_jax.register_method("mine", Cosine)  # type: ignore[arg-type]
