"""Time a whole training step beside one of TRL's GRPOTrainer.

Both have the same model, prompts, samples and optimiser steps: 32 questions x 8 responses of up to
64 tokens and two optimiser steps on a random model, on-policy (`--rho 0`). Ours is the ordinary
`train.py` on two ranks of one thread. TRL has the same two cores and Hugging Face's generate, as it
does not support this vLLM on CPUs. Both are timed from step to step, by the wall clock and by the
CPU time of all their processes, which says something on a busy machine, too. Ours runs before and
after TRL, so that a change of the machine's pace shows.
"""

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from runtime.tables import read_jsonl

ROOT = Path(__file__).resolve().parent.parent
QUESTIONS = 32  # of a step
RESPONSES = 8  # to each
MAX_TOKENS = 64  # of a response
STEPS = 5  # those timed, after one that is not
TRL_PROCESSES = {"float32": [1], "bfloat16": [1, 2]}  # in float32 two were never faster


def coin(response: str, answer: str) -> float:
    """A reward that a random model gets half the time, so that most groups are mixed."""
    return float(zlib.crc32(response.encode()) & 1)


def write_setup(directory: Path) -> tuple[str, str]:
    """Write a random Llama and 512 questions of about 20 tokens, and return their paths.

    The Llama has hidden size 256, 6 layers and 4.8M parameters.
    """
    from worlds.arithmetic import World, draw_sets, rows
    from worlds.pretraining import build_model, build_tokenizer

    world = World(
        train_size=512,
        train_operations=(5, 6),
        hidden=256,
        layers=6,
        heads=4,
        intermediate=688,
        initializer=0.02,
    )
    tokenizer = build_tokenizer()
    model = directory / "model"
    build_model(world, tokenizer).save_pretrained(model)
    tokenizer.save_pretrained(model)
    file = directory / "train.jsonl"
    file.write_text(rows(draw_sets(world)["train"], "arithmetic"))
    return str(model), str(file)


@dataclass
class Steps:
    """The times of a run from step to step, without the first step."""

    wall: list[float]  # seconds
    cpu: list[float]  # seconds of all processes
    lines: list[str]  # everything the run printed

    def __str__(self) -> str:
        return f"{median(self.wall):.2f} s a step, {median(self.cpu):.2f} CPU s"


def time_steps(processes: int, command: list[str], step_ends_with: str) -> Steps:
    """Run a script on two cores and time its steps.

    A step ends with a line that begins with `step_ends_with`. RuntimeError shows the end of what
    the script printed if it fails.
    """
    import psutil

    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    threads = {"OMP_NUM_THREADS": str(2 // processes), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, *launcher, *command],
        cwd=ROOT,
        env=os.environ | threads,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    lines = []
    walls = []
    cpus = []
    for line in process.stdout:
        lines.append(line.rstrip())
        if line.startswith(step_ends_with):
            children = psutil.Process(process.pid).children(recursive=True)
            used = [child.cpu_times() for child in children]
            walls.append(time.perf_counter())
            cpus.append(sum(times.user + times.system for times in used))
    if process.wait():
        end = "\n".join(lines[-60:])
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}:\n{end}")
    return Steps(np.diff(walls).tolist(), np.diff(cpus).tolist(), lines)


def time_ours(model: str, questions: str, dtype: str, run_dir: Path) -> tuple[Steps, str]:
    """The steps of a run of train.py, and what its phases took."""
    flags = {
        "config": "configs/arithmetic.yaml",
        "model": model,
        "train_files": questions,
        "reward": "bench.step:coin",
        "run_dir": run_dir,
        "rho": 0,
        "dtype": dtype,
        "batch_size": QUESTIONS,
        "num_rollouts": RESPONSES,
        "max_prompt_length": 32,
        "max_response_length": MAX_TOKENS,
        "lr": 1e-6,
        "steps": STEPS + 1,
        "eval_every": 0,
        "save_every": 0,
    }
    command = ["train.py"]
    for name, value in flags.items():
        command += [f"--{name}", str(value)]
    steps = time_steps(2, command, "step ")

    rows = read_jsonl(run_dir / "metrics.jsonl")
    metrics = [row for row in rows if row["step"] > 1]
    phases = []
    for phase in ("rollout", "update", "sync"):
        phases.append(f"{phase} {median(row[f'time/{phase}'] for row in metrics):.2f}")
    length = median(row["rollout/length"] for row in metrics)
    return steps, f"{', '.join(phases)}; {length:.0f} tokens a response"


def bench_step() -> Iterator[tuple[str, str, str]]:
    """The rows of ours, TRL, ours again, and their ratio; of ours alone where there is no TRL."""
    has_trl = importlib.util.find_spec("trl")
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        model, questions = write_setup(directory)
        for dtype, peer_processes in TRL_PROCESSES.items():
            before, phases = time_ours(model, questions, dtype, directory / f"{dtype}-before")
            yield f"ours, {dtype}, before", str(before), phases
            if not has_trl:
                yield "TRL", "left out", "not installed: see requirements.txt"
                continue
            peers = []
            for processes in peer_processes:
                command = ["bench/peer.py", model, questions, dtype]
                peer = time_steps(processes, command, "{'loss'")
                peers.append(peer)
                version = next(line for line in peer.lines if line.startswith("TRL "))
                yield f"TRL, {dtype}, processes: {processes}", str(peer), version
            after, phases = time_ours(model, questions, dtype, directory / f"{dtype}-after")
            yield f"ours, {dtype}, after", str(after), phases

            wall = median(before.wall + after.wall) / min(median(peer.wall) for peer in peers)
            cpu = median(before.cpu + after.cpu) / min(median(peer.cpu) for peer in peers)
            yield f"ours / TRL, {dtype}", f"{wall:.2f} of its time", f"{cpu:.2f} of its CPU time"
