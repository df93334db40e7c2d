"""Runs with a pretrained text encoder: trained, frozen, stopped, and without their original."""

import re
import shutil
import subprocess
import sys
from dataclasses import replace

import jax
import numpy as np
import pytest

import l2rm_jax
from l2rm_jax.audit.inputs import read_training_pairs
from l2rm_jax.config import default
from l2rm_jax.data import scenes
from l2rm_jax.data.vectors import as_rows, caption_vectors
from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.models import WORDS
from l2rm_jax.models.pretrained import TextTransformer
from l2rm_jax.pretrained.directory import open_pretrained
from l2rm_jax.run.config_file import with_changes
from l2rm_jax.run.inputs import check_settings, read_data
from l2rm_jax.run.load_trained import read_trained
from l2rm_jax.run.pretrained import (
    VECTORS_FILE,
    changed_directories,
    find_pretrained,
    with_judged_vectors,
    with_own_weights,
)
from tests.models.pretrained.golden import GOLDEN, read_parameters
from tests.run.pretrained_runs import (
    SIZES,
    bert_config,
    copy_model,
    make_run,
    run,
    write_scenes,
)
from tests.run.tiny_runs import records


def assert_equal(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def differs(one, other) -> bool:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return any((np.asarray(a) != np.asarray(b)).any() for a, b in pairs)


def assert_same_training(results, others, workdir, other) -> None:
    """Check that two runs had the same epochs and results; their losses may differ by rounding."""
    for field in ("test", "best_validation_rsum"):
        assert results[field] == others[field]
    both = [[x for x in records(run) if x["kind"] == "epoch"] for run in (workdir, other)]
    losses, expected = ([line["loss"] for line in lines] for lines in both)
    assert losses == pytest.approx(expected, rel=1e-5)
    assert [line["rsum"] for line in both[0]] == [line["rsum"] for line in both[1]]


def states_of(pretrained, captions, vector):
    ids = pretrained.pieces.encode_all(captions)
    lengths = np.array([len(each) for each in ids])
    tokens = np.stack([np.pad(each, (0, 32 - len(each))) for each in ids])
    model = TextTransformer(pretrained.bases.text, vector=vector)
    params = {"params": pretrained.parameters()["text_base"]}
    return model.apply(params, tokens, lengths, False)


@pytest.mark.slow
def test_a_frozen_base_equals_imported_features(tmp_path):
    """Train with the frozen BERT on text, and on the states of the same BERT as caption vectors."""
    write_scenes(tmp_path / "texts")
    fields = {
        "data__name": "mine",
        "data__path": str(tmp_path / "texts"),
        "model__text_states": "all",
        "train__batch_size": 12,
        "train__epochs": 1,
    }
    config = bert_config(optim__text_rate=0.0, **fields)
    text_results = run(config, tmp_path / "text run")

    shutil.copytree(tmp_path / "texts", tmp_path / "vectors")
    pretrained = open_pretrained(GOLDEN / "bert", "bert", max_words=32)
    for split in SIZES:
        captions = (tmp_path / "texts" / f"{split}_caps.txt").read_text().splitlines()
        vectors, counts = states_of(pretrained, captions, vector=False)
        np.save(tmp_path / "vectors" / f"{split}_caps.npy", vectors)
        np.save(tmp_path / "vectors" / f"{split}_lengths.npy", counts)
    config = bert_config(**{**fields, "data__path": str(tmp_path / "vectors")})
    config.model.text_encoder, config.model.pretrained = WORDS, ""
    vector_results = run(config, tmp_path / "vector run")

    assert_same_training(
        text_results, vector_results, tmp_path / "text run", tmp_path / "vector run"
    )
    frozen, other = (
        read_trained(tmp_path / f"{name} run", "last").state for name in ("text", "vector")
    )
    assert_equal(frozen.params["text_base"], read_parameters("bert")["text_base"])
    heads = {name: part for name, part in frozen.params.items() if name != "text_base"}
    close = lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5)  # noqa: E731
    jax.tree.map(close, heads, other.params)
    # No moments: the optimiser has the shapes of a run without a base.
    shapes = [jax.tree.map(np.shape, state.opt_state) for state in (frozen, other)]
    assert shapes[0] == shapes[1]


@pytest.mark.slow
def test_the_words_of_an_alignment_are_those_of_the_caption(tmp_path):
    """The weight of a word is the sum over its pieces."""
    make_run(bert_config(model__head="saf"), tmp_path / "run")
    retriever = l2rm_jax.load(tmp_path / "run")
    [network], [shape] = retriever._networks, [scenes.generate(1, 0, "test").features.shape[1:]]
    caption = "Yellow cones, near the cube"
    images = retriever.encode_images(np.random.default_rng(0).normal(size=(1, *shape)))
    captions = retriever.encode_captions([caption])
    parts = images.parts[0], captions.parts[0]
    numbers, pieces = network.alignment(*parts, None)
    words, weights = network.alignment(*parts, caption)
    assert words == ["Yellow", "cones", ",", "near", "the", "cube"]
    assert len(numbers) == pieces.shape[1] > len(words) + 2  # with those around the caption
    _, columns = network.vocabulary.words(caption)
    for word, own in enumerate(columns):
        np.testing.assert_allclose(weights[:, word], pieces[:, own].sum(axis=1), rtol=1e-6)
    np.testing.assert_allclose(weights.sum(), pieces[:, 1:-1].sum(), rtol=1e-6)
    with pytest.raises(DataError, match=r"captions: .* as number 1"):
        retriever.encode_captions(["a cube", " "])


def test_judged_captions_are_the_vectors_of_the_pretrained_encoder(tmp_path):
    """For cross-fitting and the linear head alone; in float16, and taken with their pairs."""
    config = bert_config(train__draw="judgement")
    data = with_judged_vectors(config, read_data(config, tmp_path), tmp_path)
    expected, _ = states_of(data.pretrained, data.train.captions, vector=True)
    rows = np.arange(len(data.train))
    found = data.train.encoded.captions
    np.testing.assert_allclose(found.rows(rows), expected, rtol=0, atol=5e-4)
    fitted = caption_vectors(data.train.to_judge)
    assert fitted.fit is None and fitted.rows.shape == (100, 12)
    part = data.train.take(np.array([7, 3])).encoded.captions
    np.testing.assert_array_equal(part.rows(np.arange(2)), found.rows(np.array([7, 3])))
    for fields in ({}, {"model__head": "linear", "model__text_states": "vector"}):
        config = bert_config(**fields)
        data = with_judged_vectors(config, read_data(config, tmp_path), tmp_path)
        assert (data.train.encoded is None) == (not fields)


def test_judged_vectors_are_made_once_and_belong_to_their_captions(tmp_path, monkeypatch):
    config = bert_config(train__draw="judgement")
    data = read_data(config, tmp_path)
    made = with_judged_vectors(config, data, tmp_path).train.encoded.captions

    def refuse(*_):
        raise AssertionError("made again")

    monkeypatch.setattr("l2rm_jax.run.pretrained.judged_vectors", refuse)
    kept, rows = with_judged_vectors(config, data, tmp_path).train.encoded.captions, np.arange(100)
    np.testing.assert_array_equal(kept.rows(rows), made.rows(rows))
    other = replace(data, train=data.train.take(rows[::-1]))
    file = tmp_path / VECTORS_FILE
    with pytest.raises(DataError, match=r"vectors\.npz"):
        with_judged_vectors(config, other, tmp_path)
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(DataError, match=r"vectors\.npz"):
        with_judged_vectors(config, data, tmp_path)


def read(config):
    return read_training_pairs(config)[0]


@pytest.mark.slow
def test_an_audit_reads_the_same_vectors(tmp_path):
    """Beside the words, which are a second opinion on what captions say."""
    config = bert_config(train__draw="judgement", mismatch__rate=0.2)
    train = with_judged_vectors(config, read_data(config, tmp_path), tmp_path).train
    pairs, rows = as_rows(read(config)), np.arange(len(train))
    np.testing.assert_array_equal(pairs.captions[rows], train.encoded.captions.rows(rows)[:, 0])
    np.testing.assert_array_equal(pairs.image_of, train.stored_image)
    assert pairs.words is not None and pairs.texts == train.captions
    words = read(with_changes(config, {"model.text_encoder": "gru", "model.pretrained": ""}))
    assert as_rows(words).captions.shape[1] != 12 and words.digest != read(config).digest


def test_changed_originals_are_noticed(tmp_path):
    """Not one that is gone, or the same under another name."""
    original = copy_model(tmp_path / "model")
    config = bert_config(original)
    find_pretrained(config, None).keep(tmp_path / "run")
    own = find_pretrained(config, tmp_path / "run")
    assert own.directories["pretrained"].directory == tmp_path / "run/pretrained"
    assert changed_directories(None, config) == changed_directories(own, config) == []
    for directory in (tmp_path / "nowhere", tmp_path / "run/pretrained"):
        assert changed_directories(own, bert_config(directory)) == []
    file = original / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-4] + b"1234")
    assert changed_directories(own, config) == [str(original)]
    file.unlink()
    assert changed_directories(own, config) == [str(original)]


def test_other_runs_start_from_the_copy_of_the_weights(tmp_path):
    """An audit of the run does so."""
    config = bert_config(tmp_path / "gone")
    assert with_own_weights(config, tmp_path).model.pretrained == str(tmp_path / "gone")
    open_pretrained(GOLDEN / "bert", "bert", max_words=32).keep(tmp_path / "pretrained")
    assert with_own_weights(config, tmp_path).model.pretrained == str(tmp_path / "pretrained")
    assert with_own_weights(default(), tmp_path).model.pretrained == ""


def test_other_fields_must_fit(tmp_path):
    wrong = [
        ("model.pretrained", {"model__pretrained": ""}),
        ("model.text_encoder", {"model__text_encoder": "gru"}),
        ("model.text_encoder", {"model__text_encoder": "t5"}),
        ("model.text_states", {"model__text_states": "x"}),
        ("model.adapter_rank", {"model__adapter_rank": -1}),
        ("model.base_dropout", {"model__base_dropout": 1.0}),
        ("optim.text_rate", {"optim__text_rate": -1.0}),
        ("train.length_groups", {"train__length_groups": 0}),
        ("optim.schedule", {"optim__schedule": "linear"}),
        ("optim.beta2", {"optim__beta2": 1.0}),
        ("model.text_states", {"model__head": "linear"}),
        ("model.adapter_rank", {"model__adapter_rank": 2, "optim__text_rate": 0.0}),
    ]
    for named, fields in wrong:
        with pytest.raises(ConfigError, match=re.escape(named)):
            check_settings(bert_config(**fields))
    plain = bert_config(optim__base_epochs=1, model__adapter_rank=2, model__pretrained="")
    plain.model.text_encoder = WORDS
    with pytest.raises(ConfigError) as found:
        check_settings(plain)
    assert len(found.value.args) == 2
    needless = {"data__min_count": 1, "data__split_sentences": True, "data__vocabulary": "x.json"}
    with pytest.raises(ConfigError) as found:
        read_data(bert_config(**needless), tmp_path)
    assert len(found.value.args) == 3
    with pytest.raises(ConfigError, match="word_noise"):
        read_data(bert_config(kind="clip", model__word_noise=0.2), tmp_path)
    with pytest.raises(DataError, match=r"model_type.*clip"):
        read_data(bert_config(GOLDEN / "clip"), tmp_path)


@pytest.mark.slow
def test_a_run_without_a_base_imports_no_package_of_it():
    code = """
import sys
import l2rm_jax.train, l2rm_jax.retriever.loading
from l2rm_jax.run.inputs import read_data
from l2rm_jax.config import get_config
read_data(get_config("quick"), None)
print(sorted({"safetensors", "tokenizers", "torch", "transformers"} & set(sys.modules)))
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
