"""Surround the loop of train.py with run_dir, console, metrics, checkpoints, clock and Ctrl-C.

with open_run(knobs) as run:
    run.start(policy, experience)     # from the newest checkpoint, where there is one
    for step in run.steps():
        with run.phase("plan"):       # timed, watched, left or finished on Ctrl-C
            ...
        run.end_step(metrics)         # a row of metrics, and a checkpoint where one is due
    run.finish(tokenizer)             # the model's card, and the table
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import torch

from runtime import ranks
from runtime.card import describe_model
from runtime.checkpoint import Checkpoints
from runtime.faults import Interrupted, last_word, out_of_memory_names_knobs, watchdog
from runtime.rundir import claim
from runtime.tracking import Tracker, validation

OF_THE_POLICY = ("plan", "store", "update")  # phases that may run out of the policy's memory


@contextmanager
def open_run(knobs: dict) -> Iterator["Run"]:
    """Give a run that has run_dir to itself and ends quietly if interrupted (a collective)."""
    with claim(knobs["run_dir"]):
        tracker = Tracker(knobs)
        with suppress(Interrupted):  # the run is saved by then
            yield Run(knobs, tracker)
        tracker.close()  # not after another exception: nothing may wait for a network then


class Run:
    """One run, from its start or its newest checkpoint to its table.

    All methods are collectives.
    """

    def __init__(self, knobs: dict, tracker: Tracker):
        self.knobs = knobs
        self.tracker = tracker
        self.print = tracker.print
        self.checkpoints = Checkpoints(knobs, tracker.print)
        self.interrupted = False  # whether any rank has been asked to stop, as all of them know
        self.step = 0  # the step under way, which is also how many are done
        self.seconds = {}  # of each phase, since the last row of metrics

    def start(self, policy, experience) -> None:
        """Take what a checkpoint is made of, and go on from the newest one, where there is one.

        The policy's tensors are those of `policy.shards()`, which are read into. The experience
        gives its plain values by `state_dict` and its buffer by `buffer.save`, and takes both by
        `load_state_dict`.
        """
        self.policy = policy
        self.experience = experience
        saved = self.checkpoints.saved
        if not saved:
            self.tracker.start()
            return
        metrics = self.checkpoints.restore(policy.shards())
        buffer = self.checkpoints.newest / "buffer.safetensors"
        experience.load_state_dict(saved["experience"], buffer)
        self.step = saved["step"]
        self.tracker.start(metrics, self.step)

    @property
    def is_new(self) -> bool:
        """Whether nothing has been measured yet, not even the base model."""
        return not self.tracker.rows

    @property
    def is_validated(self) -> bool:
        """Whether the last row has validation scores."""
        return bool(validation(self.tracker.rows[-1]))

    @property
    def validation_is_due(self) -> bool:
        """Whether the step under way ends with a validation."""
        done = self.step + 1
        every = self.knobs["eval_every"]
        return done == self.knobs["steps"] or bool(every and done % every == 0)

    def steps(self) -> Iterator[int]:
        """Yield the steps that are left; Interrupted leaves the loop when somebody asked for it.

        They count from 0. Rows of metrics, samples and checkpoints bear the number of steps done.
        """
        for step in range(self.step, self.knobs["steps"]):
            self.step = step
            yield step

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Run a part of a step under the watchdog's eye and the clock.

        Where "plan" or "rollout" is interrupted, nothing has changed yet, and the run is saved.
        Where "validate" is, the scores are left out, and the step stands. Other phases are
        finished.
        """
        watchdog.enter(name)
        start = self._now()
        hint = nullcontext()
        if name in OF_THE_POLICY:
            tokens = self.knobs["tokens_per_micro_batch"]
            hint = out_of_memory_names_knobs(tokens, self.knobs["gradient_checkpointing"])
        try:
            with hint:
                yield
        except Interrupted:
            if name == "validate":
                self.print(f"interrupted: step {self.step + 1} is not validated")
            else:
                if name in ("plan", "rollout"):
                    self.interrupted = True
                    self.save(self.step)
                raise
        watchdog.enter(f"after {name}")
        self.seconds[name] = self.seconds.get(name, 0.0) + self._now() - start

    def sample(self, groups: list, text: Callable) -> None:
        """Keep a few responses of the step, for people to read: see `Tracker.sample`."""
        self.tracker.sample(self.step + 1, groups, text)

    def end_early(self, why: str) -> None:
        """Say why no further step is made, and save."""
        self.print(f"{why}. With --retire off, or --reinstate_every 10, a run goes on")
        self.save(self.step)

    def end_step(self, metrics: dict[str, float]) -> None:
        """Write a row of metrics and, where it is due, a checkpoint.

        Raises Interrupted where any rank was asked to stop.
        """
        done = self.step + 1
        times = {f"time/{name}": seconds for name, seconds in self.seconds.items()}
        self.seconds = {}
        self.tracker.step(done, metrics | times | {"time/step": sum(times.values())})
        self.interrupted = watchdog.interrupted = any(ranks.gather(watchdog.interrupted))
        every = self.knobs["save_every"]
        last = done == self.knobs["steps"]
        if last or self.interrupted or every and done % every == 0:
            with self.phase("save"):
                self.save(done)
        if self.interrupted:
            raise Interrupted

    def save(self, done: int) -> None:
        """Write the checkpoint of `done` steps."""
        state = {"experience": self.experience.state_dict()}
        save_buffer = self.experience.buffer.save
        self.checkpoints.save(done, self.policy.shards(), state, save_buffer, self.tracker.text())
        if self.interrupted:
            said = f"interrupted: saved after step {done}, the same command with --resume goes on"
            self.print(said)
            if self.tracker.main:
                last_word(said)

    def log(self, metrics: dict[str, float]) -> None:
        """Write a further row of metrics: of the base model, or of the last step."""
        rows = self.tracker.rows
        self.tracker.log(rows[-1]["step"] if rows else 0, metrics)

    @property
    def model_directory(self) -> Path:
        """Where the trained model goes, which becomes an ordinary Hugging Face directory."""
        return Path(self.knobs["run_dir"]) / "model"

    def finish(self, tokenizer) -> None:
        """Lay tokenizer and card beside the saved model, and print the table."""
        if self.tracker.main:
            tokenizer.save_pretrained(self.model_directory)
            rows = self.tracker.rows
            state = self.checkpoints.head(rows[-1]["step"])
            describe_model(self.model_directory, state, tokenizer, rows)
        self.tracker.finish()

    @staticmethod
    def _now() -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter()
