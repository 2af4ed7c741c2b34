"""What docs/paper.md and docs/change-it.md quote is in the code, and the shown change works."""

import ast
import re
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT

PAPER, CHANGES = (ROOT.joinpath("docs", name).read_text() for name in ("paper.md", "change-it.md"))
QUOTE = re.compile(r"`([\w/]+\.py):(\w+)`: `([^`]+)`")  # `file.py:name`: `code`
SYMBOLS = {"E", "S", "K", "k", "B", "n", "ρ", "μ", "σ", "π_old", "π_past", "w*", "A", "L_max"}


def parts(file: str, name: str) -> list[str]:
    """The source of every function and class of that name in a file."""
    text, kinds = (ROOT / file).read_text(), (ast.ClassDef, ast.FunctionDef)
    nodes = [
        node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds) and node.name == name
    ]
    return [ast.get_source_segment(text, node) for node in nodes]


@pytest.mark.parametrize(
    "document, at_least", [(PAPER, 10), (CHANGES, 9)], ids=["paper", "change-it"]
)
def test_quoted_lines_are_in_the_code(document, at_least):
    """Each `file.py:name`: `code` is found in the function or class named."""
    quotes = QUOTE.findall(document)
    wrong = [quote for quote in quotes if not any(quote[2] in part for part in parts(*quote[:2]))]
    assert len(quotes) >= at_least
    assert wrong == []


def test_each_symbol_has_its_identifier():
    """Every row of the glossary names variables, fields or arguments of its function or class."""
    rows = re.findall(
        r"^\| ([^|]+) \| [^|]+ \| (`[^|]+`) \| `([\w/]+\.py):(\w+)` \|$", PAPER, flags=re.M
    )
    assert {symbol for row in rows for symbol in row[0].replace("\\", "").split(", ")} >= SYMBOLS
    for symbols, identifiers, file, name in rows:
        [source] = parts(file, name)
        nodes = [*ast.walk(ast.parse(source))]
        known = {
            getattr(node, key, None) for node in nodes for key in ("id", "arg", "attr", "name")
        }
        assert {*re.findall(r"`(\w+)`", identifiers)} <= known, symbols


def test_the_changes_carried_out(tmp_path, monkeypatch):
    """Each shown test fails before its change, and both pass after both."""
    tests, diffs = (
        re.findall(rf"^```{language}\n(.*?)^```$", CHANGES, flags=re.M | re.S)
        for language in ("python", "diff")
    )
    names = re.findall(r"^def (test_\w+)", "".join(tests), flags=re.M)
    with_tests = "\n\n".join([(ROOT / "tests/test_exgrpo.py").read_text(), *tests])
    shutil.copy(ROOT / "exgrpo.py", tmp_path)
    exec(with_tests, before := {"__name__": "before"})
    assert len(names) == len(diffs) == 2
    for name, diff in zip(names, diffs):
        with pytest.raises(ValueError, match="_selection must be one of"):
            before[name]()
        subprocess.run(["git", "apply"], input=diff, text=True, cwd=tmp_path, check=True)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "exgrpo")
    exec(with_tests, after := {"__name__": "after"})
    for name in names:
        after[name]()
