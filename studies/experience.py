"""train.py, with every question that is asked written down; and the arms without an o*:

    torchrun --nproc_per_node=2 -m studies.experience star|new [flags of train.py]

With `star` the run is that of train.py, to the last bit.
"""

import json
import runpy
import sys
from pathlib import Path

import exgrpo
from runtime import ranks


class Recorded(exgrpo.Experience):
    """ExGRPO's, and asked.jsonl: the fresh questions and those that came back, a step a line."""

    def plan(self, step, uncertainty):
        plan = super().plan(step, uncertainty)
        if plan and ranks.rank() == 0:
            with open(Path(self.config.run_dir) / "asked.jsonl", "a") as file:
                file.write(json.dumps([plan.fresh, list(plan.stars)]) + "\n")
        return plan


class WithoutStar(Recorded):
    """What ExGRPO would replay comes back, but with K new answers: k counts them alone."""

    def plan(self, step, uncertainty):
        plan = super().plan(step, uncertainty)
        if plan:
            plan.fresh += plan.stars
            plan.stars = {}
        return plan

    def choose(self, drawn, uncertainty, rng):
        return dict.fromkeys(drawn), 0.0, 0.0


if __name__ == "__main__":
    exgrpo.Experience = Recorded if sys.argv.pop(1) == "star" else WithoutStar
    runpy.run_module("train", run_name="__main__", alter_sys=True)
