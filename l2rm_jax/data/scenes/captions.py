"""English captions for the scenes of the built-in data set.

A caption is made in two steps. `plan_caption` chooses the content: things, some of their
attributes, a relation, places, the background. `word_caption` chooses the wording: synonyms, word
order, form of the sentence. Captions are true, but do not mention most of a scene.
"""

from dataclasses import dataclass

import numpy as np

from l2rm_jax.data.scenes.world import GRID, Scene, Thing, pick

CAPTIONS_PER_PICTURE = 5
SHORTEST, LONGEST = 4, 18  # words

# Number of things that a caption mentions (relative frequencies), and probabilities of leaving an
# attribute out (OMIT) or of mentioning something (SAY, SAID). Less detailed captions fit more
# pictures, and make retrieval harder.
MENTIONED_THINGS = {1: 2, 2: 5, 3: 3}
OMIT_COLOUR = 0.25
OMIT_SHAPE = 0.1
OMIT_SIZE = 0.6
OMIT_TEXTURE = 0.6  # of a thing that is not plain
PLAIN_SAID = 0.05
MEDIUM_SAID = 0.05
SAY_RELATION = 0.5
SAY_PLACE = 0.3
SAY_BACKGROUND = 0.35
SAY_COUNT = 0.08

# Words for each value, with relative frequencies. More, and more frequent, synonyms need more
# training pairs.
COLOUR_WORDS = {
    "red": {"red": 8, "crimson": 1, "scarlet": 1},
    "blue": {"blue": 8, "navy": 1},
    "green": {"green": 8, "emerald": 1},
    "yellow": {"yellow": 8, "golden": 2},
    "purple": {"purple": 6, "violet": 3},
    "orange": {"orange": 8, "amber": 1},
    "pink": {"pink": 8, "rosy": 1},
    "black": {"black": 8, "dark": 2},
    "white": {"white": 8, "pale": 1},
    "brown": {"brown": 8, "chocolate": 1},
}
SHAPE_WORDS = {
    "ball": {"ball": 5, "circle": 3, "disc": 2},
    "box": {"box": 4, "square": 4, "block": 1},
    "star": {"star": 1},
    "triangle": {"triangle": 6, "pyramid": 2},
    "ring": {"ring": 5, "hoop": 3},
    "heart": {"heart": 1},
    "cross": {"cross": 5, "plus sign": 2},
    "moon": {"moon": 4, "crescent": 3},
    "diamond": {"diamond": 5, "rhombus": 1},
    "flower": {"flower": 5, "blossom": 2},
}
ANY_SHAPE_WORDS = {"thing": 2, "object": 3, "shape": 2, "item": 1}
SIZE_WORDS = {
    "small": {"small": 5, "little": 3, "tiny": 2},
    "medium": {"medium": 1},
    "large": {"big": 4, "large": 4, "huge": 2},
}
TEXTURE_WORDS = {
    "plain": {"plain": 2, "solid": 1},
    "striped": {"striped": 4, "stripy": 1},
    "dotted": {"dotted": 3, "spotted": 3},
    "checked": {"checked": 3, "checkered": 3},
}
TEXTURE_ENDINGS = {
    "striped": {"with stripes": 1},
    "dotted": {"with dots": 2, "with spots": 1},
    "checked": {"with checks": 1},
}
RELATION_WORDS = {
    "left": {"to the left of": 3, "left of": 3, "on the left side of": 1},
    "right": {"to the right of": 3, "right of": 3, "on the right side of": 1},
    "above": {"above": 3, "over": 1, "higher than": 1},
    "below": {"below": 3, "under": 2, "beneath": 1},
    "near": {"next to": 3, "beside": 2, "near": 2, "close to": 1},
    "far": {"far from": 2, "far away from": 1},
    "inside": {"inside": 3, "within": 1, "in": 1},
    "around": {"around": 3, "surrounding": 1, "containing": 1},
}
PLACE_WORDS = {
    "left": {"on the left": 3, "at the left": 1},
    "right": {"on the right": 3, "at the right": 1},
    "top": {"at the top": 3, "up high": 1},
    "bottom": {"at the bottom": 3, "down low": 1},
    "centre": {"in the middle": 3, "in the centre": 2, "at the center": 1},
    "top left": {"in the top left corner": 2, "at the upper left": 1},
    "top right": {"in the top right corner": 2, "at the upper right": 1},
    "bottom left": {"in the bottom left corner": 2, "at the lower left": 1},
    "bottom right": {"in the bottom right corner": 2, "at the lower right": 1},
}
BACKGROUND_WORDS = {
    "grass": {"on the grass": 3, "on a lawn": 2, "in a meadow": 1},
    "snow": {"on snow": 2, "in the snow": 3},
    "sand": {"on sand": 2, "on the beach": 3},
    "water": {"on water": 2, "in the sea": 2},
    "wood": {"on a wooden table": 2, "on a wooden floor": 2},
    "night": {"at night": 3, "under the stars": 1},
}
COUNT_WORDS = {2: "two", 3: "three", 4: "four"}
OPENINGS = {"": 10, "there is": 4, "a picture of": 2, "an image with": 1, "i see": 1, "we see": 1}
VERBS = {"": 6, "is": 2, "sits": 1, "lies": 1}
FURTHER = {"and also": 2, "plus": 1, "together with": 1}


@dataclass(frozen=True)
class Mention:
    """Content of a caption about one thing; None for attributes that it leaves out."""

    colour: str | None
    shape: str | None
    size: str | None
    texture: str | None
    place: str | None


@dataclass(frozen=True)
class Plan:
    """Content of a caption about a scene; None for parts that it leaves out."""

    mentions: tuple[Mention, ...]
    relation: str | None  # from the first mentioned thing to the second
    background: str | None
    count: int | None  # number of things in the scene


def relations(scene: Scene, first: int, second: int) -> list[str]:
    """List all relations that hold from thing `first` to thing `second`."""
    a, b = scene.things[first], scene.things[second]
    if a.inside == second:
        return ["inside"]
    if b.inside == first:
        return ["around"]
    dx, dy = b.x - a.x, b.y - a.y
    beside = ("left" if dx > 0 else "right") if abs(dx) > 0.6 * abs(dy) else None
    stacked = ("above" if dy > 0 else "below") if abs(dy) > 0.6 * abs(dx) else None
    distance = np.hypot(dx, dy)
    span = "near" if distance < 0.5 else "far" if distance > 0.72 else None
    return [name for name in (beside, stacked, span) if name]


def places(thing: Thing) -> list[str]:
    """List all names of the part of the picture where `thing` is."""
    column = ("left", "", "right")[int(thing.x * GRID)]
    row = ("top", "", "bottom")[int(thing.y * GRID)]
    if not column and not row:
        return ["centre"]
    return [row, column, f"{row} {column}"] if row and column else [row or column]


def plan_mention(rng: np.random.Generator, thing: Thing, place: bool) -> Mention:
    """Choose the content about one thing: at least its colour or its shape."""
    shape = None if rng.random() < OMIT_SHAPE else thing.shape
    colour = None if shape and rng.random() < OMIT_COLOUR else thing.colour
    say_size = MEDIUM_SAID if thing.size == "medium" else 1 - OMIT_SIZE
    say_texture = PLAIN_SAID if thing.texture == "plain" else 1 - OMIT_TEXTURE
    size = thing.size if rng.random() < say_size else None
    texture = thing.texture if rng.random() < say_texture else None
    names = places(thing)
    return Mention(colour, shape, size, texture, names[rng.integers(len(names))] if place else None)


def plan_caption(rng: np.random.Generator, scene: Scene) -> Plan:
    """Choose the content of one caption about `scene`; it mentions larger things more often."""
    keys = rng.random(len(scene.things)) ** (1 / np.array([t.radius for t in scene.things]))
    chosen = np.argsort(-keys)[: pick(rng, MENTIONED_THINGS)].tolist()  # weighted, no repeats
    held = relations(scene, *chosen[:2]) if len(chosen) > 1 else []
    related = bool(held) and rng.random() < SAY_RELATION
    return Plan(
        mentions=tuple(
            plan_mention(rng, scene.things[i], not related and rng.random() < SAY_PLACE)
            for i in chosen
        ),
        relation=held[rng.integers(len(held))] if related else None,
        background=scene.background if rng.random() < SAY_BACKGROUND else None,
        count=len(scene.things) if rng.random() < SAY_COUNT else None,
    )


def with_article(rng: np.random.Generator, phrase: str) -> str:
    """Put "a", "an" or, rarely, "one" before a phrase."""
    if rng.random() < 0.08:
        return f"one {phrase}"
    return f"{'an' if phrase[0] in 'aeiou' else 'a'} {phrase}"


def word_mention(rng: np.random.Generator, mention: Mention) -> str:
    """Word a noun phrase: "a small striped red ball", "a star that is blue"."""
    before, after = [], []
    if mention.colour:
        word = pick(rng, COLOUR_WORDS[mention.colour])
        if mention.shape and rng.random() < 0.08:
            after.append(f"that is {word}")
        else:
            before.append(word)
    if mention.texture:
        if mention.texture in TEXTURE_ENDINGS and not after and rng.random() < 0.3:
            after.append(pick(rng, TEXTURE_ENDINGS[mention.texture]))
        else:
            before.insert(rng.integers(2), pick(rng, TEXTURE_WORDS[mention.texture]))
    if mention.size:
        before.insert(0, pick(rng, SIZE_WORDS[mention.size]))
    noun = pick(rng, SHAPE_WORDS[mention.shape] if mention.shape else ANY_SHAPE_WORDS)
    phrase = with_article(rng, " ".join([*before, noun, *after]))
    return f"{phrase} {pick(rng, PLACE_WORDS[mention.place])}" if mention.place else phrase


def word_list(rng: np.random.Generator, phrases: list[str]) -> str:
    """Join noun phrases: "a, b and c" or "a with b and c"."""
    if len(phrases) == 1:
        return phrases[0]
    if rng.random() < 0.3:
        return f"{phrases[0]} with {' and '.join(phrases[1:])}"
    return f"{', '.join(phrases[:-1])} and {phrases[-1]}"


def word_caption(rng: np.random.Generator, plan: Plan) -> str:
    """Word a plan as one sentence, in lower case and without a full stop."""
    phrases = [word_mention(rng, mention) for mention in plan.mentions]
    background = pick(rng, BACKGROUND_WORDS[plan.background]) if plan.background else None
    background_first = background and rng.random() < 0.25
    opening = pick(rng, {"": 1, "there is": 1} if background_first else OPENINGS)
    if plan.relation:
        relation = pick(rng, RELATION_WORDS[plan.relation])
        if rng.random() < 0.2 and plan.relation != "around":
            text = f"{relation} {phrases[1]} there is {phrases[0]}"
        elif opening:
            text = f"{opening} {phrases[0]} {relation} {phrases[1]}"
        else:
            text = " ".join(filter(None, [phrases[0], pick(rng, VERBS), relation, phrases[1]]))
        if len(phrases) > 2:
            text += f" {pick(rng, FURTHER)} {phrases[2]}"
    elif plan.count:
        text = f"{COUNT_WORDS[plan.count]} {pick(rng, {'things': 1, 'objects': 1})} "
        text += f"including {word_list(rng, phrases)}"
    else:
        text = f"{opening} {word_list(rng, phrases)}".strip()
    if not background:
        return text
    return f"{background} {text}" if background_first else f"{text} {background}"


def describe(rng: np.random.Generator, scene: Scene) -> list[str]:
    """Sample five different captions of a scene, each of 4 to 18 words."""
    captions: list[str] = []
    while len(captions) < CAPTIONS_PER_PICTURE:
        caption = word_caption(rng, plan_caption(rng, scene))
        if SHORTEST <= len(caption.split()) <= LONGEST and caption not in captions:
            captions.append(caption)
    return captions
