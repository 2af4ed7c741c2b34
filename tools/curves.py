"""Draw the test curves of several runs in one picture: Pass@1 by step, and where replay began.

python -m tools.curves runs/default runs/baseline --output curves.png
"""

import argparse
from pathlib import Path

from runtime.flags import or_refuse
from runtime.tables import read_jsonl


def read_curve(run: Path, source: str) -> tuple[list[int], list[float], int | None]:
    """The steps with a validation, the Pass@1 of `source` at each, and the first that replayed.

    The last is None if no step replayed a question. ValueError if `source` was not validated.
    """
    rows = read_jsonl(run / "metrics.jsonl", growing=True)
    tested = [row for row in rows if f"val/pass_at_1/{source}" in row]
    if not tested:
        raise ValueError(f"{run} has no validation of {source!r}")
    replayed = [row["step"] for row in rows if row.get("replay/questions")]
    steps = [row["step"] for row in tested]
    scores = [row[f"val/pass_at_1/{source}"] for row in tested]
    return steps, scores, min(replayed, default=None)


def draw(runs: list[Path], labels: list[str], source: str, output: Path) -> None:
    """Draw a line for each run, and a dotted one where its replay began, into a file."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6, 3.6), constrained_layout=True)
    for run, label in zip(runs, labels, strict=True):
        steps, scores, start = read_curve(run, source)
        (line,) = axis.plot(steps, scores, marker="o", markersize=3, label=label)
        if start is not None:
            axis.axvline(
                start, linestyle=":", color=line.get_color(), label=f"{label}: replay begins"
            )
    axis.set(xlabel="step", ylabel=f"Pass@1, {source}", ylim=(0, 1))
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    figure.savefig(output, dpi=100)


def main() -> None:
    """Draw the runs on the command line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m tools.curves", description=__doc__, formatter_class=raw
    )
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="DIR", help="run directories of train.py"
    )
    parser.add_argument("--label", nargs="+", help="a name for each; default: the directories' own")
    parser.add_argument(
        "--source", default="arithmetic", help="the data_source whose validation is drawn"
    )
    parser.add_argument("--output", type=Path, default=Path("curves.png"))
    args = parser.parse_args()
    draw(args.runs, args.label or [run.name for run in args.runs], args.source, args.output)
    print(f"wrote {args.output}")


if __name__ == "__main__":
    or_refuse(main)
