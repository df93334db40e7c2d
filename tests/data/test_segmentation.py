"""Words of languages that are written without spaces."""

import importlib.util
import random
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nltk.tokenize import word_tokenize

from l2rm_jax.data import segmentation
from l2rm_jax.data.segmentation import clean_text, is_unspaced, segment
from l2rm_jax.data.text import Vocabulary, tokenize
from l2rm_jax.errors import ConfigError


@pytest.mark.parametrize(
    ("caption", "words"),
    [
        ("三只黑猫，在33号。", ["三", "只", "黑", "猫", ",", "在", "33", "号", "。"]),
        ("一只ＤＯＧ在２楼！", ["一", "只", "dog", "在", "2", "楼", "!"]),
        ("iPhone手机很好", ["iphone", "手", "机", "很", "好"]),
        ("海辺を走る犬とｶﾒﾗ", list("海辺を走る犬とカメラ")),
        ("犬が\u200b走る\ufeff、", ["犬", "が", "走", "る", "、"]),
        (unicodedata.normalize("NFD", "ガラス瓶がある"), list("ガラス瓶がある")),
        ("𠮷野家の牛", list("𠮷野家の牛")),
        ("人々の café", ["人", "々", "の", "café"]),
    ],
)
def test_ideographs_and_kana_are_a_word_each(caption, words):
    assert tokenize(caption) == words


@pytest.mark.parametrize(
    "caption",
    [
        "강아지가 해변에서 달린다.",
        "Собака бежит по пляжу.",
        "كلب يجري على الشاطئ.",
        "एक कुत्ता समुद्र तट पर दौड़ता है।",
        "a sign 愛 on a wall",
        "the words 北京 欢迎 你 on a sign in Beijing",
        "a café, isn't it?",
        "🐶🐱",
    ],
)
def test_other_captions_keep_the_published_words(caption):
    assert tokenize(caption) == word_tokenize(caption.lower(), preserve_line=True)


@given(st.text(st.characters(max_codepoint=0xDFF)))
def test_text_below_thai_keeps_the_published_words(caption):
    assert not is_unspaced(caption)


needs_icu = pytest.mark.skipif(
    importlib.util.find_spec("icu4py") is None, reason="the extra `languages` is not installed"
)


@needs_icu
@pytest.mark.parametrize(
    ("caption", "words"),
    [
        ("สุนัขวิ่งบนชายหาดกับเด็ก", ["สุนัข", "วิ่ง", "บน", "ชายหาด", "กับ", "เด็ก"]),
        ("น้ำ 3 ขวด, ดีมาก", ["น้ำ", "3", "ขวด", ",", "ดี", "มาก"]),
        ("หมา\u200bน้ำ", ["หมา", "น้ำ"]),
        ("ឆ្កែរត់លើឆ្នេរ", ["ឆ្កែ", "រត់", "លើ", "ឆ្នេរ"]),
        ("ແລ່ນຢູ່ຫາດຊາຍ", ["ແລ່ນ", "ຢູ່", "ຫາດຊາຍ"]),
        ("ခွေးက ကမ်းခြေမှာ", ["ခွေး", "က", "ကမ်းခြေ", "မှာ"]),
    ],
)
def test_words_of_dictionaries(caption, words):
    assert tokenize(caption) == words


@needs_icu
def test_no_character_of_a_caption_is_lost():
    rng = random.Random(0)
    letters = "三只黑猫犬がカสุนัขวิ่งऔabc12,。🐶\u3000 "
    for _ in range(500):
        text = "".join(rng.choices(letters, k=rng.randint(1, 20)))
        assert "".join(segment(text)) == "".join(unicodedata.normalize("NFC", text).split())


def test_a_missing_dictionary_says_how_to_get_it(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        segmentation.importlib.util,
        "find_spec",
        lambda name: None if name == "icu4py" else real(name),
    )
    assert tokenize("一只狗") == ["一", "只", "狗"]
    with pytest.raises(ConfigError, match=r"'สุนัข' .* requires .* icu4py") as caught:
        tokenize("สุนัข")
    assert caught.value.hint == "pip install 'l2rm_jax[languages]'"


def test_clean_text():
    assert clean_text(" a\u200bb\tc\u00ad \ufeffe\u0301 ") == "a b c \u00e9"
    persian, family = "می\u200cخواهم", "👨\u200d👩"
    assert clean_text(f"{persian} {family}") == f"{persian} {family}"


def test_a_vocabulary_of_chinese_knows_its_characters():
    captions = [f"一只红色的狗在草地上奔跑，很多人在看{number}号。" for number in range(20)]
    vocabulary = Vocabulary.build(captions)
    assert len(vocabulary) == 4 + len(set("一只红色的狗在草地上奔跑,很多人看号。"))
    assert (vocabulary.encode(captions[0]) == vocabulary.word2idx["<unk>"]).sum() == 1
