"""The built-in world: chains of arithmetic modulo 10, and an exact judge of the reasoning.

A question such as `3a+4b*3c-5d+9e-1` is worked out from left to right, modulo 10, step by step:
`a3+4=7b7*3=1c1-5=6d6+9=5e5-1=4#764` (the letters number the steps). The answer behind the `#` is
three results: the fifth last, the third last and the last. So a blind guess is right once in a
thousand.

The base model (base_model.py) is a small Llama that was taught by flawed demonstrations. Some only
state an answer, some leave out steps, and more than half of the 240 facts (7+8=...) in them are
often wrong. The model is right about once in ten; reinforcement learning can teach it the facts.

Different left values always give different results (there is no `*0` and no `*5`), so that right
steps never heal a wrong one. The paper (Sec. 3.2) asks a 32B model whether a reasoning was valid;
here a judge knows.
"""

import json
import re
from collections.abc import Iterator
from itertools import islice
from operator import add, mul, sub

import numpy as np

OPERATIONS = {"+": add, "-": sub, "*": mul}  # their results are taken modulo 10
RIGHT_VALUES = {  # one-to-one in the left value
    "+": "0123456789",
    "-": "0123456789",
    "*": "1379",
}
LABELS = "abcdefghij"  # the n-th operation of a question carries the n-th letter
SHORT = (5, 8)  # fewest and most operations of a training or test question
LONG = (9, 10)  # of an out-of-distribution question
TRAIN_SIZE = 1920  # 120 steps of 32 are two epochs
TEST_SIZE = 800
OOD_SIZE = 400
ASKED = (5, 3, 1)  # the results that make the answer, counted from the last
MIX = {  # what `kind_of` says of training questions -> their share
    "easy": 0.3,
    "in reach": 0.1,
    "hard": 0.6,
}
STEP = r"([a-j])(\d[-+*]\d)=(\d)"  # one written step: label, fact and result


# The teacher of the base: which of its facts are badly taught, and how badly.
HARD_SHARES = {"+": 0.5, "-": 0.6, "*": 0.7}  # share of facts that are badly taught
HARD_SLIPS = (0.3, 0.9)  # chance of a slip in the best and the worst taught of these
EASY_SLIPS = 0.02  # chance of a slip in any other fact
USUAL_SLIP = 0.8  # share of slips that give the fact's usual wrong result


def stream(seed: int, purpose: str) -> np.random.Generator:
    """A world's random numbers for one purpose, which no other purpose or seed shares."""
    return np.random.default_rng([seed, *purpose.encode()])


# ---- questions and their judge ------------------------------------------------------------------


def result_of(fact: str) -> str:
    """What a fact gives: "7*3" -> "1"."""
    left, operation, right = fact
    return str(OPERATIONS[operation](int(left), int(right)) % 10)


def parse(question: str) -> list[tuple]:
    """The label and the operation of each step: "3a+4b*3" -> [("a", "+4"), ("b", "*3")]."""
    return re.findall("(.)(..)", question[1:])


def solve(question: str) -> list[str]:
    """The steps of `question`, all written and right: "3a+4b*3" -> ["a3+4=7", "b7*3=1"]."""
    value = question[0]
    steps = []
    for label, operation in parse(question):
        fact = value + operation
        value = result_of(fact)
        steps.append(f"{label}{fact}={value}")
    return steps


def answer_of(question: str) -> str:
    """The right answer: the results of the steps that are asked for."""
    return asked_of([step[-1] for step in solve(question)])


def asked_of(results: list[str]) -> str:
    """Those of a chain's results that make the answer, as far as a short chain has them."""
    return "".join(results[-place] for place in ASKED if place <= len(results))


def is_right(response: str, answer: str) -> bool:
    """Whether what follows the last `#` of `response` is exactly `answer`."""
    _, mark, stated = response.rpartition("#")
    return mark + stated.strip() == "#" + answer


def judge_steps(question: str, response: str) -> list[bool]:
    """The verdict on every step that is written in `response`.

    A step is right if it takes up the result before it, applies the next operation of `question`,
    and gets that right. An early slip is counted once: later steps may build on it.
    """
    wanted = parse(question)
    value = question[0]
    verdicts = []
    for place, (label, fact, result) in enumerate(re.findall(STEP, response)):
        is_next = wanted[place : place + 1] == [(label, fact[1:])]
        verdicts.append(is_next and fact[0] == value and result == result_of(fact))
        value = result
    return verdicts


def valid_chain(question: str, response: str, answer: str) -> bool:
    """Whether the response is flawless: every step in order and right, the answer, no more."""
    return response == "".join(solve(question)) + "#" + answer


# ---- rewards, as a run asks for them by --reward -------------------------------------------------


def reward(response: str, answer: str, row: dict) -> dict[str, float]:
    """Eq. 1, and whether the reasoning is valid (App. F.4)."""
    question = row["prompt"][-1]["content"]
    return {
        "score": float(is_right(response, answer)),
        "valid": float(valid_chain(question, response, answer)),
    }


def graded_reward(response: str, answer: str, row: dict) -> dict[str, float]:
    """A continuous reward in 0..1 (Sec. 5.3), the share of right steps, and the same validity.

    The share is of the steps asked for, or of those written if they are more.
    """
    question = row["prompt"][-1]["content"]
    verdicts = judge_steps(question, response)
    steps = max(len(parse(question)), len(verdicts))
    return reward(response, answer, row) | {"score": sum(verdicts) / steps}


# ---- natural questions: those of test and of ood, and what the base is never taught --------------


def draw_question(rng, operations: tuple) -> str:
    """A random question with a uniform number of operations in the closed range `operations`."""
    fewest, most = operations
    question = str(rng.integers(10))
    for label in LABELS[: rng.integers(fewest, most + 1)]:
        operation = "+-*"[rng.integers(3)]
        values = RIGHT_VALUES[operation]
        right = values[rng.integers(len(values))]
        question += label + operation + right
    return question


def unseen(rng, operations: tuple, seen: set) -> Iterator[str]:
    """Random questions without end, none of them `seen` before; each is added to these."""
    while True:
        question = draw_question(rng, operations)
        if question not in seen:
            seen.add(question)
            yield question


def draw_sets(seed: int = 0) -> dict[str, list[str]]:
    """Natural questions, as they are drawn, for test, ood and train: all of them distinct."""
    rng = stream(seed, "questions")
    seen = set()
    short = unseen(rng, SHORT, seen)
    long = unseen(rng, LONG, seen)
    return {
        "test": list(islice(short, TEST_SIZE)),
        "ood": list(islice(long, OOD_SIZE)),
        "train": list(islice(short, TRAIN_SIZE)),
    }


# ---- training questions as they come: most of their groups have no gradient ----------------------


def draw_slips(seed: int = 0) -> dict[str, tuple]:
    """{fact: (a teacher's chance of a slip, the usual wrong result)} of all 240 facts."""
    rng = stream(seed, "slips")
    slips = {}
    for operation, share in HARD_SHARES.items():
        values = RIGHT_VALUES[operation]
        facts = [f"{left}{operation}{right}" for left in range(10) for right in values]
        # An exact quota and evenly spaced chances make bases of all seeds equally hard.
        chances = np.full(len(facts), EASY_SLIPS)
        hard = round(share * len(facts))
        chances[:hard] = np.linspace(*HARD_SLIPS, hard)
        for fact, chance in zip(facts, rng.permutation(chances).tolist()):
            wrong = int(result_of(fact)) + rng.integers(1, 10)
            slips[fact] = chance, str(wrong % 10)
    return slips


def kind_of(question: str, slips: dict) -> str | None:
    """What a question is to the base, by the slips of its teacher; None if it is none of these.

    "easy": every fact of its right chain is well taught. "in reach": the expected chance that a
    demonstration of all steps is right is 0.05 to 0.6. "hard": that chance is below 0.002.
    """
    # A slip to any digit gives the right one in ten.
    wrong = USUAL_SLIP + (1 - USUAL_SLIP) * 0.9
    chance = 1.0
    worst_slip = 0.0
    for step in solve(question):
        slip, _ = slips[step[1:4]]
        chance *= 1 - slip * wrong
        worst_slip = max(worst_slip, slip)
    if worst_slip <= EASY_SLIPS:
        return "easy"
    if 0.05 <= chance <= 0.6:
        return "in reach"
    return "hard" if chance < 0.002 else None


def draw_training(seed: int = 0) -> list[str]:
    """The training questions: shuffled, with exactly the shares of MIX.

    Questions are drawn until all three kinds have theirs. None is in test or ood.
    """
    sets = draw_sets(seed)
    seen = {*sets["test"], *sets["ood"]}
    slips = draw_slips(seed)
    rng = stream(seed, "mix")
    missing = {kind: round(share * TRAIN_SIZE) for kind, share in MIX.items()}
    questions = []
    candidates = unseen(rng, SHORT, seen)
    while any(missing.values()):
        question = next(candidates)
        kind = kind_of(question, slips)
        if missing.get(kind):
            questions.append(question)
            missing[kind] -= 1
    return rng.permutation(questions).tolist()


def rows(questions: list[str], data_source: str) -> str:
    """The questions as JSON lines in the column layout of verl and LUFFY."""
    lines = []
    for i, question in enumerate(questions):
        row = {
            "data_source": data_source,
            "prompt": [{"role": "user", "content": question}],
            "reward_model": {"ground_truth": answer_of(question)},
            "extra_info": {"index": i},
        }
        lines.append(json.dumps(row) + "\n")
    return "".join(lines)
