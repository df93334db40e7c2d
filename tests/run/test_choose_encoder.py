"""Encoders of a run by their names: against PyTorch, and names that are refused."""

import json

import numpy as np
import pytest

pytest.importorskip("tokenizers", reason="the extra `pretrained` is not installed")

from l2rm_jax.errors import ConfigError, DataError, L2RMError
from l2rm_jax.run.choose_encoder import make_encoder
from tests.importing.made import picture
from tests.models.pretrained.golden import GOLDEN
from tests.run.pretrained_runs import copy_model

CLIP = GOLDEN / "clip"


def test_our_encoder_equals_that_of_pytorch(tmp_path):
    """Pictures of many shapes, captions of many lengths; with and without tokens."""
    from tests.pretrained.pytorch.tiny_models import captions, pictures, save_clip

    path, images = save_clip(tmp_path / "clip"), pictures(40)
    texts = [*captions(150), "a dog runs on the grass and the man with two red balls"]
    for tokens in (None, "patches"):
        ours, theirs = (make_encoder(f"{kind}:{path}", tokens) for kind in ("jax", "transformers"))
        np.testing.assert_allclose(
            ours.encode_images(images), theirs.encode_images(images), rtol=0, atol=1.5e-3
        )
        found, expected = ours.encode_captions(texts), theirs.encode_captions(texts)
        assert found[0].dtype == expected[0].dtype == np.float16
        assert ours.cut_captions == theirs.cut_captions > 0
        if tokens:
            np.testing.assert_array_equal(found[1], expected[1])
            expected = (expected[0][:, : found[0].shape[1]],)
        np.testing.assert_allclose(found[0], expected[0], rtol=0, atol=1.5e-3)


def test_pixels_are_those_of_the_image_processor(tmp_path):
    """CLIP cuts a square, SigLIP does not."""
    from l2rm_jax.models.pretrained.vision import to_numbers
    from l2rm_jax.pretrained.directory import open_pretrained
    from l2rm_jax.pretrained.preparation import prepare
    from tests.pretrained.pytorch.tiny_models import SAVE, pictures, transformers

    images = pictures(60, seed=3)
    for kind in ("clip", "siglip"):
        path = SAVE[kind](tmp_path / kind)
        opened = open_pretrained(path, image_encoder=kind, with_weights=False)
        preparation = opened.bases.image.preparation
        processor = transformers.AutoImageProcessor.from_pretrained(path, backend="pil")
        expected = np.concatenate(
            [processor(images=image, return_tensors="np").pixel_values for image in images]
        )
        found = to_numbers(prepare(images, preparation), preparation)
        np.testing.assert_allclose(found, expected.transpose(0, 2, 3, 1), rtol=0, atol=1e-5)


def test_captions_alone_by_our_bert(tmp_path):
    """After `+`, with the pooling that the directory names; the mean where it names none."""
    from tests.pretrained.pytorch.tiny_models import captions, save_sentence_encoder

    texts = captions(30)
    for pooling in ("mean_tokens", "cls_token", "none"):
        path = save_sentence_encoder(tmp_path / pooling, pooling.replace("none", "mean_tokens"))
        if pooling == "none":
            (path / "1_Pooling/config.json").unlink()
            (path / "modules.json").unlink()
        ours = make_encoder(f"pixels:{CLIP}+jax:{path}")
        theirs = make_encoder(f"pixels:{CLIP}+transformers:{path}")
        found, expected = ours.encode_captions(texts), theirs.encode_captions(texts)
        assert found[1] is expected[1] is None
        np.testing.assert_allclose(found[0], expected[0], rtol=0, atol=1.5e-3)
        assert ours.encode_images([picture(0)]).dtype == np.uint8


@pytest.mark.parametrize(
    ("spec", "tokens", "message"),
    [
        (f"jax:{GOLDEN / 'bert'}", None, "does not compare images with captions"),
        (f"pixels:{GOLDEN / 'bert'}", None, "a text model"),
        (f"pixels:{CLIP}", "patches", "--tokens .*--encoder=pixels"),
        (f"jax:{CLIP}+jax:{GOLDEN / 'bert'}", "patches", "patches of bert .* are not known"),
        (f"jax:{CLIP}+pixels:{CLIP}", None, r"after \+, .*no caption model"),
        ("jax:nowhere", None, "nowhere: no such directory"),
        ("flax:x", None, "expected transformers:NAME, timm:NAME, pixels:NAME, jax:NAME"),
    ],
)
def test_what_cannot_be_encoded_is_refused(spec, tokens, message):
    with pytest.raises(L2RMError, match=message):
        make_encoder(spec, tokens)


def test_a_directory_without_its_preparation_is_refused(tmp_path):
    path = copy_model(tmp_path / "clip", "clip")
    settings = (path / "preprocessor_config.json").read_text()
    (path / "preprocessor_config.json").unlink()
    with pytest.raises(DataError, match=r"found config\.json.*expected preprocessor_config\.json"):
        make_encoder(f"pixels:{path}")
    processor = {"image_processor": json.loads(settings), "processor_class": "CLIPProcessor"}
    (path / "processor_config.json").write_text(json.dumps(processor))
    assert make_encoder(f"pixels:{path}").describe()["images"]["image_size"] == 24
    (path / "preprocessor_config.json").write_text('{"size": 20}')
    with pytest.raises(
        DataError, match=r"preprocessor_config\.json: size: found \{'shortest_edge'"
    ):
        make_encoder(f"pixels:{path}")
    with pytest.raises(ConfigError, match="tokens: found 'x'"):
        make_encoder(f"pixels:{path}", "x")
