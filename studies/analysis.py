"""What the records say: the tables of studies/README.md, in Markdown.

Scores are shares of right answers, 0 to 1; differences are in points, hundredths of that.
"""

from dataclasses import dataclass

import numpy as np
from scipy import stats

from studies.arms import (
    AT_EDGE,
    BEYOND,
    BLOCKS,
    CHOOSING,
    DECIDING,
    RATES,
    SHORT,
    STEPS,
    Run,
    rates_of,
)
from tools.compare import table

LEVEL = 0.05  # of the four decided rows together
NEAR_ENOUGH = 0.02  # of the best mean score: the lowest such rate is chosen
POINTS = np.arange(20, STEPS + 1, 20)  # the steps over which curves are averaged


def report(records: dict) -> str:
    """The tables of every block that is complete, and what is missing of the others."""
    tables = {
        "gates": [gates],
        "rates": [outcomes, chosen],
        "main": [rows, outcomes],
        "worlds": [rows, outcomes],
        "rival": [rival],
    }
    parts = []
    for name, block in BLOCKS.items():
        if not RATES and name in ("main", "rival"):
            parts.append(f"{name}: its rates are not chosen yet")
            continue
        missing = [run for run in block() if run not in records]
        if missing:
            parts.append(f"{name}: {len(missing)} runs have no record, {missing[0]} for example")
        else:
            parts += [part(records, name) for part in tables[name]]
    return "\n\n".join(parts)


# ---- outcomes ------------------------------------------------------------------------------------


def curve(record: dict, name: str) -> np.ndarray:
    """The scores at POINTS; a run that ended early keeps its last one."""
    return np.interp(POINTS, record["step"], record[name])


def near(record: dict) -> float:
    """Test Pass@1, the mean over POINTS."""
    return curve(record, "near").mean()


def far(record: dict) -> float:
    """The same out of distribution."""
    return curve(record, "far").mean()


def score(record: dict) -> float:
    """By which rates are chosen and arms are judged."""
    return (near(record) + far(record)) / 2


def steps_until(record: dict, level: float = 0.8) -> float:
    """The first step with a test Pass@1 of at least `level`, by straight lines; nan if none."""
    scores = np.array([record["near"][0], *curve(record, "near")])
    above = np.flatnonzero(scores >= level)
    if not above.size:
        return np.nan
    after = above[0]
    steps = np.array([0, *POINTS])
    return np.interp(level, scores[after - 1 : after + 1], steps[after - 1 : after + 1])


OUTCOMES = {  # head of a column -> what of a record stands in it
    "near": near,
    "far": far,
    "score": score,
    "near, end": lambda record: curve(record, "near")[-1],
    "far, end": lambda record: curve(record, "far")[-1],
    "million tokens": lambda record: record["tokens"] / 1e6,
    "silent at first": lambda record: record["silent_first"],
    "silent": lambda record: record["silent"],
}


# ---- statistics ----------------------------------------------------------------------------------


def interval(values: np.ndarray) -> tuple[float, float]:
    """The 95% interval of the mean, by Student's t over bases."""
    return tuple(stats.ttest_1samp(values, 0).confidence_interval(0.95))


def sign_flip(values: np.ndarray) -> float:
    """The exact p: of all ways to flip signs, the share with as large a mean, either way."""
    every = stats.permutation_test(
        (values, np.zeros_like(values)),
        lambda x, y: np.mean(x - y),
        permutation_type="samples",
        n_resamples=np.inf,
    )
    return every.pvalue


def holm(ps: list[float]) -> list[bool]:
    """Which of these hypotheses are rejected: the smallest p first, until one is too large."""
    rejected = [False] * len(ps)
    for done, i in enumerate(np.argsort(ps)):
        if ps[i] > LEVEL / (len(ps) - done):
            break
        rejected[i] = True
    return rejected


def shown(values: np.ndarray) -> str:
    """Mean and 95% interval, in points."""
    low, high = interval(100 * values)
    return f"{100 * values.mean():+.1f} [{low:+.1f}, {high:+.1f}]"


# ---- tables --------------------------------------------------------------------------------------


def outcomes(records: dict, block: str) -> str:
    """Of each arm and rate of a block the means over bases, and the range of the score."""
    found = {}
    for run in BLOCKS[block]():
        found.setdefault((run.world, run.arm, run.lr), []).append(records[run])
    lines = []
    for (world, arm, lr), group in sorted(found.items()):
        scores = [score(record) for record in group]
        until = [steps_until(record) for record in group if np.isfinite(steps_until(record))]
        lines.append(
            [
                world,
                arm,
                f"{lr:g}",
                *(f"{np.mean([of(record) for record in group]):.3f}" for of in OUTCOMES.values()),
                f"{min(scores):.2f}–{max(scores):.2f}",
                f"{np.mean(until):.0f} ({len(until)} of {len(group)})" if until else "–",
            ]
        )
    head = ["questions", "arm", "rate", *OUTCOMES, "score, low–high", "steps until 0.8"]
    return table(head, lines)


def gates(records: dict, block: str) -> str:
    """Is there something to learn, and is it learned honestly?"""
    lines = []
    for run in BLOCKS[block]():
        record = records[run]
        invalid = np.subtract(record["near"], record["valid"])
        figures = [
            record["near"][0],
            record["silent_first"],
            invalid.max(),
            record["near"][-1],
            curve(record, "far")[-3:].mean(),
            max(record["cut"] + record["cut_far"]),
        ]
        shown_figures = [f"{figure:.3f}" for figure in figures]
        lines.append([f"{run.base}", run.arm, *shown_figures, f"{record['replay_from'] or '–'}"])
    head = ["base", "arm", "before", "silent at first", "right but invalid, most", "end"]
    return table([*head, "far, from step 80", "cut, most", "replay from step"], lines)


def choice(records: dict, arm: str, bases: tuple = CHOOSING) -> float:
    """The lowest rate whose mean score over the bases is near enough to the best."""
    means = {}
    for lr in rates_of(arm):
        means[lr] = np.mean([score(records[Run("default", arm, lr, base)]) for base in bases])
    best = max(means.values())
    return min(lr for lr, mean in means.items() if mean >= best - NEAR_ENOUGH)


def chosen(records: dict, block: str) -> str:
    """The chosen rates, and those that each base alone would have chosen."""
    lines = []
    for arm in dict.fromkeys(run.arm for run in BLOCKS[block]()):
        lr = choice(records, arm)
        alone = [f"{choice(records, arm, (base,)):g}" for base in CHOOSING]
        note = ""
        if lr in BEYOND and arm not in AT_EDGE:
            note = f"an edge: run it at {BEYOND[lr]:g}, too"
        lines.append([arm, f"{lr:g}", ", ".join(alone), note])
    return table(["arm", "chosen rate", "by each base alone", ""], lines)


# ---- comparisons ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A comparison, arm less other, on the bases of its block."""

    phrase: str
    arm: str
    lr: float
    other: str
    other_lr: float
    world: str = "default"
    decided: bool = False  # one of the four of the protocol

    @property
    def pair(self) -> str:
        """As tables and pictures name it."""
        return f"{self.arm} {self.lr:g} − {self.other} {self.other_lr:g}"


def comparisons(block: str) -> list[Row]:
    """The rows of block 2, of which four are decided, or of block 3."""
    if block == "worlds":
        return [
            Row(f"{world} questions", arm, 3e-4, "R0", 3e-4, world=world)
            for world in ("natural", "silent")
            for arm in ("P", "HC")
        ]
    at_p = RATES["P"]
    equal = at_p == RATES["R0"]
    rare = Row("rarely solved ones", "HC", RATES["HC"], "R0", RATES["R0"], decided=equal)
    found = [Row("does ExGRPO pay?", "P", at_p, "R0", RATES["R0"], decided=True), rare]
    if not equal:
        found.append(Row("at one rate", "P", at_p, "R0", at_p, decided=True))
    return [
        *found,
        Row("which questions come back", "HC", at_p, "PC", at_p, decided=True),
        Row("what old answers add", "P", at_p, "PN", at_p, decided=True),
        Row("CLIP kept", "PC", at_p, "P", at_p),
    ]


def differences(records: dict, row: Row, outcome=score) -> np.ndarray:
    """The outcome of the row's arm less that of the other, a number a base."""
    found = []
    for base in DECIDING if row.world == "default" else SHORT:
        one = records[Run(row.world, row.arm, row.lr, base)]
        other = records[Run(row.world, row.other, row.other_lr, base)]
        found.append(outcome(one) - outcome(other))
    return np.array(found)


def rows(records: dict, block: str) -> str:
    """Every comparison of a block, and what is decided."""
    found = {row: differences(records, row) for row in comparisons(block)}
    ps = {row: stats.ttest_1samp(values, 0).pvalue for row, values in found.items()}
    decided = [row for row in found if row.decided]
    rejected = dict(zip(decided, holm([ps[row] for row in decided])))
    lines = []
    for row, values in found.items():
        verdict = "undecided" if row.decided else "exploratory"
        if rejected.get(row):
            verdict = "pays" if values.mean() > 0 else "costs"
        apart = [shown(differences(records, row, outcome)) for outcome in (near, far)]
        both_ps = [f"{ps[row]:.2g}", f"{sign_flip(values):.2g}"]
        lines.append([row.phrase, row.pair, shown(values), *both_ps, verdict, *apart])
    return table(["", "", "score", "p, t test", "p, sign flips", "", "near", "far"], lines)


def rival(records: dict, block: str) -> str:
    """On questions chosen beforehand: step 60, less step 120 of R0, at equal tokens generated."""
    cells = []
    for name in ("near", "far"):
        gains = []
        for run in BLOCKS[block]():
            plain = records[Run("default", "R0", run.lr, run.base)]
            gains.append(curve(records[run], name)[2] - curve(plain, name)[-1])
        cells.append(shown(np.array(gains)))
    return table(["the rival's step 60 less R0's step 120", "near", "far"], [["", *cells]])
