"""What eval.py shows and keeps of responses as they end: a progress bar, and files to continue from.

    DIR/responses.jsonl       a record a line, of the commands before this one
    DIR/responses-<rank>.jsonl    what each rank has added since; put into the former by `open_kept`
    DIR/settings.json         whatever a response and its reward depend on
"""

import json
import os
import sys
import time
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path

from tqdm import tqdm

from runtime import ranks

KEEP_EVERY = 30.0  # seconds between two writes
KINDS = {"source": str, "question": str, "sample": int, "success": bool, "reward": float | int, "length": int,
         "truncated": bool}


class Kept:
    """This rank's responses: if shown, a bar on rank 0; with a directory, lines in this rank's file."""

    def __init__(self, directory: str = "", shown: bool = True):
        self.file = Path(directory) / f"responses-{ranks.rank()}.jsonl" if directory else None
        self.shown, self.tokens, self.start, self.written = shown, 0, 0.0, 0.0

    def begin(self, total: int) -> None:
        """So many responses are to come on this rank."""
        self.start = self.written = time.monotonic()
        name = "responses of rank 0" if ranks.world_size() > 1 else "responses"
        self.bar = tqdm(total=total, desc=name, dynamic_ncols=True,
                        disable=not self.shown or ranks.rank() > 0,
                        mininterval=0.5 if sys.stderr.isatty() else KEEP_EVERY)

    def due(self, tokens: int) -> bool:
        """Count a response of so many tokens; whether it is time to write."""
        now = time.monotonic()
        self.tokens += tokens
        self.bar.set_postfix_str(f"{self.tokens / max(now - self.start, 1e-3):.0f} tokens/s", refresh=False)
        self.bar.update()
        return self.file is not None and now - self.written >= KEEP_EVERY

    def write(self, records: list[dict]) -> None:
        """Add lines to this rank's file."""
        if self.file:
            with open(self.file, "a") as file:
                file.writelines(json.dumps(record) + "\n" for record in records)
        self.written = time.monotonic()


def open_kept(directory: Path, settings: dict, order: list[tuple] = ()) -> tuple[dict, dict]:
    """The records kept so far by (question, sample), and the settings that have changed since.

    What the ranks have added is put into one file first, those of `order` in that order and before others.
    ValueError where anything there is damaged.
    """
    if directory.exists() and not directory.is_dir():
        raise ValueError(f"--output {directory} is a file: name a directory")
    directory.mkdir(parents=True, exist_ok=True)
    about, whole = directory / "settings.json", directory / "responses.jsonl"
    try:
        old = json.loads(about.read_text()) if about.exists() else settings
        changed = {n: f"{old.get(n)!r} -> {value!r}" for n, value in settings.items() if old.get(n) != value}
    except (ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"{about} is damaged ({error!r:.100}): choose another --output") from error
    parts = [f for f in sorted(directory.glob("responses-*.jsonl")) if f.stem[10:].isdigit()]
    if not about.exists() and (parts or whole.exists()):
        raise ValueError(f"{directory} has responses and no settings.json to say how they were made: choose "
                         "another --output")
    records = {}
    for file in (whole, *parts):
        records |= {(r["question"], r["sample"]): r for r in _records(file)}
    records = {key: records[key] for key in order if key in records} | records
    if not changed:
        about.write_text(json.dumps(settings, indent=1))
        aside = whole.with_name("responses.tmp")
        aside.write_text("".join(json.dumps(r) + "\n" for r in records.values()))
        os.replace(aside, whole)
        for file in parts:
            file.unlink()
    return records, changed


def made_with(knobs: dict) -> dict:
    """Whatever a response and its reward depend on: the knobs, the source of a reward of the user's own, the
    model by name, size and time of its files."""
    module, own, _ = knobs["reward"].partition(":")
    if own and (found := find_spec(module)) and found.origin:
        knobs["reward_source"] = blake2b(Path(found.origin).read_bytes(), digest_size=8).hexdigest()
    return knobs | {"files": model_files(Path(knobs["model"]))}


def model_files(model: Path) -> list[list]:
    """Name, size and time of each file of a model; what was written into its directory later is left out."""
    ours = ("settings.json", "scores.json", "README.md")
    return [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in sorted(model.glob("*"))
            if file.is_file() and file.name not in ours and not file.name.startswith("responses")]


def _records(file: Path) -> list[dict]:
    """The records of a file, none if there is no such file; ValueError names the line that holds none."""
    text = file.read_bytes() if file.exists() else b""
    records = []
    for number, line in enumerate(text[: text.rfind(b"\n") + 1].splitlines()):  # a kill leaves half a line
        try:
            record = json.loads(line)
            if not all(isinstance(record[name], kind) for name, kind in KINDS.items()):
                raise TypeError(f"needs {', '.join(KINDS)}")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{file}, line {number + 1} is damaged ({error!r:.100}): remove it and give the "
                             "command again, which generates what is missing") from error
        records.append(record)
    return records
