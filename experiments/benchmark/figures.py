"""Figures of a report: test rSum by rate, and validation rSum by epoch."""

import io
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.benchmark.records import Record
from experiments.benchmark.statistics import mean_of
from experiments.benchmark.tables import LINEAR, by_cell
from experiments.papers.plot_validation import STYLES

# By cell: validation rSum of each epoch, of each seed.
Curves = Mapping[tuple[str, str, str, str], Sequence[Sequence[float]]]


def rate_figure(records: Sequence[Record], protocol: str, names: Sequence[str]) -> Figure:
    """Draw the test rSum of each row against the rate, a panel for each head.

    Args:
      records: rows of the finished runs.
      protocol: of the drawn runs.
      names: all rows of the report; a row has the same style in all figures.
    """
    values = by_cell([each for each in records if each["protocol"] == protocol], "test_rsum")
    heads = list(dict.fromkeys(head for _, head, _, _ in values))
    figure, panels = _panels(heads)
    for head, axes in zip(heads, panels, strict=True):
        for name in names:
            rates = sorted({rate for row, of, _, rate in values if (row, of) == (name, head)})
            means = [mean_of([*values[name, head, protocol, rate].values()]) for rate in rates]
            if means:
                at = [float(rate) for rate in rates]
                style = STYLES[names.index(name) % len(STYLES)]
                spread = [each.deviation for each in means]
                axes.errorbar(
                    at, [each.mean for each in means], spread, label=name, markersize=4, **style
                )
        axes.set_xlabel("rate of mismatch")
    panels[0].set_ylabel("test rSum (of 600)")
    _legend(figure, panels)
    return figure


def curve_figure(curves: Curves, protocol: str, rate: str, names: Sequence[str]) -> Figure | None:
    """Draw the validation rSum by epoch, mean over seeds; None without a curve.

    Args:
      curves: of all runs; those of linear models, which are fits, are left out.
      protocol: of the drawn runs.
      rate: of the drawn runs.
      names: as in `rate_figure`.
    """
    chosen = {
        key[:2]: seeds
        for key, seeds in curves.items()
        if key[2:] == (protocol, rate) and key[1] != LINEAR
    }
    if not chosen:
        return None
    heads = list(dict.fromkeys(head for _, head in chosen))
    figure, panels = _panels(heads)
    for (name, head), seeds in chosen.items():
        longest = max(map(len, seeds))
        padded = np.full((len(seeds), longest), np.nan)
        for line, values in zip(padded, seeds, strict=True):
            line[: len(values)] = values
        style = STYLES[names.index(name) % len(STYLES)]
        epochs = np.arange(1, longest + 1)
        panels[heads.index(head)].plot(
            epochs, np.nanmean(padded, axis=0), label=name, markersize=3, **style
        )
    for axes in panels:
        axes.set_xlabel("epoch")
        axes.xaxis.get_major_locator().set_params(integer=True)
    panels[0].set_ylabel("validation rSum (of 600)")
    _legend(figure, panels)
    return figure


def _panels(heads: Sequence[str]) -> tuple[Figure, Sequence[Axes]]:
    figure = Figure(figsize=(4.2 * len(heads) + 2.5, 4.2))
    panels = figure.subplots(1, len(heads), sharey=True, squeeze=False)[0]
    for head, axes in zip(heads, panels, strict=True):
        axes.set_title(f"head {head}")
    return figure, panels


def _legend(figure: Figure, panels: Sequence[Axes]) -> None:
    """One legend for all panels, each row once."""
    handles = {
        label: handle
        for axes in panels
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend([*handles.values()], [*handles], loc="outside right upper", fontsize=7)


def to_svg(figure: Figure) -> str:
    """Return a figure as the element `<svg>`."""
    text = io.StringIO()
    about = dict.fromkeys(("Creator", "Date", "Format", "Type"))  # None leaves them out
    figure.savefig(text, format="svg", metadata=about)
    return text.getvalue()[text.getvalue().index("<svg") :]
