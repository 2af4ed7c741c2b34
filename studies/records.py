"""What is kept of a finished run or sampling pass, and by which edition of the code it was made.

A record, `studies/results/runs/NAME-SEED.json.gz`, is committed: numbers and pictures can be made again
without training, also after the code has changed. Records of different editions are never compared.
"""

import dataclasses
import gzip
import json
from pathlib import Path

from config import Config
from worlds.arithmetic import World

EDITION = 2  # raise it with any change of the code after which a run repeats no more to the bit
DIGITS = 5  # significant digits of a record's numbers
RENAMED = {  # in the text of records: what has another name since
    '"arithmetic:': '"worlds.arithmetic:',
    '"base_steps": 500': '"world": "weak"',  # the first edition's weak world was another one
}
KNOBS = {f.name for f in dataclasses.fields(Config)} | {"sampling", "questions"}


def write(file: Path, note: dict) -> None:
    """Keep a finished job's note, its rows or its result included."""
    file.parent.mkdir(parents=True, exist_ok=True)
    replace(file, gzip.compress(json.dumps(rounded(note)).encode(), mtime=0))


def read(file: Path) -> dict:
    """A record in today's terms: edition, knobs and the defaults behind them, seconds, `rows` or `result`.

    Knobs that are gone since are left out, so that what they said is no reason to train again.
    """
    text = gzip.decompress(file.read_bytes()).decode()
    for old, new in RENAMED.items():
        text = text.replace(old, new)
    record = {"edition": 1} | json.loads(text)  # the first edition did not say so
    return record | {"knobs": known(record["knobs"])}


def known(knobs: dict) -> dict:
    """The knobs that there still are, also those of the run behind a sampling pass."""
    return {name: known(value) if isinstance(value, dict) else value for name,
            value in knobs.items() if name in KNOBS}


def recipe() -> dict:
    """The defaults that a job's knobs leave unsaid, as plain JSON values."""
    return json.loads(json.dumps({"config": dataclasses.asdict(Config()),
                                  "world": dataclasses.asdict(World())}))


def changes(old: dict, knobs: dict) -> dict:
    """{name: [then, now]} of the defaults that differ today and that `knobs` does not set.

    Names that only one of the two recipes has, knobs added or gone since, count for nothing.
    """
    now = recipe()
    pairs = {name: [then, now[part][name]] for part in old for name,
             then in old[part].items() if name in now[part]}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1] and name not in knobs}


def replace(file: Path, content: bytes) -> None:
    """Write a file in one step, so that no reader sees half of it."""
    aside = file.with_suffix(".tmp")
    aside.write_bytes(content)
    aside.replace(file)


def rounded(value):
    """The same JSON value with DIGITS significant digits."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {name: rounded(v) for name, v in value.items()}
    return [rounded(v) for v in value] if isinstance(value, list) else value
