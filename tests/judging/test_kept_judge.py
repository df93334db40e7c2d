"""A kept judge: the same scores whatever else is judged, and refusals."""

import numpy as np
import pytest
from scipy.special import logsumexp

import l2rm_jax
from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.data.text import Vocabulary
from l2rm_jax.data.vectors import CountedWords, Fits, fit_rows
from l2rm_jax.errors import DataError
from l2rm_jax.judging import judge_pairs, open_judge, write_judge
from l2rm_jax.judging.content_keys import vector_keys
from l2rm_jax.judging.detectors import cosine
from l2rm_jax.judging.judgement import UNLIKE
from l2rm_jax.judging.reference import p_values
from l2rm_jax.linear.set_features import fit_pooling, pooled_vectors, set_rows
from l2rm_jax.linear.word_features import WordWeights
from tests.judging.synthetic import make_pairs

IMAGES, CAPTIONS = 320, 3  # programs of the shapes of test_judge
SIZES = 16, 18


@pytest.fixture(scope="module")
def data():
    """Vectors of reference and new images, the image of each pair, and the truth."""
    images, captions, stored, truth = make_pairs(2 * IMAGES, CAPTIONS, 0.1)
    is_new = stored >= IMAGES
    sides = [
        (images[:IMAGES], captions[~is_new], stored[~is_new], truth[~is_new]),
        (images[IMAGES:], captions[is_new], stored[is_new] - IMAGES, truth[is_new]),
    ]
    return sides


@pytest.fixture(scope="module")
def reference(data):
    return judge_pairs(Pairs(*data[0][:3]))


@pytest.fixture(scope="module")
def judge(reference):
    return reference.judge


def of_own(judge, data):
    """Return the scores of the pairs of the reference, in the order of the kept ones."""
    return judge.score(*data[0][:3])


@pytest.mark.slow
def test_pairs_of_the_reference_have_their_ranks(judge, data):
    again, kept = of_own(judge, data), judge.reference
    np.testing.assert_array_equal(np.sort(again.information), np.sort(kept.information))
    naive = p_values(again.information, kept.information, judge.reference.weights())
    np.testing.assert_array_equal(again.p, naive)
    everything = np.all([np.isfinite(getattr(kept, name)).all() for name in kept._fields])
    assert everything and kept.information.mean() > kept.most_similar.mean() > kept.random.mean()


def test_folds_of_the_reference_are_those_of_its_audit(judge, data, reference):
    np.testing.assert_array_equal(of_own(judge, data).fold, reference.fold)


def test_information_is_that_of_a_naive_loop(judge, data):
    images, captions, image_of = data[1][:3]
    found, keys = judge.score(images, captions, image_of), vector_keys(images)
    for pair in range(0, len(captions), 97):
        k = judge.fold_of(keys[image_of[pair]][None])[0]
        model = judge.model(k)
        image = np.asarray(model.encode_images(images[image_of[pair]][None]))[0]
        caption = np.asarray(model.encode_captions(captions[pair][None]))[0]
        others = [side[k].astype(np.float64) for side in (judge.captions, judge.images)]
        means = [
            logsumexp(10 * other @ own) - np.log(len(other))
            for other, own in zip(others, (image, caption), strict=True)
        ]
        expected = 10 * image @ caption - sum(means) / 2
        assert found.information[pair] == pytest.approx(expected, abs=1e-3)


def test_known_mismatches_are_compared_without_either_image(judge, data):
    images, captions, image_of = data[0][:3]
    again = of_own(judge, data)
    row = {float(x): pair for pair, x in enumerate(again.information)}
    keys, kept = vector_keys(images), judge.reference
    for number in range(0, len(kept.information), 61):
        pair = row[float(kept.information[number])]
        k = again.fold[pair]
        caption = np.asarray(judge.model(k).encode_captions(captions[pair][None]))[0]
        own = judge.image_keys[k] == keys[image_of[pair]]
        side = judge.images[k].astype(np.float64)
        said = judge.captions[k].astype(np.float64)
        every = []
        for other in np.flatnonzero(~own):
            left = ~own & (np.arange(len(side)) != other)
            means = [
                logsumexp(10 * codes[left] @ code) - np.log(left.sum())
                for codes, code in ((side, caption), (said, side[other]))
            ]
            every.append(10 * side[other] @ caption - sum(means) / 2)
        for name in ("random", "similar", "very_similar", "most_similar"):
            assert np.abs(np.array(every) - getattr(kept, name)[number]).min() < 1e-3


def test_a_score_does_not_depend_on_the_other_pairs(judge, data):
    images, captions, image_of = data[1][:3]
    whole = judge.score(images, captions, image_of)
    for pair in (0, 5, 600):
        alone = judge.score(images[image_of[pair]][None], captions[pair][None])
        for name in ("p", "information", "similarity", "contrast", "fold", "likeness"):
            np.testing.assert_array_equal(getattr(alone, name)[0], getattr(whole, name)[pair])
    shards, half = [], IMAGES // 2
    for first, last in ((0, half), (half, IMAGES)):
        rows = (image_of >= first) & (image_of < last)
        shards.append(judge.score(images[first:last], captions[rows], image_of[rows] - first))
    order = np.concatenate([np.flatnonzero(image_of < half), np.flatnonzero(image_of >= half)])
    one, parts = judge.finish([whole]), judge.finish(shards)
    for name in ("p", "fdr", "likeness", "information", "image_of", "kind"):
        np.testing.assert_array_equal(getattr(parts, name), getattr(one, name)[order])
    np.testing.assert_allclose(parts.posterior, one.posterior[order])  # sums in another order
    assert parts.rate == one.rate and parts.made == one.made


@pytest.mark.slow
def test_a_new_set_is_judged(judge, data):
    *arrays, truth = data[1]
    found = judge_pairs(Pairs(*arrays), judge=judge, top=2)
    assert found.rate.low <= truth.mean() <= found.rate.high and not found.unreliable_reason
    assert found.p[truth].mean() < 0.1 and (found.p[~truth] <= 0.05).mean() < 0.1
    assert found.proposal.shape == (len(truth), 2) and found.judge is None
    assert found.made.judge == judge.about.data
    assert (found.posterior[found.kind == UNLIKE] <= 0.5).all()
    np.testing.assert_array_equal(found.order, judge.finish([judge.score(*arrays)]).order)
    text = str(found)
    assert "captions of similar images included" in text and "false alarm" in text


def test_few_pairs_have_no_rate_but_p_values(judge, data):
    images, captions, image_of = data[1][:3]
    rows = image_of < 10
    found = judge_pairs(Pairs(images[:10], captions[rows], image_of[rows]), judge=judge, top=2)
    assert "found 10 images, expected 50" in found.unreliable_reason
    np.testing.assert_array_equal(found.p, judge.score(images, captions, image_of).p[rows])


def test_other_vectors_cannot_be_told(judge, data):
    images, captions, image_of = data[1][:3]
    other = np.random.default_rng(0).normal(size=captions.shape).astype(np.float32)
    found = judge_pairs(Pairs(images, other, image_of), judge=judge)
    assert "AUROC" in found.unreliable_reason and not found.is_rankable
    assert "Cannot tell how many" in str(found)


def test_a_file_is_the_same_judge(judge, data, tmp_path):
    write_judge(tmp_path, judge)
    again = l2rm_jax.open_judge(tmp_path)
    assert again.about == judge.about
    np.testing.assert_array_equal(of_own(again, data).p, of_own(judge, data).p)


def test_other_dimensions_are_refused(judge, data):
    images, captions, image_of = data[1][:3]
    with pytest.raises(DataError, match=f"captions: found vectors with 17 .* expected {SIZES[1]}"):
        judge.score(images, captions[:, 1:], image_of)
    with pytest.raises(DataError, match=f"images: found vectors with 15 .* expected {SIZES[0]}"):
        judge_pairs(Pairs(images[:, 1:], captions, image_of), judge=judge)


def test_words_and_other_encoders_are_refused(judge, data):
    images, captions, image_of = data[1][:3]
    words = [f"caption {row}" for row in range(len(captions))]
    with pytest.raises(DataError, match="captions: found texts, expected one vector each"):
        judge.score(images, words, image_of)
    with pytest.raises(DataError, match="captions: found texts, expected one vector each"):
        judge_pairs(Pairs(images, None, image_of, texts=words), judge=judge)
    other = judge._replace(about=judge.about._replace(encoder="aa and bb"))
    with pytest.raises(DataError, match="found vectors of the encoder cc and bb, expected aa and"):
        judge_pairs(Pairs(images, captions, image_of, encoder="cc and bb"), judge=other)
    other.score(Pairs(images, captions, image_of))  # arrays: drift decides
    of_words = judge._replace(fits=Fits(captions=CountedWords(Vocabulary({}), WordWeights(0, 0))))
    tokens = [np.array([1, 2])] * len(captions)
    with pytest.raises(DataError, match="captions: found numbers of words, expected texts"):
        judge_pairs(Pairs(images, tokens, image_of), judge=of_words)


def test_regions_are_pooled_as_those_of_the_reference(judge, data, tmp_path):
    captions, image_of = data[1][1:3]
    sets = np.random.default_rng(0).standard_normal((IMAGES, 4, 3)).astype(np.float32)
    regions = RegionFeatures.from_array(sets, "regions")
    pooling = fit_pooling(lambda k: (sets[k], np.full(len(k), 4)), 100)
    pooling = pooling._replace(rotation=pooling.rotation[:, : SIZES[0]])
    write_judge(tmp_path, judge._replace(fits=Fits(images=pooling)))
    of_regions = open_judge(tmp_path)
    found = of_regions.score(Pairs(regions, captions, image_of))
    rows = set_rows(lambda k: (sets[k], np.full(len(k), 4)), IMAGES, pooling)
    expected = judge.score(rows, captions, image_of)
    for name in ("image_key", "fold", "information"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    np.testing.assert_allclose(
        rows[7], pooled_vectors(sets[7:8], np.full(1, 4), pooling)[0], atol=1e-4
    )
    some = np.arange(0, len(captions), 7)[::-1]  # elsewhere in the blocks
    pairs = Pairs(regions.take(image_of[some]), captions[some], np.arange(len(some)))
    np.testing.assert_array_equal(of_regions.score(pairs).information, found.information[some])
    with pytest.raises(
        DataError, match="images: found one vector each, expected several vectors each"
    ):
        of_regions.score(rows, captions, image_of)
    with pytest.raises(DataError, match="images: found several vectors each, expected one"):
        judge.score(Pairs(regions, captions, image_of))
    other = RegionFeatures.from_array(sets[..., :2], "other")
    with pytest.raises(DataError, match="images: found vectors with 2 dimensions, expected 3"):
        of_regions.score(Pairs(other, captions, image_of))


def test_words_are_counted_as_those_of_the_reference(judge, data, tmp_path):
    images, captions, image_of = data[1][:3]
    rng = np.random.default_rng(0)
    texts = [
        " ".join(line) for line in rng.choice([f"w{n}" for n in range(60)], (len(captions), 8))
    ]
    fit = fit_rows(Pairs(images, None, image_of, texts=texts[:400]))[1].captions
    weights = fit.weights._replace(directions=fit.weights.directions[:, : SIZES[1]])
    fit = fit._replace(weights=weights)
    write_judge(tmp_path, judge._replace(fits=Fits(captions=fit)))
    of_words = open_judge(tmp_path)
    found = of_words.score(images, texts, image_of)
    expected = judge.score(images, fit.rows(texts)[np.arange(len(texts))], image_of)
    np.testing.assert_array_equal(found.information, expected.information)
    with pytest.raises(DataError, match="captions: found one vector each, expected texts"):
        of_words.score(images, captions, image_of)


CHANGES = {
    "found a reference with an unreliable rate": {"unreliable_reason": "too few"},
    "found a reference of 299 images and .* expected at least 300": {"images": 299},
    "found format 2, expected at most 1": {"format": 2},
}


@pytest.mark.parametrize("message", CHANGES)
def test_an_audit_that_cannot_be_a_reference_is_refused(judge, tmp_path, message):
    path = tmp_path / "judge.npz"
    write_judge(tmp_path, judge._replace(about=judge.about._replace(**CHANGES[message])))
    with pytest.raises(DataError, match=message) as error:
        open_judge(path)
    assert "\n" not in str(error.value) and str(path) in str(error.value)


def test_too_few_matched_pairs_are_refused(judge, tmp_path):
    weight = judge.reference.weight / 2
    write_judge(tmp_path, judge._replace(reference=judge.reference._replace(weight=weight)))
    with pytest.raises(
        DataError, match=r"of 320 images and \d+ matched pairs .by probability., expected"
    ):
        open_judge(tmp_path)


def test_a_damaged_file_and_pickles_are_refused(judge, tmp_path):
    path = tmp_path / "judge.npz"
    write_judge(tmp_path, judge)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(DataError, match="not a kept judge"):
        open_judge(path)
    np.savez(path, about=np.array([{"format": 1}], object))
    with pytest.raises(DataError, match="not a kept judge"):
        open_judge(path)
    with pytest.raises(DataError, match="not a kept judge"):
        open_judge(tmp_path / "absent")


@pytest.mark.slow
def test_cosines_are_kept_as_maps_of_identity():
    rng = np.random.default_rng(0)
    images = rng.normal(size=(IMAGES, 24)).astype(np.float32)
    captions = np.repeat(images, 2, axis=0) + 0.3 * rng.normal(size=(2 * IMAGES, 24))
    pairs = Pairs(images, captions.astype(np.float32), np.repeat(np.arange(IMAGES), 2))
    found = judge_pairs(pairs, cosine, name="cosine")
    assert found.judge is not None and found.judge.about.by == found.made.by == "cosine"
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (images[:5], captions[:10:2])]
    again = found.judge.score(images[:5], captions[:10:2].astype(np.float32))
    np.testing.assert_allclose(again.similarity, (unit[0] * unit[1]).sum(axis=1), atol=1e-5)


def test_likeness_is_that_of_a_naive_loop(judge, data):
    images, captions, image_of = data[1][:3]
    found, seen = judge.score(images, captions, image_of), judge.witnesses
    unit = captions - seen.mean
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    codes = np.asarray(judge.model(0).encode_images(images))
    for pair in range(0, len(captions), 53):
        similar = seen.codes.astype(np.float64) @ codes[image_of[pair]]
        near = np.argsort(-similar)[:50]
        weight = np.exp(similar[near] / 0.05)
        cosine = seen.captions[near].astype(np.float64) @ unit[pair]
        expected = (weight * cosine.max(axis=1)).sum() / weight.sum()
        assert found.likeness[pair] == pytest.approx(expected, abs=1e-3)
        shown = near[:3] * 5 + cosine[:3].argmax(axis=1)
        np.testing.assert_array_equal(found.witness[pair], shown)
    matched = ~data[1][3]
    assert found.likeness[matched].mean() > found.likeness[~matched].mean() + 0.2


def test_an_image_is_no_witness_of_its_own_caption(judge, data):
    images, captions, image_of = data[0][:3]
    seen = judge.witnesses
    chosen = np.flatnonzero(np.isin(vector_keys(images), seen.keys))[:1]
    own = np.flatnonzero(image_of == chosen[0])[:1]
    value = judge.score(images[chosen], captions[own]).likeness
    without = np.flatnonzero(seen.keys != vector_keys(images[chosen])[0])
    others = seen._replace(**{n: getattr(seen, n)[without] for n in ("keys", "codes", "captions")})
    again = judge._replace(witnesses=others).score(images[chosen], captions[own]).likeness
    np.testing.assert_allclose(value, again, atol=1e-6)
