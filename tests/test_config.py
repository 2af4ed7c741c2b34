"""Knobs: mistakes fail with their reason, flags override a file, --help has the paper's values."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

import config as config_module
from config import INSTALL_PEFT, Config, parse_config

PAPER = {  # Table 4 and the run script, as they stand in the help texts
    "num_rollouts": "8",
    "max_prompt_length": "1024",
    "max_response_length": "8192",
    "temperature": "1.0",
    "rho": "0.5",
    "mu": "0.5",
    "sigma": "1.0",
    "beta": "0.1",
    "start_threshold": "0.35",
    "clip_eps": "0.2",
    "batch_size": "128",
    "mini_batches": "2",
    "lr": "1e-6",
    "weight_decay": "0.01",
    "max_grad_norm": "1.0",
    "skip_grad_norm": "500",
    "entropy_coef": "0.001",
    "adam_eps": "1e-8",
    "steps": "700",
    "eval_every": "10",
    "eval_temperature": "0.6",
    "save_every": "50",
    "rollout_memory": "0.8",
    "rollout_tp": "2",
    "reinstate_every": "25",
}


def write(tmp_path, text: str) -> str:
    file = tmp_path / "knobs.yaml"
    file.write_text(text)
    return str(file)


def test_flags_override_the_file_and_the_file_overrides_the_defaults(tmp_path):
    """A flag beats the file and the file a default, wherever --config stands on the line."""
    file = write(tmp_path, "rho: 0.25\nbatch_size: 16\nshaping: false\nval_files: []\n")
    for argv in (["--config", file, "--rho", "0.75"], ["--rho", "0.75", "--config", file]):
        config = parse_config(argv)
        assert (config.rho, config.batch_size, config.shaping) == (0.75, 16, False)
        assert config.num_rollouts == Config().num_rollouts
    assert parse_config(["--config", file, "--shaping"]).shaping is True


@pytest.mark.parametrize(
    "text, values",
    [
        ("lr: 1e-6\nrho: 1\nsigma: '2'\n", dict(lr=1e-6, rho=1.0, sigma=2.0)),
        ("run_dir: ~/x\n", dict(run_dir=os.path.expanduser("~/x"))),
        (
            "shaping: off\nrequire_box: true\nclip: off\n",
            dict(shaping=False, require_box=True, clip="off"),
        ),
        (
            "max_drift: auto\ntokens_per_micro_batch: auto\n",
            dict(max_drift=None, tokens_per_micro_batch=None),
        ),
        (
            'val_files: [config.py]\nresponse_prefix: "<think>\\n"\n',
            dict(val_files=["config.py"], response_prefix="<think>\n"),
        ),
        ('val_files: []\nmodel: ""\n', dict(val_files=[], model="")),
        ("# rho: 1\n", {}),
    ],
)
def test_a_file_is_read_as_flags_are(tmp_path, text, values):
    """A value is the text that stands there, and becomes what its knob is."""
    config = parse_config(["--config", write(tmp_path, text)])
    assert config == Config(**values)
    assert all(type(getattr(config, name)) is type(value) for name, value in values.items())


@pytest.mark.parametrize(
    "text, reason",
    [
        ("rho: 0.5\nrhoo: 0.5\n", "unknown flag --rhoo; nearest: --rho"),
        ("- rho\n", "must consist of lines"),
        ("batch_size: 1.5\n", "argument --batch_size: invalid int value: '1.5'"),
        ("steps: 010\n", "invalid int value: '010'"),
        ("lr: auto\n", "invalid float value: 'auto'"),  # only where the help speaks of it
        ("shaping: 'no'\n", "--shaping: must be true or false, got 'no'"),
        ("clip: percent\n", "--clip: invalid choice: 'percent'"),
        ("rho: 1\nlr:\n", "line 2 has no value .* There is no null"),
        ("val_files: [1, {a: b}]\n", "line 1 has no value"),
        ("beta: 0.1\nrho: 0.5\nbeta: 0.3\n", "beta stands there twice"),
        ("seed: &s 1\nworld_seed: *s\n", "aliases .* are not understood"),
        ("config: other.yaml\n", "--config can be given once, not as other.yaml and "),
        ("val_files: " + "[" * 1000, "recursion"),
        ("rho: [0.5\n", "cannot be read: while parsing"),
    ],
)
def test_a_wrong_file_fails_with_its_name_and_the_reason(tmp_path, text, reason):
    """What is no list of knobs and values is refused in a sentence that names the file."""
    file = write(tmp_path, text)
    with pytest.raises((SystemExit, ValueError), match=f"^{file}.*{reason}"):
        parse_config(["--config", file])


@pytest.mark.parametrize(
    "argv, reason",
    [
        # An abbreviation would change its meaning with the knobs.
        ("--batch 16", "unknown flag --batch; nearest: --batch_size"),
        ("--zzz", "unknown flag --zzz; nearest: none .--help lists all"),
        ("16", "unknown flag 16"),
        (
            "--config configs/own-model.yaml --config x.yaml",
            "^--config can be given once, not as configs/own-model.yaml and x.yaml: flags",
        ),
    ],
)
def test_a_wrong_flag_fails_with_the_reason(argv, reason, monkeypatch):
    """argparse names the flag and the value it does not take, and the nearest of an unknown one."""
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit, match=reason):
        parse_config(argv.split())


@pytest.mark.parametrize(
    "argv, reason",
    [
        ("train.py --rhoo 0.5", "unknown flag --rhoo; nearest: --rho"),
        ("train.py --config missing.yaml", "missing.yaml cannot be read"),
        ("train.py --run_dir {tmp_path}", "holds a run .step-0000007, metrics.jsonl.. Continue it"),
        ("train.py --run_dir {tmp_path}/q.jsonl", "is a file, where the run needs a direct"),
        ("-m tools.convert x.jsonl --output x.csv", "--output must end in .parquet"),
        ("-m tools.convert missing.jsonl --output x.parquet", "No such file .*missing.jsonl"),
        ("-m tools.export missing --output x", "missing: there is no such checkpoint"),
        ("-m tools.export {tmp_path} --output x", "is a run: name one of its .*step-0000007"),
        (
            "train.py --run_dir {tmp_path}/new --reward mine.py:score",
            "the module without .py: 'mine.py:score'",
        ),
        (
            "train.py --run_dir {tmp_path}/new --reward words:death",
            "'words:death' ended its process, or took longer than 5 s .*, twice for the answer",
        ),
        (
            "eval.py --model m --data {tmp_path}/q.jsonl --reward words:score",
            r"answer 'green'.*KeyError: 'colour' .words.py, line 2.$",
        ),
    ],
)
def test_a_refusal_is_one_sentence_in_a_moment(tmp_path, argv, reason):
    """The sentence comes before any heavy import, from one rank, and is in torchrun's summary."""
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    words = "def score(response, answer, row):\n return row['colour']\n"
    death = "def death(response, answer, row):\n __import__('os')._exit(row['extra_info']['index'])"
    (tmp_path / "words.py").write_text(words + death)
    turn = {"role": "user", "content": "Of grass?"}
    row = {"data_source": "x", "prompt": [turn], "reward_model": {"ground_truth": "green"}}
    (tmp_path / "q.jsonl").write_text(json.dumps(row))
    (tmp_path / "checkpoints" / "step-0000007").mkdir(parents=True)
    command = [sys.executable, "-X", "importtime", *argv.format(tmp_path=tmp_path).split()]
    for rank in "01":
        summary = tmp_path / rank
        environment = os.environ | {"LOCAL_RANK": rank, "TORCHELASTIC_ERROR_FILE": str(summary)}
        environment["PYTHONPATH"] = str(tmp_path)
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
        )
        said = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
        assert done.returncode == 1
        assert done.stdout == ""
        assert len(said) == (rank == "0")
        assert not re.search(r"\| +(torch|transformers|numpy)$", done.stderr, re.MULTILINE)
        told = json.loads(summary.read_text())["message"]["extraInfo"]["py_callstack"]
        assert re.search(reason, told)
        assert said in ([told], [])


@pytest.mark.parametrize(
    "knobs, reason",
    [
        (dict(batch_size=0), "batch_size must be at least 1, got 0"),
        (dict(seed=2**64), "seed must be in"),
        (dict(hang_timeout=1e300), "hang_timeout must be in"),
        (dict(run_dir="a\0b"), "run_dir must name a directory"),
        (dict(lr=0.0), "lr must be above 0"),
        (dict(lr=float("inf")), "lr must be a finite number, got inf"),
        (dict(rho=1.5), r"rho must be in \[0, 1\], got 1.5"),
        (dict(num_rollouts=1), r"num_rollouts \(K\) must be at least 2"),
        (dict(response_prefix="<think>\\n"), "response_prefix holds a backslash and an n"),
        (dict(difficulty="spread", retire="on"), "nothing retires"),
        (dict(mini_batches=33), "must not exceed batch_size"),
        (dict(rho=0.03), "rho=0.03 of batch_size=32 is less than one .* set rho to 0"),
        (dict(rho=0.5, batch_size=1, mini_batches=1), "less than one question"),
        (dict(clip_eps=1e300), r"clip_eps must be in"),
        (dict(alpha_low=0.8, alpha_high=0.2), "alpha_low"),
        (dict(prompt_template="Q: "), "{question}"),
        (dict(train_files=["config.py"]), "train_files need a model"),
        (dict(val_files=["missing.parquet"]), "no such file: missing.parquet"),
        # A threshold is no percentage.
        (dict(start_threshold=35.0), r"start_threshold must be in \[-inf, 1\], got 35.0"),
        (dict(clip="yes"), "clip must be one of auto, on, off, got .yes."),
    ],
)
def test_impossible_values_fail_with_the_reason(knobs, reason):
    """Each impossible value or combination is a ValueError that names the knob."""
    with pytest.raises(ValueError, match=reason):
        Config(**knobs)


@pytest.mark.parametrize("redirected, printed", [(">&-", ""), ("", r"caf\xe9 \u2013 \u03b8")])
def test_what_stdout_cannot_show_ends_no_command(redirected, printed):
    """A closed stdout takes what is printed, and one of ASCII shows escapes."""
    program = "from runtime.flags import or_refuse; or_refuse(lambda: print('café – θ'))"
    done = subprocess.run(
        f'"{sys.executable}" -c "{program}" {redirected}',
        shell=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr, done.stdout.strip()) == (0, "", printed)


def test_vllm_without_shared_memory_is_told_early(monkeypatch):
    """A read-only /dev/shm, with which vLLM fails later, is refused; Hugging Face needs none."""
    monkeypatch.setattr(config_module, "find_spec", lambda name: True)
    monkeypatch.setattr(os, "access", lambda path, mode: path != "/dev/shm")
    for engine in ("auto", "vllm"):
        with pytest.raises(ValueError, match="vLLM needs /dev/shm.*--engine hf"):
            Config(engine=engine)
    assert Config(engine="hf")


def test_lora_without_peft_names_the_command(monkeypatch):
    """lora_rank without peft fails at once, with the command of both requirements files."""
    monkeypatch.setattr(config_module, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=f"lora_rank needs the library peft.*{INSTALL_PEFT}"):
        Config(lora_rank=8)
    assert Config(lora_rank=0) == Config()
    assert f"# extra: {INSTALL_PEFT}" in (ROOT / "requirements.txt").read_text()
    assert set(INSTALL_PEFT.split()[2:]) <= set((ROOT / "requirements-cpu.txt").read_text().split())


def test_help_names_every_knob_with_the_papers_value(capsys):
    """--help lists every knob with a text; Table 4's values stand in brackets."""
    with pytest.raises(SystemExit) as end:
        parse_config(["--help"])
    assert end.value.code == 0
    help = capsys.readouterr().out
    unwrapped = "".join(help.split())
    for field in dataclasses.fields(Config):
        assert f"--{field.name} " in help, field.name
        assert "".join(field.metadata["help"].split()) in unwrapped, field.name
    for name, value in PAPER.items():
        bracket = re.findall(r"\[([^]]*)\]\.$", Config.__dataclass_fields__[name].metadata["help"])
        assert bracket, (name, value, bracket)
        assert re.match(rf"(.*[ :])?{re.escape(value)}\b", bracket[0]), (name, value, bracket)


@pytest.mark.parametrize(
    "file", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda file: file.stem
)
def test_every_file_in_configs_loads(file, monkeypatch):
    """Each shipped file is valid where the libraries are installed and the data is there."""
    monkeypatch.setattr(config_module, "find_spec", lambda name: True)
    monkeypatch.setattr(Path, "exists", lambda path: True)
    assert parse_config(["--config", str(file)]) != Config()


def test_the_neutral_file_says_why():
    """Every value of own-model.yaml has its reason beside it."""
    lines = (ROOT / "configs" / "own-model.yaml").read_text().splitlines()
    values = [line for line in lines if line and not line.startswith("#")]
    assert len(values) > 20
    assert [v for v in values if not re.search(r"\S +# .{6,}", v)] == []


def test_the_papers_configuration_has_the_papers_values():
    """Its file is Table 4, divided by 64 where the official loss scales (docs/official-code.md)."""
    no_files = ["--train_files", "--val_files"]
    file = str(ROOT / "configs" / "qwen2.5-math-7b.yaml")
    knobs = dataclasses.asdict(parse_config(["--config", file, *no_files]))
    converted = {"max_grad_norm": 1 / 64, "skip_grad_norm": 500 / 64, "adam_eps": 1e-8 / 64}
    # These are planned anew, or are not part of the main run.
    ours = {"rollout_memory", "rollout_tp", "entropy_coef", "reinstate_every"}
    for name in PAPER.keys() - ours:
        assert knobs[name] == converted.get(name, float(PAPER[name])), name
    assert knobs["entropy_coef"] == pytest.approx(0.00035, rel=0.2)
    assert knobs["response_prefix"] == "<think>\n"
    assert knobs["require_box"]
    assert knobs["reinstate_every"] == 0
    assert (knobs["clip"], knobs["retire"]) == ("auto", "auto")
    assert (knobs["shaping"], knobs["importance_correction"]) == (True, True)
