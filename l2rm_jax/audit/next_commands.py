"""Commands that an audit prints: with decisions of a review, and training on the rest."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool
from ml_collections import ConfigDict

from l2rm_jax.audit.audit import Audit
from l2rm_jax.data.features import Pixels
from l2rm_jax.data.loading import matched_pairs, open_drawn, open_untokenized, split_names
from l2rm_jax.data.pairs import SUSPICIOUS
from l2rm_jax.data.record import is_undivided
from l2rm_jax.errors import L2RMError
from l2rm_jax.run.config_file import with_changes
from l2rm_jax.run.inputs import check_settings, check_test_size, check_train_size
from l2rm_jax.run.sampling import EVEN, REMATCHED

_OF_AUDIT = ("--by", "--judge", "--config.audit.")  # flags that training does not read


def review_command(flags: Sequence[str], out: Path) -> str:
    """Return the command that audits the same pairs again with `decisions.csv`.

    Args:
      flags: flags of the command that name the pairs and their config.
      out: directory of the audit, whose judgement is used.
    """
    own = {"judgement.path": out, "audit.review": "decisions.csv"}
    flags = [flag for flag in flags if not flag.startswith("--judge=")]
    return _command(["audit", *flags, f"--out={out}-reviewed"], own)


def training_command(config: ConfigDict, out: Path, flags: Sequence[str] | None) -> str:
    """Return the command that trains on the kept pairs; only fields where the others are unknown.

    They are where a run was audited, whose config no flag names.
    """
    fields = _training_fields(config, out)
    if flags is None or any(word.startswith("--workdir=") for word in flags):
        return f"the same data and config, with {_command((), fields)}"
    words = [word for word in flags if not word.startswith(_OF_AUDIT)]
    return _command([*words, f"--workdir=runs/{out.name}"], fields)


def _training_fields(config: ConfigDict, out: str | Path) -> dict[str, Any]:
    """Return the fields of a run on the pairs that an audit in `out` keeps."""
    fields = {
        "data.filter": "judgement",
        "data.filter_value": 1 - SUSPICIOUS,
        "judgement.path": out,
    }
    if config.train.draw == REMATCHED:  # the pairs that it rematches are dropped
        fields["train.draw"] = EVEN
    return fields


def _command(words: Sequence[str], fields: Mapping[str, Any]) -> str:
    """Return a shell command of `l2rm` that sets these fields; only the fields without words."""
    flags = {f"--config.{name}": value for name, value in fields.items()}
    kept = [word for word in words if word.partition("=")[0] not in flags]
    program = ["l2rm"] if words else []
    return shlex.join([*program, *kept, *(f"{name}={value}" for name, value in flags.items())])


def can_train(audit: Audit, kept: Bool[np.ndarray, " pairs"]) -> bool:
    """Return whether a run on the kept pairs would start: enough pairs, and splits dev and test."""
    config, train = audit.config, audit.train
    if kept.all() or not kept.any() or config is None:
        return False
    try:
        own = {**_training_fields(config, ""), "judgement.path": "audit"}
        method = check_settings(with_changes(config, own))
        _, dev, test = split_names(config.data)
        in_pixels = isinstance(train.images, Pixels)
        drawn = train.drawn
        if drawn is None and is_undivided(config.data.path):  # all pairs were judged
            drawn = open_drawn(config.data, in_pixels=in_pixels)
            kept = kept & np.isin(np.arange(len(train)), drawn.rows)
        if drawn is None:
            open_untokenized(config.data, dev, in_pixels)
            tested = open_untokenized(config.data, test, in_pixels)
        else:
            tested = matched_pairs(drawn.pairs_of(test), None)
        check_train_size(config, train.take(np.flatnonzero(kept)), method)
        check_test_size(config, tested)
    except L2RMError:
        return False
    return True
