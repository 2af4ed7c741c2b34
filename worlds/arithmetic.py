"""The built-in world: chains of arithmetic modulo 10, and an exact judge of the reasoning about them.

A question such as `3a+4b*2c-5` is worked out from left to right, modulo 10, and answered step by step:
`a3+4=7b7*2=4c4-5=9#9` (the letters number the steps). The base model is a small Llama trained here on flawed
demonstrations: some write the whole chain, some skip steps, some just state an answer, and some facts they
teach (7*8=...) are mostly wrong. So it is right about a third of the time, sometimes for the wrong reasons,
and reinforcement learning can improve a habit (write every step) and a skill (300 facts).

The paper (Sec. 3.2) asks a 32B model whether the reasoning was valid; here `check_chain` knows.
"""

import json
import re
from dataclasses import dataclass

import numpy as np

OPERATIONS = {"+": lambda a, b: (a + b) % 10, "-": lambda a, b: (a - b) % 10, "*": lambda a, b: (a * b) % 10}
LABELS = "abcdefghij"  # the n-th operation of a question carries the n-th letter
STEP = re.compile(r"([a-j])(\d)([-+*])(\d)=(\d)")  # one written step


@dataclass(frozen=True)
class World:
    """Every constant that shapes the world; the name of its directory is a hash of them."""

    version: int = 2
    seed: int = 0
    # questions
    train_size: int = 2000
    test_size: int = 400  # each of the two test sets
    train_operations: tuple = (3, 8)  # fewest and most operations of a training or test question
    ood_operations: tuple = (9, 10)  # of an out-of-distribution question
    # demonstrations
    easy_error: float = 0.02  # chance of a wrong result for a well-taught fact
    hard_error: tuple = (0.3, 0.9)  # range of that chance for a badly taught fact
    hard_share: tuple = (("+", 0.10), ("-", 0.20), ("*", 0.35))  # share of badly taught facts per operation
    shortcut: float = 0.12  # share of demonstrations that state an answer and nothing else
    skipping: float = 0.15  # share that leave out some steps
    # base model
    hidden: int = 64
    layers: int = 4
    heads: int = 2
    intermediate: int = 256
    initializer: float = 0.12  # standard deviation of the initial weights
    pretrain_steps: int = 1500
    batch: int = 32
    learning_rate: float = 3e-3


def stream(world: World, purpose: str) -> np.random.Generator:
    """The world's random numbers for one purpose, which coincide with those of no other purpose or seed."""
    return np.random.default_rng([world.seed, *purpose.encode()])


# ---------------------------------------------------------------- questions and their judge


def parse(question: str) -> list[tuple[str, str, str]]:
    """(label, operation, digit) of each step: "3a+4b*2" -> [("a", "+", "4"), ("b", "*", "2")]."""
    return list(zip(question[1::3], question[2::3], question[3::3]))


def solve(question: str) -> list[str]:
    """The steps of the one valid chain of `question`: "3a+4b*2" -> ["a3+4=7", "b7*2=4"]."""
    value, steps = int(question[0]), []
    for label, operation, digit in parse(question):
        result = OPERATIONS[operation](value, int(digit))
        steps.append(f"{label}{value}{operation}{digit}={result}")
        value = result
    return steps


def answer_of(question: str) -> str:
    """The right answer, one digit."""
    return solve(question)[-1][-1]


def reward(response: str, answer: str) -> float:
    """1.0 if what follows the last `#` of `response` is exactly `answer`, else 0.0."""
    _, mark, stated = response.rpartition("#")
    return float(bool(mark) and stated.strip() == answer)


@dataclass(frozen=True)
class Chain:
    """The judge's verdict on one response."""

    valid: bool  # every step there, in order, right, and the stated answer is the last result: nothing else
    valid_steps: float  # share of valid steps, 0..1, out of those asked for or written, whichever are more


def judge_steps(question: str, response: str) -> list[tuple[re.Match, bool]]:
    """Every written step, a match of STEP, and the verdict on it: does step i take up the result written
    before it, apply the i-th operation of `question`, and get that right? An early slip is counted once:
    later steps may build on it. A skipped step puts those after it out of place.
    """
    wanted, value, judged = parse(question), question[:1], []
    for i, written in enumerate(STEP.finditer(response)):
        label, left, operation, right, result = written.groups()
        asked_for = i < len(wanted) and left == value and (label, operation, right) == wanted[i]
        judged.append((written, asked_for and int(result) == OPERATIONS[operation](int(left), int(right))))
        value = result
    return judged


def check_chain(question: str, response: str) -> Chain:
    """Judge every written step, and the response as a whole. A bare answer has no valid step."""
    wanted, judged = len(parse(question)), judge_steps(question, response)
    good = sum(ok for _, ok in judged)
    result = judged[-1][0][5] if judged else question[:1]
    text = "".join(step[0] for step, _ in judged) + "#" + result
    complete = good == wanted == len(judged) and response == text
    return Chain(valid=complete, valid_steps=good / max(wanted, len(judged), 1))


def valid_chain(question: str, response: str) -> bool:
    """Whether the reasoning of `response` is flawless: the judge of evaluation."""
    return check_chain(question, response).valid


def takes_shortcut(question: str, response: str) -> bool:
    """Whether `response` states an answer without a single step: this world's black box (paper, App. F.4)."""
    return not STEP.search(response)


JUDGES = {"valid": valid_chain, "shortcut": takes_shortcut}  # what evaluation reports beside Pass@1


def graded_reward(response: str, question: str) -> float:
    """A continuous reward (Sec. 5.3), the share of valid steps; the `ground_truth` must be the question."""
    return check_chain(question, response).valid_steps


def draw_question(rng: np.random.Generator, operations: tuple[int, int]) -> str:
    """A random question with a uniform number of operations in the closed range `operations`."""
    n = int(rng.integers(operations[0], operations[1] + 1))
    digits, signs = rng.integers(0, 10, n + 1), rng.integers(0, 3, n)
    return str(digits[0]) + "".join(f"{label}{'+-*'[s]}{d}" for label, s, d in zip(LABELS, signs, digits[1:]))


def draw_sets(world: World) -> dict[str, list[str]]:
    """The questions of train, test and ood: all distinct, within a set and across."""
    rng, seen = stream(world, "questions"), set()

    def draw(size: int, operations: tuple[int, int]) -> list[str]:
        questions = []
        while len(questions) < size:
            question = draw_question(rng, operations)
            if question not in seen:
                seen.add(question)
                questions.append(question)
        return questions

    test, ood = draw(world.test_size, world.train_operations), draw(world.test_size, world.ood_operations)
    return {"train": draw(world.train_size, world.train_operations), "test": test, "ood": ood}


# ---------------------------------------------------------------- demonstrations


class Teacher:
    """Writes flawed demonstrations: each of the 300 facts has its own chance of a slip, and a usual one."""

    def __init__(self, world: World):
        self.world = world
        rng = stream(world, "slips")
        self.slip = {}  # (left, operation, right) -> (chance of a slip, the wrong result it mostly gives)
        for operation, share in world.hard_share:
            for left in "0123456789":
                for right in "0123456789":
                    hard = rng.random() < share
                    chance = rng.uniform(*world.hard_error) if hard else world.easy_error
                    result = OPERATIONS[operation](int(left), int(right))
                    self.slip[left, operation, right] = chance, (result + int(rng.integers(1, 10))) % 10

    def demonstrate(self, question: str, rng: np.random.Generator) -> str:
        """One response to `question`: a chain, a chain with holes, or a bare answer."""
        style = rng.random()
        if style < self.world.shortcut:
            return "#" + answer_of(question)
        skipping = style < self.world.shortcut + self.world.skipping
        value, parts = question[0], []
        for label, operation, digit in parse(question):
            if skipping and rng.random() < 0.3:  # worked out in the head
                value = str(OPERATIONS[operation](int(value), int(digit)))
                continue
            chance, favourite = self.slip[value, operation, digit]
            result = OPERATIONS[operation](int(value), int(digit))
            if rng.random() < chance:
                result = favourite if rng.random() < 0.6 else int(rng.integers(0, 10))
            parts.append(f"{label}{value}{operation}{digit}={result}")
            value = str(result)
        return "".join(parts) + "#" + value


def rows(questions: list[str], data_source: str, graded: bool = False) -> str:
    """JSON lines in the column layout of verl and LUFFY; `graded`: for `graded_reward`."""
    return "".join(
        json.dumps({
            "data_source": data_source,
            "prompt": [{"role": "user", "content": question}],
            "reward_model": {"ground_truth": question if graded else answer_of(question)},
            "extra_info": {"index": i},
        }) + "\n"
        for i, question in enumerate(questions)
    )  # fmt: skip
