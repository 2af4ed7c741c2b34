"""Questions of reasoning-gym: what a response states, what is graded, what is refused."""

import json

import pytest

from worlds import gym

SUM = ("chain_sum", {"max_terms": 2, "max_digits": 1})


@pytest.mark.parametrize(
    "response, said",
    [
        ("5 - 9 = -4", "-4"),
        ("It is **12**.", "12"),
        ("The result is −4.", "-4"),
        ("so 1,024.", "1,024"),
        (r"3 and 4, so \boxed{7}. Not 8.", "7"),
        ("3 + 4\n**Answer:** 7", "7"),
        (r"\(3 \times 4 = 12\)", "12"),
        ("$5 + 2 = 7$", "7"),
        ("The GCD of 27 and 9 is 9.", "9"),
        # restated, or not said
        ("The final answer is 5 - 9.", None),
        (r"\boxed{0 + 9}", None),
        ("Answer: 3 * 4", None),
        (r"3 \times 4", None),
        ("The LCM of these numbers: 3, 12", None),
        ("the LCM of 3 and 12", None),
        ("3 12", None),
        ("5 -9", None),
        ("2**3", None),
        ("x2", None),
        ("seven", None),
        # said in passing: the first from a trained model
        ("It can be found by simply adding 2 to 4. \nTo express this", None),
        # cut in the middle: the first from the base model, asked for gcd(28, 26)
        ("28 = 2 * 27 * 5 and 26 = 2 * ", None),
    ],
)
def test_a_number_stated(response, said):
    """What a box, an answer or the text ends with counts, no operand, no member of a list."""
    assert gym.stated(response, True) == said


@pytest.mark.parametrize(
    "response, said",
    [
        ("reversed:\n tac ", "tac"),
        ("Hm.\nAnswer: tac\ncat", "tac\ncat"),
        (r"Answer: no. \boxed{tac}", "tac"),
        ("Answer:", None),
    ],
)
def test_another_answer_stated(response, said):
    """A box is the answer, else what follows `Answer:`, else the last line."""
    assert gym.stated(response, False) == said


def test_a_long_response_is_read_quickly():
    """Megabytes of what the patterns look for take no more than their last characters."""
    for text in ("answer " * 10**6, r"\boxed{" * 10**6, "1 " * 10**6, "**" * 10**6, "(" * 10**6):
        assert gym.stated(text, True) is None


# ---- with the library ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def library():
    return pytest.importorskip("reasoning_gym", reason=gym.INSTALL)


def test_questions_are_apart(library):
    """No question stands twice or in both files; a seed draws the same, another does not."""
    train, test = gym.rows(*SUM, 0, 300, 60, "sum", "Be brief.")
    asked = [row["prompt"][-1]["content"] for row in train + test]
    assert len(set(asked)) == len(asked)
    assert len(test) > 40
    assert len(train) > 100
    assert train[0]["prompt"][0] == {"role": "system", "content": "Be brief."}
    assert gym.rows(*SUM, 0, 300, 60, "sum", "Be brief.") == (train, test)
    assert gym.rows(*SUM, 1, 300, 60, "sum", "Be brief.")[0] != train


def test_scores(library):
    """What is stated last is graded by the library, and full marks alone count."""
    entry = {"question": "5 - 9 =", "answer": "-4", "metadata": {}}
    row = {"extra_info": {"gym": json.dumps([*SUM, entry])}}
    graded = {
        "It is -4.": 1,
        "Answer: -4.0": 1,
        "The final answer is 5 - 9.": 0,
        "-45": 0,
        "4": 0,
        "": 0,
    }
    assert {text: gym.score(text, "-4", row) for text in graded} == graded
    # The library gives 2/3 to an answer that contains the right one, which would be a success.
    twelve = json.dumps([*SUM, {"question": "", "answer": "12"}])
    assert gym.marks(gym.dataset(SUM[0], "{}"), "123", json.loads(twelve)[2]) > 0.5
    assert gym.score("123", "12", {"extra_info": {"gym": twelve}}) == 0


@pytest.mark.parametrize(
    "name, reason",
    [
        ("graph_color", "come with the answer None"),
        ("game_of_life_halting", "full marks to any text"),
        ("countdown", "run it as Python code"),
    ],
)
def test_refused_with_the_reason(library, name, reason):
    """A task is refused whose scorer cannot grade from text."""
    with pytest.raises(ValueError, match=f"gym:{name} cannot be graded from text: .*{reason}"):
        gym.rows(name, {}, 0, 8, 4, name)


def test_unknown_tasks_and_settings(library):
    """Each is refused by name, with what there is."""
    with pytest.raises(ValueError, match="no such task; there are .*chain_sum"):
        gym.rows("sums", {}, 0, 1, 1, "sums")
    with pytest.raises(ValueError, match="gym:chain_sum, --set: .*max_term"):
        gym.rows("chain_sum", {"max_term": 2}, 0, 1, 1, "sums")


def test_answers_are_never_run(library, tmp_path):
    """A scorer that evaluates what is no plain answer gets no further."""
    task, touched = gym.dataset("string_insertion", "{}"), tmp_path / "touched"
    code = f"[c for c in open({str(touched)!r}, 'w').name]"
    assert gym.marks(task, code, {"answer": "ABC"}) == 0
    assert not touched.exists()
    task.score_answer(code, {"answer": "ABC"})  # what it would have done
    assert touched.exists()
