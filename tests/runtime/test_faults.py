"""A rank that raises, dies or hangs ends the job within seconds and says why; what is killed continues exactly.

CHAOS_KILLS=50 python -m pytest tests/test_faults.py -k chaos     # `make chaos`; CHAOS_SEED picks other moments
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import FORKS, free_port, on_ranks
from test_checkpoint import Run
from test_train import ENGINE, ROOT, arguments, metrics, world  # noqa: F401

from config import Config, parse_config
from runtime import ranks
from runtime.faults import watchdog
from train import memory_advice, train

# ---- two ranks, one fault -------------------------------------------------------------------------


def life(rank: int, port: str, log: str, fault, limit: float) -> None:
    """A rank of two under `ranks.run`: rank 1 has the fault, rank 0 is busy without talking to it, or waits for it."""
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2", MASTER_PORT=port,
                      MASTER_ADDR="127.0.0.1", CUDA_VISIBLE_DEVICES="")
    for descriptor in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT), descriptor)

    def program():
        ranks.setup(limit)
        watchdog.enter("rollout")
        fault(rank)

    ranks.run(program)


def suffer(tmp_path, fault, limit=60.0) -> tuple[list[int], float, str]:
    """(exit codes, seconds, all output) of two ranks."""
    log, port, start = tmp_path / "log", free_port(), time.monotonic()
    processes = [FORKS.Process(target=life, args=(rank, port, str(log), fault, limit)) for rank in (0, 1)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    seconds, codes = time.monotonic() - start, [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    return codes, seconds, log.read_text()


def raises_while_the_other_waits(rank):
    if rank == 1:
        raise ValueError("row 7 is bad")
    ranks.barrier()


def raises_while_the_other_works(rank):
    if rank == 1:
        raise ValueError("row 7 is bad")
    time.sleep(1000)


def is_killed(rank):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    ranks.barrier()


def leaves_early(rank):
    if rank == 1:
        os._exit(0)
    time.sleep(1000)


def waits_for_ever(rank):
    if rank == 1:
        time.sleep(1000)
    ranks.barrier()


@pytest.mark.parametrize("fault", [raises_while_the_other_waits, raises_while_the_other_works])
def test_a_rank_that_raises_ends_the_job(tmp_path, fault):
    """The other rank, waiting or working, ends within seconds; the first one's message is there once, no collective's error."""
    codes, seconds, log = suffer(tmp_path, fault)
    assert codes == [1, 1] and seconds < 30
    assert log.count("ValueError: row 7 is bad") == 1 and "rank 1 stops in phase 'rollout'" in log
    assert "rank 0 stops in phase 'rollout'" in log and "rank 1 died" in log and log.count("Traceback") == 1


@pytest.mark.parametrize("fault", [is_killed, leaves_early])
def test_a_rank_that_dies_ends_the_job(tmp_path, fault):
    """Killed, or gone without a word: the other rank says so within seconds."""
    codes, seconds, log = suffer(tmp_path, fault)
    assert codes[0] == 1 and seconds < 30 and "rank 1 died" in log and "Traceback" not in log


def test_a_hang_is_cut_with_every_stack(tmp_path):
    """After hang_timeout both ranks' phases and stacks are printed, the place where rank 1 sleeps among them."""
    codes, seconds, log = suffer(tmp_path, waits_for_ever, limit=2.0)
    assert codes == [1, 1] and seconds < 40
    assert "lasted longer than hang_timeout=2 s" in log
    for rank in (0, 1):
        assert f"---- stacks of rank {rank} ----" in log and f"rank {rank} stops in phase 'rollout'" in log
    assert log.count("---- stacks of rank 1 ----") == 1  # by rank 0 alone
    assert "in waits_for_ever" in log.partition("---- stacks of rank 1 ----")[2]


def test_a_normal_end_is_no_fault(tmp_path):
    """Ranks that end one after the other do not take each other for dead."""
    codes, _, log = suffer(tmp_path, lateness)
    assert codes == [0, 0] and "died" not in log


def lateness(rank):
    time.sleep(2.0 * rank)


# ---- faults that a step notices -------------------------------------------------------------------


def test_three_skipped_steps_stop_the_run(device, tiny_model, tmp_path):
    """Two are survived, and a good one between starts the count anew; the third in a row stops with advice."""
    run = Run(tiny_model, tmp_path)
    bound = run.config.skip_grad_norm
    for step, good in enumerate([False, False, True, False, False]):
        run.policy.config.skip_grad_norm = bound if good else 1e-12
        run.train(step)
    with pytest.raises(RuntimeError, match="three optimiser steps in a row.*skip_grad_norm.*lower lr"):
        run.train(5)


def test_out_of_memory_names_the_knobs():
    """An allocation that fails says what to lower; other errors pass unchanged."""
    knobs = "tokens_per_micro_batch.*now 77.*gradient_checkpointing.*shard"
    with pytest.raises(RuntimeError, match=knobs), memory_advice(Config(tokens_per_micro_batch=77)):
        torch.empty(1 << 55)
    with pytest.raises(RuntimeError, match="^shapes differ$"), memory_advice(Config()):
        raise RuntimeError("shapes differ")


def disagree():
    mine = {"buckets": {3: [5, 6 + ranks.rank()]}, "retired": [1]}
    try:
        ranks.check_same(lambda: {"buffer": mine}, plan=[1, 2], buffer=ranks.rank())
    except RuntimeError as error:
        return str(error)


def test_a_rank_without_a_gpu_of_its_own_is_told(device, monkeypatch, tmp_path):
    """More ranks than GPUs, and a driver that torch cannot use, end before anything is set up; hidden GPUs are no error."""
    monkeypatch.setenv("LOCAL_RANK", "2")
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "device_count", lambda: 2)
        with pytest.raises(RuntimeError, match="local rank 2, but this process sees 2 GPU.*nproc_per_node"):
            ranks.setup()
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(ranks, "DRIVER", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(RuntimeError, match="CUDA 13.0 finds no GPU"):
        ranks.setup()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.setattr(ranks, "_introduce", lambda timeout: None)  # the fixture's group is there already
    assert ranks.setup().type == "cpu"


def test_ranks_that_drift_apart_are_told_where(device):
    """The message of both ranks names the first place in the buffer that differs, and both values."""
    first, second = on_ranks(2, disagree)
    assert first == second and "buffer.buckets.3[1]: 6 on rank 0, 7 on rank 1" in first


# ---- interrupted runs equal uninterrupted ones ----------------------------------------------------


def launch(world, run_dir, *more, restarts=0):  # noqa: F811
    """torchrun of a run on the tiny world with two ranks; its output goes to run_dir.log."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", f"--max_restarts={restarts}"]
    return subprocess.Popen([*torchrun, "train.py", *arguments(world, run_dir, *more)], cwd=ROOT,
                            env=os.environ | {"OMP_NUM_THREADS": "1"},
                            stdout=open(f"{run_dir}.log", "ab"), stderr=subprocess.STDOUT, start_new_session=True)


def finish(process, run_dir) -> None:
    assert process.wait(200) == 0, Path(f"{run_dir}.log").read_text()[-6000:]


def result(run_dir: Path) -> dict:
    """What two equal runs share: metrics but for times, the final weights, optimiser, buffer, stream."""
    last = run_dir / "checkpoints" / (run_dir / "checkpoints" / "latest").read_text().strip()
    state = json.loads((last / "state.json").read_text())
    tensors = {path.name: path.read_bytes() for path in [*last.glob("*.safetensors"), *run_dir.glob("model/*.safetensors")]}
    rows = [{name: value for name, value in row.items() if not name.startswith("time/")} for row in metrics(run_dir)]
    return {"step": state["step"], "experience": state["experience"], "rows": rows, **tensors}


def same_run(run_dir: Path, reference: Path) -> None:
    ours, theirs = result(run_dir), result(reference)
    assert len(ours) >= 3 + 4 and [name for name in theirs if ours.get(name) != theirs[name]] == []


def wait_for(condition, process, seconds=120) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)


def steps_done(run_dir: Path) -> int:
    return len((run_dir / "metrics.jsonl").read_bytes().splitlines()) - 1 if (run_dir / "metrics.jsonl").exists() else 0


KILLS = int(os.environ.get("CHAOS_KILLS", 2))
LONG = ["--engine", "hf", "--steps", str(6 + 4 * KILLS), "--eval_every", "3"]


@pytest.fixture(scope="module")
def uninterrupted(world, tmp_path_factory) -> Path:  # noqa: F811
    """A run that nothing disturbs, with a checkpoint at step 2."""
    directory = tmp_path_factory.mktemp("uninterrupted") / "run"
    finish(launch(world, directory, *LONG, "--save_every", "2", "--keep", "99"), directory)
    return directory


@pytest.mark.slow
def test_sigterm_saves_and_resume_continues_exactly(world, uninterrupted, tmp_path):  # noqa: F811
    """SIGTERM to torchrun: the step is finished and saved; --resume ends with the same bits as a run left alone."""
    run = tmp_path / "run"
    process = launch(world, run, *LONG, "--save_every", "0")
    wait_for(lambda: steps_done(run) >= 3, process)
    process.terminate()
    process.wait(60)
    saved = [path.name for path in (run / "checkpoints").glob("step-*")]
    assert saved == [f"step-{steps_done(run):07d}"] and 3 <= steps_done(run) < 6 + 4 * KILLS
    finish(launch(world, run, *LONG, "--resume"), run)
    same_run(run, uninterrupted)


@pytest.mark.slow
def test_torchrun_restarts_by_itself(world, uninterrupted, tmp_path):  # noqa: F811
    """One rank killed under --max_restarts: torchrun starts the ranks again, and they resume without being told to."""
    run = tmp_path / "run"
    process = launch(world, run, *LONG, "--save_every", "1", restarts=1)
    wait_for(lambda: (run / "checkpoints" / "step-0000002").exists(), process)
    os.kill(children(process.pid)[0], signal.SIGKILL)
    finish(process, run)
    assert "resumed from" in Path(f"{run}.log").read_text()
    same_run(run, uninterrupted)


@pytest.mark.slow
@pytest.mark.skipif(ENGINE != "vllm", reason="vLLM is not installed")
def test_a_run_with_vllm_continues_exactly(world, tmp_path):  # noqa: F811
    """With vLLM as the engine too, a run resumed from its first checkpoint ends with the same bits."""
    whole, resumed, settings = tmp_path / "whole", tmp_path / "resumed", ["--engine", "vllm", "--steps", "3", "--save_every", "1"]
    finish(launch(world, whole, *settings), whole)
    shutil.copytree(whole, resumed)
    shutil.rmtree(resumed / "checkpoints" / "step-0000003")  # keep=2 leaves step 2
    finish(launch(world, resumed, *settings, "--resume"), resumed)
    same_run(resumed, whole)


@pytest.mark.slow
def test_resumed_on_one_rank(world, uninterrupted, tmp_path):  # noqa: F811
    """A checkpoint of two ranks continued by one: the same plan and samples, losses of the next step within 1e-5."""
    run = Path(shutil.copytree(uninterrupted, tmp_path / "run"))
    for path in (run / "checkpoints").glob("step-*"):
        if path.name != "step-0000002":
            shutil.rmtree(path)
    argv = arguments(world, run, *LONG, "--steps", "3", "--resume")
    on_ranks(1, train_from, argv)
    ours, theirs = (metrics(directory)[3] for directory in (run, uninterrupted))
    for name in theirs:
        if not name.startswith("time/"):
            exact = name.startswith(("buckets/", "rollout/", "reward/", "replay/questions", "replay/age"))
            assert ours[name] == theirs[name] if exact else ours[name] == pytest.approx(theirs[name], rel=1e-5, abs=1e-5), name


def train_from(argv: list[str]) -> None:
    train(parse_config(argv))


def children(pid: int) -> list[int]:
    """Process ids of the ranks that a torchrun has started."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def kill_at_random(process, run_dir: Path, rng: random.Random) -> str:
    """SIGKILL one rank, or all and torchrun, during start-up, after some step, or inside a save; says which."""
    moment = rng.choice(["at any time", "after a step", "inside a save", "inside a save"])
    if moment == "at any time":
        time.sleep(rng.uniform(0, 10))
    else:
        done = steps_done(run_dir)
        wait_for(lambda: steps_done(run_dir) > done, process)
        if moment == "inside a save":
            wait_for(lambda: any((run_dir / "checkpoints").glob("*.tmp")), process)
            time.sleep(rng.uniform(0, 0.03))
        else:
            time.sleep(rng.uniform(0, 2))
    pids, one = children(process.pid), rng.random() < 0.5
    for pid in [rng.choice(pids)] if one and pids else [process.pid, *pids]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it had just ended
    return f"{'one rank' if one else 'all'} {moment}, step {steps_done(run_dir)}"


@pytest.mark.slow
def test_chaos(world, uninterrupted, tmp_path, capsys):  # noqa: F811
    """SIGKILL of one rank or of all at random moments, CHAOS_KILLS times: the run finishes, with the same bits."""
    run, rng, log, slowest = tmp_path / "run", random.Random(os.environ.get("CHAOS_SEED", "0")), [], 0.0
    settings = [*LONG, "--save_every", "1", "--resume"]
    process = launch(world, run, *settings)
    while len(log) < KILLS and process.poll() is None:
        log.append(kill_at_random(process, run, rng))
        start = time.monotonic()
        process.wait(60)  # a dead rank brings the job down
        slowest = max(slowest, time.monotonic() - start)
        process = launch(world, run, *settings)
    finish(process, run)
    assert log, "the run ended before anything was killed"
    with capsys.disabled():
        print(f"\nchaos: {len(log)} kills ({'; '.join(log)}); the job was down after at most {slowest:.1f} s")
    same_run(run, uninterrupted)
