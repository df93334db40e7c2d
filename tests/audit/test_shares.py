"""`l2rm audit --share=I/N`: several processes with one directory give the bytes of one process."""

import os
import re
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from l2rm_jax import main
from l2rm_jax.audit import command
from l2rm_jax.audit.outputs import GALLERY
from l2rm_jax.config import get_config
from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.jobs import Job, Place, Share, shares
from l2rm_jax.judging import groups, judge, scores
from l2rm_jax.run.config_file import with_changes
from tests.audit.test_shards import write_tables
from tests.judging.synthetic import make_pairs

COUNT, PAIRS = 3, 240
# A process with a share, whose parts are small, and which is killed where the test says.
PROGRAM = """
import os, signal, sys
from l2rm_jax import main
from l2rm_jax.audit import command
from l2rm_jax.jobs import shares
from l2rm_jax.judging import groups, judge, scores

def dies(module, name, calls):
    compute = getattr(module, name)
    def compute_some(*arguments):
        calls.pop() if calls else os.kill(os.getpid(), signal.SIGKILL)
        return compute(*arguments)
    setattr(module, name, compute_some)

scores._PAIRS, groups._EXACT, shares._POLL_SECONDS = 20, 100, 0.1
share, place = sys.argv[1:]
if place == "in a part":
    dies(judge, "score_part", [1])
if place == "before the results":
    dies(command, "write_files", [])
main.main(["audit", "--data=data", "--out=audit", f"--share={share}"])
"""


@pytest.fixture(autouse=True)
def small_parts(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(scores, "_PAIRS", 20)
    monkeypatch.setattr(groups, "_EXACT", 100)
    monkeypatch.setattr(shares, "_POLL_SECONDS", 0.01)


@pytest.fixture
def vectors():
    images, captions, _, _ = make_pairs(PAIRS, 1, 0.2)
    return images.astype(np.float16), captions.astype(np.float16)


def write_data(directory, vectors):
    """Make a plain directory of data."""
    directory.mkdir()
    for name, array in zip(("ims", "caps"), vectors, strict=True):
        np.save(directory / f"train_{name}.npy", array)


def config_of(**changes):
    data = {"data.name": "mine", "data.path": "data", "mismatch.rate": 0.0}
    return with_changes(get_config(), data | changes)


def audited(number, config=None, out="audit", count=COUNT):
    place = Place(share=Share(number, count))
    return command.audit_directory(config or config_of(), out, place)


def content(directory):
    """Return the bytes of all files; the page has the command that names its own directory."""
    files = (file for file in Path(directory).rglob("*") if file.is_file())
    read = {str(file.relative_to(directory)): file.read_bytes() for file in files}
    if GALLERY in read:
        read[GALLERY] = re.sub(f"={directory}\\b".encode(), b"=audit", read[GALLERY])
    return read


@pytest.mark.slow
def test_shares_of_vectors_that_one_of_them_copies_make_the_bytes_of_one_process(
    vectors, monkeypatch
):
    vectors[1][50:170] = vectors[1][49:169].copy()  # misaligned: these pairs are judged twice
    write_tables(Path("data"), vectors, [30, 200])
    command.audit_directory(config_of(), "whole")
    assert Path("whole/realigned_judgement.npz").exists()
    done = []
    for module, name in ((command, "search_pairs"), (judge, "find_posterior")):
        compute = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *x, f=compute: (done.append(f), f(*x))[1])
    with ThreadPoolExecutor(COUNT) as threads:
        audits = [threads.submit(audited, number) for number in (2, 3, 1)]
    assert [each.result() is None for each in audits] == [True, True, False]
    assert len(done) == 3  # one search, and the posterior of the pairs before and after the repair
    assert content("audit") == content("whole")
    assert {path.name for path in Path().iterdir()} == {"data", "whole", "audit"}


def test_shares_of_one_number_or_of_another_audit_are_refused(vectors):
    write_data(Path("data"), vectors)
    job = Job(Path("audit"), "audit", Share(2, COUNT))
    with job.locked():
        with pytest.raises(ConfigError, match="share 2: "):
            audited(2)
        with pytest.raises(ConfigError, match=r"audit\.partial: "):
            command.audit_directory(config_of(), "audit")
        job.claim({"share": COUNT})
    for number, count in ((1, 2), (1, 1)):
        with pytest.raises(ConfigError, match=r"another audit in progress .*share\)"):
            audited(number, count=count)
    assert (job.work / "audit.json").exists()  # it can continue


def test_the_first_share_waits_until_no_other_needs_the_work():
    first, *others = (Job(Path("audit"), "audit", Share(number, COUNT)) for number in (1, 2, 3))
    ended = []

    def wait():
        thread = threading.Thread(target=lambda: ended.append(first.is_mine_to_finish()))
        thread.start()
        thread.join(0.1)
        return thread

    with first.locked():
        waiting = wait()
        for other in others:
            assert waiting.is_alive()
            with other.locked():
                assert not other.is_mine_to_finish()
        waiting.join(5)
        with others[0].locked():  # started again, it may still read
            waiting = wait()
            assert ended == [True]
            others[0].is_mine_to_finish()
        waiting.join(5)
    assert ended == [True, True]


def test_what_is_refused_leaves_nothing_unless_others_are_at_work(vectors):
    vectors[1][7] = np.nan
    write_tables(Path("data"), vectors, [100])
    with Job(Path("audit"), "audit", Share(2, COUNT)).locked():
        with pytest.raises(DataError, match=r"text_embedding: row 7\b"):
            audited(1)
        assert Path("audit.partial").exists()
    with pytest.raises(DataError, match=r"text_embedding: row 7\b"):
        audited(3)
    assert [path.name for path in Path().iterdir()] == ["data"]
    Path("audit.partial").mkdir()
    (Path("audit.partial") / "mine").write_text("of the user")
    with pytest.raises(DataError, match=r"text_embedding: row 7\b"):
        audited(1)
    assert content("audit.partial") == {"mine": b"of the user"}


def test_what_one_process_must_do_is_refused(vectors):
    write_data(Path("data"), vectors)
    trained = config_of(**{"judgement.detector": "infonce-vse"})
    with pytest.raises(ConfigError, match=r"--share=1/3 .*infonce-vse"):
        audited(1, trained)
    with pytest.raises(ConfigError, match=r"--share .*--workdir"):
        command._audit(config_of(), "run", Path("audit"), Place(share=Share(1, COUNT)))
    for flags, words in (
        (["--share=4/3"], "--share=4/3: expected I/N"),
        (["--share=1/3", "--executor=ray"], "--executor=ray cannot be combined with --share"),
    ):
        with pytest.raises(SystemExit, match=words):
            main.main(["audit", "--data=data", "--out=audit", *flags])
    assert [path.name for path in Path().iterdir()] == ["data"]


def start(number, place=""):
    """Start a process with a share of `audit` that prints to a file."""
    root, printed = Path(__file__).parents[2], Path(f"printed-{number}")
    with printed.open("w") as file:
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, f"{number}/{COUNT}", place],
            env=os.environ | {"PYTHONPATH": str(root)},
            stdout=file,
        )


@pytest.mark.slow
def test_processes_that_are_killed_and_started_again_change_no_byte(vectors, capsys):
    write_data(Path("data"), vectors)
    main.main(["audit", "--data=data", "--out=whole"])
    whole = capsys.readouterr().out
    places = {3: "", 1: "before the results", 2: "in a part"}
    processes = {number: start(number, place) for number, place in places.items()}
    for number in (2, 1):
        assert processes[number].wait() == -signal.SIGKILL
        processes[number] = start(number)
    assert [each.wait() for each in processes.values()] == [0, 0, 0]
    for number in (2, 3):
        line = f"share {number}/{COUNT} is done; share 1/{COUNT} writes audit\n"
        assert Path(f"printed-{number}").read_text() == line
    assert Path("printed-1").read_text() == whole.replace("whole", "audit")
    assert content("audit") == content("whole")
    assert not [*Path().glob("audit.*")]
