"""Questions of reasoning-gym: what a response states, what is graded, what is refused."""

import json

import pytest

pytest.importorskip("reasoning_gym", reason="pip install -r requirements-smollm2.txt")

from worlds import gym  # noqa: E402


@pytest.mark.parametrize(
    "response, said",
    [
        ("It is **12**.", "12"),
        ("The result is −4.", "-4"),
        (r"3 and 4, so \boxed{7}. Not 8.", "7"),
        ("3 + 4\n**Answer:** 7", "7"),
        (r"\(3 \times 4 = 12\)", "12"),
        # restated, or not said
        ("The final answer is 5 - 9.", ""),
        (r"\boxed{0 + 9}", ""),
        ("the LCM of 3 and 12", ""),
        ("2**3", ""),
        # said in passing, or cut in the middle
        ("It can be found by simply adding 2 to 4. \nTo express this", ""),
        ("28 = 2 * 27 * 5 and 26 = 2 * ", ""),
        ("answer " * 10**6, ""),  # which is read quickly
    ],
)
def test_a_number_stated(response, said):
    """What a box, an answer or the text ends with counts, no operand, no member of a list."""
    assert gym.stated(response, "12") == said


def test_another_answer_stated():
    """A box is the answer, else what follows `Answer:`, else all of the text."""
    assert gym.stated(r"Answer: no. \boxed{tac}", "cat") == "tac"
    assert gym.stated("Hm.\nAnswer: tac\ncat", "cat") == "tac\ncat"
    assert gym.stated(" tac ", "cat") == "tac"


def test_questions_of_a_task():
    """No question stands twice, another seed draws others, and the gold is right."""
    settings = {"max_terms": 2, "max_digits": 1}
    drawn = list(gym.gym_rows("chain_sum", 300, 0, settings))
    questions = [row["question"] for row in drawn]
    assert len(set(questions)) == len(questions) > 100
    assert list(gym.gym_rows("chain_sum", 300, 1, settings)) != drawn
    answer = drawn[0]["answer"]
    assert gym.score(answer, answer, drawn[0]) == 1


def row_of(task: str, answer: str) -> dict:
    entry = {"question": "", "answer": answer, "metadata": {}}
    return {"extra_info": {"task": task, "settings": "{}", "entry": json.dumps(entry)}}


@pytest.mark.parametrize(
    "response, score", [("It is -4.", 1), ("Answer: -4.0", 1), ("5 - 9", 0), ("-45", 0)]
)
def test_scores(response, score):
    """What is stated last is graded by the library, and full marks alone count."""
    assert gym.score(response, "-4", row_of("chain_sum", "-4")) == score


def test_a_task_that_cannot_be_graded_from_text_is_refused():
    """The scorer of countdown would have to run its own answer as code."""
    with pytest.raises(ValueError, match="countdown gives no full marks to its own answer"):
        list(gym.gym_rows("countdown", 4, 0, {}))


def test_answers_are_never_run(tmp_path):
    """A scorer that evaluates what is no plain answer gets no further."""
    touched = tmp_path / "touched"
    code = f"[c for c in open({str(touched)!r}, 'w').name]"
    row = row_of("string_insertion", "ABC")
    assert gym.score(code, "ABC", row) == 0
    assert not touched.exists()
    gym.scorer_of("string_insertion", "{}").score_answer(code, {"answer": "ABC"})
    assert touched.exists()  # what it would have done
