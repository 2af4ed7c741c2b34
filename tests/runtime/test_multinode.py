"""The same run on one node and on two, and one engine for two ranks."""

import gc
import os
import subprocess
import sys

import pytest
from conftest import ROOT, arguments, free_port, needs_cpu_vllm, on_ranks
from test_train import metrics, train_from

from runtime import ranks
from runtime.faults import watchdog


def interrupted_in_the_third_rollout(argv: list[str]) -> int:
    """How many ranks still reach each other after a run in which only rank 1 is asked to stop."""
    # On a GPU vLLM imports this first by itself; then nothing else holds the engine by chance.
    import vllm.v1.engine.core  # noqa: F401

    enter, steps = watchdog.enter, []

    def entering(phase: str) -> None:
        enter(phase)
        steps.extend([phase] * (phase == "rollout"))
        watchdog.interrupted = ranks.rank() == 1 and len(steps) == 3

    watchdog.enter = entering
    train_from(argv)
    gc.collect()
    return len(ranks.gather(None))


def agents(argv: list[str], nodes: int) -> None:
    """Runs torchrun once per node, with one rank each, over loopback."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    del environment["MASTER_PORT"]
    flags = (
        f"--nnodes={nodes} --nproc_per_node=1 --master_addr=127.0.0.1 --master_port={free_port()}"
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", *flags.split()]
    processes = []
    for node in range(nodes):
        command = [*torchrun, f"--node_rank={node}", "train.py", *argv]
        processes.append(subprocess.Popen(command, cwd=ROOT, env=environment))
    try:
        assert [process.wait(300) for process in processes] == [0] * nodes
    finally:
        for process in processes:
            process.kill()


@pytest.mark.slow
def test_two_nodes_give_the_losses_of_one(world, tmp_path):
    """Two agents of one rank each give the metrics of one agent of two within 1e-4.

    Between nodes the model is replicated, inside of one it is sharded. A step has several
    micro-batches on each rank.
    """
    one, two = tmp_path / "one", tmp_path / "two"
    flags = ["--engine", "hf", "--tokens_per_micro_batch", "128"]
    on_ranks(2, train_from, arguments(world, one, *flags))
    agents(arguments(world, two, *flags), nodes=2)
    rows = metrics(one)
    assert len(rows) == 4 and rows[-1]["replay/questions"] > 0
    for ours, theirs in zip(metrics(two), rows, strict=True):
        for name in [name for name in theirs if not name.startswith(("time/", "engine/"))]:
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
def test_two_ranks_share_one_engine(world, tmp_path, tiny_model):
    """With rollout_tp=2 the engine's responses have the policy's own log-probs.

    Where one of the two is asked to stop both leave the rollout, and neither waits in the engine.
    Ranks reach each other when nobody holds the engine any more.
    """
    flags = f"--engine vllm --rollout_tp 2 --model {tiny_model} --reward bench.step:coin"
    flags += " --batch_size 4 --num_rollouts 4"
    argv = arguments(world, tmp_path / "run", *flags.split())
    assert on_ranks(2, interrupted_in_the_third_rollout, argv, timeout=300) == [2, 2]
    assert (tmp_path / "run" / "checkpoints" / "step-0000002").exists()
    rows = metrics(tmp_path / "run")[1:]
    assert len(rows) == 2 and all(row["engine/drift"] < 1e-4 for row in rows)
    assert rows[-1]["replay/questions"] > 0
