"""What the records say: the tables of studies/README.md, in Markdown.

Scores are shares of right answers, 0 to 1; differences are in points, hundredths of that.
"""

import numpy as np
from scipy import stats

from studies.arms import GRID, RATES, STEPS, Row, Run
from tools.compare import table

LEVEL = 0.05  # of the four decided rows together
NEAR_ENOUGH = 0.02  # of the best mean score: the lowest such rate is chosen
Groups = dict[tuple, dict[int, dict]]  # questions, arm and rate -> {seed: record}


def grouped(records: dict[Run, dict], blocks: dict[str, tuple]) -> dict[str, Groups]:
    """The groups of each block; KeyError for a run that has no record."""
    found = {}
    for name, (groups, seeds) in blocks.items():
        found[name] = {
            group: {seed: records[Run(seed, *group)] for seed in seeds} for group in groups
        }
    return found


def report(blocks: dict[str, Groups], rows: dict[str, list[Row]]) -> str:
    """All tables of a study."""
    parts = [rates(blocks["rates"])]
    parts += [outcomes(groups) for groups in blocks.values()]
    for name, of_block in rows.items():
        groups = blocks[name]
        parts += [compared(groups, of_block), evened(groups, of_block), returned(groups)]
    return "\n\n".join(parts)


# ---- outcomes ------------------------------------------------------------------------------------


AXES = {  # along which a curve runs -> where on it each validation stands
    "steps": lambda record: record["step"],
    "tokens": lambda record: record["tokens"],
    "distinct questions that taught": lambda record: record["questions_taught"],
    "groups that taught": lambda record: np.add(record["fresh_taught"], record["returned_taught"]),
}


def mean(record: dict, name: str, axis: str = "steps", until: float = STEPS) -> float:
    """The mean of a curve over six points, here steps 20 to 120.

    A run that ended early keeps its last value.
    """
    points = np.linspace(0, until, 7)[1:]
    return np.interp(points, AXES[axis](record), record[name]).mean()


def score(record: dict, axis: str = "steps", until: float = STEPS) -> float:
    """By which rates are chosen and arms are judged: near is test Pass@1, far on longer ones."""
    return (mean(record, "near", axis, until) + mean(record, "far", axis, until)) / 2


OUTCOMES = {  # head of a column -> what of a record stands in it
    "score": score,
    "near": lambda record: mean(record, "near"),
    "far": lambda record: mean(record, "far"),
    "near, end": lambda record: record["near"][-1],
    "far, end": lambda record: record["far"][-1],
    "silent": lambda record: record["silent"],
    "last step": lambda record: record["step"][-1],
    "replay from": lambda record: record["replay_from"] or np.nan,
    "questions that taught": lambda record: record["questions_taught"][-1],
    "groups that taught": lambda record: AXES["groups that taught"](record)[-1],
}
COMPARED = ("score", "near", "far", "near, end", "far, end")


# ---- statistics ----------------------------------------------------------------------------------


def interval(values: np.ndarray) -> tuple[float, float]:
    """The 95% interval of the mean, by Student's t over seeds."""
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


def outcomes(groups: Groups) -> str:
    """Of each group the mean of every outcome over its seeds, in four digits."""
    lines = []
    for group, of in groups.items():
        means = []
        for outcome in OUTCOMES.values():
            means.append(f"{np.mean([outcome(record) for record in of.values()]):.4g}")
        lines.append([*map(str, group), str(len(of)), *means])
    return table(["questions", "arm", "rate", "seeds", *OUTCOMES], lines)


def choice(tried: dict[float, list[dict]]) -> float:
    """Of {rate: records} the lowest rate whose mean score is near enough to the best."""
    means = {lr: np.mean([score(one) for one in group]) for lr, group in tried.items()}
    enough = max(means.values()) - NEAR_ENOUGH
    return min(lr for lr in means if means[lr] >= enough)


def rates(groups: Groups) -> str:
    """The rate that each arm gets."""
    lines = []
    for arm in RATES:
        tried = {lr: groups["320", arm, lr].values() for lr in GRID}
        lines.append([arm, f"{choice(tried):g}"])
    return table(["arm", "chosen rate"], lines)


def returned(groups: Groups) -> str:
    """Of returning questions: the mean k on return, and the share of groups all right, by old k."""
    lines = []
    for group, of in groups.items():
        returns = sum(np.array(record["returns"]) for record in of.values())
        if np.any(returns):
            found = []
            for counts in (returns.sum(axis=0), *returns[1:8]):
                n = counts.sum()
                found.append(f"{counts @ range(9) / n:.1f}, {counts[8] / n:.2f}" if n else "–")
            lines.append([*map(str, group), str(returns.sum()), *found])
    heads = ["questions", "arm", "rate", "returns", "any k", *[f"k = {k}" for k in range(1, 8)]]
    return table(heads, lines)


# ---- comparisons ---------------------------------------------------------------------------------


def differences(groups: Groups, row: Row, outcome=score) -> np.ndarray:
    """The outcome of the row's one group less that of the other, a number a seed."""
    one, other = groups[row.one], groups[row.other]
    return np.array([outcome(one[seed]) - outcome(other[seed]) for seed in one])


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


def evened(groups: Groups, rows: list[Row]) -> str:
    """The same on score, along each axis as far as all arms of a seed came."""
    lines = []
    for row in rows:
        found = []
        for axis, place in AXES.items():
            values = []
            for seed in groups[row.one]:
                until = min(place(group[seed])[-1] for group in groups.values())
                one, other = [score(groups[of][seed], axis, until) for of in (row.one, row.other)]
                values.append(one - other)
            found.append(shown(np.array(values)))
        lines.append([row.phrase, row.pair, *found])
    return table(["", "", *[f"at equal {axis}" for axis in AXES]], lines)
