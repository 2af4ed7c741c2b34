"""Which answers are right, by the strict grader and by Math-Verify alone."""

import pytest

from tests.verifier.answers import RIGHT, RIGHT_BUT_REFUSED, WRONG, WRONG_BUT_PAID, pairs
from verifier.math_answers import math_reward, official_reward


def paid(table: str) -> list[tuple[str, str]]:
    """The pairs of gold and answer that the strict grader takes for right."""
    return [
        (gold, text)
        for gold, text in pairs(table)
        if math_reward(rf"\boxed{{{text}}}", gold)["score"]
    ]


def test_right_answers():
    """Typography, units, names, equal forms, orders, chains and forms of golds are right."""
    assert paid(RIGHT) == pairs(RIGHT)


def test_wrong_answers():
    """Another value, what is to be worked out, and what says more or less than the gold is not."""
    assert not paid(WRONG)


def test_known_gaps():
    """What is listed as known is as it is listed, and at most a tenth of what is wrong."""
    assert not paid(RIGHT_BUT_REFUSED)
    assert paid(WRONG_BUT_PAID) == pairs(WRONG_BUT_PAID)
    assert len(pairs(WRONG_BUT_PAID)) < len(pairs(WRONG)) / 9


@pytest.mark.parametrize(
    ("text", "gold", "right"),
    [
        ("The final answer is 5 - 9 = -4. So $-4$", "-4", 1.0),
        (r"it is \boxed{5-9}", "-4", 1.0),
        ("so 65 = 71", "72", 0.0),
        ("", "1", 0.0),
    ],
)
def test_the_official_grader(text, gold, right):
    """The official grader is Math-Verify alone, on all of the text, box or not."""
    assert official_reward(text, gold) == right


def test_golds():
    """Golds that can be read, words among them, are told from others."""
    words = [r"\text{east}", "listen", "IV", r"5\text{ ft }6\text{ in}"]
    readable = ["5", r"\sqrt{2}", "$(1,1), (3,2)$", "2xy", r"5\text{ ft}", "C", r"\text{(C)}"]
    unreadable = ["", " \u3000", "t(0,4]"]
    assert all(math_reward(None, gold)["score"] for gold in words + readable)
    assert not any(math_reward(None, gold)["score"] for gold in unreadable)
    assert official_reward(None, "5") == 1.0
