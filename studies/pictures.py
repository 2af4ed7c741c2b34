"""Two pictures of the study, and README's."""

import matplotlib.pyplot as plt
import numpy as np

from studies.analysis import POINTS, Groups, curve, differences, far, interval, near
from studies.arms import OWN, PHRASES, RATED, RATES, ROWS
from studies.runs import ROOT


def draw(blocks: dict[str, Groups]) -> None:
    """All of them, from the groups of each block."""
    plt.rc("figure", figsize=(9, 5))
    plt.rc("figure.constrained_layout", use=True)
    for block, file, picture in (
        ("rates", "studies/rates.png", draw_rates),
        ("main", "studies/main.png", draw_rows),
        ("main", "docs/assets/curve.png", draw_curves),
    ):
        picture(blocks[block]).savefig(ROOT / file)


def draw_rates(groups: Groups) -> plt.Figure:
    """Learning rate across, near above and far below, a line an arm: the mean of four seeds."""
    figure, axes = plt.subplots(2, sharex=True)
    for axis, outcome, kind in zip(axes, (near, far), ("test questions", "longer questions")):
        for arm, grid in RATED.items():
            means = [np.mean([outcome(one) for one in groups["default", arm, lr]]) for lr in grid]
            [line] = axis.plot(grid, means, marker="o", label=PHRASES[arm])
            if arm in RATES:
                chosen = means[grid.index(RATES[arm])]
                axis.plot(RATES[arm], chosen, "o", ms=12, mfc="none", color=line.get_color())
        axis.set(xscale="log", ylabel=f"{kind}, mean of four seeds")
        axis.set_xticks(RATED["HC"], RATED["HC"])  # the longest grid
        axis.minorticks_off()
    axes[0].legend()
    axes[1].set_xlabel("learning rate; a ring marks the chosen one")
    return figure


def draw_rows(groups: Groups) -> plt.Figure:
    """A line for each comparison: a dot a seed, the mean with its 95% interval."""
    figure, axis = plt.subplots(figsize=(9, 4))
    labels = []
    for y, row in enumerate(ROWS):
        values = 100 * differences(groups, row)
        axis.plot(values, [y - 0.18] * len(values), ".", color="0.6")
        axis.hlines(y, *interval(values))
        axis.plot(values.mean(), y, "ko")
        labels.append(f"{row.phrase}\n{row.pair}")
    axis.axvline(0, color="0.6")
    axis.set_yticks(range(len(labels)), labels)
    axis.invert_yaxis()
    axis.set_xlabel(
        "← the second is ahead     difference in points of score     the first is ahead →"
    )
    return figure


def draw_curves(groups: Groups) -> plt.Figure:
    """Test curves of three arms, each at its own rate: the mean over seeds, and its interval."""
    figure, axes = plt.subplots(1, 2, sharey=True, figsize=(9, 4.2))
    titles = {"near": "test questions", "far": "longer questions, out of distribution"}
    for axis, name in zip(axes, titles):
        for color, arm in (("C0", "R0"), ("C1", "P"), ("C3", "HC")):  # as in draw_rates
            curves = np.array([curve(record, name) for record in groups[OWN[arm]]])
            low, high = interval(curves)
            axis.fill_between(POINTS, low, high, color=color, alpha=0.15, lw=0)
            axis.plot(POINTS, curves.mean(axis=0), color=color, marker="o", label=PHRASES[arm])
        axis.set(xlabel="step", title=titles[name], ylim=(0, 1))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel(f"Pass@1, mean of {len(curves)} seeds and its 95% interval")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure
