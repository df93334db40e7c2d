"""Sentence encoders with random weights, beside a CLIP for the pictures."""

import json
import shutil

import numpy as np
import pytest

from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.run.choose_encoder import make_encoder
from tests.pretrained.pytorch.tiny_models import (
    captions,
    save_clip,
    save_sentence_encoder,
    torch,
    transformers,
)

POOLS = {
    "mean_tokens": lambda states: states.mean(0),
    "cls_token": lambda states: states[0],
    "lasttoken": lambda states: states[-1],
}


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return save_clip(tmp_path_factory.mktemp("models") / "clip")


def token_states(path, text):
    """States of the tokens of one caption, by transformers itself."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    model = transformers.AutoModel.from_pretrained(path).eval()
    inputs = tokenizer(text, truncation=True, max_length=10, return_tensors="pt")
    with torch.no_grad():
        return model(**inputs).last_hidden_state[0].numpy()


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


@pytest.mark.parametrize("pooling", [*POOLS, "none"])
def test_states_are_pooled_as_the_files_say(clip, tmp_path, pooling):
    path = save_sentence_encoder(tmp_path / "a", "mean_tokens" if pooling == "none" else pooling)
    if pooling == "none":
        (path / "modules.json").unlink()
    texts = [*captions(5), "the dog " * 9]
    pool = POOLS.get(pooling, POOLS["mean_tokens"])
    states = [token_states(path, text) for text in texts]
    expected = unit(np.stack([pool(one) for one in states]))
    encoder = make_encoder(f"transformers:{clip}+transformers:{path}")
    vectors, lengths = encoder.encode_captions(texts)
    np.testing.assert_allclose(vectors, expected, atol=2e-3)
    assert lengths is None and vectors.dtype == np.float16

    words, lengths = make_encoder(
        f"transformers:{clip}+transformers:{path}", "patches"
    ).encode_captions(texts)
    for caption, length, vector, tokens in zip(words, lengths, expected, states, strict=True):
        own = np.concatenate([vector[None], unit(tokens[1:-1])])  # without [CLS] and [SEP]
        np.testing.assert_allclose(caption[:length], own, atol=2e-3)


def test_what_the_file_lacks_and_nobody_uses_changes_nothing(clip, tmp_path):
    """transformers makes up a pooler; neither vectors nor the hash of the weights see it."""
    spec = f"transformers:{clip}+transformers:{save_sentence_encoder(tmp_path / 'a')}"
    first, second = make_encoder(spec), make_encoder(spec)
    assert first.describe() == second.describe()
    np.testing.assert_array_equal(first.encode_captions(["a"])[0], second.encode_captions(["a"])[0])


def test_errors(clip, tmp_path):
    path = save_sentence_encoder(tmp_path / "a", "max_tokens")
    spec = f"transformers:{clip}+transformers:{path}"
    with pytest.raises(ConfigError, match="max_tokens"):
        make_encoder(spec)
    steps = [{"type": f"sentence_transformers.models.{x}"} for x in ("Transformer", "Pooling")]
    dense = [*steps, {"type": "sentence_transformers.models.Dense"}]
    (path / "modules.json").write_text(json.dumps(dense))
    with pytest.raises(ConfigError, match="Transformer, Pooling, Dense"):
        make_encoder(spec)
    (path / "modules.json").write_text("{")
    with pytest.raises(DataError, match=r"modules\.json: "):
        make_encoder(spec)
    with pytest.raises(ConfigError, match=str(path)) as error:
        make_encoder(f"transformers:{path}")
    assert error.value.hint.endswith(f"--encoder=timm:NAME+transformers:{path}")
    shutil.rmtree(path)
    with pytest.raises(ConfigError, match=str(path)):
        make_encoder(spec)
