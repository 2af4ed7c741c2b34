"""The same run on one node, on two, and with one engine for two ranks: same samples, same losses."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import free_port

from worlds.arithmetic import draw_sets, rows

ROOT = Path(__file__).resolve().parent.parent.parent
KNOBS = dict(steps=3, batch_size=4, num_rollouts=4, k_max=3, max_prompt_length=64, max_response_length=24, start_threshold=-1,
             eval_every=0, reward="bench.step:coin", lr=1e-3, tokens_per_micro_batch=128)  # several per rank


@pytest.fixture
def train(tmp_path, tiny_model):
    """train(name, nodes, ranks, **knobs): the metrics of a run of train.py by torchrun, one agent per node,
    over loopback."""
    from worlds.arithmetic import World

    (tmp_path / "train.jsonl").write_text(rows(draw_sets(World())["train"][:40], "arithmetic"))

    def run(name: str, nodes: int, ranks: int, **knobs) -> list[dict]:
        knobs = {**KNOBS, "model": tiny_model, "train_files": tmp_path / "train.jsonl", "run_dir": tmp_path / name, **knobs}
        flags = [str(part) for knob, value in knobs.items() for part in (f"--{knob}", value)]
        port, environment = free_port(), {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        environment.pop("MASTER_PORT")
        agents = [subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}", f"--nproc_per_node={ranks}",
             f"--node_rank={node}", "--master_addr=127.0.0.1", f"--master_port={port}", "train.py", *flags],
            cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for node in range(nodes)]
        try:
            for agent in agents:
                output, _ = agent.communicate(timeout=300)
                assert agent.returncode == 0, output[-3000:]
        finally:
            for agent in agents:
                agent.kill()
        return [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()][1:]

    return run


def agree(ours: list[dict], reference: list[dict], steps: int = 3, rel: float = 1e-4) -> None:
    assert len(ours) == len(reference) == KNOBS["steps"]
    for mine, theirs in zip(ours[:steps], reference[:steps]):
        for name in ("loss/policy", "loss/grad_norm", "loss/entropy", "reward/pass_at_1", "rollout/tokens", "replay/questions",
                     "buckets/trajectories"):
            assert mine[name] == pytest.approx(theirs[name], rel=rel, abs=1e-7), name


@pytest.mark.slow
def test_two_nodes_give_the_losses_of_one(train):
    """Two agents of one rank each (replicate across, shard inside) against one agent of two, replay
    included."""
    one, two = train("one", 1, 2, engine="hf"), train("two", 2, 1, engine="hf")
    assert one[-1]["replay/questions"] > 0
    agree(two, one)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
def test_two_ranks_share_one_engine(train):
    """rollout_tp=2: the first step's samples and losses are those of two engines; engine and policy agree in
    all."""
    alone, shared = train("alone", 1, 2, engine="vllm"), train("shared", 1, 2, engine="vllm", rollout_tp=2)
    agree(shared, alone, steps=1)
    assert all(row["engine/drift"] < 1e-4 for row in shared)
