"""A row of Table 1 by hand: names of benchmarks, Pass@k, Maj@k, intervals and averages."""

from types import SimpleNamespace

import pytest

from worlds.arithmetic import World, draw_sets
from worlds.benchmarks import benchmark, interval, majority, pass_at_k, reward_of, statistics


def record(source: str, question: str, success: bool, **more) -> dict:
    return {"source": source, "question": question, "success": success, **more}


@pytest.mark.parametrize(
    "n, successes, k, chance",
    [(4, 1, 1, 1 / 4), (4, 1, 2, 1 / 2), (4, 2, 2, 5 / 6), (4, 0, 4, 0), (5, 2, 3, 9 / 10)],
)
def test_pass_at_k(n, successes, k, chance):
    """Pass@k is 1 - C(n-c, k) / C(n, k), worked out by hand."""
    assert pass_at_k(n, successes, k) == pytest.approx(chance, abs=1e-15)


@pytest.mark.parametrize(
    "answers, right, value",
    [
        (["1", "2", " 2 "], [1, 0, 0], 0.0),  # spaces do not count
        (["1", "2", "2", None, None, None], [0, 1, 1, 0, 0, 0], 1.0),  # no box, no vote
        (["1", "2"], [1, 0], 0.5),  # a tie, settled by a coin
        ([None, None], [0, 0], 0.0),
    ],
)
def test_majority(answers, right, value):
    """Only boxes vote, spaces do not count, and a tie is worth one half."""
    assert majority([record("m", "q", bool(r), answer=a) for a, r in zip(answers, right)]) == value


def test_intervals():
    """Intervals are Wilson's by hand, and of no more trials where samples of a question agree."""
    # With z = 1.95996 the bounds are (0.5 + z²/20 ± z sqrt(1/40 + z²/400)) / (1 + z²/10).
    of_ten = pytest.approx([0.23659, 0.76341], abs=1e-5)
    assert interval([[True], [False]] * 5) == of_ten
    assert interval([[True] * 4, [False] * 4] * 5) == of_ten
    # Without a spread between questions each is a trial, too.
    assert interval([[True, False], [False, True]] * 5) == of_ten
    assert interval([[False]] * 10) == pytest.approx([0, 3.84146 / 13.84146], abs=1e-5)
    assert interval([[True]]) == pytest.approx([1 / 4.84146, 1], abs=1e-5)
    # 8 right of 16, spread 1/16 where one response a question has 1/4: four times 4 trials.
    of_sixteen = pytest.approx([0.27999, 0.72001], abs=1e-5)
    assert interval([[True] * 3 + [False], [True] + [False] * 3] * 2) == of_sixteen


def test_statistics_by_hand():
    """Three benchmarks have their figures, and a source that is none is in no average."""
    records = [
        record("aime", "a", True, answer="1"),
        record("aime", "a", False, answer=None),
        record("aime", "b", False, answer="3"),
        record("aime", "b", False, answer="4"),
        record("math", "c", True, answer="5"),
        record("arc_c", "d", False, answer=None),
        record("mine", "e", True),
    ]
    found = {n: v for n, v in statistics(records).items() if not n.startswith("interval/")}
    assert found == {
        "questions/aime": 2,
        "samples/aime": 2,
        "no_box/aime": 0.25,
        "pass_at_2/aime": 0.5,
        "maj_at_2/aime": 0.5,
        "questions/math": 1,
        "samples/math": 1,
        "no_box/math": 0.0,
        "questions/arc_c": 1,
        "samples/arc_c": 1,
        "no_box/arc_c": 1.0,
        "questions/mine": 1,
        "samples/mine": 1,
        "average/in_distribution": (0.25 + 1.0) / 2,
        "average_of/in_distribution": ["AIME24", "MATH-500"],
        "average/out_of_distribution": 0.0,
        "average_of/out_of_distribution": ["ARC-c"],
    }


def test_benchmarks_are_known_by_several_names():
    """Only letters and digits behind the last / count, in any case."""
    known = {
        "AIME24": "aime AIME_2024 math-ai/aime24",
        "MATH-500": "math MATH-500 HuggingFaceH4/MATH-500",
        "ARC-c": "arc_c ARC-Challenge",
        None: "mmlu math_train aime26 arithmetic /",
    }
    for name, sources in known.items():
        assert {benchmark(source) for source in sources.split()} == {name}


def test_the_built_in_world_is_known_by_what_it_asks():
    """Its questions are; one of a user's file of the same name is not, nor another source."""

    def asked(text, source="arithmetic"):
        return SimpleNamespace(source=source, text=text)

    drawn = [asked(question) for question in draw_sets(World())["train"][:5]]
    own = "worlds.arithmetic:reward"
    assert reward_of([*drawn, asked("7a*4", "arithmetic-ood")], "math") == own
    assert reward_of(drawn, "mine:score") == "mine:score"
    assert reward_of([*drawn, asked("What is 3+4?")], "math") == "math"
    assert reward_of([asked("7a*4", "arithmetic-mine")], "math") == "math"
