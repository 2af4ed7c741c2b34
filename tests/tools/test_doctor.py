"""The doctor finds this machine fit, and calls each planted fault wrong."""

import io
import sys
from collections import namedtuple
from contextlib import redirect_stdout
from dataclasses import replace

import pytest
import torch
from conftest import on_ranks, shell, toy_config

from policy import Policy
from rollout import HFEngine
from runtime import ranks
from tools import doctor
from tools.doctor import CHECKS, Case, examine

Usage = namedtuple("Usage", "total")
SMALL = {
    "engine": "hf",
    "max_prompt_length": 16,
    "max_response_length": 24,
    "tokens_per_micro_batch": 128,
}


@pytest.fixture(scope="module")
def healthy(device, tiny_model):
    """A case that every check has seen and found good."""
    case = Case(toy_config(model=str(tiny_model), **SMALL))
    assert examine(case)
    return case


def other_version(patch, case):
    patch.setattr(doctor, "installed", lambda library: "1.0")


def wrong_sums(patch, case):
    patch.setattr(torch.distributed, "all_reduce", lambda tensor: tensor.add_(1))


def container(patch, case):
    patch.setattr(ranks, "_ranks_per_node", 8)
    patch.setattr(doctor.shutil, "disk_usage", lambda path: Usage(64e6))


def another_temperature(patch, case):
    patch.setattr(case.policy.module, "temperature", 1.3)


def old_weights(patch, case):
    patch.setattr(HFEngine, "wake", lambda self, tensors: list(tensors))


def no_gradient(patch, case):
    patch.setattr(Policy, "update", lambda *args: {"loss/grad_norm": 0.0})


@pytest.mark.parametrize(
    "check, break_it, said",
    [
        ("versions", other_version, "torch 1.0, not 2."),
        ("ranks_add_up", wrong_sums, "NCCL_DEBUG"),
        ("shared_memory", container, "--ipc=host"),
        ("log_probs_agree", another_temperature, "different models"),
        ("log_probs_agree", old_weights, "old weights"),
        ("longest_update", no_gradient, "no gradient"),
    ],
)
def test_what_is_wrong_is_called_wrong(check, break_it, said, healthy, monkeypatch, capsys):
    """Where one thing is broken its line says so, and what to do."""
    case = replace(healthy)
    break_it(monkeypatch, case)
    assert not examine(case, [getattr(doctor, check)])
    told = capsys.readouterr().out
    assert told.startswith("wrong") and said in told


def test_a_library_that_neither_trains_nor_generates_is_a_remark(healthy, monkeypatch, capsys):
    """Another version of it is told, and nothing is wrong."""
    version = doctor.version
    monkeypatch.setattr(doctor, "version", lambda name: "0" if name == "ruff" else version(name))
    assert examine(replace(healthy), [doctor.versions])
    assert "ruff 0, not" in capsys.readouterr().out


def of_rank(model: str) -> tuple[bool, str]:
    """Whether all is good where shared memory is short for rank 1 only, and what is printed."""
    if ranks.rank() == 1:
        doctor.shutil.disk_usage = lambda path: Usage(64e6)
    with redirect_stdout(io.StringIO()) as out:
        good = examine(Case(toy_config(model=model, **SMALL)), CHECKS)
    return good, out.getvalue()


def test_the_worst_rank_counts(tiny_model):
    """Rank 0 tells what is wrong on one of two ranks, with its number."""
    (good, out), (other, silent) = on_ranks(2, of_rank, str(tiny_model))
    assert not good and not other and not silent
    told = [line for line in out.splitlines() if line[:5] in ("ok   ", "wrong")]
    assert len(told) == len(CHECKS)
    assert [line for line in told if line.startswith("wrong")] == [told[2]]
    assert "0.1 GB in /dev/shm (rank 1)" in told[2]


def test_the_command(tiny_model):
    """It needs no question files, and prints a line a check."""
    flags = f"--config configs/arithmetic.yaml --model {tiny_model} --max_prompt_length 16"
    flags += " --max_response_length 24 --engine hf"
    out = shell(sys.executable, "-m", "tools.doctor", *flags.split())
    assert [line.split()[0] for line in out.splitlines()] == ["ok"] * len(CHECKS)
