"""Read knobs from YAML files and from flags into a dataclass whose comments are the help, by tyro.

    config = parse(Config, ["--config", "run.yaml", "--lr", "1e-6"])

A line `lr: 1e-6` of a file becomes the flag `--lr=1e-6`, which stands before the user's own: one
parser reads both, and the last one wins.
"""

import argparse
import os

import tyro
import yaml
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec

from runtime.faults import is_first

# type of a field -> what its values are called
WORDS = {bool: {"true": True, "false": False, "on": True, "off": False}, type(None): {"auto": None}}
SPELLINGS = ConstructorRegistry()


@SPELLINGS.primitive_rule
def spelling(kind):
    """Read bools and None by their WORDS; `--resume` alone is true."""
    if words := WORDS.get(kind.type):
        return PrimitiveConstructorSpec(
            nargs=(0, 1) if kind.type is bool else 1,
            metavar="|".join(words),
            choices=tuple(words),
            instance_from_str=lambda given: words[given[0]] if given else True,
            is_instance=lambda value: isinstance(value, kind.type),
            str_from_instance=lambda value: [next(word for word in words if words[word] is value)],
        )


def parse(cls: type, argv: list[str] | None = None, of_others: set = frozenset()):
    """Return a `cls` with what flags say of its fields, or else the files of `--config FILE ...`.

    of_others: names of no field, which a file may have for another command. Raises SystemExit for a
    wrong flag, ValueError or YAMLError for a file that cannot be read as flags.
    """
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--config", nargs="+", action="extend", default=[])
    given, own = parser.parse_known_args(argv)
    flags = []
    for file in given.config:
        flags += flags_of(file, {*cls.__dataclass_fields__}, of_others)

    class Unchecked(cls):
        def __post_init__(self):
            """Nothing yet: tyro would print what `cls` raises as an error of a flag."""

    values = tyro.cli(
        Unchecked,
        description=cls.__doc__,
        args=flags + own,
        use_underscores=True,
        registry=SPELLINGS,
        config=[tyro.conf.FlagConversionOff],
        console_outputs=is_first(),
    )
    return cls(**vars(values))


def flags_of(file: str, names: set, of_others: set) -> list[str]:
    """Return the lines of a YAML file as flags, each value as the text that stands there."""
    with open(file, "rb") as stream:
        root = yaml.compose(stream, yaml.BaseLoader)
    if not isinstance(root, yaml.MappingNode):
        raise ValueError(f"{file}: must consist of lines `knob: value`")
    lines = {key.value: node.value for key, node in root.value}
    if len(lines) < len(root.value):
        raise ValueError(f"{file}: a knob stands there twice")
    if unknown := lines.keys() - names - of_others:
        raise ValueError(f"{file}: unknown knob {', '.join(sorted(unknown))} (--help lists all)")
    flags = []
    for name in lines.keys() & names:
        value = lines[name]
        if isinstance(value, list):
            flags += [f"--{name}", *[item.value for item in value]]
        else:
            flags.append(f"--{name}={os.path.expanduser(value)}")
    return flags
