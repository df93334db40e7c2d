"""The time of matching, per row of the suite of heads."""

import pytest

from experiments.bench import matching
from l2rm_jax import config as defaults
from l2rm_jax.models.vse import VSE


@pytest.fixture
def small_sizes(monkeypatch):
    sizes = {"TILE": 2, "IMAGES": 4, "CAPTIONS": 6, "REGIONS": 3, "FEATURES": 4, "WORDS": 3}
    for name, value in sizes.items():
        monkeypatch.setattr(matching, name, value)


@pytest.mark.parametrize("head", ["omit", "vse"])
def test_matching_is_timed(small_sizes, head):
    config = defaults.default()
    config.model.update(head=head, embed_dim=4, word_dim=3)
    assert 0 < matching.matching_seconds(config) < 5


def test_one_product_is_timed_as_one(small_sizes, monkeypatch):
    """Each image and each caption is pooled once, not once for each tile of the other side."""
    calls = []
    score = VSE.__call__

    def counted(self, *inputs):
        calls.append(inputs)
        return score(self, *inputs)

    monkeypatch.setattr(VSE, "__call__", counted)
    config = defaults.default()
    config.model.update(head="vse", embed_dim=4, word_dim=3)
    matching.matching_seconds(config)
    assert len(calls) == 1  # to initialise the model
