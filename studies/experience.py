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

    drawn_from = {}  # returned question -> the bucket it came from

    def plan(self, step, drawn, scores):
        """Plan as ever, and note the buckets: by the time of `store` nobody knows them."""
        self.drawn_from = {q: self.buffer.bucket_of(q) for q in drawn}
        return super().plan(step, drawn, scores)

    def store(self, plan, groups):
        """Write a line a group, on rank 0, then store as ever."""
        if os.environ.get("RANK", "0") == "0":
            lines = []
            for group in groups:
                q = group.question.id
                lines.append([plan.step, q, group.num_success, self.drawn_from.get(q)])
            with open(os.environ["GROUPS_FILE"], "a") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)
        return super().store(plan, groups)


class WithoutStar(Noted):
    """What ExGRPO would replay is asked again, as if fresh: K new answers, which k counts."""

    def candidates(self, drawn):
        """Compare nothing."""
        return []

    def choose(self, step, drawn, scores):
        """Choose no o*."""
        return []

    def plan(self, step, drawn, scores):
        """Plan as ever, and ask the drawn questions as fresh ones."""
        plan = super().plan(step, drawn, scores)
        plan.fresh += drawn
        return plan


if __name__ == "__main__":
    kind = sys.argv.pop(1)
    exgrpo.Experience = {"exgrpo": Noted, "questions-only": WithoutStar}[kind]
    runpy.run_module("train", run_name="__main__", alter_sys=True)
