"""Calls that run at the same time."""

import os
import signal
import threading
from functools import partial

import jax
import numpy as np
import pytest

from l2rm_jax.devices import parallel
from l2rm_jax.devices.parallel import Replicas, RunAhead, matmul_precision
from l2rm_jax.errors import StoppedError
from l2rm_jax.run.stop_signal import StopSignal

LONGEST = 60  # seconds that one thread waits for another before the test fails


def test_results_come_in_the_order_of_their_calls():
    replicas = Replicas(jax.devices()[:1])
    square = replicas.map_local(lambda x: x * x, (0,))
    calls = ((number, partial(square, np.full((1, 2), number))) for number in range(20))
    found = list(replicas.run_ahead(calls))
    assert [label for label, _ in found] == list(range(20))
    for label, values in found:
        assert isinstance(values, np.ndarray)
        np.testing.assert_array_equal(values, [[label**2] * 2])


def test_a_result_that_is_ready_early_waits_for_its_turn():
    ended = threading.Event()

    class Slow:
        def __array__(self, dtype=None, copy=None):
            assert ended.wait(LONGEST)
            return np.zeros(1)

    class Fast:
        def __array__(self, dtype=None, copy=None):
            ended.set()
            return np.ones(1)

    found = list(Replicas(jax.devices()[:1]).run_ahead([("slow", Slow), ("fast", Fast)]))
    assert [label for label, _ in found] == ["slow", "fast"]


def test_calls_have_the_precision_of_their_caller():
    def precision() -> np.ndarray:
        return np.array(jax.config.jax_default_matmul_precision)

    with matmul_precision("bfloat16"):
        expected = precision()
        ((_, found),) = Replicas().run_ahead([("call", precision)])
    assert found == expected
    assert found != precision()


def test_an_error_ends_the_calls():
    begun = []

    def call(number: int) -> np.ndarray:
        begun.append(number)
        if number == 1:
            raise ValueError("no memory")
        return np.zeros(1)

    results = Replicas().run_ahead((number, partial(call, number)) for number in range(1000))
    assert next(results)[0] == 0
    with pytest.raises(ValueError, match="no memory"):
        list(results)
    assert len(begun) < 100  # only the calls that were running


def test_closing_the_results_ends_the_calls():
    begun, threads = [], threading.active_count()
    calls = ((number, lambda: begun.append(1) or np.zeros(1)) for number in range(1000))
    results = Replicas().run_ahead(calls)
    next(results)
    results.close()
    assert len(begun) < 100
    assert threading.active_count() <= threads


def test_a_signal_does_not_wait_for_running_calls():
    left, ended = threading.Event(), []

    def call() -> np.ndarray:
        os.kill(os.getpid(), signal.SIGTERM)
        left.wait(LONGEST)
        ended.append(1)
        return np.zeros(1)

    with StopSignal(str) as stop, pytest.raises(StoppedError), stop.interruptible():
        list(Replicas().run_ahead([("call", call)]))
    assert not ended
    left.set()


class Result:
    """A result of a step, which is recorded in `waited` when it is waited for."""

    def __init__(self, number: int, waited: list[int]):
        self.number, self.waited = number, waited

    def block_until_ready(self) -> None:
        self.waited.append(self.number)


def test_the_host_is_one_step_ahead_of_fast_steps_and_of_slow_ones_not(monkeypatch):
    """Until a step has been seen, steps count as slow."""
    ahead, waited = RunAhead(), []
    for number, slow in enumerate([False, False, False, True, False]):
        monkeypatch.setattr(parallel, "SLOW_STEP_SECONDS", -1.0 if slow else 1e9)
        ahead.limit(Result(number, waited))
    assert waited == [0, 0, 1, 2, 4]
