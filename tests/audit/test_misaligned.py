"""Misaligned rows in an audit: said first, put back, judged again, and written for the user."""

import contextlib
import csv
import io
import json
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from l2rm_jax import audit_pairs, main, open_audit, open_pairs
from l2rm_jax.audit import command
from l2rm_jax.audit.command import TOO_MANY, exit_status
from l2rm_jax.audit.misaligned import search_pairs
from l2rm_jax.audit.realigned_table import REALIGNED
from l2rm_jax.data.vectors import as_rows
from l2rm_jax.importing.importer import import_data
from l2rm_jax.importing.request import Request
from tests.joins.further_kinds import KINDS
from tests.joins.tables import make_case, synthetic

ROWS = 400


class Run(NamedTuple):
    """A command: its output and its exit status."""

    printed: str
    status: int


@pytest.fixture(scope="module")
def late(tmp_path_factory):
    """A table on disk of which 150 captions are one row late, and the right image of each row."""
    folder = tmp_path_factory.mktemp("late")
    pairs = synthetic(ROWS, 1, 8)
    caption = np.arange(ROWS)
    caption[200:350] = np.arange(199, 349)
    np.save(folder / "im.npy", pairs.images)
    np.save(folder / "cap.npy", pairs.captions[caption])
    with (folder / "pairs.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["photo", "text", "seller"])
        writer.writerows(
            [f"{row:03}.jpg", pairs.texts[k], f"seller {k % 7}"] for row, k in enumerate(caption)
        )
    request = Request(
        source=str(folder / "pairs.csv"), out=folder / "data", image_column="photo",
        caption_columns=("text",), image_vectors=str(folder / "im.npy"),
        caption_vectors=str(folder / "cap.npy"),
    )  # fmt: skip
    import_data(request)
    return folder, caption


@pytest.fixture(scope="module")
def audited(late):
    folder, _ = late
    words = ["audit", f"--data={folder / 'data'}", f"--out={folder / 'audit'}"]
    with contextlib.redirect_stdout(io.StringIO()) as printed, pytest.raises(SystemExit) as end:
        main.main([*words, "--config.audit.max_share=0.05"])
    return Run(printed.getvalue(), end.value.code), folder / "audit"


@pytest.mark.slow
def test_the_command_says_the_finding_first_in_lines_of_the_file(audited):
    run, directory = audited
    first = run.printed.splitlines()[0]
    assert first.startswith("Lines 202-351: each caption belongs to the row before")
    report = (directory / "report.md").read_text().split("\n\n")
    assert report[2] == first and "After undoing one misalignment (150 rows)" in report[3]
    page = (directory / "gallery.html").read_text()
    assert first in page and page.count("as stored:") == page.count("after the repair:") == 3
    assert run.status == TOO_MANY


@pytest.mark.slow
def test_the_realigned_table_has_every_column_and_the_right_images(late, audited):
    _, caption = late
    _, directory = audited
    with (directory / REALIGNED).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["photo"] for row in rows] == [f"{k:03}.jpg" for k in caption]
    assert [row["seller"] for row in rows] == [f"seller {k % 7}" for k in caption]
    content = json.loads((directory / "findings.json").read_bytes())
    assert content["images_without_caption"] == ["349.jpg"]
    assert [finding["kind"] for finding in content["findings"]] == ["shifted"]


@pytest.mark.slow
def test_a_finished_audit_knows_its_findings(audited):
    found = open_audit(audited[1])
    assert found.misaligned.findings[0].kind == "shifted"
    assert found.misaligned.changed.sum() == 150
    assert found.repaired.rate.estimate < 0.05 < found.rate.estimate
    assert (found.realigned().image_of == found.misaligned.image_of).all()


@pytest.mark.slow
def test_an_audit_by_a_given_judgement_takes_its_findings(late, audited, tmp_path, monkeypatch):
    for name in ("search_pairs", "judge_pairs"):
        monkeypatch.setattr(command, name, lambda *_, **__: pytest.fail("done again"))
    given, out = f"--config.judgement.path={audited[1]}", tmp_path / "again"
    main.main(["audit", f"--data={late[0] / 'data'}", f"--out={out}", given])
    for name in ("findings.json", "realigned.npy", "realigned_judgement.npz", REALIGNED):
        assert (out / name).read_bytes() == (audited[1] / name).read_bytes(), name


@pytest.mark.slow
def test_check_repeats_the_findings(late, audited, capsys):
    data, given = f"--data={late[0] / 'data'}", f"--config.judgement.path={audited[1]}"
    main.main(["check", data, given])
    assert "misaligned rows: Lines 202-351" in capsys.readouterr().out


@pytest.mark.slow
def test_the_repaired_pairs_are_clean(late, audited):
    pairs = open_pairs(late[0] / "data")
    again = open_audit(audited[1]).misaligned.image_of
    assert not search_pairs(as_rows(replace(pairs, image_of=again)))


@pytest.mark.slow
def test_arrays_are_searched_and_judged_after_the_repair():
    case = make_case(KINDS["reversed_piece"], synthetic(ROWS, 1, 9))
    found = audit_pairs(case.images, case.captions, case.stored, texts=case.columns["texts"])
    assert found.misaligned.findings[0].kind == "reversed"
    assert str(found).startswith("All rows: captions are in reverse order")
    assert found.repaired.rate.estimate < 0.1
    assert exit_status(found) == 0  # no limit was given


@pytest.mark.slow
def test_proposals_stay_within_rows_that_cannot_be_put_back():
    case = make_case(KINDS["shuffled_in_batches"], synthetic(800, 1, 1), share=0.3)
    found = audit_pairs(case.images, case.captions, case.stored)
    rows = np.flatnonzero(found.misaligned.suspicious)
    proposed = found.judgement.proposal[rows]
    assert len(rows) > 200 and found.repaired is None
    assert found.misaligned.suspicious[proposed[proposed >= 0]].all()
    assert "unknown order" in str(found)
