"""Three pictures of the study, and README's."""

import matplotlib.pyplot as plt
import numpy as np

from studies.analysis import POINTS, Groups, curve, differences, far, interval, near
from studies.arms import OWN, PAYS, PHRASES, RATED, ROWS
from studies.runs import ROOT


def draw(blocks: dict[str, Groups]) -> None:
    """All of them, from the groups of each block."""
    plt.rc("figure", figsize=(9, 5))
    plt.rc("figure.constrained_layout", use=True)
    for block, file, picture in (
        ("rates", "studies/rates.png", draw_rates),
        ("main", "studies/main.png", draw_rows),
        ("worlds", "studies/worlds.png", draw_worlds),
        ("main", "docs/assets/curve.png", draw_curves),
    ):
        picture(blocks[block]).savefig(ROOT / file)


def draw_rates(groups: Groups) -> plt.Figure:
    """Learning rate across, near above and far below, a line an arm: the mean of four bases."""
    figure, axes = plt.subplots(2, sharex=True)
    for axis, outcome in zip(axes, (near, far)):
        for arm, grid in RATED.items():
            means = [np.mean([outcome(one) for one in groups["default", arm, lr]]) for lr in grid]
            axis.plot(grid, means, marker="o", label=PHRASES[arm])
        axis.set(xscale="log", ylabel=f"{outcome.__name__}, mean of four bases")
        axis.set_xticks(RATED["HC"], RATED["HC"])  # the longest grid
        axis.minorticks_off()
    axes[0].legend()
    axes[1].set_xlabel("learning rate")
    return figure


def draw_rows(groups: Groups) -> plt.Figure:
    """A line for each comparison: a dot a base, the mean with its 95% interval.

    A star marks what the protocol decides.
    """
    figure, axis = plt.subplots()
    labels = []
    for y, row in enumerate(ROWS["main"]):
        values = 100 * differences(groups, row)
        axis.plot(values, [y - 0.18] * len(values), ".", color="0.6")
        axis.hlines(y, *interval(values))
        axis.plot(values.mean(), y, "ko")
        labels.append(f"{'★ ' * row.decided}{row.phrase}  ({row.pair})")
    axis.axvline(0, color="0.6")
    axis.set_yticks(range(len(labels)), labels)
    axis.invert_yaxis()
    axis.set_xlabel("points of score, the mean of near and far; a dot is a base")
    return figure


def draw_worlds(groups: Groups) -> plt.Figure:
    """Score of P less R0 against the share of fresh groups that say nothing at first."""
    figure, axis = plt.subplots()
    at_3e_4 = [row for row in ROWS["worlds"] if row.one[1:] == ("P", 3e-4)]
    for row in (PAYS, *at_3e_4):
        silent = [100 * record["silent_first"] for record in groups[row.other]]
        label = f"{row.one[0]} questions ({row.pair})"
        axis.plot(silent, 100 * differences(groups, row), "o", label=label)
    axis.axhline(0, color="0.6")
    axis.set_xlabel("silent groups among R0's fresh ones in the first ten steps, %")
    axis.set_ylabel("score of P less R0, points; a dot is a base")
    figure.legend(loc="outside upper center")
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
