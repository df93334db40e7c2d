"""Published and recommended settings: every variant is a config that a run accepts."""

import runpy
from dataclasses import replace
from pathlib import Path

import jax
import pytest

from l2rm_jax.devices.batch import Batch
from l2rm_jax.errors import ConfigError
from l2rm_jax.methods.optimiser import model_optimiser
from l2rm_jax.models import REGIONS, make_model
from l2rm_jax.pretrained.preparation import read_preparation
from l2rm_jax.pretrained.specs import Bases, PieceIds, read_image_base, read_text_base
from l2rm_jax.run.config_file import flat, load_config
from l2rm_jax.run.inputs import check_settings
from l2rm_jax.settings import COMPARED

ROOT = Path(__file__).parents[1]
VARIANTS = [(data, method) for data, methods in COMPARED.items() for method in methods]


@pytest.mark.parametrize(("data", "method"), VARIANTS)
def test_variants_of_the_compared_methods(data, method):
    """Figures of the authors' public code, as far as they are the same for all of their data."""
    get_config = runpy.run_path(str(ROOT / "configs" / f"{data}.py"))["get_config"]
    config = get_config(method)
    check_settings(config)
    assert config.method == method and config.model.head == (
        "centred" if method == "in2r" else "sgr"
    )
    assert (config.train.batch_size, config.loss.margin, config.optim.grad_clip) == (128, 0.2, 2.0)
    own_protocol = "caption" if method != "decl" and data != "cc152k" else "image"
    assert config.mismatch.protocol == own_protocol
    if method in ("ncr", "bicro"):
        assert config.co_teaching.mismatched_epoch == config.train.epochs // 2
        assert config.co_teaching.margins == "paper"
    if method == "sps":
        starts = config.sps.clean_epoch, config.sps.noisy_epoch
        assert starts == ((5, 10) if data == "coco" else (10, 15))
        assert config.loss.tau == 0.07
    if method == "crcl":
        assert config.crcl.schedules == (5, 5, 5)
        assert (config.train.warmup_epochs, config.train.epochs) == (2, 30)


def test_recipes_differ_in_the_number_of_networks_alone():
    linear, recall = load_config("recipes:linear"), load_config("recipes:recall")
    check_settings(recall)
    fields = flat(linear)
    assert {key: x for key, x in flat(recall).items() if fields[key] != x} == {"train.networks": 2}


def test_the_pretrained_recipe_freezes_and_needs_a_directory():
    linear, pretrained = load_config("recipes:linear"), load_config("recipes:pretrained")
    fields = flat(linear)
    assert {key: x for key, x in flat(pretrained).items() if fields[key] != x} == {
        "model.text_encoder": "bert",
        "model.text_states": "vector",
        "model.image_states": "vector",
        "optim.text_rate": 0.0,
        "optim.image_rate": 0.0,
    }
    with pytest.raises(ConfigError, match=r"model\.pretrained"):
        check_settings(pretrained)


def default_bases(config):
    """The sizes of BERT-base and CLIP ViT-B/32, which are the defaults of their classes."""
    text = read_text_base({"model_type": config.model.text_encoder})
    if text.kind == "bert":
        text = replace(text, ids=PieceIds(text.pieces, 103, (0, 100, 101, 102, 103), ()))
    if config.model.image_encoder == REGIONS:
        return Bases(text)
    image = read_image_base({"model_type": "clip"})
    return Bases(text, replace(image, preparation=read_preparation({}, "clip", image.image_size)))


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        # As transformers counts them, without the pooler of BERT and the scale of CLIP.
        ("f30k:omit_bert", {"text_base": 108_891_648}),
        ("f30k:clip", {"text_base": 63_428_096, "image_base": 87_849_216}),
        ("f30k:clip_omit", {"text_base": 63_428_096, "image_base": 87_849_216}),
    ],
)
def test_variants_with_pretrained_encoders(name, numbers):
    """They need a directory; their models have the published number of parameters."""
    config = load_config(name)
    with pytest.raises(ConfigError, match=r"model\.pretrained"):
        check_settings(config)
    config.model.pretrained = "DIR"
    check_settings(config)
    bases = default_bases(config)
    model = make_model(config, bases.text.pieces, bases=bases)
    shape, kind = ((2, 224, 224, 3), "uint8") if bases.image else ((2, 36, 2048), "float32")
    images, tokens = jax.ShapeDtypeStruct(shape, kind), jax.ShapeDtypeStruct((2, 32), "int32")
    counts = jax.ShapeDtypeStruct((2,), "int32")
    batch = Batch(images, counts, tokens, counts)
    shapes = jax.eval_shape(model.init, jax.random.key(0), batch)["params"]
    found = {
        group: sum(leaf.size for leaf in jax.tree.leaves(shapes[group]))
        for group in ("text_base", "image_base")
        if group in shapes
    }
    assert found == numbers
    assert (set(shapes) == set(numbers)) == name.endswith(":clip")
    rates = model_optimiser(config).groups
    if name.endswith(":clip"):
        assert rates == {"text_base": 1.0, "image_base": 1.0}
    else:
        assert rates["text_base"] == 0.1 and rates.get("image_base", 0.01) == 0.01
