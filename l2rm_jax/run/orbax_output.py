"""What orbax and its array format print about a failed save, besides raising it.

Their threads print a traceback each, before the main thread learns of the failure.
`RunCheckpoints` raises one `CheckpointError` instead.
"""

import logging
import sys
from typing import Any

from absl import logging as absl_logging

CLOSED = "Event loop is closed"


def hide_repeated_errors() -> None:
    """Leave out errors that orbax logs, and the array format's failures to report to orbax."""
    absl_logging.get_absl_logger().addFilter(_is_news)
    report = sys.unraisablehook

    def report_news(failure: Any) -> None:
        # The first of several failed writes ends orbax's event loop; the others find it closed.
        if not isinstance(failure.exc_value, RuntimeError) or str(failure.exc_value) != CLOSED:
            report(failure)

    sys.unraisablehook = report_news


def _is_news(record: logging.LogRecord) -> bool:
    return record.levelno < logging.ERROR or "orbax" not in record.pathname
