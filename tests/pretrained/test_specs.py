"""Sizes in a config.json beyond any real encoder are refused: building it would never end."""

import pytest

from l2rm_jax.errors import DataError
from l2rm_jax.pretrained.specs import read_image_base, read_text_base


@pytest.mark.parametrize(
    ("field", "size"),
    [("num_hidden_layers", 10**6), ("vocab_size", 10**10), ("hidden_size", 10**8)],
)
def test_sizes_without_a_limit_are_refused(field, size):
    with pytest.raises(DataError, match=f"{field}: found {size}, expected a positive integer"):
        read_text_base({"model_type": "bert", field: size})


def test_a_vision_transformer_of_many_layers_is_refused():
    config = {"model_type": "clip", "vision_config": {"num_hidden_layers": 10**6}}
    with pytest.raises(DataError, match="num_hidden_layers: found 1000000"):
        read_image_base(config)
