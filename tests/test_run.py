"""What a run promises, through real processes: resume, kills, a full disk, Ctrl-C, a failing rank.

They share one run of four steps on two ranks, `whole`, which is never interrupted.
"""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from pydoc import locate
from unittest.mock import patch

import pytest
import torch
from conftest import ARITHMETIC, ROOT, jsonl, on_ranks
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from config import parse_config
from runtime import checkpoint, ranks
from train import train

pytestmark = pytest.mark.slow
FLAGS = f"""
    --config {ARITHMETIC}
    --engine hf
    --batch_size 8
    --num_rollouts 4
    --steps 4
    --start_threshold -1
    --save_every 1
    --eval_every 0
    --eval_questions 1
"""
# Ctrl-C has to wait for a step and a save on a machine that may be busy.
TORCHRUN = "-m torch.distributed.run --standalone --nproc_per_node=2 --shutdown-timeout=600"


def start(run_dir: Path, flags: str = "", prepare=None) -> None:
    """Be a rank of a run, from its command line to its exit status."""
    output = os.open(f"{run_dir}.txt", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(output, sys.stdout.fileno())
    os.dup2(output, sys.stderr.fileno())
    os.umask(0o027)
    if prepare:
        prepare()
    argv = f"{FLAGS} --run_dir {run_dir} {flags}".split()
    ranks.run(lambda: train(parse_config(argv)))


def rows(run_dir: Path) -> list[dict]:
    """Return metrics.jsonl without what the clock says."""
    result = []
    for row in jsonl(run_dir / "metrics.jsonl"):
        result.append({name: x for name, x in row.items() if not name.startswith("time/")})
    return result


def saved(run_dir: Path) -> list[str]:
    """Return what is in the directory of checkpoints."""
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """Return the run_dir of four steps on two ranks, never interrupted."""
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    tracker = "--tracker tensorboard" if find_spec("tensorboard") else ""
    assert on_ranks(2, start, run_dir, tracker) == [0, 0]
    return run_dir


@pytest.fixture
def three_steps(whole, tmp_path) -> Path:
    """Return a copy of it without what came after the third step's checkpoint."""
    run_dir = shutil.copytree(whole, tmp_path / "run")
    shutil.rmtree(run_dir / "checkpoints/step-0000004")
    return run_dir


# ---- what is there at the end --------------------------------------------------------------------


def test_a_finished_run_is_whole_and_readable(whole):
    """Four files, the model and the last two checkpoints, readable as the umask says, 027."""
    names = {"config.json", "metrics.jsonl", "samples.jsonl", "run.png", "model", "checkpoints"}
    assert names <= {path.name for path in whole.iterdir()}
    assert [row["step"] for row in rows(whole)] == [0, 1, 2, 3, 4, 4]  # the last is a validation
    samples = jsonl(whole / "samples.jsonl")
    assert {sample["step"] for sample in samples} == {1, 2, 3, 4}
    assert {sample["replayed"] for sample in samples} == {True, False}
    assert saved(whole) == ["step-0000003", "step-0000004"]
    modes = {path.stat().st_mode & 0o777 for path in whole.rglob("*") if path.is_file()}
    assert modes == {0o640}


def test_the_trained_model_is_an_ordinary_one(whole):
    """Transformers loads it, with the last checkpoint's weights and what ends a response.

    rope_theta and the tokenizer's class stand where transformers 4 reads them, too.
    """
    about = json.loads((whole / "model/config.json").read_text())
    assert about["rope_theta"] == about["rope_parameters"]["rope_theta"]
    named = json.loads((whole / "model/tokenizer_config.json").read_text())
    assert named["tokenizer_class"] == "PreTrainedTokenizerFast"
    lm = AutoModelForCausalLM.from_pretrained(whole / "model")
    weights = {name: torch.empty_like(weight) for name, weight in lm.state_dict().items()}
    checkpoint.load(whole / "checkpoints/step-0000004", weights)
    base = AutoModelForCausalLM.from_pretrained(ROOT / "worlds/base").state_dict()
    for name, weight in lm.state_dict().items():
        assert torch.equal(weight, weights[name]) and not torch.equal(weight, base[name])
    assert len(AutoTokenizer.from_pretrained(whole / "model")) == len(base["lm_head.weight"])
    assert lm.generation_config.eos_token_id == [2]


def test_tensorboard_gets_every_metric(whole):
    """Each number of metrics.jsonl is a scalar of its step, in float32."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(whole / "tensorboard")).Reload()
    for row in rows(whole):
        for name, value in row.items():
            scalars = {event.step: event.value for event in events.Scalars(name)}
            assert scalars[row["step"]] == pytest.approx(value, rel=1e-6)


# ---- resume, kills, a full disk ------------------------------------------------------------------


def killed(function: str, call: int) -> None:
    """Let `kill -9` hit this process as it calls a function for the n-th time."""
    original = locate(function)
    calls = count(1)

    def hit(*args, **kwargs):
        if next(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)

    patch(function, hit).start()


def tensors(run_dir: Path) -> dict:
    """Return a hash of every tensor of the last checkpoint: weights, AdamW's state and buffer."""
    result = {}
    for path in (run_dir / "checkpoints/step-0000004").rglob("*.safetensors"):
        for name, tensor in load_file(path).items():
            result[path.name, name] = hash(tensor.numpy().tobytes())
    return result


def test_a_run_that_is_killed_three_times_ends_as_if_it_was_not(whole, tmp_path):
    """On two ranks --resume goes on to the bit from the newest whole checkpoint.

    The kills hit an update, a save whose files are written, and one that has its name already.
    """
    run_dir = tmp_path / "run"
    update = partial(killed, "torch.optim.AdamW.step", 3)  # the first of step 2
    save = partial(killed, "os.sync", 1)
    removal = partial(killed, "shutil.rmtree", 3)  # of the oldest checkpoint, after step 3's save
    for kill, newest in ((update, 1), (save, 1), (removal, 3)):
        status, _ = on_ranks(2, start, run_dir, "--resume", kill)
        assert status == -signal.SIGKILL
        assert checkpoint.checkpoints(run_dir)[-1].name == f"step-000000{newest}"
    assert on_ranks(2, start, run_dir, "--resume") == [0, 0]
    assert rows(run_dir) == rows(whole)
    assert tensors(run_dir) == tensors(whole)


def test_one_rank_goes_on_where_two_were(whole, three_steps):
    """The next step's metrics are those of two ranks within 1e-5."""
    assert on_ranks(1, start, three_steps, "--resume") == [0]
    assert rows(three_steps)[4] == pytest.approx(rows(whole)[4], rel=1e-5, abs=1e-5)


def fill_disk() -> None:
    """Let no file of this process grow beyond 1 MiB, which a checkpoint needs."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))


def test_a_full_disk_leaves_the_checkpoint_before(three_steps):
    """A save that finds no room says so in a sentence, and leaves nothing behind."""
    assert on_ranks(1, start, three_steps, "--resume", fill_disk) == [1]
    assert saved(three_steps) == ["step-0000003"]
    assert "could not be written" in Path(f"{three_steps}.txt").read_text()


def find_after_save(final: Path) -> bool:
    """Return whether this rank finds a checkpoint that gets its name late."""
    with patch("os.sync", partial(time.sleep, 1.0)):
        checkpoint.save(final, {"weight": torch.zeros(2)}, lambda aside: None)
    return final.exists()


def test_every_rank_finds_a_checkpoint_that_is_saved(tmp_path):
    """None goes on before it has its name, or it would save it again, alone."""
    final = tmp_path / "checkpoints/step-0000001"
    assert on_ranks(2, find_after_save, final) == [True, True]


@pytest.mark.parametrize("best, kept", [(2, [2, 4, 5]), (None, [4, 5])])
def test_the_last_two_checkpoints_and_the_best_are_kept(best, kept, tmp_path):
    """The best one is that with the highest Pass@1 in validation, where there was one."""
    for step in range(1, 6):
        (tmp_path / f"checkpoints/step-{step:07d}").mkdir(parents=True)
    rows = [{"step": 0, "val/pass_at_1/a": 0.9}, *({"step": step} for step in range(1, 6))]
    if best:
        rows[best]["val/pass_at_1/a"] = 0.1
    checkpoint.prune(tmp_path, rows)
    assert saved(tmp_path) == [f"step-{step:07d}" for step in kept]


def test_what_would_mix_two_runs_is_refused(three_steps):
    """Other questions on a resume, and a run_dir that holds a run, each by a sentence alone."""
    other = "--resume --train_files .cache/arithmetic/ood.jsonl"
    assert on_ranks(1, start, three_steps, other) == [1]
    assert on_ranks(1, start, three_steps) == [1]
    said = Path(f"{three_steps}.txt").read_text()
    assert "was trained on other questions" in said and "holds a run" in said
    assert "Traceback" not in said


# ---- stopping ------------------------------------------------------------------------------------


def test_ctrl_c_saves_and_resume_goes_on(tmp_path):
    """SIGINT under torchrun: the step is finished and saved, the status is not 0."""
    run_dir = tmp_path / "run"
    flags = f"{TORCHRUN} train.py {FLAGS} --run_dir {run_dir} --steps 1000 --save_every 0"
    file = tmp_path / "output.txt"
    with open(file, "w") as output:
        process = subprocess.Popen(
            [sys.executable, *flags.split()],
            cwd=ROOT,
            stdout=output,
            stderr=output,
            start_new_session=True,  # a process group, as a terminal has one
        )
    while "step 1 " not in file.read_text():
        assert process.poll() is None, file.read_text()
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(600) != 0
    step = int(re.search(r"interrupted: saved after step (\d+)", file.read_text())[1])
    assert saved(run_dir) == [f"step-{step:07d}"]
    assert on_ranks(1, start, run_dir, f"--resume --steps {step + 1}") == [0]
    assert rows(run_dir)[step + 1]["loss/grad_norm"] > 0


def ask(number: int, pauses: tuple) -> None:
    """Let signals come to the last rank in its first update, each followed by a pause."""
    original = torch.optim.AdamW.step
    still_to_come = iter(pauses)

    def step(*args):
        if ranks.rank() == ranks.world_size() - 1:
            for pause in still_to_come:
                os.kill(os.getpid(), number)
                time.sleep(pause)
        return original(*args)

    patch("torch.optim.AdamW.step", step).start()


def test_all_ranks_stop_where_one_is_asked(tmp_path):
    """After SIGTERM to rank 1 both ranks save the step and end with the same status."""
    run_dir = tmp_path / "run"
    assert on_ranks(2, start, run_dir, "", partial(ask, signal.SIGTERM, (0,))) == [130, 130]
    assert saved(run_dir) == ["step-0000001"]


def test_a_second_signal_ends_at_once(tmp_path):
    """Four seconds after the first, in an update that would take an hour; nothing is saved."""
    run_dir = tmp_path / "run"
    assert on_ranks(1, start, run_dir, "", partial(ask, signal.SIGINT, (4, 3600))) == [130]
    assert not (run_dir / "checkpoints").exists()


# ---- ranks that fail -----------------------------------------------------------------------------

FAILING = """
import os, pathlib
from runtime import ranks

def program():
    ranks.setup()
    ranks.gather(None)
    if ranks.rank() == 1:
        pathlib.Path("failed").touch()
        {failure}
    ranks.gather(None)

ranks.run(program)
"""
REFUSING = """
import os, time
from runtime import ranks

def program():
    if os.environ["RANK"] == "0":
        time.sleep(1)
    raise ranks.Refusal("what to mend")

ranks.run(program)
"""


def said_under_torchrun(program: str, directory: Path) -> str:
    """What a program of two ranks, which has to fail, prints to stderr."""
    (directory / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, *TORCHRUN.split(), "program.py"],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode != 0
    return done.stderr


@pytest.mark.parametrize(
    "failure, cause",
    [
        ("raise RuntimeError('a cause')", "RuntimeError: a cause"),
        ("os.kill(os.getpid(), 9)", "Signal 9 (SIGKILL)"),
    ],
)
def test_a_rank_that_fails_ends_the_job(failure, cause, tmp_path):
    """It does so within a minute, and torchrun's summary names the cause."""
    said = said_under_torchrun(FAILING.format(failure=failure), tmp_path)
    assert time.time() - (tmp_path / "failed").stat().st_mtime < 60
    _, failed, summary = said.partition("program.py FAILED")
    assert cause in summary, said


def test_a_refusal_is_its_sentence(tmp_path):
    """Rank 0 prints it, even if it is the last to refuse, and no traceback shows the program."""
    said = said_under_torchrun(REFUSING, tmp_path)
    assert said.count("what to mend") == 1 and "in program" not in said, said
