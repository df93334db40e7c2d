"""Last lines of `l2rm audit`: the verdict, suspicious captions, and the next commands."""

from collections.abc import Sequence
from pathlib import Path

from l2rm_jax.audit.audit import Audit
from l2rm_jax.audit.next_commands import can_train, training_command
from l2rm_jax.audit.outputs import GALLERY
from l2rm_jax.audit.rates_by import rate_lines
from l2rm_jax.audit.realigned_table import REALIGNED
from l2rm_jax.audit.report import by_eye, warnings
from l2rm_jax.audit.suspects import describe_suspects
from l2rm_jax.data.pairs import SUSPICIOUS
from l2rm_jax.jobs import Share
from l2rm_jax.jobs.shares import WRITER

_TABLES = {"kept": "clean table", "repaired": "repaired table", "certified": "certified table"}


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
    if not judgement.unreliable_reason and (by := audit.settings.by):
        lines += rate_lines(by, audit.by(by))
    lines += describe_suspects(audit, out)
    lines += [f"the report:       {out}/report.md", f"look and decide:  {out}/{GALLERY}"]
    if not judgement.unreliable_reason:
        for name, title in _TABLES.items():
            tables = [file for file in sorted(out.glob(f"{name}.*")) if file.suffix != ".npy"]
            lines += [f"{f'{title}:':<18}{table}" for table in tables]
    if (out / REALIGNED).is_file():
        lines.append(f"realigned table:  {out / REALIGNED}")
    if audit.again and audit.decisions is None:
        lines.append(f"with decisions:   {audit.again}")
    kept = audit.decided.posterior <= SUSPICIOUS
    if not judgement.unreliable_reason and can_train(audit, kept):
        lines.append(f"train on the rest: {training_command(audit.config, out, flags)}")
    return "\n".join(lines)


def describe_share(share: Share, out: str | Path) -> str:
    """Return the last line of a process whose share is done and which writes no results."""
    return f"share {share} is done; share {WRITER}/{share.count} writes {out}"
