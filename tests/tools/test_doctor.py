"""The doctor finds this machine fit, and every line of its report says wrong where the world is."""

import json
import os
import subprocess
import sys
import time
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import FORKS, on_ranks

from config import Config
from policy import PackedLM
from rollout import HFEngine
from runtime import memory, ranks
from tools import checks, doctor
from tools.checks import CHECKS, Case
from tools.doctor import examine
from tools.trials import TRIALS
from worlds.arithmetic import World, draw_sets, rows

ROOT = Path(__file__).resolve().parent.parent.parent
NAMES = [check.__name__.replace("_", " ") for check in CHECKS + TRIALS]
GROUP = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
Usage = namedtuple("Usage", "total used free")


def knobs(directory: Path, model: str) -> dict:
    """Those of a small run on the arithmetic world's questions."""
    file = directory / "train.jsonl"
    file.write_text(rows(draw_sets(World())["train"][:8], "arithmetic"))
    return dict(model=model, train_files=[str(file)], run_dir=str(directory / "run"), engine="hf",
                batch_size=8, num_rollouts=4, max_prompt_length=64, max_response_length=24,
                tokens_per_micro_batch=1024)


def report(case: Case, tried) -> dict:
    """{check: finding} of an examination."""
    found = {}
    examine(case, tried, lambda name, finding, alone=False: found.update({name: finding}), time.monotonic())
    return found


@pytest.fixture(scope="module")
def healthy(device, tiny_model, tmp_path_factory):
    """A case that every check has seen, and the report."""
    case = Case(Config(**knobs(tmp_path_factory.mktemp("doctor"), tiny_model)))
    return case, report(case, CHECKS + TRIALS)


def test_a_weight_left_out_is_found_with_adapters_too(device, tiny_model, tmp_path):
    """The name that is left out is one that the engine is given: not that of an adapter's base layer."""
    case = Case(Config(**knobs(tmp_path, tiny_model), lora_rank=4))
    found = report(case, CHECKS + TRIALS)["left out"]
    assert found.verdict == "ok" and "is refused" in found.found


def test_this_machine_is_fit(healthy):
    """No line says wrong, each is there, and the update's peak is within a quarter of the plan."""
    case, found = healthy
    assert list(found) == NAMES
    assert {name: f for name, f in found.items() if f.verdict == "wrong"} == {}
    assert set(case.seconds) == {"rollout", "sync", "update"} and case.update_tokens == 1024


def old_driver(patch, case, directory):
    file = directory / "version"
    file.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  535.183.01  Release Build\n")
    patch.setattr(ranks, "DRIVER", file)
    patch.setattr(torch.version, "cuda", "13.0")
    return "needs 580"


def other_version(patch, case, directory):
    metadata = directory / "einops-0.1.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: einops\nVersion: 0.1\n")
    patch.syspath_prepend(directory)
    return "pip install einops==0.8"


def sums_that_are_wrong(patch, case, directory):
    patch.setattr(torch.distributed, "all_reduce", lambda tensor: tensor.add_(1))
    return "NCCL_DEBUG"


def prompts_too_long(patch, case, directory):
    case.config = replace(case.config, max_prompt_length=1)
    return "max_prompt_length=1"


def busy_gpu(patch, case, directory):
    case.device = torch.device("cuda")
    patch.setattr(torch.cuda, "mem_get_info", lambda: (20e9, 80e9))  # rollout_memory asks for 32
    return "nvidia-smi"


def little_memory(patch, case, directory):
    files = {"max": "9000000", "current": "5000000", "stat": "file 7\ninactive_file 4000000\n"}
    for name, text in files.items():
        (directory / f"memory.{name}").write_text(text)
    patch.setattr(memory, "CGROUP", directory)
    assert memory.available_bytes() == 8_000_000  # what was read from files can be freed
    return "fewer ranks"


def no_disk(patch, case, directory):
    case.config = replace(case.config, run_dir="/proc/nowhere")  # a file system of size 0
    return "larger disk"


def few_files(patch, case, directory):
    patch.setattr(checks.resource, "getrlimit", lambda what: (256, 1024))
    return "ulimit -n"


def container(patch, case, directory):
    patch.setattr(ranks, "_ranks_per_node", 8)
    patch.setattr(checks.shutil, "disk_usage", lambda path: Usage(64e6, 0, 64e6))
    return "--ipc=host"


def tensor_parallel(patch, case, directory):
    case.config = replace(case.config, rollout_tp=2)
    return "needs the vllm engine"


def patience_is_short(patch, case, directory):
    case.config = replace(case.config, hang_timeout=1e-9)
    return "hang_timeout"


def another_temperature(patch, case, directory):
    patch.setattr(case.policy.module, "temperature", 1.3)
    return "max_drift"


def weights_stay_old(patch, case, directory):
    patch.setattr(HFEngine, "wake", lambda self, tensors: list(tensors))
    return "old weights"


def attention_to_the_future(patch, case, directory):
    plain = torch.nn.functional.scaled_dot_product_attention
    patch.setattr(torch.nn.functional, "scaled_dot_product_attention",
                  lambda *args, is_causal, **others: plain(*args, **others))
    return "float32"


def a_hoard(patch, case, directory):
    forward, kept = PackedLM.forward, []

    def greedy(self, packed):
        kept.append(torch.empty(10**8))
        return forward(self, packed)

    patch.setattr(PackedLM, "forward", greedy)
    return "tokens_per_micro_batch"


def no_gradient(patch, case, directory):
    clip = torch.nn.utils.clip_grad_norm_

    def without(parameters, bound):
        parameters = list(parameters)
        for p in parameters:
            p.grad.zero_()
        return clip(parameters, bound)

    patch.setattr(torch.nn.utils, "clip_grad_norm_", without)
    return "no gradient"


def endless_run(patch, case, directory):
    case.config = replace(case.config, steps=10**9)
    return "add GPUs"


def sync_that_does_not_look(patch, case, directory):
    patch.setattr("rollout._all_of", lambda names, tensors: tensors)
    return "stay old"


@pytest.mark.parametrize("name, break_it", [
    ("driver", old_driver), ("wheels", other_version), ("ranks reach each other", sums_that_are_wrong),
    ("model and questions", prompts_too_long), ("gpu memory", busy_gpu), ("host memory", little_memory),
    ("disk", no_disk), ("file limits", few_files), ("shared memory", container),
    ("engine start", tensor_parallel),
    ("generation", patience_is_short), ("drift", another_temperature), ("sync", weights_stay_old),
    ("packed kernel", attention_to_the_future), ("update memory", a_hoard),
    ("update speed", patience_is_short), ("update speed", no_gradient), ("step and run", endless_run),
    ("left out", sync_that_does_not_look)])
def test_what_is_wrong_is_called_wrong(name, break_it, healthy, monkeypatch, tmp_path):
    """In a world where one thing is broken its line says so, and what to do."""
    case, check = replace(healthy[0]), (CHECKS + TRIALS)[NAMES.index(name)]
    advice = break_it(monkeypatch, case, tmp_path)
    finding = report(case, [check])[name]
    assert finding.verdict == "wrong" and advice in finding.found + finding.advice, finding


def of_rank(argv: dict) -> tuple[list[str], dict]:
    """What is wrong by the report of this rank, when shared memory is short for rank 1 only."""
    if ranks.rank() == 1:
        checks.shutil.disk_usage = lambda path: Usage(64e6, 0, 10**15)
    found = report(Case(Config(**argv)), CHECKS + TRIALS)
    return {name: f.found for name, f in found.items() if f.verdict == "wrong"}, len(found)


def test_the_worst_rank_counts(tiny_model, tmp_path):
    """Two ranks make all checks together; what is wrong on one of them is reported with its number."""
    for wrong, count in on_ranks(2, of_rank, knobs(tmp_path, tiny_model)):
        assert wrong == {"shared memory": "rank 1: 0.1 GB in /dev/shm"} and count == len(NAMES)


def test_time_is_limited(healthy):
    """What has not begun in time is not begun, and called slow."""
    found, late = [], time.monotonic() - 131
    assert examine(healthy[0], TRIALS, lambda name, finding: found.append(finding), late)
    assert [f.verdict for f in found] == ["slow"] * len(TRIALS) and all("not tried" in f.found for f in found)


def test_a_check_that_does_not_end_is_wrong(healthy, monkeypatch):
    """Half a second before the watchdog ends the process the line is there, told by the rank that waits."""
    found = []
    monkeypatch.setattr(doctor, "LIMIT", 1.0)

    def waits(case: Case) -> checks.Finding:
        time.sleep(1.0)
        return checks.Finding("ok", "")

    assert not examine(healthy[0], [waits, waits], lambda *told, **how: found.append((*told, how)),
                       time.monotonic())
    (name, late, how), = found
    assert (name, late.verdict, how) == ("waits", "wrong", {"alone": True}) and "not ended when" in late.found
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(TimeoutError, match="rank 0: not ended when"):  # ends the others, which may wait
        examine(healthy[0], [waits], lambda *told, **how: None, time.monotonic())


def test_a_rank_tells_of_its_own_error(healthy, monkeypatch):
    """Of several the one that raises has the line, with its number: rank 0 may wait for it."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")

    def raises(case: Case) -> checks.Finding:
        raise OSError("no disk")

    found = []
    with pytest.raises(OSError, match="no disk"):
        examine(healthy[0], [raises], lambda *told, **how: found.append((*told, how)), time.monotonic())
    assert [(line.found, how) for _, line, how in found] == [("rank 1: OSError: no disk", {"alone": True})]


def test_the_built_in_world_need_not_be_there(device, tmp_path, monkeypatch):
    """Before the first run a base model that has learned nothing takes its place."""
    monkeypatch.chdir(tmp_path)
    case = Case(Config(), device)
    assert report(case, [checks.model_and_questions])["model and questions"].verdict == "ok"
    assert len(case.prompts) == 32 and (Path(case.config.model) / "config.json").exists()


def consult(argv: list[str]) -> None:
    """The doctor's own process, without its trials."""
    sys.argv, doctor.TRIALS = ["doctor", *argv], ()
    ranks.run(doctor.main)


@pytest.mark.parametrize("flags, code", [([], 0), (["--max_prompt_length", "1"], 1)])
def test_exit_code(flags, code, tiny_model, tmp_path, monkeypatch):
    """0, and 1 if anything is wrong."""
    for name in GROUP:
        monkeypatch.delenv(name, raising=False)
    file = knobs(tmp_path, tiny_model)["train_files"][0]
    argv = ["--model", tiny_model, "--train_files", file, "--engine", "hf", *flags]
    process = FORKS.Process(target=consult, args=(argv,))
    process.start()
    process.join(60)
    assert process.exitcode == code


@pytest.mark.slow
def test_the_command(tmp_path):
    """`python -m tools.doctor --json` on the built-in run, with vLLM where it is: a line for each check on
    stdout, nothing else, nothing wrong."""
    environment = {name: value for name, value in os.environ.items() if name not in GROUP}
    command = [sys.executable, "-m", "tools.doctor", "--json", "--run_dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["check"] for line in lines] == NAMES, done.stderr[-2000:]
    assert done.returncode == 0 and not [line for line in lines if line["verdict"] == "wrong"]
