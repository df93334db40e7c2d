"""From the audit to a model on Flickr8k: judge, decide by eye, filter, train, compare recall.

python -m experiments.judging.audit_walk --path=DIR --out=runs/audit_walk --csv=audit_walk.csv
python -m experiments.judging.audit_walk --path=DIR --out=runs/audit_walk --use=kept --seed=0
python -m experiments.judging.audit_walk --path=DIR --out=runs/audit_walk --report \
    --csv=audit_walk.csv

The steps are those of a user, for 2000 images with 40% of the sets of captions swapped. The pairs
are audited; a reviewer decides the pairs of the blind review and the first 200 others of the list;
they are audited again with these decisions; `infonce` with the head `aggregate` is trained on the
pairs with a score of at least 0.5 (`kept`), and on all pairs (`all`), with about as many updates.
The truth plays the reviewer, and nothing else.

The command continues what was stopped; --csv writes a row for each finished run. Runs of `all` are
those of the row `infonce` in the benchmark's suite flickr8k: copies of them in --out, with `all-`
before their names, count as finished.
"""

import argparse
import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from ml_collections import ConfigDict

from experiments.benchmark.suite import equal_updates, find_suite, make_cell
from experiments.csv_rows import write_rows
from experiments.judging.crossfit import values_of
from experiments.papers.runs import epoch_records
from experiments.papers.sweep import result_row, run_grid, start
from l2rm_jax.audit import Audit
from l2rm_jax.audit.command import audit_directory
from l2rm_jax.audit.review import FITS, HEADER, LIST, REVIEW, WRONG, draw_review
from l2rm_jax.data.pairs import SUSPICIOUS
from l2rm_jax.run.config_file import with_changes

RATE = 0.4
LISTED = 200  # pairs of the list that the reviewer decides, after those of the review
THRESHOLD = 1 - SUSPICIOUS  # least probability of being matched
USES = "kept", "all"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--path", required=True, type=Path, help="directory of the data")
    parser.add_argument("--out", required=True, type=Path, help="directory of audits and runs")
    parser.add_argument("--use", type=values_of(str), default=USES, help="kept, all (both)")
    parser.add_argument("--seed", type=values_of(int), default=[0, 1, 2])
    parser.add_argument("--report", action="store_true", help="audit and train nothing")
    parser.add_argument("--csv", type=Path, help="write the finished runs")
    flags = parser.parse_args()
    if not flags.report:
        cells = product(flags.seed, flags.use)
        run_grid([named_run(flags.path, flags.out, *cell) for cell in cells], flags.out)
    rows = finished(flags.out, flags.seed)
    print("\n".join(",".join(map(str, row.values())) for row in rows))
    if flags.csv:
        write_rows(flags.csv, rows)


def named_run(path: Path, out: Path, seed: int, use: str) -> tuple[str, ConfigDict]:
    """Return name and config of a run; its pairs are audited if it trains on the kept ones.

    Args:
      path: directory of the data.
      out: directory of audits and runs.
      seed: seed of the mismatch, the audit and the run.
      use: `kept` or `all`.
    """
    noise = {"protocol": "image", "rate": RATE}
    cell = make_cell(find_suite("flickr8k"), "infonce", "aggregate", noise, seed, path)
    name, config = f"{use}-{cell.name}", cell.config
    if use == "all":
        return name, config
    scores = reviewed_audit(config, out) / "scores.npy"
    kept = float((np.load(scores) >= THRESHOLD).mean())
    changes = {
        "data.filter": "score",
        "data.filter_value": THRESHOLD,
        "data.filter_scores": str(scores),
    }
    return name, with_changes(config, {**changes, **equal_updates(config, kept)})


def reviewed_audit(config: ConfigDict, out: Path) -> Path:
    """Audit, decide, and audit again; return the directory of the second audit."""
    first, decided, second = (
        out / f"{name}{config.seed}" for name in ("audit-seed", "decisions-seed", "reviewed-seed")
    )
    if second.exists():
        return second
    decided = decided.with_suffix(".csv")
    if not first.exists():
        decided.write_text(decisions_by_truth(audit_directory(config, first)))
    audit_directory(with_changes(config, {"audit.review": str(decided)}), second)
    return second


def decisions_by_truth(audit: Audit) -> str:
    """Return the decisions of a reviewer who is always right, as the page saves them."""
    found = audit.judgement
    review, weight = draw_review(found.posterior, seed=audit.settings.seed)
    listed = found.order[~np.isin(found.order, review)][:LISTED]
    return decision_lines(audit.inputs.truth, review, weight, listed)


def decision_lines(
    wrong: Bool[np.ndarray, " pairs"],
    review: Int[np.ndarray, " n"],
    weight: Float[np.ndarray, " n"],
    listed: Int[np.ndarray, " m"],
) -> str:
    """Return decisions in the page's format, by row.

    Args:
      wrong: which pairs are mismatched.
      review: pairs that were decided in the review.
      weight: how many pairs each of these stands for.
      listed: pairs that were decided in the list, none of the review.
    """
    doors = {row: (LIST, "") for row in listed.tolist()}
    doors |= {row: (REVIEW, each) for row, each in zip(review.tolist(), weight, strict=True)}
    lines = [
        f"{row},{WRONG if wrong[row] else FITS},,{door},{weight}"
        for row, (door, weight) in sorted(doors.items())
    ]
    return "\n".join([",".join(HEADER), *lines, ""])


def finished(out: Path, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Return a row for each finished run of these seeds, with the numbers of its audit.

    `kept` is the share of the pairs that the run trains on, `left` the share of these that is
    mismatched.
    """
    rows = []
    for use, seed in product(USES, seeds):
        found = list(out.glob(f"{use}-*-seed{seed}/results.json"))
        report = out / f"reviewed-seed{seed}" / "report.json"
        if not found or not report.exists():
            continue
        [path] = found
        run = result_row(json.loads(path.read_text()), epoch_records(path.parent))
        audit = json.loads(report.read_text())
        shares = {
            "true": audit["truth"]["rate"],
            "rate": audit["rate"]["estimate"],
            "by_eye": audit["reviewed_rate"]["estimate"],
            "eye_low": audit["reviewed_rate"]["low"],
            "eye_high": audit["reviewed_rate"]["high"],
            "kept": run.get("filter_kept", 1.0),
            "left": run.get("filter_true_rate", run["true_rate"]),
        }
        recalls = {"i2t_r1": "i2t_r1", "t2i_r1": "t2i_r1", "validation": "dev_rsum", "test": "rsum"}
        row = {"use": use, "seed": seed, **{name: round(x, 3) for name, x in shares.items()}}
        rows.append(row | {name: round(run[column], 1) for name, column in recalls.items()})
    return rows


if __name__ == "__main__":
    start(main)
