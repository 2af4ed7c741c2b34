"""A rank that raises, dies or hangs ends the job within seconds and says why.

What is killed continues exactly. `make chaos` kills at random moments, others by CHAOS_SEED:

    CHAOS_KILLS=50 python -m pytest tests/runtime/test_faults.py -k chaos
"""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch
from conftest import FORKS, ROOT, TORCHRUN, arguments, free_port, needs_cpu_vllm, on_ranks
from safetensors import SafetensorError
from safetensors.torch import load_file
from test_train import metrics, train_from

from runtime import faults, ranks
from runtime.faults import watchdog

# ---- two ranks, one fault ------------------------------------------------------------------------


def life(rank: int, port: str, log: str, program, *args) -> None:
    """A rank of two under `ranks.run`, its output in `log` or in a pipe that nobody reads."""
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE="2",
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE="2",
        MASTER_PORT=port,
        MASTER_ADDR="127.0.0.1",
        CUDA_VISIBLE_DEVICES="",
    )
    torch.set_num_threads(1)
    read, write = os.pipe()
    os.close(read)
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT) if log else write
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    ranks.run(lambda: program(*args))


def two_ranks(log, program, *args) -> list:
    """Two processes, each a rank that runs the program."""
    port = free_port()
    processes = [
        FORKS.Process(target=life, args=(rank, port, str(log), program, *args)) for rank in (0, 1)
    ]
    for process in processes:
        process.start()
    return processes


def faulty(fault, limit: float) -> None:
    ranks.setup(limit)
    watchdog.enter("rollout")
    fault(ranks.rank())


def suffer(log, fault, limit=60.0) -> tuple[list[int], float, str]:
    """(exit codes, seconds, what is in `log`) of two ranks of which one has a fault."""
    warm = FORKS.Process(target=int)  # the imports of the server do not count
    warm.start()
    warm.join()
    start, processes = time.monotonic(), two_ranks(log, faulty, fault, limit)
    for process in processes:
        process.join(60)
    seconds, codes = time.monotonic() - start, [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    return codes, seconds, Path(log).read_text() if log else ""


def raises_while_the_other_waits(rank):
    if rank == 1:
        raise ValueError("row 7 is \x1b[2J") from LookupError("\u202e")
    ranks.barrier()


def is_killed(rank):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    ranks.barrier()


def leaves_early(rank):
    if rank == 1:
        os._exit(0)
    time.sleep(1000)


def keeps_python_to_itself(rank):
    if rank == 1:
        re.match("(a|a)*b", "a" * 100)  # the engine of `re` holds Python's lock
    ranks.barrier()


def finds_no_room(rank):
    if rank == 1:
        raise SafetensorError("I/O error: No space left on device (os error 28)")
    ranks.barrier()


def talks(rank):
    for _ in range(20_000):
        print("a line that is longer than nothing", flush=True)
        print("and one for the other stream", file=sys.stderr)
    time.sleep(1.5 * rank)


def test_a_rank_that_raises_ends_the_job(tmp_path):
    """The other rank ends within seconds, and the first one's message is there without an echo.

    What the message and its cause quote cannot steer the terminal.
    """
    codes, seconds, log = suffer(tmp_path / "log", raises_while_the_other_waits)
    assert codes == [1, 1] and seconds < 30
    assert log.count(r"ValueError: row 7 is \x1b[2J") == 1 and r"LookupError: \u202e" in log
    assert "rank 1 stops in phase 'rollout'" in log and "\x1b" not in log and "\u202e" not in log
    assert (
        "rank 0 stops in phase 'rollout'" in log
        and "rank 1 died" in log
        and log.count("Traceback") == 1
    )


def test_a_full_disk_is_one_sentence(tmp_path):
    """Whatever was being written, by a library that has its own errors too, says to make room."""
    codes, _, log = suffer(tmp_path / "log", finds_no_room)
    assert codes == [1, 1] and "Traceback" not in log
    assert "No space left on device (os error 28): make room, then start it again" in log


@pytest.mark.parametrize("fault", [is_killed, leaves_early])
def test_a_rank_that_dies_ends_the_job(tmp_path, fault):
    """Where one is killed, or gone without a word, the other rank says so within seconds."""
    codes, seconds, log = suffer(tmp_path / "log", fault)
    assert codes[0] == 1 and seconds < 30 and "rank 1 died" in log and "Traceback" not in log


def test_a_hang_is_cut_with_every_stack(tmp_path):
    """After hang_timeout each rank shows its stacks, one whose main thread stops all others too."""
    codes, seconds, log = suffer(tmp_path / "log", keeps_python_to_itself, limit=2.0)
    assert codes == [1, 1] and seconds < 20
    assert "rank 0: phase 'rollout' has lasted longer than hang_timeout=2 s" in log
    assert "in barrier" in log and "in keeps_python_to_itself" in log


def test_a_run_outlives_its_console():
    """As under `train.py | head`, what nobody reads is lost, and the run goes on to its end.

    Ranks that end one after the other do not take each other for dead.
    """
    codes, *_ = suffer("", talks)
    assert codes == [0, 0]


# ---- faults that a step notices ------------------------------------------------------------------


def test_out_of_memory_names_the_knobs():
    """An allocation that fails says what to lower; other errors pass unchanged."""
    knobs = "tokens_per_micro_batch.*now 77.*gradient_checkpointing.*now False"
    with pytest.raises(RuntimeError, match=knobs), faults.out_of_memory_names_knobs(77, False):
        torch.empty(1 << 55)
    with (
        pytest.raises(RuntimeError, match="^shapes differ$"),
        faults.out_of_memory_names_knobs(77, False),
    ):
        raise RuntimeError("shapes differ")


def disagree():
    mine = {3: [5, 6 + ranks.rank()], 4: "left"}
    try:
        ranks.check_same(plan=[1, 2], stored=mine)
    except RuntimeError as error:
        return str(error)


def test_a_rank_without_a_gpu_of_its_own_is_told(device, monkeypatch, tmp_path):
    """Too few GPUs, or a driver that torch cannot use, is an error, and hidden GPUs are none."""
    monkeypatch.setenv("LOCAL_RANK", "2")
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "device_count", lambda: 2)
        with pytest.raises(
            RuntimeError, match="local rank 2, but this process sees 2 GPU.*nproc_per_node"
        ):
            ranks.setup()
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(ranks, "DRIVER", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(RuntimeError, match="CUDA 13.0 finds no GPU"):
        ranks.setup()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    # The fixture has made the group already.
    monkeypatch.setattr(ranks, "_introduce", lambda timeout: None)
    assert ranks.setup().type == "cpu"


def test_ranks_that_drift_apart_are_told_of_what(device):
    """Both ranks' message names what differs, and nothing else."""
    first, second = on_ranks(2, disagree)
    assert first == second and first.startswith("ranks disagree on stored: ")


def test_a_death_for_memory_is_told(monkeypatch, tmp_path):
    """The message speaks of memory only where the kernel's count of such kills rose."""
    counter = tmp_path / "vmstat"
    monkeypatch.setattr(faults, "COUNTERS", counter)
    counter.write_text("pgfault 9\noom_kill 2\noom_kill_x 7\n")
    watched = faults.Watchdog()
    assert watched.death(["rank 1", "rank 3"]) == "rank 1 and rank 3 died"
    counter.write_text("pgfault 9\noom_kill 3\n")
    assert re.match(
        "rank 1 died: the machine ran out of memory.*tokens_per_micro_batch.*lora_rank",
        watched.death(["rank 1"]),
    )


# ---- interrupted runs equal uninterrupted ones ---------------------------------------------------


def told_by_another() -> list[bool]:
    """Whether this rank remembers a signal to rank 0, by each way of hearing of it."""

    def after_its_work():
        ranks.map_shares([1, 1], lambda share: watchdog.check() or [0] * len(share))

    heard = []
    for hear in (ranks.leave_if_asked, after_its_work):
        watchdog.interrupted, watchdog.phase = ranks.rank() == 0, "rollout"
        with suppress(ranks.Interrupted):
            hear()
        heard.append(watchdog.interrupted)
    return heard


def test_every_rank_leaves_with_the_status_of_an_interrupted_one():
    """A signal to one rank is remembered by all, so that no node's script goes on."""
    assert on_ranks(2, told_by_another) == [[True] * 2] * 2


def launch(world, run_dir, *more) -> list:
    """Two ranks of a run on the tiny world, with their output in run_dir.log."""
    return two_ranks(f"{run_dir}.log", train_from, arguments(world, run_dir, *more))


def finish(processes, run_dir) -> None:
    for process in processes:
        process.join(200)
    assert [process.exitcode for process in processes] == [0, 0], Path(
        f"{run_dir}.log"
    ).read_text()[-6000:]


def result(run_dir: Path, step: int | None = None) -> dict:
    """All that equal runs share at the end or after `step`, which leaves out times and knobs."""
    last = max((run_dir / "checkpoints").glob(f"step-{step:07d}" if step else "step-*"))
    found = json.loads((last / "state.json").read_text())
    del found["config"]
    models = [] if step else run_dir.glob("model/*.safetensors")
    for path in [*last.rglob("*.safetensors"), *models]:
        for name, value in load_file(path).items():
            found[f"{path.name}:{name}"] = value.numpy().tobytes()
    for row in metrics(run_dir):
        if not step or row["step"] <= step:
            found |= {f"{name} of {row['step']}": value for name, value in row.items()}
    return {name: value for name, value in found.items() if not name.startswith("time/")}


def same_run(run_dir: Path, reference: Path, step: int | None = None, but: str = "nothing") -> None:
    """Equal bits at the end, or after that step, but for metrics or state that `but` matches."""
    ours, theirs = result(run_dir, step), result(reference, step)
    different = [name for name in ours.keys() | theirs if ours.get(name) != theirs.get(name)]
    assert len(ours) > 20 and [name for name in different if not re.match(but, name)] == []


def wait_for(condition, process, seconds=120) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and process.is_alive() and time.monotonic() < deadline:
        time.sleep(0.002)


def steps_done(run_dir: Path) -> int:
    file = run_dir / "metrics.jsonl"
    return len(file.read_bytes().splitlines()) - 1 if file.exists() else 0


KILLS = int(os.environ.get("CHAOS_KILLS", 0))
LONG = ["--engine", "hf", "--steps", str(6 + 4 * KILLS), "--eval_every", "3"]


@pytest.fixture(scope="module")
def uninterrupted(world, tmp_path_factory) -> Path:
    """A run that nothing disturbs, with a checkpoint of every step."""
    directory = tmp_path_factory.mktemp("uninterrupted") / "run"
    finish(launch(world, directory, *LONG, "--save_every", "1", "--keep", "99"), directory)
    return directory


def interrupt_in(phase: str, nth: int) -> None:
    """SIGTERM to rank 1, and to no other, as it enters that phase for the n-th time from now."""
    enter, left = watchdog.enter, [nth]

    def entering(name: str) -> None:
        enter(name)
        left[0] -= name == phase
        if left[0] == 0 and name == phase:
            ranks.barrier()
            if ranks.rank() == 1:
                os.kill(os.getpid(), signal.SIGTERM)

    watchdog.interrupted, watchdog.enter = False, entering


INTERRUPTED = [  # phase, its how manieth time since the start, steps that are saved
    ("rollout", 1, 0),
    ("rollout", 2, 1),
    ("plan", 2, 2),
    ("validate", 1, 3),
    ("update", 1, 4),
    ("validate", 1, 6),
]


def interrupted_again_and_again(argv: list[str], saved: str) -> None:
    """Runs that are each interrupted after another step, and a last one that is not."""
    alone = watchdog.enter
    for phase, nth, step in INTERRUPTED:
        interrupt_in(phase, nth)
        train_from([*argv, "--resume"])
        watchdog.enter = alone
        assert watchdog.interrupted
        if ranks.rank() == 0:
            print(f"interrupted in {phase}, {step} steps:", max(os.listdir(saved)))
    watchdog.interrupted = False
    train_from([*argv, "--resume"])


@pytest.mark.slow
def test_an_interrupted_run_continues_exactly(world, uninterrupted, tmp_path):
    """After SIGTERM to one rank in every phase the bits are those of a run left alone.

    Both ranks end as interrupted. In plan and rollout the step is left, in the update it is
    finished. A validation is left out, and only the last one is made up for.
    """
    run, log = tmp_path / "run", Path(f"{tmp_path}/run.log")
    argv = arguments(world, run, *LONG, "--steps", "6", "--save_every", "0", "--keep", "1")
    finish(two_ranks(log, interrupted_again_and_again, argv, f"{run}/checkpoints"), run)
    text = log.read_text()
    for phase, _, step in INTERRUPTED:
        at = f"interrupted in {phase}, {step} steps: step-{step:07d}"
        assert at in text and f"saved after step {step}, the same command" in text, text[-6000:]
        start = "finishing" if phase == "update" else "leaving"
        assert f"SIGTERM: {start} the step ({phase}) and saving" in text
    assert text.count("SIGTERM: ") == len(INTERRUPTED) and "died" not in text
    assert "interrupted: step 3 is not validated" in text
    same_run(run, uninterrupted, 6, but="val/.* of 3")


SLOW = """
import time
from pathlib import Path
from worlds.arithmetic import is_right

def score(response, answer):
    if Path("{0}/run/checkpoints/step-0000003").exists():
        Path("{0}/asleep").touch()
        time.sleep(1000)
    return is_right(response, answer)
"""


@pytest.mark.slow
def test_torchrun_restarts_by_itself(world, uninterrupted, tmp_path):
    """A rank is killed under --max_restarts, and the run resumes without being told to.

    On SIGHUP to torchrun, while a reward takes for ever, the ranks leave the step, save the bits of
    a run left alone, and end.
    """
    run, log = tmp_path / "run", tmp_path / "run.log"
    (tmp_path / "slow_reward.py").write_text(SLOW.format(tmp_path))
    knobs = ["--save_every", "1", "--reward", "slow_reward:score", "--verify_timeout", "600"]
    argv = arguments(world, run, *LONG, *knobs)
    command = [*TORCHRUN, "--max_restarts=1", "train.py", *argv]
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(tmp_path),
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "60",
    }
    with open(log, "ab") as output:
        job = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    job.is_alive = lambda: job.poll() is None
    wait_for(lambda: (run / "checkpoints" / "step-0000001").exists(), job)
    psutil.Process(job.pid).children()[0].kill()  # a rank
    wait_for(lambda: "resumed from" in log.read_text(), job)
    wait_for(lambda: (tmp_path / "asleep").exists(), job)
    job.send_signal(signal.SIGHUP)
    job.wait(30)
    job.is_alive = lambda: True
    last = "interrupted: saved after step 3, the same command with --resume goes on"
    wait_for(lambda: log.read_text().rstrip().endswith(last), job, seconds=5)
    text = log.read_text().rstrip()
    assert "SIGHUP: leaving the step (rollout)" in text, text[-6000:]
    assert text.endswith(last), "torchrun's traceback hides it"
    # These go by the reward's name, or a reward of one's own does not have them.
    same_run(run, uninterrupted, 3, but="reward_identity|val/valid/|val/shortcut/")


def with_vllm(world, whole: Path, resumed: Path) -> None:
    settings = ["--engine", "vllm", "--steps", "2", "--save_every", "1"]
    train_from(arguments(world, whole, *settings))
    shutil.copytree(whole, resumed)
    shutil.rmtree(resumed / "checkpoints" / "step-0000002")  # keep=2 leaves step 1
    train_from(arguments(world, resumed, *settings, "--resume"))


@pytest.mark.slow
@needs_cpu_vllm
def test_a_run_with_vllm_continues_exactly(world, tmp_path):
    """With vLLM, too, a run resumed before it replays ends with the same bits."""
    on_ranks(1, with_vllm, world, tmp_path / "whole", tmp_path / "resumed")
    same_run(tmp_path / "resumed", tmp_path / "whole")
    ours, theirs = metrics(tmp_path / "resumed"), metrics(tmp_path / "whole")
    assert ours[1] == theirs[1]  # times, too: it was read from the checkpoint, not made again
    assert ours[2]["time/step"] != theirs[2]["time/step"] and ours[2]["replay/questions"] > 0


@pytest.mark.slow
def test_resumed_on_one_rank(world, uninterrupted, tmp_path):
    """A checkpoint of two ranks gives one rank the same samples, and losses within 1e-5."""
    run = Path(shutil.copytree(uninterrupted, tmp_path / "run"))
    for path in (run / "checkpoints").glob("step-*"):
        if path.name != "step-0000002":
            shutil.rmtree(path)
    argv = arguments(world, run, *LONG, "--steps", "3", "--resume")
    on_ranks(1, train_from, argv)
    ours, theirs = (metrics(directory)[3] for directory in (run, uninterrupted))
    for name in theirs:
        if not name.startswith("time/"):
            exact = name.startswith(
                ("buckets/", "rollout/", "reward/", "replay/questions", "replay/age")
            )
            near = theirs[name] if exact else pytest.approx(theirs[name], rel=1e-5, abs=1e-5)
            assert ours[name] == near, name


def kill_at_random(processes, run_dir: Path, rng: random.Random) -> str:
    """SIGKILL one rank, or both, at any time or inside a save; says which."""
    moment = rng.choice(["at any time", "inside a save"])
    if moment == "at any time":
        time.sleep(rng.uniform(0, 10))
    else:
        wait_for(lambda: any((run_dir / "checkpoints").glob("*.tmp")), processes[0])
        time.sleep(rng.uniform(0, 0.03))
    killed = rng.choice([processes, processes[:1], processes[1:]])
    for process in killed:
        process.kill()
    return f"{len(killed)} {moment}, step {steps_done(run_dir)}"


@pytest.mark.slow
@pytest.mark.skipif(not KILLS, reason="`make chaos`")
def test_chaos(world, uninterrupted, tmp_path, capsys):
    """Ranks are killed at random moments, CHAOS_KILLS times, and the bits stay the same."""
    run, log = tmp_path / "run", []
    rng = random.Random(os.environ.get("CHAOS_SEED", "0"))
    settings = [*LONG, "--save_every", "1", "--resume"]
    processes = launch(world, run, *settings)
    while len(log) < KILLS and processes[0].is_alive():
        log.append(kill_at_random(processes, run, rng))
        for process in processes:
            process.join(10)  # a dead rank brings the job down; before it has joined, torchrun does
            process.kill()
        processes = launch(world, run, *settings)
    finish(processes, run)
    assert log, "the run ended before anything was killed"
    with capsys.disabled():
        print(f"\nchaos: {len(log)} kills ({'; '.join(log)})")
    same_run(run, uninterrupted)
