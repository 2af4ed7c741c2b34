"""No crash loses the last checkpoint, damage is found, and a directory belongs to one run.

Nothing that is read can run code.
"""

import dataclasses
import errno
import hashlib
import itertools
import json
import os
import pickle
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import FORKS, on_ranks, toy_config

from runtime import checkpoint, ranks
from runtime.checkpoint import ORIGINS, Checkpoints, problem
from runtime.faults import Failure
from runtime.rundir import check_shared, claim, refuse_remains

SAVED = dict.fromkeys(ORIGINS, "these") | {"turn_ends": [2], "reward_identity": None}
KNOBS = dataclasses.asdict(toy_config(keep=2, steps=100, save_every=0))


class Run:
    """What a training script holds, in small: weights, a buffer, metrics."""

    def __init__(self, run_dir, resume=False, **knobs):
        self.checkpoints = Checkpoints(KNOBS | dict(run_dir=str(run_dir), resume=resume) | knobs)
        self.checkpoints.check_origins(**SAVED)
        self.tensors = {"weight": torch.zeros(5)}
        self.buffer, self.metrics = b"", ""
        if self.checkpoints.saved:
            self.metrics = self.checkpoints.restore(self.tensors)
            self.buffer = (self.checkpoints.newest / "buffer.safetensors").read_bytes()

    def step(self, step, **scores):
        """A step that changes everything, and its checkpoint."""
        self.tensors["weight"] += 1
        self.buffer = b"responses of %d" % step
        row = {"step": step, **{f"val/pass_at_1/{name}": value for name, value in scores.items()}}
        self.metrics += json.dumps(row) + "\n"
        self.checkpoints.save(step, self.tensors, {}, self.save_buffer, self.metrics)

    def save_buffer(self, path):
        path.write_bytes(self.buffer)


def names(run_dir):
    return sorted(path.name for path in (Path(run_dir) / "checkpoints").iterdir() if path.is_dir())


@pytest.fixture(scope="module")
def saved(device, tmp_path_factory):
    """A run directory with checkpoints of steps 1 and 2."""
    run_dir = tmp_path_factory.mktemp("saved") / "run"
    run = Run(run_dir)
    for step in (1, 2):
        run.step(step)
    return run_dir


@pytest.fixture
def copy(saved, tmp_path):
    return Path(shutil.copytree(saved, tmp_path / "run"))


def pick(run_dir, **knobs):
    """The checkpoint that --resume would continue from, without loading it."""
    return Checkpoints(KNOBS | dict(run_dir=str(run_dir), resume=True) | knobs).newest.name


# ---- a crash, a bad disk -------------------------------------------------------------------------


def test_any_changed_or_missing_byte_is_found(copy, capsys):
    """A checkpoint with a file cut, changed or missing is named, and the one before it used."""
    newest = copy / "checkpoints" / "step-0000002"
    assert pick(copy) == newest.name
    rng = np.random.default_rng(0)
    for path in sorted(path for path in newest.rglob("*") if path.is_file()):
        whole = path.read_bytes()
        damaged = [whole[:-1], whole + b"\n", b"", None]
        for place in {0, len(whole) - 1, *rng.integers(0, len(whole), 8).tolist()}:
            flipped = whole[place] ^ 1 << int(rng.integers(8))
            damaged.append(whole[:place] + bytes([flipped]) + whole[place + 1 :])
        for bad in damaged:
            path.unlink() if bad is None else path.write_bytes(bad)
            assert pick(copy) == "step-0000001"
            said = capsys.readouterr().out
            assert "step-0000002 is damaged" in said and (
                path.name in said or path.name == "SHA256SUMS"
            )
            path.write_bytes(whole)
    assert pick(copy) == newest.name


def test_no_whole_checkpoint_is_an_error(copy):
    """All damaged checkpoints are named, since starting over would hide the loss."""
    for path in (copy / "checkpoints").glob("step-*/state.json"):
        path.unlink()
    with pytest.raises(ValueError, match="step-0000001, step-0000002 are all damaged"):
        pick(copy)


def fails_from(first, calls, function):
    """The function on a disk that is full from the `first` call of all that share `calls`."""

    def wrapper(*args, **kwargs):
        if next(calls) >= first:
            raise OSError(errno.ENOSPC, "No space left on device")
        return function(*args, **kwargs)

    return wrapper


def test_a_save_without_room_leaves_nothing_and_says_so(device, tmp_path, monkeypatch):
    """The error names the checkpoint, and no half of it stays, neither then nor after a kill."""
    run = Run(tmp_path)
    run.step(1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails_from(1, itertools.count(1), os.fsync))
        with pytest.raises(
            Failure, match="step-0000002 could not be written: .*No space.*Make room"
        ):
            run.step(2)
    assert names(tmp_path) == ["step-0000001"]
    (tmp_path / "checkpoints" / "step-0000003.tmp").mkdir()
    Run(tmp_path, resume=True)
    assert names(tmp_path) == ["step-0000001"]


def test_a_crash_at_any_moment_of_a_save_loses_nothing(device, tmp_path, monkeypatch):
    """Whichever file operation of a save fails, a whole checkpoint is there, old or new."""
    run = Run(tmp_path, keep=1)
    run.step(1)
    operations = [
        (os, "fsync"),
        (os, "rename"),
        (Path, "write_text"),
        (Path, "mkdir"),
        (Path, "write_bytes"),
        (checkpoint, "save_shards"),
        (shutil, "rmtree"),
    ]
    previous = "step-0000001"
    for failing in range(1, 100):
        with monkeypatch.context() as patch:
            calls = itertools.count(1)
            for where, name in operations:
                patch.setattr(where, name, fails_from(failing, calls, getattr(where, name)))
            try:
                run.step(1 + failing)
                break
            except (Failure, OSError):
                pass
        found = pick(tmp_path)
        assert found in (previous, f"step-{1 + failing:07d}")
        previous = found
        state = json.loads((tmp_path / "checkpoints" / found / "state.json").read_text())
        assert (
            f"step-{state['step']:07d}" == found
            and problem(tmp_path / "checkpoints" / found) is None
        )
    assert 20 < failing < 99
    assert names(tmp_path) == [f"step-{1 + failing:07d}"]  # what failed before is cleared away


def test_a_damaged_checkpoint_is_replaced(copy):
    """Training over a damaged checkpoint's step writes it anew."""
    (copy / "checkpoints" / "step-0000002" / "state.json").write_text("{}")
    Run(copy, resume=True).step(2)
    assert pick(copy) == "step-0000002" and names(copy) == ["step-0000001", "step-0000002"]


def test_the_last_and_the_best_are_kept(device, tmp_path):
    """The newest `keep` stay, and the one with the best mean validation score.

    One without validation does not compete. What the user has put beside them is not touched.
    """
    run = Run(tmp_path)
    own = ["notes.tmp", "step-0000001-paper", "step-12", "step-best"]
    for name in own:
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    validations = [dict(a=0.1, b=0.3), dict(a=0.5, b=0.4), {}, dict(a=0.9, b=0.0), {}, {}]
    kept = [[1], [1, 2], [2, 3], [3, 4], [4, 5], [4, 5, 6]]  # 4 is as good as 2 and later
    for step, scores in enumerate(validations, start=1):
        run.step(step, **scores)
        assert names(tmp_path) == sorted([f"step-{n:07d}" for n in kept[step - 1]] + own)


# ---- whose run is it -----------------------------------------------------------------------------


def test_an_old_run_is_neither_overwritten_nor_mixed_up(copy):
    """A run goes on with --resume only, and only with its questions, reward and buckets."""
    with pytest.raises(ValueError, match="--resume.*--run_dir"):
        pick(copy, resume=False)
    resumed = Checkpoints(KNOBS | dict(run_dir=str(copy), resume=True))
    resumed.check_origins(**SAVED)
    for name, sentence in ORIGINS.items():
        with pytest.raises(ValueError, match=sentence):
            resumed.check_origins(**SAVED | {name: "others"})
    for knob, change in (("num_rollouts", "8 -> 9"), ("eval_questions", "0 -> 9")):
        with pytest.raises(ValueError, match=f"{knob}.*{change}"):
            pick(copy, **{knob: 9})


def test_torchruns_restart_takes_up_only_what_its_first_attempt_began(copy, device, monkeypatch):
    """A restart needs no flag for a run of its own job, and is refused another's like any run."""

    def attempt(job: str, number: int) -> None:
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(number))
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", f"/tmp/{job}/attempt_{number}/0/error.json")

    for number in (0, 1, 2):
        attempt("another", number)
        with pytest.raises(ValueError, match="holds a run .*--resume"):
            pick(copy, resume=False)
    attempt("another", 0)
    assert pick(copy) == "step-0000002"  # with --resume it is its own from now on
    for number in (1, 2):
        attempt("another", number)
        assert pick(copy, resume=False) == "step-0000002"
    attempt("third", 1)
    with pytest.raises(ValueError, match="holds a run .*--resume"):
        refuse_remains(str(copy), resume=False)
    shutil.rmtree(copy)
    run = Run(copy)  # its first attempt ended before it began anything
    run.step(1)
    attempt("third", 2)
    assert pick(copy, resume=False) == "step-0000001"


def test_a_run_without_checkpoints_is_not_overwritten(device, tmp_path, capsys):
    """A run killed before its first save starts anew with --resume only, an ended one never.

    An empty metrics.jsonl is no run.
    """
    rows = tmp_path / "metrics.jsonl"
    rows.touch()
    Run(tmp_path)
    rows.write_text("{}\n")
    with pytest.raises(ValueError, match="holds a run.*metrics.jsonl.*--resume.*--run_dir"):
        Run(tmp_path)
    assert Run(tmp_path, resume=True).checkpoints.saved is None
    assert "nothing to resume" in capsys.readouterr().out
    (tmp_path / "model").mkdir()
    with pytest.raises(ValueError, match="has ended, without its checkpoints.*--run_dir NEW"):
        Run(tmp_path, resume=True)


def claimed(run_dir):
    with claim(run_dir):
        return "claimed"


def test_two_runs_do_not_share_a_directory(device, tmp_path):
    """Until the first run has ended, each rank of the second is told which process has it."""
    told = pytest.raises(AssertionError, match=f"in use by process {os.getpid()} on ")
    with claim(tmp_path / "run"), told:
        on_ranks(2, claimed, tmp_path / "run")
    assert on_ranks(2, claimed, tmp_path / "run") == ["claimed"] * 2


def sees(directories):
    check_shared(directories[ranks.rank()])


def test_a_directory_that_nodes_do_not_share_is_refused(tmp_path):
    """Two ranks that mean different directories by one name are told so."""
    with pytest.raises(AssertionError, match="not seen by rank 1. Name one on a file system"):
        on_ranks(2, sees, [tmp_path / "here", tmp_path / "there"])
    assert list((tmp_path / "here").iterdir()) == []


def holds(run_dir, opened, seconds):
    """Holds the directory as a process does that dies slowly."""
    with claim(run_dir):
        opened.set()
        time.sleep(seconds)


def test_a_restarted_run_waits_for_the_dead_one(device, tmp_path, monkeypatch):
    """After torchrun's restart the lock of a rank that is still dying is waited for."""
    opened = FORKS.Event()
    process = FORKS.Process(target=holds, args=(tmp_path, opened, 1.0), daemon=True)
    process.start()
    opened.wait(60)
    with pytest.raises(ValueError, match="in use"):
        claimed(tmp_path)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert claimed(tmp_path) == "claimed"
    process.join()


def test_changed_and_removed_knobs_are_said(copy, capsys):
    """Another learning rate and a knob that is gone are said, more steps are not."""
    newest = copy / "checkpoints" / "step-0000002"
    state = json.loads((newest / "state.json").read_text())
    state["config"]["sigma_unit"] = "accuracy"
    (newest / "state.json").write_text(json.dumps(state))
    write_sums(newest)
    pick(copy, lr=0.5, steps=900)
    said = capsys.readouterr().out
    assert "'lr': '0.00045 -> 0.5'" in said and "'steps'" not in said
    assert "'sigma_unit': \"'accuracy' -> None\"" in said


# ---- malicious files -----------------------------------------------------------------------------


def test_a_lock_that_is_a_link_is_refused(device, tmp_path):
    """What it points at stays as it is; an ordinary lock can be opened by its owner again."""
    target, lock = tmp_path / "target", tmp_path / "run" / "lock"
    target.write_text("mine")
    lock.parent.mkdir()
    lock.symlink_to(target)
    with pytest.raises(ValueError, match="cannot be locked: .*remove its lock"):
        claimed(lock.parent)
    assert target.read_text() == "mine"
    lock.unlink()
    assert claimed(lock.parent) == "claimed" and lock.stat().st_mode & 0o600 == 0o600


class Payload:
    """Unpickled, it would leave a file behind."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def write_sums(directory):
    """Writes SHA256SUMS to match whatever is there."""
    files = [path for path in directory.rglob("*") if path.is_file() and path.name != "SHA256SUMS"]
    sums = {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    lines = [f"{value}  {path.relative_to(directory)}\n" for path, value in sums.items()]
    (directory / "SHA256SUMS").write_text("".join(sorted(lines)))


@pytest.mark.parametrize("victim", ["weights/shard-*", "state.json"])
def test_a_pickle_is_never_read(copy, tmp_path, victim):
    """A pickle in place of a file, with sums to match, is refused, and its code does not run."""
    newest = copy / "checkpoints" / "step-0000002"
    (file,) = newest.glob(victim)
    if victim.startswith("weights"):
        torch.save(Payload(tmp_path / "owned"), file)
    else:
        file.write_bytes(pickle.dumps(Payload(tmp_path / "owned")))
    write_sums(newest)
    assert problem(newest) is None
    with pytest.raises(ValueError):
        Run(copy, resume=True)
    assert not (tmp_path / "owned").exists()
