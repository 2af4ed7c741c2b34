"""Which answers are right: by shape, by Math-Verify's equality, and by being an answer at all."""

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from math_verify import parse, verify

from tests.verifier.answers import (
    HONEST,
    HONEST_ASIDE,
    LEAKS,
    LEAKS_ASIDE,
    OTHER_WORDS,
    WORDS,
    paid,
    pairs,
    refused,
    rewards,
)
from verifier.math_answers import literals_equal, math_reward, official_reward

EQUAL = r"""
# numbers
+2 :: 2
5\%,6\% :: 6, 5
# roots, powers, constants, functions
\log 8 :: 3\log 2
\binom{5}{2} :: 10
np.arcsin(10/13) :: \arcsin(10/13)
-i :: -1i
# expressions
x^2+2x+1 :: (x+1)^2
2k :: k+k
# Math-Verify alone would take the last t for a unit.
\frac{t}{4} \sin (2 t) :: \frac{t}{2}\sin(t)\cos(t) | \frac{t}{2}\sin t\cos t
e^{-2t} :: \frac{1}{e^{2t}}
# ratios and clock times
1:2:3 :: 1:2:3 | 2:4:6
3:2 :: x:y = 3:2 | 6 : 4 | \frac{3}{2}
9:16 :: \frac{9}{16}
12:30 :: 12:30
7:05 :: 07:05
# pairs and intervals
(2,6) :: x=2, y=6 | y=6, x=2 | (x,y)=(2,6) | 2, 6
(3,\frac{\pi}{2}) :: r=3, \theta=\frac{\pi}{2}
(1,2),(1,-2) :: (1,\pm2)
2<x<3 :: (2,3) | 3>x>2 | x \in (2,3)
[-3,3) :: -3 \le x < 3 | 3 > x \geq -3
x\le2 \text{ or } x\ge5 :: (-\infty,2]\cup[5,\infty) | x\ge5, x\le2
(-\infty,0)\cup(0,\infty) :: x \ne 0
\mathbb{R} :: x \in \mathbb{R}
# sets and lists
\{1\} :: \left\{ 1 \right\} | x=1 | 1 | [1]
3,5 :: \{5,3\} | a=3, b=5 | b=5, a=3 | x_1=5, x_2=3 | (3,5)
1,1,2 :: 2,1,1
# named values, equations
a=5, b=3 :: b=3, a=5 | a=5,b=3 | 5, 3 | (5,3) | (a,b)=(5,3)
(a,b)=(5,3) :: b=3, a=5
\text{mean}=3,\text{median}=4 :: \text{median}=4,\text{mean}=3 | 3,4
x=3 :: 3=x
x+y=5 :: y=5-x
# found by attacks: a space after ± is typography, a solution set may have a name
2,-2 :: \pm 2
\pm2 :: x=\pm 2
\{-3,3\} :: \pm 3
\frac{d}{2} :: \frac{\mathrm{d}}{2}
71 :: \textbf{71}
1,2 :: x \in \{1,2\}
x>3 :: 3<x
x>a+1 :: x-1>a
# units
5' :: 5' | 5 | 5\text{ minutes}
30'' :: 30" | 30^{\prime\prime}
5^\circ 30' :: 5^\circ30'
"""

UNEQUAL = r"""
# numbers
4.49 :: 4.48
# expressions
x^2+2x+1 :: (x-1)^2 | (y+1)^2
1+2i :: 1-2i | 1+21i
# ratios and clock times
1:2:3 :: 1:3:2 | \frac{1}{6} | 3:2:1
\frac{1}{2} :: 1:2
3:4 :: 4:3 | (3,4) | 3,4
12:30 :: 0.4 | 2:5 | 12.5
7:05 :: \frac{7}{5}
# pairs and intervals
(1,2] :: [1,2]
(1,2) :: x=1, x=2 | y=1, x=2 | [1,2] | \{1,2\} | (2,1) | 2,1 | 1 \le x \le 2
(-\sqrt{3},\sqrt{3}) :: x=\pm\sqrt{3}
2<x<3 :: \{2,3\} | 2,3 | 2<y<3
(-\infty,1)\cup(3,\infty) :: x<1 | x<3 or x>1
(-\infty,2) :: |x|<2 | \sqrt{x}<2
# sets and lists
\{1,2\} :: \{1,3\} | (1,2) | [1,2]
1,2 :: (2,1) | 1<x<2 | x \in (1,2) | x \in \{1,1+1\}
1,1,2 :: 1,2,2
(1,2),(3,4) :: (2,1),(3,4) | \{1,2\},\{3,4\}
# named values and equations
m \frac{d v}{d t}+b v=f :: m \frac{d v}{d t}+b v
a=5, b=3 :: 3,5 | (3,5) | \{3,5\} | a=5 | (b,a)=(5,3)
3,5 :: a=5, b=3
x=1,y=2,z=3 :: 3,2,1
\text{mean}=3,\text{median}=4 :: 4,3
# found by attacks: what is still to be worked out, numbers side by side
7,3 :: 5\pm 2
x^2-1 :: \frac{\mathrm{d}}{\mathrm{d}x}(\frac{x^3}{3}-x)
2x :: \frac{\mathrm{d}(x^2)}{\mathrm{d}x}
71 :: 71\textbf{65}
$k \geqslant 2$ :: 3k-1 \geq 2k+1
# primes
5' :: 5'' | 5^\circ | 5^{\prime\prime}
# matrices
\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix} :: \begin{pmatrix}1&2\\3&5\end{pmatrix}
\begin{pmatrix} 1 \\ 2 \end{pmatrix} :: \begin{pmatrix} 1 & 2 \end{pmatrix}
"""


@pytest.mark.parametrize("table", [EQUAL, HONEST, HONEST_ASIDE], ids=["equal", "honest", "aside"])
def test_right_answers(table):
    """Typography, units, names, equal forms, orders, chains and shapes of golds are right."""
    assert not refused(table)


def test_wrong_answers():
    """Another value is wrong, and so are the same values in another shape."""
    assert not paid(UNEQUAL)


def test_leaks():
    """What is to be worked out, or says more or less than the gold, is wrong and counted."""
    leaked = {"score": 0.0, "unevaluated": 1.0}  # equal to Math-Verify
    assert not [pair for pair in pairs(LEAKS) if rewards(*pair) != leaked]
    assert not paid(LEAKS_ASIDE)


def test_words_units_and_what_looks_like_them():
    """One unit may be left out or spelt otherwise, while other words, letters and primes count.

    What is a product is none of these.
    """
    assert not refused(WORDS)
    assert not paid(OTHER_WORDS)


def test_golds_that_are_text():
    """Words, prose, letters in order and senseless brackets are; units and products are not."""
    golds = [r"\text{east}", "listen", "IV", r"5\text{ ft }6\text{ in}", "t(0,4]]"]
    golds += [r"$f(x)=a x+b$, where $b$ is an arbitrary integer"]
    assert all(math_reward(None, gold)["as_text"] for gold in golds)
    others = [r"5\text{ ft}", "2xy", "B", r"\text{(C)}", r"\text{Area} = 12", "$221,$8$", "f'(x)"]
    assert not any(math_reward(None, gold)["as_text"] for gold in others)


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
        r"\textit{C} | C. A tiger hunts a deer. | C. H and He only | C. Vitamin D | C.(12)"
    )
    wrong = (
        "B | (B) | B) C | (C) and (B) | C) or D) | C7 | Carbon | C, D | ABC | c2 | (C) (B) | "
        "C.B | C. B. | C. 12 D. 13 | C) 12 or D"
    )
    for gold in "CI":  # I is the imaginary unit to Math-Verify
        assert not refused(f"{gold} :: {right.replace('C', gold)}")
        assert not paid(f"{gold} :: {wrong.replace('C', gold)}")


def test_golds():
    """Golds that a box can hold and Math-Verify can read are told from others."""
    readable = ["5", r"\sqrt{2}", "$(1,1), (3,2)$", "-3./2", r"\text{Evelyn}", *"ABCDEFGHIJ"]
    assert all(math_reward(None, gold)["score"] for gold in readable)
    unreadable = ["", " \u3000", "t(0,4]", r"\sqrt{2", "7" * 1001]
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
