"""The built-in world: chains of arithmetic modulo 10, and an exact judge of the reasoning.

A question such as `3a+4b*3c-5d+9e-1` is worked out from left to right, modulo 10, step by step:
`a3+4=7b7*3=1c1-5=6d6+9=5e5-1=4#764` (the letters number the steps). The answer behind the `#` is
three results: the fifth last, the third last and the last. So a blind guess is right once in a
thousand.

The base model (pretraining.py) is a small Llama that was taught by flawed demonstrations. Some only
state an answer, some leave out steps, and more than half of the 240 facts (7+8=...) in them are
often wrong. The model is right about once in ten; reinforcement learning can teach it the facts.

Different left values always give different results (there is no `*0` and no `*5`), so that right
steps never heal a wrong one. The paper (Sec. 3.2) asks a 32B model whether a reasoning was valid;
here a judge knows.
"""

import json
import re
from dataclasses import dataclass

import numpy as np

OPERATIONS = {
    "+": lambda left, right: (left + right) % 10,
    "-": lambda left, right: (left - right) % 10,
    "*": lambda left, right: (left * right) % 10,
}
RIGHT_VALUES = {"+": range(10), "-": range(10), "*": (1, 3, 7, 9)}  # one-to-one in the left value
LABELS = "abcdefghij"  # the n-th operation of a question carries the n-th letter
MIX = {  # what `kind_of` says of training questions -> their share
    "easy": 0.3,
    "in reach": 0.1,
    "hard": 0.6,
}
STEP = re.compile(r"([a-j])(\d)([-+*])(\d)=(\d)")  # one written step


@dataclass(frozen=True)
class World:
    """The constants that shape a world and its base; a hash of them names its directory."""

    version: int = 3
    seed: int = 0
    # questions
    train_size: int = 1920  # 120 steps of 32 are two epochs
    test_size: int = 800
    ood_size: int = 400
    train_operations: tuple = (5, 8)  # fewest and most operations of a training or test question
    ood_operations: tuple = (9, 10)  # of an out-of-distribution question
    asked: tuple = (5, 3, 1)  # the results that make the answer, counted from the last
    # demonstrations
    hard_shares: tuple = (("+", 0.5), ("-", 0.6), ("*", 0.7))  # share of badly taught facts
    hard_slips: tuple = (0.3, 0.9)  # chance of a slip in the best and the worst taught of these
    easy_slips: float = 0.02  # chance of a slip in any other fact
    usual_slip: float = 0.8  # share of slips that give the fact's usual wrong result
    bare: float = 0.05  # share of demonstrations that state an answer and nothing else
    skipping: float = 0.10  # share that leave out some steps
    # base model
    hidden: int = 64
    layers: int = 4
    heads: int = 2
    intermediate: int = 256
    initializer: float = 0.12  # standard deviation of the initial weights
    pretrain_steps: int = 3000
    batch: int = 32
    learning_rate: float = 3e-3


def stream(world: World, purpose: str) -> np.random.Generator:
    """The world's random numbers for one purpose, which no other purpose or seed shares."""
    return np.random.default_rng([world.seed, *purpose.encode()])


# ---- questions and their judge ------------------------------------------------------------------


def parse(question: str) -> list[tuple[str, str, str]]:
    """(label, operation, digit) of each step: "3a+4b*3" -> [("a", "+", "4"), ("b", "*", "3")]."""
    return list(zip(question[1::3], question[2::3], question[3::3]))


def solve(question: str) -> list[str]:
    """The steps of `question`, all written and right: "3a+4b*3" -> ["a3+4=7", "b7*3=1"]."""
    value = int(question[0])
    steps = []
    for label, operation, digit in parse(question):
        result = OPERATIONS[operation](value, int(digit))
        steps.append(f"{label}{value}{operation}{digit}={result}")
        value = result
    return steps


def answer_of(question: str, asked: tuple = World.asked) -> str:
    """The right answer: the last digit of the steps that are asked for, counted from the last."""
    steps = solve(question)
    return "".join(steps[-place][-1] for place in asked)


def is_right(response: str, answer: str) -> bool:
    """Whether what follows the last `#` of `response` is exactly `answer`."""
    return "#" in response and response.split("#")[-1].strip() == answer


def judge_steps(question: str, response: str) -> list[tuple[re.Match, bool]]:
    """Every written step, a match of STEP, and the verdict on it.

    A step is right if it takes up the result before it, applies the next operation of `question`,
    and gets that right. An early slip is counted once: later steps may build on it.
    """
    wanted = parse(question)
    value = question[0]
    judged = []
    for place, written in enumerate(STEP.finditer(response)):
        label, left, operation, right, result = written.groups()
        follows = left == value and wanted[place : place + 1] == [(label, operation, right)]
        right_result = OPERATIONS[operation](int(left), int(right))
        judged.append((written, follows and int(result) == right_result))
        value = result
    return judged


def marked(question: str, response: str) -> str:
    """The response with a space behind every step, and a ✗ where the step is wrong."""
    for written, right in reversed(judge_steps(question, response)):
        mark = " " if right else "✗ "
        response = response[: written.end()] + mark + response[written.end() :]
    return response


def valid_chain(question: str, response: str, answer: str) -> bool:
    """Whether the response is flawless: every step in order and right, the answer, no more."""
    return response == "".join(solve(question)) + "#" + answer


def takes_shortcut(response: str) -> bool:
    """Whether there is not a single step, which is this world's black box (App. F.4)."""
    return not STEP.search(response)


def judge(question: str, response: str, answer: str) -> dict:
    """What evaluation reports beside the reward, and the response with its wrong steps marked."""
    return {
        "valid": valid_chain(question, response, answer),
        "shortcut": takes_shortcut(response),
        "marked": marked(question, response),
    }


# ---- rewards, as a worker asks for them (verifier/worker.py) ------------------------------------


def reward(response: str, answer: str, row: dict) -> dict:
    """Eq. 1, and the verdict of the judge."""
    question = row["prompt"][-1]["content"]
    score = float(is_right(response, answer))
    return {"score": score, "judged": judge(question, response, answer)}


def graded_reward(response: str, answer: str, row: dict) -> dict:
    """A continuous reward in 0..1 (Sec. 5.3), the share of right steps, and the verdict.

    The share is of the steps asked for, or of those written if they are more.
    """
    question = row["prompt"][-1]["content"]
    steps = judge_steps(question, response)
    right = sum(ok for _, ok in steps)
    score = right / max(len(parse(question)), len(steps))
    return {"score": score, "judged": judge(question, response, answer)}


def draw_question(rng: np.random.Generator, operations: tuple) -> str:
    """A random question with a uniform number of operations in the closed range `operations`."""
    question = str(rng.integers(10))
    for label in LABELS[: rng.integers(operations[0], operations[1] + 1)]:
        operation = "+-*"[rng.integers(3)]
        values = RIGHT_VALUES[operation]
        question += f"{label}{operation}{values[rng.integers(len(values))]}"
    return question


def draw_sets(world: World) -> dict[str, list[str]]:
    """Natural questions, as they are drawn, for test, ood and train: all of them distinct.

    The base is taught none of them.
    """
    rng = stream(world, "questions")
    seen = set()

    def draw(size: int, operations: tuple) -> list[str]:
        questions = []
        while len(questions) < size:
            question = draw_question(rng, operations)
            if question not in seen:
                seen.add(question)
                questions.append(question)
        return questions

    return {
        "test": draw(world.test_size, world.train_operations),
        "ood": draw(world.ood_size, world.ood_operations),
        "train": draw(world.train_size, world.train_operations),
    }


# ---- demonstrations -----------------------------------------------------------------------------


class Teacher:
    """Writes flawed demonstrations: each of the 240 facts has its own chance of a slip."""

    def __init__(self, world: World):
        self.world = world
        self.slips = {}  # (left, operation, right) -> (chance of a slip, the usual wrong result)
        rng = stream(world, "slips")
        for operation, share in world.hard_shares:
            facts = [(left, right) for left in range(10) for right in RIGHT_VALUES[operation]]
            # An exact quota and evenly spaced chances make bases of all seeds equally hard.
            chances = np.full(len(facts), world.easy_slips)
            hard = round(share * len(facts))
            chances[:hard] = np.linspace(*world.hard_slips, hard)
            for (left, right), chance in zip(facts, rng.permutation(chances).tolist()):
                wrong = (OPERATIONS[operation](left, right) + int(rng.integers(1, 10))) % 10
                self.slips[left, operation, right] = chance, wrong

    def demonstrate(self, question: str, rng: np.random.Generator) -> str:
        """One response to `question`: a chain, a chain with holes, or the bare answer."""
        style = rng.random()
        if style < self.world.bare:
            return "#" + answer_of(question, self.world.asked)
        skipping = style < self.world.bare + self.world.skipping
        value = int(question[0])
        written = ""
        results = []
        for label, operation, digit in parse(question):
            result = OPERATIONS[operation](value, int(digit))
            in_the_head = skipping and rng.random() < 0.3  # such a step is right, but not written
            if not in_the_head:
                chance, usual = self.slips[value, operation, int(digit)]
                if rng.random() < chance:
                    is_usual = rng.random() < self.world.usual_slip
                    result = usual if is_usual else int(rng.integers(10))
                written += f"{label}{value}{operation}{digit}={result}"
            value = result
            results.append(str(result))
        answer = "".join(results[-place] for place in self.world.asked)
        return written + "#" + answer


# ---- training questions as they come: most of their groups have no gradient ----------------------


def kind_of(question: str, teacher: Teacher) -> str | None:
    """What a question is to the base, by the teacher's slips; None if it is none of the three.

    "easy": every fact of its right chain is well taught. "in reach": the expected chance that a
    demonstration of all steps is right is 0.05 to 0.6. "hard": that chance is below 0.002.
    """
    usual = teacher.world.usual_slip
    wrong = usual + (1 - usual) * 0.9  # a slip to any digit gives the right one in ten
    value = int(question[0])
    chance = 1.0
    worst_slip = 0.0
    for _, operation, digit in parse(question):
        slip, _ = teacher.slips[value, operation, int(digit)]
        chance *= 1 - slip * wrong
        worst_slip = max(worst_slip, slip)
        value = OPERATIONS[operation](value, int(digit))
    if worst_slip <= teacher.world.easy_slips:
        return "easy"
    if 0.05 <= chance <= 0.6:
        return "in reach"
    return "hard" if chance < 0.002 else None


def draw_training(world: World) -> list[str]:
    """The training questions: shuffled, with exactly the shares of MIX.

    Questions are drawn until all three kinds have theirs. None is in test or ood.
    """
    sets = draw_sets(world)
    seen = {*sets["test"], *sets["ood"]}
    teacher = Teacher(world)
    rng = stream(world, "mix")
    missing = {}
    for kind, share in MIX.items():
        missing[kind] = round(share * world.train_size)
    questions = []
    while any(missing.values()):
        question = draw_question(rng, world.train_operations)
        kind = kind_of(question, teacher)
        if missing.get(kind) and question not in seen:
            seen.add(question)
            questions.append(question)
            missing[kind] -= 1
    return rng.permutation(questions).tolist()


def rows(questions: list[str], data_source: str, asked: tuple = World.asked) -> str:
    """The questions as JSON lines in the column layout of verl and LUFFY."""
    lines = []
    for i, question in enumerate(questions):
        row = {
            "data_source": data_source,
            "prompt": [{"role": "user", "content": question}],
            "reward_model": {"ground_truth": answer_of(question, asked)},
            "extra_info": {"index": i},
        }
        lines.append(json.dumps(row) + "\n")
    return "".join(lines)
