"""Configuration: mistakes fail with their reason, flags override a file, --help tells the paper's values."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import config as config_module
from config import INSTALL_PEFT, Config, parse_config
from runtime.flags import knob, parse_flags, read_yaml

ROOT = Path(__file__).parent.parent
PAPER = {  # Table 4 and the run script, as they stand in the help texts
    "num_rollouts": "8", "max_prompt_length": "1024", "max_response_length": "8192", "temperature": "1.0",
    "rho": "0.5", "mu": "0.5", "sigma": "1.0", "beta": "0.1", "start_threshold": "0.35",
    "clip_eps": "0.2", "batch_size": "128", "mini_batches": "2",
    "lr": "1e-6", "weight_decay": "0.01", "max_grad_norm": "1.0", "skip_grad_norm": "500",
    "entropy_coef": "0.001", "adam_eps": "1e-8", "steps": "700", "eval_every": "10",
    "eval_temperature": "0.6", "save_every": "50", "rollout_memory": "0.8", "rollout_tp": "2",
    "reinstate_every": "25",
}


def write(tmp_path, text: str) -> str:
    file = tmp_path / "knobs.yaml"
    file.write_text(text)
    return str(file)


def test_defaults_are_valid():
    """No arguments give the defaults, and the defaults are possible values."""
    assert parse_config([]) == Config()


def test_flags_override_the_file_and_the_file_overrides_the_defaults(tmp_path):
    """Order of precedence: flag, file, default; wherever --config stands on the line."""
    file = write(tmp_path, "rho: 0.25\nbatch_size: 16\nshaping: false\nval_files: []\n")
    for argv in (["--config", file, "--rho", "0.75"], ["--rho", "0.75", "--config", file]):
        config = parse_config(argv)
        assert (config.rho, config.batch_size, config.shaping) == (0.75, 16, False)
        assert config.num_rollouts == Config().num_rollouts
    assert parse_config(["--config", file, "--shaping", "true"]).shaping is True
    assert parse_config(["--no_shaping"]).shaping is False


def test_numbers_that_yaml_reads_as_text_or_integers_are_floats(tmp_path):
    """1e-6 (text to YAML) and 1 (an integer) become floats where the knob is one."""
    config = parse_config(["--config", write(tmp_path, "lr: 1e-6\nrho: 1\nsigma: '2'\n")])
    assert [config.lr, config.rho, config.sigma] == [1e-6, 1.0, 2.0]
    assert all(type(v) is float for v in (config.lr, config.rho, config.sigma))


@pytest.mark.parametrize("text, reason", [
    ("rho: 0.5\nrhoo: 0.5\nfoo: 1\n", r"unknown knobs \['rhoo', 'foo'\]"),
    ("- rho\n", "unknown knobs"),
    ("batch_size: 1.5\n", "batch_size must be int, got 1.5"),
    ("batch_size: true\n", "batch_size must be int, got True"),
    ("shaping: 0\n", "shaping must be bool, got 0"),
    ("shaping: 'no'\n", "shaping must be bool, got 'no'"),
    ("train_files: a.parquet\n", "train_files must be a list of texts, .* got 'a.parquet'"),
    ("train_files: [null]\n", r"train_files must be a list of texts, .* got \[None\]"),
    ("val_files: [1, {a: b}]\n", "val_files must be a list of texts"),
    ("beta: 0.1\nrho: 0.5\nbeta: 0.3\n", "beta stands there twice"),
    ("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", "aliases .* fill the memory"),
    ("lr: 1" + "0" * 400 + "\n", "lr must be float, got 10000"),
    ("lr: " + "9" * 5000 + "\n", "cannot be read"),
    ("val_files: " + "[" * 1000, "recursion"),
    ("rho: 2020-99-99\n", "cannot be read, or is not YAML: month"),
    ("lr: auto\n", "lr must be float, got 'auto'"),  # only where the help speaks of it
    ("lr: fast\n", "lr must be float, got 'fast'"),
    ("lr: true\n", "lr must be float, got True"),
    ("lr:\n", "lr must be float, got None"),
    ("clip: off\n", "clip must be str, got False .*in quotes"),
    ("1: 2\nrhoo: 3\n", "unknown knobs"),
    ("rho: [0.5\n", "not YAML"),
])
def test_a_wrong_file_fails_with_its_name_and_the_reason(tmp_path, text, reason):
    """Unknown names and values of another type in the YAML file are errors that name file and knob."""
    file = write(tmp_path, text)
    with pytest.raises(ValueError, match=reason) as error:
        parse_config(["--config", file])
    assert file in str(error.value)


@dataclasses.dataclass
class Numbers:
    drift: float = knob(0.0, "Bound; auto (0): by dtype.", 0)
    tokens: int = knob(7, "On one rank; auto (0): what fits.", 0)
    whole: int = knob(1, "No other word than a number.", 0)


def test_the_word_auto_is_0_where_the_help_says_so(tmp_path):
    """In flags and in the file, for whole numbers and others; elsewhere it is no number."""
    file = write(tmp_path, "tokens: auto\ndrift: auto\n")
    for argv in (["--tokens", "auto", "--drift", "auto"], ["--config", file]):
        values = parse_flags(Numbers, argv, "", Numbers)
        assert values == {"drift": 0.0, "tokens": 0, "whole": 1}
        assert [type(value) for value in values.values()] == [float, int, int]
    with pytest.raises(SystemExit, match="--whole: invalid int value: 'auto'"):
        parse_flags(Numbers, ["--whole", "auto"], "")


def test_switches_and_flags_with_dashes():
    """A switch alone is true, takes true and false, and has a negative; dashes in a name are underscores."""
    for argv, value in {"--resume": True, "--resume false": False, "--no-resume": False}.items():
        assert parse_config(argv.split()).resume is value
    assert parse_config(["--run-dir=a-b_c"]).run_dir == "a-b_c"
    with pytest.raises(SystemExit, match="--resume: must be true or false, got 'maybe'"):
        parse_config(["--resume", "maybe"])


@pytest.mark.parametrize("argv, reason", [
    (["train.py", "--rhoo", "0.5"], "unknown flag --rhoo; nearest: --rho"),
    (["train.py", "--lr", "fast"], "argument --lr: invalid float value: 'fast'"),
    (["train.py", "--lr", "inf"], "configuration: lr must be a finite number"),
    (["train.py", "--config", "missing.yaml"], "missing.yaml cannot be read"),
    (["train.py", "--train_files", "missing.jsonl", "--model", "m"], "no such file: missing.jsonl"),
    (["train.py", "--run_dir", "{tmp_path}"], "holds a run .step-0000007, metrics.jsonl.. Continue it"),
    (["eval.py"], "eval.py needs --model DIR and --data FILE"),
    (["eval.py", "--sampels", "4"], "unknown flag --sampels; nearest: --samples"),
    (["eval.py", "--model", "m", "--data", "eval.py", "--samples", "0"], "samples must be at least 1, got 0"),
    (["eval.py", "--model", "m", "--data", "missing.jsonl"], "no such file: missing.jsonl"),
    (["-m", "tools.convert", "x.jsonl", "--output", "x.csv"], "--output must end in .parquet"),
    (["-m", "tools.convert", "missing.jsonl", "--output", "x.parquet"], "No such file .*missing.jsonl"),
    (["-m", "tools.export", "missing", "--output", "x"], "missing: there is no such checkpoint"),
    (["-m", "tools.export", "{tmp_path}", "--output", "x"], "is a run: name one of its .*step-0000007"),
    (["train.py", "--reward", "mine.py:score"], "reward names a module, without .py: 'mine:score'"),
])
def test_a_refusal_is_one_sentence_in_a_moment(tmp_path, argv, reason):
    """No traceback and nothing heavy imported, from the ranks but one nothing; torchrun's summary has it."""
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    (tmp_path / "checkpoints" / "step-0000007").mkdir(parents=True)
    command = [sys.executable, "-X", "importtime", *(w.format(tmp_path=tmp_path) for w in argv)]
    for rank in "01":
        summary = tmp_path / rank
        environment = os.environ | {"LOCAL_RANK": rank, "TORCHELASTIC_ERROR_FILE": str(summary)}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True,
                              timeout=60)
        said = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
        assert done.returncode == 1 and done.stdout == "" and len(said) == (rank == "0")
        assert not re.search(r"\| +(torch|transformers|numpy)$", done.stderr, re.MULTILINE)
        told = json.loads(summary.read_text())["message"]["extraInfo"]["py_callstack"]
        assert re.search(reason, told) and said in ([told], [])


def test_choices_are_checked_in_the_file_too(tmp_path):
    """A value outside a knob's choices fails whether it comes from a flag or from the file."""
    with pytest.raises(SystemExit):
        parse_config(["--clip", "percent"])
    with pytest.raises((SystemExit, ValueError)):
        parse_config(["--config", write(tmp_path, "clip: percent\n")])


@pytest.mark.parametrize("argv, reason", [
    (["--rho", "half"], "invalid float value: 'half'"),
    (["--engine", "sglang"], "invalid choice: 'sglang'"),
    (["16"], "unrecognized arguments: 16"),
])
def test_a_wrong_value_fails_with_the_reason(argv, reason):
    """argparse names the flag and the value it does not take."""
    with pytest.raises(SystemExit, match=reason):
        parse_config(argv)


@pytest.mark.parametrize("argv, reason", [
    (["--rhoo", "0.5"], "unknown flag --rhoo; nearest: --rho"),
    # no abbreviations: they change with the knobs
    (["--batch", "16"], "unknown flag --batch; nearest: --batch_size"),
    (["--lr", "1e-4", "--max-response-len=9"],
     "unknown flag --max_response_len; nearest: --max_response_length"),
    (["--zzz"], "unknown flag --zzz; none is near .--help lists all"),
])
def test_an_unknown_flag_is_answered_with_the_nearest(argv, reason):
    """A sentence with the flags that look alike, and no traceback."""
    with pytest.raises(SystemExit, match=reason):
        parse_config(argv)


@pytest.mark.parametrize("knobs, reason", [
    (dict(batch_size=0), "batch_size must be at least 1, got 0"),
    (dict(seed=2**64), "seed must be in"),
    (dict(verify_timeout=1e300), "verify_timeout must be in"),
    (dict(hang_timeout=1e300), "hang_timeout must be in"),
    (dict(run_dir=" "), "run_dir must name a directory"),
    (dict(run_dir="a\0b"), "run_dir must name a directory"),
    (dict(reward="mine:"), "reward must be 'math' or 'module:function'"),
    (dict(lr=0.0), "lr must be above 0"),
    (dict(hang_timeout=float("inf")), "hang_timeout must be a finite number"),
    (dict(lr=float("nan")), "lr must be a finite number, got nan"),
    (dict(sigma=-1.0), "sigma must be above 0"),
    (dict(rho=1.5), r"rho must be in \[0, 1\], got 1.5"),
    (dict(rho=float("nan")), "rho must be a finite number"),
    (dict(weight_decay=float("nan")), "weight_decay must be a finite number"),
    (dict(max_trajectories=-1), "max_trajectories must be at least 0"),
    (dict(num_rollouts=1), r"num_rollouts \(K\) must be at least 2"),
    (dict(response_prefix="<think>\\n"), "response_prefix holds a backslash and an n"),
    (dict(difficulty="spread", retire="on"), "nothing retires"),
    (dict(mini_batches=33), "must not exceed batch_size"),
    (dict(alpha_low=0.8, alpha_high=0.2), "alpha_low"),
    (dict(prompt_template="Q: "), "{question}"),
    (dict(train_files=["config.py"]), "train_files need a model"),
    (dict(reward="mathematics"), "'math' or 'module:function', got 'mathematics'"),
    (dict(val_files=["missing.parquet"]), "no such file: missing.parquet"),
    (dict(start_threshold=float("nan")), "start_threshold must be a finite number"),
    (dict(start_threshold=35.0), "start_threshold must be at most 1, got 35.0"),  # not in percent
    (dict(clip="yes"), "clip must be one of auto, on, off, got .yes."),
    (dict(lora_rank=-1), "lora_rank must be at least 0, got -1"),
    (dict(lora_rank=8, lora_alpha=0.0), "lora_alpha must be above 0"),
])
def test_impossible_values_fail_with_the_reason(knobs, reason):
    """Each impossible value or combination is a ValueError that names the knob."""
    with pytest.raises(ValueError, match=reason):
        Config(**knobs)


def test_vllm_without_shared_memory_is_told_early(monkeypatch):
    """A read-only /dev/shm fails deep inside of vLLM otherwise; Hugging Face needs none."""
    monkeypatch.setattr(config_module, "find_spec", lambda name: True)
    monkeypatch.setattr(os, "access", lambda path, mode: path != "/dev/shm")
    for engine in ("auto", "vllm"):
        with pytest.raises(ValueError, match="vLLM needs /dev/shm.*--engine hf"):
            Config(engine=engine)
    assert Config(engine="hf")


def test_lora_without_peft_names_the_command(monkeypatch):
    """lora_rank fails at once where peft is missing, with the pip command of both requirements files."""
    monkeypatch.setattr(config_module, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=f"lora_rank needs the library peft.*{INSTALL_PEFT}"):
        Config(lora_rank=8)
    assert Config(lora_rank=0) == Config()
    assert f"# extra: {INSTALL_PEFT}" in (ROOT / "requirements.txt").read_text()
    assert set(INSTALL_PEFT.split()[2:]) <= set((ROOT / "requirements-cpu.txt").read_text().split())


def test_help_names_every_knob_with_the_papers_value(capsys):
    """--help lists every knob with a text, a switch's negative too; Table 4's values stand in brackets."""
    with pytest.raises(SystemExit) as end:
        parse_config(["--help"])
    assert end.value.code == 0
    help = capsys.readouterr().out
    unwrapped = "".join(help.split())
    for field in dataclasses.fields(Config):
        assert f"--{field.name} " in help, field.name
        assert "".join(field.metadata["help"].split()) in unwrapped, field.name
        if field.type is bool:
            assert f"--no_{field.name}Thesameas--{field.name}false." in unwrapped
    for name, value in PAPER.items():
        bracket = re.findall(r"\[([^]]*)\]\.$", Config.__dataclass_fields__[name].metadata["help"])
        assert bracket and re.match(rf"(.*[ :])?{re.escape(value)}\b", bracket[0]), (name, value, bracket)


@pytest.mark.parametrize("file", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda file: file.stem)
def test_every_file_in_configs_loads(file, tmp_path, monkeypatch):
    """The configurations shipped are possible ones (stubs stand in for the user's data files)."""
    knobs = read_yaml(Config, str(file))
    if "lora_rank" in knobs:
        pytest.importorskip("peft")
    for name in knobs.get("train_files", []) + knobs.get("val_files", []):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    config = parse_config(["--config", str(file)])
    assert all(getattr(config, name) == value for name, value in knobs.items())


def test_the_neutral_file_says_why():
    """Every value of own-model.yaml has its reason beside it."""
    lines = (ROOT / "configs" / "own-model.yaml").read_text().splitlines()
    values = [line for line in lines if line and not line.startswith("#")]
    assert len(values) > 20 and [v for v in values if not re.search(r"\S +# .{6,}", v)] == []


def test_the_papers_configuration_has_the_papers_values():
    """configs/qwen2.5-math-7b.yaml is Table 4, divided by 64 where the official loss scales (paper.md, 9)."""
    knobs = dataclasses.asdict(Config()) | read_yaml(Config, str(ROOT / "configs" / "qwen2.5-math-7b.yaml"))
    converted = {"max_grad_norm": 1 / 64, "skip_grad_norm": 500 / 64, "adam_eps": 1e-8 / 64}
    # planned anew, or not part of the main run
    ours = {"rollout_memory", "rollout_tp", "entropy_coef", "reinstate_every"}
    for name in PAPER.keys() - ours:
        assert knobs[name] == converted.get(name, float(PAPER[name])), name
    assert knobs["entropy_coef"] == pytest.approx(0.00035, rel=0.2)
    assert knobs["response_prefix"] == "<think>\n" and knobs["require_box"] and knobs["reinstate_every"] == 0
    assert (knobs["clip"], knobs["retire"]) == ("auto", "auto")
    assert (knobs["shaping"], knobs["importance_correction"]) == (True, True)
