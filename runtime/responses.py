"""Keep what eval.py has done in the directory of --output, so that a repeated command goes on.

DIR/responses.jsonl    a record a line: one response, its question and its reward
DIR/settings.json      whatever a response and its reward depend on
"""

import json
import os
from pathlib import Path

from runtime.rundir import source_hash
from runtime.tables import read_jsonl


def open_kept(directory: Path, settings: dict) -> dict[tuple, dict]:
    """Return the records that the directory holds, by question and sample number.

    A new directory has none. Raises ValueError where they were made with other settings, or nobody
    knows with which.
    """
    directory.mkdir(parents=True, exist_ok=True)
    about = directory / "settings.json"
    responses = directory / "responses.jsonl"
    if not about.exists():
        if responses.exists():
            raise ValueError(
                f"{directory} has responses and no settings.json to say how they were made: "
                "choose another --output"
            )
        about.write_text(json.dumps(settings, indent=1))
    old = json.loads(about.read_text())
    changed = {
        n: f"{old.get(n)!r} -> {value!r}" for n, value in settings.items() if old.get(n) != value
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


def made_with(knobs: dict) -> dict:
    """Return whatever a response and its reward depend on.

    These are the knobs, the source of a reward of the user's own, and the model by the name, size
    and time of its files.
    """
    source = source_hash(knobs["reward"])
    if source:
        knobs["reward_source"] = source
    return knobs | {"files": model_files(Path(knobs["model"]))}


def model_files(model: Path) -> list[list]:
    """Return the name, size and time of each file of a model.

    What was written into its directory later is left out.
    """
    ours = ("settings.json", "scores.json", "responses.jsonl", "README.md")
    files = [file for file in sorted(model.glob("*")) if file.is_file() and file.name not in ours]
    return [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]
