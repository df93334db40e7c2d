"""Imports without `--split`: a single split, all judged, from which runs draw theirs."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from l2rm_jax import main
from l2rm_jax.data.drawn_splits import INDEX_FILE
from l2rm_jax.data.record import is_undivided
from l2rm_jax.errors import ConfigError
from l2rm_jax.importing.importer import describe_import
from tests.importing import made
from tests.importing.made import Imported, write_csv

IMAGES, PER_IMAGE = 90, 3
HEADER = ("filepath", "title", "seller")


def write_inputs(root: Path) -> None:
    """Vectors of images and captions, and a table of them, in which a fifth is swapped."""
    rng = np.random.default_rng(0)
    cause = rng.normal(size=(IMAGES, 6))
    image_of = np.arange(IMAGES * PER_IMAGE) // PER_IMAGE
    written_for = np.where(np.arange(len(image_of)) % 5, image_of, np.roll(image_of, 11))
    np.save(root / "i.npy", cause.astype(np.float32))
    captions = cause[written_for] + 0.1 * rng.normal(size=(len(image_of), 6))
    np.save(root / "c.npy", captions.astype(np.float32))
    rows = [(f"{image}.jpg", f"thing {row}", row % 4) for row, image in enumerate(image_of)]
    write_csv(root / "pairs.csv", rows, HEADER)


def imported(root: Path, source: str = "pairs.csv", **fields) -> Imported:
    write_inputs(root)
    vectors = {f"{side}_vectors": str(root / f"{side[0]}.npy") for side in ("image", "caption")}
    return made.imported(root, source, **vectors, **fields)


@pytest.mark.parametrize("source", ["pairs.csv", ""])
def test_all_rows_are_the_single_split_train(tmp_path, source):
    out, record = found = imported(tmp_path, source)
    content = found.files
    np.testing.assert_array_equal(content["train_ims.npy"], np.load(tmp_path / "i.npy"))
    np.testing.assert_array_equal(content["train_caps.npy"], np.load(tmp_path / "c.npy"))
    assert not [name for name in content if name.startswith(("dev", "test"))]
    sizes = {name: size["images"] for name, size in record["splits"].items()}
    assert sizes == {"train": IMAGES, "dev": 0, "test": 0} and is_undivided(out)
    lines = describe_import(record, Path("D")).splitlines()
    assert f"(train {IMAGES})" in lines[0]
    commands = [line for line in lines if "l2rm " in line]
    assert [f" {mode}" in " ".join(commands) for mode in ("check", "audit")] == [True, True]
    assert any("l2rm --data=D" in line for line in commands)


@pytest.mark.parametrize("split", ["1,0,0", "0.5,0.25,0.25", "0,0,1"])
def test_given_shares_are_kept(tmp_path, split):
    out, record = imported(tmp_path, split=split)
    shares = [float(share) for share in split.split(",")]
    assert record["split"] == {"by": "shares", "shares": shares, "seed": 0}
    assert not is_undivided(out)
    sizes = [record["splits"][name]["images"] / IMAGES for name in ("train", "dev", "test")]
    np.testing.assert_allclose(sizes, shares, atol=0.02)


def test_a_seed_needs_shares(tmp_path):
    with pytest.raises(ConfigError, match="--seed=4 requires --split"):
        imported(tmp_path, seed=4)
    assert not (tmp_path / "out.partial").exists()


@pytest.mark.slow
def test_one_import_serves_an_audit_and_a_run(tmp_path, monkeypatch, capsys):
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    arrays = ["--image_vectors=i.npy", "--caption_vectors=c.npy"]
    main.main(["import", "--source=pairs.csv", *arrays, "--out=D"])
    main.main(["audit", "--data=D", "--out=A", "--by=seller"])
    with open("A/kept.csv") as file:
        kept = [int(row["title"].removeprefix("thing ")) for row in csv.DictReader(file)]
    scores = np.load("A/scores.npy")
    assert len(scores) == IMAGES * PER_IMAGE
    assert kept == np.flatnonzero(scores >= 0.5).tolist()
    assert np.mean(np.array(kept) % 5 == 0) < 0.05  # before, swapped rows of dev and test stayed
    short = ["--config.train.epochs=1", "--workdir=R"]
    main.main(["--data=D", *short])
    index = np.load("R/" + INDEX_FILE)
    assert sorted(np.unique(index)) == [0, 1, 2] and len(index) == IMAGES
    results = json.loads(Path("R/results.json").read_text())
    assert results["config"]["data"]["path"] == "D"
    main.main(["audit", "--workdir=R", "--out=B", "--by=seller"])
    assert len(np.load("B/scores.npy")) == PER_IMAGE * np.count_nonzero(index == 0)
    for words in (
        ["evaluate", "--zero_shot", "--data=D:test"],
        ["search", "--zero_shot", "--gallery=D:test", "--query=a"],
        ["search", "--workdir=R", "--gallery=D", "--query=a"],
        ["embed", "--workdir=R", "--data=D:dev", "--out=E"],
        ["audit", "--data=D", "--out=C", "--config.judgement.detector=infonce-vse"],
    ):
        with pytest.raises(SystemExit, match="--split"):
            main.main(words)
    capsys.readouterr()
    main.main(["evaluate", "--workdir=R"])
    assert f"{results['rsum']:.1f}" in capsys.readouterr().out
