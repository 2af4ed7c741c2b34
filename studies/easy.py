"""What the first studies found on the `easy` world, as far as it could show it: `python -m studies easy`.

Three run seeds on one base model, by the first edition of the code. A run's score is the mean height of its
validation curve, which has 13 points. The records are in results/easy/; rows that held by construction, or
asked for something that could not act there, are gone (README.md says which).
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from studies import records
from studies.measures import half_width

EASY = Path(__file__).parent / "results" / "easy"
IN, OOD = "val/pass_at_1/arithmetic", "val/pass_at_1/arithmetic-ood"
BUCKETS = {"Easy": (0.75, 1.0), "Medium": (0.25, 0.75), "Hard": (0.0, 0.25)}  # of k/K, as in Sec. 3.2


def height(run: str, seed: int, metric: str = IN) -> float:
    """The mean of a validation curve over the run, by the trapezium rule."""
    points = [(row["step"], row[metric]) for row in _read(run, seed)["rows"] if metric in row]
    steps, values = np.array(points).T
    return float(np.trapezoid(values, steps) / (steps[-1] - steps[0]))


def last(run: str, seed: int, metric: str = IN) -> float:
    """The mean of the last three validations."""
    return float(np.mean([row[metric] for row in _read(run, seed)["rows"] if metric in row][-3:]))


def smallest_gap(samples: str, seed: int, shortcuts: bool) -> float:
    """Mean entropy of flawed minus valid chains among right answers: the smallest of the three buckets."""
    c = _columns(samples, seed)
    kept = (c["reward"] > 0.5) & (shortcuts | (c["shortcut"] == 0))
    gaps = []
    for low, high in BUCKETS.values():
        rate = c["k"] / 8
        inside = kept & ((rate >= low) if low == 0.75 else (rate > low)) & ((rate <= high) if not low
                                                                           else (rate < high))
        flawed, valid = (c["entropy"][inside & (c["valid"] == kind)] for kind in (0, 1))
        gaps.append(flawed.mean() - valid.mean())
    return float(min(gaps))


def chosen(samples: str, seed: int, against: str) -> float:
    """Share of valid chains among what lowest mean entropy chooses, less that of `official` or `random`.

    Chosen among the distinct right responses to a question that has two or more and is not always right.
    """
    c, gained = _columns(samples, seed), []
    for question in np.unique(c["question"][(c["k"] > 0) & (c["k"] < 8)]):
        rows = np.flatnonzero((c["question"] == question) & (c["reward"] > 0.5))
        same = np.stack([c[name][rows] for name in ("length", "entropy", "nll")], 1)
        rows = rows[np.unique(same, axis=0, return_index=True)[1]]
        if len(rows) > 1:
            valid, entropy = c["valid"][rows], c["entropy"][rows]
            other = valid.mean() if against == "random" else valid[np.argmin(entropy * c["length"][rows])]
            gained.append(valid[np.argmin(entropy)] - other)
    return float(np.mean(gained))


def _read(name: str, seed: int) -> dict:
    return records.read(EASY / f"{name}-{seed}.json.gz")


def _columns(name: str, seed: int) -> dict[str, np.ndarray]:
    columns = _read(name, seed)["result"]["columns"]
    return {column: np.array(values) for column, values in columns.items()}


def less(a: str, b: str, metric: str = IN, of: Callable = height) -> Callable[[int], float]:
    """The difference of two runs of a seed, the first less the second."""
    return lambda seed: of(a, seed, metric) - of(b, seed, metric)


ROWS = {  # what is compared -> its number for a seed
    "ExGRPO − on-policy": less("exgrpo", "on_policy"),
    "the same out of distribution": less("exgrpo", "on_policy", OOD),
    "ExGRPO − on-policy at the end": less("exgrpo", "on_policy", of=last),
    "the same out of distribution, at the end": less("exgrpo", "on_policy", OOD, last),
    "Medium questions only − Easy only": less("medium", "easy"),
    "Medium questions only − Hard only": less("medium", "hard"),
    "the full set − Medium only": less("on_policy", "medium"),
    "found by looking: μ = 0.25 − μ = 0.5": less("mu_25", "exgrpo"),
    "found by looking: μ = 0.25 − on-policy": less("mu_25", "on_policy"),
    "found by looking: the same out of distribution": less("mu_25", "on_policy", OOD),
    "bfloat16 − float32": less("bfloat16", "exgrpo"),
    "valid chains have lower entropy in every bucket, base model (smallest gap, nats)":
        lambda seed: smallest_gap("base", seed, shortcuts=True),
    "the same without bare answers (nats)": lambda seed: smallest_gap("base", seed, shortcuts=False),
    "lowest entropy chooses valid chains more often than chance":
        lambda seed: chosen("early", seed, "random"),
    "and more often than the official code's rule": lambda seed: chosen("early", seed, "official"),
}


def table() -> str:
    """Markdown: every row with the mean and the 95% t interval over three run seeds, in points."""
    lines = ["| easy world, three run seeds on one base model | points, mean ± 95% |", "|---|---|"]
    for text, number in ROWS.items():
        values = [number(seed) for seed in range(3)]
        scale, digits = (1, 3) if "nats" in text else (100, 1)
        mean, half = scale * np.mean(values), scale * half_width(values)
        lines.append(f"| {text} | {mean:+.{digits}f} ± {half:.{digits}f} |")
    return "\n".join(lines) + "\n"
