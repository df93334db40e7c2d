"""Read the data of a run: three splits, a vocabulary and a mismatch, checked against each other."""

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, Real

from l2rm_jax.data import filters
from l2rm_jax.data.drawn_splits import INDEX_FILE as SPLIT_INDEX_FILE
from l2rm_jax.data.drawn_splits import Drawn, draw_run_splits
from l2rm_jax.data.files import replace_array
from l2rm_jax.data.layouts import check_caption_kinds, check_feature_shapes, open_split
from l2rm_jax.data.layouts.precomp import read_files
from l2rm_jax.data.mismatch import INDEX_FILE, Mismatch, check_mismatch, run_mismatch
from l2rm_jax.data.pairs import Pairs, Tokens
from l2rm_jax.data.record import is_undivided, read_record
from l2rm_jax.data.run_words import (
    VOCABULARY_FILE,
    WORD_VECTORS_FILE,
    check_no_words,
    run_word_vectors,
    split_tokens,
    word_tools,
)
from l2rm_jax.data.text import SentenceSplitter, Vocabulary
from l2rm_jax.data.train_pairs import Data, TrainPairs
from l2rm_jax.errors import ConfigError, DataError, Problems
from l2rm_jax.pretrained.directory import Encoders
from l2rm_jax.pretrained.specs import Bases
from l2rm_jax.pretrained.tokenizer import Pieces

_log = logging.getLogger(__name__)


def read_split(
    path: str | Path,
    split: str,
    vocabulary: Vocabulary,
    split_sentences: SentenceSplitter | None = None,
) -> TrainPairs:
    """Read one split, `{split}_ims.npy` and `{split}_caps.txt` or `.tsv`, with captions as words.

    Args:
      path: directory in the layout of SCAN and NCR.
      split: "train", "dev", "test", "testall".
      vocabulary: gives the word indices.
      split_sentences: as in `text.tokenize`.

    Raises:
      DataError: a file is missing or invalid; lists every problem with its file and line or row.
    """
    stored = read_files(path, split, in_words=True)
    tokens = [vocabulary.encode(caption, split_sentences) for caption in stored.texts]
    return matched_pairs(stored, tokens)


def load_data(
    data_config: Any,
    mismatch_config: Any,
    *,
    workdir: str | Path | None,
    pretrained: Encoders | None = None,
    splits: Sequence[Pairs] | None = None,
) -> Data:
    """Read (or generate) the three splits of a run, its vocabulary and its mismatch.

    A run keeps its own `vocabulary.json` and `mismatch_index.npy` in `workdir` (written by
    `save_vocabulary_and_index`). If the vocabulary exists, it is used. If the index exists, it must
    equal the index that the config gives. This function writes nothing.

    Args:
      data_config: the `data` part of the config.
      mismatch_config: the `mismatch` part of the config.
      workdir: work directory of the run; None reads the data without one.
      pretrained: the pretrained encoders. A text encoder's tokenizer reads the captions, and an
        image encoder reads pictures instead of features.
      splits: training, validation and test pairs in memory, whose images are features, and whose
        captions are texts or features. Captions of one image are adjacent, and each image has one.
        None: those that the config names.

    Raises:
      DataError: a file is missing or invalid, or contradicts another file or the work directory.
      ConfigError: a field is missing, out of range, or does not fit the data.
      Either error lists every problem that can be detected. Feature values are not checked here.
    """
    workdir = None if workdir is None else Path(workdir)
    problems = Problems()
    attempt = problems.attempt
    pieces = None if pretrained is None else pretrained.pieces
    bases = Bases() if pretrained is None else pretrained.bases
    stored, drawn = list(splits or ()), None
    if not stored:
        stored, drawn = _open(attempt, data_config, workdir, pretrained)
    for split in stored:
        attempt(_check_pictures, split, bases=bases, path=data_config.path)
    if stored[0]:  # the other splits are compared with the first
        attempt(check_feature_shapes, [split.images for split in stored if split])
    attempt(check_caption_kinds, [split for split in stored if split])
    stored[0], drawn, mismatched = _first_pairs(
        attempt, stored[0], drawn, data_config, mismatch_config, workdir
    )
    short_dev = attempt(_first_images, stored[1], data_config.dev_images, field="data.dev_images")
    # Check the filter even if the training pairs cannot be read.
    attempt(filters.check_settings, data_config)
    if data_config.scores:
        attempt(filters.open_scores, data_config.scores)
    selected = attempt(_select_pairs, mismatched, stored[0], config=data_config, drawn=drawn)
    in_words = not any(split and split.captions is not None for split in stored)
    vocabulary, split_sentences = word_tools(problems, data_config, pieces, in_words, workdir)
    if pieces is not None:
        attempt(check_no_words, data_config, workdir=workdir)
    problems.raise_all()
    tokens, vocabulary = split_tokens(stored, vocabulary, split_sentences, data_config.min_count)
    train, dev, test = map(matched_pairs, stored, tokens)
    # All of dev is tokenized, because all of it counts for the vocabulary.
    train, dev = train.with_mismatch(mismatched), dev.head(len(short_dev.images))
    kept, scores = selected
    train = replace(train, drawn=drawn, scores=scores)
    path, count = data_config.scores, len(drawn.whole if drawn else train)
    is_given = path and Path(path).parent != workdir  # else the run wrote them itself
    if is_given and (warning := filters.order_warning(path, count, data_config.path)):
        _log.warning("data.scores: %s", warning)
    if data_config.filter not in ("none", "judgement"):  # judged later, by these pairs
        fields = filters.result_fields(data_config, train.matched, kept)
        mismatched = replace(mismatched, filtered=fields)
        train = train.take(kept)
    vectors = run_word_vectors(data_config.word_vectors, vocabulary, workdir)
    return Data(train, dev, test, vocabulary, mismatched, vectors, pretrained)


def _open(
    attempt: Callable, config: Any, workdir: Path | None, pretrained: Encoders | None, *names: str
) -> tuple[list[Pairs | None], Drawn | None]:
    """Open splits, all three by default; None for one that cannot be read.

    The second value is set if the run draws them from data with a single split.
    """
    kinds = {} if pretrained is None else pretrained.inputs
    is_drawn = (workdir is not None or not names) and attempt(is_undivided, config.path)
    names = names or split_names(config)
    if not is_drawn:
        return [attempt(open_split, config, name, **kinds) for name in names], None
    drawn = attempt(open_drawn, config, workdir=workdir, **kinds)
    return [attempt(Drawn.pairs_of, drawn, split=name) for name in names], drawn


def _first_pairs(
    attempt: Callable,
    train: Pairs | None,
    drawn: Drawn | None,
    config: Any,
    mismatch_config: Any,
    workdir: Path | None,
) -> tuple[Pairs | None, Drawn | None, Mismatch | None]:
    """Return the pairs of the first training images, their drawn splits, and their mismatch."""
    train = attempt(_first_images, train, config.train_images, field="data.train_images")
    attempt(check_mismatch, mismatch_config)  # even if the training pairs cannot be read
    drawn = attempt(lambda drawn, train: drawn.take(np.arange(len(train))), drawn, train)
    made = attempt(run_mismatch, mismatch_config, train, workdir=workdir, drawn=drawn)
    return train, drawn, made


def load_train(
    data_config: Any,
    mismatch_config: Any,
    *,
    workdir: str | Path | None,
    pretrained: Encoders | None = None,
) -> tuple[TrainPairs, Vocabulary | Pieces]:
    """Read all training pairs of a run, with its mismatch; neither dev nor test need exist.

    Of data with a single split, these are all pairs, or those that the run in `workdir` has drawn.
    No filter drops pairs. The vocabulary is built from train and dev, as in a run; if dev cannot be
    read, only from the training captions. Otherwise as `load_data`.

    Returns:
      The pairs, and the vocabulary, which is empty if captions are vectors.

    Raises:
      DataError, ConfigError: as `load_data`.
    """
    workdir = None if workdir is None else Path(workdir)
    problems = Problems()
    attempt = problems.attempt
    pieces = None if pretrained is None else pretrained.pieces
    [stored], drawn = _open(attempt, data_config, workdir, pretrained, "train")
    in_words = stored is None or stored.captions is None
    stored, drawn, mismatched = _first_pairs(
        attempt, stored, drawn, data_config, mismatch_config, workdir
    )
    vocabulary, split_sentences = word_tools(problems, data_config, pieces, in_words, workdir)
    problems.raise_all()
    splits = [stored]
    if vocabulary is None:
        dev = split_names(data_config)[1]
        with contextlib.suppress(DataError):  # only a run needs dev
            splits.append(drawn.pairs_of(dev) if drawn else open_split(data_config, dev))
    tokens, vocabulary = split_tokens(splits, vocabulary, split_sentences, data_config.min_count)
    train = matched_pairs(stored, tokens[0]).with_mismatch(mismatched)
    return replace(train, drawn=drawn), vocabulary


def split_names(data_config: Any) -> tuple[str, str, str]:
    """Names of the training, validation and test splits."""
    return "train", "dev", data_config.test_split


def open_drawn(
    data_config: Any,
    *,
    workdir: Path | None = None,
    in_words: bool = False,
    in_pixels: bool = False,
) -> Drawn:
    """Open data that are the single split train, and draw the splits of a run.

    Raises:
      DataError, ConfigError: as `layouts.open_split` and `drawn_splits.draw_run_splits`.
    """
    return draw_run_splits(open_split(data_config, "train", in_words, in_pixels), workdir)


def open_untokenized(data_config: Any, split: str, in_pixels: bool = False) -> TrainPairs:
    """Open the images (or the pictures) and captions of one split, without tokens.

    Raises:
      DataError, ConfigError: as `layouts.open_split`.
    """
    return matched_pairs(open_split(data_config, split, in_pixels=in_pixels), tokens=None)


def open_train_pairs(data_config: Any, mismatch_config: Any, in_pixels: bool = False) -> TrainPairs:
    """Open the training pairs that a run would use: from the first images, and filtered.

    It is used to check sizes after `load_data` has failed. If the number of images or the filter is
    invalid, this step is skipped, so the result never has fewer pairs than a run would have.

    Raises:
      DataError, ConfigError: the images or captions cannot be read.
    """
    attempt = Problems().attempt  # `load_data` has reported these problems
    stored = open_split(data_config, "train", in_pixels=in_pixels)
    first, _, mismatched = _first_pairs(attempt, stored, None, data_config, mismatch_config, None)
    selected = attempt(_select_pairs, mismatched, first, config=data_config)
    train = matched_pairs(first or stored, None)
    return train if selected is None else train.take(selected[0])


def save_vocabulary_and_index(data: Data, workdir: str | Path) -> None:
    """Write the run's vocabulary, word vectors and mismatch index; existing files are kept.

    Of data with a single split, the split that the run drew for each image is written too.

    With pretrained weights, a copy of their directory is kept too; its tokenizer replaces the
    vocabulary.
    """
    vocabulary, index = Path(workdir) / VOCABULARY_FILE, Path(workdir) / INDEX_FILE
    vectors = Path(workdir) / WORD_VECTORS_FILE
    if data.word_vectors is not None and not vectors.exists():
        replace_array(vectors, data.word_vectors)
    if data.pretrained is not None:
        data.pretrained.keep(Path(workdir))
    if isinstance(data.vocabulary, Vocabulary) and len(data.vocabulary) and not vocabulary.exists():
        data.vocabulary.write(vocabulary)
    if not index.exists():
        replace_array(index, data.mismatch.stored_image)
    drawn, splits = data.train.drawn, Path(workdir) / SPLIT_INDEX_FILE
    if drawn is not None and not splits.exists():
        replace_array(splits, drawn.split)


def matched_pairs(stored: Pairs, tokens: Tokens | None) -> TrainPairs:
    """Pair each caption with the image that it was written for; None leaves out the tokens."""
    return TrainPairs(replace(stored, captions=tokens), stored.image_of)


def _first_images(split: Pairs, images: int, field: str) -> Pairs:
    """Return the first `images` images of a split; 0 means all."""
    if not 0 <= images <= len(split.images):
        raise ConfigError(
            f"{field}: found {images}, expected 0 (all) to {len(split.images)}, the number of "
            f"images in {split.images.name}"
        )
    return split.head(images) if images else split


def _check_pictures(stored: Pairs, bases: Bases, path: str) -> None:
    """Check that pictures have the size and form that the vision transformer takes."""
    if bases.image is None:
        return
    side, found = bases.image.image_size, stored.images.shape[1]
    record = read_record(path) or {}
    imported = ((record.get("encoder") or {}).get("images") or {}) if record else {}
    expected = bases.image.preparation.resizing
    other = {name: imported[name] for name in expected if name in imported}
    if found == side and (not other or other == expected):
        return
    differs = "" if found != side else f", made by {other}, expected {expected}"
    raise DataError(
        f"{stored.images.name}: found pictures of {found} x {found} pixels{differs}, expected "
        f"{side} x {side} for the {bases.image.kind} of the run",
        hint="l2rm import --encoder=pixels:DIR with the same directory of weights",
    )


def _select_pairs(
    mismatched: Mismatch, train: Pairs, config: Any, drawn: Drawn | None = None
) -> tuple[Int[np.ndarray, " kept"], Real[np.ndarray, " pairs"] | None]:
    """Return the training pairs that the filter keeps, and all scores, as `filters.kept_pairs`."""
    return filters.kept_pairs(config, mismatched.stored_image == train.image_of, drawn)
