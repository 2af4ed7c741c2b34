"""What the records say: the tables of studies/README.md, in Markdown.

Scores are shares of right answers, 0 to 1; differences are in points, hundredths of that.
"""

from itertools import chain
from typing import NamedTuple

import numpy as np
from scipy import stats

from studies.arms import BLOCKS, CHOOSING, MIXES, RATED, RATES, STEPS, Run
from tools.compare import table

LEVEL = 0.05  # of the four decided rows together
NEAR_ENOUGH = 0.02  # of the best mean score: the lowest such rate is chosen
POINTS = np.arange(0, STEPS + 1, 20)  # the steps of a curve
Groups = dict[tuple, list[dict]]  # world, arm and rate -> a record of each base


def complete(records: dict[Run, dict]) -> dict[str, Groups]:
    """The groups of every block of which each run has a record."""
    blocks = {}
    for name, runs in BLOCKS.items():
        wanted = runs()
        if wanted and all(run in records for run in wanted):
            blocks[name] = {}
            for run in wanted:
                blocks[name].setdefault(run[:3], []).append(records[run])
    return blocks


def report(blocks: dict[str, Groups]) -> str:
    """The tables of every block that is complete."""
    tables = {
        "gates": [gates],
        "rates": [outcomes, chosen],
        "main": [outcomes, compared],
        "worlds": [outcomes, compared],
        "rival": [outcomes],
    }
    parts = []
    for name in BLOCKS:
        if name in blocks:
            parts += [part(blocks[name]) for part in tables[name]]
        else:
            parts.append(f"{name}: not complete, so nothing of it is shown")
    if "main" in blocks and "rival" in blocks:
        parts.append(rival(blocks["main"] | blocks["rival"]))
    return "\n\n".join(parts)


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


def steps_until(record: dict, level: float = 0.8) -> int:
    """The first of POINTS with a test Pass@1 of at least `level`, else the last of all."""
    return next((n for n, one in zip(POINTS, curve(record, "near")) if one >= level), STEPS)


OUTCOMES = {  # head of a column -> what of a record stands in it
    "near": near,
    "far": far,
    "score": score,
    "near, end": lambda record: record["near"][-1],
    "far, end": lambda record: record["far"][-1],
    "steps until 0.8": steps_until,
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
    """As tables show shares, and in as many characters what is larger."""
    return [f"{figure:.3f}"[:5] for figure in figures]


def shown(values: np.ndarray) -> str:
    """Mean and 95% interval, in points."""
    low, high = interval(100 * values)
    return f"{100 * values.mean():+.1f} [{low:+.1f}, {high:+.1f}]"


# ---- tables --------------------------------------------------------------------------------------


def outcomes(groups: Groups) -> str:
    """Of each group the mean of every outcome over its bases."""
    lines = []
    for (world, arm, lr), group in groups.items():
        means = [np.mean([outcome(record) for record in group]) for outcome in OUTCOMES.values()]
        lines.append([world, arm, f"{lr:g}", *three_digits(means)])
    return table(["questions", "arm", "rate", *OUTCOMES], lines)


def choice(groups: Groups, arm: str, bases: slice = slice(None)) -> float:
    """The lowest rate whose mean score over the bases is near enough to the best."""
    means = {}
    for lr in RATED[arm]:
        means[lr] = np.mean([score(record) for record in groups["default", arm, lr][bases]])
    enough = max(means.values()) - NEAR_ENOUGH
    return min(lr for lr in means if means[lr] >= enough)


def chosen(groups: Groups) -> str:
    """The chosen rates, and those that each base alone would have chosen."""
    lines = []
    for arm in RATED:
        alone = [f"{choice(groups, arm, slice(i, i + 1)):g}" for i in range(len(CHOOSING))]
        lines.append([arm, f"{choice(groups, arm):g}", ", ".join(alone)])
    return table(["arm", "chosen rate", "by each base alone"], lines)


def gates(groups: Groups) -> str:
    """Is there something to learn, and is it learned honestly?"""
    lines = []
    for record in chain(*zip(*groups.values())):  # both arms of a base, one after the other
        figures = [
            record["near"][0],
            record["silent_first"],
            np.subtract(record["near"], record["valid"]).max(),
            record["near"][-1],
            curve(record, "far")[-3:].mean(),
            max(record["cut"] + record["cut_far"]),
        ]
        replay_from = str(record["replay_from"] or "–")
        lines.append([str(record["base"]), record["arm"], *three_digits(figures), replay_from])
    head = ["base", "arm", "before", "silent at first", "right but invalid, most", "end"]
    return table([*head, "far, from step 80", "cut, most", "replay from step"], lines)


# ---- comparisons ---------------------------------------------------------------------------------


class Row(NamedTuple):
    """A comparison: the group `one` less the group `other`."""

    phrase: str
    one: tuple
    other: tuple
    decided: bool = False  # one of the four of the protocol

    @property
    def pair(self) -> str:
        """As tables and pictures name it."""
        return " − ".join(f"{arm} {lr:g}" for _, arm, lr in (self.one, self.other))


def comparisons(groups: Groups) -> list[Row]:
    """Those of blocks 2 and 3 whose groups are there; four are decided."""
    own = {arm: ("default", arm, lr) for arm, lr in RATES.items()}
    at_p = {arm: ("default", arm, RATES["P"]) for arm in ("R0", "P", "PC", "HC", "PN")}
    differ = own["R0"] != at_p["R0"]
    rows = [Row("does ExGRPO pay?", own["P"], own["R0"], decided=True)]
    if differ:
        rows.append(Row("at one rate", at_p["P"], at_p["R0"], decided=True))
    rows += [
        Row("rarely solved ones", own["HC"], own["R0"], decided=not differ),
        Row("which questions come back", at_p["HC"], at_p["PC"], decided=True),
        Row("what old answers add", at_p["P"], at_p["PN"], decided=True),
        Row("CLIP kept", at_p["PC"], at_p["P"]),
    ]
    for world in MIXES:
        for arm in ("P", "HC"):
            rows.append(Row(f"{world} questions", (world, arm, 3e-4), (world, "R0", 3e-4)))
    return [row for row in rows if row.one in groups]


def differences(groups: Groups, row: Row, outcome=score) -> np.ndarray:
    """The outcome of the row's one group less that of the other, a number a base."""
    pairs = zip(groups[row.one], groups[row.other], strict=True)
    return np.array([outcome(one) - outcome(other) for one, other in pairs])


def compared(groups: Groups) -> str:
    """A line for each comparison, and what is decided."""
    rows = comparisons(groups)
    tests = {row: stats.ttest_1samp(differences(groups, row), 0) for row in rows}
    rejected = holm({row: test.pvalue for row, test in tests.items() if row.decided})
    lines = []
    for row, test in tests.items():
        verdict = "undecided" if row.decided else "exploratory"
        if row in rejected:
            verdict = "pays" if test.statistic > 0 else "costs"
        whole, *apart = [differences(groups, row, outcome) for outcome in (score, near, far)]
        ps = [f"{test.pvalue:.2g}", f"{sign_flip(whole):.2g}"]
        lines.append([row.phrase, row.pair, shown(whole), *ps, verdict, *map(shown, apart)])
    return table(["", "", "score", "p, t test", "p, sign flips", "", "near", "far"], lines)


def rival(groups: Groups) -> str:
    """On questions chosen beforehand: step 60, less step 120 of R0, at equal tokens generated."""
    rate = RATES["R0"]
    cells = []
    for name in ("near", "far"):
        # R0 ran on six bases more, which come last.
        pairs = zip(groups["rival", "R0", rate], groups["default", "R0", rate])
        gains = [curve(one, name)[3] - curve(other, name)[-1] for one, other in pairs]
        cells.append(shown(np.array(gains)))
    return table(["the rival's step 60 less R0's step 120", "near", "far"], [["", *cells]])
