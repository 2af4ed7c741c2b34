"""From runs to numbers: learning curves, intervals over seeds, and the rule of the verdict.

Stated before any run was made:
- a run's **score** is the mean height of its validation curve (Pass@1 at temperature 0.6) from step 0 to the last step, by
  the trapezium rule: an end point alone says little where the built-in world is almost solved at the end;
- a claim is put as a number per seed that is positive where it holds, usually the difference of two runs with that seed;
- **verdict**: with the 95 % t interval of the mean of those numbers, `agrees` if all of it is above 0, `disagrees` if
  all of it is below 0, else `open`.
"""

from collections.abc import Sequence

import numpy as np

T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)  # quantiles of Student's t, 1 to 9 degrees of freedom
IN, OOD = "val/pass_at_1/arithmetic", "val/pass_at_1/arithmetic-ood"
WORK = ("plan", "rollout", "collect", "update", "sync")  # the phases that training needs; validating and saving do not count


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half width of its 95 % t interval; ValueError with fewer than 2 values or more than 10."""
    if not 2 <= len(values) <= len(T_975) + 1:
        raise ValueError(f"an interval needs 2 to {len(T_975) + 1} seeds, got {len(values)}")
    error = np.std(values, ddof=1) / np.sqrt(len(values))
    return float(np.mean(values)), float(T_975[len(values) - 2] * error)


def verdict(values: Sequence[float]) -> str:
    """agrees, disagrees or open: see above. A number that is not finite leaves it open."""
    mean, half = interval(values)
    if mean - half > 0:
        return "agrees"
    return "disagrees" if mean + half < 0 else "open"


def pairs(a: Sequence[float], b: Sequence[float]) -> list[float]:
    """a - b, seed by seed."""
    return [x - y for x, y in zip(a, b, strict=True)]


# ---------------------------------------------------------------- curves of one run


def curve(rows: list[dict], metric: str) -> tuple[np.ndarray, np.ndarray]:
    """(steps, values) of the rows that have the metric."""
    points = [(row["step"], row[metric]) for row in rows if metric in row]
    steps, values = zip(*points)
    return np.array(steps, dtype=float), np.array(values, dtype=float)


def spent(rows: list[dict], what: str) -> np.ndarray:
    """What was spent up to each row: "tokens" generated in training, or "seconds" of it."""
    if what == "tokens":
        return np.cumsum([row.get("rollout/tokens", 0) for row in rows])
    return np.cumsum([sum(row.get(f"time/{phase}", 0.0) for phase in WORK) for row in rows])


def mean_height(x: np.ndarray, y: np.ndarray, end: float) -> float:
    """Mean of the piecewise linear curve through (x, y) from x[0] to `end`; beyond the last point it stays level."""
    inside = x < end
    xs = np.append(x[inside], end)
    ys = np.append(y[inside], np.interp(end, x, y))
    return float(np.trapezoid(ys, xs) / (end - x[0]))


def score(rows: list[dict], steps: int, metric: str = IN) -> float:
    """The mean height of a curve over `steps` steps; a run that ended early, all questions retired, stays where it was."""
    return mean_height(*curve(rows, metric), steps)


def end(rows: list[dict], metric: str = IN, points: int = 3) -> float:
    """The mean of the last three validations."""
    return float(curve(rows, metric)[1][-points:].mean())


def mean_over(rows: list[dict], metric: str, first: float = 0.0, last: float = 1.0) -> float:
    """The mean of a training metric over a stretch of the run, given as shares of it."""
    values = curve(rows, metric)[1]
    return float(values[round(first * len(values)) : max(1, round(last * len(values)))].mean())


def at_equal(what: str, a: list[dict], b: list[dict], metric: str = IN) -> float:
    """Difference of two runs' mean heights over what both of them spent, of tokens or of seconds."""
    sides = []
    for rows in (a, b):
        known = [metric in row for row in rows]
        sides.append((spent(rows, what)[known], np.array([row[metric] for row in rows if metric in row])))
    limit = min(x[-1] for x, _ in sides)
    return mean_height(*sides[0], limit) - mean_height(*sides[1], limit)
