"""Three pictures of the study, and README's."""

import matplotlib.pyplot as plt
import numpy as np

from studies.analysis import (
    POINTS,
    Row,
    comparisons,
    curve,
    differences,
    far,
    interval,
    lacks,
    mean,
    near,
    of,
)
from studies.arms import ARMS, BLOCKS, CHOOSING, DECIDING, GRID, RATED, RATES, rates_of
from studies.runs import ROOT

CURVE = ROOT / "docs/assets/curve.png"  # README's


def draw(records: dict) -> None:
    """Each picture whose runs are all there."""
    plt.rc("figure.constrained_layout", use=True)
    folder = ROOT / "studies"
    complete = [block for block in BLOCKS if not lacks(records, block)]
    if "gates" in complete:
        draw_curves(records, {"R0": 3e-4, "P": 3e-4}, CHOOSING).savefig(CURVE)
    if "rates" in complete:
        draw_rates(records).savefig(folder / "rates.png")
    if "main" in complete:
        draw_rows(records).savefig(folder / "main.png")
        draw_curves(records, RATES, DECIDING).savefig(CURVE)
        if "worlds" in complete:
            draw_worlds(records).savefig(folder / "worlds.png")


def draw_rates(records: dict) -> plt.Figure:
    """Learning rate across, near above and far below, a line an arm: the mean of four bases."""
    figure, axes = plt.subplots(2, sharex=True, figsize=(7, 7))
    for axis, outcome in zip(axes, (near, far)):
        for arm in RATED:
            means = [mean(records, arm, lr, outcome) for lr in rates_of(arm)]
            axis.plot(rates_of(arm), means, marker="o", label=ARMS[arm].phrase)
        axis.set(xscale="log", ylabel=f"{outcome.__name__}, mean of four bases")
        axis.set_xticks(GRID, GRID)
        axis.minorticks_off()
    axes[0].legend()
    axes[1].set_xlabel("learning rate")
    return figure


def draw_rows(records: dict) -> plt.Figure:
    """A line for each comparison: a dot a base, the mean with its 95% interval.

    A star marks what the protocol decides.
    """
    figure, axis = plt.subplots(figsize=(10, 4))
    labels = []
    for y, row in enumerate(comparisons("main")):
        values = 100 * differences(records, row)
        axis.plot(values, [y - 0.18] * len(values), ".", color="0.6")
        axis.hlines(y, *interval(values))
        axis.plot(values.mean(), y, "ko")
        labels.append(f"{'★ ' * row.decided}{row.phrase}  ({row.pair})")
    axis.axvline(0, color="0.6")
    axis.set_yticks(range(len(labels)), labels)
    axis.invert_yaxis()
    axis.set_xlabel("points of score, the mean of near and far; a dot is a base")
    return figure


def draw_worlds(records: dict) -> plt.Figure:
    """Score of P less R0 against the share of fresh groups that say nothing at first."""
    figure, axis = plt.subplots()
    for world, lr in (("natural", 3e-4), ("default", RATES["P"]), ("silent", 3e-4)):
        row = Row("", "P", lr, "R0", lr, world)
        silent = [
            100 * record["silent_first"] for record in of(records, world, "R0", lr, row.bases)
        ]
        gains = 100 * differences(records, row)
        axis.plot(silent, gains, "o", label=f"{world} questions, both at {lr:g}")
    axis.axhline(0, color="0.6")
    axis.set_xlabel("silent groups among R0's fresh ones in the first ten steps, %")
    axis.set_ylabel("score of P less R0, points; a dot is a base")
    axis.legend()
    return figure


def draw_curves(records: dict, rates: dict, bases: tuple) -> plt.Figure:
    """Test curves near and far of R0 and P: a thin line a base, the mean thick."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True)
    titles = ("test questions", "longer questions, out of distribution")
    for axis, name, title in zip(axes, ("near", "far"), titles):
        for color, arm in (("C0", "R0"), ("C1", "P")):
            lr = rates[arm]
            curves = [curve(record, name) for record in of(records, "default", arm, lr, bases)]
            axis.plot(POINTS, np.transpose(curves), color=color, alpha=0.25, lw=0.8)
            label = f"{ARMS[arm].phrase}, rate {lr:g}"
            axis.plot(POINTS, np.mean(curves, axis=0), color=color, marker="o", label=label)
        axis.set(xlabel="step", title=title)
    axes[0].set_ylabel(f"Pass@1; {len(bases)} bases, the mean thick")
    axes[0].legend()
    return figure
