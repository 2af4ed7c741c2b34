"""Check that a built-in world has enough to learn, and that right answers are reasoned right.

    for seed in 0 1 2 3 4 5 6 7; do
      torchrun --nproc_per_node=2 train.py --rho 0 --world_seed $seed --run_dir runs/gates/$seed
    done
    python -m bench.gates runs/gates/*

It prints a line for each run, with the figures that the gates ask for. Each run is on-policy, on a
world seed of its own.
"""

import json
import sys
from pathlib import Path

from tools.compare import table

FIRST_STEPS = 10
GATES = {  # figure -> (lowest, highest)
    "base Pass@1": (0.04, 0.16),
    "right but invalid, most": (0.0, 0.015),  # of all responses of a validation
    "right but invalid, end": (0.0, 0.03),  # of the right ones of the last validation
    "groups without success": (0.5, 1.0),  # of the first steps
    "last Pass@1": (0.35, 1.0),
}


def figures(run: Path) -> dict[str, float]:
    """The figures that the gates ask for, from the metrics.jsonl of a run."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    tested = [row for row in rows if "val/pass_at_1/arithmetic" in row]
    right = [row["val/pass_at_1/arithmetic"] for row in tested]
    invalid = [score - row["val/valid/arithmetic"] for score, row in zip(right, tested)]
    first = [row["reward/none_right"] for row in rows if 1 <= row["step"] <= FIRST_STEPS]
    return {
        "base Pass@1": right[0],
        "right but invalid, most": max(invalid),
        "right but invalid, end": invalid[-1] / max(right[-1], 1e-9),
        "groups without success": sum(first) / len(first),
        "last Pass@1": right[-1],
    }


def main() -> None:
    """Print a Markdown table; a figure that misses its gate has an exclamation mark."""
    lines = []
    for run in map(Path, sys.argv[1:]):
        cells = [run.name]
        for name, value in figures(run).items():
            lowest, highest = GATES[name]
            cells.append(f"{value:.3f}" + ("" if lowest <= value <= highest else " !"))
        lines.append(cells)
    print(table(["run", *GATES], lines))


if __name__ == "__main__":
    main()
