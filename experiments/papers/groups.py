"""Runs that differ only in their seeds, as groups with means and standard deviations."""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from experiments.benchmark.statistics import mean_of
from experiments.papers.runs import RECALLS, SEEDS, Run, differing_fields, seeds
from l2rm_jax.config import flat

# Fields that change the files of a run, its speed or its memory, but no result.
WITHOUT_EFFECT = (
    "model.chunk", "evaluation.batch_size",
    "train.checkpoint_steps", "train.log_steps", "train.tensorboard",
)  # fmt: skip
# Runs that differ in one of these were tested, or validated, on other pairs or by another protocol.
TESTED_ON = (
    "data.name", "data.path", "data.test_split", "data.scenes_seed", "data.scenes_test",
    "mismatch.protocol", "evaluation.protocol",
)  # fmt: skip
VALIDATED_ON = ("data.dev_images", "data.scenes_dev")
RECORDED = ("test images", "device")  # facts that the results hold; columns where runs differ


class Group(NamedTuple):
    """Runs that differ only in their seeds.

    Attributes:
      runs: the runs, by seed.
      fields: value of each field that differs between the groups, as text; "" where the config
        lacks the field.
      numbers: `dev_rsum` (best validation), the test recalls and `seconds`: mean, and standard
        deviation of several runs; nothing where no run has the number yet. Over the finished runs,
        or over all of them for the validation of a group without a finished one.
    """

    runs: list[Run]
    fields: dict[str, str]
    numbers: dict[str, list[float]]

    @property
    def finished(self) -> list[Run]:
        return [run for run in self.runs if run.results]

    @property
    def seeds(self) -> str:
        """Number of seeds, such as `3`, or `2 of 3` where only two runs are finished."""
        numbers = [len(set(map(seeds, runs))) for runs in (self.finished, self.runs)]
        return " of ".join(
            map(str, numbers if 0 < len(self.finished) < len(self.runs) else numbers[1:])
        )

    @property
    def mismatches(self) -> int:
        """Number of different `mismatch.seed`."""
        return len({run.config.mismatch.seed for run in self.runs})

    @property
    def progress(self) -> str:
        """Epochs so far of the unfinished runs, such as `epoch 3-5/14`; "" if there is none."""
        done = sorted({run.done for run in self.runs if not run.results})
        total = self.runs[0].epochs
        return f"epoch {'-'.join(map(str, sorted({done[0], done[-1]})))}/{total}" if done else ""


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Group the runs over their seeds, the best validation rSum first."""
    configs = [flat(run.config) for run in runs]
    differ = differing_fields(configs, (*SEEDS, *WITHOUT_EFFECT))
    members = defaultdict(list)
    for run, config in zip(runs, configs, strict=True):
        members[tuple(_text(config[key]) if key in config else "" for key in differ)].append(run)
    facts = [fact for fact in RECORDED if len(_facts(runs, fact)) > 1]
    if set(differ) & {*TESTED_ON}:
        facts = [fact for fact in facts if fact != "test images"]  # the config explains them
    groups = []
    for values, group in members.items():
        group.sort(key=seeds)
        fields = dict(zip(differ, values, strict=True))
        fields |= {fact: " and ".join(_facts(group, fact)) for fact in facts}
        groups.append(Group(group, fields, _numbers(group)))
    return sorted(groups, key=lambda group: group.numbers["dev_rsum"] or [-1.0], reverse=True)


def _text(value: Any) -> str:
    """A config value as it is in a table: text as it stands, unless it is empty."""
    return (
        value
        if isinstance(value, str) and value.strip() and value.isprintable()
        else json.dumps(value)
    )


def _facts(runs: Iterable[Run], fact: str) -> list[str]:
    """The different values of a fact in the results of the finished runs."""
    finished = [run for run in runs if run.results]
    if fact == "device":
        return sorted({str(run.results.get("versions", {}).get("device")) for run in finished})
    return sorted({f"{run.test.get('images', 0):g}" for run in finished})


def _numbers(runs: Sequence[Run]) -> dict[str, list[float]]:
    finished = [run for run in runs if run.results]
    validated = [run.best["rsum"] for run in finished or runs if run.best]
    numbers = {"dev_rsum": _mean_and_deviation(validated)}
    for name in RECALLS:
        numbers[name] = _mean_and_deviation([run.test[name] for run in finished])
    numbers["seconds"] = _mean_and_deviation([run.results["seconds"] for run in finished])
    return numbers


def _mean_and_deviation(values: Sequence[float]) -> list[float]:
    """Mean, and deviation of two or more values; nothing of none."""
    return [*mean_of(values)[: 1 + (len(values) > 1)]] if values else []


def notes(groups: Sequence[Group]) -> list[str]:
    """Return notes on rows that cannot be compared, on repeats and on unfinished runs."""
    fields = groups[0].fields
    lines = []
    if tested := [key for key in (*TESTED_ON, "test images") if key in fields]:
        lines.append(
            f"note: {', '.join(tested)}: rows that differ in it cannot be compared, as their data "
            "or protocols differ"
        )
    if validated := [key for key in VALIDATED_ON if key in fields]:
        lines.append(
            f"note: {', '.join(validated)}: validations of rows that differ in it cannot be "
            "compared, nor can the order of these rows"
        )
    for row, group in enumerate(groups, 1):
        lines += [f"row {row}: {text}" for text in _group_notes(group)]
    return lines


def _group_notes(group: Group) -> list[str]:
    by_seed = defaultdict(list)
    for run in group.runs:
        by_seed[seeds(run)].append(str(run.workdir))
    images = _facts(group.runs, "test images")
    lines = [f"its runs were tested on {' and '.join(images)} images"] if len(images) > 1 else []
    lines += [
        f"the mean counts each of {' and '.join(names)}, which have the same config and seeds"
        for names in by_seed.values()
        if len(names) > 1
    ]
    for run in group.runs:
        if group.finished and not run.results:
            best = (
                f"validation rSum {run.best['rsum']:.1f} so far"
                if run.best
                else "not validated yet"
            )
            lines.append(
                f"{run.workdir} is not in the means: epoch {run.done}/{run.epochs}, {best}"
            )
    return lines
