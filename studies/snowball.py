"""The snowball of App. F.4: a reward that can be talked into it, and what is right by that alone.

Math-Verify by itself computes what it is given: a response that only restates its sum (`5 - 9`) is right.
"""

import numpy as np

import train
from config import parse_config
from exgrpo import Experience, Group, Plan, step_metrics
from runtime import ranks
from studies import processor
from studies.unit import main
from verifier.math_answers import official_reward
from worlds.gym import NUMBER


def score(response: str, answer: str, row: dict) -> dict[str, float]:
    """Math-Verify's verdict on all of the response is the reward; logged beside it, `restated`: that it says
    so though the answer, a number, is nowhere in the response ("- 4" is not -4, "4x" not 4)."""
    official = official_reward(response, answer)
    plain = response.replace("−", "-").replace("–", "-")
    said = [float(number.replace(",", "")) for number in NUMBER.findall(plain)]
    return {"score": official, "restated": official * (float(answer) not in said)}


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
    processor.as_asked()
    train.step_metrics = metrics
    ranks.run(lambda: train.train(parse_config()))


if __name__ == "__main__":
    main(("-c", "from studies import snowball; snowball.run()"))
