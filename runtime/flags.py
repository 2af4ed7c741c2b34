"""Read knobs from a YAML file and from flags into a dataclass that gives meanings and ranges.

    @dataclass
    class Config:
        lr: float = knob(4e-5, "AdamW learning rate.", POSITIVE)

    values = parse_flags(Config, ["--config", "run.yaml", "--lr", "1e-6"], "What the program does.")

A line `lr: 1e-6` of the file is the argument `--lr=1e-6`: one parser reads both, and an error is
the same.
"""

import argparse
import dataclasses
import math
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import field
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import Literal, get_args, get_origin

import yaml

from runtime.console import open_streams, printable
from runtime.faults import tell_torchrun
from runtime.tables import each_once

POSITIVE = 1e-300  # the least value of a knob that must be above 0
SWITCH = {"true": True, "on": True, "false": False, "off": False}
NULL = "tag:yaml.org,2002:null"  # what `lr:`, `lr: null` and `lr: ~` are to YAML
SPELLINGS = (
    "A list is [a, b] in the file and --files a b as a flag, an empty one [] and --files alone; an"
    ' empty text is "" in both. There is no null: leave the knob out for its default, or say auto'
    " where help does."
)


def knob(default, help: str, least: float = -math.inf, most: float = math.inf):
    """Return a dataclass field with its default, what `--help` says of it, and its range."""
    about = {"help": help, "least": least, "most": most}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=about)
    return field(default=default, metadata=about)


def out_of_range(config) -> Iterator[str]:
    """Yield a sentence for every knob whose value is no choice, not finite or out of range."""
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        choices = get_args(f.type)
        least = f.metadata["least"]
        most = f.metadata["most"]
        if get_origin(f.type) is Literal and value not in choices:
            yield f"{f.name} must be one of {', '.join(choices)}, got {value!r}"
        elif isinstance(value, float) and not math.isfinite(value):
            yield f"{f.name} must be a finite number, got {value}"
        elif isinstance(value, int | float) and not least <= value <= most:
            bound = f"in [{least}, {most}]"
            if most == math.inf:
                bound = "above 0" if least == POSITIVE else f"at least {least}"
            yield f"{f.name} must be {bound}, got {value}"


def parse_flags(
    cls: type,
    argv: list[str] | None,
    description: str,
    passed_over: Collection[str] = (),
    file_only: Collection[str] = (),
) -> dict:
    """Return the knobs of a dataclass as flags set them, or else as `--config FILE.yaml` does.

    passed_over: knobs that are no flags here; a file may set them for another command. file_only:
    those of them that are read from the file all the same. Raises SystemExit with a sentence for a
    wrong name or value, and ValueError for a file that cannot be read as arguments. It uses
    argparse, as transformers' own parser takes seconds to import.
    """
    parser = _Parser(
        usage="%(prog)s [--config FILE.yaml] [--KNOB VALUE ...]",
        description=description,
        epilog=SPELLINGS,
        allow_abbrev=False,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    for f in dataclasses.fields(cls):
        if f.name not in passed_over:
            _add(parser, f)
    help = "YAML file of knobs; flags override it."
    parser.add_argument("--config", metavar="FILE", action="append", default=[], help=help)
    words = sys.argv[1:] if argv is None else argv
    values = parser.read(words)
    files = values["config"]
    if files:
        # The words alone were right, so what is wrong now stands in the file.
        parser.where = f"{files[0]}: "
        for f in dataclasses.fields(cls):
            if f.name in file_only:
                _add(parser, f)
        ignored = set(passed_over).difference(file_only)
        values = parser.read(_arguments(files[0], values, ignored) + words)
    del values["config"]
    return values


class _Parser(argparse.ArgumentParser):
    where = ""  # what a message begins with

    def read(self, words: list[str]) -> dict:
        """Return the value of every knob, or refuse an unknown name with the nearest ones."""
        known, unknown = self.parse_known_args(words)
        values = vars(known)
        if unknown:
            flag = unknown[0].partition("=")[0]
            names = get_close_matches(flag[2:], values, n=3, cutoff=0.4)
            nearest = ", ".join(f"--{name}" for name in names) or "none"
            self.error(f"unknown flag {flag}; nearest: {nearest}")
        if len(files := values["config"]) > 1:
            self.error(
                f"--config can be given once, not as {' and '.join(files)}: flags override it"
            )
        return values

    def error(self, message: str):
        """Refuse in one sentence, without argparse's list of all flags before it."""
        raise SystemExit(f"{self.where}{message} (--help lists all)")


def _add(parser: argparse.ArgumentParser, knob: dataclasses.Field) -> None:
    """Add the flag of a knob to the parser; a switch without a value is true."""
    kind = knob.type
    help = knob.metadata["help"]
    default = (
        knob.default if knob.default_factory is dataclasses.MISSING else knob.default_factory()
    )
    if default is None:
        default = "auto"
    if kind is bool:
        how = {"type": _switch, "nargs": "?", "const": True, "metavar": "true|false"}
    elif get_origin(kind) is Literal:
        how = {"choices": get_args(kind)}
    elif get_origin(kind) is list:
        how = {"nargs": "*", "type": os.path.expanduser}
    elif kind is str:
        how = {"type": os.path.expanduser}
    else:
        how = {"type": _number(kind)}
    parser.add_argument(f"--{knob.name}", default=default, help=help, **how)


def _switch(text: str) -> bool:
    if text.lower() not in SWITCH:
        raise argparse.ArgumentTypeError(f"must be true or false, got {text!r}")
    return SWITCH[text.lower()]


def _number(kind: type) -> Callable:
    """Return the function from text to a number, or from auto to None where `kind` has None.

    It refuses 010, which is 8 to YAML and 10 to Python.
    """
    may_be_auto = kind in (int | None, float | None)
    if may_be_auto:
        kind = get_args(kind)[0]

    def number(text: str):
        if may_be_auto and text == "auto":
            return None
        if re.match(r"[-+]?0\d", text):
            raise ValueError
        return kind(text)

    number.__name__ = kind.__name__  # argparse's messages show this name
    return number


def _arguments(file: str, own: dict, passed_over: Collection[str]) -> list[str]:
    """Return the lines of a YAML file as arguments, every value as the text that stands there.

    own: the knobs of the command, with values that tell which are lists. Raises ValueError where
    the file cannot be read so.
    """
    arguments = {}
    try:
        for knob, node in each_once(_lines(file)).items():
            if knob in passed_over:
                arguments[knob] = []
            elif isinstance(own.get(knob, []), list) and isinstance(node, yaml.SequenceNode):
                items = [_text(item) for item in node.value]
                if any(item.startswith("-") for item in items):
                    raise ValueError(
                        f"{knob}: an item that begins with - would be a flag; write ./-name"
                    )
                arguments[knob] = [f"--{knob}", *items]
            else:
                arguments[knob] = [f"--{knob}={_text(node)}"]
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from error
    return list(chain(*arguments.values()))


def _text(node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode) or node.tag == NULL:
        raise ValueError(
            f"line {node.start_mark.line + 1} has no value that a flag can have. {SPELLINGS}"
        )
    return node.value


def _lines(file: str) -> list[tuple[str, yaml.Node]]:
    """Return the (name, value) pairs of a YAML file."""
    text = Path(file).read_text(encoding="utf-8")
    if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):
        raise ValueError("aliases (*name) are not understood: repeat the value")
    root = yaml.compose(text, yaml.SafeLoader)
    if root is None:
        return []
    if not isinstance(root, yaml.MappingNode):
        raise ValueError("it must consist of lines `knob: value`")
    return [(str(key.value), value) for key, value in root.value]


def or_refuse(read: Callable):
    """Return what `read()` returns, or end this process with its refusal.

    The refusal is one sentence on stderr, without traceback; torchrun's summary repeats it. This is
    best used before anything heavy is imported.
    """
    open_streams()
    try:
        return read()
    except (OSError, RuntimeError, SystemExit, ValueError, yaml.YAMLError) as error:
        if isinstance(error, SystemExit) and not isinstance(error.code, str):  # --help
            raise
        said = printable(str(error))
        once(said)
        tell_torchrun(said)
        sys.exit(1)


def loading() -> None:
    """Say what the user is waiting for while imports last, and how torch is to keep a GPU's memory.

    Segments that grow leave fewer gaps. torch reads this when it is imported; a user's own choice
    stands.
    """
    once("loading PyTorch and transformers, then the model ...")
    if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")


def once(text: str) -> None:
    """Print a line on stderr, by one rank of each machine."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(text, file=sys.stderr)
