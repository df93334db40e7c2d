"""Train both heads, SGR and SAF, and test the mean of their similarities: SGRAF.

python -m experiments.papers.sgraf --config=f30k --workdir=runs/f30k \
    --set data.path=DIR --set mismatch.rate=0.4

The runs are `sgr` and `saf` under --workdir. Repeat the command to continue after a stop; finished
runs are only tested. The last output is the table of each head and of their mean, which is also
written to `sgraf.json`.
"""

from pathlib import Path

from experiments.papers.sweep import run_grid
from experiments.script import add_settings, load_base, new_parser, start
from l2rm_jax.evaluate import evaluate_runs
from l2rm_jax.evaluation.recall import recall_table
from l2rm_jax.run.config_file import with_changes
from l2rm_jax.run.results import write_json


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--config", required=True, help="FILE.py or FILE.py:VARIANT")
    parser.add_argument("--workdir", required=True, type=Path, help="directory of the two runs")
    add_settings(parser, "set")
    arguments = parser.parse_args()
    config, settings = load_base(arguments.config, arguments.set)
    runs = [
        (head, with_changes(config, {**settings, "model.head": head})) for head in ("sgr", "saf")
    ]
    rows = evaluate_runs(run_grid(runs, arguments.workdir))
    write_json(arguments.workdir / "sgraf.json", rows)
    print(recall_table(rows))


if __name__ == "__main__":
    start(main)
