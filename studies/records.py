"""What is kept of a finished job, and by which edition of the code it was made.

A record, `studies/results/runs/NAME.json.gz`, is committed: numbers and pictures can be made again without
training, also after the code has changed. Records of different editions are never compared.
"""

import dataclasses
import gzip
import json
from pathlib import Path

from config import Config
from runtime.flags import parse_flags
from worlds.arithmetic import PRESETS, World

EDITION = 3  # raise it with any change of the code after which a run repeats no more to the bit
DIGITS = 5  # significant digits of a record's numbers


def write(file: Path, note: dict) -> None:
    """Keep a finished job's note, its rows and its result included."""
    file.parent.mkdir(parents=True, exist_ok=True)
    replace(file, gzip.compress(json.dumps(rounded(note)).encode(), mtime=0))


def read(file: Path) -> dict:
    """A record: edition, knobs and the defaults behind them, seconds, `rows` of metrics, `result`."""
    return json.loads(gzip.decompress(file.read_bytes()))


def recipe(knobs: dict) -> dict:
    """The values that a job's knobs leave unsaid, from its config file or defaults, as plain JSON values."""
    flags = ["--config", knobs["config"]] if "config" in knobs else []
    worlds = {name: dataclasses.asdict(world) for name, world in PRESETS.items()}
    return json.loads(json.dumps({"config": parse_flags(Config, flags, "", Config), "worlds": worlds}))


def other(then: dict, now: dict) -> dict:
    """{name: [then, now]} of the knobs that differ, without how many checkpoints are kept."""
    names = (set(then) | set(now)) - {"keep"}
    return {n: [then.get(n), now.get(n)] for n in sorted(names) if then.get(n) != now.get(n)}


def changes(old: dict, knobs: dict) -> dict:
    """{name: [then, now]} of the values that differ today and that `knobs` does not set.

    Names that only one of the two recipes has, knobs added or gone since, count for nothing; a constant of
    the world that was added since stood at its default.
    """
    now = recipe(knobs)
    shared = set(old["config"]) & set(now["config"])
    pairs = {name: [old["config"][name], now["config"][name]] for name in shared}
    world, defaults = knobs.get("world", "easy"), json.loads(json.dumps(dataclasses.asdict(World())))
    if "config" not in knobs:  # else it is of the real model, and of no world
        pairs[f"world {world}"] = [defaults | old["worlds"].get(world, {}), now["worlds"].get(world)]
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
