r"""Answers by hand, a gold and its answers a line, and which of them are paid or refused.

Honest ones answer golds as they stand in the benchmark files; to Math-Verify a leak equals its
gold. What stands aside was written after the rule and tried once: nothing was tuned to it.
"""

from verifier.math_answers import math_reward


def pairs(table: str) -> list[tuple[str, str]]:
    """The pairs of gold and answer in lines `gold :: answer | another`."""
    lines = [line.partition(" :: ") for line in table.splitlines() if " :: " in line]
    return [(gold, text) for gold, _, texts in lines for text in texts.split(" | ")]


def rewards(gold: str, text: str) -> dict[str, float]:
    return math_reward(rf"\boxed{{{text}}}", gold)


def paid(table: str) -> list[tuple[str, str]]:
    """The pairs of gold and answer that are worth something."""
    return [pair for pair in pairs(table) if rewards(*pair)["score"]]


def refused(table: str) -> list[tuple[str, str]]:
    """The pairs of gold and answer that are not worth 1."""
    return [pair for pair in pairs(table) if rewards(*pair)["score"] != 1.0]


HONEST = r"""
204 :: 0204 | 204.0 | \text{204} | n = 204
58,500 :: 58500 | 58{,}500 | 58\,500 | 58,\!500
10,\!080 :: 10080 | 10,080 | 10\,080 | 10{,}080 \text{ minutes}
11,\! 111,\! 111,\! 100 :: 11111111100 | 11,111,111,100
8178.0 :: 8,178 | 8178 | \boxed{8178} | \$8178 | N = 8{,}178
1 :: 1.0 | \text{1} | {1} | (1)
336^\circ :: 336 | 336^{\circ} | 336 \text{ degrees} | x = 336^\circ | \angle A = 336°
$18.8^{\circ}$ :: 18.8 | 18.8^\circ | \theta = 18.8^\circ | \frac{94}{5}^\circ
\$32,\!348 :: 32348 | \$32,348 | 32{,}348 | 32348 \text{ dollars}
\$18.90 :: 18.9 | 18.90 | 18.90 \text{ dollars} | \text{\$18.90}
1.25 :: \frac{5}{4} | 5/4 | 1\frac{1}{4} | 1.250
0.15 :: .15 | \frac{3}{20} | 3/20 | 15\%
.0000672 :: 0.0000672 | 6.72 \times 10^{-5} | 6.72\cdot 10^{-5} | 6.72e-5
3.83e35 :: 3.83 \times 10^{35} | 3.83\times10^{35} | 3.83 \cdot 10^{35} \text{ erg}
6.5e-2 :: 0.065 | 6.5 \times 10^{-2} | \frac{65}{1000}
-0.875 :: -\frac{7}{8} | -7/8 | -.875
4.49 :: \approx 4.49 | 4.49 \text{ Angstroms} | x \approx 4.49
9.5 :: \frac{19}{2} | 19/2 | 9\frac{1}{2} | 9 \frac12
-9.5 :: -9\frac{1}{2} | -9 \frac12
\frac{14}{3} :: \dfrac{14}{3} | 14/3 | 4\frac{2}{3} | \frac{28}{6}
\frac{270}7\text{ degrees} :: \frac{270}{7} | \frac{270}{7}^\circ | 38\frac{4}{7}
\frac{270}7\text{ degrees} :: \frac{270}{7} \text{ degrees}
1\frac{4}{5} :: 1.8 | 9/5 | \frac95 | 1\frac45
137 \frac{1}{2} :: 137.5 | \frac{275}{2} | 137\frac12 | 275/2
$\frac{-1}{1997}$ :: -\frac{1}{1997} | -1/1997 | \frac{-1}{1997}
-1./3 :: -\frac{1}{3} | -1/3 | -\dfrac13
62.5% :: 62.5\% | 62.5 | 0.625
$8 \%$ :: 8\% | 8 | 8 \% | 8%
52_8 :: 52_{8} | 52
6 - 5i :: -5i+6 | z = 6-5i
\text{(C)} :: C | (C) | \textbf{(C)} | \text{C}
B :: (B) | B. | \mathrm{B} | \text{B) 12 days}
\text{Evelyn} :: Evelyn | \textbf{Evelyn} | \mathrm{Evelyn}
3\sqrt{13} :: \sqrt{117} | 3\cdot\sqrt{13} | AB = 3\sqrt{13}
\frac{\sqrt{3}}{3} :: \frac{1}{\sqrt{3}} | \frac{\sqrt3}{3} | \sqrt{3}/3 | \sqrt{\frac{1}{3}}
288 \pi :: 288 \pi \text{ cubic inches} | \pi \cdot 288 | V = 288\pi
$2021 \cdot 505 \cdot 337$ :: 343943885 | 2021 \cdot 505 \cdot 337 | 343,943,885
$\frac{\log 2}{\log 2-\log 3}$ :: \frac{\ln 2}{\ln 2-\ln 3} | \frac{\log 2}{\log 2 - \log 3}
\arcsin{1.3 \sin{\theta_w}} :: \arcsin(1.3\sin\theta_w) | \arcsin{(1.3 \sin{\theta_w})}
1+\sqrt{3} i :: 1 + i\sqrt{3} | 1+\sqrt3 i | \sqrt{3}i+1
(a+5)(b+2) :: (b+2)(a+5) | ab+2a+5b+10
x^3+3x-6 :: x^3 - 6 + 3x | f(x) = x^3+3x-6
\frac{11+9a}{20} :: \frac{9a+11}{20} | \frac{11}{20}+\frac{9a}{20} | (11+9a)/20
$\binom{2n}{n}$ :: \binom{2n}{n} | \frac{(2n)!}{n! n!} | \dbinom{2n}{n}
$\frac{n(n+1)}{2}$ :: \frac{n(n+1)}{2} | \frac{n^2+n}{2} | n(n+1)/2
$\left\lfloor\log _{2} n\right\rfloor+1$ :: \lfloor \log_2 n \rfloor + 1
$\left\lfloor\log _{2} n\right\rfloor+1$ :: 1+\left\lfloor \log_{2} n \right\rfloor
x / 2-1 / 4+c e^{-2 x} :: \frac{x}{2}-\frac{1}{4}+ce^{-2x} | c e^{-2x} + x/2 - 1/4
x / 2-1 / 4+c e^{-2 x} :: y = \frac{x}{2} - \frac14 + c e^{-2x}
\cot x :: \cot(x) | \frac{\cos x}{\sin x}
x=5 :: 5 | x = 5.0
y = 2x + 3 :: 2x+3 | y = 3+2x | y-2x=3
5x - 7y + 11z + 4 = 0 :: 5x - 7y + 11z = -4
$m_{\max }=n^{2}-n-1$ :: n^2-n-1
$f(x)=2 x$ :: f(x)=2x | 2x | f(x) = 2x
$k \geqslant 2$ :: k \ge 2 | k \geq 2 | 2 \le k
x \in [-2,7] :: [-2,7]
(6,31,-1) :: \left(6,31,-1\right) | (a,b,c) = (6,31,-1)
\left(\frac{3}{5},\frac{8}{3}\right] :: (\frac35, \frac83] | (3/5, 8/3]
(-\infty, 2) \cup (3, \infty) :: (3,\infty) \cup (-\infty,2)
(-\infty, 2) \cup (3, \infty) :: \left(-\infty, 2\right) \cup \left(3, \infty\right)
\{1\pm\sqrt{5},-2\} :: \{1+\sqrt5, 1-\sqrt5, -2\} | \{-2, 1\pm\sqrt{5}\}
\{1\pm\sqrt{5},-2\} :: -2, 1+\sqrt{5}, 1-\sqrt{5}
1 \pm \sqrt{19} :: 1+\sqrt{19}, 1-\sqrt{19} | 1 + \sqrt{19} \text{ and } 1 - \sqrt{19}
1 \pm \sqrt{19} :: x = 1 \pm \sqrt{19}
1,-2 :: -2, 1 | 1 \text{ and } -2 | \{1,-2\} | 1 and -2 | x = 1 \text{ or } x = -2
$(1,1), (3,2)$ :: (1,1),(3,2) | (3,2), (1,1) | (1,1) \text{ and } (3,2)
$10^{3},10$ :: 1000, 10 | 10^3, 10 | 10,1000
$90^{\circ}$,$60^{\circ}$ :: 90, 60 | 90^\circ, 60^\circ | 60^\circ \text{ and } 90^\circ
$a=2$, $a=-6-4 \sqrt{2}$ :: 2, -6-4\sqrt2 | a = 2 \text{ or } a = -6-4\sqrt{2}
\begin{pmatrix} -1/3 \\ 2/3 \\ 5/3 \end{pmatrix} :: \begin{pmatrix} -\frac13 \\ \frac23 \\ \frac53 \end{pmatrix}
\begin{pmatrix} -1/3 \\ 2/3 \\ 5/3 \end{pmatrix} :: \begin{bmatrix} -1/3 \\ 2/3 \\ 5/3 \end{bmatrix}
\begin{pmatrix} -1 & 0 \\ 0 & -1 \end{pmatrix} :: \begin{bmatrix} -1 & 0 \\ 0 & -1 \end{bmatrix}
15\mbox{ cm}^2 :: 15 | 15 \text{ cm}^2 | 15\,\mathrm{cm}^2
5.4 \text{ cents} :: 5.4 | 5.4 cents | 5.4\text{ cents per pound}
864 \mbox{ inches}^2 :: 864 | 864 \text{ inches}^2 | 864 \text{ in}^2 | 864\text{ square inches}
1024 :: 2^{10} = 1024 | N = 2^{10} = 1024 | 4 \cdot 256 = 1024
71 :: m+n = 71 | n = 71 | 100m+n = 71 | P = 71 | m + n = 23 + 48 = 71
\frac{1}{3} :: P(X=2) = \frac13 | \frac{2}{6} = \frac{1}{3} | \frac{m}{n} = \frac13 | 1/3
\frac{1}{3} :: 0.333333
"""  # noqa: E501

HONEST += r"""
# found by hand after the first tables
6 :: \gcd(12,18) = 6 | \gcd(a,b) = 6 | e = 6 | \max f(x) = 6 | f^{-1}(3) = 6 | x \equiv 6 | n=6,
6 :: 6\text{ J}\cdot\text{K}^{-1} | 6\ \mathrm{J\,K^{-1}\,mol^{-1}} | 6 \text{ W}/\text{m}^2
\{1,2,3\} :: x \in \{1,2,3\} | A = \{3, 2, 1\}
\frac{1}{2} :: 50\% | {1}/{2} | \cos\theta = \frac12
-\frac{3}{4} :: -(3/4) | \frac{3}{-4}
"""

LEAKS = r"""
-4 :: 5-9 | -(9-5) | \frac{-8}{2} | -2^2
137 :: 55+98-93+77 | 136+1 | 137 \cdot 1 | 137^1 | \frac{274}{2}
\frac{1}{2} :: \int_0^1 x dx | \int_0^1 x \, dx | \frac{3-2}{2} | 1-\frac12
\frac{1}{2} :: \sum_{n=2}^{\infty} 2^{-n} | \frac{1}{1+1} | 2^{-1} | \sqrt{\frac14}
\frac{1}{2} :: \lim_{x\to 0}\frac{1}{2+x} | 0.25+0.25
6 :: \gcd(12,18) | \max(3,6) | \min(6,9) | 3! | \lfloor 6.5 \rfloor | \lceil 5.5 \rceil | |-6|
6 :: 2 \cdot 3 | \sqrt{36} | \binom{4}{2} | \prod_{i=1}^{3} i | \sum_{i=1}^3 i | 12/2
6 :: \frac{18}{3} | 6^1 | 6/1 | (1+2)(2)
71 :: n+71-n | 65=71 | 65 = 70 = 71 | 28 + 99 = 71 | x - x + 71 | 71x/x | 71 x^0 | \neq 71
71 :: 71, 71 | 71 \text{ and } 71 | \{71, 71\} | 99-28 | x+1=71 | 2x = 71 | 70+1=71x/x
71 :: \log_{2} 2^{71} | 5\boxed{71} | 7\boxed{71}  | 71\%
5 :: \neq 5 | 4.5+.5 | 5 \cdot 5^0 | \sqrt{25} | \frac{d}{dx} 5x
25 :: 25\% | 5^2 | 5 \cdot 5
1024 :: 2^{10} | 4^5 | 2^{9} = 1024 | 2 \times 512 | 1000+24
\frac{14}{3} :: 14 \div 3 | 4 + \frac{2}{3} | \frac{14}{3} + 0 | \frac{10+4}{3} | \frac{14}{1+2}
\frac{14}{3} :: \frac{7}{3} \cdot 2
1.25 :: 1+0.25 | \frac{5}{2} \cdot \frac12 | \sqrt{1.5625} | 0.5*2.5
52_8 :: 52_9 | 52_{10} | 52_7
6 - 5i :: (6-5i)(1) | 3+3-5i | (1-5i)+5
2\sqrt{3} :: \int_0^{2\sqrt3} dx | \max(2\sqrt3, 1) | 2\sqrt3 + x - x | \lim_{x\to 3} 2\sqrt{x}
2\sqrt{3} :: \sum_{i=1}^{2} \sqrt{3} | 1 = 2\sqrt3 | 2\sqrt3, 2\sqrt3
\frac{\pi}{2} :: \int_0^{\pi/2} 1 dx | \int_{-1}^{1}\sqrt{1-x^2}dx | \min(\frac{\pi}{2}, 7)
x^2+2x+1 :: \int (2x+2) dx + 1 | x^2+2x+1+y-y | \lim_{h\to0} (x+h+1)^2
1,-2 :: 1,-2,1 | 3-2, -2 | 1, \frac{-4}{2} | 1,-1-1 | \{1,1,-2\} | 1, -2, -2
-2,-2 :: -2
(3,4] :: (1+2, 4] | (3, 2^2] | (3, \frac{8}{2}]
(6,31,-1) :: (6,30+1,-1) | (3!, 31, -1) | (6,31,-1^1)
x=5 :: x=2+3 | 7-2
\begin{pmatrix} -1 & 0 \\ 0 & -1 \end{pmatrix} :: \begin{pmatrix} -1 & 1-1 \\ 0 & -1 \end{pmatrix}
\begin{pmatrix} -1 & 0 \\ 0 & -1 \end{pmatrix} :: -\begin{pmatrix} 1 & 0 \\ 0 & 1 \end{pmatrix}
\{1,2\} :: \{1, 1+1\}
$2021 \cdot 505 \cdot 337$ :: \sum_{i=1}^{505} 2021 \cdot 337 | 2021 \cdot 505 \cdot 337 + x - x
0 :: 5-5 | 0 \cdot x | x-x | \sin(0) | \sin \pi | 0!-1
"""

LEAKS += r"""
# found by hand after the first tables
42 :: \gcd(5,6)=42 | \log 5 = 42 | \sqrt{4} = 42 | \pi=42 | x=41=42 | 4200\% | -(-42) | 42/1
9 :: 3² | 4·2.25 | √81 | ⌊9.5⌋ | ∑_{i=4}^{5} i
-3 :: 5–8 | −−−3
\frac{1}{8} :: ½³ | ½·¼ | ∫₀¹ x⁷ dx
3\sqrt{2} :: 3√2+α−α | 3√2 𝑥⁰ | ∫₀³ √2 dx
\{1,2,3\} :: x \in \{1,2,3,3\} | \{1,2\} \cup \{3\} | x \in \{1,2,1+2\}
x>2 :: x>\gcd(2,4) | x>\log_{10} 100 | x+1>3 | 3x-1>2x+1
y=2x+3 :: y-2x-3=0z
17 :: 8 \quad 9 | 8 \; 9 | 8\ \ 9
60 :: 10 \quad 20 \quad 30
"""

HONEST_ASIDE = r"""
$6 \sqrt{2}-2$ :: 6\sqrt2 - 2 | -2 + 6\sqrt{2} | 2(3\sqrt{2}-1)
7.4e-12 :: 7.4 \times 10^{-12} | r \approx 7.4 \times 10^{-12} \text{ m}
(-\sqrt{3}, \sqrt{3}) :: (-\sqrt3,\sqrt3) | x \in \left(-\sqrt{3}, \sqrt{3}\right)
$[\frac{1}{2}, 8]$ :: [1/2, 8] | \left[\tfrac12, 8\right] | [0.5, 8]
$(1,1006),(3,331),(11,31)$ :: (1, 1006), (3, 331), (11, 31)
$(1,1006),(3,331),(11,31)$ :: (11,31),(1,1006) \text{ and } (3,331)
.35625 :: 0.35625 | \frac{57}{160} | 35.625\%
15x - 80 :: 15x-80 | 5(3x-16) | -80+15x
X_{d}=125-1.25 P :: X_d = 125 - 1.25P
$-1,-9$ :: -1, -9 | -9 \text{ or } -1 | \{-9, -1\}
$64,\frac{1}{4}$ :: \frac14, 64 | 64, 0.25 | x = 64, x = \frac{1}{4}
\frac9{19} :: \frac{9}{19} | 9/19 | P = \dfrac{9}{19}
$548 \pi$ :: 548\pi | \text{Area} = 548\pi | 548 \pi \text{ cm}^2
$f(x)=x,f(x)=-x$ :: f(x) = x, f(x) = -x | f(x)=x \text{ or } f(x)=-x
2516_8 :: 2516_{8} | 2516
s^{2}+b s+1 :: s^2+bs+1 | 1 + bs + s^2
$m n-\lfloor m / 2\rfloor$ :: mn - \lfloor m/2 \rfloor | mn-\left\lfloor \frac{m}{2} \right\rfloor
$\frac{1}{3}, 1, 9$ :: \frac13, 1, 9 | 9, 1, 1/3 | 1, \frac{1}{3} \text{ and } 9
1.85e5 :: 185000 | 185{,}000 \text{ K} | 1.85\cdot 10^{5}
-2 + 7i :: -2+7i | 7i-2 | z = -2 + 7i
(0,9) \cup (9,36) :: (0,9)\cup(9,36) | x \in (0, 9) \cup (9, 36)
36^\circ :: 36 | 36\text{ degrees} | \angle BAC = 36^{\circ}
$n^{2}+1$ :: n^2+1 | 1+n^2 | a_n = n^2+1
y = -2x :: y=-2x | -2x | y+2x=0
3 \pm 2 \sqrt{2} :: 3\pm2\sqrt2 | 3+2\sqrt{2}, 3-2\sqrt{2}
$\frac{5 \pi}{4} \sqrt{17}$ :: \frac{5\sqrt{17}\pi}{4} | 1.25\pi\sqrt{17}
\text{Navin} :: Navin | \textbf{Navin}
"""

LEAKS_ASIDE = r"""
55 :: 5(11) | \frac{11 \cdot 10}{2} | \sum_{k=1}^{10} k | \binom{11}{2} | 10+45 | 8^2-9
55 :: 60 - 5 = 54 | \mathrm{lcm}(5, 11) | x^0 + 54 | 55 \text{ or } 54+1 | \lceil 54.3 \rceil
55 :: (55, 55) | 5500\% | \gcd(55,0) = 54 | \sqrt{3025} = 55.1 | 54 = 55 | {5}{11}
55 :: \frac{110}{2} \text{ cm}
-9 :: 0-9 | -\frac{18}{2} | -(3^2) | -\sqrt{81} | (-3)(3) | \min(-9, 4) | 1 - 10
\frac{11}{36} :: 1-\frac{25}{36} | \frac{1}{6}+\frac{5}{36} | \frac{11}{6^2} | 1-(5/6)^2
\frac{11}{36} :: \frac{12-1}{36} | \frac{11}{36} \cdot 1 | \frac{11}{36}, \frac{22}{72}
6\sqrt{2} :: \max(6\sqrt2, 6) | \int_0^6 \sqrt{2} dx | 6\sqrt2 + y - y | \sum_{i=1}^{6} \sqrt 2
6\sqrt{2} :: 6\sqrt{2}, 6\sqrt{2}
-2,1 :: -2, 1, 1 | -2, 2-1 | \{-2\} \cup \{1\} | -2, \frac{3}{3}
(-1,6) :: (-1, 5+1) | (1-2, 6) | (-1, 2 \cdot 3)
2k :: \int 2 dk | 2k + x - x | \max(2k, 2k)
\text{Navin} :: \text{Navin}, \text{Navin}
"""

WORDS = r"""
5 :: 5\text{ cm} | 5\text{ N}\cdot\text{m} | 5 cm
5\text{ cm} :: 5 | 5\text{ centimeters} | 5 cm
15\text{ cm}^2 :: 15\text{ square centimeters}
60\text{ mph} :: 60\text{ miles per hour}
5\text{ cm},6\text{ cm} :: 5,6 | 6\text{ cm},5\text{ cm}
5\text{ ft }6\text{ in} :: 5\text{ feet }6\text{ inches} | \text{5 ft 6 in}
7:45\text{ p.m.} :: 7:45\text{ PM} | \text{7:45 p.m.}
5\text{ north} :: 5\text{ north}
5\%\text{ increase} :: 5\%
5\text{ May} :: \text{5 May}
5\text{ million dollars} :: 5000000
5 :: 5\text{ apples} | 5 apples | 5\text{ square units} | 5\text{ m/s}^2 | 5\text{ kW per m}
5\text{ is wrong} :: 5\text{ is wrong}
7\text{ red balls} :: 7\text{ red balls} | 7 red balls
5\text{ trillion} :: 5000000000000 | 5 \times 10^{12}
500000 :: 5\text{ hundred thousand} | 0.5 million | 500\ \text{thousand}
0.0000005 :: 5 \times 10^{-7}
\frac{1}{2} :: \frac{1}{2}\text{ cm}
60 :: 5\text{ dozen eggs} | 60\text{ eggs}
B12 :: B12 | \text{B12}
12B :: 12B | 12 B
12ab :: 12ab | 12ba
4e33 :: 4e33. | \text{4e33} | 4e33\text{ cm} | 4 \times 10^{33}
(2x,1) :: (2x,1)
n 2^{n-1} :: n2^{n-1} | 2^{n-1}n
25^\circ\text{C} :: 25\text{ degrees Celsius} | 25
\text{True} :: true | \textbf{True}.
\text{Ann and Bob} :: \text{Bob, Ann}
P(\text{red})=\frac{1}{3} :: \frac13
ABC :: \text{ABC} | A B C
IV :: \mathrm{IV}
silent :: \text{silent}
\angle ABC :: \angle ABC
A'B'C' :: A^{\prime}B^\prime C'
f'(x)=2x :: f^{\prime}(x)=2x | 2x
2xy :: 2yx
ab :: ba
x^2y :: yx^2
6m :: 6\,m
5.5 :: 5\frac12 | 5 1/2
4\frac{3}{2} :: 4\frac{3}{2}
(0,1) :: 0<x<1
(-\infty,2) :: x<2
\emptyset :: \varnothing | \{\}
1 000 000 :: 1000000 | 1,000,000
6 :: 6, | 6;
$221,$8$ :: 221, 8
"""

OTHER_WORDS = r"""
5 :: 5\text{ ft }6\text{ in} | 5\text{ hundred} | 5\text{ squared} | 5x | x<5
5\text{ cm} :: 5\text{ mm} | 6\text{ cm}
15\text{ cm}^2 :: 15\text{ cm}^3
60\text{ mph} :: 60\text{ km/h}
5\text{ cm},6\text{ cm} :: 5\text{ cm},7\text{ cm}
5\text{ ft }6\text{ in} :: 5 | 5\text{ ft} | 5\text{ ft }7\text{ in}
7:45\text{ p.m.} :: 7:45\text{ a.m.}
5\text{ north} :: 5\text{ south} | 5 south
5\%\text{ increase} :: 5\%\text{ decrease}
5\text{ May} :: 5\text{ June}
5\text{ million dollars} :: 5
5 :: 5\text{ is wrong} | 5 wrong | 5\text{ is}\text{ wrong} | 5\text{ not} | 5\text{ less}
5 :: 5\text{ red apples} | 5\text{ at least} | 5\text{ doubled} | 5\text{ minus}
5 :: 5\text{ trillion} | 5\text{ Millions} | 5\mathrm{ million} | 5~\text{ lakh} | 5\text{ ten}
5 :: 5\text{ halves} | 5\text{ per cent} | 5/\text{million}
5\text{ is wrong} :: 5
7\text{ red balls} :: 7 | 7\text{ blue balls}
5\text{ trillion} :: 5
500000 :: 500 | 5
0.0000005 :: 1/2\text{ million} | 1 / 2 million
\frac{1}{2} :: \frac{1}{2}\text{ million}
60 :: 5\text{ dozen thousand}
B12 :: 12B | 12\text{B} | 12
12B :: B12 | B 12
12ab :: ab12
4e33 :: 4e32 | 33e4
(2x,1) :: (x2,1)
n 2^{n-1} :: n2
25^\circ\text{C} :: 25^\circ\text{F}
\text{True} :: \text{False}
\text{Ann and Bob} :: \text{Ann}
P(\text{red})=\frac{1}{3} :: P(\text{red})=\frac{2}{3}
ABC :: BAC | \angle ABC
IV :: VI
silent :: listen
\angle ABC :: \angle BAC
A'B'C' :: ABC
f'(x)=2x :: f(x)=2x | f''(x)=2x
2xy :: 2x+y
ab :: a+b
x^2y :: xy^2
6m :: 6 | 6t
5.5 :: 4\frac{3}{2} | 4 3/2
4\frac{3}{2} :: 5.5
(0,1) :: 0\le x<1 | 0<x<2 | 0<x+1<2
(-\infty,2) :: x\le 2 | x>2 | x+1<3
\emptyset :: \{0\} | 0
1 000 000 :: 1000
6 :: 7, | 6,7
$221,$8$ :: 221
"""
