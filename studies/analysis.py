"""What the records say: the tables of studies/README.md, in Markdown.

Scores are shares of right answers, 0 to 1; differences are in points, hundredths of that.
"""

import numpy as np
from scipy import stats

from studies.arms import BLOCKS, CHOOSING, RATED, ROWS, STEPS, Row, Run
from tools.compare import table

LEVEL = 0.05  # of the four decided rows together
NEAR_ENOUGH = 0.02  # of the best mean score: the lowest such rate is chosen
POINTS = np.arange(0, STEPS + 1, 20)  # the steps of a curve
Groups = dict[tuple, list[dict]]  # world, arm and rate -> a record of each base


def grouped(records: dict[Run, dict]) -> dict[str, Groups]:
    """The groups of each block."""
    blocks = {}
    for name, (groups, bases) in BLOCKS.items():
        blocks[name] = {group: [records[Run(base, *group)] for base in bases] for group in groups}
    return blocks


def report(blocks: dict[str, Groups]) -> str:
    """All tables."""
    parts = [gates(blocks["rates"]), chosen(blocks["rates"])]
    parts += [outcomes(groups) for groups in blocks.values()]
    parts.append(compared(blocks["main"], ROWS))
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


def steps_until(record: dict) -> int:
    """The first of POINTS with a test Pass@1 of at least 0.8, else the last of all."""
    return next((n for n, one in zip(POINTS, curve(record, "near")) if one >= 0.8), STEPS)


OUTCOMES = {  # head of a column -> what of a record stands in it
    "near": near,
    "far": far,
    "score": score,
    "near, end": lambda record: record["near"][-1],
    "far, end": lambda record: record["far"][-1],
    "steps until 0.8": steps_until,
    "million tokens": lambda record: record["tokens"] / 1e6,
    "silent": lambda record: record["silent"],
}
COMPARED = ("score", "near", "far", "near, end", "far, end")
GATES = {
    "before": lambda record: record["near"][0],
    "silent at first": lambda record: record["silent_first"],
    "right but invalid, most": lambda record: np.subtract(record["near"], record["valid"]).max(),
    "end": OUTCOMES["near, end"],
    "far, from step 80": lambda record: curve(record, "far")[-3:].mean(),
    "cut, most": lambda record: max(record["cut"] + record["cut_far"]),
}


# ---- statistics ----------------------------------------------------------------------------------


def interval(values: np.ndarray) -> tuple[float, float]:
    """The 95% interval of the mean, by Student's t over bases."""
    return stats.ttest_1samp(values, 0).confidence_interval()


def sign_flip(values: np.ndarray) -> float:
    """The exact p: of all ways to flip signs, the share with as large a mean, either way."""
    return stats.permutation_test(
        [values], np.mean, permutation_type="samples", n_resamples=np.inf
    ).pvalue


def holm(ps: dict) -> list:
    """Which of these hypotheses are rejected: the smallest p first, until one is too large."""
    rejected = []
    for name in sorted(ps, key=ps.get):
        if ps[name] > LEVEL / (len(ps) - len(rejected)):
            break
        rejected.append(name)
    return rejected


def shown(values: np.ndarray) -> str:
    """Mean and 95% interval, in points."""
    low, high = interval(100 * values)
    return f"{100 * values.mean():+.1f} [{low:+.1f}, {high:+.1f}]"


# ---- tables --------------------------------------------------------------------------------------


def means(group: list[dict], columns: dict) -> list[str]:
    """The mean of each column, in five characters: 0.123, 12.34, 120.0."""
    return [f"{np.mean([column(one) for one in group]):.3f}"[:5] for column in columns.values()]


def outcomes(groups: Groups) -> str:
    """Of each group the mean of every outcome over its bases."""
    lines = []
    for (world, arm, lr), group in groups.items():
        lines.append([world, arm, f"{lr:g}", str(len(group)), *means(group, OUTCOMES)])
    return table(["questions", "arm", "rate", "bases", *OUTCOMES], lines)


def choice(tried: dict[float, list[dict]]) -> float:
    """Of {rate: records} the lowest rate whose mean score is near enough to the best."""
    means = {lr: np.mean([score(one) for one in group]) for lr, group in tried.items()}
    enough = max(means.values()) - NEAR_ENOUGH
    return min(lr for lr in means if means[lr] >= enough)


def chosen(groups: Groups) -> str:
    """The chosen rates, and those that each base alone would have chosen."""
    lines = []
    for arm, grid in RATED.items():
        tried = {lr: groups["default", arm, lr] for lr in grid}
        alone = []
        for i in range(len(CHOOSING)):
            of_one = choice({lr: [group[i]] for lr, group in tried.items()})
            alone.append(f"{of_one:g}")
        lines.append([arm, f"{choice(tried):g}", ", ".join(alone)])
    return table(["arm", "chosen rate", "by each base alone"], lines)


def gates(groups: Groups) -> str:
    """Is there something to learn, and is it learned honestly?"""
    lines = []
    # The arms of docs/world.md, side by side for each base.
    for pair in zip(groups["default", "R0", 3e-4], groups["default", "P", 3e-4]):
        for record in pair:
            replay_from = str(record["replay_from"] or "–")
            lines.append([str(record["base"]), record["arm"], *means([record], GATES), replay_from])
    return table(["base", "arm", *GATES, "replay from step"], lines)


# ---- comparisons ---------------------------------------------------------------------------------


def differences(groups: Groups, row: Row, outcome=score) -> np.ndarray:
    """The outcome of the row's one group less that of the other, a number a base."""
    pairs = zip(groups[row.one], groups[row.other], strict=True)
    return np.array([outcome(one) - outcome(other) for one, other in pairs])


def compared(groups: Groups, rows: list[Row]) -> str:
    """A line for each comparison, and what is decided."""
    ps = {row: stats.ttest_1samp(differences(groups, row), 0).pvalue for row in rows if row.decided}
    rejected = holm(ps)
    lines = []
    for row in rows:
        found = [differences(groups, row, OUTCOMES[name]) for name in COMPARED]
        verdict = ["exploratory", "", ""]
        if row in ps:
            decided = "decided" if row in rejected else "undecided"
            verdict = [decided, f"{ps[row]:.3g}", f"{sign_flip(found[0]):.3g}"]
        lines.append([row.phrase, row.pair, *map(shown, found), *verdict])
    return table(["", "", *COMPARED, "", "p, t test", "p, sign flips"], lines)
