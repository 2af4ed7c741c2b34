"""The house: which room may know which, and how big a room may be."""

import ast
from pathlib import Path

import pytest

HOUSE = Path(__file__).parent.parent
ROOT = set("train exgrpo sampler buffer loss policy model rollout reward data config eval".split())
TOP, LOW = {"tools", "bench", "studies"}, {"worlds", "verifier", "runtime"}


def rooms(house: Path) -> list[Path]:
    """Every Python file of the root and the folders."""
    return sorted([*house.glob("*.py"), *(path for f in TOP | LOW for path in (house / f).rglob("*.py"))])


def imported(path: Path) -> set[str]:
    """The modules and folders that a file imports anywhere, in functions and under TYPE_CHECKING too."""
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    return {name.partition(".")[0] for name in names}


def wrong_arrows(house: Path) -> list[str]:
    """`file: module` of each import upwards, sideways below, in a circle, or of the file's own name."""
    wrong, below = [], {}
    for path in rooms(house):
        name, imports = str(path.relative_to(house)), imported(path)
        folder = name.partition("/")[0]
        if folder in LOW:
            wrong += [f"{name}: {module}" for module in imports & ((ROOT | TOP | LOW) - {folder})]
        elif folder not in TOP:
            wrong += [f"{name}: {module}" for module in imports & TOP]
            below[path.stem] = imports & ROOT
        if path.stem in imports - {folder}:
            wrong.append(f"{name}: a library of that name")
    for _ in ROOT:  # what is imported by what is imported, and so on
        below = {m: reach.union(*(below.get(other, set()) for other in reach)) for m, reach in below.items()}
    return sorted(wrong + [f"{module}.py: in a circle" for module, reach in below.items() if module in reach])


def test_arrows():
    """tools, bench, studies -> root -> worlds, verifier, runtime: nothing upwards, no circle."""
    assert wrong_arrows(HOUSE) == []


@pytest.mark.parametrize("file, line, wrong", [
    ("loss.py", "import data\nfrom runtime import ranks\nimport worlds.arithmetic", []),
    ("tools/plan.py", "from config import Config\nimport runtime.ranks\nimport tools.export", []),
    ("loss.py", "def f():\n    from tools.plan import plan", ["loss.py: tools"]),
    ("runtime/memory.py", "if TYPE_CHECKING:\n    from config import Config", ["runtime/memory.py: config"]),
    ("worlds/gym.py", "from verifier import pool", ["worlds/gym.py: verifier"]),
    ("runtime/ranks.py", "import bench", ["runtime/ranks.py: bench"]),
    ("data.py", "def f():\n    import loss", ["data.py: in a circle", "loss.py: in a circle"]),
    ("runtime/peft.py", "from peft import LoraConfig", ["runtime/peft.py: a library of that name"]),
])
def test_a_wrong_arrow_is_found(tmp_path, file, line, wrong):
    """In a made-up house of three rooms, a file more: train -> loss -> data, nothing wrong before."""
    house = {"train.py": "from runtime import ranks\nimport loss", "loss.py": "import data", "data.py": ""}
    for name, text in (house | {file: line}).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert wrong_arrows(tmp_path) == wrong


def lines(paths) -> dict[str, list[str]]:
    return {str(path.relative_to(HOUSE)): path.read_text().splitlines() for path in paths}


def test_the_root_is_twelve_modules_of_2450_lines():
    """The paper's twelve and no other; fewer than 16 files at the top of tests/."""
    root = lines(HOUSE.glob("*.py"))
    assert root.keys() == {f"{name}.py" for name in ROOT} and len([*HOUSE.glob("tests/*.py")]) < 16
    assert sum(map(len, root.values())) <= 2450


def test_rooms_are_of_readable_size():
    """At most 240 lines a file, 60 lines a function, and 110 columns, in the tests too."""
    house = lines(rooms(HOUSE))
    sizes = {name: len(text) for name, text in house.items() if len(text) > 240}
    for name, text in house.items():
        functions = [n for n in ast.walk(ast.parse("\n".join(text))) if isinstance(n, ast.FunctionDef)]
        sizes |= {f"{name}:{f.name}": "above 60" for f in functions if f.end_lineno - f.lineno >= 60}
    assert sizes == {}
    house |= lines(HOUSE.glob("tests/**/*.py"))
    assert [f"{name}: {line}" for name, text in house.items() for line in text if len(line) > 110] == []
