"""Grids and their tables; instead of training, the files of a finished run are written."""

import csv
import itertools
import json
import re
import sys
from pathlib import Path

import pytest

from experiments import flickr8k, grid, heads, precision, rcl, semi_paired, sgraf, sweep
from experiments.runs import RECALLS
from l2rm_jax import config as defaults
from l2rm_jax.errors import ConfigError
from l2rm_jax.methods import METHODS
from l2rm_jax.models import HEADS
from l2rm_jax.models.vse import VSE
from l2rm_jax.run.config_file import write_config
from l2rm_jax.run.results import write_json

CONFIG = str(Path(sweep.__file__).parents[1] / "configs" / "scenes.py")


def recalls(rsum: float) -> dict:
    ranks = {f"{way}_{rank}": 1.0 for way in ("i2t", "t2i") for rank in ("median", "mean")}
    return {"images": 9, **dict.fromkeys(RECALLS, rsum / 6), **ranks, "rsum": rsum}


def leave_run(config, workdir: Path, validation: list[float], finished: bool = True) -> None:
    """Write the files of a run with these validation rSums, one per epoch."""
    total = len(validation) if finished else config.train.warmup_epochs + config.train.epochs
    config.train.warmup_epochs, config.train.epochs = 0, total
    header = {"data": "scenes", "method": config.method, "head": config.model.head}
    header |= {"protocol": "image", "rate_asked": config.mismatch.rate, "true_rate": 0.39}
    lines = [{"kind": "step", "step": 1, **header, "loss": 3.0}]
    for epoch, rsum in enumerate(validation, 1):
        split = {"split_accuracy": 0.5 + epoch / 10, "split_precision": 0.25 + epoch / 10}
        record = {"kind": "epoch", "step": epoch, **header, "epoch": epoch, **recalls(rsum)}
        lines.append({**record, **(split if epoch > 1 else {})})
    write_config(workdir, config)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (workdir / "metrics.jsonl").write_text(text + '{"kind": "epoch", "ste')  # being written
    if finished:
        test = {"5 x 1 images": recalls(500 + config.seed), "5 images": recalls(1)}
        results = {**header, "seed": config.seed, "test": test, "rsum": 500 + config.seed}
        results["seconds"] = 9.0
        results |= {"versions": {"jax": "0.0", "device": "cpu"}, "config": config.to_dict()}
        write_json(workdir / "results.json", results)


@pytest.fixture
def trained(monkeypatch) -> list[str]:
    """The names of the runs that were trained so far."""
    names = []

    def train(config, workdir):
        names.append(workdir.name)
        leave_run(config.copy_and_resolve_references(), workdir, [100.0, 300.0, 200.0])
        write_config(workdir, config)

    monkeypatch.setattr(sweep, "train", train)
    monkeypatch.setattr(sweep.gc, "collect", lambda: None)  # half a second, and nothing is compiled
    return names


def command(monkeypatch, module, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["script", *map(str, arguments)])
    sweep.start(module.main)


def read_csv(path: Path) -> list[dict]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_sweep_trains_what_is_not_finished_and_tables_it(tmp_path, trained, monkeypatch):
    arguments = ["--config", CONFIG, "--out", tmp_path, "--vary", "seed=3,4"]
    command(monkeypatch, sweep, *arguments)
    assert trained == ["l2rm-saf-image0.4-seed3", "l2rm-saf-image0.4-seed4"]
    command(monkeypatch, sweep, *arguments, "--vary", "l2rm.rho=0.1,0.5")
    assert len(trained) == 6 and trained[-1] == "l2rm-saf-image0.4-seed4-l2rm.rho0.5"
    command(monkeypatch, sweep, *arguments)
    assert len(trained) == 6
    rows = read_csv(tmp_path / "results.csv")
    assert [row["seed"] for row in rows] == ["3", "3", "3", "4", "4", "4"]
    assert [row["l2rm.rho"] for row in rows] == ["0.1", "0.1", "0.5"] * 2
    assert "l2rm.epsilon" not in rows[0]  # the same everywhere
    assert rows[0] | {"rsum": "503", "best_epoch": "2", "dev_rsum": "300.0"} == rows[0]
    assert (rows[0]["dev_t2i_r5"], rows[0]["split_accuracy"]) == ("50.0", "0.8")  # best, last


@pytest.mark.parametrize(
    ("settings", "seeds"), [({}, (7, 7)), ({"mismatch.seed": 5}, (7, 5)), ({"seed": 8}, (7, 7))]
)
def test_the_seed_sets_that_of_the_mismatch_too(settings, seeds):
    [(_, config)] = sweep.grid(defaults.get_config(), {"seed": [7]}, settings)
    assert (config.seed, config.mismatch.seed) == seeds


def test_a_grid_is_refused_before_anything_is_trained(tmp_path, trained, monkeypatch):
    other = defaults.get_config()
    other.seed = other.mismatch.seed = 1
    other.train.batch_size = 32
    write_config(tmp_path / "l2rm-saf-image0.4-seed1", other)
    with pytest.raises(SystemExit, match=r"train.batch_size: 32 -> 64"):
        command(monkeypatch, sweep, "--config", CONFIG, "--out", tmp_path, "--vary", "seed=0,1")
    assert not trained


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "l2rm.rh=1"], "config.l2rm.rh: no such field, expected one of l2rm's 9"),
        (["--set", "train=3"], "config.train: no such field"),
        (["--vary", "train.epochs=2,x"], "train.epochs: found 'x', expected a value of type int"),
    ],
)
def test_settings_that_do_not_fit(tmp_path, trained, monkeypatch, arguments, message):
    with pytest.raises(SystemExit, match=re.escape(message)):
        command(monkeypatch, sweep, "--config", CONFIG, "--out", tmp_path, *arguments)
    assert not trained and not any(tmp_path.iterdir())


def test_sgraf_trains_both_heads_and_tests_their_mean(tmp_path, trained, monkeypatch, capsys):
    def evaluate(workdirs):
        assert workdirs == [tmp_path / "sgr", tmp_path / "saf"]
        return {"mean of 2 runs": recalls(512.0)}

    monkeypatch.setattr(sgraf, "evaluate_runs", evaluate)
    command(
        monkeypatch, sgraf, "--config", CONFIG, "--workdir", tmp_path, "--set", "mismatch.rate=0.2"
    )
    assert trained == ["sgr", "saf"]
    for head in trained:
        config = json.loads((tmp_path / head / "config.json").read_text())
        assert (config["model"]["head"], config["mismatch"]["rate"]) == (head, 0.2)
    assert "512.0" in capsys.readouterr().out
    assert json.loads((tmp_path / "sgraf.json").read_text())["mean of 2 runs"]["rsum"] == 512.0


def test_precisions_side_by_side(tmp_path, trained, monkeypatch, capsys):
    monkeypatch.setattr(precision, "round_products", lambda: None)  # it would stay so
    command(monkeypatch, precision, "--config", CONFIG, "--out", tmp_path, "--vary", "seed=2,4")
    name = "l2rm-saf-image0.4-seed"
    kinds = ("float32", "bfloat16")
    assert trained == [f"{name}{seed}-precision{kind}" for seed in (2, 4) for kind in kinds]
    assert capsys.readouterr().out.splitlines() == [
        "| run | float32 | bfloat16 |",
        "|---|---|---|",
        f"| {name}2 | 502.0 | 502.0 |",
        f"| {name}4 | 504.0 | 504.0 |",
        "| mean | 503.0 | 503.0 |",
        "| deviation | 1.4 | 1.4 |",
    ]


def test_flickr8k_settings(tmp_path, trained, monkeypatch, capsys):
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    (data / "train_caps.txt").write_text("a rare dog\n" + "a dog runs\n" * 4)
    command(monkeypatch, flickr8k, "--path", data, "--out", out, "--set", "mismatch.rate=0.6")
    assert trained == ["l2rm-saf-image0.6-seed0"]
    config = json.loads((out / trained[0] / "config.json").read_text())
    assert (config["data"]["train_images"], config["data"]["dev_images"]) == (2000, 200)
    words = json.loads(Path(config["data"]["vocabulary"]).read_text())["word2idx"]
    assert list(words)[4:] == ["a", "dog", "runs"]
    assert "l2rm  saf  image0.6" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="--path"):
        command(monkeypatch, flickr8k, "--out", out)


@pytest.mark.parametrize("module", [flickr8k, semi_paired])
def test_the_vocabulary_is_that_of_the_settings(tmp_path, trained, monkeypatch, module):
    """Built with what --set says; neither varied nor taken over from other data."""
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    captions = "a rare dog\n" + "a dog runs\n" * 4
    (data / "train_caps.txt").write_text(captions)
    arguments = ("--path", data, "--out", out)
    for key in ("data.min_count=1,4", "data.split_sentences=True,False"):
        with pytest.raises(SystemExit, match=f"--vary {key.split('=')[0]}: .* share a vocabulary"):
            command(monkeypatch, module, *arguments, "--vary", key)
    assert not trained and not out.exists()
    rare = (*arguments, "--set", "data.min_count=1")
    command(monkeypatch, module, *rare)
    config = json.loads((out / trained[0] / "config.json").read_text())
    words = json.loads(Path(config["data"]["vocabulary"]).read_text())["word2idx"]
    assert (config["data"]["min_count"], list(words)[4:]) == (1, ["a", "rare", "dog", "runs"])
    del trained[:]
    command(monkeypatch, module, *rare)  # which is the same again
    with pytest.raises(SystemExit, match=r"vocabulary .* at data\.min_count=4"):
        command(monkeypatch, module, *arguments)
    (data / "train_caps.txt").write_text(captions + "a cat\n")
    with pytest.raises(SystemExit, match="expected an --out of its own"):
        command(monkeypatch, module, *rare)
    assert not trained


def test_sentences_are_split_before_the_vocabulary_is_built(tmp_path, trained, monkeypatch):
    (tmp_path / "train_caps.txt").write_text("a dog sits. it runs.\n" * 4)
    monkeypatch.setattr(
        flickr8k,
        "load_sentence_splitter",
        lambda: lambda text: text.replace(". ", ".\n").split("\n"),
    )
    arguments = ("--path", tmp_path, "--out", tmp_path / "out")
    command(monkeypatch, flickr8k, *arguments, "--set", "data.split_sentences=True")
    words = json.loads((tmp_path / "out" / "vocabulary.json").read_text())["word2idx"]
    assert list(words)[4:] == ["a", "dog", "sits", ".", "it", "runs"]


def test_heads_are_trained_by_variant_and_reported(tmp_path, trained, monkeypatch, capsys):
    monkeypatch.setattr(heads, "matching_seconds", lambda model: 1.25)
    arguments = ("--path", tmp_path, "--out", tmp_path / "runs", "--only", "margins")
    command(monkeypatch, heads, *arguments, "--vary", "seed=0,2")
    assert trained[:2] == [f"intra--triplet-omit-image0-seed{seed}" for seed in (0, 2)]
    assert len(trained) == 6
    config = json.loads((tmp_path / "runs" / trained[-1] / "config.json").read_text())
    assert config["model"]["margins"] == "norm" and config["model"]["region_mask"] == 0.2
    _, *lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[-3:]] == ["intra", "inter", "norm"]
    assert lines[-1].split()[-4:] == ["501.0", "1.4", "2", "1.25"]
    with pytest.raises(ConfigError, match="no run has finished"):
        heads.report(tmp_path / "elsewhere")
    # Runs that differ in more than the seed are rows of their own.
    more = ("--vary", "seed=4,6", "--set", "train.batch_size=32")
    command(monkeypatch, heads, *arguments, "--vary", "train.batch_size=32", *more)
    lines = {line[:-100].strip(): line.split() for line in capsys.readouterr().out.splitlines()}
    for size, rsum in ((64, "501.0"), (32, "505.0")):
        found = lines[f"norm, train.batch_size={size}"]
        assert found[-4:] == [rsum, "1.4", "2", "1.25"]


@pytest.fixture
def small_sizes(monkeypatch):
    sizes = {"TILE": 2, "IMAGES": 4, "CAPTIONS": 6, "REGIONS": 3, "FEATURES": 4, "WORDS": 3}
    for name, value in sizes.items():
        monkeypatch.setattr(heads, name, value)


@pytest.mark.parametrize("head", ["omit", "vse"])
def test_matching_is_timed(small_sizes, head):
    config = defaults.default()
    config.model.update(head=head, embed_dim=4, word_dim=3)
    assert 0 < heads.matching_seconds(config.to_dict()) < 5


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
    heads.matching_seconds(config.to_dict())
    assert len(calls) == 1  # to initialise the model


def test_flickr8k_report(tmp_path):
    """Means over finished runs alone; the unfinished and the authors' beside them."""
    runs = [
        ("l2rm", 0, [90.0, 240.0, 180.0], True),
        ("l2rm", 1, [90.0, 252.0, 260.0], True),
        ("l2rm", 2, [60.0, 120.0], False),
        ("triplet", 0, [30.0], True),
    ]
    for method, seed, validation, finished in runs:
        config = defaults.get_config()
        config.method, config.seed = method, seed
        leave_run(config, tmp_path / f"{method}-{seed}", validation, finished)
    text = flickr8k.report(tmp_path)
    lines = [line.split() for line in text.splitlines()]
    assert ["l2rm-0", *["40.0"] * 6, "240.0", "2"] in lines
    assert ["l2rm-2", *["20.0"] * 6, "120.0", "2", "(2", "of", "12", "so", "far)"] in lines
    assert [*["mean", "of", "2", "finished"], *["41.7"] * 6, "250.0"] in lines
    assert ["standard", "deviation", *["2.4"] * 6, "14.1"] in lines
    assert ["l2rm-0", "90.0", "240.0", "180.0"] in lines
    assert ["l2rm-1", "0.700", "0.800"] in lines and ["l2rm-1", "0.450", "0.550"] in lines
    assert text.count("authors' code") == 4  # none of them under triplet
    assert lines[-2:] == [
        ["l2rm", "saf", "image0.4", *["83.4"] * 6, "500.5", "2"],
        ["triplet", "saf", "image0.4", *["83.3"] * 6, "500.0", "1"],
    ]
    assert "more than the seed" not in text
    config.method, config.l2rm.rho = "l2rm", 0.5
    leave_run(config, tmp_path / "l2rm-rho", [40.0], True)
    text = flickr8k.report(tmp_path)
    assert "no mean: the runs differ in more than the seed" in text and "of 2 fin" not in text
    assert text.splitlines()[-1].startswith("triplet") and "\nl2rm  saf" not in text
    with pytest.raises(ConfigError, match="no run has finished an epoch"):
        flickr8k.report(tmp_path / "elsewhere")


def test_losses_of_rcl_train_as_long_and_are_tabled(tmp_path, trained, monkeypatch, capsys):
    arguments = ["--out", tmp_path, "--vary", "mismatch.rate=0.6,0.2", "--set", "train.epochs=3"]
    command(monkeypatch, rcl, *arguments)
    assert len(trained) == 20 and trained[9] == "CL-infonce-saf-image0.6-seed0"
    configs = {name: json.loads((tmp_path / name / "config.json").read_text()) for name in trained}
    for name, config in configs.items():
        train, loss = config["train"], name.split("-")[0]
        assert train["warmup_epochs"] + train["epochs"] == config["optim"]["decay_epochs"] == 11
        assert (train["epochs"] == 0) == name.startswith("TR-triplet")
        if config["method"] == "rcl":
            assert config["rcl"]["loss"] == {"NL": "log", "mae1": "mae"}.get(loss, loss)
            assert config["rcl"]["negatives"] == (loss in ("NL", "mae1"))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["test", "rSum", "at", "rate", "0.2", "0.6"] in lines
    assert lines.count(["TR-HN", "500.0", "500.0"]) == 1
    assert ["log", "(CCL)", "500.0", "500.0"] in lines
    command(monkeypatch, rcl, *arguments)
    assert len(trained) == 20
    command(monkeypatch, rcl, *arguments, "--vary", "mismatch.rate=0.6,0.8", "--report")
    assert len(trained) == 20 and "500.0       -" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"mae\* at rate 0.6 differ in more than the seed"):
        command(
            monkeypatch, rcl, "--out", tmp_path / "two", *arguments[2:], "--vary", "rcl.q=0.2,0.3"
        )
    del trained[20:]
    command(monkeypatch, rcl, "--out", tmp_path / "quick", "--quick", "--vary", "seed=1,2")
    assert len(trained) == 60 and trained[-1] == "CL-infonce-saf-image0.6-seed2"
    assert "501.5" in capsys.readouterr().out


def test_the_grid_has_every_method_and_head(tmp_path, trained, monkeypatch, capsys):
    """RCSL's cells are semi-paired; what is finished is not trained again."""
    out = tmp_path / "out"
    arguments = ["--quick", "--json", tmp_path / "grid.json", "--out", out, "--set", "seed=1"]
    command(monkeypatch, grid, *arguments)
    expected = [
        f"{method}-{head}-{'semi_paired60' if method == 'rcsl' else 'image0.4'}-seed1"
        for method, head in itertools.product(METHODS, HEADS)
        if method != "cca" or head == "linear"
    ]
    assert trained == expected
    cells = json.loads((tmp_path / "grid.json").read_text())["cells"]
    assert [cell["run"] for cell in cells] == expected
    assert {cell["rsum"] for cell in cells} == {501}
    config = json.loads((out / trained[0] / "config.json").read_text())
    assert config["train"]["warmup_epochs"] + config["train"]["epochs"] == 1
    printed = capsys.readouterr().out
    assert f"| method | rate | {' | '.join(HEADS)} |" in printed
    assert f"| triplet | 0.4 | {' | '.join(['501.0'] * len(HEADS))} |" in printed
    command(monkeypatch, grid, *arguments)
    assert len(trained) == len(expected)


def test_the_grid_varies_methods_and_heads_itself(tmp_path, trained, monkeypatch):
    with pytest.raises(SystemExit, match=r"--set method: .*expected --vary method="):
        command(monkeypatch, grid, "--json", tmp_path / "grid.json", "--set", "method=rcl")
    assert not trained


def test_a_cell_of_the_grid_is_a_mean_over_seeds_alone():
    cell = {"run": "r", "method": "rcl", "head": "vse", "rate_asked": None, "seed": 0, "rsum": 8.0}
    assert "| rcl | of a file | 9.0 |" in grid.table([cell, {**cell, "seed": 1, "rsum": 10.0}])
    with pytest.raises(ConfigError, match=r"rcl, vse, rate of a file.*more than the seed"):
        grid.table([cell, cell])


def test_semi_paired_runs(tmp_path, trained, monkeypatch, capsys):
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    (data / "train_caps.txt").write_text("a dog runs\n" * 5)
    command(monkeypatch, semi_paired, "--path", data, "--out", out)
    assert trained == [
        f"{method}-aggregate-semi_paired{paired}-seed0"
        for paired in (500, 2000)
        for method in ("triplet", "rcsl")
    ]
    config = json.loads((out / trained[1] / "config.json").read_text())
    assert config["mismatch"]["paired_images"] == 500 and config["data"]["train_images"] == 0
    printed = capsys.readouterr().out
    assert "| rcsl | aggregate | 2000 | 0 | 83.3 |" in printed
    with pytest.raises(SystemExit, match="no run has finished"):
        command(monkeypatch, semi_paired, "--out", tmp_path / "elsewhere", "--report")
