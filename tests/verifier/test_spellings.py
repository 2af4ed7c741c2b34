"""Spellings that Math-Verify takes for something else: their worth, and a quick reading."""

import time

import pytest

from verifier.math_answers import math_reward
from verifier.spellings import both_signs, latex

PAIRS = [  # gold, answer, is it right
    # vectors and systems
    (r"\langle 1, 2, 3 \rangle", r"\langle 9, 9, 3 \rangle", False),
    (r"\left\langle 1, -2, 3 \right\rangle", r"\langle 1,-2,3\rangle", True),
    (r"\langle 2,3\rangle", "(2,3)", True),
    (r"\begin{cases} x=1 \\ y=2 \end{cases}", r"\begin{cases} x=5 \\ y=2 \end{cases}", False),
    (r"\begin{cases} x=1 \\ y=2 \end{cases}", r"\begin{cases}x=1\\y=2\end{cases}", True),
    (r"\begin{cases} x=1 \\ y=2 \end{cases}", "x=1,y=2", True),
    ("x=1,y=2", r"\begin{cases} x=7 \\ y=2 \end{cases}", False),
    ("(1,2)", r"\begin{cases} x=1 \\ y=2 \end{cases}", True),
    # a full stop
    (r"2\sqrt3", r"2\sqrt{3}.", True),
    ("(1,2)", "(1,2).", True),
    (r"\text{Evelyn}", "Evelyn.", True),
    ("12", r"12\text{ cm}.", True),
    (r"25\%", r"25\%.", True),
    ("5", "5 .", True),
    # repeating decimals
    (r"0.\overline{27}", "0", False),
    (r"0.\overline{27}", r"\frac{3}{11}", True),
    (r"1.\overline{3}", "3", False),
    (r"1.\overline{3}", "4/3", True),
    (r"3.\bar{6}", r"\frac{11}{3}", True),
    (r"0.1\overline{6}", r"\frac16", True),
    (r"\frac13", r"0.\overline{3}", True),
    (r"-0.\overline{3}", r"-\frac13", True),
    (r".\overline{3}", "1/3", True),
    (r"\frac13", "0.333", False),
    # small numbers
    ("1.6e-19", "9.1e-31", False),
    ("9.11e-31", r"9.11\times10^{-31}", True),
    ("1.38e-23", "-1e-20", False),
    (".0000672", "0.0000674", False),
    ("0", "1e-9", False),
    ("0", "0.0", True),
    ("1e-9", "0", False),
    ("0.0005", r"\frac{1}{2000}", True),
    ("e^{-50}", "e^{-60}", False),
    ("e^{-50}", r"\frac{1}{e^{50}}", True),
    ("1+e^{-50}", "1+e^{-60}", False),
    ("e^{-50}", "e^{-50}=e^{-60}", False),
    (r"\frac{7}{6^{22}}", r"\frac{5}{6^{22}}", False),
    (r"\frac{7}{6^{22}}", r"\frac{42}{6^{23}}", True),
    (r"\frac{1}{100!}", r"\frac{1}{99!}", False),
    ("0.5^{60}", "0.5^{61}", False),
    (r"(e^{-50},1)", "(e^{-60},1)", False),
    (r"\{e^{-50},1\}", r"\{e^{-60},1\}", False),
    (
        r"\begin{pmatrix} e^{-50} \\ 1 \end{pmatrix}",
        r"\begin{pmatrix} e^{-60} \\ 1 \end{pmatrix}",
        False,
    ),
    ("x<e^{-50}", "x<e^{-60}", False),
    ("x=10^{-20}", "x=10^{-21}", False),
    (r"\frac{3}{10^8}", "0.00000003", True),
    (r"\frac{3}{10^8}", "0.00000004", False),
    (r"\frac{1}{2598960}", "0.000000384769", True),
    (r"\frac{1}{2598960}", "0.0", False),
    (r"0.00001\%", r"0.00002\%", False),
    (r"\frac{\pi}{10000}", "0.000314159", True),
    (r"\sqrt{0.02}", r"\frac{\sqrt{2}}{10}", True),
    # words that multiply
    ("25", r"25\text{ percent}", False),
    (r"25\%", r"25\text{ percent}", True),
    ("0.25", r"25\text{ percent}", True),
    ("5", r"5\text{ million}", False),
    ("5000000", r"5\text{ million}", True),
    (r"5 \text{ million}", "5", False),
    (r"5 \text{ million}", "5000000", True),
    ("1200000", "1.2 million", True),
    ("5", r"5\text{ thousand}", False),
    # Unicode
    (r"2\sqrt{3}", "2√3", True),
    (r"\sqrt{x^2+1}", "√(x²+1)", True),
    (r"\sqrt{(x+1)(x+2)}", "√((x+1)(x+2))", True),
    (r"\sqrt{\frac{1}{2}}", "√½", True),
    (r"\sqrt[3]{12}", "∛12", True),
    ("2√3", r"2\sqrt{3}", True),
    ("x^2+1", "x²+1", True),
    ("x^{12}", "x¹²", True),
    ("x^2", "x2", False),
    ("3", "3²", False),
    ("e^{-2x}", "e⁻²ˣ", True),
    (r"6.72 \times 10^{-5}", "6.72×10⁻⁵", True),
    ("x_{10}", "x₁₀", True),
    (r"\frac{1}{2}", "½", True),
    ("5.5", "5½", True),
    (r"\frac{3}{4}", "³⁄₄", True),
    (r"-\frac{3}{4}", "−3⁄4", True),
    (r"(2,\infty)", "（2，∞）", True),
    (r"x \in [-2,7]", "x ∈ [−2,7]", True),
    (r"(0,9) \cup (9,36)", "(0,9)∪(9,36)", True),
    (r"\mathbb{R}", "ℝ", True),
    ("-5", "–5", True),
    ("5", "–5", False),
    ("1234567", "1\u00a0234\u202f567", True),
    ("5", "５", True),
    ("5", "𝟓", True),
    ("5", "5\u200b", True),
    (r"\frac{\pi}{2}", "π/2", True),
    (r"2\alpha", "2α", True),
    ("f'(x)", "f′(x)", True),
    (r"\langle 1,2\rangle", "⟨1,2⟩", True),
    ("71", "71⟨x⟩", False),
    ("90^\\circ", "90º", True),
    # ± in brackets
    (r"\frac{1+\sqrt5}{2},\frac{1-\sqrt5}{2}", r"\frac{1\pm\sqrt{5}}{2}", True),
    (r"\frac12\pm\frac{\sqrt5}{2}", r"\frac{1\pm\sqrt{5}}{2}", True),
    (r"\frac{-3\pm\sqrt{5}}{2}", r"\frac{-3+\sqrt5}{2},\frac{-3-\sqrt5}{2}", True),
    (r"\frac{-3\pm\sqrt{5}}{2}", r"\frac{-3+\sqrt5}{2}", False),
    (r"\frac{-3\pm\sqrt{5}}{2}", r"\frac{3\pm\sqrt5}{2}", False),
    (r"x=\frac{1\pm\sqrt5}{2}", r"\frac{1\pm\sqrt5}{2}", True),
    (r"2(1\pm\sqrt3)", r"2\pm2\sqrt3", True),
    # the whole line
    (r"(-\infty,\infty)", r"\mathbb{R}", True),
    (r"\mathbb{R}", r"(-\infty,\infty)", True),
]


@pytest.mark.parametrize(("gold", "answer", "right"), PAIRS)
def test_verdicts(gold, answer, right):
    """A right answer is paid however it is spelt, and a wrong one is not."""
    assert math_reward(rf"\boxed{{{answer}}}", gold)["score"] == right


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{1\pm2}",
        r"\boxed{(1, \pm 2)}",
        r"\boxed{(\pm1)(\pm2)}",
        r"1 (\pm 2)",
        r"\boxed{\boxed{1\pm2}}",
    ],
)
def test_other_signs_stay(text):
    """A ± outside of brackets, one of two, and one in a list are Math-Verify's to read."""
    assert both_signs(text) == text


@pytest.mark.parametrize(
    "piece",
    [r"\begin{cases}", " ", "1 ", "1. ", "}", r"0.\overline{3}", "1 million ", "("]
    + ["²", "√(", "√(a)", "√", "¹⁄₂", "1,234", "1~", "1 hundred hundred x", "123456789.12345678 "],
)
def test_hostile_text_is_read_quickly(piece):
    """A hundred thousand characters of anything take less than a second."""
    start = time.process_time()
    latex("\\boxed{" + piece * (100_000 // len(piece)) + "}")
    assert time.process_time() - start < 1
