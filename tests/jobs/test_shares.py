"""Processes that share a directory: each call is computed once, and all see all results."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pytest

from l2rm_jax.errors import DataError
from l2rm_jax.jobs import LOCAL, Later, Share, Stored, shares

COUNT, CALLS = 3, 8


class Found(NamedTuple):
    rows: np.ndarray
    parts: tuple


LIKE = Found(0, (0, 0))


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(shares, "_POLL_SECONDS", 0.01)


def stage(rows, shift):
    return Found(rows + shift, ((rows / 3).astype(np.float32), len(rows)))


def calls(shift=0):
    return ((np.arange(call), shift) for call in range(CALLS))


def counted(done):
    """The stage, which notes the number of each call that is computed."""

    def count(rows, shift):
        done.append(len(rows))
        return stage(rows, shift)

    return count


def assert_equal(found, expected):
    """Compare results, with their types."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert [type(one), type(one[1])] == [Found, tuple]
        np.testing.assert_array_equal(one.rows, other.rows, strict=True)
        np.testing.assert_array_equal(one.parts[0], other.parts[0], strict=True)
        assert one.parts[1] == other.parts[1]


def two_maps(executor, stage):
    """Return the results of two maps; the first continues after the second has ended."""
    first, second = (
        executor.map(stage, calls(7), like=LIKE),
        executor.map(stage, calls(1), like=LIKE),
    )
    begun, of_second = next(first), [*second]
    return [begun, *first, *of_second]


def test_all_shares_see_what_one_process_computes(tmp_path):
    done = {number: [] for number in (3, 1, 2)}
    with ThreadPoolExecutor(COUNT) as threads:
        executors = {number: Stored(tmp_path, LOCAL, Share(number, COUNT)) for number in done}
        results = [
            threads.submit(two_maps, executors[number], counted(done[number])) for number in done
        ]
    for result in results:
        assert_equal(result.result(), two_maps(LOCAL, stage))
    assert {number: sorted(of) for number, of in done.items()} == {
        1: [0, 0, 3, 3, 6, 6],
        2: [1, 1, 4, 4, 7, 7],
        3: [2, 2, 5, 5],
    }


def test_a_result_that_is_there_is_not_computed_again_and_a_missing_one_is_waited_for(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(shares, "_QUIET_SECONDS", 0.05)
    caplog.set_level("INFO", "l2rm_jax")
    done, again, found = [], [], []
    first, second = (Stored(tmp_path, LOCAL, Share(number, COUNT)) for number in (1, 2))
    own = first.map(counted(done), calls(), like=LIKE)
    waiting = threading.Thread(target=lambda: found.extend(own), daemon=True)
    waiting.start()
    threading.Thread(target=lambda: [*second.map(stage, calls(), like=LIKE)], daemon=True).start()
    waiting.join(0.5)
    assert waiting.is_alive() and len(found) == 2 and done == [0, 3, 6]
    assert set(caplog.messages) <= {"waiting for share 3", "waiting for share 2, share 3"}
    assert 1 <= len(caplog.messages) <= COUNT - 1  # one line of each that waits
    [*Stored(tmp_path, LOCAL, Share(3, COUNT)).map(stage, calls(), like=LIKE)]
    waiting.join(5)
    assert_equal(found, [*LOCAL.map(stage, calls(), like=LIKE)])
    started_again = Stored(tmp_path, LOCAL, Share(1, COUNT))
    assert_equal([*started_again.map(counted(again), calls(), like=LIKE)], found)
    assert not again


def test_fits_and_references_are_computed_once(tmp_path):
    """A fit by the first share; an argument by each share that has a part to compute."""
    fitted, prepared = [], []

    def fit():
        fitted.append(1)
        return np.arange(3)

    def results(number):
        executor = Stored(tmp_path, LOCAL, Share(number, COUNT))
        model = executor.once(fit, like=0)
        assert executor.as_writer(lambda: number) == (1 if number == 1 else None)
        known = Later(lambda: prepared.append(number) or model)
        return [*executor.map(np.add, ((row, known) for row in range(2)))]

    for _ in range(2):
        with ThreadPoolExecutor(COUNT) as threads:
            for found in threads.map(results, (3, 1, 2)):
                np.testing.assert_array_equal(found, [[0, 1, 2], [1, 2, 3]])
        assert fitted == [1] and sorted(prepared) == [1, 2]


def test_a_result_that_is_damaged_or_of_another_call_is_refused(tmp_path):
    alone = Stored(tmp_path)
    [*alone.map(stage, calls(), like=LIKE)]
    other = Stored(tmp_path).map(stage, [(np.arange(9), 0)])
    with pytest.raises(DataError, match=r"000/00000000\.npz"):
        next(other)
    file = tmp_path / "000" / "00000002.npz"
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(DataError, match=r"000/00000002\.npz"):
        [*Stored(tmp_path).map(stage, calls(), like=LIKE)]
