"""`suspects.csv` and the lines on the screen: the worst pairs, with the line of the user's file."""

import csv
from dataclasses import replace

import numpy as np
import pytest

from l2rm_jax.audit.suspects import SHOWN, SUSPECTS, describe_suspects, find_suspects, percent
from l2rm_jax.audit.suspects import write_suspects as write
from l2rm_jax.importing.csv_rows import find_dialect
from l2rm_jax.judging.judgement import MATCHED, PLACEHOLDER
from tests.audit.made import HOSTILE, PAIRS, POSTERIOR, make_audit, make_judgement, make_pairs


def rows_of(audit, directory) -> list[dict[str, str]]:
    write(audit, directory)
    with (directory / SUSPECTS).open(newline="", encoding="utf-8") as file:
        return [*csv.DictReader(file)]


def test_the_suspicious_pairs_are_listed_the_worst_first(tmp_path):
    rows = rows_of(make_audit(), tmp_path)
    assert [int(row["rank"]) for row in rows] == [1, 2, 3, 4, 5]
    assert [int(row["line"]) for row in rows] == [0, 1, 2, 3, 4]  # rows, as there is no table
    np.testing.assert_allclose([float(row["posterior"]) for row in rows], POSTERIOR[:5])
    assert rows[0]["caption"] == HOSTILE and rows[0]["id"] == "photos/0.jpg"
    assert rows[0]["proposal"] == "caption 3" and float(rows[0]["probability"]) == 0.4
    assert rows[1]["proposal"] == rows[1]["probability"] == ""


def test_without_a_number_the_ranking_is_listed(tmp_path):
    judgement = make_judgement(
        kind=np.full(PAIRS, MATCHED), unreliable_reason="few", is_rankable=False
    )
    audit = make_audit(judgement=judgement)
    assert [each.line for each in find_suspects(audit)] == judgement.order[:SHOWN].tolist()
    write(audit, tmp_path)
    assert "unreliable" in describe_suspects(audit, tmp_path)[0]


def test_no_probability_is_rounded_to_a_certainty():
    shares = 0, 1e-9, 0.006, 0.994, 0.9999, 1
    assert [*map(percent, shares)] == ["0%", "<1%", "1%", "99%", ">99%", "100%"]


def test_no_suspicious_pair_prints_nothing(tmp_path):
    audit = make_audit(judgement=make_judgement(kind=np.full(PAIRS, MATCHED)))
    assert rows_of(audit, tmp_path) == [] == describe_suspects(audit, tmp_path)


def test_placeholder_pictures_come_last():
    judgement = make_judgement()
    kind = judgement.kind.copy()
    kind[0] = PLACEHOLDER
    [*_, last] = find_suspects(make_audit(judgement=replace(judgement, kind=kind)))
    assert last.line == 0


@pytest.mark.parametrize("text", ["=1+1", "+1", "-x", "@SUM(A1)"])
def test_no_cell_is_a_formula(tmp_path, text):
    pairs = make_pairs(texts=[text] * PAIRS)
    assert {row["caption"] for row in rows_of(make_audit(pairs=pairs), tmp_path)} == {f"'{text}"}


def test_the_screen_gets_no_control_characters(tmp_path):
    pairs = make_pairs(texts=["a \x1b[2J\u202e\x07 dog " + "x" * 500] * PAIRS)
    audit = make_audit(pairs=pairs)
    write(audit, tmp_path)
    _, *lines = describe_suspects(audit, tmp_path)
    assert len(lines) == 5 and all(line.isprintable() and len(line) < 250 for line in lines)


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_are_those_of_a_spreadsheet(tmp_path, separator, end):
    lines = ["file,title", "a.jpg,one", "", 'b.jpg,"two', 'lines"', ",", "c.jpg,three", "d.jpg,x"]
    text = end.join(lines).replace(",", separator) + end
    (tmp_path / "pairs.csv").write_bytes(text.encode())
    dialect = find_dialect(tmp_path / "pairs.csv", "csv", ["file"])
    assert dialect.spreadsheet_lines() == [2, 4, 6, 7]
    assert len([*dialect.records()]) == 5


def test_lines_without_a_header_begin_with_the_first(tmp_path):
    (tmp_path / "pairs.tsv").write_text("a.jpg\ta dog\nb.jpg\ta cat\n")
    assert find_dialect(tmp_path / "pairs.tsv", "tsv", []).spreadsheet_lines() == [1, 2]
