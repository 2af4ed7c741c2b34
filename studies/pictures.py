"""The pictures of the study, and README's."""

import matplotlib.pyplot as plt
import numpy as np

from studies.analysis import Groups, differences, interval
from studies.arms import PHRASES, Row
from studies.runs import ROOT

AXES = {  # axis of a picture -> from a record, how far along it each validation stands
    "step": lambda record: record["step"],
    "distinct questions that taught": lambda record: record["questions_taught"],
    "groups that taught": lambda record: np.add(record["fresh_taught"], record["returned_taught"]),
}
KINDS = {"near": "test questions", "far": "longer questions, out of distribution"}


def draw(blocks: dict[str, Groups], rows: dict[str, list[Row]]) -> None:
    """Those of a study whose blocks are whole."""
    plt.rc("figure.constrained_layout", use=True)
    for name in ("main", "dial"):
        if name in blocks:
            draw_rows(blocks[name], rows[name]).savefig(ROOT / f"studies/{name}.png")
    if "why" in blocks:
        draw_axes(blocks["why"], [*AXES]).savefig(ROOT / "studies/why.png")
        draw_axes(blocks["why"], ["step"]).savefig(ROOT / "docs/assets/curve.png")


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


def draw_axes(groups: Groups, heads: list[str]) -> plt.Figure:
    """Near and far along each axis, as far as all seeds of an arm come: mean and interval."""
    size = (9, 1.2 + 3 * len(heads))
    figure, grid = plt.subplots(len(heads), 2, sharey=True, squeeze=False, figsize=size)
    for line, head in zip(grid, heads):
        for axis, (name, kind) in zip(line, KINDS.items()):
            for (_, arm, _), group in groups.items():
                places = [AXES[head](record) for record in group.values()]
                points = np.linspace(0, min(place[-1] for place in places), 25)
                curves = []
                for place, record in zip(places, group.values()):
                    curves.append(np.interp(points, place, record[name]))
                curves = np.array(curves)
                axis.plot(points, curves.mean(axis=0), label=PHRASES[arm])
                axis.fill_between(points, *interval(curves), alpha=0.15, lw=0)
            axis.set(xlabel=head, ylim=(0, 1), title=kind)
            axis.grid(alpha=0.3)
        line[0].set_ylabel("Pass@1")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure
