"""Scores of several models side by side, a Markdown table: Pass@1 in percent, its 95% interval, averages.

    python -m tools.compare runs/on-policy/eval/scores.json runs/exgrpo/eval/scores.json

The files are what `eval.py --output DIR` writes. An average that lacks a benchmark of Table 1 says how many
it has: such averages do not compare.
"""

import argparse
import json
from pathlib import Path

from runtime.console import printable
from worlds.benchmarks import AVERAGES


def read_scores(file: str) -> dict:
    """What a scores.json holds; ValueError names a file that is none."""
    try:
        scores = json.loads(Path(file).read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{file}: {error}") from error
    if not isinstance(scores, dict) or "model" not in scores:
        raise ValueError(f"{file} is no scores.json of eval.py --output")
    return scores


def compare(results: list[dict]) -> str:
    """The table: a column for each of the results, a row for each data_source and average of any of them."""
    names = dict.fromkeys(name for r in results for name in r if name.startswith("pass_at_1/"))
    names |= dict.fromkeys(name for r in results for name in r if name.startswith("average/"))
    rows = [["", *(str(r["model"]) for r in results)]]
    rows.append(["---"] * len(rows[0]))
    rows += [[label(name, results), *(cell(name, r) for r in results)] for name in names]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


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
    if f"interval/{source}" in result:
        low, high = result[f"interval/{source}"]
        note = f" [{100 * low:.1f}, {100 * high:.1f}]"
    there = result.get(f"average_of/{source}")
    if there and len(there) < len(AVERAGES[source]):
        note = f" ({len(there)} of {len(AVERAGES[source])} benchmarks)"
    return f"{100 * result[name]:.1f}{note}"


def main(argv: list[str] | None = None) -> None:
    """Print the comparison of the files of the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.compare", description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", metavar="scores.json", help="what eval.py --output wrote")
    try:
        print(printable(compare([read_scores(file) for file in parser.parse_args(argv).files])))
    except ValueError as error:
        raise SystemExit(printable(f"tools.compare: {error}")) from error


if __name__ == "__main__":
    main()
