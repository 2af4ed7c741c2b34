"""What the documents name exists: files, functions, flags, commands; docs/metrics.md lists what is measured, no more, no less."""

import argparse
import ast
import re
import shlex
from pathlib import Path

import pytest
import yaml

from config import Config, parse_config
from eval import EvalConfig
from scores import means
from tools import convert
from worlds.arithmetic import JUDGES

ROOT = Path(__file__).parent.parent
DOCUMENTS = ("docs/reading.md", "docs/official-code.md", "CONTRIBUTING.md", "docs/metrics.md", "docs/own-task.md")
TEXT = {name: (ROOT / name).read_text() for name in DOCUMENTS}
FLAGS = {
    "train.py": {*Config.__dataclass_fields__, "config", "help"},
    "eval.py": set(EvalConfig.__dataclass_fields__),
    "tools.convert": {a.dest for a in convert.parser()._actions},
    "tools.plan": {"gpus", "memory"},
    "bench": {"full"},
}


def names_in(file: Path) -> set[str]:
    """Functions and classes of a file."""
    kinds = (ast.ClassDef, ast.FunctionDef)
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, kinds)}


def commands(text: str) -> list[str]:
    """The command lines in the code blocks that call one of our programs."""
    blocks = re.findall(r"^```\n(.*?)^```", text.replace("\\\n", " "), flags=re.M | re.S)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith(("python ", "torchrun "))]
    return [line for line in lines if any(name in line for name in FLAGS)]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_and_functions_exist(document):
    """Each `file.py`, `file.py:name`, `tests/...` and `configs/...` in backticks is there."""
    named = re.findall(r"`((?:\w+/)*[\w.-]+\.(?:py|yaml|md))(?::(\w+))?`", TEXT[document])
    official = {"mix_trainer_experience.py", "main_mix_ppo.py", "mix_core_alg.py", "math_verify_reward.py", "generate_vllm.py"}
    missing = [f"{file}:{name}" for file, name in named if not (document == "docs/official-code.md" and (file in official or file.startswith("experience/")))
               and (not (ROOT / file).exists() or name and name not in names_in(ROOT / file))]
    assert named and not missing


@pytest.mark.parametrize("document", DOCUMENTS)
def test_flags_exist(document):
    """Each `--flag` in a command is one of the program's; each one in the text is one of some program's."""
    for line in commands(TEXT[document]):
        program = next(name for name in FLAGS if name in line)
        flags = set(re.findall(r"--([\w-]+)", line)) - {"nproc_per_node"}
        assert flags <= FLAGS[program], line
    prose = re.sub(r"^```\n.*?^```", "", TEXT[document], flags=re.M | re.S)
    assert set(re.findall(r"`[^`\n]*?--([a-z_]+)", prose)) <= set().union(*FLAGS.values())


@pytest.mark.parametrize("line", [line for text in TEXT.values() for line in commands(text) if "train.py" in line])
def test_values_in_commands_are_possible(line, monkeypatch):
    """Each train.py command parses, with files that its reader is to supply taken for granted."""
    monkeypatch.setattr(Path, "exists", lambda path: True)
    argv = shlex.split(line)
    monkeypatch.chdir(ROOT)
    assert isinstance(parse_config(argv[argv.index("train.py") + 1 :]), Config)


def test_other_commands_parse():
    """The commands of eval.py and convert.py are taken by their parsers."""
    from transformers import HfArgumentParser

    for line in [line for text in TEXT.values() for line in commands(text)]:
        argv = shlex.split(line)
        if "eval.py" in argv:
            HfArgumentParser(EvalConfig, allow_abbrev=False).parse_args_into_dataclasses(argv[argv.index("eval.py") + 1 :])
        elif "tools.convert" in argv:
            assert isinstance(convert.parser().parse_args(argv[argv.index("tools.convert") + 1 :]), argparse.Namespace)


def measured() -> set[str]:
    """Metric names that the code writes, a variable part as <variable>."""
    found = set()
    for file in ("train.py", "policy.py", "loss.py", "runtime/tracking.py"):
        for node in ast.walk(ast.parse((ROOT / file).read_text())):
            keys = node.keys if isinstance(node, ast.Dict) else [node.key] if isinstance(node, ast.DictComp) else []
            for key in filter(None, keys):
                parts = key.values if isinstance(key, ast.JoinedStr) else [key]
                if all(isinstance(p, ast.Constant | ast.FormattedValue) for p in parts):
                    name = "".join(str(p.value) if isinstance(p, ast.Constant) else f"<{ast.unparse(p.value)}>" for p in parts)
                    found |= {name} if re.fullmatch(r"[a-z]+/.+", name) else set()
    phases = re.findall(r'timer\("(\w+)"\)', (ROOT / "train.py").read_text())
    record = {"source": "<source>", "reward": 1.0, "length": 1, "truncated": False, "judged": dict.fromkeys(JUDGES, True)}
    return found - {"time/<phase>", "val/<name>"} | {f"time/{p}" for p in phases} | {f"val/{name}" for name in means([record])}


def test_every_metric_is_listed_and_every_listed_metric_is_measured():
    """docs/metrics.md against train.step_metrics, policy.update, the timer and evaluation."""
    listed = re.findall(r"^\| `([a-z]+/[^`]+)` \|", TEXT["docs/metrics.md"], flags=re.M)
    assert len(listed) == len(set(listed)) and len(listed) > 40
    assert set(listed) == measured()


def test_every_field_of_the_issue_is_in_the_migration_table():
    """The official fields that its users know."""
    for field in ("experience", "experience_ratio", "exp_metric", "exp_select_mode", "exp_bucket_manager", "exp_is_correct",
                  "experience_lbound", "experience_rbound", "experience_start_sratio", "off_policy_reshape", "loss_remove_clip",
                  "loss_remove_token_mean", "grpo_use_std", "reward_impl_version"):
        assert re.search(rf"^\| [^|]*\b{field}`[^|]*\|", TEXT["docs/official-code.md"], flags=re.M), field


def test_the_citation_is_yaml_with_the_paper():
    """CITATION.cff names the paper, its number and its eight authors; the license is there."""
    paper = yaml.safe_load((ROOT / "CITATION.cff").read_text())["preferred-citation"]
    assert paper["title"].startswith("ExGRPO") and "2510.02245" in paper["url"] and len(paper["authors"]) == 8
    assert (ROOT / "LICENSE").read_text().startswith("MIT License")
