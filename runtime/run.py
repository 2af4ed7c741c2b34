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
from collections.abc import Callable, Iterator
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
TWICE = 3.0  # seconds after a signal in which a second one is its echo: torchrun sends it on


class Run:
    """One run, from its start or its newest checkpoint to its table. All methods are collectives.

    knobs: the run's, as plain values. Raises Refusal where run_dir holds another run.
    """

    def __init__(self, knobs: dict):
        self.knobs = knobs
        self.directory = Path(knobs["run_dir"])
        self.main = ranks.rank() == 0
        self.rows = []  # of metrics.jsonl
        self.step = 0  # how many are done
        self.seconds = {}  # of each phase of the step under way
        self.asked_at = None  # when somebody asked this rank to stop
        self.stopped = False  # whether any rank was asked, as all of them know
        self.newest = checkpoints(self.directory)[-1:]
        if not knobs["resume"] and (self.directory / "metrics.jsonl").exists():
            raise ranks.Refusal(
                f"{self.directory} holds a run: continue it with --resume, start another with"
                " --run_dir NEW, or remove the directory"
            )
        self.bar = tqdm(total=knobs["steps"], disable=not self.main, unit="step")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self.ask)

    def ask(self, number: int, frame) -> None:
        """Note a signal; a second one, seconds later, ends this rank at once."""
        if self.asked_at is None:
            self.asked_at = time.monotonic()
        elif time.monotonic() - self.asked_at > TWICE:
            os._exit(INTERRUPTED)

    def start(self, policy, experience, tokenizer, stop_ids: list[int], questions: str) -> None:
        """Take what a checkpoint is made of, and go on from the newest one, where there is one.

        questions: a fingerprint of the training questions. Raises Refusal where the checkpoint was
        made with others.
        """
        self.policy = policy
        self.experience = experience
        self.tokenizer = tokenizer
        self.stop_ids = stop_ids
        self.questions = questions
        for path in self.newest:
            self.restore(path)
        self.bar.update(self.step)
        self.tracker = None
        if self.main:
            self.directory.mkdir(parents=True, exist_ok=True)
            (self.directory / "config.json").write_text(json.dumps(self.knobs, indent=1))
            write_lines(self.directory / "metrics.jsonl", self.rows)
            samples = self.directory / "samples.jsonl"
            # What came after the checkpoint is made again.
            there = read_jsonl(samples) if samples.exists() else []
            write_lines(samples, [x for x in there if x["step"] <= self.step])
            if self.knobs["tracker"] != "none":
                self.tracker = TRACKERS[self.knobs["tracker"]](self)

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
        changed = ""
        for name, value in self.knobs.items():
            old = state["knobs"].get(name)
            if value != old:
                changed += f"  {name}: {old} -> {value}"
        self.print(f"resumed from {path}{changed}")

    # ---- a step ----------------------------------------------------------------------------------

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
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

    def end_step(self, metrics: dict[str, float], groups: list, text: Callable) -> None:
        """Write a row of metrics, samples and a line, and a checkpoint where one is due.

        text: from token ids to text.
        """
        self.stopped = any(ranks.gather(self.asked_at is not None))
        save_is_due = self.stopped or self.is_due("save_every")
        self.step += 1
        self.log(metrics | self.seconds | {"time/step": sum(self.seconds.values())})
        self.seconds = {}
        shown = f"step {self.step:4d}"
        for name in SHOWN:
            if name in self.rows[-1]:
                shown += f"  {name} {self.rows[-1][name]:.3g}"
        self.print(shown)
        self.bar.update()
        if self.main:
            self.sample(groups, text)
        if save_is_due:
            self.save()
        if self.stopped:
            self.print(f"interrupted: saved after step {self.step}; --resume goes on from there")

    def log(self, metrics: dict[str, float]) -> None:
        """Append a row to metrics.jsonl, and hand it to the tracker."""
        row = {"step": self.step, **metrics}
        self.rows.append(row)
        if self.main:
            write_lines(self.directory / "metrics.jsonl", [row], "a")
        if self.tracker:
            self.tracker.log(row)

    def sample(self, groups: list, text: Callable) -> None:
        """Append the step's first o*, first right and first wrong response to samples.jsonl."""
        first = {}
        for group in groups:
            for t in group.trajectories:
                kind = "o*" if t is group.star else t.is_success
                first.setdefault(kind, (group.question, t))
        for kind, (question, t) in first.items():
            record = {
                "step": self.step,
                "text": question.text,
                "gold": question.answer,
                "response": text(t.token_ids),
                "rewards": {"score": t.reward, **t.named_rewards},
                "replayed": kind == "o*",
                "finished": t.finished,
            }
            write_lines(self.directory / "samples.jsonl", [record], "a")
            if self.tracker:
                self.tracker.sample(record)

    def print(self, text: str) -> None:
        """Print a line on the console, above the progress bar."""
        if self.main:
            self.bar.write(printable(text))

    # ---- checkpoints and the trained model -------------------------------------------------------

    def save(self) -> None:
        """Write the checkpoint of the steps done, and remove those that are no longer kept."""
        self.final = self.directory / "checkpoints" / f"step-{self.step:07d}"
        save(self.final, self.policy.shards(), self.write_rest)
        if self.main:
            prune(self.directory, self.rows)

    def write_rest(self, aside: Path) -> None:
        """Write all of a checkpoint but the tensors."""
        self.policy.save_pretrained(aside / "model")
        if not self.main:
            return
        self.tokenizer.save_pretrained(aside / "model")
        # The model samples as in validation, and ends its turns as in training.
        sampling = {"do_sample": False}
        if self.knobs["eval_temperature"]:
            sampling = {"do_sample": True, "temperature": self.knobs["eval_temperature"]}
        settings = GenerationConfig(**sampling, eos_token_id=self.stop_ids)
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
        model = self.directory / "model"
        shutil.rmtree(model, ignore_errors=True)
        shutil.copytree(self.final / "model", model, copy_function=os.link)  # it takes no room
        tested = [row for row in self.rows if is_validated(row)] or [{}]
        table = f"{'':32} {'base':>8} {'trained':>8}\n"
        for name, trained in tested[-1].items():
            if name.startswith("val/"):
                base = tested[0].get(name, float("nan"))
                table += f"{printable(name):32} {base:8.3f} {trained:8.3f}\n"
        print(f"\n{table}\nmetrics, run.png and the model are in {self.directory}")
        (model / "README.md").write_text(
            CARD.format(table=table, knobs=json.dumps(self.knobs, indent=1))
        )
        draw(self.rows, self.directory / "run.png")


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


def write_lines(file: Path, records: list[dict], mode: str = "w") -> None:
    """Write, or with mode "a" append, a line of JSON for each record."""
    with open(file, mode) as stream:
        stream.writelines(json.dumps(record) + "\n" for record in records)


def is_validated(row: dict) -> bool:
    """Return whether a row of metrics has validation scores."""
    return any(name.startswith("val/") for name in row)


def draw(rows: list[dict], file: Path) -> None:
    """Draw a panel for each of PANELS against the steps."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["text.parse_math"] = False  # a data_source may hold $
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(13, 6), constrained_layout=True)
    known = sorted(set().union(*rows))
    for axis, (title, beginnings) in zip(axes.flat, PANELS.items()):
        names = [name for name in known if name.startswith(beginnings)]
        below = 0
        for name in names:
            there = [row for row in rows if name in row]
            steps = [row["step"] for row in there]
            values = np.array([row[name] for row in there])
            if name.startswith("buckets/k="):  # stacked areas
                axis.fill_between(steps, below, below + values, label=name)
                below = below + values
            else:
                axis.plot(steps, values, label=name)
        axis.set(title=title, xlabel="step")
        axis.legend(fontsize=7)
    figure.savefig(file, dpi=90)
    plt.close(figure)


class TensorBoard:
    """A copy in run_dir/tensorboard; a resumed run hides what came after its checkpoint."""

    def __init__(self, run: Run):
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(run.directory / "tensorboard", purge_step=run.step + 1)

    def log(self, row: dict) -> None:
        """Write scalars, and the buckets as a histogram."""
        ks = []
        for name, value in row.items():
            self.writer.add_scalar(name, value, row["step"])
            if name.startswith("buckets/k="):
                ks += [int(name[10:])] * value
        if ks:
            self.writer.add_histogram("buckets", np.array(ks), row["step"])
        self.writer.flush()

    def sample(self, record: dict) -> None:
        """Write question and response as text, indented: Markdown shows that letter by letter."""
        text = f"    {record['text']}\n{record['response']}".replace("\n", "\n    ")
        self.writer.add_text("samples", text, record["step"])


class WandB:
    """A copy in Weights & Biases, where a resumed run goes on under its id, made from run_dir."""

    def __init__(self, run: Run):
        import wandb

        id = run.knobs["run_dir"].replace("/", "-")
        self.run = wandb.init(id=id, resume="allow", dir=run.directory, config=run.knobs)

    def log(self, row: dict) -> None:
        """Log a row of metrics."""
        self.run.log(row, step=row["step"])

    def sample(self, record: dict) -> None:
        """Samples stay in samples.jsonl."""


TRACKERS = {"tensorboard": TensorBoard, "wandb": WandB}  # by the knob
