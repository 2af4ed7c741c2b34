"""A whole training step against TRL's GRPOTrainer: same model, prompts, samples, rewards and optimiser steps.

Questions x 8 responses of up to 64 tokens and two optimiser steps, on-policy (--rho 0): 32 on a random
model (`step`), 16 on SmolLM2-135M after `make smollm-ready` (`real`). Ours is the ordinary `train.py` on
two ranks of one thread, for the real model on one of two; TRL one process of two threads and two of one,
with Hugging Face's generate: it does not support this vLLM on CPUs. All are timed from step to step, by the
wall clock and by the CPU time of all their processes, which means something on a busy machine too. Ours
runs before and after TRL, so that a change of the machine's pace between them shows.
"""

import argparse
import json
import os
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.meters import Row, Steps, run, torchrun

RESPONSES, MAX_TOKENS = 8, 64
# name -> flags of train.py
OURS = {"float32": [], "bfloat16": ["--dtype", "bfloat16"]}
TRL = {  # name -> (our dtype that it is held against, processes, settings of bench/peer.py)
    "float32, no checkpointing, 1 process": ("float32", 1, []),
    "float32, no checkpointing, 2 processes": ("float32", 2, []),
    "bf16 autocast, checkpointing (its defaults), 1 process": ("bfloat16", 1, ["--bf16", "--checkpointing"]),
    "bf16 autocast, no checkpointing, 1 process": ("bfloat16", 1, ["--bf16"]),
    "bf16 autocast, no checkpointing, 2 processes": ("bfloat16", 2, ["--bf16"]),
}
SLOWER = list(TRL)[1:3]  # they never were the fastest of their dtype: run with --full only
COIN = "bench.step:coin"


def coin(response: str, answer: str) -> float:
    """A reward that a random model gets half the time, so that groups are mixed on both sides."""
    return float(zlib.crc32(response.encode()) & 1)


def write_setup(directory: Path) -> tuple[str, str]:
    """A random Llama (hidden 256, 6 layers, 4.8M parameters) and 512 questions of about 20 tokens."""
    import numpy as np
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from worlds.arithmetic import draw_question, rows
    from worlds.base_model import build_tokenizer

    tokenizer = build_tokenizer()
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=256, intermediate_size=688, num_hidden_layers=6,
        num_attention_heads=4, max_position_embeddings=128, tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id))
    model.save_pretrained(directory / "model")
    tokenizer.save_pretrained(directory / "model")
    rng, questions = np.random.default_rng(0), set()
    while len(questions) < 512:
        questions.add(draw_question(rng, (5, 6)))
    (directory / "train.jsonl").write_text(rows(sorted(questions), "arithmetic"))
    return str(directory / "model"), str(directory / "train.jsonl")


def real_setup(directory: Path) -> tuple[str, str]:
    """SmolLM2-135M and the training questions of configs/smollm2.yaml; SystemExit where they are not made."""
    import pyarrow.parquet as pq

    from config import parse_config

    config = parse_config(["--config", "configs/smollm2.yaml"])
    if missing := [f for f in (config.model, *config.train_files) if not Path(f).exists()]:
        raise SystemExit(f"{missing[0]} is not there: make smollm-ready")
    rows = [row for file in config.train_files for row in pq.read_table(file).to_pylist()]
    (directory / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return config.model, str(directory / "train.jsonl")


@dataclass(frozen=True)
class Task:
    """What both sides train on, and how far ours should be ahead."""

    setup: Callable[[Path], tuple[str, str]]  # makes model and questions
    questions: int  # of a step
    longest_prompt: int
    micro_batches: tuple[int, ...]  # responses of a forward and backward of TRL, each tried
    tokens: int  # of a micro-batch of ours
    ranks: int  # of ours, on two cores
    steps: tuple[int, int]  # timed, and with --full
    bars: dict[str, float]  # dtype -> ours / the fastest TRL, at most


TASKS = {"step": Task(write_setup, 32, 32, (64,), 4096, 2, (5, 20), {"float32": 0.70, "bfloat16": 0.75}),
         "real": Task(real_setup, 16, 128, (16, 32), 1024, 1, (2, 10), {"float32": 0.25, "bfloat16": 0.25})}


def train_steps(ranks: int, flags: list[str], directory: Path) -> tuple[Steps, list[dict]]:
    """The steps of a run of train.py on two cores, and their rows of metrics, the first step left out."""
    command = torchrun(ranks, "train.py", "--run_dir", str(directory), *flags)
    steps = run(command, os.environ | {"OMP_NUM_THREADS": str(2 // ranks)}, "step ")
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return steps, [row for row in rows if row["step"] > 1]


def phases(metrics: list[dict]) -> str:
    """Median seconds of each phase of a step."""
    names = [n for n in metrics[0] if n.startswith("time/") and n != "time/step"]
    return ", ".join(f"{n[5:]} {median(m.get(n, 0.0) for m in metrics):.2f}" for n in names)


def trl_steps(task: Task, dtype: str, flags: list[str], full: bool) -> Iterator[tuple[str, Steps]]:
    """(name, steps) of each way to run TRL that our dtype is held against; none where it does not import."""
    for name, (against, processes, precision) in TRL.items():
        if against != dtype or name in SLOWER and not full:
            continue
        for size in task.micro_batches:
            command = torchrun(processes, "bench/peer.py", "--batch", str(task.questions), "--micro_batch",
                               str(size), *flags, *precision)
            try:
                steps = run(command, os.environ | {"OMP_NUM_THREADS": str(2 // processes)}, "{'loss'")
            except RuntimeError as error:
                if "TRL does not import" not in str(error):
                    raise
                return
            yield f"{name}, micro-batches of {size}", steps


def bench_step(args: argparse.Namespace, task: Task = TASKS["step"]) -> Iterator[Row]:
    """Seconds a step, ours before and after TRL's, and their ratio; ours alone where TRL does not import."""
    steps = task.steps[args.full]
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        model, questions = task.setup(directory)
        common = ["--model", model, "--train_files", questions, "--reward", COIN, "--rho", "0",
                  "--batch_size", str(task.questions), "--num_rollouts", str(RESPONSES), "--lr", "1e-6",
                  "--max_prompt_length", str(task.longest_prompt), "--max_response_length", str(MAX_TOKENS),
                  "--tokens_per_micro_batch", str(task.tokens),
                  "--steps", str(steps + 1), "--eval_every", "0", "--save_every", "0"]
        for dtype, precision in OURS.items():
            if args.dtype not in (None, dtype):
                continue
            before, metrics = train_steps(task.ranks, [*common, *precision], directory / f"{dtype}-before")
            yield ours(f"{dtype}, {task.ranks} ranks, before", before, metrics)
            peers = []  # (wall, CPU) seconds a step
            flags = ["--model", model, "--questions", questions, "--steps", str(steps)]
            for peer, trl in trl_steps(task, dtype, flags, args.full):
                peers.append((median(trl.wall), median(trl.cpu)))
                result = json.loads(next(line for line in trl.lines if line.startswith('{"version"')))
                yield (f"TRL {result['version']}, {peer}",
                       f"{peers[-1][0]:.2f} s a step, {peers[-1][1]:.2f} CPU s",
                       f"{result['length']:.0f} tokens a response")
            after, metrics = train_steps(task.ranks, [*common, *precision], directory / f"{dtype}-after")
            yield ours(f"{dtype}, {task.ranks} ranks, after", after, metrics)
            if not peers:
                yield "TRL", "skipped", "it does not import here: see the head of bench/__main__.py"
                continue
            wall, cpu = map(min, zip(*peers))
            yield (f"ours / the fastest TRL, {dtype}",
                   f"{median(before.wall + after.wall) / wall:.2f} of its time, "
                   f"{median(before.cpu + after.cpu) / cpu:.2f} of its CPU", f"bar {task.bars[dtype]}")


def bench_real(args: argparse.Namespace) -> Iterator[Row]:
    """The same on SmolLM2-135M, and in float32 the least that both halves of the step could cost."""
    task = TASKS["real"]
    yield from bench_step(args, task)
    with tempfile.TemporaryDirectory() as name:
        model, questions = task.setup(Path(name))
        command = [sys.executable, "bench/floor.py", "--model", model, "--questions", questions, "--batch",
                   str(task.questions), "--longest_prompt", str(task.longest_prompt)]
        lines = run(command, os.environ | {"OMP_NUM_THREADS": "2"}, "{").lines
    floor = json.loads(next(line for line in lines if line.startswith('{"tokens"')))
    tokens = f"{floor['tokens'] / task.questions / RESPONSES:.0f} tokens a response"
    yield "vLLM alone, float32, without gradings", f"{floor['generation']:.2f} s", tokens
    yield "bare forward, backward, AdamW, float32, on the same tokens", f"{floor['update']:.2f} s", tokens


def ours(name: str, steps: Steps, metrics: list[dict]) -> Row:
    length = median(m["rollout/length"] for m in metrics)
    return (f"ours, {name}", f"{median(steps.wall):.2f} s a step, {median(steps.cpu):.2f} CPU s",
            f"{phases(metrics)}; {length:.0f} tokens a response")
