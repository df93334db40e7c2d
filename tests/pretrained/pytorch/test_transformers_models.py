"""CLIP, SigLIP and SigLIP 2 with random weights: the vectors are those of transformers itself."""

import numpy as np
import pytest

from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.run.choose_encoder import make_encoder
from tests.pretrained.pytorch.tiny_models import SAVE, captions, pictures, torch, transformers

KINDS = [*SAVE]
ROUNDED = 2e-3  # float16 of numbers below 1, and float32 of batches of other sizes


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {kind: save(root / kind) for kind, save in SAVE.items()}


@pytest.fixture(params=KINDS)
def model(request, models):
    return models[request.param]


def load_parts(path):
    """Model, image processor and tokenizer, without the library."""
    return (
        transformers.AutoModel.from_pretrained(path).eval(),
        transformers.AutoImageProcessor.from_pretrained(path, backend="pil"),
        transformers.AutoTokenizer.from_pretrained(path),
    )


def token_inputs(tokenizer, text):
    """Inputs as the pages of the models tell: SigLIP was trained on padded captions."""
    padding = {"padding": "max_length"} if "siglip" in str(tokenizer.name_or_path) else {}
    return tokenizer(text, truncation=True, return_tensors="pt", **padding)


def unit(vectors):
    vectors = vectors.detach().numpy() if isinstance(vectors, torch.Tensor) else vectors
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def test_vectors_are_those_that_the_model_compares(model):
    parts, processor, tokenizer = load_parts(model)
    images, texts = pictures(4), captions(4)
    encoder = make_encoder(f"transformers:{model}")
    with torch.no_grad():
        expected = [
            parts.get_image_features(**processor(images=image, return_tensors="pt")).pooler_output
            for image in images
        ]
        of_texts = [
            parts.get_text_features(**token_inputs(tokenizer, text)).pooler_output for text in texts
        ]
    vectors = encoder.encode_images(images)
    assert vectors.dtype == np.float16
    np.testing.assert_allclose(vectors, unit(torch.cat(expected)), atol=ROUNDED)
    vectors, lengths = encoder.encode_captions(texts)
    assert vectors.dtype == np.float16 and lengths is None
    np.testing.assert_allclose(vectors, unit(torch.cat(of_texts)), atol=ROUNDED)
    # The numbers above could not tell models that see nothing.
    assert np.ptp(vectors.astype(float), axis=0).max() > 10 * ROUNDED


@pytest.mark.parametrize("tokens", [None, "patches"])
def test_batches_change_neither_results_nor_order(model, tokens):
    encoder = make_encoder(f"transformers:{model}", tokens)
    images, texts = pictures(70), captions(300)
    some = [0, 31, 32, 69, 3]
    expected = np.concatenate([encoder.encode_images([images[row]]) for row in some])
    np.testing.assert_allclose(encoder.encode_images(images)[some], expected, atol=ROUNDED)
    some = [0, 127, 128, 299, 5]
    alone = [encoder.encode_captions([texts[row]]) for row in some]
    vectors, lengths = encoder.encode_captions(texts)
    expected = np.concatenate([one for one, _ in alone])
    np.testing.assert_allclose(vectors[some], expected, atol=ROUNDED)
    if tokens:
        assert list(lengths[some]) == [one for _, [one] in alone]
    again, _ = make_encoder(f"transformers:{model}", tokens).encode_captions(texts)
    np.testing.assert_array_equal(vectors, again)


def shifted_states(module, shift):
    """Make the encoder layers return token `j + shift` as token `j`."""

    def hook(_, __, output):
        output.last_hidden_state = output.last_hidden_state.roll(-shift, dims=1)
        return output

    return module.register_forward_hook(hook)


def test_patches_of_clip_are_what_the_class_token_would_be(models):
    parts, processor, _ = load_parts(models["clip"])
    [image] = pictures(1)
    [regions] = make_encoder(f"transformers:{models['clip']}", "patches").encode_images([image])
    inputs = processor(images=image, return_tensors="pt")
    assert len(regions) == 1 + 2 * 2
    for place, region in enumerate(regions):
        handle = shifted_states(parts.vision_model.encoder, place)
        with torch.no_grad():
            expected = parts.get_image_features(**inputs).pooler_output[0]
        handle.remove()
        np.testing.assert_allclose(region, unit(expected), atol=ROUNDED)


def test_words_are_what_the_pooled_token_would_be(model):
    parts, _, tokenizer = load_parts(model)
    text = "the dog"
    [words], [length] = make_encoder(f"transformers:{model}", "patches").encode_captions([text])
    inputs = token_inputs(tokenizer, text)
    ids = inputs["input_ids"][0]
    marks = [tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id]
    places = [place for place, number in enumerate(ids.tolist()) if number not in marks]
    is_clip = parts.config.model_type == "clip"
    pooled = ids.tolist().index(tokenizer.eos_token_id) if is_clip else len(ids) - 1
    assert length == 1 + len(places) and len(places) == len(tokenizer.tokenize(text)) > 1
    for word, place in zip(words, [pooled, *places], strict=False):
        handle = shifted_states(parts.text_model.encoder, place - pooled)
        with torch.no_grad():
            expected = parts.get_text_features(**inputs).pooler_output[0]
        handle.remove()
        np.testing.assert_allclose(word, unit(expected), atol=ROUNDED)
    assert not words[length:].any()


def test_patches_of_siglip(models):
    parts, processor, _ = load_parts(models["siglip"])
    images = pictures(3)
    regions = make_encoder(f"transformers:{models['siglip']}", "patches").encode_images(images)
    inputs = processor(images=images, return_tensors="pt")
    with torch.no_grad():
        output = parts.vision_model(**inputs)
    expected = torch.cat([output.pooler_output[:, None], output.last_hidden_state], dim=1)
    np.testing.assert_allclose(regions, unit(expected), atol=ROUNDED)


def test_patches_of_siglip_2_fill_a_square_for_pictures_of_any_shape(models):
    """3 x 3 places: the shape of a square picture; wide ones have 2 x 4 patches, say."""
    parts, processor, _ = load_parts(models["siglip2"])
    [picture] = pictures(1)
    images = [picture.resize(size) for size in [(40, 40), (80, 40), (15, 99)]]
    regions = make_encoder(f"transformers:{models['siglip2']}", "patches").encode_images(images)
    assert regions.shape[1] == 1 + 9
    shapes = set()
    for image, region in zip(images, regions, strict=True):
        inputs = processor(images=image, return_tensors="pt")
        [(height, width)] = inputs["spatial_shapes"].tolist()
        shapes.add((height, width))
        with torch.no_grad():
            output = parts.vision_model(**inputs)
        states = output.last_hidden_state[0, : height * width].numpy().reshape(height, width, -1)
        expected = [output.pooler_output[0].numpy()]
        for row in range(3):
            for column in range(3):
                rows = slice(row * height // 3, -(-(row + 1) * height // 3))
                columns = slice(column * width // 3, -(-(column + 1) * width // 3))
                expected.append(states[rows, columns].mean(axis=(0, 1)))
        np.testing.assert_allclose(region, unit(np.array(expected)), atol=ROUNDED)
    assert (3, 3) in shapes and len(shapes) == 3


def test_captions_that_are_cut_are_named_once_and_counted(models, caplog):
    encoder = make_encoder(f"transformers:{models['siglip']}")
    long = "the dog runs on the grass and the man sits on the sand with a ball"
    vectors, _ = encoder.encode_captions(["a dog", long, f"{long} of red"])
    vectors_of_others, _ = encoder.encode_captions(["a cat", f"{long} of green"])
    [line] = caplog.messages
    assert "12 tokens" in line and "the dog runs" in line and str(models["siglip"]) in line
    assert encoder.cut_captions == 3
    np.testing.assert_array_equal(vectors[1], vectors[2])
    np.testing.assert_allclose(vectors[1], vectors_of_others[1], atol=ROUNDED)


def test_description(model):
    spec = f"transformers:{model}"
    vector, patches = (make_encoder(spec, tokens).describe() for tokens in (None, "patches"))
    assert vector == make_encoder(spec).describe()
    assert vector["name"] == vector["images"]["model"] == vector["captions"]["model"] == spec
    assert vector["images"]["transformers"] == transformers.__version__
    assert vector["images"]["weights"] == patches["captions"]["weights"]
    assert vector["images"]["features"] == vector["captions"]["features"]
    assert (vector["images"]["kind"], patches["images"]["kind"]) == ("vector", "patches")
    encoder = make_encoder(spec, "patches")
    assert encoder.encode_images(pictures(2)).shape[1] == patches["images"]["regions"]
    assert encoder.encode_captions(["a"])[0].shape[1] == patches["captions"]["words"]


def test_weights_are_told_apart(models, tmp_path):
    network = transformers.AutoModel.from_pretrained(models["clip"])
    with torch.no_grad():
        network.visual_projection.weight[0, 0] += 1e-3
    changed = tmp_path / "changed"
    for file in models["clip"].iterdir():
        changed.mkdir(exist_ok=True)
        (changed / file.name).write_bytes(file.read_bytes())
    network.save_pretrained(changed)
    first, second = (
        make_encoder(f"transformers:{path}").describe()["images"]["weights"]
        for path in (models["clip"], changed)
    )
    assert first != second


def test_weights_that_lack_an_array_are_refused(models, tmp_path):
    from safetensors.numpy import load_file, save_file

    for file in models["clip"].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    arrays = load_file(tmp_path / "model.safetensors")
    del arrays["visual_projection.weight"]
    save_file(arrays, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(DataError, match=r"1 arrays .* visual_projection\.weight"):
        make_encoder(f"transformers:{tmp_path}")
    (tmp_path / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(DataError, match=str(tmp_path)):
        make_encoder(f"transformers:{tmp_path}")


def test_errors(models, tmp_path, monkeypatch):
    path = models["clip"]
    with pytest.raises(ConfigError, match="'words'"):
        make_encoder(f"transformers:{path}", "words")
    with pytest.raises(ConfigError, match="none"):
        make_encoder(f"transformers:{tmp_path / 'none'}")
    for spec in ("clip", f"clip:{path}", "timm:", f"timm:a+timm:b+timm:c{path}"):
        with pytest.raises(ConfigError, match="transformers:NAME, timm:NAME"):
            make_encoder(spec)
    with pytest.raises(ConfigError, match="resnet18"):
        make_encoder(f"transformers:{path}+timm:resnet18")
    # Without network and cache: which files, and where.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(DataError, match=r"directory DIR .* model\.safetensors") as error:
        make_encoder("transformers:openai/clip-vit-base-patch32")
    assert error.value.hint == "--encoder=transformers:DIR"


def test_a_missing_library_is_named(models, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(DataError, match="transformers ") as error:
        make_encoder(f"transformers:{models['clip']}")
    assert "l2rm_jax[encoders]" in error.value.hint


def test_a_half_of_a_dual_encoder_goes_with_another(models):
    mixed = make_encoder(f"transformers:{models['clip']}+transformers:{models['siglip']}")
    images, texts = pictures(2), captions(2)
    clip, siglip = (make_encoder(f"transformers:{models[kind]}") for kind in ("clip", "siglip"))
    np.testing.assert_array_equal(mixed.encode_images(images), clip.encode_images(images))
    expected, _ = siglip.encode_captions(texts)
    np.testing.assert_array_equal(mixed.encode_captions(texts)[0], expected)
