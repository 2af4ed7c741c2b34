"""train.py without old answers: a question that comes back gets K new ones, and k counts these.

torchrun --nproc_per_node=2 -m studies.experience [flags of train.py]
"""

import runpy

import exgrpo


class WithoutStar(exgrpo.Experience):
    """What ExGRPO would replay is asked again, as if it were fresh."""

    def plan(self, step, uncertainty):
        plan = super().plan(step, uncertainty)
        if plan:
            plan.fresh += plan.stars
            plan.stars = {}
        return plan

    def choose(self, drawn, uncertainty, rng):
        return dict.fromkeys(drawn), {}


if __name__ == "__main__":
    exgrpo.Experience = WithoutStar
    runpy.run_module("train", run_name="__main__", alter_sys=True)
