"""Three pictures of the study, and README's."""

import matplotlib.pyplot as plt
import numpy as np

from studies.analysis import Row, comparisons, curve, differences, far, interval, near
from studies.arms import ARMS, BLOCKS, CHOOSING, DECIDING, GRID, RATES, SHORT, STEPS, Run, rates_of
from studies.runs import ROOT

CURVE = ROOT / "docs/assets/curve.png"  # README's


def draw(records: dict) -> None:
    """Each picture whose runs are all there."""

    def complete(block: str) -> bool:
        return all(run in records for run in BLOCKS[block]())

    folder = ROOT / "studies"
    if complete("gates"):
        draw_curves(records, [("R0", 3e-4), ("P", 3e-4)], CHOOSING, CURVE)
    if complete("rates"):
        draw_rates(records, folder / "rates.png")
    if RATES and complete("main"):
        draw_rows(records, folder / "main.png")
        draw_curves(records, [("R0", RATES["R0"]), ("P", RATES["P"])], DECIDING, CURVE)
    if RATES and complete("main") and complete("worlds"):
        draw_worlds(records, folder / "worlds.png")


def draw_rates(records: dict, path) -> None:
    """Learning rate across, near above and far below, a line an arm: the mean of four bases."""
    figure, axes = plt.subplots(2, sharex=True, figsize=(7, 7), constrained_layout=True)
    for axis, outcome in zip(axes, (near, far)):
        for arm in ("R0", "P", "PC", "HC"):
            means = []
            for lr in rates_of(arm):
                found = [records[Run("default", arm, lr, base)] for base in CHOOSING]
                means.append(np.mean([outcome(record) for record in found]))
            axis.plot(rates_of(arm), means, marker="o", label=ARMS[arm].phrase)
        axis.set(xscale="log", ylabel=f"{outcome.__name__}, mean of four bases")
        axis.set_xticks(GRID, [f"{lr:g}" for lr in GRID])
        axis.set_xticks([], minor=True)
    axes[0].legend()
    axes[1].set_xlabel("learning rate")
    figure.savefig(path)


def draw_rows(records: dict, path) -> None:
    """A line for each comparison: a dot a base, the mean with its 95% interval.

    A star marks what the protocol decides.
    """
    figure, axis = plt.subplots(figsize=(10, 4), constrained_layout=True)
    compared = comparisons("main")
    for y, row in enumerate(compared):
        values = 100 * differences(records, row)
        axis.plot(values, np.full(len(values), y - 0.18), ".", color="0.6")
        axis.hlines(y, *interval(values))
        axis.plot(values.mean(), y, "ko")
    labels = [f"{'★ ' * row.decided}{row.phrase}  ({row.pair})" for row in compared]
    axis.axvline(0, color="0.6")
    axis.set_yticks(range(len(labels)), labels)
    axis.invert_yaxis()
    axis.set_xlabel("points of score, the mean of near and far; a dot is a base")
    figure.savefig(path)


def draw_worlds(records: dict, path) -> None:
    """Score of P less R0 against the share of fresh groups that say nothing at first."""
    figure, axis = plt.subplots(constrained_layout=True)
    for world, lr in (("natural", 3e-4), ("default", RATES["P"]), ("silent", 3e-4)):
        bases = DECIDING if world == "default" else SHORT
        silent = [100 * records[Run(world, "R0", lr, base)]["silent_first"] for base in bases]
        gains = 100 * differences(records, Row("", "P", lr, "R0", lr, world=world))
        axis.plot(silent, gains, "o", label=f"{world} questions, both at {lr:g}")
    axis.axhline(0, color="0.6")
    axis.set_xlabel("silent groups among R0's fresh ones in the first ten steps, %")
    axis.set_ylabel("score of P less R0, points; a dot is a base")
    axis.legend()
    figure.savefig(path)


def draw_curves(records: dict, pairs: list[tuple], bases: tuple, path) -> None:
    """Test curves near and far: a thin line a base, the mean thick."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), constrained_layout=True, sharey=True)
    steps = np.arange(0, STEPS + 1, 20)
    titles = ("test questions", "longer questions, out of distribution")
    for axis, name, title in zip(axes, ("near", "far"), titles):
        for color, (arm, lr) in zip(("C0", "C1", "C2"), pairs):
            curves = []
            for base in bases:
                record = records[Run("default", arm, lr, base)]
                curves.append([record[name][0], *curve(record, name)])
            axis.plot(steps, np.transpose(curves), color=color, alpha=0.25, lw=0.8)
            label = f"{ARMS[arm].phrase}, rate {lr:g}"
            axis.plot(steps, np.mean(curves, axis=0), color=color, marker="o", label=label)
        axis.set(xlabel="step", title=title)
    axes[0].set_ylabel(f"Pass@1; {len(bases)} bases, the mean thick")
    axes[0].legend()
    figure.savefig(path)
