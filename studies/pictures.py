"""Two pictures: what each part does, base by base, and the curves of whole methods."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from studies.analysis import TRAINED, differences, dose, interval
from studies.arms import ARMS, BASES, ROWS, STEPS


def draw_rows(records: dict, path: Path) -> None:
    """A line for each comparison: a dot a base, the mean with its 95% interval, the dose.

    A star marks what the protocol decides.
    """
    figure, axis = plt.subplots(figsize=(10, 5), constrained_layout=True)
    labels = []
    for y, row in enumerate(ROWS):
        values = differences(records, row)
        low, high = interval(values)
        axis.plot(values, np.full(len(values), y - 0.18), ".", color="0.6")
        axis.hlines(y, low, high)
        axis.plot(values.mean(), y, "ko")
        done = dose(records, row.arm)
        said = f"{done['back']:.0f} came back, pull of o* {done['pull']:.1%}"
        axis.annotate(said, (1.01, y), xycoords=("axes fraction", "data"), va="center")
        labels.append(f"{'★ ' * row.decided}{row.phrase}  ({row.arm} − {row.other})")
    axis.axvline(0, color="0.6")
    axis.set_yticks(range(len(ROWS)), labels)
    axis.invert_yaxis()
    axis.set_xlabel("points of Pass@1, mean of the curve (P, PH: from step 60); a dot is a base")
    figure.savefig(path)


def draw_curves(records: dict, names: list[str], path: Path) -> None:
    """The test curve of each arm, the mean over bases."""
    figure, axis = plt.subplots(constrained_layout=True)
    steps = np.arange(0, STEPS + 1, 20)
    for name in names:
        curves = []
        for base in BASES:
            curve = records["default", name, base]["curve"]
            curves.append(np.interp(steps, curve["step"], curve[TRAINED]))
        axis.plot(steps, np.mean(curves, axis=0), marker="o", label=ARMS[name].phrase)
    axis.set(xlabel="step", ylabel="Pass@1 on test questions, mean of 12 bases")
    axis.legend()
    figure.savefig(path)
