r"""Eq. 1 from the outside: which piece of a response is graded, and what goes to the grader."""

from concurrent.futures import Future

import numpy as np
import pytest

from config import Config
from data import Question, load_tokenizer
from reward import MAX_BOX, Grader, graded_text, make_verifier

THINKS = {"thinks": True}
LOOSE = {"require_box": False}
OFFICIAL = {"grader": "official"}
# A response, what differs from a strict grader that asks for a box, and the piece, if any.
PIECES = [
    (r"first \boxed{1}, no: \boxed{2}", {}, r"\boxed{2}"),
    (r"\boxed{1}\boxed{\frac{1}{2}", {}, r"\boxed{1}"),  # the second is cut off
    (r"\boxed{\boxed{3}}", {}, r"\boxed{\boxed{3}}"),
    (r"\boxed 3, $3$", {}, None),
    (r"\boxed{\{1\}\text{ or \}}}", {}, r"\boxed{\{1\}\text{ or \}}}"),
    # Only what follows the thought counts, which has to end, whoever opened it.
    (r"\boxed{1}</think> so \boxed{2}", THINKS, r"\boxed{2}"),
    (r"\boxed{1}", THINKS, None),
    (r"<think> \boxed{1}. Hmm, wait", {}, None),
    (r"<think> \boxed{1}?</think> so \boxed{2}", {}, r"\boxed{2}"),
    (r"\boxed{1}</think> \boxed{2} <think> or", THINKS, None),
    # Without a box: the last statement of an answer, else the last number.
    ("My answer is 41. No, the answer is 42. Thanks", LOOSE, r"\boxed{42}"),
    ("The final answer to the problem is 5 - 9.", LOOSE, r"\boxed{5 - 9}"),
    (r"**Answer:** $\frac{1}{2}$. I hope so", LOOSE, r"\boxed{\frac{1}{2}}"),
    (r"The answer is $2$ or \(-2\), as $x^2=4$.", LOOSE, r"\boxed{2, -2, x^2=4}"),
    ("as 99 - 28 = 71 we have 99-28 cows", LOOSE, r"\boxed{28}"),
    ("it costs 1,234.50 or -3/4", LOOSE, r"\boxed{-3/4}"),
    # The official grader is given all that follows the thought.
    (r"\boxed{3}</think> so 2 ", THINKS | OFFICIAL, "so 2"),
    # A box of bounded length, and a megabyte of boxes that nest.
    (r"\boxed{" + MAX_BOX * "1" + "}", {}, r"\boxed{" + MAX_BOX * "1" + "}"),
    (r"\boxed{" + (MAX_BOX + 1) * "1" + "}", {}, None),
    (r"\boxed{" * 150_000 + "}" * 150_000, {}, None),
]


@pytest.mark.parametrize("row", range(len(PIECES)))
def test_the_piece_that_is_graded(row):
    """The table above, row by row."""
    response, options, piece = PIECES[row]
    assert graded_text(response, **{"thinks": False} | options) == piece


CONFIG = Config(model="worlds/base")
QUESTION = Question(0, "1+1?", np.array([5]), False, "1/2", "x", {"extra_info": {"k": 1}})


def make_grader(verifier, **knobs) -> tuple:
    """A grader and what makes token ids of its texts; turns end with <eos> and with `!`."""
    tokenizer, stop_ids = load_tokenizer(CONFIG)
    stop_ids += tokenizer.convert_tokens_to_ids(["!"])
    grader = Grader(Config(model=CONFIG.model, **knobs), tokenizer, verifier, stop_ids)
    return grader, lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]


class Asked:
    """A verifier that keeps what it is asked."""

    def submit(self, *arguments) -> Future:
        self.arguments = arguments
        return Future()


def test_a_reward_of_the_users_own_is_given_text_answer_and_row():
    """Turn ends and padding are left out, other special tokens stay; math is given a piece."""
    asked = Asked()
    grader, ids_of = make_grader(asked, reward="mine:score")
    grader.submit(QUESTION, ids_of(r"<user>so \boxed{2}!<pad><eos>"))
    assert asked.arguments == (r"<user>so \boxed{2}", "1/2", QUESTION.row)
    grader, _ = make_grader(asked)
    grader.submit(QUESTION, ids_of(r"so \boxed{2}!"))
    assert asked.arguments == (r"\boxed{2}", "1/2")


@pytest.mark.parametrize("grader, unworked", [("strict", 0.0), ("official", 1.0)])
def test_rewards_by_the_real_verifier(grader, unworked):
    """Ids go in, rewards come out; an answer that is not worked out tells the graders apart."""
    config = Config(grader=grader)
    with make_verifier(config) as verifier:
        graded, ids_of = make_grader(verifier, grader=grader)
        responses = [r"\boxed{\frac{2}{4}}", r"\boxed{2}", "one half", r"\boxed{1-\frac{1}{2}}"]
        pending = [graded.submit(QUESTION, ids_of(response)) for response in responses]
        assert [one.result()["score"] for one in pending] == [1.0, 0.0, 0.0, unworked]
