r"""An answer must be an answer: leaks that Math-Verify calls right score 0, honest spellings score 1.

The honest ones answer golds as they stand in the benchmark files. How many respellings of a thousand golds
are rejected is counted by `python -m bench.spellings FILE...`.
"""

import pytest

from verifier.answer import normalise, read_gold
from verifier.math_answers import math_reward

HONEST = {
    "204": ["204", "0204", "204.0", r"\text{204}", "n = 204"],
    "142.0": ["142", "142.0", r"142 \text{ ways}", "m+n = 142", "142."],
    "-4.0": ["-4", "-4.0", "x=-4", r"\text{-4}", "−4"],
    "58,500": ["58500", "58,500", "58{,}500", r"58\,500", r"58,\!500"],
    r"10,\!080": ["10080", "10,080", r"10\,080", r"10{,}080 \text{ minutes}"],
    r"11,\! 111,\! 111,\! 100": ["11111111100", "11,111,111,100", r"11,\!111,\!111,\!100"],
    "8178.0": ["8,178", "8178", r"\boxed{8178}", r"\$8178", "N = 8{,}178"],
    "1": ["1", "1.0", r"\text{1}", "{1}", "(1)"],
    r"336^\circ": ["336", r"336^\circ", r"336^{\circ}", r"336 \text{ degrees}", r"x = 336^\circ",
        r"\angle A = 336°"],
    r"90^\circ": ["90", r"90^{\circ}", r"90\text{ degrees}", "90°"],
    r"$18.8^{\circ}$": ["18.8", r"18.8^\circ", r"\theta = 18.8^\circ", r"\frac{94}{5}^\circ"],
    r"\$32,\!348": ["32348", r"\$32,348", "32{,}348", r"\$32,\!348", r"32348 \text{ dollars}"],
    r"\$18.90": ["18.9", "18.90", r"\$18.90", r"18.90 \text{ dollars}", r"\text{\$18.90}"],
    r"\$36": ["36", r"\$36", r"36 \text{ dollars}", r"\$36.00", "36.00"],
    "1.25": ["1.25", r"\frac{5}{4}", "5/4", r"1\frac{1}{4}", "1.250"],
    "0.15": ["0.15", ".15", r"\frac{3}{20}", "3/20", r"15\%"],
    ".0000672": ["0.0000672", r"6.72 \times 10^{-5}", r"6.72\cdot 10^{-5}", ".0000672", "6.72e-5"],
    "3.83e35": [r"3.83 \times 10^{35}", r"3.83\times10^{35}", "3.83e35", r"3.83 \cdot 10^{35} \text{ erg}"],
    "8.7e8": [r"8.7 \times 10^8", r"8.7 \times 10^{8} \text{ m}"],
    "3.61e2": ["361", r"3.61 \times 10^2", "361.0"],
    "7.353e14": [r"7.353 \times 10^{14}", r"7.353 \times 10^{14} \mathrm{~Hz}",
        r"f = 7.353 \times 10^{14}"],
    "6.5e-2": ["0.065", r"6.5 \times 10^{-2}", "6.5e-2", r"\frac{65}{1000}"],
    "-0.875": ["-0.875", r"-\frac{7}{8}", "-7/8", "-.875"],
    "4.49": ["4.49", r"\approx 4.49", r"4.49 \text{ Angstroms}", r"x \approx 4.49"],
    "9.5": ["9.5", r"\frac{19}{2}", "19/2", r"9\frac{1}{2}", r"9 \frac12"],
    r"\frac{14}{3}": [r"\frac{14}{3}", r"\dfrac{14}{3}", "14/3", r"4\frac{2}{3}", r"\frac{28}{6}"],
    r"\frac43": [r"\frac{4}{3}", "4/3", r"\tfrac43", r"1\frac13", r"x=\frac43"],
    r"\frac 59": [r"\frac{5}{9}", "5/9", r"\dfrac59", r"\frac{10}{18}"],
    r"\frac{270}7\text{ degrees}": [r"\frac{270}{7}", r"\frac{270}{7}^\circ", r"38\frac{4}{7}",
        r"\frac{270}{7} \text{ degrees}"],
    r"-\frac{35}{9}": [r"\frac{-35}{9}", "-35/9", r"-\dfrac{35}{9}", r"-3\frac{8}{9}"],
    r"1\frac{4}{5}": ["1.8", "9/5", r"\frac95", r"1\frac45", r"1 \frac{4}{5}"],
    r"137 \frac{1}{2}": ["137.5", r"\frac{275}{2}", r"137\frac12", "275/2"],
    r"$\frac{-1}{1997}$": [r"-\frac{1}{1997}", "-1/1997", r"\frac{-1}{1997}"],
    "-1./3": [r"-\frac{1}{3}", "-1/3", r"-\dfrac13"],
    r"\frac{9}{256}": ["9/256", "0.03515625", r"P = \frac{9}{256}", r"\dfrac{9}{256}"],
    "62.5%": [r"62.5\%", "62.5", "62.5%"],
    r"$8 \%$": [r"8\%", "8", r"8 \%", "8%"],
    "52_8": ["52_8", "52_{8}", "52"],
    "4210_{5}": ["4210_5", "4210_{5}", "4210"],
    "6 - 5i": ["6-5i", "-5i+6", "6 - 5i", "z = 6-5i"],
    "1+274i": ["1 + 274i", "274i+1"],
    r"\text{(C)}": ["C", "(C)", r"\text{(C)}", r"\textbf{(C)}", r"\text{C}"],
    "B": ["B", "(B)", "B.", r"\mathrm{B}", r"\text{B) 12 days}"],
    r"\text{Evelyn}": ["Evelyn", r"\text{Evelyn}", r"\textbf{Evelyn}", r"\mathrm{Evelyn}"],
    r"\text{east}": ["east", r"\text{east}"],
    r"\text{ellipse}": ["ellipse", r"\text{ellipse}"],
    r"3\sqrt{13}": [r"3\sqrt{13}", r"3 \sqrt {13}", r"\sqrt{117}", r"3\cdot\sqrt{13}", r"AB = 3\sqrt{13}"],
    r"\frac{\sqrt{3}}{3}": [r"\frac{1}{\sqrt{3}}", r"\frac{\sqrt3}{3}", r"\sqrt{3}/3",
        r"\sqrt{\frac{1}{3}}"],
    r"288 \pi": [r"288\pi", r"288 \pi \text{ cubic inches}", r"\pi \cdot 288", r"V = 288\pi"],
    r"18+2\pi": [r"18 + 2\pi", r"2\pi+18", r"2(\pi+9)"],
    r"\frac{\pi}{2}": [r"\frac{\pi}{2}", r"\pi/2", r"\dfrac{\pi}{2}", r"\frac{1}{2}\pi"],
    r"\frac{20000}{\pi}": [r"\frac{20000}{\pi}", r"20000/\pi", r"\dfrac{20000}{\pi}"],
    "$2^{1009}$": ["2^{1009}", "N = 2^{1009}"],
    r"$2021 \cdot 505 \cdot 337$": ["343943885", r"2021 \cdot 505 \cdot 337", "343,943,885"],
    r"$\frac{\log 2}{\log 2-\log 3}$": [r"\frac{\ln 2}{\ln 2-\ln 3}", r"\frac{\log 2}{\log 2 - \log 3}"],
    r"$-1+\sqrt{5}$": [r"\sqrt{5}-1", r"-1 + \sqrt5", r"x = \sqrt{5} - 1"],
    r"\arcsin{1.3 \sin{\theta_w}}": [r"\arcsin(1.3\sin\theta_w)", r"\arcsin{(1.3 \sin{\theta_w})}"],
    r"1+\sqrt{3} i": [r"1 + i\sqrt{3}", r"1+\sqrt3 i", r"\sqrt{3}i+1"],
    "p - q": ["p-q", "-q+p", "p - q"],
    "(a+5)(b+2)": ["(a+5)(b+2)", "(b+2)(a+5)", "ab+2a+5b+10"],
    "2k+2": ["2k+2", "2(k+1)", "2+2k", "2k + 2"],
    "x^3+3x-6": ["x^3+3x-6", "x^3 - 6 + 3x", "f(x) = x^3+3x-6"],
    r"\frac{11+9a}{20}": [r"\frac{9a+11}{20}", r"\frac{11}{20}+\frac{9a}{20}", "(11+9a)/20"],
    "5r^5": ["5r^5", "5r^{5}", "5 r^5"],
    r"$\binom{2n}{n}$": [r"\binom{2n}{n}", r"\frac{(2n)!}{n! n!}", r"\dbinom{2n}{n}"],
    r"$\frac{n(n+1)}{2}$": [r"\frac{n(n+1)}{2}", r"\frac{n^2+n}{2}", "n(n+1)/2"],
    r"$\left\lfloor\log _{2} n\right\rfloor+1$": [r"\lfloor \log_2 n \rfloor + 1",
        r"1+\left\lfloor \log_{2} n \right\rfloor"],
    "x / 2-1 / 4+c e^{-2 x}": [r"\frac{x}{2}-\frac{1}{4}+ce^{-2x}", "c e^{-2x} + x/2 - 1/4",
        r"y = \frac{x}{2} - \frac14 + c e^{-2x}"],
    r"\cot x": [r"\cot x", r"\cot(x)", r"\frac{\cos x}{\sin x}"],
    "x=5": ["5", "x=5", "x = 5.0"],
    "y = 2x + 3": ["y=2x+3", "2x+3", "y = 3+2x", "y-2x=3"],
    "5x - 7y + 11z + 4 = 0": ["5x-7y+11z+4=0", "5x - 7y + 11z = -4"],
    r"$m_{\max }=n^{2}-n-1$": ["n^2-n-1"],
    "$f(x)=2 x$": ["f(x)=2x", "2x", "f(x) = 2x"],
    r"$k \geqslant 2$": [r"k \ge 2", r"k \geq 2", r"2 \le k"],
    r"x \in [-2,7]": ["[-2,7]", r"x \in [-2, 7]"],
    r"\left( 3, \frac{\pi}{2} \right)": [r"(3, \frac{\pi}{2})", r"\left(3,\frac{\pi}{2}\right)",
        r"(3, \pi/2)", r"(r,\theta) = (3, \frac{\pi}{2})"],
    "(6,31,-1)": ["(6,31,-1)", "(6, 31, -1)", r"\left(6,31,-1\right)", "(a,b,c) = (6,31,-1)"],
    r"\left(\frac{3}{5},\frac{8}{3}\right]": [r"(\frac35, \frac83]", "(3/5, 8/3]",
        r"\left(\frac{3}{5}, \frac{8}{3}\right]"],
    r"(-\infty, 2) \cup (3, \infty)": [r"(-\infty,2)\cup(3,\infty)", r"(3,\infty) \cup (-\infty,2)",
        r"\left(-\infty, 2\right) \cup \left(3, \infty\right)"],
    r"(5,\infty)": [r"(5,\infty)", r"(5, +\infty)", r"\left(5,\infty\right)"],
    r"\{1\pm\sqrt{5},-2\}": [r"\{1+\sqrt5, 1-\sqrt5, -2\}", r"\{-2, 1\pm\sqrt{5}\}",
        r"-2, 1+\sqrt{5}, 1-\sqrt{5}"],
    r"1 \pm \sqrt{19}": [r"1\pm\sqrt{19}", r"1+\sqrt{19}, 1-\sqrt{19}",
        r"1 + \sqrt{19} \text{ and } 1 - \sqrt{19}", r"x = 1 \pm \sqrt{19}"],
    "1,-2": ["1,-2", "-2, 1", r"1 \text{ and } -2", r"\{1,-2\}", "1 and -2", r"x = 1 \text{ or } x = -2"],
    "3, 5, 7": ["3,5,7", "7, 5, 3", r"3, 5, \text{ and } 7", r"\{3,5,7\}"],
    "-2,-2": ["-2,-2", "-2, -2"],
    "$(1,1), (3,2)$": ["(1,1),(3,2)", "(3,2), (1,1)", r"(1,1) \text{ and } (3,2)"],
    "$10^{3},10$": ["1000, 10", "10^3, 10", "10,1000"],
    r"$90^{\circ}$,$60^{\circ}$": ["90, 60", r"90^\circ, 60^\circ", r"60^\circ \text{ and } 90^\circ"],
    r"$a=2$, $a=-6-4 \sqrt{2}$": [r"2, -6-4\sqrt2", r"a = 2 \text{ or } a = -6-4\sqrt{2}"],
    r"\begin{pmatrix} -1/3 \\ 2/3 \\ 5/3 \end{pmatrix}": [
        r"\begin{pmatrix} -1/3 \\ 2/3 \\ 5/3 \end{pmatrix}",
        r"\begin{pmatrix} -\frac13 \\ \frac23 \\ \frac53 \end{pmatrix}",
        r"\begin{bmatrix} -1/3 \\ 2/3 \\ 5/3 \end{bmatrix}"],
    r"\begin{pmatrix} -1 & 0 \\ 0 & -1 \end{pmatrix}": [r"\begin{bmatrix} -1 & 0 \\ 0 & -1 \end{bmatrix}",
        r"\begin{pmatrix} -1 & 0\\0 & -1\end{pmatrix}"],
    r"15\mbox{ cm}^2": ["15", r"15 \text{ cm}^2", r"15\,\mathrm{cm}^2"],
    r"5.4 \text{ cents}": ["5.4", r"5.4 \text{ cents}", "5.4 cents", r"5.4\text{ cents per pound}"],
    r"864 \mbox{ inches}^2": ["864", r"864 \text{ inches}^2", r"864 \text{ in}^2",
        r"864\text{ square inches}"],
    "1024": ["2^{10} = 1024", "1024", "N = 2^{10} = 1024", r"4 \cdot 256 = 1024"],
    "71": ["m+n = 71", "n = 71", "100m+n = 71", "P = 71", "m + n = 23 + 48 = 71"],
    r"\frac{1}{3}": [r"P(X=2) = \frac13", r"\frac{2}{6} = \frac{1}{3}", r"\frac{m}{n} = \frac13", "1/3",
        "0.333333"],
}  # fmt: skip

LEAKS = {
    "-4": ["5-9", "-(9-5)", r"\frac{-8}{2}", "-2^2"],
    "137": ["55+98-93+77", "136+1", r"137 \cdot 1", "137^1", r"\frac{274}{2}"],
    r"\frac{1}{2}": [r"\int_0^1 x dx", r"\int_0^1 x \, dx", r"\frac{3-2}{2}", r"1-\frac12",
        r"\sum_{n=2}^{\infty} 2^{-n}", r"\frac{1}{1+1}", "2^{-1}", r"\sqrt{\frac14}",
        r"\lim_{x\to 0}\frac{1}{2+x}", "0.25+0.25"],
    "6": [r"\gcd(12,18)", r"\max(3,6)", r"\min(6,9)", "3!", r"\lfloor 6.5 \rfloor", r"\lceil 5.5 \rceil",
        "|-6|", r"2 \cdot 3", r"\sqrt{36}", r"\binom{4}{2}", r"\prod_{i=1}^{3} i", r"\sum_{i=1}^3 i",
        "12/2", r"\frac{18}{3}", "6^1", "6/1", "(1+2)(2)"],
    "71": ["n+71-n", "65=71", "65 = 70 = 71", "28 + 99 = 71", "x - x + 71", "71x/x", "71 x^0", r"\neq 71",
        "71, 71", r"71 \text{ and } 71", r"\{71, 71\}", "99-28", "x+1=71", "2x = 71", "70+1=71x/x",
        r"\log_{2} 2^{71}", r"5\boxed{71}", r"7\boxed{71} ", r"71\%"],
    "5": [r"\neq 5", "4.5+.5", r"5 \cdot 5^0", r"\sqrt{25}", r"\frac{d}{dx} 5x"],
    "25": [r"25\%", "5^2", r"5 \cdot 5"],
    "1024": ["2^{10}", "4^5", "2^{9} = 1024", r"2 \times 512", "1000+24"],
    r"\frac{14}{3}": [r"14 \div 3", r"4 + \frac{2}{3}", r"\frac{14}{3} + 0", r"\frac{10+4}{3}",
        r"\frac{14}{1+2}", r"\frac{7}{3} \cdot 2"],
    "1.25": ["1+0.25", r"\frac{5}{2} \cdot \frac12", r"\sqrt{1.5625}", "0.5*2.5"],
    "52_8": ["52_9", "52_{10}", "52_7"],
    "6 - 5i": ["(6-5i)(1)", "3+3-5i", "(1-5i)+5"],
    r"2\sqrt{3}": [r"\int_0^{2\sqrt3} dx", r"\max(2\sqrt3, 1)", r"2\sqrt3 + x - x",
        r"\lim_{x\to 3} 2\sqrt{x}", r"\sum_{i=1}^{2} \sqrt{3}", r"1 = 2\sqrt3", r"2\sqrt3, 2\sqrt3"],
    r"\frac{\pi}{2}": [r"\int_0^{\pi/2} 1 dx", r"\int_{-1}^{1}\sqrt{1-x^2}dx", r"\min(\frac{\pi}{2}, 7)"],
    "x^2+2x+1": [r"\int (2x+2) dx + 1", "x^2+2x+1+y-y", r"\lim_{h\to0} (x+h+1)^2"],
    "1,-2": ["1,-2,1", "3-2, -2", r"1, \frac{-4}{2}", "1,-1-1", r"\{1,1,-2\}", "1, -2, -2"],
    "-2,-2": ["-2"],
    "(3,4]": ["(1+2, 4]", "(3, 2^2]", r"(3, \frac{8}{2}]"],
    "(6,31,-1)": ["(6,30+1,-1)", "(3!, 31, -1)", "(6,31,-1^1)"],
    "x=5": ["x=2+3", "7-2"],
    r"\begin{pmatrix} -1 & 0 \\ 0 & -1 \end{pmatrix}": [
        r"\begin{pmatrix} -1 & 1-1 \\ 0 & -1 \end{pmatrix}",
        r"-\begin{pmatrix} 1 & 0 \\ 0 & 1 \end{pmatrix}"],
    r"\{1,2\}": [r"\{1, 1+1\}"],
    r"$2021 \cdot 505 \cdot 337$": [r"\sum_{i=1}^{505} 2021 \cdot 337",
        r"2021 \cdot 505 \cdot 337 + x - x"],
    "0": ["5-5", r"0 \cdot x", "x-x", r"\sin(0)", r"\sin \pi", "0!-1"],
}  # fmt: skip


def test_honest_spellings():
    """Spellings of benchmark golds are right: typography, units, names, equal forms, orders, chains."""
    pairs = [(gold, text) for gold, texts in HONEST.items() for text in texts]
    assert len(pairs) >= 200
    assert not [pair for pair in pairs if math_reward(rf"\boxed{{{pair[1]}}}", pair[0])["score"] != 1.0]


def test_leaks():
    """What is to be worked out, or says more or less than the gold, is wrong and counted."""
    pairs = [(gold, text) for gold, texts in LEAKS.items() for text in texts]
    assert len(pairs) >= 100
    leaked = {"score": 0.0, "unevaluated": 1.0}  # equal to Math-Verify
    assert not [pair for pair in pairs if math_reward(rf"\boxed{{{pair[1]}}}", pair[0]) != leaked]


@pytest.mark.parametrize("gold", ["$221,$8$", "t(0,4]]", r"$f(x)=a x+b$, where $b$ is an arbitrary integer"])
def test_malformed_golds_go_to_math_verify_alone(gold):
    """Unbalanced dollars or brackets and prose are no gold to judge by, and are counted."""
    assert read_gold(gold) is None
    assert math_reward(None, gold)["malformed"] == 1.0


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (r"\boxed{\boxed{7}}", "7"), (r"\boxed{5\boxed{7}}", None), (r"\dfrac{1}{2} .", r"\frac{1}{2}"),
        (r"\$1,\!234 \text{ and } 5", "1234,5"), (r"\left( 1 , 2 \right)", "(1,2)"),
        (r"15 \text{ cm}^2", "15⟨cm⟩^2"), (r"\text{12 apples}", "12 apples"), ("(312,123)", "(312,123)"),
    ],
)  # fmt: skip
def test_normalise(text, left):
    """Typography goes, nested boxes unwrap only if there is nothing beside them."""
    assert normalise(text) == left
