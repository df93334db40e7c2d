"""A run whose data were moved: it continues with the same data, and not with others."""

import json
import os
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from l2rm_jax import main
from l2rm_jax.config import default
from l2rm_jax.data.loading import load_data
from l2rm_jax.devices.parallel import Replicas
from l2rm_jax.errors import ConfigError
from l2rm_jax.evaluate import evaluate_runs
from l2rm_jax.retriever.commands import search
from l2rm_jax.run import data_hashes
from l2rm_jax.run.config_file import HASHES_FILE, check_workdir, read_config, write_config
from l2rm_jax.run.data_hashes import keep_hashes
from l2rm_jax.train import train
from tests.tiny import tiny_config, write_vectors


def write_texts(directory: Path) -> None:
    write_vectors(directory, train=12)
    for split, images in {"train": 12, "dev": 6, "test": 10}.items():
        (directory / f"{split}_caps.npy").unlink()
        text = "".join(f"a caption of thing {row}\n" for row in range(5 * images))
        (directory / f"{split}_caps.txt").write_text(text)


def config_of(directory: Path):
    config = default()
    config.data.path, config.data.name, config.mismatch.rate = str(directory), "mine", 0.25
    return config


def keep(directory: Path, workdir: Path) -> str | None:
    """Check and write the files of a starting run; return the line of `check_workdir`."""
    config = config_of(directory)
    note = check_workdir(workdir, config)
    keep_hashes(config, load_data(config.data, config.mismatch, workdir=None), workdir)
    write_config(workdir, config)
    return note


@pytest.mark.parametrize("write", [write_texts, lambda place: write_vectors(place, train=12)])
def test_the_same_data_elsewhere_are_accepted(tmp_path, write):
    write(tmp_path / "one")
    assert keep(tmp_path / "one", tmp_path / "run") is None
    shutil.move(tmp_path / "one", tmp_path / "two")
    assert str(tmp_path / "two") in keep(tmp_path / "two", tmp_path / "run")
    assert read_config(tmp_path / "run").data.path == str(tmp_path / "two")


def one_value(place):
    images = np.load(place / "train_ims.npy")
    images[-1, -1] += 1e-3
    np.save(place / "train_ims.npy", images)


def one_letter(place):
    file = place / "train_caps.txt"
    file.write_text(file.read_text().replace("thing 7\n", "thong 7\n"))


def one_row_less(place):
    file = place / "dev_caps.txt"
    file.write_text("".join(file.read_text().splitlines(True)[5:]))
    np.save(place / "dev_ims.npy", np.load(place / "dev_ims.npy")[1:])


def another_image(place):
    np.save(place / "train_pairs.npy", np.sort(np.arange(60) // 5 - (np.arange(60) == 30)))


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (one_value, "train images"),
        (one_letter, "train captions"),
        (one_row_less, "dev images, dev captions, dev pairs"),
        (another_image, "train pairs"),
    ],
)
def test_other_data_are_refused_with_what_differs(tmp_path, change, parts):
    write_texts(tmp_path / "one")
    keep(tmp_path / "one", tmp_path / "run")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    change(tmp_path / "two")
    with pytest.raises(ConfigError, match=f"two: found other {parts}, expected") as error:
        keep(tmp_path / "two", tmp_path / "run")
    assert error.value.hint == f"--workdir={tmp_path / 'run'}-2"


@pytest.mark.parametrize(
    ("change", "parts"), [(one_value, "train images"), (one_letter, "train captions")]
)
def test_other_data_in_the_same_directory_are_refused(tmp_path, change, parts):
    write_texts(tmp_path / "one")
    keep(tmp_path / "one", tmp_path / "run")
    file = tmp_path / "one" / "train_ims.npy"
    before = file.stat()
    change(tmp_path / "one")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(ConfigError, match=f"one: found other {parts}, expected"):
        keep(tmp_path / "one", tmp_path / "run")


def test_files_that_have_not_changed_are_not_read_again(tmp_path, monkeypatch):
    write_vectors(tmp_path / "one", train=12)
    keep(tmp_path / "one", tmp_path / "run")
    monkeypatch.setattr(data_hashes, "_hash_stored", None)
    keep(tmp_path / "one", tmp_path / "run")
    monkeypatch.undo()
    np.save(tmp_path / "one" / "dev_ims.npy", np.load(tmp_path / "one" / "dev_ims.npy"))
    keep(tmp_path / "one", tmp_path / "run")  # written again, with the same numbers


def test_a_run_is_not_tested_on_other_features_of_its_test_split(tmp_path):
    write_vectors(tmp_path / "one", train=60)
    config = tiny_config("cca", "linear", warmup_epochs=0, epochs=1)
    config.data.name, config.data.path = "vectors", str(tmp_path / "one")
    train(config, tmp_path / "run", Replicas(jax.devices()[:1]))
    evaluate_runs([tmp_path / "run"])
    file = tmp_path / "one" / "test_ims.npy"
    np.save(file, np.load(file)[::-1])
    with pytest.raises(ConfigError, match="found other test images"):
        evaluate_runs([tmp_path / "run"])
    with pytest.raises(ConfigError, match="found other test images"):
        search([str(tmp_path / "run")], f"{tmp_path / 'one'}:test", ["a dog"])
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    evaluate_runs([tmp_path / "run"], {"data.path": str(tmp_path / "two")})  # asked for


def test_a_run_without_hashes_or_with_other_fields_is_refused_as_before(tmp_path):
    write_texts(tmp_path / "one")
    keep(tmp_path / "one", tmp_path / "run")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    config = config_of(tmp_path / "two")
    config.seed = 5
    with pytest.raises(ConfigError, match=r"data\.path: .*\n.*seed: 0 -> 5"):
        check_workdir(tmp_path / "run", config)
    (tmp_path / "run" / HASHES_FILE).unlink()
    with pytest.raises(ConfigError, match=r"data\.path"):
        check_workdir(tmp_path / "run", config_of(tmp_path / "two"))


def test_hashes_of_a_run_that_never_began_are_replaced(tmp_path):
    for name in ("one", "two"):
        write_texts(tmp_path / name)
    one_letter(tmp_path / "two")
    for name in ("one", "two"):
        config = config_of(tmp_path / name)
        keep_hashes(config, load_data(config.data, config.mismatch, workdir=None), tmp_path / "run")
    write_config(tmp_path / "run", config)
    shutil.move(tmp_path / "two", tmp_path / "three")
    keep(tmp_path / "three", tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("detector", ["linear", "infonce-vse"])
def test_a_run_continues_and_is_used_where_its_data_are_now(
    tmp_path, monkeypatch, capsys, detector
):
    monkeypatch.chdir(tmp_path)
    write_vectors(tmp_path / "job1", train=60)
    config = tiny_config("infonce", "vse", warmup_epochs=0, epochs=1, draw="judgement")
    config.data.name, config.data.path = "vectors", "job1"
    config.judgement.detector, config.judgement.folds = detector, 3
    train(config, tmp_path / "run", Replicas(jax.devices()[:1]))
    shutil.move("job1", "job2")
    with pytest.raises(SystemExit, match="its data are in job1") as error:
        main.main(["--workdir=run", "--config.train.epochs=2"])
    assert "--workdir=run --data=DIR" in str(error.value)
    main.main(["--workdir=run", "--data=job2", "--config.train.epochs=2"])
    results = json.loads(Path("run/results.json").read_text())
    assert results["config"]["data"]["path"] == "job2"
    shutil.move("job2", "job3")
    capsys.readouterr()
    main.main(["evaluate", "--workdir=run", "--data=job3"])
    assert f"{results['rsum']:.1f}" in capsys.readouterr().out
    main.main(["audit", "--workdir=run", "--data=job3", "--out=audit"])
    main.main(["embed", "--workdir=run", "--data=job3", "--out=embedded"])
    one_value(tmp_path / "job3")
    with pytest.raises(SystemExit, match="job3: found other train images"):
        main.main(["--workdir=run", "--data=job3", "--config.train.epochs=3"])
