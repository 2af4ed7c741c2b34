"""The house: which room may import which."""

import ast
import re
import sys
from dataclasses import asdict, fields
from graphlib import TopologicalSorter
from pathlib import Path

from config import parse_config
from exgrpo import Knobs

HOUSE = Path(__file__).parent.parent
ROOT = {path.stem for path in HOUSE.glob("*.py")}
TOP = {"tools", "bench", "studies"}
LOW = {"worlds", "verifier", "runtime"}
ISLAND = {"exgrpo", "buffer", "sampler", "loss"}  # what a trainer of somebody else's can take


def imported(path: Path) -> set[str]:
    """The modules and folders that a file imports, in functions and under TYPE_CHECKING too."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.append(node.module)
    return {name.partition(".")[0] for name in names}


def test_arrows():
    """Imports go from tools and bench to the root, then to the low rooms, never up or round.

    No file has the name of a library that it imports.
    """
    wrong, below = [], {}  # below: module of the root -> those of the root that it imports
    files = [*HOUSE.glob("*.py")]
    for folder in TOP | LOW:
        files += (HOUSE / folder).rglob("*.py")
    for path in files:
        name = str(path.relative_to(HOUSE))
        folder = name.partition("/")[0]
        imports = imported(path)
        if folder in LOW:
            wrong += [f"{name}: {module}" for module in imports & (ROOT | TOP | LOW) - {folder}]
        elif folder == name:
            wrong += [f"{name}: {module}" for module in imports & TOP]
            below[path.stem] = imports & ROOT
        if path.stem in imports - {folder}:
            wrong.append(f"{name}: a library of that name")
    assert wrong == []
    TopologicalSorter(below).prepare()  # CycleError


def test_the_island_imports_nothing_but_itself():
    """Its four files need numpy, torch, safetensors and each other, and no more."""
    allowed = ISLAND | {"numpy", "torch", "safetensors"} | sys.stdlib_module_names
    for module in ISLAND:
        assert imported(HOUSE / f"{module}.py") <= allowed, module


def test_the_knobs_of_the_island_are_those_of_the_paper(monkeypatch):
    """They are the attributes that exgrpo.py reads, no more, with the values of configs/."""
    monkeypatch.setattr(Path, "exists", lambda path: True)  # the files of questions, too
    paper = parse_config(["--config", "configs/qwen2.5-math-7b.yaml"])
    read = set(re.findall(r"\bknobs\.(\w+)", (HOUSE / "exgrpo.py").read_text()))
    knobs = {f.name for f in fields(Knobs)}
    assert read == knobs | {"max_replayed"}
    assert asdict(Knobs()) == {name: getattr(paper, name) for name in knobs}
