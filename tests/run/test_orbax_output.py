"""Errors of orbax's threads, which `RunCheckpoints` raises, are not printed as well."""

import sys
from types import SimpleNamespace

from l2rm_jax.run.checkpoints import hide_repeated_errors


def test_other_errors_of_threads_are_still_reported(monkeypatch):
    """`test_checkpoints.py` has orbax's log; here are errors that the array format reports."""
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", lambda failure: reported.append(failure.exc_value))
    hide_repeated_errors()
    errors = [RuntimeError("Event loop is closed"), RuntimeError("other"), OSError("closed")]
    for error in errors:
        sys.unraisablehook(SimpleNamespace(exc_value=error))
    assert reported == errors[1:]
