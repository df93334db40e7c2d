"""The benchmark of the import, on few rows."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("datasets", reason="the extra `import` is not installed")

from experiments.bench import importing


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_arrays_are_imported_in_a_process_that_is_watched(tmp_path):
    results = importing.import_arrays(tmp_path, rows=200, dimensions=8)
    assert results["arrays_s"] > 0 and 20 < results["arrays_peak_anonymous_mib"] < 1000
    assert list(tmp_path.iterdir()) == []


def test_a_table_is_read_in_turns_with_pandas(tmp_path):
    file = importing.write_table(tmp_path / "table.csv", 1003)
    lines = file.read_text().splitlines()
    shuffled = importing.write_table(tmp_path / "shuffled.csv", 1003, shuffle=True)
    names = [sorted(line.split(",")[0] for line in lines)]
    names.append(sorted(line.split(",")[0] for line in shuffled.read_text().splitlines()))
    assert names[0] == names[1] and shuffled.read_text() != file.read_text()
    assert len(lines) == 1004 and len({line.split(",")[0] for line in lines[1:]}) == 201
    results = importing.read_table(file, repeats=2)
    assert results["table_to_pandas"] > 0 and not (tmp_path / "work").exists()
    vectors = importing.write_vectors(tmp_path / "v.npy", 5, 3, seed=1)
    assert np.load(vectors).shape == (5, 3) and np.load(vectors).std() > 0.3
