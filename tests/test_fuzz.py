"""Damaged files and any flags are read, or refused with an error of this library.

Every reader gets damaged copies of valid files, made by the seeded `MUTATIONS`. Hypothesis searches
captions and config fields.
"""

import resource
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from l2rm_jax import config as defaults
from l2rm_jax.check import check
from l2rm_jax.cli.parse import parse
from l2rm_jax.config import flat
from l2rm_jax.data.batches import caption_batches
from l2rm_jax.data.captions import read_captions
from l2rm_jax.data.streams import TrainStream
from l2rm_jax.data.text import Vocabulary
from l2rm_jax.errors import DataError
from l2rm_jax.main import MODES
from l2rm_jax.methods import METHODS
from l2rm_jax.published.checkpoint import read_checkpoint
from l2rm_jax.run import log as run_log
from l2rm_jax.run.config_file import read_config, write_config
from l2rm_jax.run.inputs import check_fields, read_data
from l2rm_jax.run.log import RunLog
from tests.mutations import MUTATIONS
from tests.sandbox import MEMORY_BYTES, outcome

pytestmark = pytest.mark.filterwarnings("ignore:Detected pickle protocol:UserWarning")


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
    """Read all that a run and `l2rm check` read, but without the threads of the batches."""
    data = read_data(config, None)
    for split in data.splits:
        split.images.rows(np.arange(len(split.images)))
        for _ in caption_batches(split.tokens, 4):
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
    """Read the part of its log that a resumed run keeps."""
    run_log._lines_up_to(directory / "metrics.jsonl", step=3, epochs=1)


def sound_checkpoint(directory: Path) -> None:
    torch = pytest.importorskip("torch")
    from tests.published.checkpoint_files import golden, options
    from tests.published.checkpoint_files import tensors as state_dict

    weights = golden("bc_sim_SGR").under("w/")
    content = {"net": state_dict(weights), "opt": options(weights), "epoch": 3}
    torch.save(content, directory / "a.pth.tar")


class Reader(NamedTuple):
    """A writer of valid files, a glob of those to damage, and their reader."""

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
        with_fields(data_filter="share", data_scores="HERE/scores.npy", data_filter_value=0.9),
    ),
    "run config": Reader(precomp, "config.json", lambda path: check_fields(read_config(path))),
    "run log": Reader(precomp, "metrics.jsonl", read_log),
    "PyTorch checkpoint": Reader(
        sound_checkpoint, "*.tar", lambda path: read_checkpoint(path / "a.pth.tar")
    ),
}


def fuzz(name: str, directory: Path, inputs: int, seed: int) -> Counter:
    """Count how many of `inputs` damaged files are read and how many are refused."""
    reader, counts = READERS[name], Counter()
    directory.mkdir()
    reader.write(directory)
    reader.read(directory)  # it must succeed; it also triggers late imports outside the sandbox
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


@pytest.mark.slow
def test_more_damaged_files_do_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name in READERS:
        counts = fuzz(name, tmp_path / name.replace(" ", "_"), inputs=20, seed=1)
        assert counts["refused"] > 2, name
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown << 10 < MEMORY_BYTES


# Text and fields, searched by hypothesis

LETTERS = st.one_of(st.characters(), st.sampled_from("\0\r\t\ufeff\u2028\u200f.'\" ab"))


@settings(max_examples=60, deadline=None, database=None)
@given(st.lists(st.text(LETTERS, max_size=30), min_size=1, max_size=4), st.booleans())
def test_any_text_is_a_caption_or_is_refused(tmp_path_factory, captions, carriage_return):
    """Captions are read as written, and a vocabulary built from them has all their words."""
    directory = tmp_path_factory.mktemp("captions", numbered=True)
    captions = [caption.replace("\n", " ") for caption in captions]
    text = ("\r\n" if carriage_return else "\n").join(captions)
    try:
        (directory / "dev_caps.txt").write_bytes(text.encode())
    except UnicodeEncodeError:  # a lone surrogate, which UTF-8 cannot encode
        return
    sound = all(caption.strip() for caption in captions) and not text.startswith("\ufeff")
    try:
        read = read_captions(directory, "dev")
    except DataError as error:
        assert not sound and str(directory) in str(error)
        return
    assert not sound or read == [caption.strip() for caption in captions]
    vocabulary = Vocabulary.build(read, min_count=1)
    vocabulary.write(directory / "vocabulary.json")
    assert Vocabulary.read(directory / "vocabulary.json") == vocabulary
    for caption in read:
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
    tuple: st.sampled_from([*WORDS, *NUMBERS]),
}
OVERRIDES = st.sampled_from(sorted(FIELDS)).flatmap(
    lambda key: st.tuples(st.just(key), VALUES[type(FIELDS[key])])
)
UNKNOWN = st.tuples(
    st.one_of(st.text(max_size=10), st.sampled_from(["seed.x", "train", ".", "train.epoch"])),
    st.sampled_from(WORDS),
)


def read_overrides(file: Path, overrides: list[tuple[str, str]]) -> None:
    """Read as the command line reads before it touches a device or writes a file."""
    words = [f"--config={file}", *(f"--config.{key}={value}" for key, value in overrides)]
    config = parse(words, MODES).config
    for field in ("scenes_train", "scenes_dev", "scenes_test"):
        if 1000 < config.data[field] <= 100_000:  # allowed, and minutes of drawing pictures
            config.data[field] = 8
    read_data(config, None)


def test_overrides_are_taken_or_refused(tmp_path):
    file, counts = tmp_path / "tiny.py", Counter()
    file.write_text(TINY)
    read_overrides(file, [])

    @settings(max_examples=100, deadline=None, database=None, derandomize=True)
    @given(st.lists(st.one_of(OVERRIDES, OVERRIDES, OVERRIDES, UNKNOWN), min_size=1, max_size=3))
    def attempt(overrides):
        counts[outcome(partial(read_overrides, file, overrides))] += 1

    attempt()
    assert min(counts["read"], counts["refused"]) > 0
