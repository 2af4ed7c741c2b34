"""The pictures of the study."""

import matplotlib.pyplot as plt
import numpy as np

from studies.analysis import AXES, Groups, differences, interval
from studies.arms import PHRASES, Row
from studies.runs import ROOT

KINDS = {"near": "test questions", "far": "longer questions, out of distribution"}


def draw(blocks: dict[str, Groups], rows: dict[str, list[Row]]) -> None:
    """What was decided, and why."""
    plt.rc("figure.constrained_layout", use=True)
    draw_rows(blocks["main"], rows["main"]).savefig(ROOT / "studies/main.png")
    draw_axes(blocks["why"]).savefig(ROOT / "studies/why.png")


def draw_rows(groups: Groups, rows: list[Row]) -> plt.Figure:
    """A line for each comparison: a dot a seed, the mean with its 95% interval."""
    figure, axis = plt.subplots(figsize=(9, 1 + 0.5 * len(rows)))
    for y, row in enumerate(rows):
        values = 100 * differences(groups, row)
        axis.plot(values, [y - 0.18] * len(values), ".", color="0.6")
        axis.hlines(y, *interval(values))
        axis.plot(values.mean(), y, "ko")
    axis.axvline(0, color="0.6")
    axis.set_yticks(range(len(rows)), [f"{row.phrase}\n{row.pair}" for row in rows])
    axis.invert_yaxis()
    axis.set_xlabel(
        "← the second is ahead     difference in points of score     the first is ahead →"
    )
    return figure


def draw_axes(groups: Groups) -> plt.Figure:
    """Near and far along each axis, as far as all seeds of an arm come: mean and interval."""
    figure, grid = plt.subplots(len(AXES), 2, sharey=True, figsize=(9, 12))
    for line, (head, place) in zip(grid, AXES.items()):
        for axis, (name, kind) in zip(line, KINDS.items()):
            for (_, arm, _), group in groups.items():
                points = np.linspace(0, min(place(record)[-1] for record in group.values()), 25)
                curves = []
                for record in group.values():
                    curves.append(np.interp(points, place(record), record[name]))
                curves = np.array(curves)
                axis.plot(points, curves.mean(axis=0), label=PHRASES[arm])
                axis.fill_between(points, *interval(curves), alpha=0.15, lw=0)
            axis.set(xlabel=head, ylim=(0, 1), title=kind)
            axis.grid(alpha=0.3)
        line[0].set_ylabel("Pass@1")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure
