"""From records to numbers: the end of a run, intervals over units, and the rule that decides a row.

A record is what `jobs.py` keeps of a run: `rows` of metrics.jsonl, and a `result` with the right responses to
every validation question at the last three checkpoints. All shares are in 0..1; 0.01 is one point.
"""

from collections.abc import Sequence

import mpmath
import numpy as np

EQUAL = 0.03  # half of the band within which two arms are called equal; the paper's own gain is 0.035
ESCAPED = 0.1  # Pass@1 at the end above which a weak base has escaped


# ---- one run ----------------------------------------------------------------------------------------------


def end(record: dict, held_out: Sequence[str], where: str = "trained", counted: str = "ends") -> float:
    """Pass@1 at the end: the mean over the last three checkpoints, and over the questions of all sources; the
    share of valid chains where `counted` is "valid"."""
    per_step = []
    for sources in record["result"][counted].values():
        right = [n for source, counts in sources.items() if (source in held_out) == (where == "held out")
                 for n in counts]
        per_step.append(np.mean(right) / record["result"]["samples"])
    return float(np.mean(per_step))


def within_question_auc(columns: dict[str, list]) -> tuple[float, int]:
    """How well low entropy tells valid from flawed among the right responses to one question, less 0.5 (nan
    where there is no pair), and the number of pairs.

    The chance that a flawed one has more than a valid one (ties count half), over all such pairs of every
    question that has both.
    """
    c = {name: np.array(values) for name, values in columns.items()}
    above, pairs = 0.0, 0
    for question in np.unique(c["question"]):
        right = (c["question"] == question) & (c["reward"] > 0.5)
        valid, flawed = (c["entropy"][right & (c["valid"] == kind)] for kind in (1, 0))
        difference = flawed[:, None] - valid[None, :]
        above += (difference > 0).sum() + 0.5 * (difference == 0).sum()
        pairs += difference.size
    return (float(above / pairs - 0.5) if pairs else float("nan")), pairs


def mean_of(record: dict, metric: str) -> float:
    """The mean of a training metric over the steps of a run that have it; nan where none has."""
    values = [row[metric] for row in record["rows"] if row.get(metric) is not None]
    return float(np.mean(values)) if values else float("nan")


def restated(record: dict) -> float:
    """Of the right responses to fresh questions the share that only restates, in the last quarter of the
    steps; nan where nothing is right."""
    rows = [row for row in record["rows"] if "snowball/right" in row]
    last = rows[-max(1, len(rows) // 4) :]
    right, said = (sum(row[f"snowball/{name}"] for row in last) for name in ("right", "restated"))
    return said / right if right else float("nan")


# ---- several units ----------------------------------------------------------------------------------------


def t_quantile(p: float, df: int) -> float:
    """Quantile of Student's t: the x below which a share p of it lies, 0.5 < p < 1."""
    return float(mpmath.findroot(lambda x: _upper_tail(x, df) - (1 - p), 2.0))


def p_value(values: Sequence[float]) -> float:
    """Two-sided p of a t test of mean 0; where all values are alike 1.0 if they are 0, else 0.0."""
    mean, spread = np.mean(values), np.std(values, ddof=1)
    if not spread:
        return float(not mean)
    t = abs(mean) * np.sqrt(len(values)) / spread
    return float(2 * _upper_tail(t, len(values) - 1))


def _upper_tail(t: float, df: int):
    return mpmath.betainc(df / 2, 0.5, 0, df / (df + t * t), regularized=True) / 2


def half_width(values: Sequence[float], level: float = 0.95) -> float:
    """Of the t interval of the mean; ValueError for fewer than two values."""
    if len(values) < 2:
        raise ValueError(f"an interval needs two units, got {len(values)}")
    error = np.std(values, ddof=1) / np.sqrt(len(values))
    return float(t_quantile(0.5 + level / 2, len(values) - 1) * error)


def holm_levels(rows: Sequence[Sequence[float]]) -> list[float]:
    """Holm's levels of the 95% intervals of several rows: a row is decided if its interval excludes 0.

    The row with the smallest p of m stands at 1 - 0.05/m, the next at 1 - 0.05/(m - 1) if that one was
    decided, and so on; after one that was not, the level stays.
    """
    levels, left, decided = [0.0] * len(rows), len(rows), True
    for i in sorted(range(len(rows)), key=lambda i: p_value(rows[i])):
        levels[i] = 1 - 0.05 / left
        decided = decided and p_value(rows[i]) < 0.05 / left
        left -= decided
    return levels


def verdict(values: Sequence[float], level: float) -> str:
    """better, worse, equal within 3 points, or undecided: the rule of PROTOCOL.md."""
    mean, half = np.mean(values), half_width(values, level)
    if mean - half > 0:
        return "better"
    if mean + half < 0:
        return "worse"
    narrow = half_width(values, 0.90)
    return "equal within 3 points" if abs(mean) + narrow < EQUAL else "undecided"
