"""The same run on one node and on two, and one engine for two ranks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ARITHMETIC, ROOT, free_port, needs_cpu_vllm, on_ranks
from test_train import metrics, train_from

from runtime import ranks
from runtime.faults import watchdog
from worlds.arithmetic import World, draw_sets, rows

# 128 tokens a micro-batch make several of them on each rank.
KNOBS = dict(
    steps=3,
    batch_size=4,
    num_rollouts=4,
    max_prompt_length=64,
    max_response_length=24,
    start_threshold=-1,
    eval_every=0,
    reward="bench.step:coin",
    lr=1e-3,
    tokens_per_micro_batch=128,
)
COMPARED = (
    "loss/policy",
    "loss/grad_norm",
    "loss/entropy",
    "reward/pass_at_1",
    "rollout/tokens",
    "replay/questions",
    "buckets/trajectories",
)


def flags(directory: Path, model: str, **knobs) -> list[str]:
    """The command line of a short run in `directory`."""
    questions = directory.parent / "train.jsonl"
    questions.write_text(rows(draw_sets(World())["train"][:40], "arithmetic"))
    knobs = {**KNOBS, "model": model, "train_files": questions, "run_dir": directory, **knobs}
    given = [str(part) for knob, value in knobs.items() for part in (f"--{knob}", value)]
    return ["--config", ARITHMETIC, "--val_files", *given]


def interrupted_in_the_third_rollout(argv: list[str]) -> None:
    """A run in which only rank 1 is asked to stop."""
    enter, steps = watchdog.enter, []

    def entering(phase: str) -> None:
        enter(phase)
        steps.extend([phase] * (phase == "rollout"))
        watchdog.interrupted = ranks.rank() == 1 and len(steps) == 3

    watchdog.enter = entering
    train_from(argv)


def agents(argv: list[str], nodes: int) -> None:
    """Runs torchrun once per node, with one rank each, over loopback."""
    port, environment = (
        free_port(),
        {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    environment.pop("MASTER_PORT")
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nnodes={nodes}",
        "--nproc_per_node=1",
        "--master_addr=127.0.0.1",
        f"--master_port={port}",
    ]
    processes = [
        subprocess.Popen(
            [*torchrun, f"--node_rank={node}", "train.py", *argv],
            cwd=ROOT,
            text=True,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for node in range(nodes)
    ]
    try:
        for process in processes:
            output, _ = process.communicate(timeout=300)
            assert process.returncode == 0, output[-3000:]
    finally:
        for process in processes:
            process.kill()


@pytest.mark.slow
def test_two_nodes_give_the_losses_of_one(tmp_path, tiny_model):
    """Two agents of one rank each give the metrics of one agent of two within 1e-4.

    Between nodes the model is replicated, inside of one it is sharded.
    """
    one, two = tmp_path / "one", tmp_path / "two"
    on_ranks(2, train_from, flags(one, tiny_model, engine="hf"))
    agents(flags(two, tiny_model, engine="hf"), nodes=2)
    rows = metrics(one)[1:]
    assert len(rows) == 3 and rows[-1]["replay/questions"] > 0
    for ours, theirs in zip(metrics(two)[1:], rows, strict=True):
        for name in COMPARED:
            assert ours[name] == pytest.approx(theirs[name], rel=1e-4, abs=1e-7), name


def introduced() -> None:
    ranks._ranks_per_node = 1 + ranks.rank()
    ranks._introduce(0)


def test_nodes_of_unequal_size_are_refused():
    """Nodes that say 1 and 2 ranks are both told to give the same number."""
    with pytest.raises(AssertionError, match=r"nodes with \[1, 2\] ranks: give all the same"):
        on_ranks(2, introduced)


def test_restarts_of_several_nodes_are_refused(monkeypatch):
    """Two agents would count restarts apart and name other meeting places to their ranks."""
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    with pytest.raises(ValueError, match="is for one node"):
        ranks.setup()


@pytest.mark.slow
@needs_cpu_vllm
def test_two_ranks_share_one_engine(tmp_path, tiny_model):
    """With rollout_tp=2 the engine's responses have the policy's own log-probs.

    Where one of the two is asked to stop both leave the rollout, and neither waits in the engine.
    """
    argv = flags(tmp_path / "run", tiny_model, engine="vllm", rollout_tp=2)
    on_ranks(2, interrupted_in_the_third_rollout, argv, timeout=300)
    assert (tmp_path / "run" / "checkpoints" / "step-0000002").exists()
    rows = metrics(tmp_path / "run")[1:]
    assert len(rows) == 2 and all(row["engine/drift"] < 1e-4 for row in rows)
    assert rows[-1]["replay/questions"] > 0
