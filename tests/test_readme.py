"""The README's maps point at code that exists, so they cannot rot."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def definitions(file: str) -> set[str]:
    """Names of the classes and functions of a file."""
    kinds = (ast.ClassDef, ast.FunctionDef)
    return {node.name for node in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(node, kinds)}


def test_every_function_named_exists():
    """Each `file.py:name` of the README is a function or class of that file."""
    named = re.findall(r"`(\w+\.py):(\w+)`", README)
    missing = [f"{file}:{name}" for file, name in named if name not in definitions(file)]
    assert len(named) > 25 and not missing


def test_every_file_named_exists_and_every_file_is_named():
    """The file map holds exactly the top-level files."""
    named = set(re.findall(r"`(\w+\.py)`", README))
    assert named == {path.name for path in ROOT.glob("*.py")}


def test_every_line_of_algorithm_1_is_covered():
    """The table names lines 1 to 32, apart from those that only branch or loop."""
    covered = set()
    for first, last in re.findall(r"^\| (\d+)(?:–(\d+))? \|", README, flags=re.M):
        covered |= set(range(int(first), int(last or first) + 1))
    assert set(range(1, 33)) - covered <= {3, 14, 19, 20, 29, 30}


def test_every_flag_named_exists():
    """Each `--flag` that the README gives to train.py is a knob."""
    from config import Config

    others = {"gpus", "memory"}  # tools/plan.py's
    others |= {"nproc_per_node", "shutdown", "config", "help", "data"}  # torchrun's and the parser's
    others |= {"output", "question", "answer", "extract", "avg_samples"}  # eval.py's and convert.py's
    flags = set(re.findall(r"--(\w+)", README)) - others
    assert flags <= set(Config.__dataclass_fields__)


def test_every_promise_names_a_test_that_exists():
    """The reliability table points at tests."""
    tests = set().union(*(definitions(str(path.relative_to(ROOT))) for path in (ROOT / "tests").rglob("test_*.py")))
    named = set(re.findall(r"`(test_\w+)`", README))
    assert len(named) >= 10 and named <= tests
