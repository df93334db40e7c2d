import json
import random
import re
import subprocess
import sys
from pathlib import Path

import nltk
import numpy as np
import pytest
from nltk.tokenize import word_tokenize

from l2rm_jax.data.segmentation import is_unspaced
from l2rm_jax.data.text import Vocabulary, load_sentence_splitter, tokenize
from l2rm_jax.data.word_report import report_words
from l2rm_jax.errors import ConfigError, DataError

SPECIAL = ["<pad>", "<start>", "<end>", "<unk>"]
_HARD = Path(__file__).with_name("hard_captions.txt").read_bytes().decode().split("\n")[:-1]
# Those without spaces between words are divided otherwise: tests/data/test_segmentation.py.
HARD = [caption for caption in _HARD if not is_unspaced(caption)]


def reference(caption: str) -> list[str]:
    return word_tokenize(caption.lower(), preserve_line=True)


def sentences(caption: str) -> list[list[str]]:
    """Words of each sentence by the full rules; abbreviations as in `hard_captions.txt`."""
    ends = r"(?<=[^.\s])\.[\"')]*\s+(?=[\w(])"
    parts, start, text = [], 0, caption.lower()
    for match in re.finditer(ends, text):
        word = text[: match.start()].split()[-1].lstrip("\"'(")
        if not (re.fullmatch(r"[^\W\d]|.*\..*", word) or word in ABBREVIATIONS):
            parts.append(text[start : match.end()])
            start = match.end()
    return [reference(part) for part in [*parts, text[start:]]]


ABBREVIATIONS = set(
    ["mr", "mrs", "dr", "jr", "st", "sq", "etc", "inc", "co", "vs", "ltd", "prof", "sgt", "approx"]
)


def in_words(caption: str) -> list[str]:
    return [word for sentence in sentences(caption) for word in sentence]


def test_random_texts_are_split_by_the_full_rules():
    draw = random.Random(0)
    parts = ["a", "b", "cannot", "gonna", "1", "20", " ", " ", "  ", ", ", ",", "-", "--", "'s"]
    for _ in range(2000):
        text = "".join(draw.choices(parts, k=draw.randint(1, 7))) + draw.choice(["", ".", " ."])
        assert tokenize(text) == reference(text)


@pytest.mark.parametrize(
    ("caption", "words"),
    [
        ("A Dog runs .", ["a", "dog", "runs", "."]),
        ("A dog's toy, isn't it?", ["a", "dog", "'s", "toy", ",", "is", "n't", "it", "?"]),
        ("Sits. Then runs.", ["sits", ".", "then", "runs", "."]),
        ("you cannot", ["you", "can", "not"]),
        ("...", ["..."]),
        ("A dog runs...", ["a", "dog", "runs", "..."]),
        ("Mr. Smith's U.S. flag.", ["mr.", "smith", "'s", "u.s.", "flag", "."]),
        ('He reads "STOP."', ["he", "reads", "``", "stop", ".", "''"]),
        ("A “smart” one", ["a", "“", "smart", "”", "one"]),
        ("$5.99, 1,000 (50%)", ["$", "5.99", ",", "1,000", "(", "50", "%", ")"]),
        ("at 10:30: go", ["at", "10:30", ":", "go"]),
        ("a t-shirt--blue", ["a", "t-shirt", "--", "blue"]),
        ("R&B? #1!", ["r", "&", "b", "?", "#", "1", "!"]),
        ("I wanna gimme", ["i", "wan", "na", "gim", "me"]),
        ("a\tcafé 🐶", ["a", "café", "🐶"]),
    ],
)
def test_words_of_a_caption(caption, words):
    assert tokenize(caption) == words


@pytest.mark.parametrize("min_count", [1, 2])
def test_ids_of_hard_captions_are_those_of_the_full_rules(min_count):
    assert len(HARD) >= 200
    words = [in_words(caption) for caption in HARD]
    vocabulary = Vocabulary.build(HARD, min_count)
    assert vocabulary == Vocabulary.from_words(words, min_count)
    index = vocabulary.word2idx
    for caption, parts in zip(HARD, words, strict=True):
        expected = [1, *(index.get(word, 3) for word in parts), 2]
        assert vocabulary.encode(caption).tolist() == expected, caption


@pytest.mark.parametrize("end", [". ", ".  ", ".\t", '." ', ".) ", ".\u201d "])
@pytest.mark.parametrize("count", [2, 3, 10])
def test_sentences_of_a_caption_have_the_words_that_they_have_alone(count, end):
    rng = random.Random(count)
    names = ["Dog", "a", "it's", "cannot", "9", "caf\u00e9", "T-shirt", "U.S.", "x, y"]
    last = ["thing", "7", "caf\u00e9", "hers", "(two"]
    parts = [" ".join([*rng.choices(names, k=6), rng.choice(last)]) for _ in range(count)]
    closing = end.rstrip(" \t")
    expected = [word for part in parts for word in tokenize(f"{part}{closing}")]
    assert tokenize(end.join(parts) + closing) == expected
    assert not any(len(word) > 2 and word.endswith(".") for word in expected if word != "u.s.")


@pytest.mark.parametrize(
    "caption",
    ["Mr. Smith sits", "a U.S. flag", "John F. Kennedy waves", "at 5 p.m. and later", "e.g. a dog",
     "Wait... a dog", "St. Peter's Sq. at night", "a.b. c", "5.5 miles", "see www.a.com now"],
)  # fmt: skip
def test_full_stops_that_end_no_sentence_stay(caption):
    assert tokenize(caption) == reference(caption)


@pytest.fixture
def small_punkt(tmp_path, monkeypatch) -> None:
    """Install a tiny punkt model, which knows one abbreviation, instead of NLTK's."""
    model = tmp_path / "tokenizers" / "punkt_tab" / "english"
    model.mkdir(parents=True)
    (model / "abbrev_types.txt").write_text("mr\n")
    (model / "sent_starters.txt").write_text("then\n")
    (model / "collocations.tab").write_text("st\tpeter\n")
    (model / "ortho_context.tab").write_text("then\t46\n")
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])


def test_sentences_of_hard_captions_are_those_of_nltk(small_punkt):
    sentences, theirs = load_sentence_splitter(), nltk.PunktTokenizer()
    differ = 0
    for caption in HARD:
        parts = theirs.tokenize(caption.lower())
        expected = [word for part in parts for word in reference(part)]
        assert tokenize(caption, sentences) == expected, caption
        differ += expected != reference(caption)
    assert differ > 5


def test_a_missing_sentence_model_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    with pytest.raises(
        ConfigError, match=r"data\.split_sentences requires .*not installed"
    ) as caught:
        load_sentence_splitter()
    assert caught.value.hint == "python -m nltk.downloader punkt_tab"


def test_words_need_no_home_directory():
    code = (
        "import os\n"
        "os.environ.pop('HOME', None)\n"
        "def expand(path):\n"
        "    return os.environ.get('HOME', '~') + path[1:] if path[:1] == '~' else path\n"
        "os.path.expanduser = expand\n"
        "from l2rm_jax.data.text import tokenize\n"
        "print(tokenize('a dog, a cat'), 'HOME' in os.environ)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['a', 'dog', ',', 'a', 'cat'] False\n"


def test_short_cut_gives_the_words_of_the_full_rules():
    rng = random.Random(0)
    words = ["cannot", "Gimme", "gonna", "a", "DOG", "can", "not", "is", "it's", "3", "d'ye", "é"]
    ends = ["", "", "", ".", " .", "..", ",", " "]
    for _ in range(3000):
        parts = [rng.choice(words) + rng.choice(ends) for _ in range(rng.randint(1, 6))]
        caption = " ".join(parts)
        assert tokenize(caption) == in_words(caption), caption


def test_build_keeps_words_of_the_minimum_count():
    vocabulary = Vocabulary.build(["red red blue", "blue Red", "green red blue green"], min_count=3)
    assert list(vocabulary.word2idx) == [*SPECIAL, "red", "blue"]
    assert len(vocabulary) == 6


def test_encode_surrounds_and_replaces_rare_words():
    vocabulary = Vocabulary.build(["red blue"] * 4)
    tokens = vocabulary.encode("Blue purple red")
    assert tokens.dtype == np.int32
    assert tokens.tolist() == [1, vocabulary.word2idx["blue"], 3, vocabulary.word2idx["red"], 2]


def test_write_then_read(tmp_path):
    vocabulary = Vocabulary.build(["naïve café"] * 4)
    vocabulary.write(tmp_path / "new" / "v.json")
    assert Vocabulary.read(tmp_path / "new" / "v.json") == vocabulary
    content = json.loads((tmp_path / "new" / "v.json").read_bytes())
    assert content["idx"] == 6 and content["idx2word"]["4"] == "naïve"
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["v.json"]


def published(words: list[str]) -> dict:
    return {
        "word2idx": {word: i for i, word in enumerate(words)},
        "idx2word": {str(i): word for i, word in enumerate(words)},
        "idx": len(words),
    }


def without(key: str) -> dict:
    content = published([*SPECIAL, "dog"])
    del content[key]
    return content


def gap() -> dict:
    content = published([*SPECIAL, "dog"])
    content["word2idx"]["dog"] = 9
    return content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (without("idx2word"), "found .*expected the keys"),
        (["dog"], "found list"),
        ({**published(SPECIAL), "word2idx": []}, "JSON objects"),
        (published([*SPECIAL, "a\ud800"]), r"word2idx: .*surrogate 'a\\ud800'"),
        (published(["dog", *SPECIAL]), "<pad>: found 1"),
        (gap(), "without the index 4.*0 to 4"),
        ({**published(SPECIAL), "word2idx": {w: "1" for w in SPECIAL}}, "to integers"),
        ({**published([*SPECIAL, "dog"]), "idx": 7}, "found 7 .*expected 5"),
        (
            {**published([*SPECIAL, "dog"]), "idx2word": published([*SPECIAL, "cat"])["idx2word"]},
            "4: found 'cat'",
        ),
    ],
)
def test_unusable_vocabulary_is_refused(tmp_path, content, message):
    path = tmp_path / "v.json"
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=message) as error:
        Vocabulary.read(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "no such file, expected a vocabulary"), (b"{", "JSON"), (b"\xff{}", "JSON")],
)
def test_unreadable_vocabulary_is_refused(tmp_path, content, message):
    if content is not None:
        (tmp_path / "v.json").write_bytes(content)
    with pytest.raises(DataError, match=rf"v\.json.*{message}"):
        Vocabulary.read(tmp_path / "v.json")


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
    assert "67%" in found.warnings["unknown_words"]


def test_captions_of_one_word():
    assert not report(["dog", "a cat"]).warnings
    found = report(["dog", "cat", "a cow"])
    assert "67%" in found.warnings["one_word"]


def test_vectors_have_no_words():
    assert report_words("dev", ["a"], np.zeros((1, 1, 4)), Vocabulary({})) == ((), {})
