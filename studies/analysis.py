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
    MIXES,
    RATED,
    RATES,
    SHORT,
    STEPS,
    Run,
    rates_of,
)
from tools.compare import table

LEVEL = 0.05  # of the four decided rows together
NEAR_ENOUGH = 0.02  # of the best mean score: the lowest such rate is chosen
POINTS = np.arange(0, STEPS + 1, 20)  # the steps of a curve


def lacks(records: dict, block: str) -> str:
    """What a block that is not complete lacks, else nothing."""
    if block in ("main", "rival") and not RATES:
        return "its rates are not chosen yet"
    missing = [run for run in BLOCKS[block]() if run not in records]
    return f"{len(missing)} runs have no record" if missing else ""


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
    for block in BLOCKS:
        lack = lacks(records, block)
        if lack:
            parts.append(f"{block}: {lack}")
        else:
            parts += [part(records, block) for part in tables[block]]
    return "\n\n".join(parts)


def of(records: dict, world: str, arm: str, lr: float, bases: tuple) -> list[dict]:
    """The records of an arm at one rate, one a base."""
    return [records[Run(world, arm, lr, base)] for base in bases]


# ---- outcomes ------------------------------------------------------------------------------------


def curve(record: dict, name: str) -> np.ndarray:
    """The scores at POINTS, step 0 first; a run that ended early keeps its last one."""
    return np.interp(POINTS, record["step"], record[name])


def near(record: dict) -> float:
    """Test Pass@1, the mean over POINTS but step 0."""
    return curve(record, "near")[1:].mean()


def far(record: dict) -> float:
    """The same out of distribution."""
    return curve(record, "far")[1:].mean()


def score(record: dict) -> float:
    """By which rates are chosen and arms are judged."""
    return (near(record) + far(record)) / 2


def steps_until(record: dict, level: float = 0.8) -> float | None:
    """The first step with a test Pass@1 of at least `level`, by straight lines."""
    scores = curve(record, "near")
    for i, reached in enumerate(scores):
        if reached >= level:
            return np.interp(level, scores[i - 1 : i + 1], POINTS[i - 1 : i + 1])
    return None


OUTCOMES = {  # head of a column -> what of a record stands in it
    "near": near,
    "far": far,
    "score": score,
    "near, end": lambda record: record["near"][-1],
    "far, end": lambda record: record["far"][-1],
    "million tokens": lambda record: record["tokens"] / 1e6,
    "silent at first": lambda record: record["silent_first"],
    "silent": lambda record: record["silent"],
}


# ---- statistics ----------------------------------------------------------------------------------


def interval(values: np.ndarray) -> tuple[float, float]:
    """The 95% interval of the mean, by Student's t over bases."""
    return stats.ttest_1samp(values, 0).confidence_interval()


def sign_flip(values: np.ndarray) -> float:
    """The exact p: of all ways to flip signs, the share with as large a mean, either way."""
    flipped = {"permutation_type": "samples", "n_resamples": np.inf}
    return stats.permutation_test([values], np.mean, **flipped).pvalue


def holm(ps: dict) -> list:
    """Which of these hypotheses are rejected: the smallest p first, until one is too large."""
    rejected = []
    for name in sorted(ps, key=ps.get):
        if ps[name] > LEVEL / (len(ps) - len(rejected)):
            break
        rejected.append(name)
    return rejected


def three_digits(figures) -> list[str]:
    """As a table shows shares."""
    return [f"{figure:.3f}" for figure in figures]


def shown(values: np.ndarray) -> str:
    """Mean and 95% interval, in points."""
    low, high = interval(100 * values)
    return f"{100 * values.mean():+.1f} [{low:+.1f}, {high:+.1f}]"


# ---- tables --------------------------------------------------------------------------------------


def outcomes(records: dict, block: str) -> str:
    """Of each arm and rate of a block the means over bases, and the range of the score."""
    groups = {}
    for run in BLOCKS[block]():
        groups.setdefault((run.world, run.arm, run.lr), []).append(records[run])
    lines = []
    for (world, arm, lr), group in sorted(groups.items()):
        figures = [np.mean([found(record) for record in group]) for found in OUTCOMES.values()]
        scores = [score(record) for record in group]
        until = [steps for steps in map(steps_until, group) if steps]
        lines.append(
            [
                world,
                arm,
                f"{lr:g}",
                *three_digits(figures),
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
        figures = [
            record["near"][0],
            record["silent_first"],
            np.subtract(record["near"], record["valid"]).max(),
            record["near"][-1],
            curve(record, "far")[-3:].mean(),
            max(record["cut"] + record["cut_far"]),
        ]
        replay_from = str(record["replay_from"] or "–")
        lines.append([str(run.base), run.arm, *three_digits(figures), replay_from])
    head = ["base", "arm", "before", "silent at first", "right but invalid, most", "end"]
    return table([*head, "far, from step 80", "cut, most", "replay from step"], lines)


def mean(records: dict, arm: str, lr: float, outcome, bases: tuple = CHOOSING) -> float:
    """Of an arm at one rate the mean of an outcome over bases."""
    return np.mean([outcome(record) for record in of(records, "default", arm, lr, bases)])


def choice(records: dict, arm: str, bases: tuple = CHOOSING) -> float:
    """The lowest rate whose mean score over the bases is near enough to the best."""
    means = {lr: mean(records, arm, lr, score, bases) for lr in rates_of(arm)}
    enough = max(means.values()) - NEAR_ENOUGH
    return min(lr for lr in means if means[lr] >= enough)


def chosen(records: dict, block: str) -> str:
    """The chosen rates, and those that each base alone would have chosen."""
    lines = []
    for arm in RATED:
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

    @property
    def bases(self) -> tuple:
        """On which both arms ran."""
        return DECIDING if self.world == "default" else SHORT


def comparisons(block: str) -> list[Row]:
    """The rows of block 2, of which four are decided, or of block 3."""
    if block == "worlds":
        return [
            Row(f"{world} questions", arm, 3e-4, "R0", 3e-4, world=world)
            for world in MIXES
            for arm in ("P", "HC")
        ]
    at_p = RATES["P"]
    at_0 = RATES["R0"]
    differ = at_p != at_0
    found = [
        Row("does ExGRPO pay?", "P", at_p, "R0", at_0, decided=True),
        Row("rarely solved ones", "HC", RATES["HC"], "R0", at_0, decided=not differ),
        Row("at one rate", "P", at_p, "R0", at_p, decided=True),
        Row("which questions come back", "HC", at_p, "PC", at_p, decided=True),
        Row("what old answers add", "P", at_p, "PN", at_p, decided=True),
        Row("CLIP kept", "PC", at_p, "P", at_p),
    ]
    return [row for row in found if differ or row.phrase != "at one rate"]


def differences(records: dict, row: Row, outcome=score) -> np.ndarray:
    """The outcome of the row's arm less that of the other, a number a base."""
    ones = of(records, row.world, row.arm, row.lr, row.bases)
    others = of(records, row.world, row.other, row.other_lr, row.bases)
    return np.array([outcome(one) - outcome(other) for one, other in zip(ones, others)])


def rows(records: dict, block: str) -> str:
    """Every comparison of a block, and what is decided."""
    tests = {}
    for row in comparisons(block):
        tests[row] = stats.ttest_1samp(differences(records, row), 0)
    rejected = holm({row: test.pvalue for row, test in tests.items() if row.decided})
    lines = []
    for row, test in tests.items():
        verdict = "undecided" if row.decided else "exploratory"
        if row in rejected:
            verdict = "pays" if test.statistic > 0 else "costs"
        whole, *apart = [differences(records, row, outcome) for outcome in (score, near, far)]
        ps = [f"{test.pvalue:.2g}", f"{sign_flip(whole):.2g}"]
        lines.append([row.phrase, row.pair, shown(whole), *ps, verdict, *map(shown, apart)])
    return table(["", "", "score", "p, t test", "p, sign flips", "", "near", "far"], lines)


def rival(records: dict, block: str) -> str:
    """On questions chosen beforehand: step 60, less step 120 of R0, at equal tokens generated."""
    rivals = of(records, "rival", "R0", RATES["R0"], SHORT)
    plain = of(records, "default", "R0", RATES["R0"], SHORT)
    cells = []
    for name in ("near", "far"):
        gains = [curve(one, name)[3] - curve(other, name)[-1] for one, other in zip(rivals, plain)]
        cells.append(shown(np.array(gains)))
    return table(["the rival's step 60 less R0's step 120", "near", "far"], [["", *cells]])
