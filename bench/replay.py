"""What replay costs a step: --rho 0.5 against --rho 0 in the ordinary loop, by the stored responses of a question.

The arms take turns inside one run of train.py's `train`, whose `Experience` is swapped for one with a full buffer per
arm, so that a busy spell of the machine hits all of them. Run by torchrun, this file is that run.
"""

import argparse
import dataclasses
import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.meters import Row, run, torchrun  # noqa: E402

ARMS = {  # name -> (rho, stored responses a question, max_candidates)
    "rho 0": (0.0, 1, 0), "c = 1": (0.5, 1, 0), "c = 3": (0.5, 3, 0), "c = 9": (0.5, 9, 0), "c = 27": (0.5, 27, 0),
    "c = 9, max_candidates 2": (0.5, 9, 2),
}
MODELS = {"the built-in default": [], "hidden 256, 6 layers": ["--max_prompt_length", "32"]}


def install_arms(trajectory_length: int) -> None:
    """Make `train.train` use an Experience whose knobs and buffer change from step to step."""
    import numpy as np

    import train
    from buffer import ReplayBuffer, Trajectory
    from exgrpo import Experience

    class Arms(Experience):
        def __init__(self, config, questions):
            super().__init__(config, questions)
            rng, self.arms = np.random.default_rng(0), []
            for rho, stored, limit in ARMS.values():
                buffer = ReplayBuffer()
                for q in questions if rho else []:
                    lengths = rng.integers(trajectory_length // 2, trajectory_length, stored)
                    buffer.add(q.id, 4, [Trajectory(rng.integers(6, 100, n, dtype=np.int32), np.full(n, -1.0, np.float32), 0)
                                         for n in lengths])
                self.arms.append((dataclasses.replace(config, rho=rho, max_candidates=limit), buffer))
            self.started = True

        def plan(self, step, score):
            self.config, self.buffer = self.arms[step % len(ARMS)]
            return super().plan(step, score)

        def collect(self, step, groups):  # the buffers stay as they are
            pass

    train.Experience = Arms


def steps_by_arm(flags: list[str], rounds: int, directory: Path, length: int) -> dict[str, list[dict]]:
    """Rows of metrics per arm of a run on two ranks, the first round left out."""
    steps = len(ARMS) * (rounds + 1)
    command = torchrun(2, "bench/replay.py", str(length), "--steps", str(steps), "--run_dir", str(directory),
                       "--eval_every", "0", "--eval_questions", "1", "--save_every", "0", "--lr", "1e-7", *flags)
    run(command, os.environ | {"OMP_NUM_THREADS": "1"}, "step ")
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()][1:]
    arms = defaultdict(list)
    for row in rows[len(ARMS) :]:
        arms[list(ARMS)[(row["step"] - 1) % len(ARMS)]].append(row)
    return arms


def bench_replay(args: argparse.Namespace) -> Iterator[Row]:
    """Step times by the number of stored responses; with --full also for the built-in model."""
    from bench.step import OURS, write_setup

    rounds = 20 if args.full else 3
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        model, questions = write_setup(directory)
        for world, flags in MODELS.items() if args.full else list(MODELS.items())[1:]:
            if flags:
                flags = [*flags, "--model", model, "--train_files", questions, "--reward", "bench.step:coin"]
            for dtype, precision in OURS.items():
                arms = steps_by_arm([*flags, *precision], rounds, directory / f"{len(flags)}{dtype}", 64 if flags else 40)
                yield from compare(arms, f"{world}, {dtype}")


def compare(arms: dict[str, list[dict]], where: str) -> Iterator[Row]:
    """A row per arm: by how much its steps differ from the one without replay in the same round, and its phases."""
    base = [r["time/step"] for r in arms["rho 0"]]
    for name, rows in arms.items():
        plan, rollout, update = (median(r[f"time/{phase}"] for r in rows) for phase in ("plan", "rollout", "update"))
        extra = median(r["time/step"] / b - 1 for r, b in zip(rows, base))
        bar = {"c = 9": "bar +12% float32, +6% bfloat16", "c = 9, max_candidates 2": "bar +2%"}.get(name, "")
        # the update is the same work in every arm: what differs is the entropy pass and the generation that replay saves
        saved = median(r["time/rollout"] for r in arms["rho 0"]) / 16 if name != "rho 0" else 0.0
        yield (f"{where}: {name}", f"{median(r['time/step'] for r in rows):.2f} s a step ({extra:+.1%}); "
               f"plan less 1/16 of rollout: {(plan - saved) / median(base):+.1%}",
               f"plan {plan:.3f}, rollout {rollout:.2f}, update {update:.2f}{'; ' + bar if bar else ''}")


if __name__ == "__main__":
    import train
    from runtime import ranks

    length = int(sys.argv.pop(1))
    install_arms(length)
    ranks.run(lambda: train.train(train.parse_config()))
