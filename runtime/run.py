"""What stands around the loop of train.py: run_dir, console, metrics, checkpoints, clock, Ctrl-C.

    run_dir/config.json      the knobs of the run
    run_dir/metrics.jsonl    a row for each step, and for the scores before and after
    run_dir/samples.jsonl    the responses to one question of each step, for people to read; a step
                             that is made again after a kill is there twice
    run_dir/checkpoints/     see checkpoint.py
    run_dir/model/           the trained model, a Hugging Face directory
    run_dir/run.png          the curves, written at the very end

Ctrl-C and SIGTERM, which torchrun sends when a rank has failed, set a flag. At the end of the step
all ranks look at it, save, and leave with an exit status that is not 0; `--resume` goes on from
there.
"""

import json
import os
import shutil
import signal
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm
from transformers import GenerationConfig

from runtime import ranks
from runtime.checkpoint import checkpoints, load, prune, save
from runtime.tables import write_jsonl

INTERRUPTED = 130  # exit status
ECHO = 3.0  # seconds after a Ctrl-C in which another signal is the same one, sent on by torchrun
SHOWN = (  # on the console
    "reward/pass_at_1",
    "rollout/length",
    "loss/entropy",
    "fresh/silent",
    "replay/questions",
    "replay/ratio",
    "buckets/questions",
    "buckets/retired",
    "time/step",
)
PANELS = {  # of run.png: title -> the metrics that are drawn, by how their names begin
    "Pass@1": ("val/pass_at_1/", "reward/pass_at_1"),
    "stored questions by k": "buckets/k=",
    "share of silent groups": ("fresh/silent", "replay/silent"),
    "entropy [nats a token]": "loss/entropy",
    "w* of replayed tokens, and their share of the gradient": ("replay/ratio", "replay/gradient"),
    "retired questions": "buckets/retired",
}


@dataclass
class Run:
    """One run, from its start or its newest checkpoint to its trained model.

    Every rank calls its methods in the same order; rank 0 writes all but the checkpoints' weights/.

    knobs: the run's, as plain values. stop_ids: tokens that end a turn of the model. questions: a
    fingerprint of the training questions. Raises Refusal where the newest checkpoint was made with
    other questions.
    """

    knobs: dict
    policy: Any
    experience: Any
    grader: Any
    stop_ids: list
    questions: str

    def __post_init__(self):
        self.directory = Path(self.knobs["run_dir"])
        self.main = ranks.rank() == 0
        self.rows = []  # of metrics.jsonl
        self.step = 0  # how many are done
        self.seconds = {}  # of each phase of the step under way
        self.asked_at = None  # when somebody asked this rank to stop
        self.stopped = False  # whether any rank was asked; the same on all
        self.bar = tqdm(total=self.knobs["steps"], disable=not self.main or None, unit="step")
        for path in checkpoints(self.directory)[-1:]:
            self.restore(path)
        if self.main:
            self.directory.mkdir(parents=True, exist_ok=True)
            (self.directory / "config.json").write_text(json.dumps(self.knobs, indent=1))
            # Rows after the checkpoint are dropped: their steps are made again.
            write_jsonl(self.directory / "metrics.jsonl", self.rows)
            self.track = tracker(self)
        signal.signal(signal.SIGINT, self.ask)
        signal.signal(signal.SIGTERM, self.ask)

    def restore(self, path: Path) -> None:
        """Go on from a checkpoint, and print the knobs that differ from the saved ones."""
        state = json.loads((path / "state.json").read_text())
        if state["questions"] != self.questions:
            raise ranks.Refusal(
                f"{path} was trained on other questions, or other prompts of them: give it the"
                " same files, tokenizer and template, or start another run with --run_dir NEW"
            )
        load(path, self.policy.shards())
        self.experience.load_state_dict(state["experience"], path / "buffer.safetensors")
        self.step = state["step"]
        self.rows = state["metrics"]
        self.bar.update(self.step)
        changed = [knob for knob in self.knobs.items() if knob not in state["knobs"].items()]
        self.print(f"resumed from {path}; knobs that have changed: {changed}")

    def ask(self, number: int, frame) -> None:
        """Note a signal; one more than ECHO seconds after the first ends this rank at once."""
        now = time.monotonic()
        if not self.asked_at:
            self.asked_at = now
            if self.main:
                os.write(2, b"stopping after this step; Ctrl-C again ends at once\n")
        if now - self.asked_at > ECHO:
            os._exit(INTERRUPTED)

    # ---- a step ----------------------------------------------------------------------------------

    @contextmanager
    def phase(self, name: str):
        """Time a part of a step."""
        start = time.perf_counter()
        yield
        self.seconds[f"time/{name}"] = time.perf_counter() - start

    def is_due(self, knob: str) -> bool:
        """Return whether the knob divides the number of the step under way; 0 never does."""
        every = self.knobs[knob]
        return every > 0 and (self.step + 1) % every == 0

    def end_step(self, metrics: dict, groups: list) -> None:
        """Write a row of metrics, samples and a line, and a checkpoint where one is due."""
        self.stopped = any(ranks.gather(self.asked_at))
        save_is_due = self.stopped or self.is_due("save_every")
        self.step += 1
        self.log(metrics | self.seconds | {"time/step": sum(self.seconds.values())})
        self.seconds = {}
        values = self.rows[-1]
        shown = [f"{name} {values[name]:.3g}" for name in SHOWN if name in values]
        self.print(f"step {self.step}  {'  '.join(shown)}")
        self.bar.update()
        if self.main:
            self.sample(groups)
        if save_is_due:
            self.save()
        if self.stopped:
            self.print(f"interrupted: saved after step {self.step}; --resume goes on from there")

    def log(self, metrics: dict) -> None:
        """Append a row to metrics.jsonl, and hand it to the tracker."""
        row = {"step": self.step, **metrics}
        self.rows.append(row)
        if self.main:
            write_jsonl(self.directory / "metrics.jsonl", [row], "a")
            self.track(row)

    def sample(self, groups: list) -> None:
        """Append the responses of the step's last group to samples.jsonl.

        It is a replayed one where there is one, and o* is its first.
        """
        group = groups[-1]
        samples = []
        for t in group.trajectories:
            record = self.grader.record(group.question, t)
            samples.append({"step": self.step, "replayed": t is group.star, **record})
        write_jsonl(self.directory / "samples.jsonl", samples, "a")

    def print(self, text: str) -> None:
        """Print a line on the console, above the progress bar."""
        if self.main:
            self.bar.write(text)

    # ---- checkpoints and the trained model -------------------------------------------------------

    def save(self) -> None:
        """Write the checkpoint of the steps done, and remove those that are no longer kept."""
        final = self.directory / f"checkpoints/step-{self.step:07d}"
        save(final, self.policy.shards(), self.write_rest)
        if self.main:
            prune(self.directory, self.rows)

    def write_rest(self, aside: Path) -> None:
        """Write all of a checkpoint but weights/ (a collective)."""
        model = aside / "model"
        self.policy.save_pretrained(model)
        if not self.main:
            return
        self.grader.tokenizer.save_pretrained(model)
        # The tokenizer's class by a name that transformers 4 knows, too.
        about = model / "tokenizer_config.json"
        named = about.read_text().replace("TokenizersBackend", "PreTrainedTokenizerFast")
        about.write_text(named)
        # The model ends its turns as in training.
        GenerationConfig(eos_token_id=self.stop_ids).save_pretrained(model)
        self.experience.buffer.save(aside / "buffer.safetensors")
        state = {
            "step": self.step,
            "knobs": self.knobs,
            "questions": self.questions,
            "experience": self.experience.state_dict(),
            "metrics": self.rows,
        }
        (aside / "state.json").write_text(json.dumps(state))

    def finish(self) -> None:
        """Save, print scores of the base and the trained model, and write model and curves."""
        self.save()
        self.bar.close()
        if not self.main:
            return
        self.print(f"\n{'':32} {'base':>8} {'trained':>8}")
        last = self.rows[-1]
        for name, base in self.rows[0].items():
            if name.startswith("val/") and name in last:
                self.print(f"{name:32} {base:8.3f} {last[name]:8.3f}")
        self.print(f"\nmetrics, run.png and the model are in {self.directory}")
        model = self.directory / "model"
        shutil.rmtree(model, ignore_errors=True)
        saved = checkpoints(self.directory)[-1] / "model"
        shutil.copytree(saved, model, copy_function=os.link)  # links take no room
        draw(self.rows, self.directory / "run.png")
        if self.knobs["tracker"] == "wandb":
            import wandb

            wandb.finish()  # or the run would count as crashed, perhaps without its last rows


def refuse_remains(config) -> None:
    """Raise Refusal where run_dir has the metrics of a run, unless this one goes on with it."""
    metrics = Path(config.run_dir, "metrics.jsonl")
    if metrics.exists() and not config.resume:
        raise ranks.Refusal(
            f"{config.run_dir} holds a run: continue it with --resume, start another with --run_dir"
            " NEW, or remove the directory"
        )


def draw(rows: list[dict], file: Path) -> None:
    """Draw a panel for each of PANELS against the steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 6), layout="constrained")
    axes = figure.subplots(2, 3).flat
    names = sorted(set().union(*rows))
    for axis, (title, beginnings) in zip(axes, PANELS.items()):
        below = 0
        for name in names:
            if name.startswith(beginnings):
                points = [(row["step"], row[name]) for row in rows if name in row]
                steps, values = np.array(points).T
                values += below
                axis.plot(steps, values, label=name)
                if beginnings == "buckets/k=":  # stacked areas
                    axis.fill_between(steps, below, values)
                    below = values
        axis.set_title(title)
        axis.legend(handles=axis.lines, fontsize=7)  # none where nothing is drawn
    figure.supxlabel("step")
    figure.savefig(file)


def tracker(run: Run):
    """Return the function that copies a row of metrics to where the knob `tracker` says."""
    name = run.knobs["tracker"]
    if name == "wandb":
        import wandb

        return wandb.init(
            id=run.knobs["run_dir"].replace("/", "-"),  # so that a resumed run goes on
            resume="allow",
            dir=run.directory,
            config=run.knobs,
        ).log
    if name == "tensorboard":
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(run.directory / "tensorboard")

        def track(row: dict) -> None:
            for metric, value in row.items():
                writer.add_scalar(metric, value, row["step"])
            writer.flush()

        return track
    return lambda row: None
