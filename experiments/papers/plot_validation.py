"""Validation recalls by epoch of groups of runs, for `experiments.papers.compare`."""

import textwrap
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from experiments.figure import MARKERS, PALETTE
from experiments.papers.groups import Group
from l2rm_jax.errors import ConfigError

# Colour and marker repeat with another kind of line, so that curves differ without colours too.
STYLES = [
    {"color": color, "marker": marker, "linestyle": line}
    for line, (color, marker) in product(("-", "--", ":", "-."), zip(PALETTE, MARKERS, strict=True))
]
WAYS = {"i2t": "image to text", "t2i": "text to image"}
LEGEND_WIDTH = 36  # characters
LINE_INCHES = 0.14  # height of a line of the legend


def draw(groups: Sequence[Group], path: Path, measure: str = "rsum") -> None:
    """Draw the curves of the groups and write them to `path`; `measure` is one of `RECALLS`.

    Raises:
      ConfigError: more groups than `STYLES`, or the file cannot be written.
    """
    if len(groups) > len(STYLES):
        raise ConfigError(
            f"--figure: found {len(groups)} groups, expected at most {len(STYLES)}; name fewer runs"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        plot(groups, measure).savefig(path)
    except OSError as error:
        raise ConfigError(f"--figure={path}: cannot be written: {error.strerror}") from error


def plot(groups: Sequence[Group], measure: str = "rsum") -> Figure:
    """Return the figure: per group a line of the mean, and a band from the lowest to the highest.

    At each epoch they are over the runs that have validated it.
    """
    labels = [label(number, group) for number, group in enumerate(groups, 1)]
    lines = sum(text.count("\n") + 1.5 for text in labels)  # of the legend
    figure = Figure(figsize=(8.5, max(4.2, lines * LINE_INCHES)))
    axes = figure.add_subplot()
    for text, group, style in zip(labels, groups, STYLES, strict=False):
        epochs, low, mean, high = curve(group, measure)
        axes.plot(epochs, mean, markersize=4, label=text, **style)
        axes.fill_between(epochs, low, high, color=style["color"], alpha=0.2, linewidth=0)
    axes.set(xlabel="epoch", ylabel=f"validation {measure_name(measure)}")
    axes.xaxis.get_major_locator().set_params(integer=True)
    figure.legend(loc="outside right upper", fontsize=8)
    return figure


def measure_name(measure: str) -> str:
    """Name one of `RECALLS`, with its unit."""
    if measure == "rsum":
        return "rSum (of 600)"
    way, rank = measure.split("_r")
    return f"R@{rank}, {WAYS[way]} (%)"


def curve(group: Group, measure: str) -> np.ndarray:
    """Return epochs, and lowest, mean and highest `measure` over the runs, `[4, epochs]`."""
    values: dict[int, list[float]] = {}
    for run in group.runs:
        for record in run.records:
            values.setdefault(record["epoch"], []).append(record[measure])
    rows = [(epoch, min(each), np.mean(each), max(each)) for epoch, each in values.items()]
    return np.array(sorted(rows)).reshape(-1, 4).T


def label(number: int, group: Group) -> str:
    """Return the group's row in the table, its fields and how many of its runs are finished."""
    fields = group.fields.items()
    words = [f"{key.rpartition('.')[2]} {value}" for key, value in fields if value]
    words += [f"seeds {group.seeds}", *([group.progress] if group.progress else [])]
    return textwrap.fill(f"{number}: {', '.join(words)}", LEGEND_WIDTH, subsequent_indent="   ")
