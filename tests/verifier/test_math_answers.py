"""Which answers are equal: Math-Verify's equality and the spellings that it does not know."""

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from math_verify import parse, verify

from reward import graded_text
from verifier.math_answers import literals_equal, math_reward, official_reward

# A row is (gold answer, response without a thought, is it right). Where one says "lenient",
# Math-Verify is more generous than a teacher would be, and the table holds it to that.
VERDICTS = [
    # integers and decimals
    ("204", r"so \boxed{204}", True),
    ("204", r"so \boxed{205}", False),
    ("073", r"\boxed{73}", True),
    ("73", r"\boxed{073}", True),
    ("5", r"\boxed{-5}", False),
    ("+2", r"\boxed{2}", True),
    ("4.49", r"\boxed{4.48}", False),
    # fractions
    (r"\frac{1}{2}", r"\boxed{\dfrac{2}{4}}", True),
    (r"\frac{1}{2}", r"\boxed{0.5}", True),
    (r"\frac{1}{2}", r"\boxed{\frac{1}{3}}", False),
    (r"\frac{1}{3}", r"\boxed{0.33}", False),
    # percent
    (r"62.5\%", r"\boxed{0.625}", True),
    (r"25\%", r"\boxed{26\%}", False),
    # scientific notation, which Math-Verify alone reads as a multiple of Euler's number
    ("8.49e-4", r"\boxed{0.000849}", True),
    ("1e11", r"\boxed{10^{11}}", True),
    ("7.25e-11", r"\boxed{7.4 \times 10^{-12}}", False),
    # roots, powers, constants, functions
    (r"2\sqrt{3}", r"\boxed{\sqrt{13}}", False),
    (r"2\pi", r"\boxed{2}", False),
    (r"\log 8", r"\boxed{3\log 2}", True),
    (r"\binom{5}{2}", r"\boxed{10}", True),
    ("np.arcsin(10/13)", r"\boxed{\arcsin(10/13)}", True),
    # expressions
    ("x^2+2x+1", r"\boxed{(x+1)^2}", True),
    ("x^2+2x+1", r"\boxed{(x-1)^2}", False),
    ("x+1", r"\boxed{y+1}", False),
    ("2k", r"\boxed{k+k}", True),
    (r"\frac{t}{4} \sin (2 t)", r"\boxed{\frac{t}{2}\sin(t)\cos(t)}", True),
    # Math-Verify alone would take the last t for a unit.
    (r"\frac{t}{4} \sin (2 t)", r"\boxed{\frac{t}{2}\sin t\cos t}", True),
    (r"e^{-2t}", r"\boxed{\frac{1}{e^{2t}}}", True),
    (r"1+2i", r"\boxed{2i+1}", True),
    (r"1+2i", r"\boxed{1-2i}", False),
    # equations and assignments
    ("y=2x+1", r"\boxed{y=2x-1}", False),
    # intervals, sets, tuples
    (r"(1,2]", r"\boxed{[1,2]}", False),
    (r"[0, \frac{1}{2})", r"\boxed{[0, 0.5)}", True),
    (r"\{1,2\}", r"\boxed{\{2,1\}}", True),
    (r"\{1,2\}", r"\boxed{\{1,3\}}", False),
    ("(1,2)", r"\boxed{(2,1)}", False),
    (r"\{1,2\}", r"\boxed{(1,2)}", True),  # lenient
    # matrices
    (
        r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}",
        r"\boxed{\begin{pmatrix}1&2\\3&5\end{pmatrix}}",
        False,
    ),
    # units, text, choices
    ("12", r"\boxed{12 \text{ apples}}", True),
    (r"\text{Evelyn}", r"\boxed{\text{Briana}}", False),
    ("$2^{k}$", r"\boxed{2^k}", True),
    # which box
    ("2", r"first \boxed{1}, no: \boxed{2}", True),
    ("1", r"first \boxed{1}, no: \boxed{2}", False),
    ("2", r"\boxed{2} and then \boxed{3", True),  # cut off: the last balanced one counts
    ("3", r"\boxed{2} and then \boxed{3", False),
    ("3", r"\boxed{\boxed{3}}", True),
    (r"\{1\}", r"\boxed{\left\{ 1 \right\}}", True),
    ("3", r"the answer is 3", False),
    ("3", r"$3$", False),
    ("3", r"\boxed{}", False),
    ("3", "", False),
    ("3", r"\boxed 3", False),
    ("3", r"\boxed {3}", True),
    ("3", r"\boxed{3}}}} and }", True),
    ("3", r"{ \boxed{3}", True),
]


@pytest.mark.parametrize(("gold", "response", "right"), VERDICTS)
def test_verdicts(gold, response, right):
    """The table of answer pairs gets the verdicts it says, through the cut."""
    text = graded_text(response, thinking=False)
    assert (text is not None and math_reward(text, gold)["score"] == 1.0) == right


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.decimals(Decimal("0.1"), Decimal("10"), places=2), st.integers(-30, 30))
def test_scientific_notation(mantissa, exponent):
    """`1.5e7` is `1.5 \\times 10^{7}`, whoever writes it, and is no other power."""
    plain, latex = f"{mantissa}e{exponent}", rf"{mantissa} \times 10^{{{exponent}}}"
    assert math_reward(rf"\boxed{{{latex}}}", plain)["score"] == 1.0
    assert math_reward(rf"\boxed{{{plain}}}", latex)["score"] == 1.0
    for other in (exponent + 40, exponent - 1, -exponent - 1):
        assert math_reward(rf"\boxed{{{mantissa}e{other}}}", plain)["score"] == 0.0


def test_multiple_choice_answers():
    """The letter in the spellings that models use is right; another, two or a word are not."""
    right = [
        "C",
        r"\text{C}",
        "(C)",
        "C.",
        "C)",
        r"\textbf{(C)}",
        r"\text{(C) days become shorter}",
        "C: 12",
        "$C$",
        "C) 12",
        r"\textbf{(C)}\ 12",
        r"\textbf{(C)}12",
        "(C)~12",
        r"\mathrm{(C)}\quad 12",
        "C. A tiger hunts a deer.",
        "C. H and He only",
        "C. Vitamin D",
        r"\textit{C}",
    ]
    wrong = [
        "B",
        "(B)",
        "B) C",
        "(C) and (B)",
        "C) or D)",
        "C7",
        "Carbon",
        "C, D",
        "ABC",
        "c2",
        "(C) (B)",
        "C.B",
        "C. B.",
        "C. 12 D. 13",
        "C) 12 or D",
    ]
    for gold in "CI":  # I is the imaginary unit to Math-Verify
        answers = {answer: answer.replace("C", gold) for answer in right + wrong}
        scores = {
            a: math_reward(rf"\boxed{{{text}}}", gold)["score"] for a, text in answers.items()
        }
        assert {a for a in scores if scores[a]} == set(right)


def test_golds():
    """Golds that a box can hold and Math-Verify can read are told from others."""
    readable = ["5", r"\sqrt{2}", "$(1,1), (3,2)$", "-3./2", r"\text{Evelyn}", *"ABCDEFGHIJ"]
    assert all(math_reward(None, gold)["score"] for gold in readable)
    unreadable = ["", "t(0,4]", r"\sqrt{2", "7" * 1001]
    assert not any(math_reward(None, gold)["score"] for gold in unreadable)


@pytest.mark.parametrize(
    ("text", "gold", "right"),
    [
        ("The final answer is 5 - 9 = -4. So $-4$", "-4", 1.0),
        (r"it is \boxed{5-9}", "-4", 1.0),
        ("so 65 = 71", "72", 0.0),
        ("nothing", "1", 0.0),
    ],
)
def test_the_official_grader(text, gold, right):
    """The official grader is Math-Verify alone, on all of the text, box or not."""
    assert official_reward(text, gold) == right


LITERALS = st.one_of(
    st.integers(-20, 20).map("{:+d}".format),
    st.integers(-20, 20).map(lambda n: f"{n / 1e6:.7f}"),
    st.integers(-20, 20).map(lambda n: f"{(10**8 + n) / 1e8:.8f}"),
    st.integers(0, 10**20).map(str),
    st.integers(0, 30).map("{:04d}".format),
    st.decimals(-3, 3, places=2).map(str),
    st.builds(r"\frac{{{}}}{{{}}}".format, st.integers(-9, 9), st.integers(0, 9)),
    st.builds(r"{} \times 10^{{{}}}".format, st.integers(1, 9), st.integers(-3, 9)),
)


@settings(max_examples=600, deadline=None, derandomize=True)
@given(LITERALS, LITERALS)
def test_literals_get_math_verifys_verdict(gold, number):
    """Numbers that are compared here are equal where Math-Verify says so."""
    verdict = verify(parse(rf"\boxed{{{gold}}}"), parse(rf"\boxed{{{number}}}"))
    assert literals_equal(gold, number) in (None, verdict)
