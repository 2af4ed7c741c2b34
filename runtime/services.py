"""Copy metrics.jsonl to TensorBoard or to Weights & Biases, as the knob `tracker` says."""

import os
from pathlib import Path

from runtime.console import printable


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
