"""Knobs: the defaults are Table 4, files and flags are read alike, mistakes fail with a reason."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ARITHMETIC, ROOT, shell, toy_config

from config import AUTO, DEFAULT_MODEL, Config, parse_config
from eval import EvalConfig, parse_command
from runtime import preflight
from runtime.faults import or_refuse

PAPER = {  # Table 4 and the run script
    "model": "Qwen/Qwen2.5-Math-7B",
    "response_prefix": "<think>\n",
    "num_rollouts": 8,
    "max_prompt_length": 1024,
    "max_response_length": 8192,
    "rope_theta": 40000,
    "max_position_embeddings": 16384,
    "temperature": 1.0,
    "rho": 0.5,
    "mu": 0.5,
    "sigma": 1.0,
    "beta": 0.1,
    "start_threshold": 0.35,
    "trajectory_selection": "entropy",
    "clip": "auto",
    "clip_eps": 0.2,
    "shaping": True,
    "importance_correction": True,
    "normalize_std": False,
    "batch_size": 128,
    "num_mini_batches": 2,
    "lr": 1e-6,
    # Divided by 64, as the official loss is 64 times ours (docs/official-code.md).
    "max_grad_norm": 1 / 64,
    "skip_grad_norm": 500 / 64,
    "adam_eps": 1e-8 / 64,
    "steps": 700,
    "eval_every": 10,
    "eval_temperature": 0.6,
    "save_every": 50,
}


@pytest.fixture
def all_is_there(monkeypatch):
    """Every library is installed, and every file there."""
    monkeypatch.setattr(preflight, "find_spec", lambda name: True)
    monkeypatch.setattr(Path, "exists", lambda path: True)


def write(tmp_path, text: str) -> str:
    file = tmp_path / "knobs.yaml"
    file.write_text(text)
    return str(file)


def test_the_defaults_are_the_papers_run(all_is_there):
    """They are Table 4 in our loss's scale, and the file of that run says nothing else."""
    default = dataclasses.asdict(parse_config([]))
    assert {name: default[name] for name in PAPER} == PAPER
    assert default["entropy_coef"] == pytest.approx(0.00035, rel=0.2)
    of_file = dataclasses.asdict(parse_config(["--config", f"{ROOT}/configs/qwen2.5-math-7b.yaml"]))
    assert of_file == default | {"run_dir": "runs/qwen2.5-math-7b"}


def test_what_belongs_to_the_default_model_does_not_leak(all_is_there):
    """Another model has its own RoPE and positions and no prefix, where nothing is said of them."""
    argv = ["--model", "another", "--data", "q.jsonl"]
    for config in (parse_config(argv[:2]), parse_command(argv)):
        assert {name: getattr(config, name) for name in AUTO} == {
            "response_prefix": "",
            "rope_theta": 0,
            "max_position_embeddings": 0,
        }
    assert parse_config(["--rope_theta", "0"]).rope_theta == 0
    assert parse_command(["--model", DEFAULT_MODEL, *argv[2:]]).rope_theta == 40000


def test_eval_has_the_defaults_of_training():
    """What both have is alike, but for the model and the share of memory (and lists of files)."""
    of_training = {f.name: f.default for f in dataclasses.fields(Config)}
    of_eval = {f.name: f.default for f in dataclasses.fields(EvalConfig)}
    differ = {name for name in of_training & of_eval.keys() if of_training[name] != of_eval[name]}
    assert differ == {"model", "rollout_memory"}


def test_flags_win_over_files_and_later_files_over_earlier_ones(tmp_path, all_is_there):
    """Wherever --config stands, and however often."""
    file = write(tmp_path, "rho: 0.25\nbatch_size: 16\nshaping: false\n")
    for argv in (
        ["--config", ARITHMETIC, file, "--rho", "0.75"],
        ["--rho", "0.75", "--config", ARITHMETIC, "--config", file],
    ):
        config = parse_config(argv)
        assert (config.rho, config.batch_size, config.shaping) == (0.75, 16, False)
        assert config.lr == 4.5e-4
    assert parse_config(["--config", file, ARITHMETIC]).batch_size == 32
    assert parse_config(["--config", ARITHMETIC, file, "--shaping"]).shaping is True


def test_a_resumed_run_keeps_its_knobs(finished_run, all_is_there, capsys):
    """A flag wins over them, they win over the file, and a note names what of the file is left."""
    argv = ["--config", ARITHMETIC, "--run_dir", str(finished_run)]
    assert parse_config(argv).steps == 120
    resumed = parse_config([*argv, "--resume", "--rho=0.25"])
    assert (resumed.steps, resumed.rho, resumed.resume) == (3, 0.25, True)
    assert re.search("note: .*steps.* as in .*knobs.yaml", capsys.readouterr().err)
    state = next(finished_run.glob("checkpoints/*/state.json"))
    saved = json.loads(state.read_text())["config"]
    assert dataclasses.asdict(resumed) == saved | {"rho": 0.25, "resume": True}


def test_a_file_is_read_as_flags_are(tmp_path, all_is_there):
    """A value is the text that stands there, and becomes what its knob is."""
    text = r"""
lr: 1e-6
rho: 1
sigma: '2'
start_threshold: -1
run_dir: ~/x
response_prefix: "<think>\n"
shaping: off
require_box: true
clip: off
max_drift: auto
"""
    values = dict(lr=1e-6, rho=1.0, sigma=2.0, start_threshold=-1.0, max_drift=None, clip="off")
    values |= dict(run_dir=os.path.expanduser("~/x"), response_prefix="<think>\n")
    values |= dict(shaping=False, require_box=True)
    config = parse_config(["--config", ARITHMETIC, write(tmp_path, text)])
    assert config == dataclasses.replace(parse_config(["--config", ARITHMETIC]), **values)
    assert all(type(getattr(config, name)) is type(value) for name, value in values.items())


@pytest.mark.parametrize(
    "text, reason",
    [
        ("rho: 0.5\nrhoo: 0.5\n", "unknown knob rhoo"),
        ("config: other.yaml\n", "unknown knob config"),
        ("- rho\n", "must consist of lines"),
        ("beta: 0.1\nrho: 0.5\nbeta: 0.3\n", "a knob stands there twice"),
    ],
)
def test_a_wrong_file_is_named(tmp_path, text, reason):
    """What is no list of knobs and values is refused in a sentence that names the file."""
    file = write(tmp_path, text)
    with pytest.raises(ValueError, match=f"^{file}: {reason}"):
        parse_config(["--config", file])


@pytest.mark.parametrize(
    "argv, reason",
    [
        ("--rhoo 0.5", r"Unrecognized options: --rhoo.*Perhaps you meant:.*--rho FLOAT"),
        ("16", "Unrecognized options: 16"),
        ("--steps 1.5", "parsing --steps: invalid literal"),
        ("--lr auto", "parsing --lr: could not convert"),  # only where the help speaks of it
        ("--shaping no", "invalid choice 'no' for argument '--shaping'"),
    ],
)
def test_a_wrong_flag_fails_with_the_reason(argv, reason, capsys, monkeypatch):
    """It is named, with its value or the nearest of an unknown one; other ranks are quiet."""
    for rank in "01":
        monkeypatch.setenv("LOCAL_RANK", rank)
        with pytest.raises(SystemExit) as end:
            or_refuse(lambda: parse_config(argv.split()))
        said = capsys.readouterr().err
        assert end.value.code == 2
        assert bool(re.search(reason, said, re.DOTALL)) == bool(said) == (rank == "0")


@pytest.mark.parametrize(
    "argv, reason",
    [
        ("train.py", "tools.convert Elliott/.* makes it, and `make train`"),
        ("train.py --config configs/arithmetic.yaml x.yaml", "No such file .*x.yaml"),
        (
            "train.py --train_files --val_files --run_dir {tmp_path}",
            "holds a run .step-0000007, metrics.jsonl.. Continue it",
        ),
        (
            "train.py --train_files {tmp_path}/q.jsonl --val_files --reward words:death"
            " --run_dir {tmp_path}/new",
            "'words:death' ended its process, or took longer than 5 s .*, twice for the answer",
        ),
        (
            "eval.py --model m --data {tmp_path}/q.jsonl --reward words:score",
            r"answer 'green'.*KeyError: 'colour' .words.py, line 2.$",
        ),
        ("-m tools.export {tmp_path} --output x", "is a run: name one of its .*step-0000007"),
    ],
)
def test_a_refusal_comes_before_the_long_imports(tmp_path, argv, reason):
    """It comes without a traceback, from one rank, and is in torchrun's summary."""
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    (tmp_path / "words.py").write_text(
        "def score(response, answer, row):\n return row['colour']\n"
        "def death(response, answer):\n __import__('os')._exit(1)"
    )
    turn = {"role": "user", "content": "Of grass?"}
    row = {"data_source": "x", "prompt": [turn], "reward_model": {"ground_truth": "green"}}
    (tmp_path / "q.jsonl").write_text(json.dumps(row))
    (tmp_path / "checkpoints" / "step-0000007").mkdir(parents=True)
    command = [sys.executable, "-X", "importtime", *argv.format(tmp_path=tmp_path).split()]
    for rank in "01" if argv == "train.py" else "0":
        summary = tmp_path / rank
        environment = os.environ | {"LOCAL_RANK": rank, "TORCHELASTIC_ERROR_FILE": str(summary)}
        environment["PYTHONPATH"] = str(tmp_path)
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
        )
        said = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
        assert (done.returncode, done.stdout) == (1, "")
        assert not re.search(r"\| +(transformers|vllm)$", done.stderr, re.MULTILINE)
        told = json.loads(summary.read_text())["message"]["extraInfo"]["py_callstack"]
        assert re.search(reason, told)
        assert said == (told.splitlines() if rank == "0" else [])


@pytest.mark.parametrize(
    "knobs, reason",
    [
        (dict(num_mini_batches=33), r"num_mini_batches must be in \[1, 32\], got 33"),
        (dict(rho=float("nan")), r"rho must be in \[0, 1\], got nan"),
        (dict(start_threshold=35.0), r"start_threshold must be in \[-inf, 1\], got 35.0"),
        (dict(alpha_low=0.8, alpha_high=0.2), r"alpha_low must be in \[0, 0.2\], got 0.8"),
        (dict(clip="yes"), "clip must be one of auto, on, off, got 'yes'"),
        (dict(rho=0.03), "rho=0.03 of batch_size=32 is less than one .* set rho to 0"),
        (dict(difficulty="spread", retire="on"), "nothing retires"),
        (dict(verify_timeout=0), "verify_timeout must be above 0, got 0"),
        (dict(response_prefix="<think>\\n"), "response_prefix holds a backslash and an n"),
        (dict(prompt_template="Q: "), "{question}"),
        (dict(val_files=["missing.parquet"]), "missing.parquet is not there: tools.convert"),
        # All problems are told at once.
        (dict(rho=2, mu=3, lr=0), r"rho must.*\nmu must.*\nlr must"),
    ],
)
def test_impossible_values_fail_with_the_reason(knobs, reason):
    """Each impossible value or combination is a ValueError that names the knob."""
    with pytest.raises(ValueError, match=reason):
        toy_config(**knobs)


def test_what_stdout_cannot_show_ends_no_command(monkeypatch):
    """One of ASCII shows escapes."""
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    program = "from runtime.faults import or_refuse; or_refuse(lambda: print('café – θ'))"
    assert shell(sys.executable, "-c", program) == "caf\\xe9 \\u2013 \\u03b8\n"


def test_lora_without_peft_names_the_command(monkeypatch):
    """lora_rank without peft fails at once, with the command of both requirements files."""
    monkeypatch.setattr(preflight, "find_spec", lambda name: None)
    install = preflight.INSTALL_PEFT
    with pytest.raises(ValueError, match=f"lora_rank needs the library peft.*{install}"):
        toy_config(lora_rank=8)
    assert f"# extra: {install}" in (ROOT / "requirements.txt").read_text()
    assert set(install.split()[2:]) <= set((ROOT / "requirements-cpu.txt").read_text().split())


@pytest.mark.parametrize("parse, cls", [(parse_config, Config), (parse_command, EvalConfig)])
def test_help_says_what_every_knob_is(parse, cls, capsys, monkeypatch):
    """--help lists every knob with the comment behind it, and its default."""
    monkeypatch.setenv("COLUMNS", "300")
    with pytest.raises(SystemExit) as end:
        parse(["--help"])
    assert end.value.code == 0
    said = " ".join(capsys.readouterr().out.replace("│", "").split())
    for field in dataclasses.fields(cls):
        about = rf"--{field.name} (\[STR \[STR ...\]\]|\S+) .{{8,}} \(default: .*"
        assert any(re.fullmatch(about, option) for option in re.split(" (?=--)", said)), field.name


@pytest.mark.parametrize(
    "file", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda file: file.stem
)
def test_every_file_in_configs_loads(file, all_is_there):
    """Each shipped file is valid, alone and over another, and changes something."""
    assert parse_config(["--config", str(file)]) != parse_config([])
    assert parse_config(["--config", ARITHMETIC, str(file)])
