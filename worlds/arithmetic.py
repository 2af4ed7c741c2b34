"""The built-in world: chains of arithmetic modulo 10, and an exact judge of the reasoning about them.

A question such as `3a+4b*2c-5` is worked out from left to right, modulo 10, and answered step by step:
`a3+4=7b7*2=4c4-5=9#9` (the letters number the steps). The base model is a small Llama trained here on flawed
demonstrations: some write the whole chain, some skip steps, some just state an answer, and some facts they
teach (7*8=...) are mostly wrong. So it is right about a third of the time, sometimes for the wrong reasons,
and reinforcement learning can improve a habit (write every step) and a skill (300 facts).

`3a+4b*2c-5??` asks for the last two results: `#49`. A blind guess is right once in a hundred; who guesses the
first, 0 best of all, and works out the second, once in six. There, and wherever more than one is asked for, a
step may be worked out in the head, if the one after it is written.

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
    """Every constant that shapes the world; the name of its directory is a hash of them (`PRESETS`)."""

    version: int = 2
    seed: int = 0
    # questions
    train_size: int = 2000
    test_size: int = 400  # each of the two test sets
    train_operations: tuple = (3, 8)  # fewest and most operations of a training or test question
    ood_operations: tuple = (9, 10)  # of an out-of-distribution question
    digits: int = 1  # of the answer: the last so many results
    # demonstrations
    easy_error: float = 0.02  # chance of a wrong result for a well-taught fact
    hard_error: tuple = (0.3, 0.9)  # range of that chance for a badly taught fact
    hard_share: tuple = (("+", 0.10), ("-", 0.20), ("*", 0.35))  # share of badly taught facts per operation
    favourite: float = 0.6  # share of slips that give the fact's usual wrong result
    shortcut: float = 0.12  # share of demonstrations that state an answer and nothing else
    skipping: float = 0.15  # share that leave out some steps
    lost: tuple = (0.0, 0.0)  # the last share of the base's training, and the share of blind guesses there
    # base model
    hidden: int = 64
    layers: int = 4
    heads: int = 2
    intermediate: int = 256
    initializer: float = 0.12  # standard deviation of the initial weights
    pretrain_steps: int = 1500
    batch: int = 32
    learning_rate: float = 3e-3


PRESETS = {
    "easy": World(),
    # most groups without a success, nearly half of the successes flawed
    "hard": World(train_size=3840, digits=2, hard_error=(0.9, 0.99), favourite=0.95, shortcut=0.30,
                  hard_share=(("+", 0.25), ("-", 0.38), ("*", 0.52))),
    # the base could work out steps, and has lost the habit: almost no success, but those there are generalise
    "weak": World(digits=3, shortcut=0.0, lost=(0.2, 0.99)),
}


def stream(world: World, purpose: str) -> np.random.Generator:
    """The world's random numbers for one purpose, which coincide with those of no other purpose or seed."""
    return np.random.default_rng([world.seed, *purpose.encode()])


# ---------------------------------------------------------------- questions and their judge


def parse(question: str) -> list[tuple[str, str, str]]:
    """(label, operation, digit) of each step: "3a+4b*2" -> [("a", "+", "4"), ("b", "*", "2")]."""
    chain = question.rstrip("?")
    return list(zip(chain[1::3], chain[2::3], chain[3::3]))


def digits_of(question: str) -> int:
    """How many results the answer consists of, one digit each: "3a+4b*2" -> 1, "3a+4b*2??" -> 2."""
    return max(1, question.count("?"))


def solve(question: str) -> list[str]:
    """The steps of `question`, all written and right: "3a+4b*2" -> ["a3+4=7", "b7*2=4"]."""
    value, steps = int(question[0]), []
    for label, operation, digit in parse(question):
        result = OPERATIONS[operation](value, int(digit))
        steps.append(f"{label}{value}{operation}{digit}={result}")
        value = result
    return steps


def answer_of(question: str) -> str:
    """The right answer: the last result, or as many as are asked for. "3a+4b*2" -> "4"."""
    return "".join(step[-1] for step in solve(question)[-digits_of(question) :])


def reward(response: str, answer: str) -> float:
    """1.0 if what follows the last `#` of `response` is exactly `answer`, else 0.0."""
    _, mark, stated = response.rpartition("#")
    return float(bool(mark) and stated.strip() == answer)


@dataclass(frozen=True)
class Chain:
    """The judge's verdict on one response."""

    valid: bool  # no written step wrong, none missing that must be there, the right answer, and nothing else
    valid_steps: float  # share of valid steps, 0..1, out of those asked for or written, whichever are more


def judge_steps(question: str, response: str) -> list[tuple[re.Match, bool]]:
    """Every written step, a match of STEP, and the verdict on it: does it take up the result before it, apply
    the next operation of `question`, and get that right? An early slip is counted once: later steps may build
    on it. Where several digits are asked for, the operation after the next will do, if the step takes up the
    right result of the one left out; any other gap puts the steps after it out of place.
    """
    wanted, value, place, judged = parse(question), question[:1], 0, []
    for written in STEP.finditer(response):
        label, left, operation, right, result = written.groups()
        if digits_of(question) > 1 and label in [other for other, *_ in wanted[place + 1 : place + 2]]:
            _, in_the_head, digit = wanted[place]
            value, place = str(OPERATIONS[in_the_head](int(value), int(digit))), place + 1
        asked_for = place < len(wanted) and left == value and (label, operation, right) == wanted[place]
        judged.append((written, asked_for and int(result) == OPERATIONS[operation](int(left), int(right))))
        value, place = result, place + 1
    return judged


def check_chain(question: str, response: str) -> Chain:
    """Judge every written step, and the response as a whole. A bare answer has no valid step."""
    wanted, judged = parse(question), judge_steps(question, response)
    good = sum(ok for _, ok in judged)
    complete = len(judged) == len(wanted) or digits_of(question) > 1  # else judge_steps has looked at gaps
    ended = bool(judged) and judged[-1][0][1] == wanted[-1][0]
    text = "".join(step[0] for step, _ in judged) + "#" + answer_of(question)
    valid = complete and ended and good == len(judged) and response == text
    return Chain(valid=valid, valid_steps=good / max(len(wanted), len(judged), 1))


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


def draw_question(rng: np.random.Generator, operations: tuple[int, int], digits: int = 1) -> str:
    """A random question with a uniform number of operations in the closed range `operations`."""
    n = int(rng.integers(operations[0], operations[1] + 1))
    values, signs = rng.integers(0, 10, n + 1), rng.integers(0, 3, n)
    chain = "".join(f"{label}{'+-*'[s]}{d}" for label, s, d in zip(LABELS, signs, values[1:]))
    return f"{values[0]}{chain}" + "?" * digits * (digits > 1)


def draw_sets(world: World) -> dict[str, list[str]]:
    """The questions of train, test and ood: all distinct, within a set and across."""
    rng, seen = stream(world, "questions"), set()

    def draw(size: int, operations: tuple[int, int]) -> list[str]:
        questions = []
        while len(questions) < size:
            question = draw_question(rng, operations, world.digits)
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

    def demonstrate(self, question: str, rng: np.random.Generator, guess: float = 0.0) -> str:
        """One response to `question`: a chain, one with holes, the bare answer; with a chance, a `guess`."""
        if guess and rng.random() < guess:
            return "#" + "".join(map(str, rng.integers(0, 10, digits_of(question))))
        style = rng.random()
        if style < self.world.shortcut:
            return "#" + answer_of(question)
        skipping = style < self.world.shortcut + self.world.skipping
        value, parts, results = question[0], [], ""
        for label, operation, digit in parse(question):
            if skipping and rng.random() < 0.3:  # worked out in the head
                value = str(OPERATIONS[operation](int(value), int(digit)))
                results += value
                continue
            chance, favourite = self.slip[value, operation, digit]
            result = OPERATIONS[operation](int(value), int(digit))
            if rng.random() < chance:
                result = favourite if rng.random() < self.world.favourite else int(rng.integers(0, 10))
            parts.append(f"{label}{value}{operation}{digit}={result}")
            value = str(result)
            results += value
        return "".join(parts) + "#" + results[-digits_of(question) :]


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
