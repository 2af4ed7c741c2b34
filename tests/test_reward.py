r"""Eq. 1 from the outside: which piece of a response is graded, and what goes to the grader."""

import pytest

from config import Config
from data import load_tokenizer
from reward import MAX_BOX, Grader, graded_text

THINKS = {"thinks": True}
LOOSE = {"require_box": False}
OFFICIAL = {"grader": "official"}
OWN = {"reward": "ones.own:reward"}
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
    # A reward of the user's own is given all.
    (r"<think> \boxed{1}. Hmm ", OWN, r"<think> \boxed{1}. Hmm "),
    # A box of bounded length, and a megabyte of boxes that nest.
    (r"\boxed{" + MAX_BOX * "1" + "}", {}, r"\boxed{" + MAX_BOX * "1" + "}"),
    (r"\boxed{" + (MAX_BOX + 1) * "1" + "}", {}, None),
    (r"\boxed{" * 150_000 + "}" * 150_000, {}, None),
]


@pytest.mark.parametrize("row", range(len(PIECES)))
def test_the_piece_that_is_graded(row):
    """The table above, row by row."""
    response, options, piece = PIECES[row]
    knobs = dict(options)
    thinks = knobs.pop("thinks", False)
    assert graded_text(response, thinks, Config(**knobs)) == piece


GRADED = [r"\boxed{\frac{2}{4}}", r"\boxed{2}", "one half", r"\boxed{1-\frac{1}{2}}"]


@pytest.mark.parametrize("name, unworked", [("strict", 0.0), ("official", 1.0)])
def test_rewards_by_the_real_verifier(name, unworked):
    """Ids go in, rewards come out; an answer that is not worked out tells the graders apart.

    Turn ends (<eos> and `!`) and padding are left out of a text, other special tokens stay.
    """
    config = Config(model="worlds/base", grader=name)
    tokenizer, stop_ids = load_tokenizer(config)
    stop_ids += tokenizer.convert_tokens_to_ids(["!"])
    with Grader(config, tokenizer, stop_ids) as grader:
        ids = tokenizer(r"<user>so \boxed{2}!<pad><eos>", add_special_tokens=False)["input_ids"]
        assert grader.text(ids) == r"<user>so \boxed{2}"
        pieces = [graded_text(response, False, config) for response in GRADED]
        assert grader.score(pieces, ["1/2"] * 4) == [1.0, 0.0, 0.0, unworked]
