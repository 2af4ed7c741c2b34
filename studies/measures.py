"""From runs to numbers: learning curves, intervals over seeds, and the rule that decides a claim.

Stated before any run was made:
- a run's **score** is the mean height of its validation curve (Pass@1 at temperature 0.6) from step 0 to the
  last, by the trapezium rule: an end point alone says little where the world is almost solved at the end. The
  code calls it `height`, since a score is many things elsewhere;
- a claim is put as a number per seed that is positive where it holds, usually the difference of two runs;
- **verdict**: with the 95 % t interval of the mean of those numbers, `agrees` if all of it is above 0,
  `disagrees` if all of it is below 0, else `open`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from studies.jobs import RUNS, Budget, Job
from studies.responses import columns
from worlds.arithmetic import World

# quantiles of Student's t, 1 to 9 degrees of freedom
T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
IN, OOD = "val/pass_at_1/arithmetic", "val/pass_at_1/arithmetic-ood"
WORK = ("plan", "rollout", "collect", "update",
        "sync")  # what training needs; validating and saving do not count


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half width of its 95 % t interval; ValueError with fewer than 2 values or more than 10."""
    if not 2 <= len(values) <= len(T_975) + 1:
        raise ValueError(f"an interval needs 2 to {len(T_975) + 1} seeds, got {len(values)}")
    error = np.std(values, ddof=1) / np.sqrt(len(values))
    return float(np.mean(values)), float(T_975[len(values) - 2] * error)


def decision(values: Sequence[float]) -> str:
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
    """Mean of the piecewise linear curve through (x, y) from x[0] to `end`; level beyond the last point."""
    inside = x < end
    xs = np.append(x[inside], end)
    ys = np.append(y[inside], np.interp(end, x, y))
    return float(np.trapezoid(ys, xs) / (end - x[0]))


def height(rows: list[dict], steps: int, metric: str = IN) -> float:
    """The mean height of a curve over `steps` steps; a run that ended early, all retired, stays level."""
    return mean_height(*curve(rows, metric), steps)


def end(rows: list[dict], metric: str = IN) -> float:
    """The mean of the last three validations."""
    return float(curve(rows, metric)[1][-3:].mean())


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


# ---------------------------------------------------------------- runs of several seeds


@dataclass
class Data:
    """The finished jobs of a study, seed by seed, each read once."""

    seeds: int
    budget: Budget
    _read: dict = field(default_factory=dict, repr=False)

    def jobs(self, name: str, sampling: bool = False) -> list[Job]:
        return [Job(name, seed, self.budget, sampling) for seed in range(self.seeds)]

    def rows(self, name: str) -> list[list[dict]]:
        """Metrics of a run, a list per seed."""
        if name not in self._read:
            self._read[name] = [job.record()["rows"] for job in self.jobs(name)]
            self._check_base(name)
        return self._read[name]

    def _check_base(self, name: str) -> None:
        """ValueError unless runs from one base model begin alike: another machine may build another."""
        def base(run: str) -> list:
            return [RUNS[run].get(knob) for knob in ("world", "reward", "dtype")]

        alike = [run for run in RUNS if run in self._read and base(run) == base(name)]
        starts = {run: [rows[0][IN] for rows in self._read[run]] for run in alike}
        if len({start for seeds in starts.values() for start in seeds}) > 1:
            raise ValueError("runs with different base models are no pairs; they began with Pass@1 "
                             f"{starts}: make them again on one machine with --fresh")

    def samples(self, name: str) -> list[dict]:
        """Columns of a sampling pass, one per seed."""
        if ("samples", name) not in self._read:
            jobs = self.jobs(name, sampling=True)
            self._read["samples", name] = [columns(job.record()["result"]) for job in jobs]
        return self._read["samples", name]

    def heights(self, name: str, metric: str = IN) -> list[float]:
        return [height(rows, self.budget.steps, metric) for rows in self.rows(name)]

    def ends(self, name: str, metric: str = IN) -> list[float]:
        return [end(rows, metric) for rows in self.rows(name)]


# ---------------------------------------------------------------- numbers of claims, one a seed

Numbers = Callable[[Data], list[float]]


def equal(what: str, metric: str) -> Numbers:
    """ExGRPO against on-policy over what both have spent."""
    def numbers(data: Data) -> list[float]:
        return [at_equal(what, a, b, metric) for a, b in zip(data.rows("exgrpo"), data.rows("on_policy"))]

    return numbers


def of_samples(name: str, function: Callable[..., float], **options) -> Numbers:
    """A number of each sampling pass."""
    return lambda data: [function(samples, **options) for samples in data.samples(name)]


def training(metric: str, a: str, b: str, first: float = 0.0, last: float = 1.0) -> Numbers:
    """Difference of two runs' means of a training metric over a stretch of the run."""
    def means(data: Data, name: str) -> list[float]:
        return [mean_over(rows, metric, first, last) for rows in data.rows(name)]

    return lambda data: pairs(means(data, a), means(data, b))


def gained(name: str) -> Numbers:
    """What a run gains from the start to the end, less 5 points: below that it is a stall."""
    return lambda data: [end(rows) - curve(rows, IN)[1][0] - 0.05 for rows in data.rows(name)]


def negative(numbers: Numbers) -> Numbers:
    return lambda data: [-n for n in numbers(data)]


def unharmed(metric: str) -> Numbers:
    """0.02 plus what a run in bfloat16 reaches above one in float32."""
    def numbers(data: Data) -> list[float]:
        return [0.02 + d for d in pairs(data.heights("bfloat16", metric), data.heights("exgrpo", metric))]

    return numbers


def seen(data: Data) -> list[float]:
    """Buffered and retired questions at the end, as a share of all: its distance inside [1/3, 2/3]."""
    names, shares = ("buckets/questions", "buckets/retired"), []
    for rows in data.rows("exgrpo"):
        share = sum(curve(rows, name)[1][-1] for name in names) / World.train_size
        shares.append(min(share - 1 / 3, 2 / 3 - share))
    return shares
