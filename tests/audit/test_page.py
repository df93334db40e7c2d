"""Page of the audit: its commands and its Python, run in their order on a small data set."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from l2rm_jax import audit, main, open_audit
from l2rm_jax.audit.review import HEADER
from l2rm_jax.cli.parse import parse
from l2rm_jax.data.loading import load_data
from l2rm_jax.data.split_files import split_file
from l2rm_jax.judging import read_judgement
from l2rm_jax.run.inputs import check_settings
from tests.test_pages import blocks, commands

PAGE = Path(audit.__file__).with_name("README.md")
IMAGES, EACH, DIMENSIONS = 150, 2, 8


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """Make a directory with the files that the README names; a fifth of the captions swapped."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    cause = rng.normal(size=(IMAGES, DIMENSIONS))
    image_of = np.arange(IMAGES * EACH) // EACH
    swapped = rng.permutation(len(image_of))[: len(image_of) // 5]
    written_for = image_of.copy()
    written_for[swapped] = np.roll(image_of[swapped], 1)
    images = (cause + 0.1 * rng.normal(size=cause.shape)).astype(np.float32)
    captions = cause[written_for] + 0.1 * rng.normal(size=(len(image_of), DIMENSIONS))
    mine = tmp_path / "data" / "mine"
    mine.mkdir(parents=True)
    for split in ("train", "dev", "test"):
        np.save(mine / f"{split}_ims.npy", images)
        np.save(mine / f"{split}_caps.npy", captions.astype(np.float32))
    source = np.where(np.arange(len(image_of)) % 3, "shop", "web")
    pq.write_table(pa.table({"source": source}), split_file(mine, "train", "columns"))
    np.save("images.npy", images)
    np.save("captions.npy", captions)
    np.save("image_of.npy", image_of)
    texts = [f"a picture of thing {image}" for image in written_for]
    np.save("texts.npy", texts)
    return tmp_path


def decide(directory: Path) -> None:
    """Save the decisions of a person who agrees with an audit."""
    found = open_audit(directory)
    posterior, (rows, weight) = found.judgement.posterior, found.drawn()
    words = np.where(posterior[rows] > 0.5, "wrong", "fits")
    lines = [
        f"{row},{word},,review,{own}" for row, word, own in zip(rows, words, weight, strict=True)
    ]
    Path("decisions.csv").write_text("\n".join([",".join(HEADER), *lines, ""]))


@pytest.mark.slow
@pytest.mark.usefixtures("judged_once")
def test_the_commands_of_the_page(place):
    audited = []
    for _, *words in (found for script in blocks(PAGE, "bash") for found in commands(script)):
        if words[0] != "audit":
            config = parse(words, main.MODES).config
            check_settings(config)
            if config.judgement.path:
                assert read_judgement(Path(config.judgement.path, "judgement.npz")).rate
                continue
            train = load_data(config.data, config.mismatch, workdir=None).train
            assert 0 < train.paired.sum() < IMAGES * EACH  # filtered, or known in part
            continue
        if not words[1].startswith("--"):  # a source to import: tests/audit/test_from_source.py
            assert parse(words, main.MODES)["source"] == "pairs.csv"
            continue
        if "--data=trusted" in words or "--judge=reference" in words:  # run in test_kept.py
            parse(words, main.MODES)
            continue
        out = Path(words[2].removeprefix("--out="))
        try:
            main.main(words)
        except SystemExit as error:
            assert (out.name, error.code) == ("ci", 3)
        assert (out / "report.md").exists()
        audited.append(out.name)
        if out.name in ("audit", "asked"):
            decide(out)
    assert sorted(audited) == ["asked", "audit", "by_source", "certified", "ci", "reviewed"]
    assert len(np.load("certified/certified.npy")) > IMAGES
    assert np.load("reviewed/scores.npy").shape == (IMAGES * EACH,)


@pytest.mark.slow
def test_the_python_of_the_page(place, capsys):
    names = {}
    for code in blocks(PAGE, "python"):  # the later ones use the arrays of the first
        exec(code, names)
    assert "Rate(estimate=" in capsys.readouterr().out
    assert (place / "audit_of_arrays" / "gallery.html").exists()
