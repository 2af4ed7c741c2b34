"""Spellings that Math-Verify takes for something else: their worth, and a quick reading."""

import time

import pytest

from tests.verifier.answers import paid, refused
from verifier.spellings import latex

SPELLINGS = r"""
# vectors and systems
\left\langle 1, -2, 3 \right\rangle :: \langle 1,-2,3\rangle
\langle 2,3\rangle :: (2,3)
\begin{cases} x=1 \\ y=2 \end{cases} :: \begin{cases}x=1\\y=2\end{cases} | x=1,y=2
(1,2) :: \begin{cases} x=1 \\ y=2 \end{cases} | (1,2).
# a full stop
2\sqrt3 :: 2\sqrt{3}.
\text{Evelyn} :: Evelyn.
12 :: 12\text{ cm}.
25\% :: 25\%. | 25\text{ percent}
# repeating decimals
0.\overline{27} :: \frac{3}{11}
1.\overline{3} :: 4/3
3.\bar{6} :: \frac{11}{3}
0.1\overline{6} :: \frac16
\frac13 :: 0.\overline{3} | 0.(3)
\frac16 :: 0.1(6)
-0.\overline{3} :: -\frac13
.\overline{3} :: 1/3
# small numbers
9.11e-31 :: 9.11\times10^{-31}
0 :: 0.0
0.0005 :: \frac{1}{2000}
e^{-50} :: \frac{1}{e^{50}}
\frac{7}{6^{22}} :: \frac{42}{6^{23}}
\frac{3}{10^8} :: 0.00000003
\frac{1}{2598960} :: 0.000000384769
\frac{\pi}{10000} :: 0.000314159
\sqrt{0.02} :: \frac{\sqrt{2}}{10}
# words that multiply
0.25 :: 25\text{ percent}
5000000 :: 5\text{ million}
5 \text{ million} :: 5000000
1200000 :: 1.2 million
# Unicode
2\sqrt{3} :: 2√3
\sqrt{x^2+1} :: √(x²+1)
\sqrt{(x+1)(x+2)} :: √((x+1)(x+2))
\sqrt{\frac{1}{2}} :: √½
\sqrt[3]{12} :: ∛12
2√3 :: 2\sqrt{3}
x^2+1 :: x²+1
x^{12} :: x¹²
e^{-2x} :: e⁻²ˣ
6.72 \times 10^{-5} :: 6.72×10⁻⁵
x_{10} :: x₁₀
\frac{1}{2} :: ½
5.5 :: 5½
\frac{3}{4} :: ³⁄₄
-\frac{3}{4} :: −3⁄4
(2,\infty) :: （2，∞）
x \in [-2,7] :: x ∈ [−2,7]
(0,9) \cup (9,36) :: (0,9)∪(9,36)
\mathbb{R} :: ℝ | (-\infty,\infty)
-5 :: –5
\frac{\pi}{2} :: π/2
2\alpha :: 2α
f'(x) :: f′(x)
\langle 1,2\rangle :: ⟨1,2⟩
90^\circ :: 90º
# ± in brackets
\frac{1+\sqrt5}{2},\frac{1-\sqrt5}{2} :: \frac{1\pm\sqrt{5}}{2}
\frac12\pm\frac{\sqrt5}{2} :: \frac{1\pm\sqrt{5}}{2}
\frac{-3\pm\sqrt{5}}{2} :: \frac{-3+\sqrt5}{2},\frac{-3-\sqrt5}{2}
x=\frac{1\pm\sqrt5}{2} :: \frac{1\pm\sqrt5}{2}
2(1\pm\sqrt3) :: 2\pm2\sqrt3
# the whole line
(-\infty,\infty) :: \mathbb{R}
"""
SPELLINGS += "5 :: 5 . | \uff15 | \U0001d7d3 | 5\u200b\n"
SPELLINGS += "1234567 :: 1\xa0234\u202f567\n"

MISREADINGS = r"""
# vectors and systems
\langle 1, 2, 3 \rangle :: \langle 9, 9, 3 \rangle
\begin{cases} x=1 \\ y=2 \end{cases} :: \begin{cases} x=5 \\ y=2 \end{cases}
x=1,y=2 :: \begin{cases} x=7 \\ y=2 \end{cases}
# a full stop
5 :: 5\text{ million} | 5\text{ thousand} | –5
# repeating decimals
0.\overline{27} :: 0
1.\overline{3} :: 3
\frac13 :: 0.333
# small numbers
1.6e-19 :: 9.1e-31
1.38e-23 :: -1e-20
.0000672 :: 0.0000674
0 :: 1e-9
1e-9 :: 0
e^{-50} :: e^{-60} | e^{-50}=e^{-60}
1+e^{-50} :: 1+e^{-60}
\frac{7}{6^{22}} :: \frac{5}{6^{22}}
\frac{1}{100!} :: \frac{1}{99!}
0.5^{60} :: 0.5^{61}
(e^{-50},1) :: (e^{-60},1)
\{e^{-50},1\} :: \{e^{-60},1\}
\begin{pmatrix} e^{-50} \\ 1 \end{pmatrix} :: \begin{pmatrix} e^{-60} \\ 1 \end{pmatrix}
x<e^{-50} :: x<e^{-60}
x=10^{-20} :: x=10^{-21}
\frac{3}{10^8} :: 0.00000004
\frac{1}{2598960} :: 0.0
0.00001\% :: 0.00002\%
# words that multiply
25 :: 25\text{ percent}
5 \text{ million} :: 5
# Unicode
x^2 :: x2
3 :: 3²
71 :: 71⟨x⟩
# ± in brackets
\frac{-3\pm\sqrt{5}}{2} :: \frac{-3+\sqrt5}{2} | \frac{3\pm\sqrt5}{2}
"""


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
