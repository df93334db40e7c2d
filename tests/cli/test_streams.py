"""Standard output and error: plain lines once each, any encoding, and readers that leave."""

import io
import logging
import os
import subprocess
import sys
import warnings

import jax
import pytest

from l2rm_jax import main
from l2rm_jax.cli.streams import escape_characters, show_log


@pytest.fixture
def loggers(monkeypatch):
    """The root logger and the logger of the package, both restored after the test."""
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    found = logging.getLogger(), logging.getLogger("l2rm_jax")
    kept = [(each, each.handlers[:], each.level, each.propagate) for each in found]
    yield found
    for logger, handlers, level, propagate in kept:
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


@pytest.mark.parametrize("when", ["before", "after", "both"])
@pytest.mark.parametrize("where", ["root", "package", "other"])
def test_lines_are_plain_and_printed_once_whoever_configures_logging(
    loggers, monkeypatch, when, where
):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    logger = {"root": loggers[0], "package": loggers[1], "other": logging.getLogger("absl")}[where]

    def configure():
        handler = logging.StreamHandler(stream)
        handler.setFormatter(logging.Formatter(logging.BASIC_FORMAT))
        if where == "root":
            logger.addHandler(handler)
            logger.setLevel(logging.DEBUG)
        else:
            logging.basicConfig(level=logging.DEBUG)

    if when in ("before", "both"):
        configure()
    show_log()
    if when in ("after", "both"):
        configure()
    logging.getLogger("l2rm_jax.data.files").info("waiting for %d hosts", 2)
    logging.getLogger("l2rm_jax").warning("no lock")
    assert stream.getvalue() == "waiting for 2 hosts\nwarning: no lock\n"


def test_other_libraries_show_warnings_only(loggers, monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    show_log()
    logging.getLogger("orbax").info("saved")
    logging.getLogger("orbax").warning("slow")
    assert stream.getvalue() == "warning: slow\n"


@pytest.mark.filterwarnings("always")
def test_warnings_of_python_are_one_line_for_each_line_of_code(loggers, monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    show_log()
    for name in ("a", "b"):
        warnings.warn(f"Error writing persistent compilation cache entry for {name}", stacklevel=1)
    warnings.warn("too old\nsee there", UserWarning, stacklevel=1)
    cache = jax.config.jax_compilation_cache_dir
    error = f"{cache}: Error writing persistent compilation cache entry for a"
    assert stream.getvalue() == f"warning: {error}\nwarning: too old\n"


def test_the_library_leaves_the_root_logger_to_its_user():
    code = (
        "import logging, l2rm_jax.data.batches, l2rm_jax.run.checkpoints as c, tempfile\n"
        "with tempfile.TemporaryDirectory() as d, c.RunCheckpoints(d): pass\n"
        "print(logging.getLogger().handlers, logging.getLogger('l2rm_jax').handlers)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] []"


@pytest.mark.parametrize(
    ("encoding", "text", "expected"),
    [
        ("ascii", "café", r"caf\xe9"),
        ("latin-1", "café ❤", "café \\u2764"),
        ("cp1252", "写真 ü", r"\u5199\u771f ü"),
        ("utf-8", "a\udcffb", r"a\udcffb"),  # the name of a file that is no UTF-8
    ],
)
def test_characters_that_a_stream_does_not_have_are_escaped(monkeypatch, encoding, text, expected):
    content = io.BytesIO()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.TextIOWrapper(content, encoding))
    escape_characters()
    print(text, file=sys.stdout, flush=True)
    print(text, file=sys.stderr, flush=True)
    assert content.getvalue().decode(encoding) == f"{expected}\n{expected}\n"


def closed_pipe() -> int:
    read, write = os.pipe()
    os.close(read)
    return write


@pytest.mark.parametrize("words", [["--help"], ["--version"]])
def test_a_reader_that_leaves_ends_the_program_without_a_word(words):
    command = [sys.executable, "-m", "l2rm_jax", *words]
    with open(closed_pipe(), "wb") as output:
        done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_mode_whose_reader_has_left_ends_with_its_status(monkeypatch):
    statuses = []

    def leave(status: int):
        statuses.append(status)
        raise SystemExit(status)

    monkeypatch.setattr(os, "_exit", leave)
    with open(closed_pipe(), "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        monkeypatch.setattr(main, "MODES", (mode(lambda _: print("short")),))
        with pytest.raises(SystemExit):
            main.main(["weights"])
        with open(os.devnull, "wb") as nowhere:  # for the rest of the buffer
            os.dup2(nowhere.fileno(), output.fileno())
    assert statuses == [141]


def test_a_broken_pipe_elsewhere_is_an_error(monkeypatch):
    def lose_worker(_):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(main, "MODES", (mode(lose_worker),))
    with pytest.raises(SystemExit, match=r"error: .*Broken pipe"):
        main.main(["weights"])


def mode(run):
    [weights] = [each for each in main.MODES if each.name == "weights"]
    return weights._replace(run=run)
