"""Dataclasses whose fields are knobs: with a meaning and a range, set by a YAML file and by flags.

    @dataclass
    class Config:
        lr: float = knob(4e-5, "AdamW learning rate.", POSITIVE)

    values = parse_flags(Config, ["--config", "run.yaml", "--lr", "1e-6"], "What the program does.")
"""

import dataclasses
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import field, make_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, get_args, get_origin

import yaml

POSITIVE = 1e-300  # the least value of a knob that must be above 0


def knob(default, help: str, least: float = -math.inf, most: float = math.inf):
    """One field of a configuration: its default, what `--help` says of it, and its range."""
    about = {"help": help, "least": least, "most": most}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=about)
    return field(default=default, metadata=about)


def out_of_range(config) -> Iterator[str]:
    """A sentence for every value of a dataclass of knobs that is no choice, not finite or out of range."""
    for f in dataclasses.fields(config):
        value, choices, (_, least, most) = getattr(config, f.name), get_args(f.type), f.metadata.values()
        if get_origin(f.type) is Literal and value not in choices:
            yield f"{f.name} must be one of {', '.join(choices)}, got {value!r}"
        elif isinstance(value, float) and not math.isfinite(value):
            yield f"{f.name} must be a finite number, got {value}"
        elif f.type in (int, float) and not least <= value <= most:
            bound = "above 0" if least == POSITIVE else f"at least {least}"
            yield f"{f.name} must be {bound if most == math.inf else f'in [{least}, {most}]'}, got {value}"


def parse_flags(cls: type, argv: list[str] | None, description: str,
                file: type | None = None) -> dict:
    """The knobs of a dataclass as flags set them, and beneath them those of a `--config FILE.yaml` of `file`.

    A knob of `file` that the dataclass has not is left out.

    SystemExit with the nearest known name for an unknown flag; ValueError as `read_yaml`.
    """
    from transformers import HfArgumentParser  # slow to import, needed only here

    flags = [(f.name, f.type, field(default=f.default, default_factory=f.default_factory,
                                    metadata={"help": f.metadata["help"]})) for f in dataclasses.fields(cls)]
    parser = HfArgumentParser(make_dataclass("Flags", flags), allow_abbrev=False, description=description)
    if file:
        parser.add_argument("--config", metavar="FILE", help="YAML file of knobs; flags override it.")
    known, rest = parser.parse_known_args(argv)
    for flag in [word.partition("=")[0] for word in rest if word.startswith("--")]:
        names = get_close_matches(flag[2:], [f.name for f in dataclasses.fields(cls)], n=3, cutoff=0.4)
        nearest = f"nearest: {', '.join('--' + name for name in names)}" if names else "none is near"
        raise SystemExit(f"unknown flag {flag}; {nearest} (--help lists all)")
    if name := getattr(known, "config", None):
        own = {f.name for f in dataclasses.fields(cls)}
        parser.set_defaults(**{n: v for n, v in read_yaml(file, name).items() if n in own})
    values = vars(parser.parse_args(argv))
    values.pop("config", None)
    return values


def read_yaml(cls: type, file: str) -> dict:
    """The knobs set in a YAML file; ValueError names unknown ones and values of the wrong type."""
    try:
        knobs = yaml.safe_load(Path(file).read_text()) or {}
    except yaml.YAMLError as error:
        raise ValueError(f"{file}: not YAML: {error}") from error
    defaults = dataclasses.asdict(cls())
    unknown = [name for name in knobs if name not in defaults] if isinstance(knobs, dict) else [knobs]
    if unknown:
        raise ValueError(f"{file}: unknown knobs {unknown}; `train.py --help` lists all")
    for name, value in knobs.items():
        kind = type(defaults[name])
        if kind is float and type(value) in (int, str):
            with suppress(ValueError):
                knobs[name] = value = float(value)  # YAML reads 1e-6 as text
        if type(value) is not kind:
            switch = kind is str and type(value) is bool
            hint = " (YAML reads on and off as true and false: put them in quotes)" if switch else ""
            raise ValueError(f"{file}: {name} must be {kind.__name__}, got {value!r}{hint}")
    return knobs
