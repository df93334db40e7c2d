"""Evaluate finished runs and published checkpoints, alone and together."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from l2rm_jax import config as defaults
from l2rm_jax.data.features import RegionFeatures
from l2rm_jax.data.loading import read_split
from l2rm_jax.data.pairs import PairDataset
from l2rm_jax.data.stored import place_of
from l2rm_jax.data.text import punkt
from l2rm_jax.devices.parallel import Replicas, products_in
from l2rm_jax.errors import ConfigError
from l2rm_jax.evaluation.recall import check_protocols
from l2rm_jax.evaluation.scoring import Scorer
from l2rm_jax.evaluation.two_stage import Shortlist
from l2rm_jax.published.checkpoint import fit_data, read_checkpoint, trained_vocabulary
from l2rm_jax.published.conversion import model_from_state_dict, variables_from_state_dict
from l2rm_jax.run.config_file import changed, read_config
from l2rm_jax.run.inputs import read_data, test_rows
from l2rm_jax.run.run import Run, open_run

Rows = dict[str, dict[str, float]]
_BLOCK = 1024  # captions whose vectors are compared at once


def evaluate_runs(
    workdirs: Sequence[str | Path],
    changes: Mapping[str, Any] = MappingProxyType({}),
    proposer: str | Path | None = None,
    top_k: Sequence[int] = (),
) -> Rows:
    """Test recalls of the best model of each run and, of several, of their mean similarities.

    SGRAF is the mean of a run with head sgr and one with head saf.

    Args:
      workdirs: directories of the runs.
      changes: config keys that are to differ from the runs' own: where the data are now
        (`data.path`) and how to evaluate (`evaluation.*`).
      proposer: directory of a run whose head is one product of vectors; the runs then score only
        what it proposes (see `two_stage`).
      top_k: how many candidates it proposes for a query, a table each; 0 for all pairs, without it.

    Raises:
      ConfigError: a directory holds no run, the runs test on different images or captions, the
        proposer's head is not one product, or `top_k` is not what one can propose.
    """
    for key in changes:
        if key != "data.path" and not key.startswith("evaluation."):
            raise ConfigError(
                f"{key}: evaluation uses the config that a run was trained with; only data.path "
                "and evaluation.* can be changed"
            )
    if bool(proposer) != bool(top_k):
        raise ConfigError("--proposer, --top_k: one needs the other")
    first, expected, vectors = proposer or workdirs[0], None, None
    if proposer:
        with _opened(proposer, changes) as run:
            vectors, expected = run.score_test(Scorer.embeddings), run.data.test
    rows: Rows = {}
    ways: list[_Way] = []
    totals: list[Any] = []
    for workdir in workdirs:
        with _opened(workdir, changes) as run:
            test, config = run.data.test, run.config
            if expected is None:
                expected = test
            else:
                _check_same_test(test, expected, str(workdir), str(first))
            if not ways and vectors is not None:
                shortlist = _shortlist(vectors, test, config, top_k)
                ways.append(_two_stage(shortlist, str(proposer)))
            if not rows and (vectors is None or 0 in top_k):
                ways.append(_all_pairs(test, config))
            found = [run.score_test(way.score) for way in ways]
        totals = [old + new for old, new in zip(totals or [0.0] * len(ways), found, strict=True)]
        rows |= _named(f"{workdir} ({config.model.head})", ways, found)
    if len(workdirs) > 1:
        means = [total / len(workdirs) for total in totals]
        rows |= _named(f"mean of {len(workdirs)} runs", ways, means)
    return rows


def _check_same_test(found: PairDataset, expected: PairDataset, name: str, first: str) -> None:
    """Refuses a run whose similarities are not of the same images and captions as the first run's.

    Features of the images may differ, and vectors of captions that have text: only without it do
    the vectors themselves say which captions they are.

    Raises:
      ConfigError: says what differs.
    """
    sizes = [f"{len(test.images)} images and {len(test)} captions" for test in (found, expected)]
    if sizes[0] != sizes[1]:
        raise ConfigError(
            f"{name}: found {sizes[0]} in its test split, expected {first}'s {sizes[1]}"
        )
    if found.captions != expected.captions or (found.caption_image != expected.caption_image).any():
        raise ConfigError(f"{name}: its test captions differ from {first}'s")
    own, other = found.tokens, expected.tokens
    both = isinstance(own, RegionFeatures) and isinstance(other, RegionFeatures)
    if both and found.captions[0] == place_of(own, 0) and not _same_vectors(own, other):
        raise ConfigError(
            f"{name}: {own.name} and {other.name} of {first} hold different vectors, expected the "
            "same, as there is no text that says whether the captions are"
        )


def _same_vectors(one: RegionFeatures, other: RegionFeatures) -> bool:
    if one.name == other.name:
        return True
    if one.shape != other.shape:
        return False
    blocks = np.split(np.arange(len(one)), range(_BLOCK, len(one), _BLOCK))
    return all(np.array_equal(one.rows(block), other.rows(block)) for block in blocks)


@contextlib.contextmanager
def _opened(workdir: str | Path, changes: Mapping[str, Any]) -> Iterator[Run]:
    config = changed(read_config(workdir), changes)
    with open_run(config, read_data(config, workdir), workdir, Replicas()) as run:
        yield run


class _Way(NamedTuple):
    """A way of scoring the test split, and the recalls of what it gives."""

    score: Callable[[Scorer, Any, PairDataset], np.ndarray]
    rows: Callable[[np.ndarray], Rows]


def _all_pairs(test: PairDataset, config: ConfigDict) -> _Way:
    return _Way(Scorer.similarities, lambda sims: test_rows(sims, test, config.evaluation))


def _shortlist(
    vectors: tuple[np.ndarray, np.ndarray],
    test: PairDataset,
    config: ConfigDict,
    top_k: Sequence[int],
) -> Shortlist:
    if config.evaluation.dual_softmax:
        raise ConfigError("evaluation.dual_softmax: needs all pairs, and --proposer leaves some")
    protocols = config.evaluation.protocol
    return Shortlist(*vectors, test.caption_image, protocols, [k for k in top_k if k])


def _two_stage(shortlist: Shortlist, proposer: str) -> _Way:
    def score(scorer: Scorer, variables: Any, test: PairDataset) -> np.ndarray:
        return scorer.pair_similarities(variables, test, *shortlist.pairs)

    def rows(scores: np.ndarray) -> Rows:
        return {f"{proposer} proposes {key}": row for key, row in shortlist.rows(scores).items()}

    return _Way(score, rows)


def evaluate_checkpoints(config: ConfigDict, paths: Sequence[str | Path]) -> Rows:
    """Test recalls of published PyTorch checkpoints and, of several, of their mean similarities.

    A file of two networks counts as one model, the mean of both, as its authors evaluate it.

    Args:
      config: `data` says where the test split and the vocabulary are, `evaluation` how to
        evaluate. Everything about the networks is read from the files.
      paths: the files.

    Raises:
      L2RMError: a file or the data are not what they should be, or do not fit each other.
    """
    defaults.check_fields(config)
    products_in(config.precision)  # a name that does not exist shows before the data are read
    vocabulary = trained_vocabulary(config.data)
    sentences = punkt() if config.data.split_sentences else None
    test = read_split(config.data.path, config.data.test_split, vocabulary, sentences)
    check_protocols(config.evaluation.protocol, len(test.images), test.captions_per_image)
    shape = test.images.shape[1:]
    # Every file is read and checked before the first is scored.
    checkpoints = {
        path: {
            key: fit_data(weights, len(vocabulary), shape, f"{path}: {key}")
            for key, weights in read_checkpoint(path).networks.items()
        }
        for path in paths
    }
    replicas = Replicas()
    scorer = functools.cache(lambda model: Scorer(model, replicas, config.evaluation.batch_size))
    ways = [_all_pairs(test, config)]
    rows: Rows = {}
    total = 0.0
    for path, networks in checkpoints.items():
        own = 0.0
        for key, weights in networks.items():
            model = model_from_state_dict(weights, dropout=0.0, chunk=config.model.chunk)
            variables = replicas.replicate(variables_from_state_dict(weights))
            with products_in(config.precision):
                sims = scorer(model).similarities(variables, test)
            own = own + sims / len(networks)
            if len(networks) > 1:
                rows |= _named(f"{path} ({key})", ways, [sims])
        rows |= _named(str(path), ways, [own])
        total = total + own / len(checkpoints)
    if len(checkpoints) > 1:
        rows |= _named(f"mean of {len(checkpoints)} checkpoints", ways, [total])
    return rows


def _named(name: str, ways: Sequence[_Way], found: Sequence[np.ndarray]) -> Rows:
    return {
        f"{name}, {key}": row
        for way, values in zip(ways, found, strict=True)
        for key, row in way.rows(values).items()
    }
