"""Suites that make the tables of the papers."""

import argparse
import itertools
import json
from pathlib import Path

import pytest
from ml_collections import ConfigDict

from experiments.benchmark import __main__ as benchmark
from experiments.benchmark.suite import Cell, find_suite
from experiments.benchmark.suites.grid import ours
from experiments.papers.runs import total_epochs
from l2rm_jax.config import flat
from l2rm_jax.methods import METHODS
from l2rm_jax.models import HEADS


def asked(suite: str, config: str = "", only: dict | None = None, path: str = "", **settings):
    """The chosen runs of a suite; `settings` are those of --set, with `__` for a dot."""
    chosen_by = {**dict.fromkeys(benchmark.FILTERS), **(only or {})}
    changes = {key.replace("__", "."): value for key, value in settings.items()}
    where = {"path": Path(path) if path else None, "pretrained": None}
    flags = argparse.Namespace(suite=suite, config=config, set=changes, **where, **chosen_by)
    return benchmark.asked(flags)[2]


def by_row(found: list[Cell]) -> dict[str, ConfigDict]:
    return {cell.row: cell.config for cell in found}


@pytest.mark.slow
def test_settings_of_the_command():
    """They replace the suite's; a seed or a rate holds for all runs, a row keeps its own."""
    changes = {"seed": 7, "mismatch__rate": 0.5, "model__head": "pem", "method": "rcl"}
    found = asked("scenes", "scenes:quick", {"row": ["cca", "l2rm"]}, **changes)
    assert [cell.name for cell in found] == [
        f"{row}-{protocol}0.5-seed7"
        for row in ("cca-linear", "l2rm-pem")
        for protocol in ("image", "caption")
    ]
    config = by_row(found)["l2rm"]
    assert (config.data.scenes_dev, config.mismatch.seed, config.train.epochs) == (20, 7, 8)


def test_the_grid_has_every_method_and_head():
    """RCSL's cells are semi-paired: as many pairs match as in the others."""
    found = asked("grid-quick")
    assert {cell.name for cell in found} == {
        f"{method}-{head}-{'semi_paired60' if method == 'rcsl' else 'image0.4'}-seed0"
        for method, head in itertools.product(ours(METHODS), ours(HEADS))
        if method != "cca" or head == "linear"
    }
    configs = [cell.config for cell in found]
    assert {config.train.warmup_epochs + config.train.epochs for config in configs} == {1}
    whole = asked("grid", only={"row": ["rcsl"]}, model__embed_dim=16)
    assert {cell.config.mismatch.paired_images for cell in whole} == {1000, 600, 200}
    assert {cell.config.model.embed_dim for cell in whole} == {16}


def test_losses_of_rcl_train_as_long():
    found = asked("rcl-losses", only={"seed": [1]}, train__epochs=3)
    assert len(found) == 40 and found[0].name == "mae_one_negative-saf-image0.2-seed1"
    for row, config in by_row(found).items():
        assert total_epochs(config) == config.optim.decay_epochs == 11
        assert (config.train.epochs == 0) == (row == "TR")
        if config.method == "rcl":
            losses = {"NL": "log", "mae one negative": "mae"}
            assert config.rcl.loss == losses.get(row, row)
            assert config.rcl.negatives == (row in losses)
    elsewhere = by_row(asked("rcl-losses", "coco", only={"seed": [0]}))
    assert {(total_epochs(each), each.data.name) for each in elsewhere.values()} == {(30, "coco")}


@pytest.mark.parametrize(
    "name", ["l2rm-tab3", "l2rm-tab4", "rcl-tab4", "rcsl-tab6", "rcsl-fig3", "rcl-losses"]
)
def test_rows_of_an_ablation_differ(name):
    found = by_row(asked(name, "scenes:quick", {"seed": [0]}, mismatch__rate=0.2))
    configs = {json.dumps(flat(config), default=str) for config in found.values()}
    assert len(configs) == len(found) == len(find_suite(name).rows)
    if name == "rcsl-fig3":
        assert {config.mismatch.protocol for config in found.values()} == {"caption"}
    if name == "rcsl-tab6":
        assert {config.mismatch.paired_images for config in found.values()} == {20}
