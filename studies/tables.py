"""What the records of the deciding study say: tables in Markdown, and two pictures.

Scores are shares of right answers; differences are in points, hundredths of that.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy import stats

from studies.runs import METHODS, ROOT, SEEDS

ROWS = {"(a)": ("P", "R0"), "(b)": ("HC", "R0")}  # both are decided
LEVEL = 0.05  # of both together
NAMES = {"R0": "on-policy", "P": "ExGRPO", "HC": "ExGRPO, rarely solved, CLIP kept"}
COLORS = {"R0": "tab:gray", "P": "tab:blue", "HC": "tab:orange"}
POINTS = range(20, 121, 20)  # steps


def report(records: dict) -> None:
    """Print the tables and draw the pictures."""
    for table in (compared, outcomes, draws, shares):
        print("\n" + table(records))
    draw_differences(records)
    draw_curves(records)


def mean(record: dict, name: str) -> float:
    """A curve's mean over steps 20 to 120; a run that ended early keeps its last value."""
    return np.interp(POINTS, record["step"], record[name]).mean()


def near(record: dict) -> float:
    """Pass@1 on test questions."""
    return mean(record, "near")


def far(record: dict) -> float:
    """Pass@1 on longer questions."""
    return mean(record, "far")


def score(record: dict) -> float:
    """By which the protocol decides."""
    return (near(record) + far(record)) / 2


def differences(records: dict, one: str, other: str, outcome=score) -> np.ndarray:
    """In points, a number a seed."""
    of_one = np.array([outcome(records[seed, one]) for seed in SEEDS])
    of_other = np.array([outcome(records[seed, other]) for seed in SEEDS])
    return 100 * (of_one - of_other)


def decided(ps: dict[str, float]) -> set[str]:
    """Holm: the smallest p first, until one is too large."""
    found = set()
    for name in sorted(ps, key=ps.get):
        if ps[name] > LEVEL / (len(ps) - len(found)):
            break
        found.add(name)
    return found


def compared(records: dict) -> str:
    """Both decided rows; near and far are beside them, undecided."""
    ps = {
        name: stats.ttest_1samp(differences(records, *row), 0).pvalue for name, row in ROWS.items()
    }
    lines = ["| | score | near | far | p | |", "|---|---|---|---|---|---|"]
    for name, (one, other) in ROWS.items():
        cells = []
        for outcome in (score, near, far):
            values = differences(records, one, other, outcome)
            low, high = stats.ttest_1samp(values, 0).confidence_interval()
            cells.append(f"{values.mean():+.1f} ({low:+.1f} to {high:+.1f})")
        verdict = "decided" if name in decided(ps) else "undecided"
        cells += [f"{ps[name]:.4f}", verdict]
        lines.append(f"| {name} {NAMES[one]} − {NAMES[other]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def outcomes(records: dict) -> str:
    """Of each method the mean over seeds."""
    lines = ["| | score | near | far | near, last | far, last | last step | tokens |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for method in METHODS:
        of = [records[seed, method] for seed in SEEDS]
        cells = [f"{np.mean([outcome(r) for r in of]):.3f}" for outcome in (score, near, far)]
        cells += [f"{np.mean([r[name][-1] for r in of]):.3f}" for name in ("near", "far")]
        cells.append(f"{np.mean([r['last_step'] for r in of]):.1f}")
        cells.append(f"{np.mean([r['tokens'] for r in of]):.0f}")
        lines.append(f"| {NAMES[method]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draws(records: dict) -> str:
    """From which bucket the replayed questions came, and where stored ones were at the end."""
    lines = ["| | " + " | ".join(f"k = {k}" for k in range(1, 8)) + " |", "|---" * 8 + "|"]
    for method in ("P", "HC"):
        for name, what in {"drawn_from_k": "draws", "stored_at_end_by_k": "stored, end"}.items():
            counts = sum(np.array(records[seed, method][name]) for seed in SEEDS)
            cells = [f"{100 * share:.0f}%" for share in counts[:7] / counts.sum()]
            lines.append(f"| {NAMES[method]}, {what} | {' | '.join(cells)} |")
    return "\n".join(lines)


def shares(records: dict) -> str:
    """What is replayed of tokens and gradient, and what a run does by itself."""
    lines = [
        "| | of tokens | of the gradient | steps' range | replay from | retired | ended early |",
        "|---|---|---|---|---|---|---|",
    ]
    for method in ("P", "HC"):
        of = [records[seed, method] for seed in SEEDS]
        tokens = np.concatenate([r["token_share"] for r in of])
        gradient = np.concatenate([r["gradient_share"] for r in of])
        first = [r["replay_from"] for r in of]
        retired = [r["retired"] for r in of]
        cells = [
            f"{tokens.mean():.1%}",
            f"{gradient.mean():.1%}",
            f"{np.quantile(gradient, 0.05):.1%} to {np.quantile(gradient, 0.95):.1%}",
            f"{np.median(first):g} ({min(first)} to {max(first)})",
            f"{np.median(retired):g} ({min(retired)} to {max(retired)})",
            f"{sum(r['last_step'] < 120 for r in of)} of {len(of)}",
        ]
        lines.append(f"| {NAMES[method]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw_differences(records: dict) -> None:
    """A dot a seed, the mean with its interval."""
    figure, axis = plt.subplots(figsize=(8, 2.2), constrained_layout=True)
    for y, (one, other) in enumerate(ROWS.values()):
        values = differences(records, one, other)
        axis.plot(values, [y - 0.2] * len(values), ".", color=COLORS[one], alpha=0.6)
        axis.hlines(y, *stats.ttest_1samp(values, 0).confidence_interval(), color=COLORS[one])
        axis.plot(values.mean(), y, "o", color=COLORS[one])
    axis.axvline(0, color="0.6")
    axis.set_yticks(range(2), [f"{NAMES[one]}\n− {NAMES[other]}" for one, other in ROWS.values()])
    axis.set_ylim(1.5, -0.6)
    axis.set_xlabel("difference in points of score")
    figure.savefig(ROOT / "studies/main.png", dpi=120)


def draw_curves(records: dict) -> None:
    """Pass@1 against steps, mean and interval over seeds."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True, constrained_layout=True)
    kinds = {"near": "test questions", "far": "longer questions, out of distribution"}
    points = range(0, 121, 20)
    for axis, (name, title) in zip(axes, kinds.items()):
        for method in METHODS:
            of = [records[seed, method] for seed in SEEDS]
            curves = np.array([np.interp(points, r["step"], r[name]) for r in of])
            low, high = stats.ttest_1samp(curves, 0).confidence_interval()
            axis.plot(points, curves.mean(axis=0), color=COLORS[method], label=NAMES[method])
            axis.fill_between(points, low, high, color=COLORS[method], alpha=0.15, lw=0)
        axis.set(title=title, xlabel="step", ylim=(0, 1))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("Pass@1")
    axes[0].legend(fontsize=8)
    figure.savefig(ROOT / "studies/curves.png", dpi=120)
