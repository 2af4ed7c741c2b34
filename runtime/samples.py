"""Write a few responses of every step to samples.jsonl, for people to read.

They see there how a reward is talked into a yes. A line is {"step", "text" (the question), "gold",
"response", "rewards": {name: value}, "replayed", "finished"}, where `step` counts as in
metrics.jsonl and `replayed` marks an o*; eval.py's responses.jsonl has the same names.
"""

import json
import math
import os
from contextlib import suppress
from pathlib import Path

# How many responses of a step are written: new right ones, new wrong ones, replayed ones.
WANTED = {"right": 2, "wrong": 1, "o*": 1}


def choose(groups: list) -> list[tuple]:
    """Return the (group, trajectory) pairs that WANTED asks for.

    They are the first in the batch's order, and a group gives one of a kind. There is no
    randomness, so a resumed run chooses the same.
    """
    left = dict(WANTED)
    chosen = []
    for group in groups:
        kinds = {}
        if group.star:
            kinds["o*"] = group.star
        for t in group.new:
            kinds.setdefault("right" if t.is_success else "wrong", t)
        for kind, t in kinds.items():
            if left[kind]:
                left[kind] -= 1
                chosen.append((group, t))
    return chosen


def record(step: int, group, t, text: str) -> dict:
    """Return a line of samples.jsonl, with null for a reward that is not finite."""
    rewards = {"score": t.reward, **t.named_rewards}
    return {
        "step": step,
        "text": group.question.text,
        "gold": group.question.answer,
        "response": text,
        "rewards": {
            name: value if math.isfinite(value) else None for name, value in rewards.items()
        },
        "replayed": t is group.star,
        "finished": t.finished,
    }


def read(path: Path) -> list[dict]:
    """Return the records of a file, without what a kill or a full disk has left of others."""
    records = []
    for line in path.read_bytes().split(b"\n") if path.is_file() else []:
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            record = json.loads(line)
            record["step"] + 0  # a TypeError unless it is a number, which `cut` goes by
            records.append(record)
    return records


def cut(path: Path, last: int) -> None:
    """Remove the samples of steps after `last`.

    What came after the checkpoint that a run continues from is written again.
    """
    aside = path.with_suffix(".tmp")
    kept = [sample for sample in read(path) if sample["step"] <= last]
    aside.write_text("".join(json.dumps(sample) + "\n" for sample in kept))
    os.replace(aside, path)
