"""Directories of pretrained weights: every fault is found, and none is read by unpickling."""

import json
import shutil
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from l2rm_jax.errors import DataError
from l2rm_jax.pretrained.directory import SOURCE_FILE, Pretrained, open_pretrained
from l2rm_jax.pretrained.specs import read_image_base, read_text_base
from tests.models.pretrained.golden import GOLDEN, read_parameters

KIND = "bert"


@pytest.fixture
def directory(tmp_path) -> Path:
    shutil.copytree(GOLDEN / KIND, tmp_path / "model")
    (tmp_path / "model" / "expected.npz").unlink()
    return tmp_path / "model"


def read(directory: Path, kind: str = KIND) -> dict:
    return open_pretrained(directory, kind, max_words=32).parameters()["text_base"]


def change_config(**fields):
    def change(directory):
        file = directory / "config.json"
        config = {**json.loads(file.read_bytes()), **fields}
        file.write_text(json.dumps({key: config[key] for key in config if config[key] != "GONE"}))

    return change


def change_arrays(change):
    def damage(directory):
        file = directory / "model.safetensors"
        arrays = load_file(file)
        change(arrays)
        save_file(arrays, file)

    return damage


def remove(name):
    return lambda directory: (directory / name).unlink()


def truncate(directory):
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def pickled(directory):
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")


def missing_shard(directory):
    (directory / "model.safetensors").unlink()
    index = {"weight_map": {"embeddings.word_embeddings.weight": "model-1-of-2.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


WORD = "embeddings.word_embeddings.weight"
NORM = "encoder.layer.1.output.LayerNorm.bias"
FAULTS = {  # a function that damages a directory, and a part of the message
    "no config": (remove("config.json"), r"config\.json"),
    "no tokenizer": (remove("tokenizer.json"), r"tokenizer\.json"),
    "no weights": (remove("model.safetensors"), r"model\.safetensors"),
    "pickled": (pickled, r"pytorch_model\.bin"),
    "config is no JSON": (lambda path: (path / "config.json").write_text("{"), r"config\.json"),
    "config is a list": (lambda path: (path / "config.json").write_text("[]"), r"config\.json"),
    "another type": (change_config(model_type="gpt2"), "model_type: found 'gpt2'"),
    "activation": (change_config(hidden_act="swiglu"), "hidden_act: found 'swiglu'"),
    "positions": (
        change_config(position_embedding_type="relative_key"),
        "position_embedding_type: found 'relative_key'",
    ),
    "decoder": (change_config(is_decoder=True), "is_decoder: found True"),
    "size": (change_config(hidden_size=-3), "hidden_size: found -3"),
    "heads": (change_config(num_attention_heads=5), "hidden_size: found 12"),
    "rate": (change_config(hidden_dropout_prob="x"), "hidden_dropout_prob: found 'x'"),
    "pooling": (
        lambda path: (path / "1_Pooling/config.json").write_text('{"pooling_mode_max_tokens": 1}'),
        r"1_Pooling/config\.json: .*pooling_mode_max_tokens",
    ),
    "missing array": (
        change_arrays(lambda arrays: (arrays.pop(WORD), arrays.pop(NORM))),
        rf"2 arrays .*{WORD}, {NORM}$",
    ),
    "unknown arrays": (
        change_arrays(lambda arrays: arrays.update({f"extra.{k}": arrays[NORM] for k in range(5)})),
        r"5 arrays .*extra\.0, extra\.1, extra\.2",
    ),
    "shape": (change_config(vocab_size=200), rf"{WORD} \[92, 12\].*\[200, 12\]"),
    "dtype": (
        change_arrays(lambda arrays: arrays.update({NORM: arrays[NORM].astype(np.int32)})),
        rf"{NORM} I32",
    ),
    "not finite": (change_arrays(lambda arrays: arrays[NORM].__setitem__(3, np.nan)), NORM),
    "truncated": (truncate, r"model\.safetensors: "),
    "shard": (missing_shard, r"model-1-of-2\.safetensors.*model\.safetensors\.index\.json"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named(directory, fault):
    damage, message = FAULTS[fault]
    damage(directory)
    with pytest.raises(DataError, match=message) as found:
        read(directory)
    assert all(line.startswith(str(directory)) for line in found.value.args)
    assert not any("\n" in line for line in found.value.args)


def test_no_directory(tmp_path):
    with pytest.raises(DataError, match="nowhere: "):
        read(tmp_path / "nowhere")


def test_all_faults_are_named_at_once(directory):
    for fault in ("size", "decoder", "no tokenizer", "truncated", "pooling"):
        FAULTS[fault][0](directory)
    with pytest.raises(DataError) as found:
        read(directory)
    messages = "\n".join(found.value.args)
    for part in ("hidden_size: found -3", "is_decoder", "tokenizer.json", "safetensors", "pooling"):
        assert part in messages


def test_unused_arrays_prefixes_and_older_names_are_accepted(directory):
    """As files of fine-tuned models and of older versions have them."""

    def rename(arrays):
        for name in list(arrays):
            older = name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta")
            arrays[f"bert.{older}"] = arrays.pop(name)
        arrays["cls.predictions.bias"] = arrays["bert.embeddings.position_ids"] = np.zeros(3, "f4")

    change_arrays(rename)(directory)
    jax.tree.map(np.testing.assert_array_equal, read(directory), read_parameters(KIND)["text_base"])


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_the_text_side_of_a_dual_model_is_read_alone(kind):
    found = open_pretrained(GOLDEN / kind, kind, max_words=64).parameters()["text_base"]
    jax.tree.map(np.testing.assert_array_equal, found, read_parameters(kind)["text_base"])


def test_half_precision_and_shards(directory):
    file, whole = directory / "model.safetensors", read(directory)
    arrays = load_file(file)
    file.unlink()
    shards = {}
    for n, dtype in enumerate((np.float16, ml_dtypes.bfloat16)):
        names = sorted(arrays)[n::2]
        save_file({k: arrays[k].astype(dtype) for k in names}, directory / f"{n}.safetensors")
        shards |= dict.fromkeys(names, f"{n}.safetensors")
    index = {"metadata": {}, "weight_map": shards}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    found = read(directory)
    assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {np.dtype("float32")}
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=2**-8)  # noqa: E731
    jax.tree.map(close, found, whole)


def test_defaults_that_a_config_leaves_out_are_those_of_transformers():
    bert = read_text_base({"model_type": "bert"})
    assert (bert.stack.width, bert.stack.layers, bert.pieces) == (768, 12, 30522)
    assert bert.stack.dropout == 0.1 and bert.pooling == "first"
    clip = read_text_base({"model_type": "clip", "text_config": {"num_hidden_layers": 3}})
    sizes = (clip.stack.layers, clip.stack.width, clip.positions, clip.projection)
    assert sizes == (3, 512, 77, 512)
    older = {"text_config": None, "text_config_dict": {"hidden_size": 768}}
    assert read_text_base({"model_type": "clip", **older}).stack.width == 768
    assert read_image_base({"model_type": "clip"}).patches == 49
    siglip = read_text_base({"model_type": "siglip"})
    assert (siglip.positions, siglip.projection, siglip.padding) == (64, 768, 1)
    assert siglip.stack.activation == "gelu_tanh"


def test_a_copy_is_whole_and_is_read_alike(directory, tmp_path):
    original = open_pretrained(directory, KIND, max_words=32)
    original.keep(tmp_path / "copy")
    source = json.loads((tmp_path / "copy" / SOURCE_FILE).read_bytes())
    assert source["directory"] == str(directory.resolve())
    assert source["sha256"] == original.hashes() and len(source["sha256"]) == 1
    copy = open_pretrained(tmp_path / "copy", KIND, max_words=32)
    assert copy.bases == original.bases and copy.hashes() == original.hashes()
    expected = read(directory)
    shutil.rmtree(directory)
    jax.tree.map(np.testing.assert_array_equal, copy.parameters()["text_base"], expected)
    # A trained run has weights of its own.
    (tmp_path / "copy" / "model.safetensors").unlink()
    light = open_pretrained(tmp_path / "copy", KIND, max_words=32, with_weights=False)
    assert light.bases == copy.bases and isinstance(light, Pretrained)


def test_the_scale_of_a_model_is_one_number(tmp_path):
    shutil.copytree(GOLDEN / "siglip", tmp_path / "model")
    opened = open_pretrained(tmp_path / "model", "siglip", "siglip")
    assert {name: float(x) for name, x in opened.scale().items()} == pytest.approx(
        {"log_scale": 0.38524902, "bias": -0.02934289}
    )
    change_arrays(lambda arrays: arrays.pop("logit_bias"))(tmp_path / "model")
    assert [*opened.scale()] == ["log_scale"]
    change_arrays(lambda arrays: arrays.update(logit_scale=np.ones(2, "f4")))(tmp_path / "model")
    with pytest.raises(DataError, match=r"model: found logit_scale \[2\]"):
        opened.scale()
