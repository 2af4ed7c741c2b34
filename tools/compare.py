"""Scores of several models side by side, a Markdown table: Pass@1 in percent, its 95% interval, averages.

    python -m tools.compare runs/on-policy/eval runs/exgrpo/eval --label on-policy exgrpo

What is named is what `eval.py --output DIR` wrote. Below the table stands how much better each is than the
first on the questions that both were asked: the responses to one question are alike, so that the paired
difference says more than two intervals. An average that lacks a benchmark of Table 1 says how many it has:
such averages do not compare.
"""

import argparse
import json
import math
from collections import defaultdict
from pathlib import Path

import numpy as np

from runtime.console import printable
from runtime.tables import read_jsonl
from worlds.benchmarks import AVERAGES, Z


def read_scores(name: str) -> dict:
    """The scores in a directory of eval.py, or in its scores.json, with what is kept beside them.

    `settings` and `right` ({data_source: {(question, gold): share of right responses}}) are empty where only
    scores.json is there. ValueError names a file that is none.
    """
    file = Path(name) / "scores.json" if Path(name).is_dir() else Path(name)
    try:
        scores = json.loads(file.read_text())
        settings, responses = (file.with_name(other) for other in ("settings.json", "responses.jsonl"))
        about = json.loads(settings.read_text()) if settings.exists() else {}
        right = defaultdict(lambda: defaultdict(list))
        for r in read_jsonl(responses) if responses.exists() else []:
            right[r["source"]][r["text"], r["gold"]].append(r["success"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        hint = ""
        if (Path(name) / "metrics.jsonl").exists():
            hint = f": a run; `eval.py --model {name}/model --output DIR` scores it, tools.report shows it"
        raise ValueError(f"{file}: {error!r}{hint}") from error
    if not isinstance(scores, dict) or "model" not in scores:
        raise ValueError(f"{file} is no scores.json of eval.py --output")
    for source, of in right.items():
        scored = scores.get(f"questions/{source}", 0) * scores.get(f"samples/{source}", 0)
        if scored and scored != sum(map(len, of.values())):
            raise ValueError(f"{file}: scores of {scored} responses of {source}, beside others in "
                             f"{responses.name}: give the eval.py command again, with all of them")
    shares = {source: {q: float(np.mean(s)) for q, s in of.items()} for source, of in right.items()}
    return scores | {"settings": about, "right": shares}


def labels(names: list[str]) -> list[str]:
    """What tells directories apart, as short as may be: runs/A/eval and runs/B/eval are A and B."""
    paths = [Path(n).parts[:-1] if n.endswith("scores.json") else Path(n).parts for n in names]
    while len(paths) > 1 and all(len(p) > 1 for p in paths) and len({p[-1] for p in paths}) == 1:
        paths = [p[:-1] for p in paths]
    sizes = range(1, max(map(len, paths)) + 1)
    size = next((n for n in sizes if len({p[-n:] for p in paths}) == len(paths)), 1)
    return ["/".join(p[-size:]) or "." for p in paths]


def compare(results: list[dict], names: list[str]) -> str:
    """The table: a column for each of the results, a row for each data_source and average of any of them."""
    rows = {}
    for kind in ("pass_at_1/", "average/"):
        rows |= dict.fromkeys(name for r in results for name in r if name.startswith(kind))
    return table(["", *names], [[label(row, results), *(cell(row, r) for r in results)] for row in rows])


def table(head: list[str], rows: list[list[str]]) -> str:
    """In Markdown."""
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def label(name: str, results: list[dict]) -> str:
    """What stands before a row: the data_source and how many responses its questions had."""
    kind, _, source = name.partition("/")
    if kind == "average":
        return f"{source} (average)"
    samples = sorted({r[f"samples/{source}"] for r in results if f"samples/{source}" in r})
    return f"{source} (Pass@1)" if samples == [1] else f"{source} (Avg@{'/'.join(map(str, samples))})"


def cell(name: str, result: dict) -> str:
    """A score in percent with what is to be known of it; a dash where the result has none."""
    if name not in result:
        return "–"
    source, note = name.partition("/")[2], ""
    if name.startswith("pass_at_1/") and f"interval/{source}" in result:
        low, high = result[f"interval/{source}"]
        note = f" [{100 * low:.1f}, {100 * high:.1f}]"
    there = result.get(f"average_of/{source}")
    if there and len(there) < len(AVERAGES[source]):
        note = f" ({len(there)} of {len(AVERAGES[source])} benchmarks)"
    return f"{100 * result[name]:.1f}{note}"


def paired(results: list[dict], names: list[str]) -> str:
    """A table of the mean differences to the first of the results, in points, each with its 95% interval."""
    first, rows = results[0], []
    for source, base in sorted(first["right"].items()):
        cells = [difference(base, other["right"].get(source, {})) for other in results[1:]]
        rows.append([source, *cells])
    return table([f"minus {names[0]}, in points, same questions", *names[1:]], rows) if rows else ""


def difference(base: dict, other: dict) -> str:
    """Of two {question: share of right responses}: the mean difference over the questions of both, ± 1.96
    errors; without an interval where all questions have the same one."""
    both = [other[question] - share for question, share in base.items() if question in other]
    if len(both) < 2:
        return "– (fewer than two questions of both)"
    error = Z * float(np.std(both, ddof=1)) / math.sqrt(len(both))
    mean = float(np.mean(both))
    if error < 1e-9:  # 2/3 - 1/3 and 1/3 - 0 are a rounding apart
        return f"{100 * mean:+.1f} (of each of {len(both)}, so without an interval)"
    return f"{100 * mean:+.1f} [{100 * (mean - error):+.1f}, {100 * (mean + error):+.1f}] of {len(both)}"


def settings(results: list[dict], names: list[str]) -> str:
    """A line for each setting in which the results differ, the model apart."""
    knobs = dict.fromkeys(knob for r in results for knob in r["settings"] if knob not in ("model", "files"))
    lines = []
    for knob in knobs:
        values = [repr(r["settings"].get(knob)) for r in results]
        if len(set(values)) > 1:
            lines.append(f"{knob} differs: " + ", ".join(f"{v} ({name})" for v, name in zip(values, names)))
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> None:
    """Print the comparison of the directories of the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.compare", description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="+", metavar="DIR", help="an --output of eval.py, or its scores.json")
    parser.add_argument("--label", nargs="+", metavar="NAME", help="names; default: the directories'")
    a = parser.parse_args(argv)
    try:
        results, names = [read_scores(name) for name in a.names], a.label or labels(a.names)
        if len(names) != len(results):
            raise ValueError(f"{len(names)} labels for {len(results)} directories")
    except ValueError as error:
        raise SystemExit(printable(f"tools.compare: {error}")) from error
    parts = compare(results, names), paired(results, names) if results[1:] else "", settings(results, names)
    print(printable("\n\n".join(filter(None, parts))))


if __name__ == "__main__":
    main()
