"""Checkpoints come back exactly, on any number of ranks; no crash loses the last one; nothing read can run code."""

import errno
import itertools
import json
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import on_ranks

from buffer import Trajectory
from config import Config
from data import Question, Sample
from exgrpo import Experience
from policy import Policy
from runtime import checkpoint, ranks
from runtime.checkpoint import Checkpoints, manifest_text, problem
from runtime.tracking import Tracker

KNOBS = dict(max_prompt_length=8, max_response_length=16, max_drift=1e9, skip_grad_norm=1e9, lr=1e-2, batch_size=4)
QUESTIONS = [Question(i, f"q{i}", np.array([1, 4, 7 + i], dtype=np.int32), str(i), "test") for i in range(200)]


class Run:
    """What a training script holds, without an engine; `train(step)` stands for a step that changes everything."""

    def __init__(self, model, run_dir, questions=QUESTIONS, resume=False, **knobs):
        self.config = Config(**KNOBS | dict(run_dir=str(run_dir), resume=resume) | knobs)
        self.tracker = Tracker(self.config.run_dir, 100)
        self.checkpoints = Checkpoints(self.config, questions, self.tracker)
        self.policy = Policy(self.config, model, ranks.setup())
        self.experience = Experience(self.config, questions)
        self.first_step = self.checkpoints.restore(self.policy, self.experience)

    def train(self, step, **scores):
        rng = np.random.default_rng(step)
        samples = [Sample(rng.integers(0, 90, 3).astype(np.int32), rng.integers(0, 90, 5).astype(np.int32),
                          -rng.random(5, dtype=np.float32), float(rng.standard_normal()), False) for _ in range(4)]
        metrics = self.policy.update([samples], None)
        questions = self.experience.stream.draw(3, self.experience.buffer.retired)
        for q in questions[1:]:
            self.experience.buffer.add(q, 1 + step % 7, [Trajectory(s.token_ids, s.old_logprobs, step) for s in samples[:2]])
        self.experience.buffer.retire(questions[0])
        self.experience.started = True
        self.tracker.log(step, {"loss": metrics["loss/grad_norm"], **{f"val/pass_at_1/{k}": v for k, v in scores.items()}})

    def state(self):
        """Everything that must come back: weights, moments, buffer, buckets, stream, metrics."""
        weights = {name: tensor.numpy().copy() for name, tensor in self.policy.named_tensors()}
        moments = {f"{name}:{key}": getattr(value, "full_tensor", lambda v=value: v)().numpy().copy()
                   for name, p in self.policy.module.named_parameters()
                   for key, value in self.policy.optimizer.state[p].items()}
        buffer = self.experience.buffer
        return {**weights, **moments, "buffer": buffer.checksum(), "buckets": {k: list(v) for k, v in buffer.buckets.items()},
                "retired": list(buffer.retired), "experience": self.experience.state_dict(), "rows": list(self.tracker.rows),
                "skipped": self.policy.skipped_in_row}


def same(a, b, tolerance=0.0):
    assert a.keys() == b.keys()
    for name in a:
        if isinstance(a[name], np.ndarray):
            np.testing.assert_allclose(a[name], b[name], rtol=0, atol=tolerance, err_msg=name)
        elif not tolerance:
            assert a[name] == b[name], name


def names(run_dir):
    return sorted(path.name for path in (Path(run_dir) / "checkpoints").iterdir() if path.is_dir())


@pytest.fixture(scope="module")
def saved(device, tiny_model, tmp_path_factory):
    """A run directory with checkpoints of steps 1 and 2."""
    run_dir = tmp_path_factory.mktemp("saved") / "run"
    run = Run(tiny_model, run_dir)
    for step in (1, 2):
        run.train(step)
        run.checkpoints.save(step)
    return run_dir


@pytest.fixture
def copy(saved, tmp_path):
    return Path(shutil.copytree(saved, tmp_path / "run"))


def pick(run_dir, questions=QUESTIONS, **knobs):
    """The checkpoint that --resume would continue from, without loading it."""
    config = Config(**KNOBS | dict(run_dir=str(run_dir), resume=True) | knobs)
    return Checkpoints(config, questions, Tracker(str(run_dir), 100)).newest.name


# ---- exact ----------------------------------------------------------------------------------------


def test_a_resumed_run_continues_exactly(device, tiny_model, tmp_path):
    """Weights, moments, buffer, bucket order, stream, metrics are restored bit for bit, and so is the next step."""
    run = Run(tiny_model, tmp_path)
    assert run.first_step == 0
    run.train(1, a=0.5)
    run.train(2)
    run.policy.skipped_in_row = 2
    run.checkpoints.save(2)
    (tmp_path / "metrics.jsonl").open("a").write('{"step": 3}\n{"st')  # written after the save, lost with the crash
    again = Run(tiny_model, tmp_path, resume=True)
    assert again.first_step == 2 and (again.tracker.base, again.tracker.latest) == ({"pass_at_1/a": 0.5},) * 2
    same(run.state(), again.state())
    again.train(3)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert rows == again.tracker.rows and [row["step"] for row in rows] == [1, 2, 3]
    run.train(3)
    same(run.state(), again.state())


def save_somewhere(model, run_dir, shard):
    run = Run(model, run_dir, shard=shard)
    run.train(1)
    run.checkpoints.save(1)
    run.train(2)
    return run.state()


def resume_somewhere(model, run_dir, shard):
    run = Run(model, run_dir, resume=True, shard=shard)
    restored = run.state()
    run.train(2)
    return restored, run.state()


@pytest.mark.parametrize("tied, before, after", [(False, 2, 1), (True, 1, 2), (False, 2, 3)])
def test_another_number_of_ranks(tiny_models, tmp_path, tied, before, after):
    """A checkpoint of any number of ranks resumes on any other: restored bit for bit, the next step within 1e-5."""
    expected = on_ranks(before, save_somewhere, tiny_models[tied], tmp_path, True)[0]
    files = sorted(path.name for path in (tmp_path / "checkpoints" / "step-0000001").glob("shard-*"))
    assert files == [f"shard-{i:05d}.safetensors" for i in range(before)]
    results = on_ranks(after, resume_somewhere, tiny_models[tied], tmp_path, True)
    reference = on_ranks(before, resume_somewhere, tiny_models[tied], tmp_path, True)[0]
    same(reference[1], expected)
    for restored, trained in results:
        same(restored, reference[0])
        same(trained, expected, tolerance=1e-5)


def test_replicas_are_written_once(tiny_model, tmp_path):
    """Two ranks that hold the same weights leave one shard, and two that shard them can read it."""
    expected = on_ranks(2, save_somewhere, tiny_model, tmp_path, False)[0]
    assert [path.name for path in (tmp_path / "checkpoints").rglob("shard-*")] == ["shard-00000.safetensors"]
    _, trained = on_ranks(2, resume_somewhere, tiny_model, tmp_path, True)[0]
    same(trained, expected, tolerance=1e-5)


# ---- a crash, a bad disk --------------------------------------------------------------------------


def test_any_changed_or_missing_byte_is_found(copy, capsys):
    """Each file of the newest checkpoint cut, changed or missing in turn: it is named, the one before it is used."""
    newest = copy / "checkpoints" / "step-0000002"
    assert pick(copy) == newest.name
    rng = np.random.default_rng(0)
    for path in sorted(newest.iterdir()):
        whole = path.read_bytes()
        cuts = [whole[:n] for n in {0, 1, len(whole) // 2, len(whole) - 1}]
        for place in {0, len(whole) - 1, *rng.integers(0, len(whole), 8).tolist()}:
            cuts.append(whole[:place] + bytes([whole[place] ^ 1 << int(rng.integers(8))]) + whole[place + 1 :])
        for bad in [*cuts, whole + b"\n", None]:
            path.unlink() if bad is None else path.write_bytes(bad)
            assert pick(copy) == "step-0000001"
            said = capsys.readouterr().out
            assert "step-0000002 is damaged" in said and (path.name in said or path.name == "manifest.json")
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


def test_a_crash_at_any_moment_of_a_save_loses_nothing(device, tiny_model, tmp_path, monkeypatch):
    """The save fails at its 1st, 2nd, ... file operation until it succeeds: always a whole checkpoint, the old or the new."""
    run = Run(tiny_model, tmp_path, keep=1)
    run.train(1)
    run.checkpoints.save(1)
    operations = [(os, "fsync"), (os, "rename"), (os, "replace"), (os, "open"), (Path, "write_text"), (Path, "mkdir"),
                  (checkpoint, "save_shard"), (shutil, "rmtree")]
    previous = "step-0000001"
    for failing in range(1, 100):
        run.train(1 + failing)
        with monkeypatch.context() as patch:
            calls = itertools.count(1)
            for where, name in operations:
                patch.setattr(where, name, fails_from(failing, calls, getattr(where, name)))
            try:
                run.checkpoints.save(1 + failing)
                break
            except OSError:
                pass
        found = pick(tmp_path)
        assert found in (previous, f"step-{1 + failing:07d}")
        previous = found
        state = json.loads((tmp_path / "checkpoints" / found / "state.json").read_text())
        assert f"step-{state['step']:07d}" == found and problem(tmp_path / "checkpoints" / found) is None
    assert 20 < failing < 99 and names(tmp_path) == [f"step-{1 + failing:07d}"]  # what failed before is cleared away
    assert (tmp_path / "checkpoints" / "latest").read_text().strip() == f"step-{1 + failing:07d}"


def test_a_damaged_checkpoint_is_replaced(device, tiny_model, copy):
    """Training over a damaged checkpoint's step writes it anew; an older damaged one goes, and does not count as kept."""
    (copy / "checkpoints" / "step-0000002" / "state.json").write_text("{}")
    run = Run(tiny_model, copy, resume=True)
    run.train(2)
    run.checkpoints.save(2)
    assert pick(copy) == "step-0000002" and names(copy) == ["step-0000001", "step-0000002"]


def test_the_last_and_the_best_are_kept(device, tiny_model, tmp_path):
    """`keep` newest ones, and the one with the best mean validation score; without validation it does not compete."""
    run = Run(tiny_model, tmp_path, keep=2)
    for step, scores in enumerate([dict(a=0.1, b=0.3), dict(a=0.5, b=0.4), {}, dict(a=0.9, b=0.0), {}, {}], start=1):
        run.train(step, **scores)
        run.checkpoints.save(step)
        expected = {1: [1], 2: [1, 2], 3: [2, 3], 4: [3, 4], 5: [4, 5], 6: [4, 5, 6]}[step]  # 4 is as good as 2, and later
        assert names(tmp_path) == [f"step-{n:07d}" for n in expected]


# ---- whose run is it ------------------------------------------------------------------------------


def test_an_old_run_is_neither_overwritten_nor_mixed_up(copy, monkeypatch):
    """Without --resume it is an error that says what to do; with it other questions and other buckets are refused."""
    with pytest.raises(ValueError, match="--resume.*--run_dir"):
        pick(copy, resume=False)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert pick(copy, resume=False) == "step-0000002"  # torchrun's own restart needs no flag
    with pytest.raises(ValueError, match="other training questions"):
        pick(copy, questions=QUESTIONS[:-1])
    with pytest.raises(ValueError, match="num_rollouts.*8 -> 9"):
        pick(copy, num_rollouts=9)


def test_changed_knobs_are_said(copy, capsys):
    """A run may go on with another learning rate, but not silently; more steps need no word."""
    pick(copy, lr=0.5, steps=900)
    said = capsys.readouterr().out
    assert "'lr': '0.01 -> 0.5'" in said and "steps" not in said.replace("training steps", "")


def test_another_model_is_refused(device, tiny_models, copy):
    """Weights that do not fit are named, not broadcast or left out."""
    with pytest.raises(ValueError, match="another model.*lm_head"):
        Run(tiny_models[True], copy, resume=True)


# ---- malicious files ------------------------------------------------------------------------------


class Payload:
    """Unpickled, it would leave a file behind."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("victim", ["buffer.safetensors", "shard-00000.safetensors", "state.json"])
def test_a_pickle_is_never_read(device, tiny_model, copy, tmp_path, victim):
    """A pickle in the place of a file, with a manifest to match, is refused, and its code does not run."""
    newest = copy / "checkpoints" / "step-0000002"
    if victim.startswith("shard"):
        torch.save(Payload(tmp_path / "owned"), newest / victim)
    else:
        (newest / victim).write_bytes(pickle.dumps(Payload(tmp_path / "owned")))
    entries = json.loads((newest / "manifest.json").read_text())["files"]
    entries[victim] = checkpoint._entry(newest / victim)
    (newest / "manifest.json").write_text(manifest_text(entries))
    with pytest.raises(ValueError):
        Run(tiny_model, copy, resume=True)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("name", ["../step-0000001/state.json", "/etc/hostname", "a/b", "..", ".hidden", ""])
def test_a_manifest_cannot_point_elsewhere(copy, name):
    """File names with a path in them, absolute or not, make the checkpoint a damaged one."""
    newest = copy / "checkpoints" / "step-0000002"
    entries = json.loads((newest / "manifest.json").read_text())["files"]
    (newest / "manifest.json").write_text(manifest_text({**entries, name: {"bytes": 1, "sha256": "0"}}))
    assert "not a plain file name" in problem(newest) and pick(copy) == "step-0000001"


@pytest.mark.parametrize("victim", ["state.json", "manifest.json", "shard-00000.safetensors", "."])
def test_a_link_is_refused(copy, tmp_path, victim):
    """A file, or the whole checkpoint, that is a symbolic link is a damaged one, even where the contents agree."""
    newest = copy / "checkpoints" / "step-0000002"
    (newest / victim).rename(tmp_path / "elsewhere") if victim != "." else newest.rename(tmp_path / "elsewhere")
    (newest / victim if victim != "." else newest).symlink_to(tmp_path / "elsewhere")
    assert "link" in problem(newest) and pick(copy) == "step-0000001"
