"""What the documents name is there: files, functions, flags, commands, metrics, tests."""

import ast
import re
import shlex
from pathlib import Path

import pytest
from conftest import ROOT

from config import Config, parse_config
from eval import EvalConfig, means, parse_command
from runtime.flags import parse
from tools.convert import Command
from worlds.arithmetic import judge

FILES = [
    path for folder in (".", "docs", "bench", "studies") for path in (ROOT / folder).glob("*.md")
]
TEXT = {path.relative_to(ROOT).as_posix(): path.read_text() for path in FILES}
README = TEXT["README.md"]
CLASSES = {"train.py": Config, "eval.py": EvalConfig, "tools.convert": Command}
PARSERS = {
    "train.py": parse_config,
    "eval.py": parse_command,
    "tools.convert": lambda argv: parse(Command, argv),
}
CONFIGS = {program: cls.__dataclass_fields__ for program, cls in CLASSES.items()}
# Flags that are not ours: of torchrun, of docker, of the official code.
OTHERS = {"shutdown-timeout", "max-restarts", "ipc", "add_oat_evaluate"}
BLOCK = re.compile(r"^```\w*\n(.*?)^```", flags=re.M | re.S)


def names_in(path: Path) -> set[str]:
    """Functions and classes of a file."""
    kinds = (ast.ClassDef, ast.FunctionDef)
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)}


def commands() -> list[tuple[str, str]]:
    """(program, arguments) of each command in the documents that runs one of ours."""
    found = []
    for text in [text.replace("\\\n", " ") for text in TEXT.values()]:
        lines = [line.strip() for block in BLOCK.findall(text) for line in block.splitlines()]
        lines += re.findall(r"`([^`\n]+)`", BLOCK.sub("", text))
        for line in lines:
            match = re.match(
                r"(?:\w+=\$.)?(?:python|torchrun) .*?((?:train|eval)\.py|-m ([\w.]+))(.*)", line
            )
            if match and not re.search("vllm|NAME|--help", line):
                found.append((match[2] or match[1], re.split(r" #| \| ", match[3])[0]))
    return found


def flags_of(program: str) -> set[str]:
    """What a program takes, by its knobs or by its calls of `add_argument`."""
    if program in CONFIGS:
        return {*CONFIGS[program], "config", "help"}
    path = ROOT / program.replace(".", "/")
    source = (path / "__main__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
    knobs = [*CONFIGS["train.py"], "config"] if "parse_config" in source else []
    return {*re.findall(r'add_argument\(\s*"--(\w+)"', source), *knobs, "help"}


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
    """Each `--flag` of a command is one of its program's, and others are some program's."""
    assert len(commands()) > 25
    wrong = []
    for program, arguments in commands():
        wrong += [
            f"{program} --{f}"
            for f in set(re.findall(r"--([\w-]+)", arguments)) - flags_of(program)
        ]
    programs = {*CONFIGS, *dict(commands())}
    known = set().union(OTHERS, *(flags_of(program) for program in programs))
    for name, text in TEXT.items():
        prose = "".join(re.findall(r"`[^`\n]+`", BLOCK.sub("", text)))
        wrong += [f"{name}: --{f}" for f in set(re.findall(r"--([a-z][\w-]*)", prose)) - known]
    assert not wrong


def test_torchrun_is_told_to_wait():
    """Each torchrun of train.py or eval.py that is shown has time to save after Ctrl-C."""
    lines = [
        line
        for file in [*FILES, *ROOT.glob("configs/*.yaml")]
        for line in file.read_text().splitlines()
        if "torchrun --n" in line
    ]
    assert not [line for line in lines if "-m tools." not in line]
    makefile = (ROOT / "Makefile").read_text()
    assert "TORCH_ELASTIC_SHUTDOWN_TIMEOUT" in makefile
    # A program of a .venv that was copied would run the old one's Python.
    assert not re.search(r"\$\(BIN\)/(?!python)", makefile)


@pytest.mark.parametrize(
    "program, arguments", [c for c in commands() if c[0] in ("train.py", "eval.py")]
)
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


def test_no_other_markdown_at_the_root():
    """README and CONTRIBUTING are the only Markdown there."""
    assert {path.name for path in ROOT.glob("*.md")} == {"README.md", "CONTRIBUTING.md"}


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


def measured() -> set[str]:
    """Metric names that the code writes, a variable part as <variable>."""
    found = set()
    for file in "train.py policy.py loss.py eval.py runtime/metrics.py runtime/run.py".split():
        for node in ast.walk(ast.parse((ROOT / file).read_text())):
            keys = node.keys if isinstance(node, ast.Dict) else [getattr(node, "key", None)]
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                keys = [node.slice]
            for key in keys:
                parts = key.values if isinstance(key, ast.JoinedStr) else [key]
                if all(isinstance(p, ast.Constant | ast.FormattedValue) for p in parts):
                    name = "".join(
                        f"<{ast.unparse(p.value)}>"
                        if isinstance(p, ast.FormattedValue)
                        else str(p.value)
                        for p in parts
                    )
                    found |= {name} if re.fullmatch(r"[a-z]+/.+", name) else set()
    loop = (ROOT / "train.py").read_text() + (ROOT / "runtime/run.py").read_text()
    phases = {*re.findall(r'phase\("(\w+)"\)', loop)} - {"evaluation"}
    record = dict.fromkeys(("success", "reward", "length", "truncated", "timeout"), 1.0)
    judged = judge("3a+4", "a3+4=7#7", "7")
    del judged["marked"]  # a text
    validated = means([record | {"source": "<source>", "judged": judged}])
    variable = {name for name in found if name.startswith(("val/<", "time/<"))}
    found.add("reward/timeouts")  # from verifier/pool.py, in every step's metrics
    return found - variable | {f"time/{p}" for p in phases} | {f"val/{name}" for name in validated}


def test_every_metric_is_listed_and_every_listed_metric_is_measured():
    """docs/metrics.md has the metrics of a step, of its update, of the clock and of validation."""
    listed = re.findall(r"^\| `([a-z]+/[^`]+)` \|", TEXT["docs/metrics.md"], flags=re.M)
    assert len(listed) == len(set(listed))
    assert len(listed) > 40
    assert set(listed) == measured()
