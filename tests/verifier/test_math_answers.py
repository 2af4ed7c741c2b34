"""Which answers are equal: Math-Verify's equality and the spellings that it does not know."""

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from math_verify import parse, verify

from tests.verifier.answers import paid, refused
from verifier.math_answers import literals_equal, math_reward, official_reward

# At (1,2) for a set Math-Verify is more generous than a teacher would be, and the table holds it to
# that.
EQUAL = {  # gold: right answers
    # integers and decimals
    "73": "073",
    "+2": "2",
    # percent
    r"62.5\%": "0.625",
    # scientific notation, which Math-Verify alone reads as a multiple of Euler's number
    "1e11": "10^{11}",
    # roots, powers, constants, functions
    r"\log 8": r"3\log 2",
    r"\binom{5}{2}": "10",
    "np.arcsin(10/13)": r"\arcsin(10/13)",
    # expressions
    "x^2+2x+1": "(x+1)^2",
    "2k": "k+k",
    # Math-Verify alone would take the last t for a unit.
    r"\frac{t}{4} \sin (2 t)": r"\frac{t}{2}\sin(t)\cos(t) | \frac{t}{2}\sin t\cos t",
    "e^{-2t}": r"\frac{1}{e^{2t}}",
    # intervals, sets, tuples
    r"\{1,2\}": "(1,2)",
    # units, text, choices
    r"\{1\}": r"\left\{ 1 \right\}",
}

UNEQUAL = {  # gold: wrong answers
    # integers and decimals
    "4.49": "4.48",
    # roots, powers, constants, functions
    # expressions
    "x^2+2x+1": "(x-1)^2",
    "x+1": "y+1",
    "1+2i": "1-2i",
    # equations and assignments
    # intervals, sets, tuples
    "(1,2]": "[1,2]",
    r"\{1,2\}": r"\{1,3\}",
    # matrices
    r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}": r"\begin{pmatrix}1&2\\3&5\end{pmatrix}",
}


def test_verdicts():
    """The answers of both tables get the verdicts that they are to have."""
    assert not refused(EQUAL)
    assert not paid(UNEQUAL)


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
    right = (
        r"C | \text{C} | (C) | C. | C) | \textbf{(C)} | \text{(C) days become shorter} | C: 12 | "
        r"$C$ | C) 12 | \textbf{(C)}\ 12 | \textbf{(C)}12 | (C)~12 | \mathrm{(C)}\quad 12 | "
        r"\textit{C} | C. A tiger hunts a deer. | C. H and He only | C. Vitamin D"
    )
    wrong = (
        "B | (B) | B) C | (C) and (B) | C) or D) | C7 | Carbon | C, D | ABC | c2 | (C) (B) | "
        "C.B | C. B. | C. 12 D. 13 | C) 12 or D"
    )
    for gold in "CI":  # I is the imaginary unit to Math-Verify
        assert not refused({gold: right.replace("C", gold)})
        assert not paid({gold: wrong.replace("C", gold)})


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
