"""Eq. 1 from the outside: what of a response is graded, and by whom."""

import time
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import toy_config

from data import Question
from reward import MAX_BOX, MAX_TEXT, Grader, graded_text, make_verifier


@pytest.mark.parametrize(
    ("response", "thinking", "require_box", "graded"),
    [
        (r"\boxed{1}</think> so \boxed{2}", True, True, r"\boxed{2}"),
        (r"\boxed{1}</think> so two", True, True, None),  # the box of a thought is no answer
        (r"\boxed{1}", True, True, None),  # the thought never ends
        # The answer stands after the last </think>.
        (r"\boxed{1}</think>\boxed{2}</think> \boxed{3}", True, True, r"\boxed{3}"),
        # Where no thought was opened, all of it counts.
        (r"\boxed{1}</think> so 2", False, True, r"\boxed{1}"),
        (r"\boxed{1}</think> so $2$ ", True, False, r"\boxed{2}"),
        # A thought that the response opens is one, too.
        (r"<think> \boxed{1}. Hmm, wait", False, True, None),
        (r"<think> \boxed{1}?</think> so 2", False, True, None),
        (r"<think> \boxed{1}?</think> so \boxed{2}", False, True, r"\boxed{2}"),
        (r"\boxed{1}</think> \boxed{2} <think> or", True, True, None),
        (r"<think>a</think> \boxed{1} <think>b</think> \boxed{2}", False, True, r"\boxed{2}"),
        ("<think> it is 1", False, False, None),
        # An expression is handed on whole, and is right to no gold.
        ("The final answer to the problem is 5 - 9.", False, False, r"\boxed{5 - 9}"),
        (r"**Answer:** $\frac{1}{2}$. I hope so", False, False, r"\boxed{\frac{1}{2}}"),
        ("My answer is 41. No, the answer is 42. Thanks", False, False, r"\boxed{42}"),
        # An expression in passing does not count, its last number does.
        ("as 99 - 28 = 71 we have 99-28 cows", False, False, r"\boxed{28}"),
        ("it costs 1,234.50 or -3/4", False, False, r"\boxed{-3/4}"),
        ("it is –3", False, False, r"\boxed{–3}"),  # an en dash
        ("no number", False, False, None),
        ("7 " + MAX_TEXT * "x", False, False, None),  # too far from the end
    ],
)
def test_graded_text(response, thinking, require_box, graded):
    """What follows the last </think> is graded: its box, or where none is required its number."""
    assert graded_text(response, thinking, require_box) == graded


@pytest.mark.parametrize(
    ("response", "graded"),
    [
        (r"first \boxed{1}, no: \boxed{2}", r"\boxed{2}"),
        (r"\boxed{1}\boxed{\frac{1}{2}", r"\boxed{1}"),  # cut off
        (r"\boxed{\boxed{3}}", r"\boxed{\boxed{3}}"),
        (r"{ \boxed {3}}}} and }", r"\boxed{3}"),
        (r"\boxed 3, $3$", None),
        (r"\boxed{}", None),
        (r"\boxed{\{1\}\text{ or \}}}", r"\boxed{\{1\}\text{ or \}}}"),
        (r"\boxed{a \\{b}}", r"\boxed{a \\{b}}"),
        (r"\boxed{" + MAX_BOX * "1" + "}", r"\boxed{" + MAX_BOX * "1" + "}"),
        (r"\boxed{" + (MAX_BOX + 1) * "1" + "}", None),
    ],
)
def test_which_box(response, graded):
    """The cut of a response is its last balanced box, of bounded length."""
    assert graded_text(response, thinking=False) == graded


def test_cut_takes_linear_time():
    """A megabyte of boxes that open, or close, or nest, is cut in seconds."""
    begin = time.monotonic()
    for piece in [r"\boxed{", "{", "}", "\\", r"\boxed{}", r"\boxed", "</think>", r"\boxed{1}"]:
        graded_text(piece * (1_000_000 // len(piece)), thinking=False)
    assert time.monotonic() - begin < 20


class Letters:
    """A tokenizer of one character a token; 0 is a special token."""

    def decode(self, token_ids, skip_special_tokens=False):
        return "".join(chr(i) for i in token_ids if i or not skip_special_tokens)


def tokens(text: str) -> np.ndarray:
    return np.array([ord(letter) for letter in text] + [0])


def make_grader(verifier=None, **knobs) -> Grader:
    return Grader(toy_config(**knobs), Letters(), verifier)


def asked(prompt: str, answer: str = "2", row: dict | None = None) -> Question:
    """A question of that prompt."""
    return Question(0, prompt, tokens(prompt)[:-1], answer, "source", row)


@pytest.mark.parametrize(
    ("knobs", "prompt", "response", "piece"),
    [
        ({}, "1+1?", r"2? so \boxed{2}", r"\boxed{2}"),
        ({}, "1+1?", "so 2", None),
        ({}, "1+1?<think>\n", r"\boxed{2}", None),  # never ends
        ({}, "1+1?<think>\n", r"\boxed{3}</think> \boxed{2}", r"\boxed{2}"),
        ({"grader": "official"}, "1+1?<think>\n", r"\boxed{3}</think> so 2 ", "so 2"),
        ({"grader": "official"}, "1+1?", r"<think>\boxed{3}</think> so 2 ", "so 2"),
        ({"reward": "worlds.arithmetic:reward"}, "1+1?<think>\n", "so 2", "so 2"),  # all of it
        ({"reward": "worlds.arithmetic:reward"}, "1+1?", "<think> so 2", "<think> so 2"),
    ],
)
def test_what_the_grader_hands_on(knobs, prompt, response, piece):
    """Special tokens are left out, and the cut is where the prompt and the knobs say."""
    grader = make_grader(**knobs)
    assert grader.piece(asked(prompt), tokens(response)) == piece


def test_what_goes_to_the_worker_beside_the_piece():
    """A user's function is given the question's row; Math-Verify needs none."""
    given, row = [], {"data_source": "source", "extra_info": {"k": 1}, "prompt": []}
    verifier = SimpleNamespace(submit=lambda *arguments: given.append(arguments))
    question = asked("?", row=row)
    make_grader(verifier, reward="mine:score").submit(question, tokens("so 2"))
    make_grader(verifier).submit(question, tokens(r"it is \boxed{2}"))
    assert given == [("so 2", "2", row), (r"\boxed{2}", "2", {})]


def test_rewards_of_responses():
    """Token ids go in and the real verifier's rewards come out, whichever ends first."""
    responses = [r"\boxed{\frac{2}{4}}", r"\boxed{2}", "one half", r"\boxed{1/3} or \boxed{0.5}"]
    question = asked("?", answer="1/2")
    with make_verifier(toy_config()) as verifier:
        grader = make_grader(verifier)
        leak = grader.submit(question, tokens(r"\boxed{1-\frac{1}{2}}"))
        assert leak.result() == {"score": 0.0, "unevaluated": 1.0}
        pending = [grader.submit(question, tokens(response)) for response in responses]
        assert [one.result()["score"] for one in pending] == [1.0, 0.0, 0.0, 1.0]


class Ended:
    def __init__(self, text: str, reward: float = 0.0, finished: bool = True):
        self.token_ids, self.reward, self.finished = tokens(text), reward, finished


@pytest.mark.parametrize(
    "prompt, knobs, said, warning",
    [
        ("1+1?", {}, ["two", "2", "$2$"], "none of 3 responses has a box"),
        ("1+1?", {}, ["two", r"\boxed{3}"], None),
        ("1+1?", {"require_box": False}, ["two"], None),
        ("1+1?", {"grader": "official"}, ["two"], None),
        ("1+1?<think>\n", {}, [r"hm \boxed{2}", "hm"], "none of 2 responses has a </think>"),
        ("1+1?<think>\n", {}, [r"\boxed{2}", "hm</think>"], None),
        ("1+1?<think>\n", {}, ["hm</think>2", "hm"], "none of 2 responses has a box"),
        ("1+1?", {}, [], None),
    ],
)
def test_a_batch_in_which_none_can_be_right_is_complained_about(prompt, knobs, said, warning):
    """Only where all lack the box, or the end of a thought, is it said, with a way out."""
    grader = make_grader(**knobs)
    question = asked(prompt)
    half = len(said) // 2
    rollouts = [[Ended(text) for text in part] for part in (said[:half], said[half:])]
    found = grader.complaint([question] * 2, rollouts)
    assert (
        found is None
        if warning is None
        else warning in found and ("set" in found or "empty" in found)
    )
    if said:  # one that was right, whatever it looks like
        rollouts[1][0].reward = 1.0
        assert grader.complaint([question] * 2, rollouts) is None


@pytest.mark.parametrize("cut, told", [(8, False), (9, True), (10, True)])
@pytest.mark.parametrize("reward", ["math", "mine:score"])
def test_a_batch_that_is_cut_is_told_with_any_reward(reward, cut, told):
    """Nine of ten that are cut are told, be they right or wrong."""
    grader = make_grader(reward=reward)
    for right in (0.0, 1.0):
        batch = [Ended(r"\boxed{3}", right, finished=i >= cut) for i in range(10)]
        found = grader.complaint([asked("1+1?")], [batch])
        assert told == (f"{cut} of 10 responses are cut: raise max_resp" in (found or ""))


@pytest.mark.parametrize(
    "knobs, rewards, told",
    [
        ({}, [0.4, 0.0], True),
        ({}, [0.4, 0.6], False),
        ({"difficulty": "spread"}, [0.4, 0.0], True),
        ({"difficulty": "spread", "start_threshold": -1.0}, [0.4, 0.0], False),
    ],
)
def test_partial_credit_without_a_success_is_told(knobs, rewards, told):
    """A best reward of 0.5 or less is told, unless the spread counts from the start."""
    grader = make_grader(reward="mine:score", **knobs)
    found = grader.complaint([], [[Ended("a", reward) for reward in rewards]])
    assert told == ("no reward is above 0.5" in (found or ""))
