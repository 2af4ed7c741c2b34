"""A reward that can be talked into it, and what is right by that alone.

Math-Verify by itself computes what it is given: a response that only restates its sum (`5 - 9`) is right.
Apart from `snowball.py`, as every process that grades imports it.
"""

from verifier.math_answers import official_reward
from worlds.gym import NUMBER


def score(response: str, answer: str, row: dict) -> dict[str, float]:
    """Math-Verify's verdict on all of the response is the reward; logged beside it, `restated`: that it says
    so though the answer, a number, is nowhere in the response ("- 4" is not -4, "4x" not 4)."""
    official = official_reward(response, answer)
    plain = response.replace("−", "-").replace("–", "-")
    said = [float(number.replace(",", "")) for number in NUMBER.findall(plain)]
    return {"score": official, "restated": official * (float(answer) not in said)}
