"""Whole audits of synthetic vectors: their findings, and changes that must not matter."""

import numpy as np
import pytest

import l2rm_jax
from l2rm_jax.auroc import auroc
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.judging import judge_pairs
from l2rm_jax.judging.judgement import (
    MATCHED,
    SUSPECT,
    SWAPPED_CAPTION,
    SWAPPED_SET,
    UNINFORMATIVE,
)
from tests.judging.synthetic import make_pairs

IMAGES, CAPTIONS = 300, 3


@pytest.fixture(scope="module")
def pairs():
    return make_pairs(IMAGES, CAPTIONS, 0.2)


@pytest.fixture(scope="module")
def audit(pairs):
    images, captions, stored, _ = pairs
    return l2rm_jax.audit_pairs(images, captions, stored).judgement


@pytest.mark.slow
def test_finds_the_mismatched_pairs_and_their_rate(audit, pairs):
    truth, found = pairs[3], audit
    assert auroc(found.posterior, truth) > 0.97
    assert audit.rate.low <= truth.mean() <= audit.rate.high
    assert found.posterior.mean() == pytest.approx(audit.rate.estimate, abs=1e-3)
    listed = truth[found.order[: audit.list_length]]
    assert listed.mean() > 0.8 and listed.sum() > 0.8 * truth.sum()
    assert (found.kind == MATCHED).mean() > 0.7 and (found.kind == SWAPPED_CAPTION).any()
    assert sorted(found.order) == list(range(len(truth)))
    assert audit.unreliable_reason == ""


@pytest.mark.slow
def test_clean_pairs_are_left_alone():
    images, captions, stored, _ = make_pairs(IMAGES, CAPTIONS, 0.0, seed=1)
    audit = l2rm_jax.audit_pairs(images, captions, stored, top=0).judgement
    assert audit.rate.low < 0.01 and audit.rate.estimate < 0.02
    assert (audit.kind == MATCHED).mean() > 0.99
    assert audit.unreliable_reason == ""


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.4, 0.6])
def test_high_rates_are_within_the_interval(rate):
    images, captions, stored, truth = make_pairs(IMAGES, CAPTIONS, rate, seed=2)
    audit = l2rm_jax.audit_pairs(images, captions, stored, top=0).judgement
    rate, width = audit.rate, audit.rate.high - audit.rate.low
    assert audit.unreliable_reason == ""
    assert rate.low - width / 2 <= truth.mean() <= rate.high + width / 2


@pytest.mark.slow
def test_the_order_of_rows_changes_nothing(audit, pairs):
    images, captions, stored, _ = pairs
    rng = np.random.default_rng(5)
    of_images, of_pairs = rng.permutation(len(images)), rng.permutation(len(captions))
    place = np.empty_like(of_images)
    place[of_images] = np.arange(len(of_images))
    other = l2rm_jax.audit_pairs(
        images[of_images], captions[of_pairs], place[stored[of_pairs]]
    ).judgement
    for name in ("information", "posterior", "similarity", "none_fits"):
        first, second = (getattr(each, name) for each in (audit, other))
        np.testing.assert_allclose(second, first[of_pairs], atol=2e-4, err_msg=name)
    np.testing.assert_array_equal(other.fold, audit.fold[of_pairs])
    assert other.made.data == audit.made.data
    assert other.rate == pytest.approx(audit.rate)


@pytest.mark.slow
def test_equal_rows_of_images_are_one_image(audit, pairs, caplog):
    """One row per pair, as vectors are often stored."""
    caplog.set_level("INFO", "l2rm_jax")
    images, captions, stored, _ = pairs
    repeated = l2rm_jax.audit_pairs(images[stored], captions).judgement
    for name in ("information", "posterior", "similarity", "none_fits"):
        first, second = (getattr(each, name) for each in (audit, repeated))
        np.testing.assert_allclose(second, first, atol=2e-4, err_msg=name)
    assert not repeated.placeholders and repeated.rate == pytest.approx(audit.rate)
    np.testing.assert_array_equal(repeated.image_of, np.arange(len(captions)))
    near = repeated.nearest_images[0]
    np.testing.assert_array_equal(stored[near], audit.nearest_images[stored[0]])
    assert f"900 rows of images are {len(np.unique(stored))} images" in caplog.text


@pytest.mark.slow
def test_near_duplicates_share_fold_and_group(pairs):
    images, captions, stored, _ = pairs
    twins = images.copy()
    twins[1] = twins[0] + 1e-3
    found = l2rm_jax.audit_pairs(twins, captions, stored, top=0).judgement
    rows = [np.flatnonzero(stored == image)[0] for image in (0, 1)]
    assert len(set(found.group[rows])) == 1 and len(set(found.fold[rows])) == 1


def test_the_first_stage_is_named_before_any_work(pairs, monkeypatch, caplog):
    caplog.set_level("INFO", "l2rm_jax")

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("l2rm_jax.judging.judge.content_keys", stop)
    with pytest.raises(KeyboardInterrupt):
        l2rm_jax.audit_pairs(*pairs[:3])
    [message] = caplog.messages
    assert message.startswith("judging, 1 of 5")


@pytest.mark.slow
def test_a_stopped_audit_resumes(pairs, audit, tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO", "l2rm_jax")
    images, captions, stored, _ = pairs
    arguments = {"keep": tmp_path}
    with monkeypatch.context() as patched:

        def stop(*_, **__):
            raise KeyboardInterrupt

        patched.setattr("l2rm_jax.judging.judge.propose", stop)
        with pytest.raises(KeyboardInterrupt):
            l2rm_jax.audit_pairs(images, captions, stored, **arguments)
    begun = [line for line in caplog.messages if line.startswith("judging, ")]
    assert [line[:15] for line in begun] == [f"judging, {at} of 5" for at in range(1, 6)]
    monkeypatch.setattr("l2rm_jax.judging.judge.fold_models", None)
    resumed = l2rm_jax.audit_pairs(images, captions, stored, **arguments).judgement
    for name in ("posterior", "information", "proposal", "probability", "order"):
        np.testing.assert_array_equal(getattr(resumed, name), getattr(audit, name), err_msg=name)
    assert resumed.rate == audit.rate


@pytest.mark.slow
def test_aligned_vectors_may_be_judged_by_their_plain_cosine():
    rng = np.random.default_rng(0)
    images = rng.standard_normal((200, 64)).astype(np.float32)
    captions = images + 1.5 * rng.standard_normal(images.shape).astype(np.float32)
    audit = l2rm_jax.audit_pairs(images, captions, top=0).judgement
    assert audit.made.by == "cosine" and audit.made.detector == "linear"
    assert audit.similarity.max() <= 1.001


@pytest.mark.slow
def test_single_captions_are_ordered_by_information_where_the_posterior_is_near_0():
    """A caption moved to the image of the most similar caption agrees with its new sibling."""
    images, captions, stored, _ = make_pairs(600, 1, 0.0, seed=5)
    unit = captions / np.linalg.norm(captions, axis=1, keepdims=True)
    likeness = unit @ unit.T
    np.fill_diagonal(likeness, -1)
    moved = np.random.default_rng(0).permutation(600)[:60]
    stored[moved] = likeness[moved].argmax(1)
    found = judge_pairs(Pairs(images, captions, stored, words=captions))
    last = found.order[found.posterior[found.order] < 1e-4]
    assert len(last) > 300
    assert (np.diff(found.information[last]) >= 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_weak_embeddings_cannot_tell(rate):
    """Their rate is too high, and the AUROC of simulated swaps shows less of it."""
    images, captions, stored, truth = make_pairs(IMAGES, CAPTIONS, rate, seed=2, noise=2.5)
    audit = l2rm_jax.audit_pairs(images, captions, stored, top=0).judgement
    assert audit.rate.estimate > truth.mean() + 0.1
    assert max(each.auroc for each in audit.mechanisms) > audit.auroc
    assert "AUROC" in audit.unreliable_reason


@pytest.mark.slow
def test_what_the_only_caption_of_an_image_and_an_empty_text_are_called():
    images, captions, stored, truth = make_pairs(IMAGES, 1, 0.2, seed=5)
    rng = np.random.default_rng(0)
    boilerplate, empty = rng.permutation(len(captions))[:24].reshape(2, 12)
    texts = [f"caption {row}" for row in range(len(captions))]
    for row in boilerplate:
        texts[row], captions[row] = "See superclass documentation.", captions.mean(axis=0)
    for row in empty:
        texts[row] = " "
    found = l2rm_jax.audit_pairs(images, captions, stored, texts=texts, top=0).judgement
    assert set(found.kind[boilerplate]) == set(found.kind[empty]) == {UNINFORMATIVE}
    rest = np.setdiff1d(np.arange(len(captions)), [*boilerplate, *empty])
    assert not np.isin(found.kind[rest], (SWAPPED_CAPTION, SWAPPED_SET)).any()
    assert (found.kind[rest][truth[rest]] == SUSPECT).mean() > 0.8
    kept = rest[found.kind[rest] == MATCHED]
    assert found.decided(kept[:0], kept[:3]).kind[kept[:3]].tolist() == [SUSPECT] * 3
