"""Print evaluations of several models side by side, and how much each differs from the first.

    python -m tools.compare runs/on-policy/eval runs/exgrpo/eval --label on-policy exgrpo --first 3

A directory is one that `eval.py --output DIR` wrote. The table has Pass@1 in percent with its 95%
interval, and the averages of Table 1. Below it stands how much better each model is than the first
on the questions that both were asked. The responses to one question are alike, so the paired
difference says more than two intervals do. An average that lacks a benchmark says how many it has;
such averages cannot be compared.
"""

import argparse
import json
import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from runtime.console import printable
from runtime.flags import or_refuse
from runtime.tables import read_jsonl
from worlds.benchmarks import AVERAGES, Z


@dataclass
class Evaluation:
    """What a directory holds; settings and responses are empty where only scores.json is there."""

    name: str
    scores: dict
    settings: dict
    responses: dict[str, dict]  # {data_source: {(question, gold): its records}}


def read_evaluation(directory: Path, name: str) -> Evaluation:
    """The evaluation that eval.py --output wrote; ValueError names a file that is wrong."""
    file = directory / "scores.json"
    try:
        scores = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        hint = ""
        if (directory / "metrics.jsonl").exists():
            hint = f": a run; `eval.py --model {directory}/model --output DIR` scores it"
        raise ValueError(f"{file}: {error}{hint}") from error
    if "model" not in scores:
        raise ValueError(f"{file} is no scores.json of eval.py --output")
    evaluation = Evaluation(name, scores, {}, defaultdict(lambda: defaultdict(list)))
    responses = directory / "responses.jsonl"
    if responses.exists():
        evaluation.settings = json.loads((directory / "settings.json").read_text())
        for record in read_jsonl(responses):
            evaluation.responses[record["source"]][record["text"], record["gold"]].append(record)
    for source, questions in evaluation.responses.items():
        there = sum(len(records) for records in questions.values())
        scored = scores.get(f"questions/{source}", 0) * scores.get(f"samples/{source}", 0)
        if scored and scored != there:
            raise ValueError(
                f"{file}: scores of {scored} responses of {source}, beside {there} in"
                " responses.jsonl: give the eval.py command again, with all of them"
            )
    return evaluation


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def side_by_side(evaluations: list[Evaluation]) -> str:
    """A table with a column for each evaluation, a row for each data_source and average."""
    rows = []
    known = dict.fromkeys(name for e in evaluations for name in e.scores)
    for kind in ("pass_at_1/", "average/", "reward_"):
        for name in [name for name in known if name.startswith(kind)]:
            rows.append([label(name, evaluations), *(cell(name, e.scores) for e in evaluations)])
    return table(["", *(e.name for e in evaluations)], rows)


def label(name: str, evaluations: list[Evaluation]) -> str:
    """What stands before a row: the data_source and how many responses its questions had."""
    kind, _, source = name.partition("/")
    if kind != "pass_at_1":
        return f"{source} ({kind})"
    numbers = {e.scores.get(f"samples/{source}") for e in evaluations} - {None}
    samples = "/".join(str(n) for n in sorted(numbers))
    return f"{source} (Pass@1)" if samples == "1" else f"{source} (Avg@{samples})"


def cell(name: str, scores: dict) -> str:
    """A score in percent with its interval or number of benchmarks; a dash if there is none."""
    if name not in scores:
        return "–"
    kind, _, source = name.partition("/")
    percent = f"{100 * scores[name]:.1f}"
    if kind == "pass_at_1" and f"interval/{source}" in scores:
        low, high = scores[f"interval/{source}"]
        return f"{percent} [{100 * low:.1f}, {100 * high:.1f}]"
    there = scores.get(f"average_of/{source}")
    if there and len(there) < len(AVERAGES[source]):
        return f"{percent} ({len(there)} of {len(AVERAGES[source])} benchmarks)"
    return percent


def paired(first: Evaluation, others: list[Evaluation]) -> str:
    """A table of the mean differences to the first, in points, each with its 95% interval."""
    rows = []
    for source, asked in sorted(first.responses.items()):
        rows.append([source, *(difference(asked, e.responses.get(source, {})) for e in others)])
    head = [f"minus {first.name}, in points, same questions", *(e.name for e in others)]
    return table(head, rows) if rows else ""


def difference(first: dict[tuple, list[dict]], other: dict[tuple, list[dict]]) -> str:
    """The mean difference in the share of right responses, in points, with its 95% interval.

    The mean is over the questions that both were asked, the interval ± 1.96 standard errors. It is
    left out where all questions have the same difference.
    """
    gains = []
    for question in first:
        if question in other:
            before, after = (np.mean([r["success"] for r in of[question]]) for of in (first, other))
            gains.append(100 * (after - before))
    if len(gains) < 2:
        return "– (fewer than two questions of both)"
    mean = np.mean(gains)
    error = Z * np.std(gains, ddof=1) / math.sqrt(len(gains))
    if error < 1e-7:  # equal ones may be a rounding apart, as 2/3 - 1/3 and 1/3 - 0
        return f"{mean:+.1f} (of each of {len(gains)}, so without an interval)"
    return f"{mean:+.1f} [{mean - error:+.1f}, {mean + error:+.1f}] of {len(gains)}"


def settings(evaluations: list[Evaluation]) -> str:
    """A line for each setting in which the evaluations differ, the model apart."""
    lines = []
    for knob in dict.fromkeys(knob for e in evaluations for knob in e.settings):
        values = [repr(e.settings.get(knob)) for e in evaluations]
        if knob not in ("model", "files") and len(set(values)) > 1:
            shown = [f"{value} ({e.name})" for value, e in zip(values, evaluations)]
            lines.append(f"{knob} differs: {', '.join(shown)}")
    return "\n".join(lines)


def answers(evaluations: list[Evaluation], n: int) -> str:
    """The first n questions that all were asked, with gold answer and each model's response.

    A model's response is its first one to the question.
    """
    asked = [
        (source, question) for source, of in evaluations[0].responses.items() for question in of
    ]
    lines = []
    for source, question in asked:
        found = [e.responses.get(source, {}).get(question) for e in evaluations]
        if n > 0 and all(found):
            n -= 1
            lines.append(f"---- {question[0]}  [{question[1]}]")
            for e, (record, *_) in zip(evaluations, found):
                verdict = "right" if record["success"] else "wrong"
                lines.append(f"{e.name}, {verdict}: {record['response']}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> None:
    """Print the comparison of the directories on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directories", nargs="+", help="Directories that eval.py --output wrote.")
    parser.add_argument("--label", nargs="+", help="A name for each, else the directory's.")
    parser.add_argument(
        "--first", type=int, default=0, help="How many questions to show with their responses."
    )
    a = parser.parse_args(argv)
    names = a.label or a.directories
    if len(names) != len(a.directories):
        raise ValueError(f"{len(names)} labels for {len(a.directories)} directories")
    evaluations = [read_evaluation(Path(d), name) for d, name in zip(a.directories, names)]
    first, *others = evaluations
    parts = [
        answers(evaluations, a.first),
        side_by_side(evaluations),
        paired(first, others) if others else "",
        settings(evaluations),
    ]
    print(printable("\n\n".join(part for part in parts if part)))


if __name__ == "__main__":
    or_refuse(main)
