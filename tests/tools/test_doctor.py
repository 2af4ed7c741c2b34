"""The doctor finds this machine fit, calls each planted fault wrong, and its formula is true."""

import json
import os
import re
import sys
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import ROOT, needs_cpu_vllm, on_ranks, shell, toy_config

from config import Config
from policy import PackedLM, Policy
from rollout import HFEngine
from runtime import memory, ranks
from runtime.memory import Shape, tokens_that_fit, update_bytes
from tools import checks, doctor, trials
from tools.checks import MACHINE, Case, examine
from tools.doctor import SHAPES, shape_of
from tools.trials import TRIALS, peak_tensor_bytes, update
from worlds.arithmetic import World, draw_sets, rows

CHECKS = {check.__name__: check for check in MACHINE + TRIALS}
Usage = namedtuple("Usage", "total")


# ---- this machine --------------------------------------------------------------------------------


def knobs(directory: Path, model: str) -> dict:
    """The knobs of a small run on the arithmetic world's questions."""
    file = directory / "train.jsonl"
    file.write_text(rows(draw_sets(World())["train"][:8], "arithmetic"))
    return dict(
        model=model,
        train_files=[str(file)],
        engine="hf",
        batch_size=8,
        num_rollouts=4,
        max_prompt_length=64,
        max_response_length=24,
        tokens_per_micro_batch=1024,
    )


@pytest.fixture(scope="module")
def healthy(device, tiny_model, tmp_path_factory):
    """A case that every check has seen, and the report's lines."""
    case = Case(toy_config(**knobs(tmp_path_factory.mktemp("doctor"), tiny_model)))
    told = []
    assert examine(case, CHECKS.values(), told.append)
    return case, told


def test_this_machine_is_fit(healthy):
    """Every check tells one line, and nothing is slow or wrong."""
    _, told = healthy
    assert [line.split()[0] for line in told] == ["ok"] * len(CHECKS)


def old_driver(patch, case, directory):
    file = directory / "version"
    file.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  535.183.01  Release Build\n"
    )
    patch.setattr(ranks, "DRIVER", file)
    patch.setattr(torch.version, "cuda", "13.0")


def other_version(patch, case, directory):
    patch.setattr(checks, "installed", lambda library: "1.0")


def no_compiler(patch, case, directory):
    patch.setattr(torch.version, "cuda", "13.0")
    patch.delenv("CC", raising=False)
    patch.setenv("PATH", str(directory))


def no_headers(patch, case, directory):
    patch.setattr(torch.version, "cuda", "13.0")
    patch.setenv("CC", "cc")
    patch.setattr(checks.sysconfig, "get_config_var", lambda name: str(directory))


def wrong_sums(patch, case, directory):
    patch.setattr(torch.distributed, "all_reduce", lambda tensor: tensor.add_(1))


def container(patch, case, directory):
    patch.setattr(ranks, "_ranks_per_node", 8)
    patch.setattr(checks.shutil, "disk_usage", lambda path: Usage(64e6))


def long_prompts(patch, case, directory):
    case.config = replace(case.config, max_prompt_length=1)


def little_memory(patch, case, directory):
    files = {"max": "9000000", "current": "5000000", "stat": "file 7\ninactive_file 4000000\n"}
    for name, text in files.items():
        (directory / f"memory.{name}").write_text(text)
    patch.setattr(memory, "CGROUP", directory)
    assert memory.available_bytes() == 8_000_000  # what was read from files can be freed


def busy_gpu(patch, case, directory):
    case.device = torch.device("cuda")
    patch.setattr(torch.cuda, "mem_get_info", lambda: (20e9, 80e9))  # rollout_memory asks for 32


def another_temperature(patch, case, directory):
    patch.setattr(case.policy.module, "temperature", 1.3)


def old_weights(patch, case, directory):
    patch.setattr(HFEngine, "wake", lambda self, tensors: list(tensors))


def little_patience(patch, case, directory):
    case.config = replace(case.config, hang_timeout=1e-9)


def sharp_attention(patch, case, directory):
    packed = trials.packed_attention
    patch.setattr(
        trials, "packed_attention", lambda *a, scaling, **k: packed(*a, scaling=2 * scaling, **k)
    )


def hoard(patch, case, directory):
    forward = PackedLM.forward
    kept = []

    def greedy(self, packed):
        kept.append(torch.empty(10**8))
        return forward(self, packed)

    patch.setattr(PackedLM, "forward", greedy)


def no_gradient(patch, case, directory):
    patch.setattr(Policy, "update", lambda *args: {"loss/grad_norm": 0.0, "made": torch.ones(1)})


@pytest.mark.parametrize(
    "check, break_it, said",
    [
        ("driver", old_driver, "needs 580"),
        ("libraries", other_version, "torch 1.0, not 2."),
        ("c_compiler", no_compiler, "no C compiler, /"),
        ("c_compiler", no_headers, "apt-get install gcc python3."),
        ("ranks_reach_each_other", wrong_sums, "NCCL_DEBUG"),
        ("shared_memory", container, "--ipc=host"),
        ("model_and_questions", long_prompts, "is max_prompt_length="),
        ("memory", little_memory, "fewer ranks"),
        ("memory", busy_gpu, "nvidia-smi"),
        ("drift", another_temperature, "max_drift"),
        ("sync", old_weights, "old weights"),
        ("generation", little_patience, "hang_timeout"),
        ("packed_kernel", sharp_attention, "--dtype float32"),
        ("update_memory", hoard, "more than the formula"),
        ("update_memory", no_gradient, "no gradient"),
    ],
)
def test_what_is_wrong_is_called_wrong(check, break_it, said, healthy, monkeypatch, tmp_path):
    """In a world where one thing is broken its line says so, and what to do."""
    case, told = replace(healthy[0]), []
    break_it(monkeypatch, case, tmp_path)
    try:
        assert not examine(case, [CHECKS[check]], told.append)
    except (RuntimeError, ValueError):
        # A check that raises is the last one, and its rank tells it.
        assert "mend this first" in told[0]
    assert told[0].startswith("wrong")
    assert said in told[0]


def test_a_library_that_neither_trains_nor_generates_is_a_remark(healthy, monkeypatch):
    """Another version of it is told, and nothing is wrong."""
    version = checks.version
    monkeypatch.setattr(checks, "version", lambda name: "0" if name == "ruff" else version(name))
    told = []
    assert examine(replace(healthy[0]), [CHECKS["libraries"]], told.append)
    assert told[0].startswith("ok")
    assert "ruff 0, not" in told[0]


def test_a_cpu_needs_no_compiler(healthy, monkeypatch, tmp_path):
    """Where torch is for the CPU nothing is wrong without one."""
    no_compiler(monkeypatch, None, tmp_path)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert examine(replace(healthy[0]), [CHECKS["c_compiler"]], lambda line: None)


@pytest.mark.parametrize("kind, seconds", [("cpu", 300), ("cuda", 1800)])
def test_the_engine_may_start_longer_on_a_gpu(kind, seconds, healthy, monkeypatch):
    """Its first start compiles; other checks keep five minutes, also once ranks have met."""
    monkeypatch.setattr(checks.watchdog, "limit", checks.watchdog.limit)
    case = replace(healthy[0], device=torch.device(kind))
    limits = []

    def engine_start(case):
        limits.append(checks.watchdog.limit)
        return checks.Finding("")

    def another(case):
        CHECKS["ranks_reach_each_other"](case)
        return engine_start(case)

    assert examine(case, [engine_start, another], lambda line: None)
    assert limits == [seconds, 300]


def of_rank(argv: dict) -> list[str]:
    """The lines that a rank tells when shared memory is short for rank 1 only."""
    os.environ["RANK"] = str(ranks.rank())
    if ranks.rank() == 1:
        checks.shutil.disk_usage = lambda path: Usage(64e6)
    told = []
    assert not examine(Case(toy_config(**argv)), CHECKS.values(), told.append)
    return told


def test_the_worst_rank_counts(tiny_model, tmp_path):
    """Rank 0 tells what is wrong on one of two ranks, with its number."""
    told, silent = on_ranks(2, of_rank, knobs(tmp_path, tiny_model))
    wrong = [line for line in told if line.startswith("wrong")]
    assert len(told) == len(CHECKS)
    assert silent == []
    assert len(wrong) == 1
    assert "rank 1: 0.1 GB in /dev/shm" in wrong[0]


@pytest.mark.slow
@needs_cpu_vllm
@pytest.mark.parametrize(
    "length, code, verdicts", [(64, 0, ["ok"] * len(CHECKS)), (1, 1, ["ok"] * 5 + ["wrong"])]
)
def test_the_command(tiny_model, tmp_path, length, code, verdicts):
    """With vLLM each check is one line of stdout, and the exit code is 1 if anything is wrong."""
    file = tmp_path / "run.yaml"
    values = knobs(tmp_path, tiny_model) | {"engine": "vllm", "max_prompt_length": length}
    file.write_text(json.dumps(values))
    printed = shell(sys.executable, "-m", "tools.doctor", "--config", str(file), code=code)
    _, *lines = printed.splitlines()  # the first names the machine
    assert [line.split()[0] for line in lines if line[0] != " "] == verdicts


# ---- the formula ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def middling_model(tmp_path_factory, tokenizer) -> str:
    """A Llama whose layers, activations and logits are all large enough to count."""
    from transformers import LlamaConfig, LlamaForCausalLM

    directory = str(tmp_path_factory.mktemp("middling"))
    config = LlamaConfig(
        vocab_size=4000,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    return directory


def shares(config: Config, count: int) -> tuple[float, float]:
    """(weights and optimiser, an update's peak beyond them) as shares of the formula's bytes."""
    case = Case(config, ranks.setup(), shape_of(config.model))
    case.policy = Policy(config, config.model, case.device)
    update(case, 1)  # makes AdamW's moments
    held = 0
    for p in case.policy.module.parameters():
        moments = [v.to_local() for v in case.policy.optimizer.state.get(p, {}).values() if v.ndim]
        held += sum(t.nbytes for t in [p.to_local(), *moments])
    # gloo's threads often give a buffer back late, so that the least of many peaks is the true one.
    repeats = 2 if ranks.world_size() == 1 else 12
    peak = min(peak_tensor_bytes(lambda: update(case, count)) for _ in range(repeats))
    planned = case.planned(count * case.longest)
    return held / sum(planned.held.values()), peak / sum(planned.update.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    "world_size, dtype, checkpointing, lora_rank",
    [(1, "float32", False, 0), (2, "float32", True, 0), (1, "bfloat16", False, 32)],
)
def test_the_formula_is_what_an_update_takes(
    middling_model, world_size, dtype, checkpointing, lora_rank
):
    """Held bytes are exact, and the peak is within 10%, however activations are kept."""
    if lora_rank:
        pytest.importorskip("peft")
    config = toy_config(
        model=middling_model,
        max_prompt_length=64,
        max_response_length=192,
        dtype=dtype,
        gradient_checkpointing=checkpointing,
        lora_rank=lora_rank,
    )
    count = 4 if dtype == "float32" else 2  # some processors are slow in bfloat16
    for held, peak in on_ranks(world_size, shares, config, count):
        assert held == pytest.approx(1, rel=0.01)
        assert peak == pytest.approx(1, rel=0.10)


def test_micro_batches_fit_what_is_left():
    """With memory they grow from 256 to 16,384 tokens, and twice as many would not fit."""
    config = toy_config(gradient_checkpointing=True)
    shape = SHAPES["Qwen2.5-Math-1.5B"]
    chosen = []
    for free in (1e9 * gb for gb in range(1, 60)):
        tokens = tokens_that_fit(config, shape, 2, free, "cuda")
        chosen.append(tokens)
        assert tokens == 256 or update_bytes(config, shape, 2, tokens, "cuda") <= free
        assert tokens == 16384 or update_bytes(config, shape, 2, 2 * tokens, "cuda") > free
    assert chosen[0] == 256
    assert chosen[-1] == 16384


def test_shapes_have_the_published_sizes(tmp_path):
    """The paper's models count as published, and another family's config.json is refused."""
    published = {"Qwen2.5-Math-7B": 7.616, "Qwen2.5-Math-1.5B": 1.544, "Llama-3.1-8B": 8.030}
    for name, billions in published.items():
        assert SHAPES[name].parameters / 1e9 == pytest.approx(billions, abs=0.001)
    about = dict(
        model_type="qwen2",
        hidden_size=1536,
        num_hidden_layers=28,
        num_attention_heads=12,
        num_key_value_heads=2,
        intermediate_size=8960,
        vocab_size=151_936,
        tie_word_embeddings=True,
    )
    (tmp_path / "config.json").write_text(json.dumps(about))
    assert shape_of(str(tmp_path)) == SHAPES["Qwen2.5-Math-1.5B"]
    with pytest.raises(ValueError, match="has no config.json"):
        shape_of("somebody/unknown")
    with pytest.raises(
        ValueError, match="type gpt2 is not built in: its config.json has no hidden_size"
    ):
        Shape.of({"model_type": "gpt2", "n_embd": 8, "vocab_size": 9})


def test_a_gpu_tells_what_is_reserved(healthy, monkeypatch):
    """The doctor's line on the update gives the gaps between tensors, too."""
    gigabytes = {"memory_allocated": 1e9, "max_memory_allocated": 1.1e9}
    for name, value in gigabytes.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (33e9, 80e9))
    found = trials.update_memory(replace(healthy[0], device=torch.device("cuda"))).found
    assert "0.10 GB for micro-batches" in found
    assert "47 of 80 GB of the GPU are reserved" in found


@pytest.fixture
def formula(monkeypatch, capsys):
    """What the command prints of a file of configs/ on other GPUs."""

    def run(file: str, *flags: str) -> str:
        monkeypatch.setattr(
            sys, "argv", ["doctor", "--config", str(ROOT / "configs" / file), *flags]
        )
        doctor.main()
        return capsys.readouterr().out

    return run


def test_the_page_shows_what_the_formula_prints(formula):
    """docs/scaling.md has the GB reserved in each phase for every file that names its GPUs."""
    pytest.importorskip("peft")
    row = r"\| `(qwen\S+)`\S*(?: all weights)? \| (\d) × (\d+) GB \| (\S+) \| (\S+) \| (\S+) \|"
    page = re.findall(row, (ROOT / "docs" / "scaling.md").read_text())
    assert len(page) == 5
    for file, gpus, gigabytes, *phases in page:
        printed = formula(file, "--gpus", gpus, "--memory", gigabytes)
        assert f"| reserved | {' | '.join(phases)} |" in printed
        assert "It fits" in printed
    shown = {tuple(found[:3]) for found in page}
    for path in (ROOT / "configs").glob("*.yaml"):
        for gpus, gigabytes in re.findall(
            r"(\d+) GPUs? of (\d+) GB", path.read_text().splitlines()[0]
        ):
            assert (path.name, gpus, gigabytes) in shown


@pytest.mark.parametrize(
    "said, gpus, flags",
    [
        ("take {} GB on one GPU", "1", []),
        ("{} GB on each of two", "2", ["--rollout_memory", "0.3"]),
        ("they take {} GB, so one GPU of 24 GB will do", "1", ["--lora_rank", "32"]),
    ],
)
def test_the_neutral_file_says_what_it_takes(said, gpus, flags, formula):
    """The GB in the head of own-model.yaml are the formula's."""
    pytest.importorskip("peft")
    where = ["--model", "Qwen2.5-Math-1.5B", "--gpus", gpus, "--memory", "24"]
    printed = formula("own-model.yaml", *where, *flags)
    reserved = re.search(r"\| reserved \| (.+) \|", printed)[1].split(" | ")
    most = max(map(float, reserved))
    assert ("It fits" in printed) == (most <= 24)
    assert said.format(most) in (ROOT / "configs" / "own-model.yaml").read_text()


@pytest.mark.parametrize(
    "gpus, gigabytes, tp, sentence",
    [
        ("2", "60", "1", "GB too much. Lower tokens_per_micro_batch"),
        ("1", "180", "2", "It does not run: rollout_tp 2 must divide"),
        ("8", "20", "1", "raise rollout_memory"),
    ],
)
def test_too_small_a_machine_is_called_so(formula, gpus, gigabytes, tp, sentence):
    """On fewer or smaller GPUs the formula says what is too much and what to do."""
    machine = ["--gpus", gpus, "--memory", gigabytes, "--rollout_tp", tp]
    assert sentence in formula("qwen2.5-math-7b.yaml", *machine)


def test_the_formula_takes_both_numbers(formula, capsys):
    """Half a description of a machine is refused, not filled in."""
    with pytest.raises(SystemExit):
        formula("qwen2.5-math-7b.yaml", "--gpus", "8")
    assert "takes both" in capsys.readouterr().err
