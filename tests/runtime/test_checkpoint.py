"""Checkpoints come back exactly, on any number of ranks; no crash loses the last one; nothing read can run
code."""

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
from conftest import FORKS, on_ranks
from safetensors import safe_open
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor

from config import Config
from runtime import checkpoint, ranks, shards
from runtime.checkpoint import Checkpoints, problem
from runtime.claim import check_shared, claim

KNOBS = dataclasses.asdict(Config(keep=2, steps=100, save_every=0))


class Run:
    """What a training script holds, in small: a sharded model with AdamW, a buffer, plain state, metrics.

    `train(step)` stands for a step that changes everything.
    """

    def __init__(self, run_dir, resume=False, hidden=5, **knobs):
        ranks.setup()
        self.checkpoints = Checkpoints(KNOBS | dict(run_dir=str(run_dir), resume=resume) | knobs)
        self.checkpoints.check_questions("these")
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.model = nn.Sequential(nn.Linear(4, hidden), nn.Linear(hidden, 3))
        fully_shard(self.model, mesh=init_device_mesh("cpu", (ranks.world_size(),)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.buffer, self.count, self.metrics, self.first_step = b"nothing", 0, "", 0
        if saved := self.checkpoints.saved:
            self.metrics = self.checkpoints.restore(self.tensors(), self.load_buffer)
            self.count, self.first_step = saved["count"], saved["step"]

    def load_buffer(self, path):
        self.buffer = path.read_bytes()
        if not self.buffer.startswith(b"responses"):
            raise ValueError("not a buffer")

    def tensors(self):
        tensors = {}
        for name, p in self.model.named_parameters():
            if not (state := self.optimizer.state[p]):
                moments = {key: torch.zeros_like(p) for key in ("exp_avg", "exp_avg_sq")}
                state |= {"step": torch.tensor(0.0), **moments}
            tensors |= {name: p.detach(), **{f"{name}:{key}": value.detach() for key, value in state.items()}}
        return tensors

    def train(self, step, **scores):
        data = torch.from_numpy(np.random.default_rng(step).standard_normal((8, 4), dtype=np.float32))
        self.optimizer.zero_grad()
        self.model(data).square().mean().backward()
        self.optimizer.step()
        self.buffer, self.count = b"responses of %d" % step, self.count + 1
        row = {"step": step, **{f"val/pass_at_1/{name}": value for name, value in scores.items()}}
        self.metrics += json.dumps(row) + "\n"

    def save(self, step):
        def save_buffer(path):
            path.write_bytes(self.buffer)

        self.checkpoints.save(step, {"count": self.count}, self.tensors(), save_buffer, self.metrics)

    def state(self):
        """Everything that must come back."""
        whole = {name: tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
                 for name, tensor in self.tensors().items()}
        whole = {name: tensor.numpy().copy() for name, tensor in whole.items()}
        return {**whole, "buffer": self.buffer, "count": self.count, "metrics": self.metrics}


def same(a, b, tolerance=0.0):
    assert a.keys() == b.keys()
    for name in a:
        if isinstance(a[name], np.ndarray):
            np.testing.assert_allclose(a[name], b[name], rtol=0, atol=tolerance, err_msg=name)
        else:
            assert a[name] == b[name], name


def names(run_dir):
    return sorted(path.name for path in (Path(run_dir) / "checkpoints").iterdir() if path.is_dir())


@pytest.fixture(scope="module")
def saved(device, tmp_path_factory):
    """A run directory with checkpoints of steps 1 and 2."""
    run_dir = tmp_path_factory.mktemp("saved") / "run"
    run = Run(run_dir)
    for step in (1, 2):
        run.train(step)
        run.save(step)
    return run_dir


@pytest.fixture
def copy(saved, tmp_path):
    return Path(shutil.copytree(saved, tmp_path / "run"))


def pick(run_dir, **knobs):
    """The checkpoint that --resume would continue from, without loading it."""
    return Checkpoints(KNOBS | dict(run_dir=str(run_dir), resume=True) | knobs).newest.name


# ---- exact ----------------------------------------------------------------------------------------


def test_a_resumed_run_continues_exactly(device, tmp_path):
    """Weights, moments, buffer, plain state and metrics are restored bit for bit, and so is the next step."""
    run = Run(tmp_path)
    assert run.first_step == 0 and run.checkpoints.saved is None
    for step in (1, 2):
        run.train(step)
    run.save(2)
    again = Run(tmp_path, resume=True)
    assert again.first_step == 2
    same(run.state(), again.state())
    for other in (run, again):
        other.train(3)
    same(run.state(), again.state())


def save_somewhere(run_dir):
    """Train, save and train on; (the state saved, the state after that)."""
    run = Run(run_dir)
    run.train(1)
    run.save(1)
    saved = run.state()
    run.train(2)
    return saved, run.state()


def resume_somewhere(run_dir):
    run = Run(run_dir, resume=True)
    restored = run.state()
    run.train(2)
    return restored, run.state()


@pytest.mark.parametrize("before, after", [(2, 1), (1, 2), (2, 3)])
def test_another_number_of_ranks(tmp_path, before, after):
    """A checkpoint of any number of ranks resumes on any other: restored bit for bit, the next step within
    1e-6."""
    restored, trained = on_ranks(before, save_somewhere, tmp_path)[0]
    files = sorted(path.name[:11] for path in (tmp_path / "checkpoints/step-0000001/weights").iterdir())
    assert files == [f"shard-{i + 1:05d}" for i in range(before)]
    for ours in on_ranks(after, resume_somewhere, tmp_path):
        same(ours[0], restored)
        same(ours[1], trained, tolerance=1e-6)


def replicate(directory):
    """Two ranks that hold the same rows, as two nodes of one GPU do, write them; and what one of them reads
    back."""
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    tensors = {}
    for i in range(40):
        whole = torch.arange(12.0).reshape(4, 3) + i
        tensors[f"w{i}"] = distribute_tensor(whole, mesh, [torch.distributed.tensor.Replicate(),
                                                           torch.distributed.tensor.Shard(0)])
    shards.FILE_BYTES = 400  # of one rank: several files each
    written = shards.save_shards(tensors, directory)
    empty = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    shards.load_shards(directory, empty)
    equal = [torch.equal(empty[name].full_tensor(), tensors[name].full_tensor()) for name in tensors]
    return written, all(equal)


def test_replicas_are_written_once(tmp_path):
    """What two ranks hold alike is on disk once, in files of bounded size, each named by the rank that wrote
    it."""
    written = on_ranks(2, replicate, tmp_path)
    files = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert sorted(name for part, _ in written for name in part) == sorted(files)
    assert all(equal for _, equal in written)
    assert len(files) > 2 and 40 * 12 * 4 < sum(files.values()) < 1.9 * 40 * 12 * 4 + 1000 * len(files)
    tensors = [name for path in tmp_path.iterdir() for name in safe_open(path, "pt").keys()]
    assert len(tensors) == len(set(tensors)) == 40


# ---- a crash, a bad disk --------------------------------------------------------------------------


def test_any_changed_or_missing_byte_is_found(copy, capsys):
    """Each file of the newest checkpoint cut, changed or missing in turn: it is named, the one before it is
    used."""
    newest = copy / "checkpoints" / "step-0000002"
    assert pick(copy) == newest.name
    rng = np.random.default_rng(0)
    for path in sorted(path for path in newest.rglob("*") if path.is_file()):
        whole = path.read_bytes()
        cuts = [whole[:n] for n in {0, 1, len(whole) // 2, len(whole) - 1}]
        for place in {0, len(whole) - 1, *rng.integers(0, len(whole), 8).tolist()}:
            flipped = whole[place] ^ 1 << int(rng.integers(8))
            cuts.append(whole[:place] + bytes([flipped]) + whole[place + 1 :])
        for bad in [*cuts, whole + b"\n", None]:
            path.unlink() if bad is None else path.write_bytes(bad)
            assert pick(copy) == "step-0000001"
            said = capsys.readouterr().out
            assert "step-0000002 is damaged" in said and (path.name in said or path.name == "SHA256SUMS")
            assert "the next save removes this one" in said
            path.write_bytes(whole)
    assert pick(copy) == newest.name


def test_no_whole_checkpoint_is_an_error(copy):
    """Starting over would hide the loss: all damaged checkpoints are named instead."""
    for path in (copy / "checkpoints").glob("step-*/state.json"):
        path.unlink()
    with pytest.raises(ValueError, match="step-0000001, step-0000002 are all damaged"):
        pick(copy)


def fails_from(first, calls, function):
    """The function, until the `first` call of any that share the counter; from then on the disk is full."""

    def wrapper(*args, **kwargs):
        if next(calls) >= first:
            raise OSError(errno.ENOSPC, "No space left on device")
        return function(*args, **kwargs)

    return wrapper


def test_a_crash_at_any_moment_of_a_save_loses_nothing(device, tmp_path, monkeypatch):
    """The save fails at its 1st, 2nd, ... file operation until it succeeds: always a whole checkpoint, old or
    new."""
    run = Run(tmp_path, keep=1)
    run.train(1)
    run.save(1)
    operations = [(os, "fsync"), (os, "rename"), (Path, "write_text"), (Path, "mkdir"),
                  (Path, "write_bytes"), (checkpoint, "save_shards"), (shutil, "rmtree")]
    previous = "step-0000001"
    for failing in range(1, 100):
        run.train(1 + failing)
        with monkeypatch.context() as patch:
            calls = itertools.count(1)
            for where, name in operations:
                patch.setattr(where, name, fails_from(failing, calls, getattr(where, name)))
            try:
                run.save(1 + failing)
                break
            except OSError:
                pass
        found = pick(tmp_path)
        assert found in (previous, f"step-{1 + failing:07d}")
        previous = found
        state = json.loads((tmp_path / "checkpoints" / found / "state.json").read_text())
        assert f"step-{state['step']:07d}" == found and problem(tmp_path / "checkpoints" / found) is None
    assert 20 < failing < 99
    assert names(tmp_path) == [f"step-{1 + failing:07d}"]  # what failed before is cleared away


def test_a_damaged_checkpoint_is_replaced(device, copy):
    """Training over a damaged checkpoint's step writes it anew; an older damaged one goes, and does not count
    as kept."""
    (copy / "checkpoints" / "step-0000002" / "state.json").write_text("{}")
    run = Run(copy, resume=True)
    run.train(2)
    run.save(2)
    assert pick(copy) == "step-0000002" and names(copy) == ["step-0000001", "step-0000002"]


def test_the_last_and_the_best_are_kept(device, tmp_path):
    """`keep` newest ones, and the one with the best mean validation score; without validation it does not
    compete. What the user has put beside them, a copy too, is not touched."""
    run = Run(tmp_path)
    own = ["notes.tmp", "step-0000001-paper", "step-12", "step-best"]
    for name in own:
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    validations = [dict(a=0.1, b=0.3), dict(a=0.5, b=0.4), {}, dict(a=0.9, b=0.0), {}, {}]
    kept = [[1], [1, 2], [2, 3], [3, 4], [4, 5], [4, 5, 6]]  # 4 is as good as 2, and later
    for step, scores in enumerate(validations, start=1):
        run.train(step, **scores)
        run.save(step)
        assert names(tmp_path) == sorted([f"step-{n:07d}" for n in kept[step - 1]] + own)


# ---- whose run is it ------------------------------------------------------------------------------


def test_an_old_run_is_neither_overwritten_nor_mixed_up(copy, monkeypatch):
    """Without --resume it is an error that says what to do; with it other questions and other buckets are
    refused."""
    with pytest.raises(ValueError, match="--resume.*--run_dir"):
        pick(copy, resume=False)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert pick(copy, resume=False) == "step-0000002"  # torchrun's own restart needs no flag
    with pytest.raises(ValueError, match="other training questions"):
        Checkpoints(KNOBS | dict(run_dir=str(copy), resume=True)).check_questions("others")
    with pytest.raises(ValueError, match="num_rollouts.*8 -> 9"):
        pick(copy, num_rollouts=9)


@pytest.mark.parametrize("left", ["metrics.jsonl", "model"])
def test_a_run_without_checkpoints_is_not_overwritten(device, copy, left, capsys):
    """Killed before its first save, or its checkpoints removed: refused like one with them; --resume says it
    starts anew."""
    shutil.rmtree(copy / "checkpoints")
    (copy / left).mkdir()
    with pytest.raises(ValueError, match=f"holds a run.*{left}.*--resume.*--run_dir"):
        Run(copy)
    assert "nothing to resume" not in capsys.readouterr().out
    if left == "model":  # a run that has ended: beginning anew would replace what it left
        with pytest.raises(ValueError, match="has ended, without its checkpoints.*--run_dir NEW"):
            Run(copy, resume=True)
        return
    assert Run(copy, resume=True).first_step == 0
    assert "nothing to resume" in capsys.readouterr().out


def test_a_run_that_wrote_nothing_is_no_run(device, tmp_path):
    """A reward that cannot be imported leaves an empty metrics.jsonl: the next try may have its place."""
    (tmp_path / "metrics.jsonl").touch()
    assert Checkpoints(KNOBS | dict(run_dir=str(tmp_path))).saved is None


def claimed(run_dir):
    with claim(run_dir):
        return "claimed"


def test_two_runs_do_not_share_a_directory(device, tmp_path):
    """The second is told which process has it, on every rank; when the first has ended it is free."""
    told = pytest.raises(AssertionError, match=f"in use by process {os.getpid()} on ")
    with claim(tmp_path / "run"), told:
        on_ranks(2, claimed, tmp_path / "run")
    assert on_ranks(2, claimed, tmp_path / "run") == ["claimed"] * 2


def sees(directories):
    check_shared(directories[ranks.rank()], patience=0.3)
    return "seen"


def test_a_directory_that_nodes_do_not_share_is_refused(device, tmp_path):
    """Two ranks that mean different directories by its name, and the same two with one: on both ranks."""
    with pytest.raises(AssertionError, match=r"not seen by ranks \[1\]\. Name one on a file system"):
        on_ranks(2, sees, [tmp_path / "here", tmp_path / "there"])
    assert on_ranks(2, sees, [tmp_path / "here"] * 2) == ["seen"] * 2
    assert list((tmp_path / "here").iterdir()) == []


def holds(run_dir, opened, seconds):
    """A process that dies slowly."""
    with claim(run_dir):
        opened.set()
        time.sleep(seconds)


def test_a_restarted_run_waits_for_the_dead_one(device, tmp_path, monkeypatch):
    """torchrun has started the ranks again while the lock is still held by a dying one: it is waited for."""
    opened = FORKS.Event()
    process = FORKS.Process(target=holds, args=(tmp_path, opened, 1.5), daemon=True)
    process.start()
    opened.wait(60)
    with pytest.raises(ValueError, match="in use"):
        claimed(tmp_path)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert claimed(tmp_path) == "claimed"
    process.join()


def test_a_validation_that_was_made_up_for_counts(device, tmp_path):
    """Step 2 is interrupted in its validation and saved without its row, which comes on resume, before step
    3: it is the best and stays, and has not the score of step 1."""
    run = Run(tmp_path, keep=1)
    for step, score in enumerate((0.5, None, 0.1, 0.2), start=1):
        run.train(step, **({} if score is None else {"a": score}))
        if step == 3:
            run.metrics = run.metrics.replace('{"step": 2}', '{"step": 2, "val/pass_at_1/a": 0.9}')
        run.save(step)
        assert names(tmp_path) == [f"step-{n:07d}" for n in ([1], [1, 2], [2, 3], [2, 4])[step - 1]]


def test_changed_knobs_are_said(copy, capsys):
    """A run may go on with another learning rate, but not silently; more steps need no word."""
    pick(copy, lr=0.5, steps=900)
    said = capsys.readouterr().out
    assert "'lr': '4e-05 -> 0.5'" in said and "steps" not in said


def test_a_knob_removed_since_is_said(copy, capsys):
    """A checkpoint that names a knob this version has not is continued, and one line says what it had."""
    newest = copy / "checkpoints" / "step-0000002"
    state = json.loads((newest / "state.json").read_text())
    state["config"]["sigma_unit"] = "accuracy"
    (newest / "state.json").write_text(json.dumps(state))
    write_sums(newest)
    assert pick(copy) == "step-0000002"
    assert "{'sigma_unit': 'accuracy'}" in capsys.readouterr().out


def test_another_model_is_refused(device, copy):
    """Weights that do not fit are named, not broadcast or left out."""
    with pytest.raises(ValueError, match="another model.*0.bias"):
        Run(copy, resume=True, hidden=6)


# ---- malicious files ------------------------------------------------------------------------------


class Payload:
    """Unpickled, it would leave a file behind."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def write_sums(directory):
    """SHA256SUMS to match whatever is there."""
    files = [path for path in directory.rglob("*") if path.is_file() and path.name != "SHA256SUMS"]
    sums = {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    lines = [f"{value}  {path.relative_to(directory)}\n" for path, value in sums.items()]
    (directory / "SHA256SUMS").write_text("".join(sorted(lines)))


@pytest.mark.parametrize("victim", ["buffer.safetensors", "weights/shard-*", "state.json"])
def test_a_pickle_is_never_read(device, copy, tmp_path, victim):
    """A pickle in the place of a file, with sums to match, is refused, and its code does not run."""
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


@pytest.mark.parametrize("text", ["{}", "[]", '{"step": "2", "config": {}}', '{"step": 2}', "[" * 100_000])
def test_a_state_that_makes_no_sense_is_named(copy, text):
    """Where the sums match and the contents do not: the file is named."""
    newest = copy / "checkpoints" / "step-0000002"
    (newest / "state.json").write_text(text)
    write_sums(newest)
    with pytest.raises(ValueError, match="state.json is not what a run writes"):
        pick(copy)


@pytest.mark.parametrize("name", ["../step-0000001/state.json", "/etc/hostname", "a/b", "..", ".hidden", ""])
def test_a_manifest_cannot_point_elsewhere(copy, name):
    """File names with a path in them, absolute or not, make the checkpoint a damaged one."""
    newest = copy / "checkpoints" / "step-0000002"
    with open(newest / "SHA256SUMS", "a") as file:
        file.write(f"{'0' * 64}  {name}\n")
    assert "not as it was written" in problem(newest) and pick(copy) == "step-0000001"


@pytest.mark.parametrize("victim", ["state.json", "SHA256SUMS", "weights/shard-*", "weights", "."])
def test_a_link_is_refused(copy, tmp_path, victim):
    """A file, or the whole checkpoint, that is a symbolic link is a damaged one, even where the contents
    agree."""
    newest = copy / "checkpoints" / "step-0000002"
    (place,) = [newest] if victim == "." else newest.glob(victim)
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    assert "link" in problem(newest)
    if victim == ".":  # where step 2 will be saved again, a link would be in the way
        with pytest.raises(ValueError, match="step-0000002 is not a directory of its own"):
            pick(copy)
    else:
        assert pick(copy) == "step-0000001"
