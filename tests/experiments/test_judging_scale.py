"""What judging takes beyond one machine, from what was measured on one."""

import pytest

from experiments.machines import judging
from tests.experiments.finished_runs import command, read_csv

MEASURED = """executor,pairs,cpu_seconds,own_memory_gb
local,100000,50,1.3
local,1000000,275,3.1
ray,1000000,10,9.9
"""


def test_rows_follow_from_two_sizes(tmp_path, monkeypatch):
    (tmp_path / "cost.csv").write_text(MEASURED)
    flags = f"--measured={tmp_path / 'cost.csv'}", f"--csv={tmp_path / 'scale.csv'}", "--rate=1e11"
    command(monkeypatch, judging, *flags)
    [same, fits, *others] = read_csv(tmp_path / "scale.csv")
    assert same == {
        "pairs": "1,000,000",
        "core_hours": "0.076",  # 275 s
        "hours_on_512_cores": "0.00015",
        "vectors_tb": "0.002",
        "memory_gb": "3.1",
    }
    assert fits["memory_gb"] == "130" and fits["pairs"] == "63,000,000"  # 1.1 GB + 2 kB a pair
    assert [row["pairs"] for row in others] == ["12,000,000", "400,000,000", "5,000,000,000"]
    seconds = 25 + 250e-6 * 12e6 + 4 * 512 * 12e6 * (12e6**0.5 - 1e3) / 1e11
    assert float(others[0]["core_hours"]) == pytest.approx(seconds / 3600, rel=0.05)


def test_the_rate_of_a_product_is_measured():
    assert 1e9 < judging.product_rate() < 1e13
