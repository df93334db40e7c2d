"""Evaluate finished runs and published checkpoints, each alone and as an ensemble."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.data.layouts import open_split
from l2rm_jax.data.loading import matched_pairs, read_split
from l2rm_jax.data.text import load_sentence_splitter
from l2rm_jax.data.train_pairs import TrainPairs
from l2rm_jax.devices.hosts import advise_on_memory
from l2rm_jax.devices.parallel import Replicas, matmul_precision
from l2rm_jax.errors import ConfigError, DataError
from l2rm_jax.evaluation.protocols import check_protocols, recall_rows
from l2rm_jax.evaluation.scoring import Scorer, unit_means
from l2rm_jax.evaluation.two_stage import Shortlist
from l2rm_jax.published.checkpoint import read_checkpoint, read_trained_vocabulary, weights_for_data
from l2rm_jax.published.conversion import model_from_state_dict, variables_from_state_dict
from l2rm_jax.run.data_hashes import check_hashes
from l2rm_jax.run.initialise import open_run, read_trained_config
from l2rm_jax.run.inputs import check_fields, read_data
from l2rm_jax.run.memory import scoring_hints
from l2rm_jax.run.results import chance_of
from l2rm_jax.run.run import Run

Rows = dict[str, dict[str, float]]
# A way to score the test split, from a scorer, the variables and the split, and to rank the scores.
_Scoring = tuple[Callable[[Scorer, Any, TrainPairs], np.ndarray], Callable[[np.ndarray], Rows]]
_CHANGEABLE = ("data.path", "data.test_split", "model.chunk")
_BLOCK = 1024  # captions whose vectors are compared at once


def evaluate_runs(
    workdirs: Sequence[str | Path],
    changes: Mapping[str, Any] = MappingProxyType({}),
    proposer: str | Path | None = None,
    candidates: Sequence[int] = (),
) -> Rows:
    """Test the best model of each run; of several runs, also the mean of their similarities.

    SGRAF is the mean of a run with head `sgr` and a run with head `saf`.

    Args:
      workdirs: work directories of the runs.
      changes: config keys with values that replace the runs' own: where the data are now
        (`data.path`), which split to test (`data.test_split`), how to evaluate (`evaluation.*`)
        and captions scored at once (`model.chunk`).
      proposer: work directory of a run whose similarity is a product of two vectors. The runs then
        score only the candidates that it proposes (see `two_stage`).
      candidates: numbers of candidates that the proposer gives each query; each number adds its
        own rows. 0 adds the rows of all pairs, scored without the proposer.

    Returns:
      Rows of the result table (`recall_table`): row name to the keys of `recalls`. The last ones
      are those of random rankings, `chance`.

    Raises:
      ConfigError: a directory holds no run, the runs have different test images or captions, the
        proposer's similarity is not a product of two vectors, `candidates` holds a negative number
        or only zeros, or one of `proposer` and `candidates` is given without the other.
    """
    for key in changes:
        if key not in _CHANGEABLE and not key.startswith("evaluation."):
            raise ConfigError(
                f"config.{key}: a run is evaluated with the config that it was trained with; only "
                f"{', '.join(_CHANGEABLE)} and evaluation.* can be changed"
            )
    if bool(proposer) != bool(candidates):
        raise ConfigError("proposer requires candidates, and candidates require a proposer")
    first, expected, vectors = proposer or workdirs[0], None, None
    if proposer:
        with _open_trained(proposer, changes) as run:
            vectors, expected = run.score(run.data.test, Scorer.embeddings), run.data.test
    rows: Rows = {}
    scorings: list[_Scoring] = []
    totals: list[Any] = []
    for workdir in workdirs:
        with _open_trained(workdir, changes) as run:
            test, config = run.data.test, run.config
            if expected is None:
                expected = test
            else:
                _check_same_test(test, expected, str(workdir), str(first))
            if not scorings and vectors is not None:
                shortlist = _make_shortlist(vectors, test, config, candidates)
                scorings.append(_two_stage(shortlist, str(proposer)))
            if not rows and (vectors is None or 0 in candidates):
                scorings.append(_all_pairs(test, config))
            chance = chance_of(test, config.evaluation)
            scores = [run.score(test, score) for score, _ in scorings]
            networks = run.method.networks
        totals = [old + new for old, new in zip(totals or [0.0] * len(scores), scores, strict=True)]
        title = config.model.head if networks == 1 else f"{config.model.head}, {networks} networks"
        rows |= _named_rows(f"{workdir} ({title})", scorings, scores)
    if len(workdirs) > 1:
        means = [total / len(workdirs) for total in totals]
        rows |= _named_rows(f"mean of {len(workdirs)} runs", scorings, means)
    return rows | chance


def _check_same_test(test: TrainPairs, expected: TrainPairs, name: str, first: str) -> None:
    """Check that a run has the same test images and captions as the first run.

    Only then can their similarities be averaged. Image features may differ between the runs.
    Caption vectors may too, if there is caption text to compare; without text the vectors must be
    equal.

    Raises:
      ConfigError: says what differs.
    """
    sizes = [f"{len(split.images)} images and {len(split)} captions" for split in (test, expected)]
    if sizes[0] != sizes[1]:
        raise ConfigError(
            f"{name}: found {sizes[0]} in its test split, expected {sizes[1]} as in {first}"
        )
    if test.captions != expected.captions or (test.caption_image != expected.caption_image).any():
        raise ConfigError(f"{name}: its test captions differ from those of {first}")
    own, other = test.tokens, expected.tokens
    are_vectors = isinstance(own, RegionFeatures) and isinstance(other, RegionFeatures)
    if are_vectors and test.pairs.texts is None and not _same_vectors(own, other):
        raise ConfigError(
            f"{name}: {own.name} and {other.name} of {first} hold different vectors, expected the "
            "same, as there is no text to tell whether the captions are the same"
        )


def _same_vectors(one: RegionFeatures, other: RegionFeatures) -> bool:
    """Whether both hold the same numbers; read block by block."""
    if one.name == other.name:
        return True
    if one.shape != other.shape:
        return False
    blocks = np.split(np.arange(len(one)), range(_BLOCK, len(one), _BLOCK))
    return all(np.array_equal(one.rows(block), other.rows(block)) for block in blocks)


@contextlib.contextmanager
def _open_trained(workdir: str | Path, changes: Mapping[str, Any]) -> Iterator[Run]:
    """Open the best model of the run in `workdir` with these changes to its config."""
    config = read_trained_config(workdir, changes, "evaluate")
    data = read_data(config, workdir)
    if not {"data.path", "data.test_split"} & set(changes):  # the run's own test split
        check_hashes(config, [data.test], workdir)
    with open_run(config, data, workdir, Replicas()) as run:
        run.restore_best()
        yield run


def _all_pairs(test: TrainPairs, config: ConfigDict) -> _Scoring:
    def rows(sims: np.ndarray) -> Rows:
        settings = config.evaluation.protocol, config.evaluation.dual_softmax
        return recall_rows(sims, test.captions_per_image, *settings)

    return Scorer.similarities, rows


def _make_shortlist(
    vectors: tuple[np.ndarray, np.ndarray],
    test: TrainPairs,
    config: ConfigDict,
    candidates: Sequence[int],
) -> Shortlist:
    if config.evaluation.dual_softmax:
        raise ConfigError(
            "evaluation.dual_softmax cannot be combined with --proposer, which leaves out pairs"
        )
    protocols = config.evaluation.protocol
    return Shortlist(*vectors, test.caption_image, protocols, [n for n in candidates if n])


def _two_stage(shortlist: Shortlist, proposer: str) -> _Scoring:
    def score(scorer: Scorer, variables: Any, test: TrainPairs) -> np.ndarray:
        return scorer.pair_similarities(variables, test, *shortlist.pairs)

    def rows(scores: np.ndarray) -> Rows:
        return {f"{proposer} proposes {key}": row for key, row in shortlist.rows(scores).items()}

    return score, rows


def evaluate_checkpoints(config: ConfigDict, paths: Sequence[str | Path]) -> Rows:
    """Test published PyTorch checkpoints; of several, also the mean of their similarities.

    A file with two networks counts as one model, the mean of both, as its authors evaluate it.

    Args:
      config: `data` names the test split and the vocabulary, `evaluation` the protocols. Head and
        sizes of the networks are read from the files.
      paths: the files.

    Returns:
      Rows of the result table (`recall_table`): row name to the keys of `recalls`. The last ones
      are those of random rankings, `chance`.

    Raises:
      L2RMError: a file, the config or the data cannot be used, or a file does not fit the data.
    """
    check_fields(config)
    matmul_precision(config.precision)  # refuses an unknown name before the data are read
    vocabulary = read_trained_vocabulary(config.data)
    sentences = load_sentence_splitter() if config.data.split_sentences else None
    test = read_split(config.data.path, config.data.test_split, vocabulary, sentences)
    check_protocols(config.evaluation.protocol, len(test.images), test.captions_per_image)
    shape = test.images.shape[1:]
    # Every file is read and checked before the first is scored.
    checkpoints = {
        path: {
            key: weights_for_data(weights, len(vocabulary), shape, f"{path}: {key}")
            for key, weights in read_checkpoint(path).items()
        }
        for path in paths
    }
    replicas = Replicas()
    scorer = functools.cache(lambda model: Scorer(model, replicas, config.evaluation.batch_size))
    scorings = [_all_pairs(test, config)]
    rows: Rows = {}
    total = 0.0
    for path, networks in checkpoints.items():
        mean = 0.0
        for key, weights in networks.items():
            model = model_from_state_dict(weights, dropout=0.0, chunk=config.model.chunk)
            variables = replicas.to_host(replicas.replicate(variables_from_state_dict(weights)))
            hints = scoring_hints(config, model.is_product)
            with matmul_precision(config.precision), advise_on_memory("scoring test", hints):
                sims = scorer(model).similarities(variables, test)
            mean = mean + sims / len(networks)
            if len(networks) > 1:
                rows |= _named_rows(f"{path} ({key})", scorings, [sims])
        rows |= _named_rows(str(path), scorings, [mean])
        total = total + mean / len(checkpoints)
    if len(checkpoints) > 1:
        rows |= _named_rows(f"mean of {len(checkpoints)} checkpoints", scorings, [total])
    return rows | chance_of(test, config.evaluation)


def evaluate_vectors(config: ConfigDict) -> Rows:
    """Test the vectors of a data set as they are, by their cosines, without any training.

    Several vectors of an image or of a caption are averaged first.

    Args:
      config: `data` names the test split, whose images and captions are vectors of one space, and
        `evaluation` the protocols.

    Returns:
      Rows of the result table (`recall_table`); the last ones are those of random rankings.

    Raises:
      ConfigError, DataError: the config or the data cannot be used: images and captions have
        vectors of different sizes, a mean is zero, or a value is not finite.
    """
    check_fields(config)
    split = config.data.test_split
    stored = open_split(config.data, split)
    if stored.captions is None:
        raise DataError(
            f"{config.data.path}: found words as captions of {split}, expected vectors in the "
            f"space of the images ({split}_caps.npy)"
        )
    test = matched_pairs(stored, stored.captions)
    check_protocols(config.evaluation.protocol, len(test.images), test.captions_per_image)
    images, captions = test.images, test.tokens
    sizes = images.shape[-1], captions.shape[-1]
    if sizes[0] != sizes[1]:
        raise DataError(
            f"{images.name}, {captions.name}: found vectors of {sizes[0]} and {sizes[1]} "
            "dimensions, expected vectors of one space with the same size"
        )
    sims = unit_means(images) @ unit_means(captions).T
    rows = _named_rows("zero-shot cosine", [_all_pairs(test, config)], [sims])
    return rows | chance_of(test, config.evaluation)


def _named_rows(name: str, scorings: Sequence[_Scoring], scores: Sequence[np.ndarray]) -> Rows:
    """Result rows of each scoring, with `name` in front of the protocol."""
    return {
        f"{name}, {key}": row
        for (_, rows), values in zip(scorings, scores, strict=True)
        for key, row in rows(values).items()
    }
