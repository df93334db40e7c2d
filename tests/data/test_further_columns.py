"""Further columns of a table keep their values, whatever the library that holds them."""

import pytest

from l2rm_jax.data.frame_columns import columns_of, further_columns

GAPS = {
    "None": (["a", None, "b"], ["a", None, "b"]),
    "NaN in texts": (["a", float("nan"), "b"], ["a", None, "b"]),
    "nullable text": (lambda pd: pd.array(["a", None, "b"], dtype="string"), ["a", None, "b"]),
    "nullable integers": (lambda pd: pd.array([1, None, 2**60 + 1], "Int64"), [1, None, 2**60 + 1]),
    "nullable bools": (lambda pd: pd.array([True, None, False], "boolean"), [True, None, False]),
    "days": (lambda pd: [pd.NaT, "x", pd.NA], [None, "x", None]),
    "long integers": ([2**63, -1, 0], [2**63, -1, 0]),
    "long integers beside floats": ([2**53 + 1, 0.5, 1], [2**53 + 1, 0.5, 1]),
    "numbers": ([1, 0.5, 2], [1.0, 0.5, 2.0]),
}


@pytest.mark.parametrize("case", GAPS)
def test_gaps_in_further_columns_are_none_and_no_digit_is_lost(case):
    pandas = pytest.importorskip("pandas")
    values, expected = GAPS[case]
    table = {"column": values(pandas) if callable(values) else values}
    assert further_columns(columns_of(table))["column"].tolist() == expected
