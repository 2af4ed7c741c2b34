"""Spellings that Math-Verify takes for something else: their worth, and a quick reading."""

import time

import pytest

from tests.verifier.answers import paid, refused
from verifier.spellings import latex

SPELLINGS = {  # gold: right answers
    # vectors and systems
    r"\left\langle 1, -2, 3 \right\rangle": r"\langle 1,-2,3\rangle",
    r"\langle 2,3\rangle": "(2,3)",
    r"\begin{cases} x=1 \\ y=2 \end{cases}": r"\begin{cases}x=1\\y=2\end{cases} | x=1,y=2",
    "(1,2)": r"\begin{cases} x=1 \\ y=2 \end{cases} | (1,2).",
    # a full stop
    r"2\sqrt3": r"2\sqrt{3}.",
    r"\text{Evelyn}": "Evelyn.",
    "12": r"12\text{ cm}.",
    r"25\%": r"25\%. | 25\text{ percent}",
    "5": "5 . | ５ | 𝟓 | 5\u200b",
    # repeating decimals
    r"0.\overline{27}": r"\frac{3}{11}",
    r"1.\overline{3}": "4/3",
    r"3.\bar{6}": r"\frac{11}{3}",
    r"0.1\overline{6}": r"\frac16",
    r"\frac13": r"0.\overline{3} | 0.(3)",
    r"\frac16": "0.1(6)",
    r"-0.\overline{3}": r"-\frac13",
    r".\overline{3}": "1/3",
    # small numbers
    "9.11e-31": r"9.11\times10^{-31}",
    "0": "0.0",
    "0.0005": r"\frac{1}{2000}",
    "e^{-50}": r"\frac{1}{e^{50}}",
    r"\frac{7}{6^{22}}": r"\frac{42}{6^{23}}",
    r"\frac{3}{10^8}": "0.00000003",
    r"\frac{1}{2598960}": "0.000000384769",
    r"\frac{\pi}{10000}": "0.000314159",
    r"\sqrt{0.02}": r"\frac{\sqrt{2}}{10}",
    # words that multiply
    "0.25": r"25\text{ percent}",
    "5000000": r"5\text{ million}",
    r"5 \text{ million}": "5000000",
    "1200000": "1.2 million",
    # Unicode
    r"2\sqrt{3}": "2√3",
    r"\sqrt{x^2+1}": "√(x²+1)",
    r"\sqrt{(x+1)(x+2)}": "√((x+1)(x+2))",
    r"\sqrt{\frac{1}{2}}": "√½",
    r"\sqrt[3]{12}": "∛12",
    "2√3": r"2\sqrt{3}",
    "x^2+1": "x²+1",
    "x^{12}": "x¹²",
    "e^{-2x}": "e⁻²ˣ",
    r"6.72 \times 10^{-5}": "6.72×10⁻⁵",
    "x_{10}": "x₁₀",
    r"\frac{1}{2}": "½",
    "5.5": "5½",
    r"\frac{3}{4}": "³⁄₄",
    r"-\frac{3}{4}": "−3⁄4",
    r"(2,\infty)": "（2，∞）",
    r"x \in [-2,7]": "x ∈ [−2,7]",
    r"(0,9) \cup (9,36)": "(0,9)∪(9,36)",
    r"\mathbb{R}": r"ℝ | (-\infty,\infty)",
    "-5": "–5",
    "1234567": "1\u00a0234\u202f567",
    r"\frac{\pi}{2}": "π/2",
    r"2\alpha": "2α",
    "f'(x)": "f′(x)",
    r"\langle 1,2\rangle": "⟨1,2⟩",
    r"90^\circ": "90º",
    # ± in brackets
    r"\frac{1+\sqrt5}{2},\frac{1-\sqrt5}{2}": r"\frac{1\pm\sqrt{5}}{2}",
    r"\frac12\pm\frac{\sqrt5}{2}": r"\frac{1\pm\sqrt{5}}{2}",
    r"\frac{-3\pm\sqrt{5}}{2}": r"\frac{-3+\sqrt5}{2},\frac{-3-\sqrt5}{2}",
    r"x=\frac{1\pm\sqrt5}{2}": r"\frac{1\pm\sqrt5}{2}",
    r"2(1\pm\sqrt3)": r"2\pm2\sqrt3",
    # the whole line
    r"(-\infty,\infty)": r"\mathbb{R}",
}

MISREADINGS = {  # gold: wrong answers
    # vectors and systems
    r"\langle 1, 2, 3 \rangle": r"\langle 9, 9, 3 \rangle",
    r"\begin{cases} x=1 \\ y=2 \end{cases}": r"\begin{cases} x=5 \\ y=2 \end{cases}",
    "x=1,y=2": r"\begin{cases} x=7 \\ y=2 \end{cases}",
    # a full stop
    "5": r"5\text{ million} | 5\text{ thousand} | –5",
    # repeating decimals
    r"0.\overline{27}": "0",
    r"1.\overline{3}": "3",
    r"\frac13": "0.333",
    # small numbers
    "1.6e-19": "9.1e-31",
    "1.38e-23": "-1e-20",
    ".0000672": "0.0000674",
    "0": "1e-9",
    "1e-9": "0",
    "e^{-50}": "e^{-60} | e^{-50}=e^{-60}",
    "1+e^{-50}": "1+e^{-60}",
    r"\frac{7}{6^{22}}": r"\frac{5}{6^{22}}",
    r"\frac{1}{100!}": r"\frac{1}{99!}",
    "0.5^{60}": "0.5^{61}",
    "(e^{-50},1)": "(e^{-60},1)",
    r"\{e^{-50},1\}": r"\{e^{-60},1\}",
    r"\begin{pmatrix} e^{-50} \\ 1 \end{pmatrix}": r"\begin{pmatrix} e^{-60} \\ 1 \end{pmatrix}",
    "x<e^{-50}": "x<e^{-60}",
    "x=10^{-20}": "x=10^{-21}",
    r"\frac{3}{10^8}": "0.00000004",
    r"\frac{1}{2598960}": "0.0",
    r"0.00001\%": r"0.00002\%",
    # words that multiply
    "25": r"25\text{ percent}",
    r"5 \text{ million}": "5",
    # Unicode
    "x^2": "x2",
    "3": "3²",
    "71": "71⟨x⟩",
    # ± in brackets
    r"\frac{-3\pm\sqrt{5}}{2}": r"\frac{-3+\sqrt5}{2} | \frac{3\pm\sqrt5}{2}",
}


def test_verdicts():
    """A right answer is paid however it is spelt, and a wrong one is not."""
    assert not refused(SPELLINGS)
    assert not paid(MISREADINGS)


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
