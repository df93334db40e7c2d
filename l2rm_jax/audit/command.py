"""What `l2rm audit` does: check, read, judge, write. An audit that was stopped goes on."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Bool
from ml_collections import ConfigDict

from l2rm_jax.audit.audit import audit_data
from l2rm_jax.audit.findings import Audit
from l2rm_jax.audit.inputs import Inputs, Settings, read_inputs
from l2rm_jax.audit.kinds import DOUBTED
from l2rm_jax.audit.outputs import GALLERY, write_files
from l2rm_jax.audit.report import shift_sentence, verdict
from l2rm_jax.audit.review import read_decisions
from l2rm_jax.audit.trained import check_scorer
from l2rm_jax.data.files import check_new, locked_directory, replace_file
from l2rm_jax.data.loading import open_pairs, split_names
from l2rm_jax.data.pixels import Pixels
from l2rm_jax.errors import ConfigError, DataError, L2RMError, Problems, list_problems
from l2rm_jax.run.fields import check_fields, with_valid_fields
from l2rm_jax.run.inputs import check_test_size, check_train_size
from l2rm_jax.run.opening import read_trained_config
from l2rm_jax.run.pretrained import with_own_weights
from l2rm_jax.version import __version__

TOO_MANY, CANNOT_TELL = 3, 4  # exit statuses
_IDENTITY, _WORK = "audit.json", "work"
_NO_LIMIT = 1.0  # of `max_share`
_LEAST = 1 - DOUBTED  # probability of being matched from which on a pair is trained on


def audit_directory(config: ConfigDict, out: str | Path) -> Audit:
    """Audit the training pairs that a config describes, and write a directory of results.

    Work in progress lies in `OUT.partial`; the same command goes on with it.

    Args:
      config: config of the data, with the section `audit`.
      out: the new directory.

    Raises:
      L2RMError: something is invalid, as one message of many lines; nothing has been judged.
      ConfigError: the directory is complete already, or another audit of it is in progress.
    """
    return _audit(config, None, _settings(config), Path(out))


def audit_run(
    workdir: str | Path, out: str | Path, changes: Mapping[str, Any] = MappingProxyType({})
) -> Audit:
    """Audit the training pairs of a run; what it trained is the scorer, unless `changes` name one.

    Args:
      workdir: work directory of the run.
      out: as `audit_directory`.
      changes: config keys with values that replace the run's own.

    Raises:
      L2RMError: as `audit_directory`.
    """
    config = with_own_weights(read_trained_config(workdir, changes, "audit"), workdir)
    settings = _settings(config)
    if "audit.scorer" not in changes:
        settings = settings._replace(scorer=f"{config.method}-{config.model.head}")
    return _audit(config, workdir, settings, Path(out))


def describe_audit(audit: Audit, out: str | Path) -> str:
    """The first sentences of the report, where things lie, and how to train without the doubted."""
    lines, out = verdict(audit), Path(out)
    if audit.inputs.words:
        lines += (f"Warning: {line}" for line in audit.inputs.words.warnings.values())
    if not audit.cannot_tell:
        lines += map(shift_sentence, audit.shifts)
    lines += [f"the report:       {out}/report.md", f"look and decide:  {out}/{GALLERY}"]
    if not audit.cannot_tell and _can_train(audit.inputs, np.load(out / "scores.npy") >= _LEAST):
        lines.append(
            f"train on the rest: --config.data.filter=score --config.data.filter_value={_LEAST} "
            f"--config.data.filter_scores={out}/scores.npy"
        )
    return "\n".join(lines)


def _can_train(inputs: Inputs, kept: Bool[np.ndarray, " pairs"]) -> bool:
    """Whether a run without some of the pairs would start: enough are left, and dev and test."""
    config = inputs.config
    if kept.all() or not kept.any() or config is None:
        return False
    try:
        check_train_size(config, inputs.dataset.take(np.flatnonzero(kept)))
        _, dev, test = split_names(config.data)
        in_pixels = isinstance(inputs.dataset.images, Pixels)
        open_pairs(config.data, dev, in_pixels)
        check_test_size(config, open_pairs(config.data, test, in_pixels))
    except L2RMError:
        return False
    return True


def exit_status(audit: Audit) -> int:
    """0; `TOO_MANY` above `max_share`; `CANNOT_TELL` where that is asked and not known."""
    most = audit.settings.max_share
    if most >= _NO_LIMIT:
        return 0
    if audit.cannot_tell:
        return CANNOT_TELL
    return TOO_MANY if audit.rate.low > most else 0


def _settings(config: ConfigDict) -> Settings:
    return Settings(**config.audit, seed=config.seed)


def _audit(config: ConfigDict, workdir: str | Path | None, settings: Settings, out: Path) -> Audit:
    check_new(out, "directory")
    inputs = _read(config, workdir, settings)
    partial = out.with_name(f"{out.name}.partial")
    work = partial / _WORK
    work.mkdir(parents=True, exist_ok=True)
    with locked_directory(partial, "audits into"):
        _check_identity(work, _identity(inputs, settings))
        audit = audit_data(inputs, settings, keep=work)
        for leftover in partial.iterdir():  # files of an audit that was stopped while it wrote
            if leftover != work:
                leftover.unlink()
        write_files(audit, partial)
        shutil.rmtree(work)
        check_new(out, "directory")  # again, as the work may have taken hours
        partial.rename(out)
    return audit


def _read(config: ConfigDict, workdir: str | Path | None, settings: Settings) -> Inputs:
    """Read the inputs; all that is wrong with fields and files is one message."""
    problems = Problems()
    problems.attempt(check_fields, config)
    if not problems.messages:
        problems.attempt(check_scorer, config, settings)
    valid = with_valid_fields(config)  # wrong fields must not add errors about the data
    inputs = problems.attempt(read_inputs, valid, workdir=workdir)
    if settings.review and inputs is not None:
        problems.attempt(read_decisions, settings.review, len(inputs.image_of))
    if len(problems.messages) > 1:
        raise DataError(list_problems(problems.messages))
    problems.raise_all()
    return inputs


def _identity(inputs: Inputs, settings: Settings) -> dict[str, Any]:
    """All that the work in progress depends on; it goes on only if this is equal."""
    judged = {name: getattr(settings, name) for name in ("scorer", "folds", "top", "seed")}
    return {"l2rm_jax": __version__, "inputs": inputs.digest, **judged}


def _check_identity(work: Path, identity: dict[str, Any]) -> None:
    file = work / _IDENTITY
    try:
        known = json.loads(file.read_bytes()) if file.exists() else identity
    except ValueError:
        known = {}
    if known != identity:
        names = [name for name in identity if known.get(name) != identity[name]]
        raise ConfigError(
            f"{work.parent}: holds another audit in progress (it differs in {', '.join(names)}), "
            "expected the same command again, or another --out",
            hint=f"rm -r {work.parent}",
        )
    replace_file(file, json.dumps(identity).encode())
