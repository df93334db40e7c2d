"""Grouping on whole columns, against a plain loop over the rows."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from l2rm_jax.importing.columns import Columns
from l2rm_jax.importing.pictures import image_keys
from l2rm_jax.importing.rejected import Rejected
from l2rm_jax.importing.sources import Part, Source
from l2rm_jax.importing.table_pairs import read_pairs

Row = tuple[str | None, str | None]


def grouped_by_loop(rows: list[Row]) -> tuple[list, list]:
    """The pairs (row, image, caption) and the rejections, by dictionaries."""
    pairs, rejected, first = [], [], {}
    for number, (name, caption) in enumerate(rows, 1):
        image, text = (name or "").strip(), " ".join((caption or "").split())
        if not image:
            rejected.append((number, "", "no image"))
        elif not text:
            rejected.append((number, image, "empty caption"))
        elif "\ufffd" in text:
            rejected.append((number, image, "broken text: bytes that are not UTF-8"))
        elif (image, text) in first:
            rejected.append((number, image, f"duplicate: of row {first[image, text]}"))
        else:
            first[image, text] = number
            pairs.append((number, image, text))
    return pairs, rejected


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("is_clean", [True, False])
def test_rows_are_grouped_as_a_loop_groups_them(tmp_path, seed, is_clean):
    """Few names and words, so that images return later and captions repeat; in two parts."""
    rng = np.random.default_rng(seed)
    names = ["a.png", "b.png", "long/name of c.png"] + ([] if is_clean else [" a.png", " ", None])
    words = ["red", "der", "ab", "ba"] + ([] if is_clean else ["", " ", "\u00a0\u4e2d\t", "\ufffd"])
    captions = [" ".join(rng.choice(words, 2)) for _ in range(120)] + ([] if is_clean else [None])
    rows: list[Row] = []
    while len(rows) < 200:
        name = names[rng.integers(len(names))]
        rows += [(name, captions[rng.integers(len(captions))]) for _ in range(rng.integers(1, 5))]
    tables = [
        pa.table({"file": [name for name, _ in own], "text": [caption for _, caption in own]})
        for own in (rows[:70], rows[70:])
    ]
    source = Source(Path("t"), "csv", Path(), tuple(Part(table, None) for table in tables), [])
    rejected = Rejected(tmp_path, 1.0)
    columns = Columns(("file",), ("text",), None)
    pairs = read_pairs(source, columns, image_keys(source, columns)[0], rejected)
    expected, left_out = grouped_by_loop(rows)
    found_names = [pairs.names[int(image)].as_py() for image in pairs.image]
    found = list(zip(pairs.row.tolist(), found_names, pairs.text.to_pylist(), strict=True))
    assert found == expected and len(left_out) > 50
    assert sorted(map(tuple, rejected._rejections)) == left_out
    # Images are numbered in the order in which their rows appear, rejected ones too.
    order = list(dict.fromkeys(name.strip() for name, _ in rows if name and name.strip()))
    assert pairs.names.to_pylist() == order
    places = [[(name or "").strip() for name, _ in rows].index(name) + 1 for name in order]
    assert pairs.first_row.tolist() == places and pairs.caption_count == len(rows)
