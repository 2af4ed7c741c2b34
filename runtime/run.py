"""What stands around the loop of train.py: run_dir, console, metrics, checkpoints, clock, Ctrl-C.

    run_dir/config.json      the knobs of the run
    run_dir/metrics.jsonl    a row a step
    run_dir/samples.jsonl    some responses of each step, for people to read
    run_dir/run.png          the curves, once the run has ended
    run_dir/checkpoints/     see checkpoint.py
    run_dir/model/           the trained model, a Hugging Face directory

Ctrl-C, SIGTERM and SIGHUP set a flag. At the end of the step all ranks look at it, save, and leave
with an exit status that is not 0; `--resume` goes on from there.
"""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm
from transformers import GenerationConfig

from runtime import ranks
from runtime.checkpoint import checkpoints, load, prune, save
from runtime.tables import printable, read_jsonl

INTERRUPTED = 130  # exit status
ECHO = 3.0  # seconds in which a second signal is the first one's echo: torchrun sends it on
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
CARD = """---
library_name: transformers
tags: [exgrpo, grpo, rlvr]
---
Trained by an implementation of ExGRPO ([arXiv 2510.02245](https://arxiv.org/abs/2510.02245)). The
licenses of the starting model and of the data apply to this model too.
```
{table}
{knobs}
```
"""


class Run:
    """One run, from its start or its newest checkpoint to its table.

    Every rank calls its methods in the same order; rank 0 writes.

    knobs: the run's, as plain values. stop_ids: which end a turn of the model. questions: a
    fingerprint of the training questions. Raises Refusal where the newest checkpoint was made with
    other questions.
    """

    def __init__(self, knobs: dict, policy, experience, grader, stop_ids: list, questions: str):
        self.knobs = knobs
        self.policy = policy
        self.experience = experience
        self.grader = grader
        self.stop_ids = stop_ids
        self.questions = questions
        self.directory = Path(knobs["run_dir"])
        self.main = ranks.rank() == 0
        self.rows = []  # of metrics.jsonl
        self.step = 0  # how many are done
        self.seconds = {}  # of each phase of the step under way
        self.asked_at = None  # when somebody asked this rank to stop
        self.stopped = False  # whether any rank was asked, as all of them know
        self.track = lambda row: None
        self.bar = tqdm(total=knobs["steps"], disable=None if self.main else True, unit="step")
        for path in checkpoints(self.directory)[-1:]:
            self.restore(path)
        if self.main:
            self.open_files()
        signal.signal(signal.SIGINT, self.ask)
        signal.signal(signal.SIGTERM, self.ask)
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as nohup has it
            signal.signal(signal.SIGHUP, self.ask)

    def restore(self, path: Path) -> None:
        """Go on from a checkpoint, and say which knobs are others than the run was saved with."""
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
        changed = ""
        for name, value in self.knobs.items():
            old = state["knobs"].get(name)
            if value != old:
                changed += f"  {name}: {old} -> {value}"
        self.print(f"resumed from {path}{changed}")

    def open_files(self) -> None:
        """Begin the files of run_dir; what came after the checkpoint is made again."""
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "config.json").write_text(json.dumps(self.knobs, indent=1))
        write_lines(self.directory / "metrics.jsonl", self.rows)
        samples = self.directory / "samples.jsonl"
        samples.touch()
        there = [sample for sample in read_jsonl(samples) if sample["step"] <= self.step]
        write_lines(samples, there)
        tracker = TRACKERS.get(self.knobs["tracker"])
        if tracker:
            self.track = tracker(self)

    def ask(self, number: int, frame) -> None:
        """Note a signal; a second one, seconds later, ends this rank at once."""
        now = time.monotonic()
        self.asked_at = self.asked_at or now
        if now - self.asked_at > ECHO:
            os._exit(INTERRUPTED)

    # ---- a step ----------------------------------------------------------------------------------

    @contextmanager
    def phase(self, name: str):
        """Time a part of a step."""
        start = time.perf_counter()
        yield
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds[f"time/{name}"] = time.perf_counter() - start

    def is_due(self, knob: str) -> bool:
        """Return whether the step under way is one of every so many; 0 is never."""
        every = self.knobs[knob]
        return every > 0 and (self.step + 1) % every == 0

    def end_step(self, metrics: dict, groups: list) -> None:
        """Write a row of metrics, samples and a line, and a checkpoint where one is due."""
        self.stopped = any(ranks.gather(self.asked_at is not None))
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
            write_lines(self.directory / "metrics.jsonl", [row], "a")
        self.track(row)

    def sample(self, groups: list) -> None:
        """Append the step's first o*, first right and first wrong response to samples.jsonl."""
        first = {}
        for group in groups:
            for t in group.trajectories:
                kind = "o*" if t is group.star else t.is_success
                first.setdefault(kind, (group.question, t))
        for kind, response in first.items():
            sample = {"step": self.step, "replayed": kind == "o*", **self.grader.record(*response)}
            write_lines(self.directory / "samples.jsonl", [sample], "a")
            self.track({"step": self.step, "sample": json.dumps(sample, indent=1)})

    def print(self, text: str) -> None:
        """Print a line on the console, above the progress bar."""
        if self.main:
            self.bar.write(printable(text))

    # ---- checkpoints and the trained model -------------------------------------------------------

    def save(self) -> None:
        """Write the checkpoint of the steps done, and remove those that are no longer kept."""
        final = self.directory / "checkpoints" / f"step-{self.step:07d}"
        save(final, self.policy.shards(), self.write_rest)
        if self.main:
            prune(self.directory, self.rows)

    def write_rest(self, aside: Path) -> None:
        """Write all of a checkpoint but the tensors."""
        self.policy.save_pretrained(aside / "model")
        if not self.main:
            return
        self.grader.tokenizer.save_pretrained(aside / "model")
        # The name that transformers 4 knows, too.
        about = aside / "model/tokenizer_config.json"
        named = about.read_text().replace("TokenizersBackend", "PreTrainedTokenizerFast")
        about.write_text(named)
        # The model samples as in validation, and ends its turns as in training.
        temperature = self.knobs["eval_temperature"]
        settings = GenerationConfig(
            eos_token_id=self.stop_ids, do_sample=temperature > 0, temperature=temperature or None
        )
        settings.save_pretrained(aside / "model")
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
        """Save, lay the model with its card into run_dir, print the table and draw the curves."""
        self.save()
        self.bar.close()
        if not self.main:
            return
        table = f"{'':32} {'base':>8} {'trained':>8}\n"
        for name in self.rows[0]:
            if name.startswith("val/"):
                values = [row[name] for row in self.rows if name in row]
                table += f"{name:32} {values[0]:8.3f} {values[-1]:8.3f}\n"
        self.print(f"\n{table}\nmetrics, run.png and the model are in {self.directory}")
        draw(self.rows, self.directory / "run.png")
        model = self.directory / "model"
        shutil.rmtree(model, ignore_errors=True)
        saved = checkpoints(self.directory)[-1] / "model"
        shutil.copytree(saved, model, copy_function=os.link)  # links take no room
        # The card comes last: a run that has it has ended.
        card = CARD.format(table=table, knobs=json.dumps(self.knobs, indent=1))
        (model / "README.md").write_text(card)


def refuse_remains(config) -> None:
    """Raise Refusal where run_dir has a run, unless this one goes on with it."""
    run_dir = Path(config.run_dir)
    newest = run_dir / f"checkpoints/step-{config.steps:07d}"
    if newest.exists() and (run_dir / "model/README.md").exists():
        raise ranks.Refusal(f"{run_dir} has made its {config.steps} steps: more --steps go on")
    if (run_dir / "metrics.jsonl").exists() and not config.resume:
        raise ranks.Refusal(
            f"{run_dir} holds a run: continue it with --resume, start another with --run_dir NEW,"
            " or remove the directory"
        )


def write_lines(file: Path, records: list[dict], mode: str = "w") -> None:
    """Write, or with mode "a" append, a line of JSON for each record."""
    with open(file, mode) as stream:
        stream.writelines(json.dumps(record) + "\n" for record in records)


def draw(rows: list[dict], file: Path) -> None:
    """Draw a panel for each of PANELS against the steps."""
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    rcParams["text.parse_math"] = False  # a data_source may hold $
    figure = Figure(figsize=(13, 6), layout="constrained")
    axes = figure.subplots(2, 3).flat
    names = sorted(set().union(*rows))
    for axis, (title, beginnings) in zip(axes, PANELS.items()):
        below = 0
        for name in filter(lambda name: name.startswith(beginnings), names):
            there = [row for row in rows if name in row]
            steps = [row["step"] for row in there]
            values = below + np.array([row[name] for row in there])
            axis.plot(steps, values, label=name)
            if beginnings == "buckets/k=":  # stacked areas
                axis.fill_between(steps, below, values)
                below = values
        axis.set(title=title, xlabel="step")
        axis.legend(fontsize=7)
    figure.savefig(file, dpi=90)


# ---- trackers: from a run to a function that takes its rows --------------------------------------


def tensorboard(run: Run) -> Callable:
    """A copy in run_dir/tensorboard; a resumed run hides what came after its checkpoint."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(run.directory / "tensorboard", purge_step=run.step + 1)

    def track(row: dict) -> None:
        """Write scalars, a sample as text without Markdown, and the buckets at once."""
        step = row["step"]
        ks = []
        for name, value in row.items():
            if name == "sample":
                writer.add_text(name, f"```\n{value}\n```", step)
            else:
                writer.add_scalar(name, value, step)
            if name.startswith("buckets/k="):
                ks += [int(name[10:])] * value
        if ks:
            writer.add_histogram("buckets", np.array(ks), step)
        writer.flush()

    return track


def wandb(run: Run) -> Callable:
    """A copy in Weights & Biases; the id is made from run_dir, so that a resumed run goes on."""
    import wandb

    id = run.knobs["run_dir"].replace("/", "-")
    return wandb.init(id=id, resume="allow", dir=run.directory, config=run.knobs).log


TRACKERS = {"tensorboard": tensorboard, "wandb": wandb}
