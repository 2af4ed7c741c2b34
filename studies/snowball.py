"""The snowball of App. F.4: how many right responses only restate their sum (`restated.py`, the reward)."""

import numpy as np

from exgrpo import Experience, Group, Plan, step_metrics
from studies import processor
from studies.unit import main


def metrics(plan: Plan, groups: list[Group], experience: Experience) -> dict[str, float]:
    """As ever, and how many responses to fresh questions were right, and restated; the replayed questions are
    chosen by what was right before."""
    new = [t for group in groups if not group.replayed for t in group.trajectories]
    right = int(np.sum([t.reward for t in new]))
    restated = int(np.sum([(t.also or {}).get("restated", 0) for t in new]))  # none if it ran out of time
    return step_metrics(plan, groups, experience) | {
        "snowball/right": right, "snowball/restated": restated,
        **({"snowball/share": restated / right} if right else {})}


def run() -> None:
    """`train.py` with these metrics."""
    processor.run(step_metrics=metrics)


if __name__ == "__main__":
    main(("-c", "from studies import snowball; snowball.run()"))
