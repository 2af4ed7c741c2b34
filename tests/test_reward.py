"""Eq. 1 from the outside: what of a response is graded, and by whom."""

import copy
import time
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import toy_config
from tokenizers import AddedToken

from buffer import Trajectory
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
        (r"The answer is $2$ or \(-2\), as $x^2=4$.", False, False, r"\boxed{2, -2, x^2=4}"),
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
    """A tokenizer of one character a token; 0 ends a turn."""

    pad_token_id = None

    def decode(self, token_ids):
        return "".join(chr(i) for i in token_ids)


def tokens(text: str) -> np.ndarray:
    return np.array([ord(letter) for letter in text] + [0])


def make_grader(verifier=None, **knobs) -> Grader:
    config = toy_config(**{"prompt_template": "{question}"} | knobs)
    return Grader(config, Letters(), verifier, [0])


def asked(answer: str = "2") -> Question:
    """A question of that answer."""
    row = {"prompt": [{"role": "user", "content": "1+1?"}], "extra_info": {"k": 1}}
    return Question(0, "1+1?", tokens("1+1?"), answer, "source", row)


@pytest.mark.parametrize(
    ("knobs", "prefix", "response", "piece"),
    [
        ({}, "", r"2? so \boxed{2}", r"\boxed{2}"),
        ({}, "", "so 2", None),
        ({}, "<think>\n", r"\boxed{2}", None),  # never ends
        ({}, "<think>\n", r"\boxed{3}</think> \boxed{2}", r"\boxed{2}"),
        ({"grader": "official"}, "<think>\n", r"\boxed{3}</think> so 2 ", "so 2"),
        ({"grader": "official"}, "", r"<think>\boxed{3}</think> so 2 ", "so 2"),
        ({"reward": "worlds.arithmetic:reward"}, "<think>\n", "so 2", "so 2"),  # all of it
        ({"reward": "worlds.arithmetic:reward"}, "", "<think> so 2", "<think> so 2"),
    ],
)
def test_what_the_grader_hands_on(knobs, prefix, response, piece):
    """The turn's end is left out, and the cut is where the prompt and the knobs say."""
    grader = make_grader(response_prefix=prefix, **knobs)
    assert grader.piece(asked(), tokens(response)) == piece


def test_special_tokens_reach_the_reward(tokenizer):
    """Those that end a turn or pad are left out, be they special or not; all others stay."""
    marked = copy.deepcopy(tokenizer)
    marked.add_tokens([AddedToken("#", special=True), AddedToken("</think>", special=True)])
    ends = marked.convert_tokens_to_ids(["<eos>", "!"])
    grader = Grader(toy_config(reward="mine:score"), marked, None, ends)
    ids = marked("a1+2=3</think><user> #3!<pad><eos>", add_special_tokens=False)["input_ids"]
    assert grader.text(np.array(ids)) == "a1+2=3</think><user> #3"


def test_what_goes_to_the_worker_beside_the_piece():
    """A user's function is given the question's row and the prefix; Math-Verify needs neither."""
    given = []
    verifier = SimpleNamespace(submit=lambda *arguments: given.append(arguments))
    question = asked()
    own = make_grader(verifier, reward="mine:score", response_prefix="<think>\n")
    own.submit(question, tokens("so 2"))
    make_grader(verifier).submit(question, tokens(r"it is \boxed{2}"))
    row = question.row | {"response_prefix": "<think>\n"}
    assert given == [("so 2", "2", row), (r"\boxed{2}", "2", {})]


def test_rewards_of_responses():
    """Token ids go in and the real verifier's rewards come out, whichever ends first."""
    responses = [r"\boxed{\frac{2}{4}}", r"\boxed{2}", "one half", r"\boxed{1/3} or \boxed{0.5}"]
    question = asked(answer="1/2")
    with make_verifier(toy_config()) as verifier:
        grader = make_grader(verifier)
        leak = grader.submit(question, tokens(r"\boxed{1-\frac{1}{2}}"))
        assert leak.result() == {"score": 0.0, "unevaluated": 1.0}
        pending = [grader.submit(question, tokens(response)) for response in responses]
        assert [one.result()["score"] for one in pending] == [1.0, 0.0, 0.0, 1.0]


def test_a_warning_is_said_once(capfd):
    """The second batch with the same fault is not told again."""
    grader = make_grader()
    cut = Trajectory(tokens("1, 2, 3"), None, reward=0.0, finished=False)
    for _ in range(2):
        grader.warn([asked()], [[cut]])
    assert capfd.readouterr().err.count("nearly all responses are cut") == 1
