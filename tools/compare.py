"""Print by how much one model, or one set of runs, is better than another on the same questions.

    python -m tools.compare runs/before runs/after
    python -m tools.compare runs/rho0-?/eval --against runs/rho0.5-?/eval

A directory is one that `eval.py --output DIR` wrote. For each data_source the table has Pass@1 and
the mean reward of both, and their difference with Student's 95% interval. The responses to one
question are alike, so only questions that both were asked count, and differences are taken question
by question. With one evaluation on each side the interval is over the questions: it says nothing of
how another training run would end. With several the runs are paired by their seed, and the interval
is over the pairs.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import tyro
from scipy.stats import ttest_1samp
from tyro.conf import Positional

from runtime.tables import read_jsonl


def read_evaluation(directory: Path) -> dict:
    """{data_source: {question: [(success, reward) of a sample]}} of an evaluation."""
    samples = defaultdict(lambda: defaultdict(list))
    for record in read_jsonl(directory / "responses.jsonl"):
        of_question = samples[record["source"]][record["text"], record["gold"]]
        of_question.append((record["success"], record["reward"]))
    return samples


def seed_of(directory: Path) -> int:
    """The seed of the run whose model was evaluated; the end, with a sentence, where none is."""
    model = json.loads((directory / "scores.json").read_text())["model"]
    for place in Path(model).parents:
        knobs = place / "config.json"
        if knobs.is_file():
            return json.loads(knobs.read_text())["seed"]
    sys.exit(f"{directory}: no config.json of a run, with its seed to pair it by, is above {model}")


def pair(runs: tuple[Path, ...], against: tuple[Path, ...]) -> list[tuple[Path, Path]]:
    """The pairs of evaluations whose runs have the same seed; every run must have one partner."""
    seeds = [seed_of(run) for run in runs]
    others = [seed_of(run) for run in against]
    if not sorted(seeds) == sorted(others) == sorted(set(seeds)):
        sys.exit(f"runs are paired by seed, but seeds {seeds} and {others} make no pairs")
    return [(run, against[others.index(seed)]) for run, seed in zip(runs, seeds)]


def difference(gains: np.ndarray) -> str:
    """The mean of paired differences (N,), with Student's 95% interval."""
    mean = f"{gains.mean():+.3f}"
    if np.ptp(gains) < 1e-9:  # equal ones may be a rounding apart
        return f"{mean} (the same in all {len(gains)}, so without an interval)"
    low, high = ttest_1samp(gains, 0).confidence_interval()
    return f"{mean} ({low:+.3f} to {high:+.3f})"


def compare(runs: Positional[tuple[Path, ...]], against: tuple[Path, ...] = ()) -> None:
    """Print by how much one model, or one set of runs, is better than another.

    Args:
        runs: directories that eval.py --output wrote; without --against two of them
        against: the directories of a second set of runs
    """
    pairs = pair(runs, against) if against else [runs]
    unit = "pairs of runs with equal seeds" if against else "questions"
    print(f"| source | measure | first | second | second - first (95% interval) | {unit} |")
    print("| --- | --- | --- | --- | --- | --- |")
    evaluations = [[read_evaluation(run) for run in both] for both in pairs]
    for source in sorted(evaluations[0][0]):
        means = []
        for one, other in evaluations:
            first = one[source]
            second = other[source]
            shared = sorted(first.keys() & second.keys())
            assert shared, f"{source}: two evaluations have no question in common"
            values = [[np.mean(first[q], axis=0), np.mean(second[q], axis=0)] for q in shared]
            means.append(np.mean(values, axis=0))
        table = np.array(means if against else values)  # (runs or questions, 2, measures)
        for i, measure in enumerate(("Pass@1", "mean reward")):
            before, after = table[:, :, i].T
            gain = difference(after - before)
            print(
                f"| {source} | {measure} | {before.mean():.3f} | {after.mean():.3f} | {gain}"
                f" | {len(table)} |"
            )


if __name__ == "__main__":
    tyro.cli(compare)
