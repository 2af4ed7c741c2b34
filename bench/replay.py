"""What replay costs a step: --rho 0.5 against --rho 0 in the ordinary loop, by the stored responses of a
question.

The arms take turns inside one run of train.py's `train`, whose `Experience` is swapped for one with a full
buffer per arm, so that a busy spell of the machine hits all of them. Run by torchrun, this file is that run.
"""

import argparse
import dataclasses
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.meters import Row, run, torchrun  # noqa: E402

ARMS = {"rho 0": (0.0, 1), "c = 1": (0.5, 1), "c = 3": (0.5, 3), "c = 9": (0.5, 9),
        "c = 27": (0.5, 27)}  # ρ, stored
LONGEST = 64  # tokens of a stored response


def install_arms() -> None:
    """Make `train.train` use an Experience whose knobs and buffer change from step to step."""
    import numpy as np

    import train
    from buffer import ReplayBuffer, Trajectory
    from exgrpo import Experience

    def response(rng: np.random.Generator) -> Trajectory:
        length = int(rng.integers(LONGEST // 2, LONGEST))
        return Trajectory(rng.integers(6, 100, length, dtype=np.int32), np.full(length, -1.0, np.float32))

    class Arms(Experience):
        def __init__(self, config, questions):
            super().__init__(config, questions)
            rng, self.arms = np.random.default_rng(0), []
            for rho, stored in ARMS.values():
                buffer = ReplayBuffer()
                for q in questions if rho else []:
                    buffer.add(q.id, 4, [response(rng) for _ in range(stored)])
                self.arms.append((dataclasses.replace(config, rho=rho), buffer))
            self.started = True

        def plan(self, step, score):
            self.config, self.buffer = self.arms[step % len(ARMS)]
            return super().plan(step, score)

        def collect(self, step, groups):  # the buffers stay as they are
            return {}

    train.Experience = Arms


def bench_replay(args: argparse.Namespace) -> Iterator[Row]:
    """Step times by the number of stored responses, on two ranks; the first round is left out."""
    from bench.step import COIN, OURS, write_setup

    steps = len(ARMS) * (21 if args.full else 4)
    with tempfile.TemporaryDirectory() as name:
        model, questions = write_setup(Path(name))
        for dtype, precision in OURS.items():
            directory = f"{name}/{dtype}"
            flags = ["--model", model, "--train_files", questions, "--reward", COIN, "--run_dir", directory,
                     "--max_prompt_length", "32", "--steps", str(steps), "--lr", "1e-7",
                     "--eval_every", "0", "--save_every", "0"]
            command = torchrun(2, "bench/replay.py", *flags, *precision)
            run(command, os.environ | {"OMP_NUM_THREADS": "1"}, "step ")
            lines = Path(directory, "metrics.jsonl").read_text().splitlines()
            rows = [json.loads(line) for line in lines[1 + len(ARMS) :]]
            arms = {arm: rows[i :: len(ARMS)] for i, arm in enumerate(ARMS)}
            yield from compare(arms, dtype)


def compare(arms: dict[str, list[dict]], where: str) -> Iterator[Row]:
    """A row per arm: by how much its steps differ from the one without replay in the same round, its
    phases."""
    base = [r["time/step"] for r in arms["rho 0"]]
    for name, rows in arms.items():
        plan, rollout, update = (median(r[f"time/{phase}"] for r in rows) for phase in ("plan", "rollout",
                                                                                        "update"))
        extra = median(r["time/step"] / b - 1 for r, b in zip(rows, base))
        bar = "; bar +12% float32, +6% bfloat16" if name == "c = 9" else ""
        # the update is the same work in every arm: what differs is the entropy pass and the generation saved
        saved = median(r["time/rollout"] for r in arms["rho 0"]) / 16 if name != "rho 0" else 0.0
        yield (f"{where}: {name}", f"{median(r['time/step'] for r in rows):.2f} s a step ({extra:+.1%}); "
               f"plan less 1/16 of rollout: {(plan - saved) / median(base):+.1%}",
               f"plan {plan:.3f}, rollout {rollout:.2f}, update {update:.2f}{bar}")


if __name__ == "__main__":
    import train
    from runtime import ranks

    install_arms()
    ranks.run(lambda: train.train(train.parse_config()))
