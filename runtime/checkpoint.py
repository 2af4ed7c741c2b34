"""Checkpoints: everything that the next step depends on, written so that a crash at any byte loses nothing.

    run_dir/checkpoints/latest              the newest one's name
    run_dir/checkpoints/step-0000040/
        shard-00000.safetensors ...         each shard's rows of the weights and of AdamW's state (sharded.py)
        buffer.safetensors                  the replay buffer, buckets in order, and the retired set
        state.json, metrics.jsonl           step, stream position, delayed start, configuration; the metrics so far
        manifest.json                       size and SHA-256 of every other file

There is no random state to keep: every draw is seeded by the run's seed, the step and what it is for. A checkpoint is
whole in itself, the buffer included: sharing files between checkpoints would save seconds, and let one bad
sector spoil them all. Tensors are safetensors, the rest is JSON; nothing here can run code when read. With several
nodes run_dir must lie on a file system that they share.
"""

import dataclasses
import hashlib
import json
import os
import re
import shutil
import stat
from pathlib import Path

from buffer import ReplayBuffer
from config import Config
from data import Question
from exgrpo import Experience
from policy import Policy
from runtime import ranks
from runtime.faults import watchdog
from runtime.shards import load_shards, save_shard
from runtime.tracking import Tracker

FORMAT = "exgrpo checkpoint 1"
STEP_DIRECTORY = re.compile(r"step-(\d{7,})")
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")  # inside the checkpoint, nowhere else
SAME = ("seed", "num_rollouts", "difficulty", "max_trajectories")  # a resumed run must share these
FREE = ("run_dir", "resume", "steps", "save_every", "keep", "eval_every", "hang_timeout", "tracker")  # not worth a note


class Checkpoints:
    """The checkpoints of one run. All methods are collectives.

    Looks for what to continue from: with the knob `resume`, and when torchrun has restarted the ranks. Raises
    ValueError where run_dir holds another run's checkpoints, where all of them are damaged, and where the
    checkpoint belongs to other questions or to a run that differs in one of SAME.
    """

    def __init__(self, config: Config, questions: list[Question], tracker: Tracker):
        self.config, self.tracker, self.root = config, tracker, Path(config.run_dir) / "checkpoints"
        self.questions = fingerprint(questions)
        self.damaged: set[Path] = set()
        found = ranks.gather(self.directories())[0]
        restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) > 0
        if found and not (config.resume or restarted):
            raise ValueError(f"{config.run_dir} holds a run that was saved at {found[-1].name}. Continue it with --resume, "
                             "start another with --run_dir NEW, or remove the directory.")
        self.newest = self._newest_whole(found)
        self.state = self._check_state() if self.newest else None

    def directories(self) -> list[Path]:
        """The checkpoints that are there, oldest first, whole or not."""
        found = [path for path in self.root.glob("step-*") if STEP_DIRECTORY.fullmatch(path.name)]
        return sorted(found, key=lambda path: int(path.name[5:]))

    def _newest_whole(self, found: list[Path]) -> Path | None:
        for path in reversed(found):
            problems = [p for p in ranks.gather(problem(path, ranks.rank(), ranks.world_size())) if p]
            if not problems:
                return path
            self.damaged.add(path)
            self.tracker.print(f"{path} is damaged: {problems[0]}. The one before it is used.")
        if found:
            raise ValueError(f"no checkpoint in {self.root} is whole: {', '.join(path.name for path in found)} are all damaged. "
                             "Restore one from a backup, or start another run with --run_dir NEW.")
        return None

    def _check_state(self) -> dict:
        state = json.loads((self.newest / "state.json").read_text())
        if self.newest.name != _name(state["step"]):
            raise ValueError(f"{self.newest} was saved at step {state['step']}: somebody renamed it")
        if state["questions"] != self.questions:
            raise ValueError(f"{self.newest} belongs to a run on other training questions, or other prompts: give it the same "
                             "train_files, tokenizer, prompt_template, response_prefix and max_prompt_length")
        config, old = dataclasses.asdict(self.config), state["config"]
        changed = {name: f"{old.get(name)!r} -> {value!r}" for name, value in config.items() if old.get(name) != value}
        if fixed := {name: changed[name] for name in SAME if name in changed}:
            raise ValueError(f"{self.newest} cannot be continued with another {fixed}")
        if noted := {name: change for name, change in changed.items() if name not in FREE}:
            self.tracker.print(f"note: resumed with other knobs than the run was saved with: {noted}")
        return state

    def restore(self, policy: Policy, experience: Experience) -> int:
        """Put back what was saved, if anything, and start metrics.jsonl; returns the first step to run.

        ValueError where the weights are another model's. The engine still has to be given the weights.
        """
        self.policy, self.experience = policy, experience
        if not self.newest:
            self.tracker.start()
            return 0
        load_shards(policy, [self.newest / name for name in read_manifest(self.newest) if name.startswith("shard-")])
        policy.skipped_in_row = self.state["skipped_in_row"]
        experience.buffer = ReplayBuffer.load(self.newest / "buffer.safetensors")
        experience.load_state_dict(self.state["experience"])
        experience.check_ids()
        self.tracker.start((self.newest / "metrics.jsonl").read_text())
        self.tracker.print(f"resumed from {self.newest}")
        return self.state["step"]

    def after_step(self, step: int) -> bool:
        """Save when it is time to, when somebody has interrupted any rank, and at the end; True: leave now."""
        interrupted = any(ranks.gather(watchdog.interrupted))
        if interrupted or step == self.config.steps or self.config.save_every and step % self.config.save_every == 0:
            self.save(step)
        if interrupted:
            self.tracker.print(f"interrupted: saved after step {step}, --resume continues from there")
        return interrupted

    def save(self, step: int) -> None:
        """Write the checkpoint of `step` steps beside the others, move it into place, remove what is not kept."""
        final = self.root / _name(step)
        if final == self.newest:
            return
        aside, main = final.with_suffix(".tmp"), ranks.rank() == 0
        if main:
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
        ranks.barrier()
        names = save_shard(self.policy, aside)
        if main:
            self.experience.buffer.save(aside / "buffer.safetensors")
            (aside / "metrics.jsonl").write_text(self.tracker.text())
            (aside / "state.json").write_text(json.dumps(self._state(step)))
            names += ["buffer.safetensors", "metrics.jsonl", "state.json"]
        entries = {}
        for part in ranks.gather({name: _entry(aside / name) for name in names}):
            entries.update(part)
        if main:
            (aside / "manifest.json").write_text(manifest_text(entries))
            _sync(aside / "manifest.json", aside)
            shutil.rmtree(final, ignore_errors=True)  # one that was found damaged
            os.rename(aside, final)
            (self.root / "latest.tmp").write_text(final.name + "\n")
            _sync(self.root / "latest.tmp")
            os.replace(self.root / "latest.tmp", self.root / "latest")
            _sync(self.root)
        self.damaged.discard(final)
        self.newest = final
        if main:
            self._prune()
        ranks.barrier()

    def _state(self, step: int) -> dict:
        scores = [value for name, value in self.tracker.rows[-1].items() if name.startswith("val/pass_at_1/")]
        return {"step": step, "config": dataclasses.asdict(self.config), "questions": self.questions,
                "experience": self.experience.state_dict(), "skipped_in_row": self.policy.skipped_in_row,
                "score": sum(scores) / len(scores) if scores else None}  # of the validation after this very step, if any

    def _prune(self) -> None:
        """Remove all but the last `keep` and the best by validation (the later of equals)."""
        whole = [path for path in self.directories() if path not in self.damaged]
        scores = {path: score for path in whole if (score := _score(path)) is not None}
        best = max(reversed(scores), key=scores.get, default=None)
        kept = {*whole[-self.config.keep :], best}
        for path in self.root.glob("step-*"):
            if path not in kept:
                shutil.rmtree(path, ignore_errors=True)


def _name(step: int) -> str:
    return f"step-{step:07d}"


def fingerprint(questions: list[Question]) -> str:
    """A hash of the prompts and answers, in order."""
    digest = hashlib.sha256()
    for q in questions:
        digest.update(b"%d " % len(q.prompt_ids) + q.prompt_ids.tobytes() + q.answer.encode() + b"\0")
    return digest.hexdigest()


# ---- whole or damaged ---------------------------------------------------------------------------


def manifest_text(entries: dict[str, dict]) -> str:
    """The one way to write these entries, so that a changed byte shows."""
    return json.dumps({"format": FORMAT, "files": entries}, sort_keys=True, indent=1)


def read_manifest(directory: Path) -> dict[str, dict]:
    """{file name: {"bytes": ..., "sha256": ...}}; ValueError where it is not ours or names a file elsewhere."""
    try:
        text = _regular(directory / "manifest.json").read_text()
        entries = json.loads(text)["files"]
        shapes = all(set(entry) == {"bytes", "sha256"} for entry in entries.values())
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"manifest.json cannot be read ({error!r:.200})") from error
    if not shapes or text != manifest_text(entries):
        raise ValueError("manifest.json is not as it was written")
    for name in entries:
        if not FILE_NAME.fullmatch(name):
            raise ValueError(f"manifest.json names {name!r}, which is not a plain file name")
    if missing := {"state.json", "metrics.jsonl", "buffer.safetensors"} - set(entries):
        raise ValueError(f"manifest.json lacks {', '.join(sorted(missing))}")
    return entries


def problem(directory: Path, share: int = 0, shares: int = 1) -> str | None:
    """What is wrong with a checkpoint, or None. Reads every `shares`-th file, so that ranks can divide the work."""
    try:
        if directory.is_symlink():
            raise ValueError("it is a symbolic link")
        for name, entry in list(read_manifest(directory).items())[share::shares]:
            if (size := _regular(directory / name).stat().st_size) != entry["bytes"]:
                raise ValueError(f"{name} has {size} bytes, its manifest says {entry['bytes']}")
            if _sha256(directory / name) != entry["sha256"]:
                raise ValueError(f"{name} is not what was written: its SHA-256 differs")
    except (OSError, ValueError) as error:
        return str(error)
    return None


def _regular(path: Path) -> Path:
    """The path, if it is a file and no link to one; else ValueError."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise ValueError(f"{path.name} is a link or not a file")
    return path


def _entry(path: Path) -> dict:
    """A written file's line in the manifest; it is on the disk when this returns."""
    _sync(path)
    return {"bytes": path.stat().st_size, "sha256": _sha256(path)}


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(*paths: Path) -> None:
    """Wait until files and directories are on the disk."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def _score(directory: Path) -> float | None:
    try:
        return json.loads((directory / "state.json").read_text())["score"]
    except (OSError, ValueError, KeyError):
        return None  # damaged
