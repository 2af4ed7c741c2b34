"""Print evaluations of several models side by side, and how much each differs from the first.

    python -m tools.compare runs/on-policy/eval runs/exgrpo/eval --label on-policy exgrpo --first 3
    python -m tools.compare runs/on-policy-[123]/eval --against runs/exgrpo-[123]/eval

A directory is one that `eval.py --output DIR` wrote. The table has Pass@1 in percent with its 95%
interval, and the averages of Table 1. Below it stands how much better each model is than the first
on the questions that both were asked. The responses to one question are alike, so the paired
difference says more than two intervals do. An average that lacks a benchmark says how many it has;
such averages cannot be compared.

With --against, which can come more than once, every list of directories is an arm: runs that differ
in their seed alone. Both tables then have the mean and the range of an arm's runs, which are paired
in order with those of the first arm.
"""

import argparse
import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from runtime.console import printable
from runtime.faults import or_refuse
from runtime.tables import read_jsonl
from worlds.benchmarks import AVERAGES


@dataclass
class Evaluation:
    """What a directory holds; settings and responses are empty where only scores.json is there."""

    name: str
    scores: dict
    settings: dict
    responses: dict[tuple, list]  # {(data_source, question, gold, hash of its row): its records}


@dataclass
class Arm:
    """Evaluations of runs that differ in their seed alone; often there is one."""

    name: str
    runs: list[Evaluation]


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
    evaluation = Evaluation(name, scores, {}, defaultdict(list))
    there = Counter()  # responses of each data_source
    responses = directory / "responses.jsonl"
    if responses.exists():
        evaluation.settings = json.loads((directory / "settings.json").read_text())
        for record in read_jsonl(responses):
            question = (record["source"], record["text"], record["gold"], record["row"])
            evaluation.responses[question].append(record)
            there[record["source"]] += 1
    for source, number in there.items():
        scored = scores.get(f"questions/{source}", 0) * scores.get(f"samples/{source}", 0)
        if scored and scored != number:
            raise ValueError(
                f"{file}: scores of {scored} responses of {source}, beside {number} in"
                " responses.jsonl: give the eval.py command again, with all of them"
            )
    return evaluation


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def side_by_side(arms: list[Arm]) -> str:
    """A table with a column for each arm, a row for each data_source and average."""
    evaluations = [e for arm in arms for e in arm.runs]
    rows = []
    known = dict.fromkeys(name for e in evaluations for name in e.scores)
    for kind in ("pass_at_1/", "average/", "reward_"):
        for name in known:
            # How many responses have a further reward; a data_source may end in /count, too.
            counted = name.endswith("/count") and name.removesuffix("/count") in known
            is_count = kind == "reward_" and counted
            if name.startswith(kind) and not is_count:
                rows.append([label(name, evaluations), *(cell(name, arm.runs) for arm in arms)])
    return table(["", *(arm.name for arm in arms)], rows)


def label(name: str, evaluations: list[Evaluation]) -> str:
    """What stands before a row: the data_source and how many responses its questions had."""
    kind, _, source = name.partition("/")
    if kind != "pass_at_1":
        return f"{source} ({kind})"
    numbers = {e.scores.get(f"samples/{source}") for e in evaluations} - {None}
    samples = "/".join(str(n) for n in sorted(numbers))
    return f"{source} (Pass@1)" if samples == "1" else f"{source} (Avg@{samples})"


def cell(name: str, runs: list[Evaluation]) -> str:
    """The mean score in percent, and what is known beside it; a dash if a run has no such score.

    Of several runs that is their range; of one the interval, or the number of benchmarks.
    """
    if any(name not in e.scores for e in runs):
        return "–"
    percents = [100 * e.scores[name] for e in runs]
    percent = f"{np.mean(percents):.1f}"
    if len(runs) > 1:
        percent += f" ({min(percents):.1f} to {max(percents):.1f})"
    scores = runs[0].scores
    kind, _, source = name.partition("/")
    if kind == "pass_at_1" and len(runs) == 1 and f"interval/{source}" in scores:
        low, high = scores[f"interval/{source}"]
        return f"{percent} [{100 * low:.1f}, {100 * high:.1f}]"
    there = scores.get(f"average_of/{source}")
    if there and len(there) < len(AVERAGES[source]):
        return f"{percent} ({len(there)} of {len(AVERAGES[source])} benchmarks)"
    return percent


def paired(first: Arm, others: list[Arm]) -> str:
    """A table of the mean differences to the first arm, in points, and what they do not tell.

    Its last row takes the questions of all sources together.
    """
    sources = sorted({source for source, *_ in first.runs[0].responses})
    if not sources:
        return ""
    wanted = {source: [source] for source in sources}
    if len(sources) > 1:
        wanted["all sources"] = sources
    rows = []
    for name, members in wanted.items():
        cells = []
        for arm in others:
            pairs = zip(first.runs, arm.runs, strict=True)
            cells.append(difference([gains(one, other, members) for one, other in pairs]))
        rows.append([name, *cells])
    head = [f"minus {first.name}, in points, same questions", *(arm.name for arm in others)]
    number = len(first.runs)
    if number == 1:
        note = (
            "The interval covers the choice of questions only, not training runs: with another seed"
            " a run ends elsewhere. --against takes several runs an arm."
        )
    else:
        note = f"Mean over {number} pairs of runs, and from the lowest pair to the highest."
    return f"{table(head, rows)}\n\n{note}"


def gains(first: Evaluation, other: Evaluation, sources: list[str]) -> list[float]:
    """By how many points more responses are right in `other`, for each question of both."""
    found = []
    for question, records in first.responses.items():
        if question[0] in sources and question in other.responses:
            before = np.mean([r["success"] for r in records])
            after = np.mean([r["success"] for r in other.responses[question]])
            found.append(100 * (after - before))
    return found


def difference(pairs: list[list[float]]) -> str:
    """The mean of the gains of one or more pairs of runs, with what is known of its spread.

    Of several pairs that is the range of their means; of one Student's 95% interval, which is left
    out where all questions have the same difference.
    """
    if min(map(len, pairs)) < 2:
        return "– (fewer than two questions of both)"
    means = [np.mean(pair) for pair in pairs]
    mean = np.mean(means)
    if len(pairs) > 1:
        return f"{mean:+.1f} ({min(means):+.1f} to {max(means):+.1f})"
    [pair] = pairs
    if np.ptp(pair) < 1e-7:  # equal ones may be a rounding apart, as 2/3 - 1/3 and 1/3 - 0
        return f"{mean:+.1f} (of each of {len(pair)}, so without an interval)"
    from scipy.stats import ttest_1samp  # takes seconds to import

    low, high = ttest_1samp(pair, 0).confidence_interval()
    return f"{mean:+.1f} [{low:+.1f}, {high:+.1f}] of {len(pair)}"


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
    lines = []
    for question in evaluations[0].responses:
        found = [e.responses.get(question) for e in evaluations]
        if n > 0 and all(found):
            n -= 1
            _, text, gold, _ = question
            lines.append(f"---- {text}  [{gold}]")
            for e, (record, *_) in zip(evaluations, found):
                verdict = "right" if record["success"] else "wrong"
                lines.append(f"{e.name}, {verdict}: {record['response']}")
    return "\n".join(lines)


def read_arms(lists: list[list[str]], labels: list[str] | None) -> list[Arm]:
    """The arms of these directories; ValueError where labels or runs do not match."""
    if labels and len(labels) != len(lists):
        raise ValueError(f"{len(labels)} labels for {len(lists)} directories or arms")
    arms = []
    for i, directories in enumerate(lists):
        number = len(directories)
        if number != len(lists[0]):
            raise ValueError(
                f"--against has {number} runs, the first arm {len(lists[0])}: they are paired in"
                " order, so each arm needs as many"
            )
        name = directories[0] if number == 1 else f"{directories[0]} and {number - 1} more"
        name = labels[i] if labels else name
        names = [name] if number == 1 else directories
        runs = [read_evaluation(Path(d), own) for d, own in zip(directories, names, strict=True)]
        arms.append(Arm(name, runs))
    return arms


def main(argv: list[str] | None = None) -> None:
    """Print the comparison of the directories on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directories", nargs="+", help="Directories that eval.py --output wrote.")
    parser.add_argument(
        "--against",
        nargs="+",
        action="append",
        default=[],
        help="The directories of another arm; those before it are the first arm.",
    )
    parser.add_argument(
        "--label", nargs="+", help="A name for each directory or arm, else the directory's."
    )
    parser.add_argument(
        "--first", type=int, default=0, help="How many questions to show with their responses."
    )
    a = parser.parse_args(argv)
    lists = [a.directories, *a.against] if a.against else [[d] for d in a.directories]
    arms = read_arms(lists, a.label)
    evaluations = [e for arm in arms for e in arm.runs]
    first, *others = arms
    parts = [
        answers([arm.runs[0] for arm in arms], a.first),
        side_by_side(arms),
        paired(first, others) if others else "",
        settings(evaluations),
    ]
    print(printable("\n\n".join(part for part in parts if part)))


if __name__ == "__main__":
    or_refuse(main)
