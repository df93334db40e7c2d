"""Small models of timm with random weights: regions are averages of their own feature map."""

import json

import numpy as np
import pytest

from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.run.choose_encoder import make_encoder
from tests.pretrained.pytorch.tiny_models import pictures, save_backbone, torch

timm = pytest.importorskip("timm")

SWIN = dict(embed_dim=24, depths=(1, 1, 1, 1), num_heads=(1, 1, 2, 2))
# Name, arguments, side of the map, tokens that are no patches.
MODELS = {
    "resnet": ("test_resnet", {}, 5, 0),
    "vit": ("test_vit", {}, 10, 1),
    "registers": ("test_vit", {"reg_tokens": 3}, 10, 4),
    "channels last": ("swin_tiny_patch4_window7_224", SWIN, 7, 0),
}


@pytest.fixture(scope="module", params=[*MODELS])
def model(request, tmp_path_factory):
    name, arguments, *expected = MODELS[request.param]
    path = tmp_path_factory.mktemp("models") / name
    return save_backbone(path, name, **arguments), *expected


def test_regions_are_averages_of_the_map(model):
    path, side, prefix = model
    network = timm.create_model(f"local-dir:{path}", pretrained=True).eval()
    prepare = timm.data.create_transform(**timm.data.resolve_model_data_config(network))
    images = pictures(3)
    with torch.no_grad():
        maps = network.forward_features(torch.stack([prepare(image) for image in images])).numpy()
    if maps.ndim == 3:
        maps = maps[:, prefix:].reshape(3, side, side, -1)
    elif maps.shape[1] == network.num_features:
        maps = maps.transpose(0, 2, 3, 1)
    assert maps.shape == (3, side, side, network.num_features)
    cells = min(side, 6)
    starts = [cell * side // cells for cell in range(cells)]
    ends = [-(-(cell + 1) * side // cells) for cell in range(cells)]
    expected = [
        maps[:, top:bottom, left:right].mean(axis=(1, 2))
        for top, bottom in zip(starts, ends, strict=True)
        for left, right in zip(starts, ends, strict=True)
    ]
    regions = make_encoder(f"timm:{path}").encode_images(images)
    assert regions.dtype == np.float16
    np.testing.assert_allclose(regions, np.stack(expected, axis=1), rtol=2e-3, atol=2e-3)
    assert np.ptp(regions.astype(float), axis=(0, 1)).max() > 0.02


def test_batches_description_and_captions(model):
    path = model[0]
    encoder = make_encoder(f"timm:{path}")
    images = pictures(40)
    regions = encoder.encode_images(images)
    alone = np.concatenate([encoder.encode_images([images[row]]) for row in (0, 31, 32, 39)])
    np.testing.assert_allclose(regions[[0, 31, 32, 39]], alone, rtol=2e-3, atol=2e-3)
    described = encoder.describe()
    assert described == make_encoder(f"timm:{path}").describe()
    assert (described["images"]["regions"], described["images"]["features"]) == regions.shape[1:]
    assert described["captions"] is None and encoder.encode_captions(["a dog"]) is None


def test_errors(tmp_path, monkeypatch):
    path = save_backbone(tmp_path / "a", "test_resnet")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "architecture": "test_vit"}))
    with pytest.raises(DataError, match=str(path)):
        make_encoder(f"timm:{path}")
    (path / "config.json").write_text(json.dumps({**config, "architecture": "none"}))
    with pytest.raises(DataError, match="none"):
        make_encoder(f"timm:{path}")
    (path / "config.json").write_text(json.dumps({"architecture": "test_resnet"}))
    make_encoder(f"timm:{path}")
    for file in path.glob("*.safetensors"):
        file.unlink()
    with pytest.raises(DataError, match=r"config\.json .* model\.safetensors"):
        make_encoder(f"timm:{path}")
    (path / "config.json").unlink()
    with pytest.raises(DataError, match=r"config\.json .*architecture"):
        make_encoder(f"timm:{path}")
    with pytest.raises(ConfigError, match="none "):
        make_encoder(f"timm:{tmp_path / 'none'}")
    with pytest.raises(ConfigError, match="resnet_none"):
        make_encoder("timm:resnet_none")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    for name in ("timm/resnet18.a1_in1k", "resnet18"):
        with pytest.raises(DataError, match=r"directory DIR with .*huggingface\.co/timm/resnet18"):
            make_encoder(f"timm:{name}")


def test_models_without_places_are_refused(tmp_path, monkeypatch):
    """Stands for models whose tokens are no grid: here, 99 patches."""
    model = timm.models.vision_transformer.VisionTransformer
    whole = model.forward_features
    monkeypatch.setattr(model, "forward_features", lambda *inputs: whole(*inputs)[:, :-1])
    with pytest.raises(ConfigError, match=r"\[100, 64\]"):
        make_encoder(f"timm:{save_backbone(tmp_path / 'a', 'test_vit')}")
