"""The text that is shown with a found image: the stored caption most like the query."""

import dataclasses

import numpy as np

from l2rm_jax.config import default
from l2rm_jax.data import scenes
from l2rm_jax.retriever.encodings import EncodedCaptions, EncodedImages, Maker, open_encodings
from l2rm_jax.retriever.hits import Hits
from l2rm_jax.retriever.sources import image_source

MAKER = Maker("R", "f", ("vse",), ("ip",))
CAPTIONS = [["a man sleeps", "a dog runs on the beach ."], ["two cats"], ["A beach.", "a dog"]]


def hits_of(query: str | None, gallery: EncodedImages) -> Hits:
    """All images of the gallery, as hits of one query."""
    texts = None if query is None else [query]
    asked = EncodedCaptions(MAKER, (np.zeros((1, 2)),), ["0"], texts)
    rows = np.arange(len(gallery))[None]
    return Hits(asked, gallery, rows, np.zeros(rows.shape, np.float32))


def gallery_of(captions=CAPTIONS) -> EncodedImages:
    texts = [own[0] for own in CAPTIONS]
    return EncodedImages(MAKER, (np.zeros((3, 2)),), ["0", "1", "2"], texts, captions=captions)


def test_the_caption_that_shares_most_words_with_the_query_is_shown(tmp_path):
    gallery = gallery_of()
    gallery.save(tmp_path / "kept")
    for own in (gallery, open_encodings(tmp_path / "kept")):
        shown = [hit.text for hit in hits_of("dog on a beach", own)[0]]
        assert shown == ["a dog runs on the beach .", "two cats", "a dog"]
    taken = hits_of("a beach", gallery[[2, 0]])[0]
    assert [hit.text for hit in taken] == ["A beach.", "a dog runs on the beach ."]


def test_without_words_or_captions_the_first_is_shown():
    first = [own[0] for own in CAPTIONS]
    for hits in (hits_of(None, gallery_of()), hits_of("a dog", gallery_of(captions=None))):
        assert [hit.text for hit in hits[0]] == first
    nothing = dataclasses.replace(gallery_of(captions=None), texts=None)
    assert [hit.text for hit in hits_of("a dog", nothing)[0]] == [None] * 3


def test_a_split_has_all_captions_of_each_image():
    config = default().data
    config.scenes_test = 4
    source = image_source("scenes:test", None, None, config)
    made = scenes.generate(4, config.scenes_seed, "test").captions
    assert [caption for own in source.captions for caption in own] == list(made)
    assert [len(own) for own in source.captions] == [5] * 4
    assert source.texts == [own[0] for own in source.captions]
