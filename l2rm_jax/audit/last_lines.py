"""Last lines of `l2rm audit`: the verdict, suspicious captions, and the next commands."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool
from ml_collections import ConfigDict

from l2rm_jax.audit.audit import Audit
from l2rm_jax.audit.outputs import GALLERY
from l2rm_jax.audit.realigned_table import REALIGNED
from l2rm_jax.audit.report import by_eye, warnings
from l2rm_jax.audit.suspects import describe_suspects
from l2rm_jax.audit.work import WRITER
from l2rm_jax.data.loading import matched_pairs, open_drawn, open_untokenized, split_names
from l2rm_jax.data.pairs import SUSPICIOUS
from l2rm_jax.data.pixels import Pixels
from l2rm_jax.data.record import is_undivided
from l2rm_jax.errors import L2RMError
from l2rm_jax.executors import Share
from l2rm_jax.judging.rates_by import rate_lines
from l2rm_jax.judging.verdict import shift_sentence
from l2rm_jax.run.config_file import with_changes
from l2rm_jax.run.inputs import check_settings, check_test_size, check_train_size
from l2rm_jax.run.sampling import EVEN, REMATCHED

_OF_AUDIT = ("--by", "--config.audit.")  # flags that training does not read


def describe_audit(audit: Audit, out: str | Path, flags: Sequence[str] | None = None) -> str:
    """Return the verdict, the most suspicious captions, and the paths and uses of the results.

    Args:
      audit: the audit.
      out: its directory.
      flags: flags of the command that name the pairs and their config; None without a command.
    """
    judgement, out = audit.judgement, Path(out)
    reviewed = audit.reviewed()
    lines = audit.verdict()
    lines += [f"Warning: {line}" for line in warnings(audit, reviewed)]
    if audit.decisions is not None:
        lines.append(by_eye(audit.decisions, reviewed))
    if not judgement.unreliable_reason:
        if not audit.misaligned:
            lines += map(shift_sentence, judgement.shifts)
        if by := audit.settings.by:
            lines += rate_lines(by, audit.by(by))
    lines += describe_suspects(audit, out)
    lines += [f"the report:       {out}/report.md", f"look and decide:  {out}/{GALLERY}"]
    if not judgement.unreliable_reason:
        tables = [file for file in sorted(out.glob("kept.*")) if file.suffix != ".npy"]
        lines += [f"clean table:      {table}" for table in tables]
    if (out / REALIGNED).is_file():
        lines.append(f"realigned table:  {out / REALIGNED}")
    if flags is not None and audit.decisions is None:
        own = {"judgement.path": out, "audit.review": "decisions.csv"}
        words = ["audit", *flags, f"--out={out}-reviewed"]
        lines.append(f"with decisions:   {_command(words, own)}")
    kept = audit.decided.posterior <= SUSPICIOUS
    if not judgement.unreliable_reason and _can_train(audit, kept):
        lines.append(f"train on the rest: {_training_command(audit.config, out, flags)}")
    return "\n".join(lines)


def _training_command(config: ConfigDict, out: Path, flags: Sequence[str] | None) -> str:
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


def describe_share(share: Share, out: str | Path) -> str:
    """Return the last line of a process whose share is done and which writes no results."""
    return f"share {share} is done; share {WRITER}/{share.count} writes {out}"


def _can_train(audit: Audit, kept: Bool[np.ndarray, " pairs"]) -> bool:
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
