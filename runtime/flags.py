"""Dataclasses whose fields are knobs: with a meaning and a range, set by a YAML file and by flags.

    @dataclass
    class Config:
        lr: float = knob(4e-5, "AdamW learning rate.", POSITIVE)

    values = parse_flags(Config, ["--config", "run.yaml", "--lr", "1e-6"], "What the program does.")
"""

import argparse
import dataclasses
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import field
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, get_args, get_origin

import yaml

from runtime.console import printable
from runtime.faults import tell_torchrun

POSITIVE = 1e-300  # the least value of a knob that must be above 0
AUTO = "auto (0)"  # in the help of a number: the word auto stands for 0


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
            if most < math.inf:
                bound = f"at most {most}" if least == -math.inf else f"in [{least}, {most}]"
            yield f"{f.name} must be {bound}, got {value}"


def parse_flags(cls: type, argv: list[str] | None, description: str, file: type | None = None) -> dict:
    """The knobs of a dataclass as flags set them, and beneath them those of a `--config FILE.yaml` of `file`,
    of which those that the dataclass has not are left out.

    SystemExit with a sentence for a wrong flag, and the nearest known name for an unknown one; ValueError as
    `read_yaml`. argparse, as transformers' own parser of dataclasses takes seconds to import.
    """
    parser = _Parser(description=description, allow_abbrev=False,
                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for f in dataclasses.fields(cls):
        _add(parser, f)
    if file:
        parser.add_argument("--config", metavar="FILE", help="YAML file of knobs; flags override it.")
    words = [_underscored(word) for word in (sys.argv[1:] if argv is None else argv)]
    known, rest = parser.parse_known_args(words)
    for flag in [word.partition("=")[0] for word in rest if word.startswith("--")]:
        names = get_close_matches(flag[2:], [f.name for f in dataclasses.fields(cls)], n=3, cutoff=0.4)
        nearest = f"nearest: {', '.join('--' + name for name in names)}" if names else "none is near"
        raise SystemExit(f"unknown flag {flag}; {nearest} (--help lists all)")
    if name := getattr(known, "config", None):
        own = {f.name for f in dataclasses.fields(cls)}
        parser.set_defaults(**{n: v for n, v in read_yaml(file, name).items() if n in own})
    values = vars(parser.parse_args(words))
    values.pop("config", None)
    return values


class _Parser(argparse.ArgumentParser):
    """Without the list of all flags before each message."""

    def error(self, message: str):
        raise SystemExit(f"{message} (--help lists all)")


def _add(parser: argparse.ArgumentParser, knob: dataclasses.Field) -> None:
    """The flag of a knob; a switch takes true or false as well, and has a negative beside it."""
    name, kind, help = f"--{knob.name}", knob.type, knob.metadata["help"].replace("%", "%%")
    default = knob.default if knob.default_factory is dataclasses.MISSING else knob.default_factory()
    about = {"default": default, "help": help}
    if kind is bool:
        parser.add_argument(name, type=_switch, nargs="?", const=True, metavar="true|false", **about)
        parser.add_argument(f"--no_{knob.name}", action="store_false", dest=knob.name,
                            default=argparse.SUPPRESS, help=f"The same as {name} false.")
    elif get_origin(kind) is Literal:
        parser.add_argument(name, choices=get_args(kind), **about)
    elif get_origin(kind) is list:
        parser.add_argument(name, type=get_args(kind)[0], nargs="+", **about)
    elif AUTO in help:
        parser.add_argument(name, type=_or_auto(kind), metavar="auto|NUMBER", **about)
    else:
        parser.add_argument(name, type=kind, **about)


def _underscored(word: str) -> str:
    """`--run-dir=A-B` as `--run_dir=A-B`; what is no flag, as it is."""
    name, equals, value = word.partition("=")
    return f"--{name[2:].replace('-', '_')}{equals}{value}" if word.startswith("--") else word


def _switch(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"must be true or false, got {text!r}")
    return text.lower() == "true"


def _or_auto(kind: type) -> Callable:
    """`kind`, to which the word auto is 0."""
    def number(text: str):
        return kind(0 if text == "auto" else text)

    number.__name__ = kind.__name__  # argparse's messages have it
    return number


def read_yaml(cls: type, file: str) -> dict:
    """The knobs set in a YAML file; ValueError names the file, unknown knobs and values of the wrong type."""
    try:
        text = Path(file).read_text(encoding="utf-8")
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):
            raise ValueError("aliases (*name) are not read, as a few lines of them can fill the memory")
        knobs = yaml.load(text, _Once) or {}
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ValueError(f"{file} cannot be read, or is not YAML: {error}") from error
    fields = {f.name: f for f in dataclasses.fields(cls)}
    unknown = [name for name in knobs if name not in fields] if isinstance(knobs, dict) else [knobs]
    if unknown:
        raise ValueError(f"{file}: unknown knobs {unknown!r:.200}; `train.py --help` lists all")
    return {name: _typed(fields[name], value, file) for name, value in knobs.items()}


class _Once(yaml.SafeLoader):
    """Refuses a key that stands there twice, of which YAML would take the last."""

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value]
        if twice := [key for key in keys if keys.count(key) > 1]:
            raise yaml.YAMLError(f"{twice[0]} stands there twice")
        return super().construct_mapping(node, deep)


def _typed(knob: dataclasses.Field, value, file: str):
    """A value from YAML as its knob's type; ValueError names file, knob and advice."""
    is_list = get_origin(knob.type) is list
    kind = list if is_list else str if get_origin(knob.type) is Literal else knob.type
    if kind is float and type(value) in (int, str) and value != "auto":
        with suppress(ValueError, OverflowError):
            value = float(value)  # YAML reads 1e-6 as text
    if value == "auto" and AUTO in knob.metadata["help"]:
        value = kind(0)
    if type(value) is kind and not (is_list and any(type(item) is not str for item in value)):
        return value
    switch = kind is str and type(value) is bool
    hint = " (YAML reads on and off as true and false: put them in quotes)" if switch else ""
    what = "a list of texts, in quotes where YAML reads something else" if is_list else kind.__name__
    raise ValueError(f"{file}: {knob.name} must be {what}, got {value!r:.200}{hint}")


def or_refuse(read: Callable):
    """What `read()` returns. Its refusal is one sentence on stderr, without traceback, and ends this process.

    Best used before anything heavy is imported. torchrun's summary repeats the sentence.
    """
    try:
        return read()
    except (OSError, SystemExit, ValueError) as error:
        if isinstance(error, SystemExit) and not isinstance(error.code, str):  # --help
            raise
        said = printable(str(error))
        if os.environ.get("LOCAL_RANK", "0") == "0":  # once is enough
            print(said, file=sys.stderr)
        tell_torchrun(said)
        sys.exit(1)
