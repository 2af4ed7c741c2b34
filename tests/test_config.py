"""Knobs are Table 4, files and flags are read by one rule, and imports go downwards only."""

import re
import sys
from pathlib import Path

import pytest

from config import parse_config
from eval import EvalConfig
from runtime.ranks import Refusal

MODEL = ["--model", "mine"]
ROOT = Path(__file__).parent.parent


@pytest.fixture
def write(tmp_path):
    """Writes a file of knobs and returns its path."""

    def write(text: str, name: str = "knobs.yaml") -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def test_the_defaults_are_table_4():
    """A command with neither a file nor a model is the paper's run; our loss's scale is 1/64."""
    table = dict(batch_size=128, num_mini_batches=2, num_rollouts=8, lr=1e-6, temperature=1.0)
    table |= dict(rho=0.5, mu=0.5, sigma=1.0, beta=0.1, start_threshold=0.35, clip_eps=0.2)
    table |= dict(max_response_length=8192, steps=700, trajectory_selection="entropy")
    table |= dict(max_grad_norm=1 / 64, adam_eps=1e-8 / 64, entropy_coef=3.5e-4)
    of_model = dict(response_prefix="<think>\n", rope_theta=40000, max_position_embeddings=16384)
    neutral = dict(response_prefix="", rope_theta=0, max_position_embeddings=0)
    of_model["model"] = "Qwen/Qwen2.5-Math-7B"
    assert vars(parse_config([])).items() >= (table | of_model).items()
    assert vars(parse_config(MODEL)).items() >= (table | neutral).items()


@pytest.mark.parametrize("file", sorted(ROOT.glob("configs/*.yaml")), ids=lambda file: file.stem)
def test_every_file_in_configs_is_read(file):
    """Training takes it, and it changes something."""
    assert parse_config([*MODEL, "--config", str(file)]) != parse_config(MODEL)


def test_later_files_win_and_flags_over_all(write):
    """`none` and null are the plain ratio."""
    first = write("rho: 0.25\nalpha: [0.1, 0.9]\nbeta: null\n", "first.yaml")
    second = write("rho: 0.75\nbatch_size: 16\n", "second.yaml")
    config = parse_config(["--config", first, second, *MODEL, "--batch_size", "8"])
    assert (config.rho, config.batch_size) == (0.75, 8)
    assert (config.alpha, config.beta) == ([0.1, 0.9], None)
    assert parse_config([*MODEL, "--config", second, first]).rho == 0.25
    assert parse_config([*MODEL, "--beta", "none"]).beta in (None, "none")


def test_evaluation_leaves_some_knobs_of_a_training_file_out(write):
    """`eval_questions`, where no flag gives it, and the engine's share of memory."""
    file = write("eval_questions: 7\nrollout_memory: 0.3\nseed: 3\n")
    argv = [*MODEL, "--config", file]
    config = parse_config(argv, EvalConfig)
    assert (config.eval_questions, config.rollout_memory, config.seed) == (0, 0.8, 3)
    assert parse_config([*argv, "--eval_questions", "5"], EvalConfig).eval_questions == 5


@pytest.mark.parametrize(
    "text, reason",
    [
        ("rhoo: 0.5", "knobs.yaml.*rhoo"),
        ("steps: 1.5", "'steps' .* is not an instance of int"),
        ("lr: 1e-6", "'lr' .* is neither float or int"),
        ("clip: on", "'clip' .* is not any of .*on"),
        ("alpha: [0.8, 0.2]", "alpha must be a range"),
        ("mu: .nan", "mu must be at least 0, got nan"),
        ("tokens_per_micro_batch: 0", "tokens_per_micro_batch must be at least 1"),
        ("steps: -3", "steps must be at least 1"),
        ("eval_questions: -2", "eval_questions must be at least 0"),
        ("num_rollouts: 1", "num_rollouts must be at least 2"),
        ("rho: 0.001", "rho times batch_size is less than one question"),
    ],
)
def test_a_wrong_file_is_refused_by_a_sentence(text, reason, write):
    """An unknown knob, a wrong type, and each impossible value or combination."""
    with pytest.raises(Refusal, match=reason):
        parse_config(["--config", write("model: mine\n" + text)])


@pytest.mark.parametrize(
    "flags, reason",
    [
        (["--rho", "1.5"], "rho is the share"),
        (["--steps", "x"], "Error parsing --steps"),
        (["--stpes", "3"], "--stpes"),
    ],
)
def test_an_impossible_flag_ends_with_a_sentence(flags, reason, capsys, monkeypatch):
    """Flags are checked as files are, and rank 0 alone prints what is wrong."""
    for rank in "0", "1":
        monkeypatch.setenv("RANK", rank)
        with pytest.raises(SystemExit):
            parse_config([*MODEL, *flags])
        assert (reason in capsys.readouterr().err) == (rank == "0")


# ---- which room imports which --------------------------------------------------------------------

TWELVE = {path.stem for path in ROOT.glob("*.py")}
ISLAND = {"exgrpo", "buffer", "sampler", "loss"}  # what another trainer can take
TOP = {"tools", "bench"}
LOW = {"worlds", "verifier", "runtime"}


IMPORT = re.compile(r"^ *(?:import|from) (\w+)\S*(?: import .*| as \w+)?$", re.MULTILINE)


def imported(path: Path) -> set[str]:
    """The modules and folders that a file imports, in functions too."""
    return {*IMPORT.findall(path.read_text())}


def test_imports_go_downwards():
    """Tools and bench, the twelve, the low rooms; the island needs numpy, torch and safetensors."""
    assert len(TWELVE) == 12
    for path in ROOT.glob("*.py"):
        assert not imported(path) & TOP, path
    for room in LOW:
        for path in ROOT.glob(f"{room}/*.py"):
            assert not imported(path) & (TOP | TWELVE | LOW) - {room}, path
    allowed = ISLAND | {"numpy", "torch", "safetensors"} | sys.stdlib_module_names
    for module in ISLAND:
        assert imported(ROOT / f"{module}.py") <= allowed, module
