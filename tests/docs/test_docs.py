"""What the documents name is there: files, functions, flags, commands, metrics, tests."""

import ast
import re
import shlex
from pathlib import Path

import pytest
from conftest import ROOT, jsonl

from config import Config, parse_config
from eval import EvalConfig, parse_command
from tools.convert import Command

FILES = [
    path for folder in (".", "docs", "bench", "studies") for path in (ROOT / folder).glob("*.md")
]
TEXT = {path.relative_to(ROOT).as_posix(): path.read_text() for path in FILES}
README = TEXT["README.md"]
PARSERS = {"train.py": parse_config, "eval.py": parse_command}
# Flags of torchrun, of docker, of vLLM and of the official code; one with a hyphen is never ours.
OTHERS = "nproc_per_node nnodes rdzv_id rdzv_backend rdzv_endpoint ipc host port add_oat_evaluate"
BLOCK = re.compile(r"^```\w*\n(.*?)^```", flags=re.M | re.S)


def names_in(path: Path) -> set[str]:
    """Functions and classes of a file."""
    kinds = (ast.ClassDef, ast.FunctionDef)
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)}


def commands() -> list[tuple[str, str]]:
    """(program, arguments) of each command in the documents that runs train.py or eval.py."""
    found = []
    for text in [text.replace("\\\n", " ") for text in TEXT.values()]:
        lines = [line.strip() for block in BLOCK.findall(text) for line in block.splitlines()]
        lines += re.findall(r"`([^`\n]+)`", BLOCK.sub("", text))
        for line in lines:
            match = re.match(r"(?:\w+=\$.)?(?:python|torchrun) .*?((?:train|eval)\.py)(.*)", line)
            if match and not re.search("NAME|--help", line):
                found.append((match[1], re.split(r" #| \| ", match[2])[0]))
    return found


@pytest.mark.parametrize("document", TEXT)
def test_files_and_functions_exist(document):
    """Each `file.py`, `folder/file.py:name`, configuration, document and relative link is there."""
    text, missing = TEXT[document], []
    for name, function in re.findall(r"`((?:[\w.-]+/)*[\w.-]+\.(?:py|yaml|md))(?::(\w+))?`", text):
        path = next((p for p in (ROOT / name, ROOT / "configs" / name) if p.exists()), None)
        if path is None or function and function not in names_in(path):
            missing.append(f"{name}:{function}")
    links = re.findall(r"\]\((?!http)([^)#]+)\)", text)
    assert not missing + [
        link for link in links if not (ROOT / document).parent.joinpath(link).exists()
    ]


def test_flags_exist():
    """Each `--flag` of a document is one of some program of ours."""
    known = {"config", "help", *OTHERS.split()}
    for cls in (Config, EvalConfig, Command):
        known |= cls.__dataclass_fields__.keys()
    for folder in ("tools", "worlds", "bench", "studies"):
        for file in (ROOT / folder).glob("*.py"):
            known |= {*re.findall(r'add_argument\(\s*"--(\w+)"', file.read_text())}
    for name, text in TEXT.items():
        code = "".join(re.findall(r"^```.*?^```|`[^`\n]+`", text, flags=re.M | re.S))
        flags = {*re.findall(r"(?<![\w-])--([a-z]\w*)(?![\w-])", code)}
        assert flags <= known, name


@pytest.mark.parametrize("program, arguments", commands())
def test_commands_parse(program, arguments, monkeypatch):
    """Each command shown is taken, if the files that it names are there."""
    monkeypatch.setattr(Path, "exists", lambda path: True)
    monkeypatch.chdir(ROOT)
    # The reader's own file is a copy of this one.
    arguments = re.sub(r"(?<= )\w+\.yaml", "configs/own-model.yaml", arguments)
    arguments = re.sub(r"\$\w+", "1", arguments)  # a variable of the shell
    argv = shlex.split(arguments.replace("$'", "'").removesuffix(" &"))
    assert PARSERS[program](argv)


# ---- the README ----------------------------------------------------------------------------------


def test_the_map_is_the_root():
    """README lists the twelve modules at the root, once each."""
    rows = re.findall(r"^\| `(\w+\.py)` \|", README, flags=re.M)
    assert sorted(rows) == sorted(path.name for path in ROOT.glob("*.py"))


def test_every_line_of_algorithm_1_is_covered():
    """The table of docs/paper.md names lines 1 to 32, but for those that only branch or loop."""
    covered = set()
    for lines in re.findall(r"^\| (\d[\d–, ]*) \|", TEXT["docs/paper.md"], flags=re.M):
        for part in lines.split(", "):
            first, _, last = part.partition("–")
            covered |= set(range(int(first), int(last or first) + 1))
    assert set(range(1, 33)) - covered <= {3, 14, 19, 20, 29, 30}


# ---- the others ----------------------------------------------------------------------------------


def test_every_promise_names_tests_that_exist():
    """Each row of docs/reliability.md names test files, and functions that stand in one of them."""
    rows = re.findall(r"^\|.*\|$", TEXT["docs/reliability.md"], flags=re.M)[2:]
    assert len(rows) >= 10
    for row in rows:
        files = re.findall(r"`(tests/[\w/]+\.py)`", row)
        there = set().union(*(names_in(ROOT / file) for file in files))
        assert files, row
        assert set(re.findall(r"`(test_\w+)`", row)) <= there, row


def test_every_metric_is_listed_and_every_listed_metric_is_measured(finished_run):
    """docs/metrics.md has the metrics that a run logs, a variable part as <variable>."""
    listed = re.findall(r"^\| `([a-z]+/[^`]+)` \|", TEXT["docs/metrics.md"], flags=re.M)
    assert len(listed) == len(set(listed))
    logged = {name for row in jsonl(finished_run / "metrics.jsonl") for name in row} - {"step"}
    measured = set()
    for name in listed:
        form = re.sub(r"<\w+>", "[^/]+", name)
        found = {n for n in logged if re.fullmatch(form, n)}
        measured |= found
        assert found or name in ("reward/<name>/count", "time/save"), name  # not in so short a run
    assert measured == logged
