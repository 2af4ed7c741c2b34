"""train.py that notes what became of every group; with `questions-only`, without old answers.

GROUPS_FILE=runs/a.jsonl python -m studies.experience exgrpo [flags of train.py]

The file gets a line a group: [step, question, k, its bucket when it was drawn, or null if fresh].
"""

import json
import os
import runpy
import sys

import exgrpo


class Noted(exgrpo.Experience):
    """Experience that writes down its groups."""

    step = None
    drawn_from = {}  # returned question -> the bucket it came from

    def plan(self, step, uncertainty):
        plan = super().plan(step, uncertainty)
        if plan:
            self.step = step
            self.drawn_from = dict(zip(plan.stars, plan.drawn_from, strict=True))
        return plan

    def store(self, groups):
        if os.environ.get("RANK", "0") == "0":
            lines = []
            for group in groups:
                q = group.question.id
                lines.append([self.step, q, group.num_success, self.drawn_from.get(q)])
            with open(os.environ["GROUPS_FILE"], "a") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)
        return super().store(groups)


class WithoutStar(Noted):
    """What ExGRPO would replay is asked again, as if fresh: K new answers, which k counts."""

    def plan(self, step, uncertainty):
        plan = super().plan(step, uncertainty)
        if plan:
            plan.fresh += plan.stars
            plan.stars = {}
        return plan

    def choose(self, drawn, uncertainty, rng):
        return dict.fromkeys(drawn), {}


if __name__ == "__main__":
    kind = sys.argv.pop(1)
    exgrpo.Experience = {"exgrpo": Noted, "questions-only": WithoutStar}[kind]
    runpy.run_module("train", run_name="__main__", alter_sys=True)
