"""Write down a run: metrics.jsonl, one console line a step, the final table and curve.png.

With the knob `tracker` the rows of metrics.jsonl also go to TensorBoard or to Weights & Biases. A
few responses of each step go to samples.jsonl, for people to read: they see there how a reward is
talked into a yes. A line of it is {"step", "text" (the question), "gold", "response", "rewards":
{name: value}, "replayed", "finished"}, where `step` counts as in metrics.jsonl and `replayed` marks
an o*; eval.py's responses.jsonl has the same names.
"""

import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path

from tqdm import tqdm

from runtime import ranks
from runtime.console import optional, printable
from runtime.tables import read_jsonl

# How many responses of a step are written: new right ones, new wrong ones, replayed ones.
WANTED = {"right": 2, "wrong": 1, "o*": 1}


class Tracker:
    """The metrics of one run, which rank 0 writes to `run_dir/metrics.jsonl` and to `tracker`.

    base and latest are the first and last validation scores, by name.
    """

    def __init__(self, knobs: dict):
        self.knobs = knobs
        self.run_dir = Path(knobs["run_dir"])
        self.main = ranks.rank() == 0
        self.writer = None
        self.rows: list[dict] = []
        self.base: dict[str, float] = {}
        self.latest: dict[str, float] = {}
        self.bar = tqdm(
            total=knobs["steps"],
            disable=None if self.main else True,
            unit="step",
            dynamic_ncols=True,
            mininterval=1,
        )

    def start(self, text: str = "", step: int = 0) -> None:
        """Begin metrics.jsonl with the rows of `text`.

        A run that goes on has them from the checkpoint of `step`; a new one has none.
        """
        for row in map(json.loads, text.splitlines()):
            self._keep({name: math.nan if value is None else value for name, value in row.items()})
        self.bar.update(self.rows[-1]["step"] if self.rows else 0)
        if self.main:
            (self.run_dir / "metrics.jsonl").write_text(text)
            cut_samples(self.run_dir / "samples.jsonl", step)
            if self.knobs["tracker"] != "none":
                writer = WRITERS[self.knobs["tracker"]]
                self.writer = writer(self.run_dir, self.rows, self.knobs)

    def print(self, text: str) -> None:
        """Print a line on the console, above the progress bar.

        What the line quotes cannot steer the terminal.
        """
        if self.main:
            self.bar.write(printable(text))
            sys.stdout.flush()

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Append a row to metrics.jsonl, and hand it to the tracker."""
        row = {"step": step, **metrics}
        self._keep(row)
        if self.main:
            with open(self.run_dir / "metrics.jsonl", "a") as file:
                file.write(_line(row))
        if self.writer:
            with optional(f"step {step} in {self.knobs['tracker']}", self.print):
                self.writer.log(row)

    def sample(self, step: int, groups: list, text: Callable) -> None:
        """Append a few responses of the step to samples.jsonl.

        text: from token ids to text.
        """
        if not self.main:
            return
        chosen = [sample_record(step, g, t, text(t.token_ids)) for g, t in choose_samples(groups)]
        with open(self.run_dir / "samples.jsonl", "a") as file:
            file.write("".join(json.dumps(sample) + "\n" for sample in chosen))

    def keep_example(self, response: str) -> None:
        """Print the untrained model's response to a question, and keep it for `compare_example`.

        It is kept for after a resume too.
        """
        self.print(f"---- a response ----\n{response}\n----")
        if self.main:
            (self.run_dir / "example.txt").write_text(printable(response), encoding="utf-8")

    def compare_example(self, question: str, response: str) -> None:
        """Print the question with the kept response and the trained model's."""
        kept = self.run_dir / "example.txt"
        if self.main and kept.exists():
            base = kept.read_text(encoding="utf-8")
            self.print(f"\n{question}\nbase     {base}\ntrained  {response}")

    def text(self) -> str:
        """Return all rows so far, as they stand in metrics.jsonl."""
        return "".join(map(_line, self.rows))

    def close(self) -> None:
        """Let the tracker finish its work."""
        if self.writer:
            with optional(f"the end of the run in {self.knobs['tracker']}"):
                self.writer.close()

    def _keep(self, row: dict) -> None:
        self.rows.append(row)
        if scores := validation(row):
            self.base = self.base or scores
            self.latest = scores

    def step(self, step: int, metrics: dict[str, float]) -> None:
        """Log a training step with its console line.

        `batch` is the Pass@1 of the training batch, at the rollouts' temperature and with what came
        back. Where rewards are not 0 or 1, their mean stands beside it. `silent` is the share of
        silent groups, of fresh and of replayed questions. A line says when replay starts.
        """
        if metrics["replay/questions"] and not any(r.get("replay/questions") for r in self.rows):
            self.print(f"replay starts: questions come back in step {step}")
        self.log(step, metrics)
        self.bar.update()
        m = metrics
        replayed_silent = _shown(m.get("replay/silent"))
        partial = abs(m["reward/mean"] - m["reward/pass_at_1"]) > 1e-6
        reward = f"  reward {m['reward/mean']:.3f}" if partial else ""
        self.print(
            f"step {step:4d}  batch {m['reward/pass_at_1']:.3f}{reward}  "
            f"len {m['rollout/length']:.0f}  entropy {m['loss/entropy']:.3f}  "
            f"silent {m['fresh/silent']:.2f} {replayed_silent}  "
            f"replayed {m['replay/questions']:.0f}  w* {_shown(m.get('replay/ratio'))}  "
            f"buffer {m['buckets/questions']:.0f}  "
            f"retired {m['buckets/retired']:.0f}  {m['time/step']:.1f} s"
        )
        if m["reward/timeouts"] > 0.5:
            self.print(
                f"warning: {m['reward/timeouts']:.0%} of the new responses score 0, as grading them"
                " ran out of time (--verify_timeout) or ended its process"
            )

    def finish(self) -> None:
        """Print the table base -> trained, and draw the curves."""
        self.bar.close()
        if not self.main:
            return
        print(f"\n{'':32} {'base':>8} {'trained':>8}")
        for name, value in self.latest.items():
            base = self.base.get(name, math.nan)  # val_files may have changed in between
            print(f"{printable(name):32} {base:8.3f} {value:8.3f}")
        scores = {"base": self.base, "trained": self.latest}
        (self.run_dir / "result.json").write_text(json.dumps(scores, indent=1))
        with optional("curve.png"):
            self._draw()
        print(printable(f"\nmetrics, curve.png and the model are in {self.run_dir}"))
        if self.knobs["tracker"] == "tensorboard":
            print(printable(f"tensorboard --logdir {self.run_dir}/tensorboard draws the metrics"))

    def _draw(self) -> None:
        """Draw curve.png: training and validation Pass@1, the buffer, and entropy."""
        import matplotlib

        matplotlib.use("Agg")
        matplotlib.rcParams["text.parse_math"] = False  # a data_source may hold $
        import matplotlib.pyplot as plt

        known = set().union(*self.rows)
        names = sorted(n for n in known if n.startswith(("val/pass_at_1", "val/valid")))
        panels = [
            ("Pass@1 (sampled batch)", ["reward/pass_at_1"]),
            ("validation", names),
            ("questions in the buffer, retired", ["buckets/questions", "buckets/retired"]),
            ("entropy [nats/token]", ["loss/entropy"]),
        ]
        figure, axes = plt.subplots(
            1, len(panels), figsize=(4 * len(panels), 3.2), constrained_layout=True
        )
        for axis, (title, series) in zip(axes, panels):
            for name in series:
                points = [(row["step"], row[name]) for row in self.rows if name in row]
                steps, values = zip(*points) if points else ([], [])
                axis.plot(steps, values, label=printable(name.partition("/")[2]))
            axis.set(title=title, xlabel="step")
            axis.grid(alpha=0.3)
            if len(series) > 1:
                axis.legend(fontsize=7)
        figure.savefig(self.run_dir / "curve.png", dpi=90)
        plt.close(figure)


def _shown(value: float | None) -> str:
    """Return a value for the console, where – stands for one that a step does not have."""
    return "–" if value is None else f"{value:.2f}"


def _line(row: dict) -> str:
    """Return a row as a line of JSON, with null for NaN and infinity, which JSON does not have."""
    return (
        json.dumps({name: value if math.isfinite(value) else None for name, value in row.items()})
        + "\n"
    )


def validation(row: dict) -> dict[str, float]:
    """Return the validation scores of a row, by name; none where there was no validation."""
    return {
        name.removeprefix("val/"): value for name, value in row.items() if name.startswith("val/")
    }


# ---- samples.jsonl -------------------------------------------------------------------------------


def choose_samples(groups: list) -> list[tuple]:
    """Return the (group, trajectory) pairs that WANTED asks for.

    They are the first in the batch's order, and a group gives one of a kind. There is no
    randomness, so a resumed run chooses the same.
    """
    left = dict(WANTED)
    chosen = []
    for group in groups:
        kinds = {}
        if group.star:
            kinds["o*"] = group.star
        for t in group.new:
            kinds.setdefault("right" if t.is_success else "wrong", t)
        for kind, t in kinds.items():
            if left[kind]:
                left[kind] -= 1
                chosen.append((group, t))
    return chosen


def sample_record(step: int, group, t, text: str) -> dict:
    """Return a line of samples.jsonl."""
    return {
        "step": step,
        "text": group.question.text,
        "gold": group.question.answer,
        "response": text,
        "rewards": {"score": t.reward, **t.named_rewards},
        "replayed": t is group.star,
        "finished": t.finished,
    }


def read_samples(path: Path) -> list[dict]:
    """Return the records of a file, without what a kill or a full disk has left of the last."""
    return read_jsonl(path, growing=True) if path.is_file() else []


def cut_samples(path: Path, last: int) -> None:
    """Remove the samples of steps after `last`.

    What came after the checkpoint that a run continues from is written again.
    """
    kept = [sample for sample in read_samples(path) if sample["step"] <= last]
    path.write_text("".join(json.dumps(sample) + "\n" for sample in kept))


# ---- TensorBoard, Weights & Biases ---------------------------------------------------------------


class TensorBoard:
    """A copy of the metrics in run_dir/tensorboard, for `tensorboard --logdir`.

    It has `rows` and what is logged later. purge_step=0 hides what earlier processes wrote there:
    after a resume every point stands there once, as in metrics.jsonl.
    """

    def __init__(self, run_dir: Path, rows: list[dict], knobs: dict):
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(run_dir / "tensorboard"), purge_step=0)
        self.writer.add_text(
            "knobs", "\n".join(f"    {name}: {value!r}" for name, value in knobs.items()), 0
        )
        for row in rows:
            self.log(row)

    def log(self, row: dict) -> None:
        for name, value in row.items():
            if name != "step":
                self.writer.add_scalar(printable(name), value, row["step"])
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class WandB:
    """A copy of the metrics in a W&B run, whose id is kept in run_dir/wandb_id.

    It has `rows` and what is logged later. A run that goes on (`rows` is not empty) goes on under
    its id. W&B cannot go back: what it holds of a step stays. Offline (WANDB_MODE=offline) each
    process leaves a directory of its own in run_dir/wandb, with the whole run so far: sync the
    last.
    """

    def __init__(self, run_dir: Path, rows: list[dict], knobs: dict):
        import wandb

        place = run_dir.absolute()
        note = run_dir / "wandb_id"
        # The console is ours, so W&B has to leave it alone.
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or place.parent.name or None,
            name=place.name,
            dir=str(place),
            config=knobs,
            id=note.read_text() if rows and note.exists() else None,
            resume=None if os.environ.get("WANDB_MODE") == "offline" else "allow",
            settings=wandb.Settings(console="off"),
        )
        note.write_text(self.run.id)
        self.first = self.run.step  # W&B already has what comes before this step
        for row in rows:
            self.log(row)

    def log(self, row: dict) -> None:
        if row["step"] >= self.first:
            named = {printable(name): value for name, value in row.items() if name != "step"}
            self.run.log(named, step=row["step"])

    def close(self) -> None:
        self.run.finish()


WRITERS = {"tensorboard": TensorBoard, "wandb": WandB}  # by the knob `tracker`
