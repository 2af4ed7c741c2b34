"""Keep what eval.py has done in the directory of --output, and tell it in short on the console.

A repeated command goes on from what the directory holds:

DIR/responses.jsonl    a record a line: one response, its question and its reward
DIR/settings.json      whatever a response and its reward depend on
"""

import json
import math
import os
import re
from collections import defaultdict
from hashlib import blake2b
from pathlib import Path

from runtime.console import printable
from runtime.tables import read_jsonl

SHOWN = 3  # responses on the console
LONGEST = 600  # characters of a text there
# What evaluation itself reports has these names.
OWN = re.compile(
    "reward(_.*)?|length|truncated|timeout|questions|samples|interval|no_box"
    "|(pass|maj)_at_.*|average(_of)?|.*/.*"
)


def open_kept(directory: Path, settings: dict) -> dict[tuple, dict]:
    """Return the records that the directory holds, by question and sample number.

    settings: whatever a response and its reward depend on, as plain values, the model by its files.
    A new directory has none. Raises ValueError where they were made with other settings, or nobody
    knows with which.
    """
    directory.mkdir(parents=True, exist_ok=True)
    about = directory / "settings.json"
    responses = directory / "responses.jsonl"
    if not about.exists() or not about.stat().st_size:  # a kill may leave it empty
        if responses.exists():
            raise ValueError(
                f"{directory} has responses and no settings.json to say how they were made: "
                "choose another --output"
            )
        about.write_text(json.dumps(settings, indent=1))
    old = json.loads(about.read_text())
    changed = {
        name: f"{old.get(name)!r} -> {settings.get(name)!r}"
        for name in old | settings
        if old.get(name) != settings.get(name)
    }
    if changed:
        raise ValueError(
            f"{directory} holds responses that were made with other settings: {changed}. "
            "Choose another --output."
        )
    responses.touch()
    end_of_last_line = responses.read_bytes().rfind(b"\n") + 1
    os.truncate(responses, end_of_last_line)  # a kill may have left half a line
    return {(record["question"], record["sample"]): record for record in read_jsonl(responses)}


def add(directory: Path, records: list[dict]) -> None:
    """Write records behind those that are there, and return when they are on the disk."""
    with open(directory / "responses.jsonl", "a") as file:
        for record in records:
            file.write(json.dumps(record) + "\n")
        file.flush()
        os.fsync(file.fileno())


def judged_numbers(judged: dict) -> dict:
    """Return what a reward function reports as `judged`, without the text `marked`.

    Raises ValueError for what is no number, and for a name that evaluation gives its own numbers.
    """
    numbers = {name: value for name, value in judged.items() if name != "marked"}
    for name, value in numbers.items():
        if OWN.fullmatch(name):
            raise ValueError(f"`judged` of the reward function: choose another name than {name!r}")
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(
                f"`judged` of the reward function: {name} must be a finite number, got {value!r}"
            )
    return numbers


def question_key(question) -> str:
    """Return what names a question by what is asked, of which benchmark, its answer and its row."""
    about = question.source, question.prompt_ids.tolist(), question.answer, question.row
    return _hash(repr(about))


def row_key(question) -> str:
    """Return what names a question by its row as read, without tokenizer and template."""
    return _hash(json.dumps([question.answer, question.row], sort_keys=True))


def _hash(text: str) -> str:
    return blake2b(text.encode(), digest_size=8).hexdigest()


def model_files(model: Path) -> list[list]:
    """Return the name, size and time of each file of a model.

    What was written into its directory later is left out.
    """
    ours = ("lock", "settings.json", "scores.json", "responses.jsonl", "README.md")
    files = [file for file in sorted(model.glob("*")) if file.is_file() and file.name not in ours]
    return [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]


def in_short(records: list[dict]) -> str:
    """Return what people look at first: a few responses, and how often each question is right."""
    lines = [f"---- {about(record)}" for record in examples(records)]
    by_source = defaultdict(lambda: defaultdict(list))
    for r in records:
        by_source[r["source"]][r["question"]].append(r)
    for source, questions in by_source.items():
        groups = list(questions.values())
        if len(groups[0]) > 1:
            lines.append(f"---- {printable(source)}: {by_right(groups)}")
    if late := sum(r["timeout"] for r in records):
        lines.append(
            f"warning: {late} responses score 0, as grading them ran out of time (--verify_timeout)"
        )
    return "\n".join(lines)


def examples(records: list[dict]) -> list[dict]:
    """Return the first right response, the first wrong one, and then those of other questions."""
    chosen = []
    for success in (True, False):
        chosen += [r for r in records if r["success"] == success][:1]
    for r in records:
        asked = {c["question"] for c in chosen}
        if len(chosen) < SHOWN and r["question"] not in asked:
            chosen.append(r)
    return chosen


def about(record: dict) -> str:
    """Return a response with its question and its verdict, as three lines."""
    verdict = "right" if record["success"] else "wrong"
    cut = ", cut at the limit" if record["truncated"] else ""
    gold = brief(record["gold"])
    head = f"{verdict}, reward {record['reward']:g}, {record['length']} tokens{cut}, gold: {gold}"
    return "\n".join([head, brief(record["text"]), brief(record["response"])])


def brief(text: str) -> str:
    """Return a text as one line for the console, without its middle where it is long."""
    line = printable(text).replace("\n", "\\n")
    left_out = len(line) - LONGEST
    if left_out <= 0:
        return line
    half = LONGEST // 2
    return f"{line[:half]} [... {left_out} characters ...] {line[-half:]}"


def by_right(groups: list[list[dict]]) -> str:
    """Return how many questions have k right responses, and how many groups would be silent.

    A group has the K responses to one question, and is silent, without a gradient, if all their
    rewards are equal. In training as many would be so where K and the temperature are the same.
    """
    K = len(groups[0])
    number = len(groups)
    right = [sum(r["success"] for r in group) for group in groups]
    counts = ", ".join(f"k={k}: {right.count(k)}" for k in range(K + 1))
    silent = sum(len({r["reward"] for r in group}) == 1 for group in groups)
    never = right.count(0) / number
    always = right.count(K) / number
    return (
        f"{number} questions by k, the right ones of {K} responses: {counts}\n{never:.0%} are never"
        f" right, {always:.0%} always: of groups like these {silent / number:.0%} are silent"
    )
