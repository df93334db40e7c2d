"""Read the training pairs of a directory or a run for an audit; no pair is filtered."""

import hashlib
from dataclasses import replace
from pathlib import Path

from ml_collections import ConfigDict

from l2rm_jax.data.contents import hash_features, hash_names
from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.data.layouts import with_table
from l2rm_jax.data.loading import load_train
from l2rm_jax.data.pairs import Pairs
from l2rm_jax.data.text import Vocabulary
from l2rm_jax.data.train_pairs import TrainPairs
from l2rm_jax.data.word_report import WordReport, report_words
from l2rm_jax.devices.parallel import matmul_precision
from l2rm_jax.errors import Problems
from l2rm_jax.run.frozen_encoder import judged_vectors, with_vectors
from l2rm_jax.run.pretrained import find_pretrained

SPLIT = "train"  # the split that an audit reads


def read_training_pairs(
    config: ConfigDict, workdir: str | Path | None = None
) -> tuple[Pairs, TrainPairs, WordReport | None]:
    """Read the training pairs that a config describes, with its mismatch.

    All features are read once, to check and to hash them. Pretrained encoders named by the config
    compute the vectors of captions and pictures, with their pretrained weights.

    Args:
      config: config of a run.
      workdir: work directory of the run whose pairs are read; None without a run.

    Returns:
      The pairs to judge, the pairs as training reads them, and a report on the vocabulary, if the
      captions are judged by their words.

    Raises:
      DataError, ConfigError: a file is missing or invalid, or a value is not finite; lists every
        problem.
    """
    data, problems = config.data, Problems()
    encoders = problems.attempt(find_pretrained, config, workdir=workdir)
    loaded = problems.attempt(
        load_train, data, config.mismatch, workdir=workdir, pretrained=encoders
    )
    problems.raise_all()
    (train, vocabulary), in_words = loaded, not isinstance(loaded[0].tokens, RegionFeatures)
    if encoders is not None:
        with matmul_precision(config.precision):
            vectors = judged_vectors(encoders, train, config.evaluation.batch_size)
        train, in_words = with_vectors(train, vectors), encoders.pieces is None
    digest = hashlib.blake2b(digest_size=16)
    problems.attempt(hash_features, digest, train.images)
    if isinstance(train.tokens, RegionFeatures):
        problems.attempt(hash_features, digest, train.tokens)
    problems.raise_all()
    if encoders is not None:
        digest.update(repr(encoders.hashes()).encode())
    pairs = train.to_judge
    hash_names(digest, pairs.image_of, pairs.texts, pairs.image_ids, pairs.caption_ids)
    pairs = replace(
        with_table(pairs, data.path, data.train_images > 0, train.drawn) if data.path else pairs,
        name=str(workdir or data.path or data.name),
        digest=digest.hexdigest(),
        vocabulary=vocabulary if isinstance(vocabulary, Vocabulary) else None,
    )
    words = report_words(SPLIT, train.captions, train.tokens, vocabulary) if in_words else None
    return pairs, train, words
