"""Files of finished runs, written without training, and commands of experiments."""

import csv
import json
import sys
from pathlib import Path

from experiments.papers import sweep
from experiments.papers.runs import RECALLS
from experiments.script import start
from l2rm_jax.run.config_file import write_config
from l2rm_jax.run.results import write_json

CONFIG = str(Path(sweep.__file__).parents[2] / "configs" / "scenes.py")


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


def command(monkeypatch, module, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["script", *map(str, arguments)])
    start(module.main)


def read_csv(path: Path) -> list[dict]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
