"""`l2rm audit`: the files that it reads and writes, how it resumes, its exit status."""

import json

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from l2rm_jax import main, open_audit
from l2rm_jax.audit import command, last_lines
from l2rm_jax.audit.inputs import read_training_pairs
from l2rm_jax.audit.last_lines import describe_audit
from l2rm_jax.audit.rates_by import rate_lines
from l2rm_jax.audit.suspects import write_suspects
from l2rm_jax.config import get_config
from l2rm_jax.data.split_files import split_file
from l2rm_jax.devices.parallel import Replicas
from l2rm_jax.errors import ConfigError, DataError, L2RMError
from l2rm_jax.judging import read_judgement
from l2rm_jax.judging.verdict import verdict
from l2rm_jax.run.inputs import read_data
from l2rm_jax.train import train
from tests.audit.made import IMAGES, PAIRS, make_audit, make_judgement
from tests.tiny import tiny_config, write_vectors

TEXTS = [f"caption {row}" for row in range(PAIRS)]


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Directory of training pairs; the audit itself is replaced by one made by hand."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    (tmp_path / "data").mkdir()
    np.save("data/train_ims.npy", rng.normal(size=(IMAGES, 4)).astype(np.float32))
    (tmp_path / "data" / "train_caps.txt").write_text("\n".join(TEXTS) + "\n")
    asked = []
    monkeypatch.setattr(last_lines, "can_train", lambda inputs, kept: True)

    def judge_pairs(pairs, detector, *, executor, **settings):
        asked.append((pairs, settings))
        executor.once(lambda: 1, like=0)
        return make_judgement(**asked_for)

    asked_for: dict = {}
    monkeypatch.setattr(command, "judge_pairs", judge_pairs)
    return asked, asked_for


def status(line: str) -> int:
    """Return the exit status of a command."""
    try:
        main.main(line.split())
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1
    return 0


def test_a_directory_is_audited_and_the_verdict_printed(data, tmp_path, capsys):
    [asked, _] = data
    line = "audit --data=data --out=out --config.audit.top=3 --config.seed=7"
    assert status(line) == 0
    [(pairs, settings)] = asked
    assert settings.pop("rows").pairs.texts == TEXTS  # counted once, for the search too
    assert settings == {"name": "linear", "folds": 5, "top": 3, "seed": 7, "judge": None}
    assert pairs.texts == TEXTS
    printed, said = capsys.readouterr().out, verdict(make_judgement())
    assert printed.splitlines()[: len(said)] == said
    for part in ("out/report.md", "out/gallery.html", "--config.judgement.path=out"):
        assert part in printed
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"report.json", "judgement.npz"} <= names and not names & {"work", "audit.json"}
    assert not (tmp_path / "out.partial").exists()
    with pytest.raises(ConfigError, match=r"^out: "):
        command.audit_directory(get_config(), "out")
    assert len(asked) == 1


def write_sources(directory):
    """Vectors of 300 pairs, where one source is stored with other images."""
    write_vectors(directory, train=60)
    source = np.where(np.arange(300) % 3, "shop a", "shop | b")
    pq.write_table(
        pa.table({"source": source, "uid": np.arange(300)}), split_file("data", "train", "columns")
    )
    captions = np.load("data/train_caps.npy")
    wrong = np.flatnonzero(source == "shop | b")
    captions[wrong] = captions[np.roll(wrong, 7)]
    np.save("data/train_caps.npy", captions)


@pytest.mark.slow
def test_the_rates_of_a_column_are_reported(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_sources(tmp_path / "data")
    assert status("audit --data=data --out=out --by=source") == 0
    lines = capsys.readouterr().out.splitlines()
    place = next(row for row, line in enumerate(lines) if line.startswith("By source"))
    rates = open_audit("out").by("source")
    assert lines[place : place + 3] == rate_lines("source", rates)
    assert [each.value for each in rates] == ["shop | b", "shop a"] and rates[0].differs
    report = (tmp_path / "out" / "report.md").read_text()
    table = report[report.index("By source") :]
    assert table.index("shop") < table.index("shop a") and "| 200 |" in table
    assert "shop | b" not in table  # as a cell, it has no border
    frame = open_audit("out").to_frame()
    assert frame["uid"].tolist() == list(range(300)) and set(frame["source"]) == {
        "shop a",
        "shop | b",
    }


def test_an_unknown_column_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_sources(tmp_path / "data")
    monkeypatch.setattr(command, "judge_pairs", lambda *_, **__: pytest.fail("judged"))
    known = "a further column of the pairs: source, uid"
    with pytest.raises(SystemExit, match=f"by: found 'sauce', expected {known}"):
        main.main(["audit", "--data=data", "--out=out", "--by=sauce"])
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.partial").exists()


def write_split(directory, split, images):
    np.save(directory / f"{split}_ims.npy", np.eye(images, 4, dtype=np.float32))
    text = "\n".join(f"a caption {row}" for row in range(2 * images))
    (directory / f"{split}_caps.txt").write_text(f"{text}\n")


def audit_of(config, **changes):
    pairs, train, words = read_training_pairs(config)
    return make_audit(pairs=pairs, train=train, config=config, words=words, **changes)


@pytest.mark.parametrize(
    ("batch", "kept", "splits", "advised"),
    [
        (8, 0.8, ("dev", "test"), True),
        (8, 1.0, ("dev", "test"), False),  # nothing would be dropped
        (8, 0.0, ("dev", "test"), False),  # nothing would be left
        (36, 0.8, ("dev", "test"), False),  # less than a batch would be left
        (8, 0.8, ("test",), False),
        (8, 0.8, ("dev",), False),
    ],
)
def test_a_command_is_advised_only_if_it_would_run(tmp_path, batch, kept, splits, advised):
    config = get_config()
    config.data.name, config.data.path = "mine", str(tmp_path)
    config.train.batch_size = batch
    for split in ("train", *splits):
        write_split(tmp_path, split, PAIRS // 2)
    scores = np.where(np.arange(PAIRS) < kept * PAIRS, 0.9, 0.1)
    np.save(tmp_path / "scores.npy", scores)
    audit = audit_of(config, posterior=1 - scores)
    write_suspects(audit, tmp_path)
    lines = describe_audit(audit, tmp_path).splitlines()
    assert ("--config.judgement.path" in lines[-1]) == advised
    if len(splits) == 2:  # the advice agrees with the run's own checks
        fields = {"data.filter": "score", "data.filter_value": 0.5}
        config.update_from_flattened_dict(fields | {"data.scores": str(tmp_path / "scores.npy")})
        try:
            read_data(config, tmp_path / "nowhere")
            runs = True
        except L2RMError:
            runs = False
        assert runs == advised
    unclear = audit_of(config, unreliable_reason="so")
    assert "--config.judgement.path" not in describe_audit(unclear, tmp_path)


def test_exit_statuses(data):
    [_, changes] = data
    assert status("audit --data=data --out=a --config.audit.max_share=0.06") == 0  # low is 0.05
    assert status("audit --data=data --out=b --config.audit.max_share=0.04") == 3
    changes["unreliable_reason"] = "the images are equal"
    assert status("audit --data=data --out=c") == 0
    assert status("audit --data=data --out=d --config.audit.max_share=0.9") == 4
    assert status("audit --data=data") == 1
    assert status("audit --data=nowhere --out=e") == 1
    assert status("audit --data=data --out=f --config.audit.certify=0.05") == 1  # decide is 100


@pytest.mark.slow
def test_what_a_run_has_judged_is_not_judged_again(data, tmp_path, capsys, monkeypatch):
    asked = data[0]
    config = tiny_config("infonce", "vse", warmup_epochs=0, epochs=1, draw="judgement")
    config.data.name, config.data.path = "vectors", str(write_vectors(tmp_path / "v", train=60))
    train(config, tmp_path / "run", Replicas(jax.devices()[:1]))
    capsys.readouterr()
    not_made = "l2rm_jax.data.vectors.set_rows"
    monkeypatch.setattr(not_made, lambda *_: pytest.fail("vectors that nobody needs were made"))
    assert status("audit --workdir=run --out=a") == 0 and not asked
    kept = read_judgement(tmp_path / "run" / "judgement.npz")
    np.testing.assert_array_equal(read_judgement(tmp_path / "a/judgement.npz").order, kept.order)
    assert "a/report.md" in capsys.readouterr().out
    table = pq.read_table(tmp_path / "a" / "pairs.parquet").to_pydict()
    assert set(table["dropped"]) == {None} and sum(table["mismatched_on_purpose"]) > 0
    assert status("audit --workdir=run --config=f30k --out=c") == 1


def test_an_audit_that_was_stopped_goes_on_and_only_the_same_one(data, tmp_path, monkeypatch):
    def stopped(audit, directory):
        (directory / "report.md").write_text("half")
        (directory / "pictures").mkdir()
        raise KeyboardInterrupt

    config = get_config()
    config.data.name, config.data.path = "mine", "data"
    with monkeypatch.context() as patch:
        patch.setattr(command, "write_files", stopped)
        with pytest.raises(KeyboardInterrupt):
            command.audit_directory(config, "out")
    work = tmp_path / "out.partial" / "work"
    assert [*work.rglob("*.npz")]
    assert json.loads((work / "audit.json").read_text())["folds"] == 5
    config.judgement.folds = 4
    with pytest.raises(ConfigError, match="folds"):
        command.audit_directory(config, "out")
    config.judgement.folds, config.data.min_count = 5, 1
    with pytest.raises(ConfigError, match="words"):
        command.audit_directory(config, "out")
    config.data.min_count, config.audit.gallery = 4, 3  # the page does not change the judgement
    command.audit_directory(config, "out")
    assert (tmp_path / "out" / "report.json").exists()
    assert not (tmp_path / "out" / "pictures").exists()
    assert not (tmp_path / "out.partial").exists()


def test_all_problems_are_listed_before_any_work(data, tmp_path):
    [asked, _] = data
    config = get_config()
    config.data.name, config.data.path = "mine", "data"
    config.judgement.detector, config.audit.review = "nothing", "missing.csv"
    images = np.load("data/train_ims.npy")
    images[3, 0] = np.nan
    np.save("data/train_ims.npy", images)
    with pytest.raises(DataError) as error:
        command.audit_directory(config, "out")
    for part in ("judgement.detector", "nothing", "row 3"):
        assert part in str(error.value)
    config.judgement.detector = "linear"
    np.save("data/train_ims.npy", np.nan_to_num(images))
    with pytest.raises(ConfigError, match=r"missing\.csv"):
        command.audit_directory(config, "out")
    assert not asked and not (tmp_path / "out.partial").exists()
