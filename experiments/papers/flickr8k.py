"""Flickr8k with grid features, 10,000 training pairs: our results beside the authors' code.

python -m experiments.papers.flickr8k --path=DIR --out=runs/flickr8k --vary seed=0,1,2
python -m experiments.papers.flickr8k --path=DIR --out=runs/flickr8k --set mismatch.rate=0.6 \
    --vary method=l2rm,triplet --vary model.head=saf,sgr
python -m experiments.papers.flickr8k --out=runs/flickr8k --report

Runs use the settings of configs/flickr8k.py, are validated on the first 200 dev images, and share
the vocabulary of all 30,000 training captions, which is kept in --out. The grid stops and continues
like `experiments.papers.sweep`. --report trains nothing: it prints the results so far of all runs
under --out, finished or not, then a table of their test recalls.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from experiments.papers.runs import RECALLS, Run, differ_only_in_seed, read_run
from experiments.papers.sweep import (
    add_settings,
    grid,
    load_config,
    run_grid,
    start,
)
from l2rm_jax.data import mismatch
from l2rm_jax.data.captions import read_captions
from l2rm_jax.data.text import Vocabulary, load_sentence_splitter, tokenize
from l2rm_jax.errors import ConfigError
from l2rm_jax.evaluation.recall import RECALL_AT
from l2rm_jax.run.config_file import with_changes

CONFIG = Path(__file__).parents[2] / "configs" / "flickr8k.py"
DEV_IMAGES = 200
VOCABULARY_FIELDS = {"data.path", "data.min_count", "data.split_sentences"}

HEAD = [f"{way} R@{k}" for way in ("i2t", "t2i") for k in RECALL_AT] + ["rSum"]
CURVES = (  # key of an epoch record, title, number format
    ("rsum", "rSum after epoch", "{:.1f}"),
    ("split_accuracy", "split accuracy", "{:.3f}"),
    ("split_precision", "precision of matched set", "{:.3f}"),
)

# One run of the authors' public code (PyTorch, CPU) on the same pairs and validation images.
REFERENCE_GROUP = ("l2rm", "saf", "image0.4")
REFERENCE = {
    "best": ("22.5", "49.0", "61.5", "14.2", "36.3", "48.7", "232.2"),
    "rsum": ("", "150", "190", "206", "220"),  # epochs 2 to 5; others are not known
    "split_accuracy": ("", "", "", "", "0.796 to 0.804 over the epochs"),
    "split_precision": ("", "", "", "", "0.764 to 0.779 over the epochs"),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--path", type=Path, help="directory of the data")
    parser.add_argument("--out", required=True, type=Path, help="directory of the runs")
    parser.add_argument("--report", action="store_true", help="only print")
    add_settings(parser, "vary", "set")
    arguments = parser.parse_args()
    if not arguments.report:
        if arguments.path is None:
            raise ConfigError("--path: expected the directory of the data, or --report")
        config = load_config(str(CONFIG))
        config.data.path = str(arguments.path.absolute())
        config.data.dev_images = DEV_IMAGES
        vocabulary = shared_vocabulary(config, arguments.out, arguments.vary, arguments.set)
        config.data.vocabulary = str(vocabulary)
        run_grid(grid(config, arguments.vary, arguments.set), arguments.out)
    print(report(arguments.out))


def shared_vocabulary(
    config: ConfigDict, out: Path, vary: Mapping[str, Sequence], settings: Mapping[str, Any]
) -> Path:
    """Return the file `vocabulary.json` of all training captions, and write it if it is missing.

    The vocabulary includes the captions of training images that the runs leave out.

    Args:
      config: config of all runs, before `settings`.
      out: directory of the runs and of the file.
      vary: config fields in which the runs differ.
      settings: config fields that replace those of `config` in all runs.

    Raises:
      ConfigError: the runs differ in a field that decides the vocabulary, or the file in `out`
        holds another vocabulary.
    """
    if varied := sorted(VOCABULARY_FIELDS & vary.keys()):
        raise ConfigError(
            f"--vary {varied[0]}: the runs under {out} share a vocabulary, expected --set, and an "
            "--out for each value"
        )
    data = with_changes(config, settings).data
    sentences = load_sentence_splitter() if data.split_sentences else None
    captions = read_captions(Path(data.path), "train")
    built = Vocabulary.from_words((tokenize(line, sentences) for line in captions), data.min_count)
    file = (out / "vocabulary.json").absolute()
    if not file.exists():
        built.write(file)
    elif Vocabulary.read(file) != built:
        raise ConfigError(
            f"{file}: is not the vocabulary ({len(built)} words) of the captions in {data.path} at "
            f"data.min_count={data.min_count} and data.split_sentences={data.split_sentences}; "
            "expected an --out of its own for other data or settings"
        )
    return file


def report(out: Path) -> str:
    """Return the results so far of the runs under `out`, by method, head and mismatch.

    Raises:
      ConfigError: no run has finished an epoch.
    """
    groups = defaultdict(list)
    for workdir in sorted(path.parent for path in out.glob("*/metrics.jsonl")):
        run = read_run(workdir)
        if run.records:
            config = run.config
            groups[config.method, config.model.head, mismatch.label(config.mismatch)].append(run)
    if not groups:
        raise ConfigError(f"{out}: no run has finished an epoch")
    groups = dict(sorted(groups.items()))
    tables = [validation_tables(group, runs) for group, runs in groups.items()]
    return "\n\n".join([*tables, test_table(groups)])


def test_table(groups: Mapping[tuple, Sequence[Run]]) -> str:
    """Return one line per group: test recalls at its best validation epoch, mean over seeds."""
    lines = [f"{'test of that epoch':<32}" + "".join(f"{cell:>9}" for cell in [*HEAD, "seeds"])]
    for group, runs in groups.items():
        tested = [run for run in runs if run.test]
        if tested and differ_only_in_seed(run.config for run in tested):
            mean = np.mean([[run.test[column] for column in RECALLS] for run in tested], axis=0)
            cells = [*map("{:.1f}".format, mean), str(len(tested))]
            lines.append(f"{'  '.join(group):<32}" + "".join(f"{cell:>9}" for cell in cells))
    return "\n".join(lines)


def validation_tables(group: tuple[str, str, str], runs: Sequence[Run]) -> str:
    """Return the validation tables of a group: best epochs, then one table per quantity.

    Mean and standard deviation are over finished runs, and only if these differ only in the seed.
    """
    reference = REFERENCE if group == REFERENCE_GROUP else {}
    width = 2 + max(len(name) for name in ["precision of matched set", *(run.name for run in runs)])

    def row(name: str, cells: Iterable[str], more: str = "") -> str:
        return f"{name:<{width}}{''.join(f'{cell:>9}' for cell in cells)}  {more}".rstrip()

    lines = [f"== {'  '.join(group)} ==", row("best validation", HEAD, "epoch")]
    for run in runs:
        done = len(run.records)
        more = "" if done == run.epochs else f"  ({done} of {run.epochs} so far)"
        values = [run.best[column] for column in RECALLS]
        lines.append(row(run.name, map("{:.1f}".format, values), f"{run.best['epoch']:>5}{more}"))
    finished = [run for run in runs if len(run.records) == run.epochs]
    bests = [[run.best[column] for column in RECALLS] for run in finished]
    if bests and not differ_only_in_seed(run.config for run in finished):
        lines.append("no mean: the runs differ in more than the seed")
    elif bests:
        mean = np.mean(bests, axis=0)
        lines.append(row(f"mean of {len(bests)} finished", map("{:.1f}".format, mean)))
        if len(bests) > 1:
            deviation = np.std(bests, axis=0, ddof=1)
            lines.append(row("standard deviation", map("{:.1f}".format, deviation)))
    if reference:
        lines.append(row("authors' code", reference["best"], "one seed"))
    for column, title, form in CURVES:
        if not any(column in record for run in runs for record in run.records):
            continue  # a method without a split, or a run that is still in its warm-up
        longest = max(run.epochs for run in runs)
        lines += ["", row(title, map(str, range(1, longest + 1)))]
        for run in runs:
            cells = (form.format(each[column]) if column in each else "" for each in run.records)
            lines.append(row(run.name, cells))
        if reference:
            lines.append(row("authors' code", reference[column]))
    return "\n".join(lines)


if __name__ == "__main__":
    start(main)
