"""The built-in data set: reproducible splits, true captions, varied words, shared concepts."""

from collections import Counter
from functools import cache
from itertools import combinations

import numpy as np
import pytest

from l2rm_jax.data import scenes
from l2rm_jax.data.scenes import captions as scene_captions
from l2rm_jax.data.scenes.splits import noiseless_code, region_codes
from l2rm_jax.errors import DataError


@cache
def split(name="train", pictures=200, seed=3):
    return scenes.generate(pictures, seed, name)


def words_of(caption):
    return caption.replace(",", " ").split()


def captions_of(data):
    return [data.captions[i : i + 5] for i in range(0, len(data.captions), 5)]


@pytest.mark.parametrize("pictures", [1, 7])
@pytest.mark.parametrize("name", scenes.SPLITS)
def test_shapes(pictures, name):
    data = scenes.generate(pictures, 0, name)
    assert data.features.shape == (pictures, 12, 64)
    assert data.features.dtype == np.float32
    assert np.isfinite(data.features).all()
    assert len(data.captions) == 5 * pictures
    assert len(data.scenes) == pictures
    for scene, shown in zip(data.scenes, data.shown, strict=True):
        assert len(shown) == 12 and set(shown) == {scenes.NOTHING, *range(len(scene.things))}


def test_a_region_looks_like_the_thing_it_shows():
    rng, right = np.random.default_rng(0), []
    for scene in split().scenes[:40]:
        looks = np.stack([noiseless_code(scene, thing, thing.x, thing.y) for thing in scene.things])
        codes, shown = region_codes(rng, scene)
        nearest = np.linalg.norm(codes[:, None] - looks, axis=-1).argmin(1)
        right += list((nearest == shown)[shown != scenes.NOTHING])
    assert np.mean(right) > 0.97


def test_same_seed_gives_the_same_data_and_another_seed_does_not():
    first, again, other = (scenes.generate(20, seed, "train") for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.features, again.features)
    assert first.captions == again.captions
    assert first.scenes == again.scenes
    assert not np.isclose(first.features, other.features).all((1, 2)).any()
    assert first.scenes != other.scenes


@pytest.mark.parametrize("pictures", [1, 13, 64])
def test_a_larger_split_begins_with_the_smaller_one(pictures):
    whole, part = split(), scenes.generate(pictures, 3, "train")
    np.testing.assert_array_equal(whole.features[:pictures], part.features)
    assert whole.captions[: 5 * pictures] == part.captions
    assert whole.scenes[:pictures] == part.scenes


@pytest.mark.parametrize("one, other", [*combinations(scenes.SPLITS, 2)])
def test_splits_share_no_picture(one, other):
    one, other = split(one), split(other)
    assert not set(one.scenes) & set(other.scenes)
    rows = {row.tobytes() for row in one.features}
    assert not any(row.tobytes() in rows for row in other.features)


@pytest.mark.parametrize(
    "pictures, seed, name, message",
    [(5, 0, "val", "'val'"), (0, 0, "train", "pictures=0"), (5, -1, "train", "seed=-1")],
)
def test_bad_requests_are_refused(pictures, seed, name, message):
    with pytest.raises(DataError, match=message):
        scenes.generate(pictures, seed, name)


def test_features_look_like_a_detectors():
    features = split().features
    spread = features.std((0, 1))
    assert spread.min() > 0.6 and spread.max() < 1.5
    # Dense: no direction of the feature space carries much more than its share.
    variances = np.linalg.eigvalsh(np.cov(features.reshape(-1, 64).T))
    assert variances[-1] < 0.2 * variances.sum()
    assert variances[0] > 0
    assert len(np.unique(features.reshape(-1, 64), axis=0)) == 200 * 12  # no copies


def test_region_order_tells_nothing():
    # Were the regions not shuffled, background and clutter would differ from the things.
    by_position = split().features.mean(0)
    error = split().features.std(0) / np.sqrt(200)
    overall = split().features.mean((0, 1))
    assert np.abs((by_position - overall) / error).mean() < 1.0


# Captions ----------------------------------------------------------------------------------------


def test_captions_of_a_picture_differ_and_have_4_to_18_words():
    for captions in captions_of(split()):
        assert len(set(captions)) == 5
    lengths = [len(caption.split()) for caption in split().captions]
    assert min(lengths) >= 4 and max(lengths) <= 18
    assert len(set(lengths)) > 10
    assert len({words_of(caption)[0] for caption in split().captions}) > 10


def meanings(table):
    """The value each word of a table stands for; phrases count by their first word."""
    return {phrase.split()[0]: value for value, words in table.items() for phrase in words}


COLOURS = meanings(scene_captions.COLOUR_WORDS)
SHAPES = meanings(scene_captions.SHAPE_WORDS)
SIZES = meanings(scene_captions.SIZE_WORDS)
TEXTURES = meanings(scene_captions.TEXTURE_WORDS) | {
    "stripes": "striped",
    "dots": "dotted",
    "spots": "dotted",
    "checks": "checked",
}
BACKGROUNDS = {
    words_of(phrase)[-1] if value != "wood" else "wooden": value
    for value, phrases in scene_captions.BACKGROUND_WORDS.items()
    for phrase in phrases
}
GENERIC = set(scene_captions.ANY_SHAPE_WORDS)


def noun_phrases(caption):
    """Read the attributes of each thing, as a dict, from the words of a caption alone."""
    words = words_of(caption)
    starts = [i for i, word in enumerate(words) if word in ("a", "an", "one")]
    for start, end in zip(starts, [*starts[1:], len(words)], strict=True):
        chunk = words[start + 1 : end]
        nouns = [i for i, word in enumerate(chunk) if word in SHAPES or word in GENERIC]
        if not nouns:
            continue  # "a picture of", "on a lawn"
        said = {"shape": SHAPES[chunk[nouns[0]]]} if chunk[nouns[0]] in SHAPES else {}
        rest = chunk[nouns[0] + 1 :]
        after = rest[:3] if rest[:2] == ["that", "is"] else rest[:2] if rest[:1] == ["with"] else []
        for word in chunk[: nouns[0]] + after:
            for kind, table in (("colour", COLOURS), ("size", SIZES), ("texture", TEXTURES)):
                if word in table:
                    said[kind] = table[word]
        yield said


def test_what_captions_say_of_things_is_true():
    said_count = Counter()
    for scene, captions in zip(split().scenes, captions_of(split()), strict=True):
        for caption in captions:
            phrases = list(noun_phrases(caption))
            assert phrases, caption
            for said in phrases:
                assert any(
                    all(getattr(thing, kind) == value for kind, value in said.items())
                    for thing in scene.things
                ), (caption, said, scene)
                said_count.update(said.keys())
    assert min(said_count[k] for k in ("colour", "shape", "size", "texture")) > 100


def test_backgrounds_and_counts_in_captions_are_true():
    seen = Counter()
    for scene, captions in zip(split().scenes, captions_of(split()), strict=True):
        for caption in captions:
            for word in words_of(caption):
                if word in BACKGROUNDS:
                    assert BACKGROUNDS[word] == scene.background, caption
                    seen["background"] += 1
            for count, word in scene_captions.COUNT_WORDS.items():
                if word in words_of(caption):
                    assert count == len(scene.things), caption
                    seen["count"] += 1
    assert seen["background"] > 100 and seen["count"] > 10


def thing(x, y, inside=None):
    return scenes.Thing("red", "ball", "large", "plain", x, y, 0.13, inside)


@pytest.mark.parametrize(
    "first, second, expected",
    [
        (thing(0.2, 0.5), thing(0.5, 0.5), ["left", "near"]),
        (thing(0.8, 0.2), thing(0.2, 0.2), ["right"]),
        (thing(0.5, 0.2), thing(0.5, 0.5), ["above", "near"]),
        (thing(0.8, 0.8), thing(0.2, 0.2), ["right", "below", "far"]),
        (thing(0.5, 0.5, inside=1), thing(0.5, 0.5), ["inside"]),
        (thing(0.5, 0.5), thing(0.5, 0.5, inside=0), ["around"]),
    ],
)
def test_relations(first, second, expected):
    scene = scenes.Scene("sand", (first, second))
    assert scene_captions.relations(scene, 0, 1) == expected


@pytest.mark.parametrize(
    "x, y, expected",
    [
        (0.1, 0.5, ["left"]),
        (0.5, 0.9, ["bottom"]),
        (0.5, 0.5, ["centre"]),
        (0.9, 0.1, ["top", "right", "top right"]),
    ],
)
def test_places(x, y, expected):
    assert scene_captions.places(thing(x, y)) == expected


def test_planned_relations_and_places_are_said_in_the_caption():
    rng, held = np.random.default_rng(0), Counter()
    for scene in split().scenes:
        plan = scene_captions.plan_caption(rng, scene)
        caption = scene_captions.word_caption(rng, plan)
        if plan.relation:
            held[plan.relation] += 1
            assert any(w in caption for w in scene_captions.RELATION_WORDS[plan.relation])
        for mention in plan.mentions:
            if mention.place:
                held[mention.place] += 1
                assert any(w in caption for w in scene_captions.PLACE_WORDS[mention.place])
    assert len(held) > 10


def test_vocabulary_is_small_and_every_word_is_learnable():
    words = Counter(word for caption in split(pictures=600).captions for word in words_of(caption))
    assert 100 < len(words) < 250
    assert sum(count >= 4 for count in words.values()) > 0.95 * len(words)


def test_pictures_share_concepts():
    data = split()
    common = [
        {(thing.colour, thing.shape) for thing in scene.things}
        & {(thing.colour, thing.shape) for thing in other.things}
        for scene, other in combinations(data.scenes, 2)
    ]
    assert 0.05 < np.mean([bool(c) for c in common]) < 0.5
    held = Counter(
        pair for scene in data.scenes for pair in {(t.colour, t.shape) for t in scene.things}
    )
    assert held["red", "ball"] >= 8
    assert sum(count >= 2 for count in held.values()) > 0.6 * len(held)
