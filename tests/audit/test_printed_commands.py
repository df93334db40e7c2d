"""Commands that an audit prints: they run on its own data, and judge nothing twice."""

import json
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from l2rm_jax import main
from l2rm_jax.audit import command
from l2rm_jax.audit.review import DECISIONS, HEADER, draw_review
from l2rm_jax.importing.importer import import_data
from l2rm_jax.importing.request import Request
from l2rm_jax.judging import read_judgement
from tests.tiny import write_vectors

IMAGES = 150
SHORT = "--config.train.epochs=1 --config.train.batch_size=16"


def printed(line: str, capsys) -> list[list[str]]:
    """Run a command; return the words of the commands that it prints."""
    main.main(shlex.split(line))
    lines = capsys.readouterr().out.splitlines()
    found = [each.partition(": ")[2].strip() for each in lines]
    return [shlex.split(each)[1:] for each in found if each.startswith("l2rm ")]


def decide(audit: str, wrong: int = 3) -> dict[int, str]:
    """Save decisions on the review of an audit, the first `wrong` of them against it."""
    posterior = read_judgement(Path(audit, "judgement.npz"), is_decided=False).posterior
    fingerprint = read_judgement(Path(audit, "judgement.npz")).made.fingerprint
    rows, weight = draw_review(posterior)
    words = {int(row): DECISIONS[int(posterior[row] > 0.5)] for row in rows}
    words |= {int(row): DECISIONS[int(posterior[row] <= 0.5)] for row in rows[:wrong]}
    lines = [
        f"{row},{words[row]},,review,{own},{fingerprint}"
        for row, own in zip(rows, weight, strict=True)
    ]
    Path("decisions.csv").write_text("\n".join([",".join([*HEADER, "pairs"]), *lines, ""]))
    return words


@pytest.fixture
def vectors(tmp_path, monkeypatch):
    """Vectors and a table of 600 pairs, of which a fifth is mismatched, in `tmp_path`."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    cause, image_of = rng.normal(size=(2 * IMAGES, 8)), np.arange(4 * IMAGES) // 2
    written_for = np.where(np.arange(len(image_of)) % 5, image_of, np.roll(image_of, 7))
    np.save("i.npy", (cause + 0.1 * rng.normal(size=cause.shape)).astype(np.float32))
    captions = cause[written_for] + 0.1 * rng.normal(size=(len(image_of), 8))
    np.save("c.npy", captions.astype(np.float32))
    rows = [f"{image}.jpg,a thing {row}" for row, image in enumerate(image_of)]
    Path("t.csv").write_text("\n".join(["filepath,title", *rows, ""]))
    arrays = {"image_vectors": "i.npy", "caption_vectors": "c.npy"}
    import_data(Request(Path("my data"), "t.csv", split="0.6,0.2,0.2", **arrays))


@pytest.mark.slow
@pytest.mark.usefixtures("judged_once")
@pytest.mark.parametrize(
    "flags", ["", "--config.method=infonce --config.model.head=vse", "--config=recipes:recall"]
)
def test_each_printed_command_runs_on_the_data_that_printed_it(vectors, capsys, monkeypatch, flags):
    [with_decisions, training] = printed(
        f"audit '--data=my data' --out=out {flags} {SHORT}", capsys
    )
    assert with_decisions[0] == "audit" and "--data=my data" in with_decisions
    words = decide("out")
    monkeypatch.setattr(command, "judge_pairs", lambda *_, **__: pytest.fail("judged again"))
    [after] = printed(shlex.join(with_decisions), capsys)
    assert "--config.judgement.path=out-reviewed" in after
    for words_of_run in (training, after):
        main.main(words_of_run)
    runs = {
        name: read_judgement(Path("runs", name, "judgement.npz"))
        for name in ("out", "out-reviewed")
    }
    decided = runs["out-reviewed"].posterior
    assert all(decided[row] == (word == "wrong") for row, word in words.items())
    assert not np.array_equal(decided, runs["out"].posterior)
    kept = json.loads(Path("runs/out-reviewed/results.json").read_text())["filter_kept"]
    assert kept == (decided < 0.5).mean()


@pytest.fixture
def audited(tmp_path, monkeypatch, capsys):
    """An audit of plain vectors, `out`; nothing may be judged or searched after it."""
    monkeypatch.chdir(tmp_path)
    write_vectors(tmp_path / "data", train=60)
    main.main(["audit", "--data=data", "--out=out"])
    capsys.readouterr()
    monkeypatch.setattr(command, "search_pairs", lambda *_: pytest.fail("searched again"))
    monkeypatch.setattr(command, "judge_pairs", lambda *_, **__: pytest.fail("judged again"))


def again(out: str, *flags: str) -> None:
    main.main(["audit", "--data=data", f"--out={out}", *flags])


@pytest.mark.slow
def test_a_given_judgement_is_taken_with_its_decisions_or_before_them(audited, tmp_path):
    again("same", "--config.judgement.path=out/judgement.npz")
    for name in ("judgement.npz", "scores.npy", "report.md", "gallery.html"):
        same = (tmp_path / "same" / name).read_bytes()  # the page names its own directory
        same = same.replace(b"--out=same-", b"--out=out-").replace(b"path=same ", b"path=out ")
        lines = (tmp_path / "out" / name).read_bytes().splitlines(keepends=True)
        assert same == b"".join(line for line in lines if b"judge.npz" not in line), name
    decide("out")
    again("first", "--config.judgement.path=out", "--config.audit.review=decisions.csv")
    again("second", "--config.judgement.path=first", "--config.audit.review=decisions.csv")
    scores = np.load("first/scores.npy")
    np.testing.assert_array_equal(np.load("second/scores.npy"), scores)
    assert not np.array_equal(np.load("out/scores.npy"), scores)
    again("kept", "--config.judgement.path=second")
    np.testing.assert_array_equal(np.load("kept/scores.npy"), scores)


@pytest.mark.slow
def test_a_judgement_of_other_pairs_or_none_is_refused_in_one_line(audited, tmp_path):
    shutil.copytree("data", "other")
    captions = np.load("other/train_caps.npy")
    np.save("other/train_caps.npy", captions[::-1])
    for path, message in (
        ("out", "out/judgement.npz: found a judgement of other captions"),
        ("nowhere", "judgement.path: nowhere: no such file"),
    ):
        with pytest.raises(SystemExit, match=message) as error:
            main.main(["audit", "--data=other", "--out=new", f"--config.judgement.path={path}"])
        assert len(str(error.value).splitlines()) == 1
    assert not list(tmp_path.glob("new*"))
    decide("out")
    flags = ["--config.audit.review=decisions.csv", "--config.judgement.path=out"]
    with pytest.raises(SystemExit, match=r"decisions\.csv.*found a decision on the pairs vectors:"):
        main.main(["audit", "--data=other", "--out=new", flags[0]])
    again("right", *flags)
