"""Nothing that is put into a file or a flag ends in anything but success or an error of ours.

Every reader gets damaged copies of sound files, made by the seeded `MUTATIONS`; captions and fields
of the config are searched by hypothesis. `-m exhaustive` does ten thousand.
"""

import contextlib
import os
import resource
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from absl import flags
from hypothesis import given, settings
from hypothesis import strategies as st

from l2rm_jax import config as defaults
from l2rm_jax import main
from l2rm_jax.check import check
from l2rm_jax.config import flat
from l2rm_jax.data.batches import caption_batches
from l2rm_jax.data.captions import read_captions
from l2rm_jax.data.streams import TrainStream
from l2rm_jax.data.text import Vocabulary
from l2rm_jax.errors import ConfigError, DataError, L2RMError
from l2rm_jax.methods import METHODS
from l2rm_jax.published.checkpoint import read_checkpoint
from l2rm_jax.run import log as run_log
from l2rm_jax.run.config_file import read_config, write_config
from l2rm_jax.run.fields import check_fields
from l2rm_jax.run.inputs import read_data
from l2rm_jax.run.log import RunLog
from tests.data.test_video import config_of, write_dual_encoding, write_experts
from tests.mutations import MUTATIONS

pytestmark = pytest.mark.filterwarnings("ignore:Detected pickle protocol:UserWarning")

# What an input may take of the processor, of a person's time, and of memory beyond what is in use.
SECONDS, PATIENCE, BYTES = 20.0, 120.0, 1 << 30
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
FORBIDDEN = (
    *("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect"),
    *("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.chmod", "shutil.rmtree"),
)


# What a reader must not do


class Watch:
    """Notices writing and executing in this thread, while it is armed; it cannot be removed."""

    def __init__(self) -> None:
        self.armed, self.seen = 0, []
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple) -> None:
        if self.armed != threading.get_ident():
            return
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES
        if writes or event in FORBIDDEN:
            self.seen.append((event, str(arguments)[:200]))


WATCH = Watch()


def _too_long(*_: object) -> None:
    raise RuntimeError("hangs")


@contextlib.contextmanager
def confined() -> Iterator[None]:
    """Bounds the time and the memory of a block and watches what it does."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    memory = resource.getrlimit(resource.RLIMIT_AS)
    alarm = signal.signal(signal.SIGALRM, _too_long)
    began = time.process_time()
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + BYTES, memory[1]))
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    WATCH.seen.clear()
    WATCH.armed = threading.get_ident()
    try:
        yield
    finally:
        WATCH.armed = 0
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, alarm)
        resource.setrlimit(resource.RLIMIT_AS, memory)
    assert time.process_time() - began < SECONDS, "hangs"
    assert not WATCH.seen, f"did {WATCH.seen}"


def outcome(read: Callable[[], object]) -> str:
    """`read`, or `refused` by an error of ours; any other end is the test's failure."""
    with confined():
        try:
            read()
        except L2RMError as error:
            assert error.args and all(str(message).strip() for message in error.args)
            return "refused"
    return "read"


# Readers


def sound_split(directory: Path, split: str, images: int, dtype: str, end: str, each: int) -> None:
    rng = np.random.default_rng(images)
    features = rng.normal(size=(images, 3, 4)).astype(np.float32)
    if dtype == "int8":
        np.save(directory / "ims_scale.npy", np.full(4, 0.1, np.float32))
        features = (40 * features).clip(-127, 127)
    np.save(directory / f"{split}_ims.npy", features.astype(dtype))
    np.save(directory / f"{split}_regions.npy", rng.integers(1, 4, images))
    if end == "npy":
        captions = rng.normal(size=(images * each, 5, 4)).astype(np.float32)
        np.save(directory / f"{split}_caps.npy", captions)
        np.save(directory / f"{split}_lengths.npy", rng.integers(1, 6, images * each))
        return
    words = [" ".join(rng.choice(list("abcdefgh"), 4)) + "." for _ in range(images * each)]
    if end == "tsv":
        words = [f"{number}\t{line}" for number, line in enumerate(words)]
    (directory / f"{split}_caps.{end}").write_text("\n".join(words) + "\n")


def precomp(directory: Path, dtype: str = "float32", end: str = "txt", each: int = 5) -> None:
    for split, images in (("train", 6), ("dev", 3), ("test", 2)):
        sound_split(directory, split, images, dtype, end, each)
    words = [*"abcdefgh", "."]
    Vocabulary.from_words([words], 1).write(directory / "vocabulary.json")
    np.save(directory / "index.npy", np.arange(6 * each) // each)
    np.save(directory / "scores.npy", np.linspace(0, 1, 6 * each))
    write_config(directory, precomp_config(directory))
    with RunLog(directory, {}) as log:
        for step in range(4):
            log.write("step", step, epoch=1)
        log.write("epoch", 3, epoch=1)


def precomp_config(directory: Path):
    config = defaults.default()
    config.data.name, config.data.path, config.data.min_count = "fuzz", str(directory), 1
    config.train.batch_size = 4
    return config


def read_data_set(config: Any) -> None:
    """All that a run and `--mode=check` read of it, but for the batches' threads."""
    data = read_data(config, None)
    for split in data.splits:
        split.images.rows(np.arange(len(split.images)))
        for _ in caption_batches(split, 4):
            pass
    stream = TrainStream(
        data.train, {"all": np.arange(len(data.train))}, batch_size=4, seed=0, epoch=0
    )
    stream.pairs(0)
    check(config)


def with_fields(**fields: str) -> Callable[[Path], None]:
    def read(directory: Path) -> None:
        config = precomp_config(directory)
        for field, value in fields.items():
            part, name = field.split("_", 1)
            text = value.replace("HERE", str(directory)) if isinstance(value, str) else value
            setattr(getattr(config, part), name, text)
        read_data_set(config)

    return read


def read_log(directory: Path) -> None:
    """What a resumed run keeps of its log; it then writes that anew."""
    run_log._lines_up_to(directory / "metrics.jsonl", step=3, epochs=1)


def sound_checkpoint(directory: Path) -> None:
    torch = pytest.importorskip("torch")
    from tests.published.test_published import golden, options
    from tests.published.test_published import tensors as state_dict

    weights = golden("bc_sim_SGR").under("w/")
    content = {"net": state_dict(weights), "opt": options(weights), "epoch": 3}
    torch.save(content, directory / "a.pth.tar")


class Reader(NamedTuple):
    """Sound files, which of them are damaged, and who reads them."""

    write: Callable[[Path], object]
    damaged: str
    read: Callable[[Path], object]


INT8 = partial(precomp, dtype="int8")
VECTORS = partial(precomp, end="npy")
READERS = {
    "features, float32": Reader(precomp, "*_ims.npy", with_fields()),
    "features, int8": Reader(INT8, "*_ims.npy", with_fields()),
    "scale": Reader(INT8, "ims_scale.npy", with_fields()),
    "regions": Reader(precomp, "*_regions.npy", with_fields()),
    "captions, txt": Reader(precomp, "*_caps.txt", with_fields()),
    "captions, tsv": Reader(partial(precomp, end="tsv", each=1), "*_caps.tsv", with_fields()),
    "vectors": Reader(VECTORS, "*_caps.npy", with_fields()),
    "lengths": Reader(VECTORS, "*_lengths.npy", with_fields()),
    "vocabulary": Reader(
        precomp, "vocabulary.json", with_fields(data_vocabulary="HERE/vocabulary.json")
    ),
    "mismatch index": Reader(precomp, "index.npy", with_fields(mismatch_file="HERE/index.npy")),
    "filter scores": Reader(
        precomp,
        "scores.npy",
        with_fields(
            data_filter="share", data_filter_scores="HERE/scores.npy", data_filter_value=0.9
        ),
    ),
    "videos, dual encoding": Reader(
        write_dual_encoding, "**/*.*", lambda path: read_data_set(config_of(path, "dual_encoding"))
    ),
    "videos, pickles": Reader(
        write_experts, "**/*.*", lambda path: read_data_set(config_of(path, "experts"))
    ),
    "videos, npz": Reader(
        partial(write_experts, form="npz"),
        "**/*.npz",
        lambda path: read_data_set(config_of(path, "experts")),
    ),
    "run config": Reader(precomp, "config.json", lambda path: check_fields(read_config(path))),
    "run log": Reader(precomp, "metrics.jsonl", read_log),
    "PyTorch checkpoint": Reader(
        sound_checkpoint, "*.tar", lambda path: read_checkpoint(path / "a.pth.tar")
    ),
}


def fuzz(name: str, directory: Path, inputs: int, seed: int) -> Counter:
    """How many damaged inputs were read, and how many refused."""
    reader, counts = READERS[name], Counter()
    directory.mkdir()
    reader.write(directory)
    reader.read(directory)  # sound as it is; and what is imported late is imported now
    files = sorted(path for path in directory.glob(reader.damaged) if path.is_file())
    sound = {path: path.read_bytes() for path in files}
    entries = set(directory.rglob("*"))
    for number in range(inputs):
        rng = np.random.default_rng([seed, number])
        path = files[rng.integers(len(files))]
        chosen = MUTATIONS[path.suffix][rng.integers(len(MUTATIONS[path.suffix]))]
        content = chosen(rng, sound[path])
        path.write_bytes(content)
        try:
            counts[outcome(partial(reader.read, directory))] += 1
        except BaseException as error:
            error.add_note(
                f"{name}: {path.name}, {chosen.__name__}, number {number}: {content[:200]}"
            )
            raise
        assert path.read_bytes() == content and set(directory.rglob("*")) == entries
        path.write_bytes(sound[path])
    return counts


@pytest.mark.parametrize("name", READERS)
def test_damaged_files_are_read_or_refused(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sum(fuzz(name, tmp_path / "data", inputs=25, seed=0).values()) == 25
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.exhaustive
def test_ten_thousand_damaged_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before, each = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, -(-10_000 // len(READERS))
    for name in READERS:
        counts = fuzz(name, tmp_path / name.replace(" ", "_"), inputs=each, seed=1)
        print(f"{name}: {each} inputs, {counts['read']} read, {counts['refused']} refused")
        assert counts["refused"] > each // 10
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"memory grew by {grown >> 10} MiB")
    assert grown << 10 < BYTES


# Text and fields, searched by hypothesis

LETTERS = st.one_of(st.characters(), st.sampled_from("\0\r\t\ufeff\u2028\u200f.'\" ab"))


@settings(max_examples=60, deadline=None, database=None)
@given(st.lists(st.text(LETTERS, max_size=30), min_size=1, max_size=4), st.booleans())
def test_any_text_is_a_caption_or_is_refused(tmp_path_factory, captions, carriage_return):
    """What is read is the text that was written, and every word of it has an index."""
    directory = tmp_path_factory.mktemp("captions", numbered=True)
    captions = [caption.replace("\n", " ") for caption in captions]
    text = ("\r\n" if carriage_return else "\n").join(captions)
    try:
        (directory / "dev_caps.txt").write_bytes(text.encode())
    except UnicodeEncodeError:  # half a character, which no file in UTF-8 holds
        return
    sound = all(caption.strip() for caption in captions) and not text.startswith("\ufeff")
    try:
        found = read_captions(directory, "dev")
    except DataError as error:
        assert not sound and "expected" in str(error)
        return
    assert not sound or found == [caption.strip() for caption in captions]
    vocabulary = Vocabulary.build(found, min_count=1)
    vocabulary.write(directory / "vocabulary.json")
    assert Vocabulary.read(directory / "vocabulary.json") == vocabulary
    for caption in found:
        assert vocabulary.word2idx["<unk>"] not in vocabulary.encode(caption)


TINY = """
from l2rm_jax.config import get_config as scenes
def get_config():
    config = scenes("quick")
    config.data.scenes_train, config.data.scenes_dev, config.data.scenes_test = 8, 2, 2
    config.train.batch_size = 8
    return config
"""
FIELDS = flat(defaults.default())
NUMBERS = ["nan", "inf", "-inf", "-1", "0", "1", "3", "-0.5", "0.5", "1e308", "1e-320", "1e400"]
NUMBERS += [str(10**6), str(2**31), str(2**63), str(10**30), "9" * 5000, "1_0", "0x10", "", "x"]
WORDS = ["", "none", "None", "l2rm", "vse", "/", "../..", "x" * 5000, "\0", "\udc80", "\U0001f680"]
WORDS += ["experts", "semi_paired", "share", "test", "**", "[", "custom,custom", ",", "[1, 2]"]
VALUES = {
    bool: st.sampled_from(["true", "false", *NUMBERS, *WORDS]),
    int: st.one_of(st.sampled_from([*NUMBERS, *WORDS]), st.integers().map(str)),
    float: st.one_of(st.sampled_from([*NUMBERS, *WORDS]), st.floats().map(str)),
    str: st.one_of(st.sampled_from([*WORDS, *NUMBERS, *METHODS]), st.text(max_size=20)),
}
OVERRIDES = st.sampled_from(sorted(FIELDS)).flatmap(
    lambda key: st.tuples(st.just(key), VALUES[type(FIELDS[key])])
)
UNKNOWN = st.tuples(
    st.one_of(st.text(max_size=10), st.sampled_from(["seed.x", "train", ".", "train.epoch"])),
    st.sampled_from(WORDS),
)


def read_overrides(file: Path, overrides: list[tuple[str, str]]) -> None:
    """What the command line does before it touches a device or writes a file."""
    arguments = ["main", f"--config={file}", *(f"--config.{key}={x}" for key, x in overrides)]
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", arguments)
            main.parse_flags(arguments)
        config = main._run_config()
    except SystemExit as error:
        assert str(error.code).startswith("error: ") and len(str(error.code)) > 20
        raise ConfigError(str(error.code)) from error
    finally:
        for name in [name for name in flags.FLAGS if name.startswith("config")]:
            delattr(flags.FLAGS, name)
    for field in ("scenes_train", "scenes_dev", "scenes_test"):
        if 1000 < config.data[field] <= 100_000:  # allowed, and minutes of drawing pictures
            config.data[field] = 8
    read_data(config, None)


def try_overrides(file: Path, examples: int, counts: Counter) -> None:
    @settings(max_examples=examples, deadline=None, database=None, derandomize=True)
    @given(st.lists(st.one_of(OVERRIDES, OVERRIDES, OVERRIDES, UNKNOWN), min_size=1, max_size=3))
    def attempt(overrides):
        counts[outcome(partial(read_overrides, file, overrides))] += 1

    attempt()


def test_overrides_are_taken_or_refused(tmp_path):
    (tmp_path / "tiny.py").write_text(TINY)
    read_overrides(tmp_path / "tiny.py", [])
    counts = Counter()
    try_overrides(tmp_path / "tiny.py", 100, counts)
    assert min(counts["read"], counts["refused"]) > 0


@pytest.mark.exhaustive
def test_a_thousand_overrides(tmp_path):
    (tmp_path / "tiny.py").write_text(TINY)
    read_overrides(tmp_path / "tiny.py", [])
    counts = Counter()
    try_overrides(tmp_path / "tiny.py", 1000, counts)
    print(f"overrides: {counts['read']} read, {counts['refused']} refused")
