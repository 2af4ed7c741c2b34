"""Write one HTML page about runs: curves, buckets, replay, time, and responses token by token.

It begins with the knobs in which the runs differ.

    python -m tools.report runs/default runs/baseline --output report.html

A run is named by the run_dir of its training, finished or not. The curves come from its
metrics.jsonl, and what the model said from its samples.jsonl. The stored responses come from its
newest whole checkpoint. They are scored anew by the policy of that checkpoint, so they are what the
next step would choose o* from. Start this where the run was started, as it may name relative paths.

The page is report.html and report.js beside this file, with the data put in as JSON. It is
self-contained and loads nothing. What models, questions and paths say may be hostile: the page
inserts it as text only, and lets no script run but its own.
"""

import argparse
import base64
import hashlib
import json
from datetime import datetime
from pathlib import Path

from config import Config
from runtime.console import printable
from runtime.faults import loading, or_refuse
from runtime.tables import read_jsonl

TEMPLATE = Path(__file__).with_suffix(".html")
OF_A_COMMAND = ("run_dir", "resume")  # knobs that say nothing of how a run was trained
NAMED = ("rho", "mu", "sigma", "question_selection", "beta", "shaping")  # knobs that the page reads
MOST_TEXT = 20_000_000  # characters of a run's samples; of more, every other step is left out


def read_metrics(run: Path) -> list[dict]:
    """The rows of RUN/metrics.jsonl; ValueError says what is wrong."""
    file = run / "metrics.jsonl"
    if not file.is_file():
        raise ValueError(f"{run} has no metrics.jsonl: name the run_dir of a training run")
    rows = read_jsonl(file, growing=True)
    if not rows:
        raise ValueError(f"{file} is empty: the first row comes after the first validation")
    return rows


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The flags, with the metrics of the runs; ValueError says what is wrong."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("runs", nargs="+", type=Path, help="The run_dir of training runs.")
    parser.add_argument(
        "--output", type=Path, default=Path("report.html"), help="The page to write [report.html]."
    )
    parser.add_argument(
        "--questions", type=int, default=40, help="How many stored questions of a run to show [40]."
    )
    args = parser.parse_args(argv)
    args.metrics = [read_metrics(run) for run in args.runs]
    if args.questions < 1:
        raise ValueError(f"--questions must be at least 1, got {args.questions}")
    if args.output.is_dir() or not args.output.resolve().parent.is_dir():  # of a link's target
        raise ValueError(f"--output {args.output}: must be a file in a directory that is there")
    loading()
    return args


ARGS = or_refuse(parse) if __name__ == "__main__" else None  # refuses before the slow imports

import torch

from buffer import SUCCESS_THRESHOLD
from runtime import ranks
from runtime.tracking import read_samples
from tools.stored import newest_checkpoint, number, stored_responses

# ---- curves --------------------------------------------------------------------------------------


def columns(rows: list[dict]) -> dict:
    """The curves as {"step": [...], "metrics": {name: [a value or None for each row]}}.

    A metric of replay, as w*, is None where nothing was replayed.
    """
    metrics = {}
    for name in sorted({name for row in rows for name in row} - {"step"}):
        values = []
        for row in rows:
            is_gap = name.startswith("replay/") and row.get("replay/questions") == 0
            value = None if is_gap else number(row.get(name))
            values.append(value)
        metrics[name] = values
    return {"step": [row["step"] for row in rows], "metrics": metrics}


# ---- what the model said -------------------------------------------------------------------------


def said(run: Path) -> list[dict]:
    """The responses in RUN/samples.jsonl, in each step the right ones first.

    If they are longer than MOST_TEXT, every other step is left out until they are not.
    """
    kept = []
    for sample in read_samples(run / "samples.jsonl"):
        rewards = {name: number(value) for name, value in sample["rewards"].items()}
        is_right = (rewards.get("score") or 0.0) > SUCCESS_THRESHOLD
        kind = "right" if is_right else "wrong"
        if sample["replayed"]:
            kind = "o*"
        kept.append(sample | {"kind": kind, "rewards": rewards})
    while sum(len(s["text"]) + len(s["response"]) for s in kept) > MOST_TEXT:
        steps = sorted({s["step"] for s in kept}, reverse=True)
        if len(steps) == 1:
            break
        kept = [s for s in kept if s["step"] in steps[::2]]  # the newest stays
    return sorted(kept, key=lambda s: (s["step"], ("right", "wrong", "o*").index(s["kind"])))


# ---- the page ------------------------------------------------------------------------------------


def describe(run: Path, rows: list[dict], limit: int, device: torch.device) -> dict:
    """What the page says about a run, as JSON values.

    Where no stored response is shown, `browser` holds a sentence, `missing`, that says why. Where
    `known` is false, `all_knobs` is empty and `knobs` are defaults: a run writes its own with its
    first checkpoint.
    """
    knobs = {}
    try:
        checkpoint = newest_checkpoint(run)
        state = json.loads((checkpoint / "state.json").read_text())
        knobs = state["config"]
        browser = stored_responses(run, checkpoint, state, limit, device)
    except (OSError, ValueError, RuntimeError) as error:
        # A RuntimeError may say that a run going on has left too little memory.
        browser = {"missing": f"No stored responses: {error}."}
        print(printable(f"{run}: {browser['missing']}"))
    named = {name: knobs.get(name, Config.__dataclass_fields__[name].default) for name in NAMED}
    return {
        "name": str(run),
        "planned": knobs.get("steps"),
        "all_knobs": knobs,
        "knobs": named,
        "known": bool(knobs),
        **columns(rows),
        "said": said(run),
        "browser": browser,
    }


def differing(runs: list[dict]) -> list[list[str]]:
    """A row for each knob in which the runs differ: its name, and its value in every run.

    The value is a dash where a run's knobs are not known, or do not have this one.
    """
    known = [run["all_knobs"] for run in runs if run["all_knobs"]]
    rows = []
    for name in dict.fromkeys(name for knobs in known for name in knobs):
        values = {str(knobs.get(name)) for knobs in known}
        if len(values) > 1 and name not in OF_A_COMMAND:
            rows.append([name, *(str(run["all_knobs"].get(name, "–")) for run in runs)])
    return rows


def page(runs: list[dict]) -> str:
    """The HTML page: the template, with the script and the data put in.

    The hash of the script is put in, too, so that a browser runs no other.
    """
    script = f"\n{TEMPLATE.with_suffix('.js').read_text(encoding='utf-8')}"
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    written = f"{datetime.now():%Y-%m-%d %H:%M}"
    data = {"written": written, "differing": differing(runs), "runs": runs}
    # The text is ASCII: U+2028 and U+2029, which end a line of JavaScript, are escaped, too.
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    template = TEMPLATE.read_text(encoding="utf-8")
    template = template.replace("{{script hash}}", digest, 1).replace("{{script}}", script, 1)
    return template.replace("{{data}}", text, 1)


def main(argv: list[str] | None = None) -> None:
    """Write the page for the runs on the command line."""
    args = ARGS or parse(argv)
    device = ranks.setup(hang_timeout=0)
    described = [
        describe(run, rows, args.questions, device) for run, rows in zip(args.runs, args.metrics)
    ]
    args.output.write_text(page(described), encoding="utf-8")
    print(
        printable(
            f"{args.output}: {len(args.runs)} runs, {args.output.stat().st_size / 1e6:.1f} MB"
        )
    )


if __name__ == "__main__":
    ranks.run(main)
