"""Published and recommended settings: every variant is a config that a run accepts."""

import runpy
from pathlib import Path

import pytest

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
    assert config.method == method and config.model.head == "sgr"
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
