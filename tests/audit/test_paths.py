"""Paths of audits and tables that other libraries may take as addresses."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from l2rm_jax.audit.open import open_audit
from l2rm_jax.data.parquet_vectors import open_parquet
from l2rm_jax.importing.sources import open_source
from tests.audit.made import make_audit

NAMES = ["2026-01-31T12:30:00", "data:x", "s3:", "a#b?c%20d", "with space", "file:é"]


@pytest.mark.parametrize("name", NAMES)
def test_an_audit_is_written_and_read(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    audit = make_audit()
    audit.write(name)
    assert (tmp_path / name / "pairs.parquet").is_file()
    assert open_audit(name).pairs.texts == audit.pairs.texts


@pytest.mark.parametrize("name", NAMES)
def test_a_parquet_table_is_read(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / name / "pairs.parquet"
    file.parent.mkdir()
    table = pa.table({"image": ["a.jpg", "b.jpg"], "caption": ["a", "b"]})
    with file.open("wb") as out:
        pq.write_table(table, out)
    relative = file.relative_to(tmp_path)
    assert open_parquet(relative).read().equals(table)
    source = open_source(relative, relative.parent / "cache")
    assert source.parts[0].table["caption"].to_pylist() == ["a", "b"]


def test_a_chain_of_file_systems_is_refused_by_its_name(tmp_path):
    file = tmp_path / "a::b" / "pairs.parquet"
    file.parent.mkdir()
    pq.write_table(pa.table({"image": ["a"], "caption": np.array(["b"])}), file)
    with pytest.raises(ValueError, match="a::b"):
        open_source(file, tmp_path / "cache")
