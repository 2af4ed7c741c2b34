"""Multiple choice: answers by letter, as ARC-c, GPQA and MMLU-Pro have them."""

from reward import graded_text
from verifier.math_answers import math_reward


def test_multiple_choice_answers():
    """The letter as models spell it is right; another, two of them, a word are wrong; A to J are golds."""
    right = ["C", r"\text{C}", "(C)", "C.", "C)", r"\textbf{(C)}", "C: 12", "$C$", "C) 12"]
    right.append(r"\text{(C) days become shorter}")
    wrong = ["B", "(B)", "B) C", "(C) and (B)", "C) or D)", "C7", "Carbon", "C, D", "ABC", "c2", ""]
    for gold in "CI":  # I is the imaginary unit to Math-Verify
        boxes = {answer: rf"\boxed{{{answer}}}".replace("C", gold) for answer in right + wrong}
        verdicts = {answer: math_reward(graded_text(box, False) or "", gold) for answer, box in boxes.items()}
        assert {answer for answer, verdict in verdicts.items() if verdict} == set(right)
    assert all(math_reward(None, gold) for gold in "ABCDEFGHIJ")
