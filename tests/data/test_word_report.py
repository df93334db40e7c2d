import numpy as np

from l2rm_jax.data.text import Vocabulary, tokenize
from l2rm_jax.data.word_report import report_words


def report(captions, min_count=1, known=None):
    words = list(map(tokenize, captions))
    vocabulary = Vocabulary.from_words(map(tokenize, known) if known else words, min_count)
    return report_words("dev", captions, list(map(vocabulary.encode_words, words)), vocabulary)


def test_examples_show_the_words_and_the_unknown_ones():
    found = report(["A dog, runs.", "一只狗", "a " * 80, "more"], known=["a dog runs", "狗"])
    assert found.examples[0] == ("A dog, runs.", "a | dog | <unk> | runs | <unk>")
    assert found.examples[1] == ("一只狗", "<unk> | <unk> | 狗")
    assert len(found.examples) == 3 and found.examples[2][1].endswith("...")
    assert not found.warnings


def test_unknown_words_above_a_half():
    lines = ["a dog", "b cat", "c cow"]
    assert not report(lines, known=["dog cat cow"]).warnings  # one half
    found = report(lines, known=["dog cat"])
    assert list(found.warnings) == ["unknown_words"]
    assert found.warnings["unknown_words"].startswith(
        "dev: found 67% unknown words, expected at most half: 'a dog' became <unk> | dog. "
    )


def test_captions_of_one_word():
    assert not report(["dog", "a cat"]).warnings
    found = report(["dog", "cat", "a cow"])
    assert found.warnings["one_word"].startswith(
        "dev: found 67% captions with a single word, such as"
    )


def test_vectors_have_no_words():
    assert report_words("dev", ["a"], np.zeros((1, 1, 4)), Vocabulary({})) == ((), {})
