"""Directories of weights are checked before a library reads them."""

import json
import os

import pytest

from l2rm_jax.errors import DataError
from l2rm_jax.pretrained.pytorch.library import check_files


def test_sizes_of_any_architecture_are_bounded(tmp_path):
    config = {"model_args": {"depth": 12, "embed_dim": 768}, "vocab_size": 250_002, "bos": 1 << 40}
    file = tmp_path / "config.json"
    check_files(tmp_path)
    check_files("name/on-the-hub")
    file.write_text(json.dumps(config))
    check_files(tmp_path)
    config |= {"model_args": {"depth": 10**6}, "n_layers": 1e30, "vocab_size": 10**400}
    file.write_text(json.dumps(config))
    with pytest.raises(
        DataError, match=r"config\.json: model_args\.depth: found 1000000"
    ) as caught:
        check_files(tmp_path)
    assert len(caught.value.args) == 3


def test_files_of_another_kind_are_refused(tmp_path):
    (tmp_path / "1_Pooling").mkdir()
    os.mkfifo(tmp_path / "1_Pooling/config.json")
    with pytest.raises(DataError, match=r"config\.json: found a FIFO, expected a file"):
        check_files(tmp_path)
