"""Write and read checkpoints, so that a crash at any byte loses nothing.

A checkpoint holds everything that the next step depends on:

    run_dir/checkpoints/step-0000040/
        weights/shard-00001-*.safetensors   this rank's part of weights and AdamW's state
        buffer.safetensors                  the replay buffer and the retired set
        state.json, metrics.jsonl           step, knobs, what else train.py keeps; the metrics
        SHA256SUMS                          of every other file; `sha256sum --check` reads it

It is written under another name, and becomes valid when `save` renames it. There is no random state
to keep: every draw is seeded by the run's seed, the step and what it is for. A checkpoint is whole
in itself, the buffer included: sharing files between checkpoints would save seconds, and let one
bad sector spoil them all. Tensors are safetensors, the rest is JSON; nothing here can run code when
it is read. With several nodes run_dir must lie on a file system that they share.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import yaml
from safetensors import SafetensorError
from torch import Tensor

from runtime import ranks
from runtime.faults import Failure, watchdog
from runtime.rundir import directories, job, refuse_remains, restarts
from runtime.shards import load_shards, save_shards

PLAIN_FILES = ("state.json", "metrics.jsonl", "buffer.safetensors")
# What a resumed run must share beside the knobs of SAME; a checkpoint keeps it, or a hash of it.
ORIGINS = {
    "questions": "on other training questions, or other prompts: give it the same train_files,"
    " tokenizer, prompt_template, response_prefix and max_prompt_length",
    "validation": "with other validation questions, so that scores of two tests would stand in one"
    " table: give it the same val_files",
    "readable": "whose verifier could read other answers: give it the same grader and version of"
    " math-verify",
    "turn_ends": "whose responses end with other tokens: give it the tokenizer, chat template and"
    " generation_config.json that it began with, or start another run with --run_dir NEW",
    "reward_identity": "with another reward, or another source of its function: rewards of two"
    " scales would stand in one curve. Put it back, or start another run with --run_dir NEW",
}
# Knobs that a resumed run must share.
SAME = ("seed", "num_rollouts", "difficulty", "eval_questions")
# Knobs that a resumed run may change without a note.
FREE = ("run_dir", "resume", "steps", "save_every", "keep", "eval_every", "hang_timeout", "tracker")


class Checkpoints:
    """The checkpoints of one run, and the one that it continues from.

    All methods are collectives. A run is continued with the knob `resume`, and when torchrun has
    restarted the ranks. Raises ValueError where run_dir holds another run, where all checkpoints
    are damaged, and where the newest one belongs to a run that differs in one of SAME.

    knobs: the run's, as plain values. saved: the plain state of the checkpoint to continue from, or
    None.
    """

    def __init__(self, knobs: dict, say: Callable[[str], None] = print):
        self.knobs = knobs
        self.say = say
        self.root = Path(knobs["run_dir"]) / "checkpoints"
        self.origins = {}
        self.damaged: set[Path] = set()
        refuse_remains(knobs["run_dir"], knobs["resume"])
        self._remove_partial()  # before anything is written: it may have filled the disk
        if ranks.rank() == 0:
            self.root.parent.mkdir(parents=True, exist_ok=True)
            (self.root.parent / "job").write_text(job())  # which its restarts look for
        found = ranks.gather(directories(self.root))[0]
        if not found and (knobs["resume"] or restarts()):
            say(
                f"nothing to resume in {knobs['run_dir']}: no checkpoint was saved, the run starts"
                " anew"
            )
        self.newest = self._newest_whole(found)
        self.saved = self._read_state() if self.newest else None

    def _newest_whole(self, found: list[Path]) -> Path | None:
        for path in reversed(found):
            problems = [
                p for p in ranks.gather(problem(path, ranks.rank(), ranks.world_size())) if p
            ]
            if not problems:
                return path
            self.damaged.add(path)
            self.say(
                f"{path} is damaged: {problems[0]}. The one before it is used; the next save "
                "removes this one: move it away to look at it."
            )
        if found:
            every = ", ".join(path.name for path in found)
            raise ValueError(
                f"no checkpoint in {self.root} is whole: {every} are all damaged. Restore one "
                "from a backup, or start another run with --run_dir NEW."
            )
        return None

    def _read_state(self) -> dict:
        state = json.loads((self.newest / "state.json").read_text())
        old = state["config"]
        changed = {
            name: f"{old.get(name)!r} -> {self.knobs.get(name)!r}"
            for name in old | self.knobs
            if old.get(name) != self.knobs.get(name)
        }
        if fixed := {name: changed[name] for name in SAME if name in changed}:
            raise ValueError(f"{self.newest} cannot be continued with another {fixed}")
        if noted := {name: change for name, change in changed.items() if name not in FREE}:
            self.say(f"note: resumed with other knobs than the run was saved with: {noted}")
        return state

    def check_origins(self, **origins) -> None:
        """Raise ValueError where the checkpoint to continue from differs in one of ORIGINS.

        Each of `origins` is a hash or plain.
        """
        self.origins = origins
        for name, value in origins.items():
            if self.saved and self.saved.get(name, value) != value:
                raise ValueError(f"{self.newest} belongs to a run {ORIGINS[name]}")

    def head(self, step: int) -> dict:
        """Return what state.json begins with: the step, the knobs and the origins."""
        return {"step": step, "config": self.knobs, **self.origins}

    def restore(self, tensors: dict[str, Tensor]) -> str:
        """Fill the tensors with what was saved, and return its metrics.jsonl.

        The plain state is in `saved`, the buffer's file in `newest`. Raises ValueError where the
        weights are another model's.
        """
        load_shards(self.newest / "weights", tensors)
        self.say(f"resumed from {self.newest}")
        return (self.newest / "metrics.jsonl").read_text()

    def save(
        self,
        step: int,
        tensors: dict[str, Tensor],
        state: dict,
        save_buffer: Callable[[Path], None],
        metrics: str,
    ) -> None:
        """Write the checkpoint of `step` steps, and remove those that are no longer kept.

        state: plain values, which `saved` gives back. save_buffer: writes the buffer to a path.
        metrics: metrics.jsonl so far. Raises Failure where there is no room, and leaves nothing
        behind.
        """
        final = self.root / _name(step)
        if final == self.newest:
            return
        watchdog.enter("save")  # a rollout that was left must not use up the time of this phase
        try:
            self._write(final, step, tensors, state, save_buffer, metrics)
        except (OSError, SafetensorError) as error:
            self._remove_partial()
            raise Failure(
                f"{final} could not be written: {error}. Make room, and --resume from the"
                " checkpoint before"
            ) from None
        if ranks.rank() == 0:
            self._prune(metrics)
        ranks.barrier()

    def _remove_partial(self) -> None:
        """Remove what was left by saves that were cut off, or found no room."""
        for partial in self.root.glob("step-*.tmp") if ranks.rank() == 0 else ():
            shutil.rmtree(partial, ignore_errors=True)

    def _write(self, final: Path, step: int, tensors, state, save_buffer, metrics) -> None:
        """Write a checkpoint under another name, and move it into place."""
        aside = final.with_suffix(".tmp")
        main = ranks.rank() == 0
        self._remove_partial()
        if main:
            (aside / "weights").mkdir(parents=True)
        ranks.barrier()
        names = [f"weights/{name}" for name in save_shards(tensors, aside / "weights")]
        if main:
            save_buffer(aside / "buffer.safetensors")
            (aside / "metrics.jsonl").write_text(metrics)
            (aside / "state.json").write_text(json.dumps(self.head(step) | state))
            # What `--resume` reads behind the files of --config.
            own = {name: x for name, x in self.knobs.items() if name not in ("run_dir", "resume")}
            knobs = {name: "auto" if x is None else x for name, x in own.items()}
            half = self.root.parent / "knobs.tmp"  # a kill may leave half of it
            half.write_text(yaml.safe_dump(knobs, sort_keys=False))
            half.replace(half.with_suffix(".yaml"))
            names += PLAIN_FILES
        _sync(*(aside / name for name in names))
        sums = ranks.gather([f"{_sha256(aside / name)}  {name}\n" for name in names])
        if main:
            (aside / "SHA256SUMS").write_text(
                "".join(sorted(line for lines in sums for line in lines))
            )
            _sync(aside / "SHA256SUMS", aside / "weights", aside)
            shutil.rmtree(final, ignore_errors=True)  # one that was found damaged
            os.rename(aside, final)  # from here on the checkpoint is valid
            _sync(self.root)
        self.damaged.discard(final)
        self.newest = final

    def _prune(self, metrics: str) -> None:
        """Remove all checkpoints but the last `keep` and the best by validation.

        That is the one with the highest mean Pass@1 in metrics.jsonl, of equally good ones the
        later. Damaged ones are removed too.
        """
        scored = {}
        for row in map(json.loads, metrics.splitlines()):
            if values := [x for name, x in row.items() if name.startswith("val/pass_at_1/")]:
                scored[_name(row["step"])] = sum(values) / len(values)
        every = directories(self.root)
        whole = [path for path in every if path not in self.damaged]
        best = max(reversed(whole), key=lambda path: scored.get(path.name, -1.0))
        kept = [*whole[-self.knobs["keep"] :], best]
        for path in every:
            if path not in kept:
                shutil.rmtree(path, ignore_errors=True)


def problem(directory: Path, share: int = 0, shares: int = 1) -> str | None:
    """Return what is wrong with a checkpoint, or None.

    Only every `shares`-th file is read, from number `share` on, so that ranks divide the work.
    """
    try:
        sums = {}
        for line in (directory / "SHA256SUMS").read_text().split("\n")[:-1]:
            value, _, name = line.partition("  ")
            sums[name] = value
        there = {f"weights/{path.name}" for path in (directory / "weights").glob("*.safetensors")}
        if other := sums.keys() ^ {*PLAIN_FILES, *there}:
            raise ValueError(
                f"{', '.join(sorted(other))}: in SHA256SUMS or in the directory, not in both"
            )
        for name in sorted(sums)[share::shares]:
            if _sha256(directory / name) != sums[name]:
                raise ValueError(f"{name} is not what was written: its SHA-256 differs")
    except (OSError, ValueError) as error:
        return str(error)
    return None


def _name(step: int) -> str:
    return f"step-{step:07d}"


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(*paths: Path) -> None:
    """Wait until files and directories are on the disk."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
