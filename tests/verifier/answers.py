r"""Answers by hand, a gold and its answers a line: what the strict grader says of each.

Right ones answer golds as they stand in the benchmark files. Many of the wrong ones equal their
gold by Math-Verify: they are to be worked out, say more than one thing, or have another form.
"""

# ruff: noqa: E501  a gold of a benchmark is as long as it is

RIGHT = r"""
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
\text{Evelyn} :: Evelyn | \textbf{Evelyn} | \mathrm{Evelyn} | Evelyn.
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
x \in [-2,7] :: [-2,7] | x ∈ [−2,7]
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
71 :: m+n = 71 | n = 71 | 100m+n = 71 | P = 71 | m + n = 23 + 48 = 71 | \textbf{71}
\frac{1}{3} :: P(X=2) = \frac13 | \frac{2}{6} = \frac{1}{3} | \frac{m}{n} = \frac13 | 1/3
\frac{1}{3} :: 0.333333
6 :: \gcd(12,18) = 6 | \gcd(a,b) = 6 | e = 6 | \max f(x) = 6 | f^{-1}(3) = 6 | x \equiv 6 | n=6,
6 :: 6\text{ J}\cdot\text{K}^{-1} | 6\ \mathrm{J\,K^{-1}\,mol^{-1}} | 6 \text{ W}/\text{m}^2 | 6,
6 :: 6;
\{1,2,3\} :: x \in \{1,2,3\} | A = \{3, 2, 1\}
\frac{1}{2} :: 50\% | {1}/{2} | \cos\theta = \frac12 | \frac{1}{2}\text{ cm} | ½
-\frac{3}{4} :: -(3/4) | \frac{3}{-4} | −3⁄4
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
(0,9) \cup (9,36) :: (0,9)\cup(9,36) | x \in (0, 9) \cup (9, 36) | (0,9)∪(9,36)
36^\circ :: 36 | 36\text{ degrees} | \angle BAC = 36^{\circ}
$n^{2}+1$ :: n^2+1 | 1+n^2 | a_n = n^2+1
y = -2x :: y=-2x | -2x | y+2x=0
3 \pm 2 \sqrt{2} :: 3\pm2\sqrt2 | 3+2\sqrt{2}, 3-2\sqrt{2}
$\frac{5 \pi}{4} \sqrt{17}$ :: \frac{5\sqrt{17}\pi}{4} | 1.25\pi\sqrt{17}
\text{Navin} :: Navin | \textbf{Navin}
5 :: 5\text{ cm} | 5\text{ N}\cdot\text{m} | 5 cm | 5\text{ apples} | 5 apples
5 :: 5\text{ square units} | 5\text{ m/s}^2 | 5\text{ kW per m} | 5 . | ５
5\text{ cm} :: 5 | 5\text{ centimeters} | 5 cm
15\text{ cm}^2 :: 15\text{ square centimeters}
60\text{ mph} :: 60\text{ miles per hour}
5\text{ cm},6\text{ cm} :: 5,6 | 6\text{ cm},5\text{ cm}
5\text{ ft }6\text{ in} :: \text{5 ft 6 in}
7:45\text{ p.m.} :: 7:45\text{ PM} | \text{7:45 p.m.}
5\text{ north} :: 5\text{ north}
5\%\text{ increase} :: 5\%
5\text{ May} :: \text{5 May}
5\text{ million dollars} :: 5000000
5\text{ is wrong} :: 5\text{ is wrong}
7\text{ red balls} :: 7\text{ red balls} | 7 red balls
5\text{ trillion} :: 5000000000000 | 5 \times 10^{12}
500000 :: 0.5 million | 500\ \text{thousand}
0.0000005 :: 5 \times 10^{-7}
60 :: 60\text{ eggs}
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
5.5 :: 5\frac12 | 5 1/2 | 5½
4\frac{3}{2} :: 4\frac{3}{2}
(0,1) :: 0<x<1
(-\infty,2) :: x<2
\emptyset :: \varnothing | \{\}
1 000 000 :: 1000000 | 1,000,000
$221,$8$ :: 221, 8
+2 :: 2
5\%,6\% :: 6, 5
\log 8 :: 3\log 2
\binom{5}{2} :: 10
x^2+2x+1 :: (x+1)^2
2k :: k+k
\frac{t}{4} \sin (2 t) :: \frac{t}{2}\sin(t)\cos(t) | \frac{t}{2}\sin t\cos t
e^{-2t} :: \frac{1}{e^{2t}}
1:2:3 :: 1:2:3
3:2 :: x:y = 3:2 | 6 : 4 | \frac{3}{2}
9:16 :: \frac{9}{16}
12:30 :: 12:30
7:05 :: 07:05
(2,6) :: x=2, y=6 | y=6, x=2 | (x,y)=(2,6) | 2, 6
(3,\frac{\pi}{2}) :: r=3, \theta=\frac{\pi}{2}
2<x<3 :: (2,3) | x \in (2,3)
[-3,3) :: -3 \le x < 3 | 3 > x \geq -3
x\le2 \text{ or } x\ge5 :: x\ge5, x\le2
(-\infty,0)\cup(0,\infty) :: x \ne 0
\mathbb{R} :: x \in \mathbb{R} | ℝ | (-\infty,\infty)
\{1\} :: \left\{ 1 \right\} | x=1 | 1 | [1]
3,5 :: \{5,3\} | a=3, b=5 | b=5, a=3 | x_1=5, x_2=3 | (3,5)
1,1,2 :: 2,1,1
a=5, b=3 :: b=3, a=5 | a=5,b=3 | 5, 3 | (5,3) | (a,b)=(5,3)
(a,b)=(5,3) :: b=3, a=5
\text{mean}=3,\text{median}=4 :: \text{median}=4,\text{mean}=3 | 3,4
2,-2 :: \pm 2
\pm2 :: x=\pm 2
\{-3,3\} :: \pm 3
\frac{d}{2} :: \frac{\mathrm{d}}{2}
1,2 :: x \in \{1,2\}
x>3 :: 3<x
x>a+1 :: x-1>a
5' :: 5' | 5 | 5\text{ minutes}
30'' :: 30" | 30^{\prime\prime}
5^\circ 30' :: 5^\circ30'
\left\langle 1, -2, 3 \right\rangle :: \langle 1,-2,3\rangle
\langle 2,3\rangle :: (2,3)
\begin{cases} x=1 \\ y=2 \end{cases} :: \begin{cases}x=1\\y=2\end{cases} | x=1,y=2
(1,2) :: \begin{cases} x=1 \\ y=2 \end{cases} | (1,2).
2\sqrt3 :: 2\sqrt{3}.
12 :: 12\text{ cm}.
25\% :: 25\%. | 25\text{ percent}
0.\overline{27} :: \frac{3}{11}
1.\overline{3} :: 4/3
3.\bar{6} :: \frac{11}{3}
0.1\overline{6} :: \frac16
\frac13 :: 0.\overline{3}
-0.\overline{3} :: -\frac13
.\overline{3} :: 1/3
9.11e-31 :: 9.11\times10^{-31}
0 :: 0.0
0.0005 :: \frac{1}{2000}
e^{-50} :: \frac{1}{e^{50}}
\frac{7}{6^{22}} :: \frac{42}{6^{23}}
\frac{3}{10^8} :: 0.00000003
\frac{1}{2598960} :: 0.000000384769
\frac{\pi}{10000} :: 0.000314159
\sqrt{0.02} :: \frac{\sqrt{2}}{10}
0.25 :: 25\text{ percent}
5000000 :: 5\text{ million}
5 \text{ million} :: 5000000
1200000 :: 1.2 million
2\sqrt{3} :: 2√3
\sqrt{x^2+1} :: √(x²+1)
\sqrt{(x+1)(x+2)} :: √((x+1)(x+2))
\sqrt[3]{12} :: ∛12
2√3 :: 2\sqrt{3}
x^2+1 :: x²+1
x^{12} :: x¹²
e^{-2x} :: e⁻²ˣ
6.72 \times 10^{-5} :: 6.72×10⁻⁵
x_{10} :: x₁₀
(2,\infty) :: （2，∞）
-5 :: –5
\frac{\pi}{2} :: π/2
2\alpha :: 2α
f'(x) :: f′(x)
\langle 1,2\rangle :: ⟨1,2⟩
90^\circ :: 90º
\frac{1+\sqrt5}{2},\frac{1-\sqrt5}{2} :: \frac{1\pm\sqrt{5}}{2}
\frac12\pm\frac{\sqrt5}{2} :: \frac{1\pm\sqrt{5}}{2}
\frac{-3\pm\sqrt{5}}{2} :: \frac{-3+\sqrt5}{2},\frac{-3-\sqrt5}{2}
x=\frac{1\pm\sqrt5}{2} :: \frac{1\pm\sqrt5}{2}
2(1\pm\sqrt3) :: 2\pm2\sqrt3
(-\infty,\infty) :: \mathbb{R}
C :: C | \text{C} | (C) | C. | C) | \textbf{(C)} | \text{(C) days become shorter} | C: 12 | $C$
C :: C) 12 | \textbf{(C)}\ 12 | \textbf{(C)}12 | (C)~12 | \mathrm{(C)}\quad 12 | \textit{C}
C :: C. A tiger hunts a deer. | C. H and He only | C. Vitamin D | C.(12)
I :: I | \text{I} | (I) | I. | I) | \textbf{(I)} | \text{(I) days become shorter} | I: 12 | $I$
I :: I) 12 | \textbf{(I)}\ 12 | \textbf{(I)}12 | (I)~12 | \mathrm{(I)}\quad 12 | \textit{I}
I :: I. A tiger hunts a deer. | I. H and He only | I. Vitamin D | I.(12)
\frac{3}{\gamma-1} :: 3/(\gamma-1)
\gcd(n,3) :: \gcd(3,n)
\frac{dx}{dt}=3x :: \frac{d x}{d t} = 3x
I_3 :: I_{3}
"""

WRONG = r"""
-4 :: 5-9 | -(9-5) | \frac{-8}{2} | -2^2
137 :: 55+98-93+77 | 136+1 | 137 \cdot 1 | 137^1 | \frac{274}{2}
\frac{1}{2} :: \int_0^1 x dx | \int_0^1 x \, dx | \frac{3-2}{2} | 1-\frac12
\frac{1}{2} :: \sum_{n=2}^{\infty} 2^{-n} | \frac{1}{1+1} | 2^{-1} | \sqrt{\frac14}
\frac{1}{2} :: \lim_{x\to 0}\frac{1}{2+x} | 0.25+0.25 | \frac{1}{2}\text{ million}
6 :: \gcd(12,18) | \max(3,6) | \min(6,9) | 3! | \lfloor 6.5 \rfloor | \lceil 5.5 \rceil | |-6|
6 :: 2 \cdot 3 | \sqrt{36} | \binom{4}{2} | \prod_{i=1}^{3} i | \sum_{i=1}^3 i | 12/2
6 :: \frac{18}{3} | 6^1 | 6/1 | (1+2)(2) | 7, | 6,7
71 :: n+71-n | 65=71 | 65 = 70 = 71 | 28 + 99 = 71 | x - x + 71 | 71x/x | 71 x^0 | \neq 71
71 :: 71, 71 | 71 \text{ and } 71 | \{71, 71\} | 99-28 | x+1=71 | 2x = 71 | 70+1=71x/x
71 :: \log_{2} 2^{71} | 5\boxed{71} | 7\boxed{71}  | 71\% | 71\textbf{65} | 71⟨x⟩
5 :: \neq 5 | 4.5+.5 | 5 \cdot 5^0 | \sqrt{25} | \frac{d}{dx} 5x | 5\text{ ft }6\text{ in}
5 :: 5\text{ hundred} | 5\text{ squared} | 5x | x<5 | 5\text{ is wrong} | 5 wrong
5 :: 5\text{ is}\text{ wrong} | 5\text{ not} | 5\text{ less} | 5\text{ red apples}
5 :: 5\text{ at least} | 5\text{ doubled} | 5\text{ minus} | 5\text{ trillion} | 5\text{ Millions}
5 :: 5\mathrm{ million} | 5~\text{ lakh} | 5\text{ ten} | 5\text{ halves} | 5\text{ per cent}
5 :: 5/\text{million} | 5\text{ million} | 5\text{ thousand} | –5
25 :: 25\% | 5^2 | 5 \cdot 5 | 25\text{ percent}
1024 :: 2^{10} | 4^5 | 2^{9} = 1024 | 2 \times 512 | 1000+24
\frac{14}{3} :: 14 \div 3 | 4 + \frac{2}{3} | \frac{14}{3} + 0 | \frac{10+4}{3} | \frac{14}{1+2}
\frac{14}{3} :: \frac{7}{3} \cdot 2
1.25 :: 1+0.25 | \frac{5}{2} \cdot \frac12 | \sqrt{1.5625} | 0.5*2.5
52_8 :: 52_9 | 52_{10} | 52_7
6 - 5i :: (6-5i)(1) | 3+3-5i | (1-5i)+5
2\sqrt{3} :: \int_0^{2\sqrt3} dx | \max(2\sqrt3, 1) | 2\sqrt3 + x - x | \lim_{x\to 3} 2\sqrt{x}
2\sqrt{3} :: \sum_{i=1}^{2} \sqrt{3} | 1 = 2\sqrt3 | 2\sqrt3, 2\sqrt3
\frac{\pi}{2} :: \int_0^{\pi/2} 1 dx | \int_{-1}^{1}\sqrt{1-x^2}dx | \min(\frac{\pi}{2}, 7)
x^2+2x+1 :: \int (2x+2) dx + 1 | x^2+2x+1+y-y | \lim_{h\to0} (x+h+1)^2 | (x-1)^2 | (y+1)^2
1,-2 :: 1,-2,1 | 3-2, -2 | 1, \frac{-4}{2} | 1,-1-1 | \{1,1,-2\} | 1, -2, -2
-2,-2 :: -2
(3,4] :: (1+2, 4] | (3, 2^2] | (3, \frac{8}{2}]
(6,31,-1) :: (6,30+1,-1) | (3!, 31, -1) | (6,31,-1^1)
x=5 :: x=2+3 | 7-2
\{1,2\} :: \{1, 1+1\} | \{1,3\} | (1,2) | [1,2]
$2021 \cdot 505 \cdot 337$ :: \sum_{i=1}^{505} 2021 \cdot 337 | 2021 \cdot 505 \cdot 337 + x - x
0 :: 5-5 | 0 \cdot x | x-x | \sin(0) | \sin \pi | 0!-1 | 1e-9
42 :: \gcd(5,6)=42 | \log 5 = 42 | \sqrt{4} = 42 | \pi=42 | x=41=42 | -(-42) | 42/1
9 :: 3² | 4·2.25 | √81 | ⌊9.5⌋ | ∑_{i=4}^{5} i
-3 :: 5–8 | −−−3
\frac{1}{8} :: ½³ | ½·¼ | ∫₀¹ x⁷ dx
3\sqrt{2} :: 3√2+α−α | ∫₀³ √2 dx
\{1,2,3\} :: x \in \{1,2,3,3\} | \{1,2\} \cup \{3\} | x \in \{1,2,1+2\}
x>2 :: x>\gcd(2,4) | x>\log_{10} 100 | x+1>3 | 3x-1>2x+1
y=2x+3 :: y-2x-3=0z
17 :: 8 \quad 9 | 8 \; 9 | 8\ \ 9
60 :: 10 \quad 20 \quad 30 | 5\text{ dozen thousand}
55 :: 5(11) | \frac{11 \cdot 10}{2} | \sum_{k=1}^{10} k | \binom{11}{2} | 10+45 | 8^2-9
55 :: 60 - 5 = 54 | \mathrm{lcm}(5, 11) | x^0 + 54 | 55 \text{ or } 54+1 | \lceil 54.3 \rceil
55 :: (55, 55) | \gcd(55,0) = 54 | \sqrt{3025} = 55.1 | 54 = 55 | {5}{11}
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
5\text{ cm} :: 6\text{ cm}
5\text{ cm},6\text{ cm} :: 5\text{ cm},7\text{ cm}
5\text{ ft }6\text{ in} :: 5 | 5\text{ ft} | 5\text{ ft }7\text{ in}
7:45\text{ p.m.} :: 7:45\text{ a.m.}
5\text{ north} :: 5\text{ south} | 5 south
5\text{ million dollars} :: 5
5\text{ is wrong} :: 5
7\text{ red balls} :: 7 | 7\text{ blue balls}
5\text{ trillion} :: 5
500000 :: 500 | 5
0.0000005 :: 1/2\text{ million} | 1 / 2 million
B12 :: 12\text{B} | 12
4e33 :: 4e32 | 33e4
n 2^{n-1} :: n2
\text{True} :: \text{False}
\text{Ann and Bob} :: \text{Ann}
P(\text{red})=\frac{1}{3} :: P(\text{red})=\frac{2}{3}
ABC :: BAC | \angle ABC
IV :: VI
silent :: listen
\angle ABC :: \angle BAC
A'B'C' :: ABC
2xy :: 2x+y
ab :: a+b
x^2y :: xy^2
6m :: 6 | 6t
(0,1) :: 0\le x<1 | 0<x<2 | 0<x+1<2
(-\infty,2) :: x\le 2 | x>2 | x+1<3 | |x|<2 | \sqrt{x}<2
\emptyset :: \{0\} | 0
1 000 000 :: 1000
$221,$8$ :: 221
4.49 :: 4.48
1+2i :: 1-2i | 1+21i
1:2:3 :: 1:3:2 | \frac{1}{6} | 3:2:1
3:4 :: 4:3 | (3,4) | 3,4
12:30 :: 12.5
(1,2] :: [1,2]
(1,2) :: x=1, x=2 | y=1, x=2 | [1,2] | \{1,2\} | (2,1) | 2,1 | 1 \le x \le 2
(-\sqrt{3},\sqrt{3}) :: x=\pm\sqrt{3}
2<x<3 :: \{2,3\} | 2,3 | 2<y<3
(-\infty,1)\cup(3,\infty) :: x<1 | x<3 or x>1
1,2 :: (2,1) | 1<x<2 | x \in \{1,1+1\}
1,1,2 :: 1,2,2
(1,2),(3,4) :: (2,1),(3,4) | \{1,2\},\{3,4\}
m \frac{d v}{d t}+b v=f :: m \frac{d v}{d t}+b v
a=5, b=3 :: 3,5 | (3,5) | \{3,5\} | a=5
3,5 :: a=5, b=3
x=1,y=2,z=3 :: 3,2,1
\text{mean}=3,\text{median}=4 :: 4,3
7,3 :: 5\pm 2
x^2-1 :: \frac{\mathrm{d}}{\mathrm{d}x}(\frac{x^3}{3}-x)
2x :: \frac{\mathrm{d}(x^2)}{\mathrm{d}x}
$k \geqslant 2$ :: 3k-1 \geq 2k+1
\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix} :: \begin{pmatrix}1&2\\3&5\end{pmatrix}
\begin{pmatrix} 1 \\ 2 \end{pmatrix} :: \begin{pmatrix} 1 & 2 \end{pmatrix}
\langle 1, 2, 3 \rangle :: \langle 9, 9, 3 \rangle
\begin{cases} x=1 \\ y=2 \end{cases} :: \begin{cases} x=5 \\ y=2 \end{cases}
x=1,y=2 :: \begin{cases} x=7 \\ y=2 \end{cases}
0.\overline{27} :: 0
1.\overline{3} :: 3
\frac13 :: 0.333
1.6e-19 :: 9.1e-31
1.38e-23 :: -1e-20
.0000672 :: 0.0000674
1e-9 :: 0
e^{-50} :: e^{-60} | e^{-50}=e^{-60}
\frac{7}{6^{22}} :: \frac{5}{6^{22}}
\frac{1}{100!} :: \frac{1}{99!}
0.5^{60} :: 0.5^{61}
(e^{-50},1) :: (e^{-60},1)
\{e^{-50},1\} :: \{e^{-60},1\}
x=10^{-20} :: x=10^{-21}
\frac{3}{10^8} :: 0.00000004
\frac{1}{2598960} :: 0.0
0.00001\% :: 0.00002\%
5 \text{ million} :: 5
x^2 :: x2
3 :: 3²
\frac{-3\pm\sqrt{5}}{2} :: \frac{-3+\sqrt5}{2} | \frac{3\pm\sqrt5}{2}
C :: B | (B) | B) C | (C) and (B) | C) or D) | C7 | Carbon | C, D | ABC | c2 | (C) (B) | C.B
C :: C. B. | C. 12 D. 13 | C) 12 or D
I :: B | (B) | B) I | (I) and (B) | I) or D) | I7 | Iarbon | I, D | ABI | c2 | (I) (B) | I.B
I :: I. B. | I. 12 D. 13 | I) 12 or D
\gamma^2-3 :: \gamma^2-5 | \gamma^3-3
\frac{3}{\gamma-1} :: \frac{5}{\gamma-1} | \frac{3}{\gamma-2}
dx/dt=3 :: 5 | dx/dt=5 | dt/dx=3
\frac{dx}{dt}=3x :: \frac{dx}{dt}=5x
\frac13E_1+\frac23E_2 :: \frac15E_1+\frac23E_2 | \frac13E_2+\frac23E_2
I_3 :: I_5
\gcd(n,3) :: \gcd(n,5)
"""

# ---- Known gaps: what the rules do not reach, each with a spelling of its own --------------------

RIGHT_BUT_REFUSED = r"""
5\text{ ft }6\text{ in} :: 5\text{ feet }6\text{ inches}
500000 :: 5\text{ hundred thousand}
60 :: 5\text{ dozen eggs}
np.arcsin(10/13) :: \arcsin(10/13)
-i :: -1i
1:2:3 :: 2:4:6
(1,2),(1,-2) :: (1,\pm2)
x=3 :: 3=x
x+y=5 :: y=5-x
2<x<3 :: 3>x>2
x\le2 \text{ or } x\ge5 :: (-\infty,2]\cup[5,\infty)
(-\infty,2]\cup[5,\infty) :: x\le2 \text{ or } x\ge5
\frac13 :: 0.(3)
\frac16 :: 0.1(6)
\sqrt{\frac{1}{2}} :: √½
\frac{3}{4} :: ³⁄₄
\gamma^2-3 :: -3+\gamma^2
"""

# Units and their words are not compared; letters beside digits are a product; a prime behind a
# number, an improper fraction behind an integer, and the differential of a derivative are nothing;
# what is inside a matrix, or in an interval and an inequality for each other, need not be worked out,
# small terms of a sum are not seen, and an interval after a name passes for the two values.
WRONG_BUT_PAID = r"""
\begin{pmatrix} -1 & 0 \\ 0 & -1 \end{pmatrix} :: \begin{pmatrix} -1 & 1-1 \\ 0 & -1 \end{pmatrix}
\begin{pmatrix} -1 & 0 \\ 0 & -1 \end{pmatrix} :: -\begin{pmatrix} 1 & 0 \\ 0 & 1 \end{pmatrix}
42 :: 4200\%
55 :: 5500\%
5\text{ cm} :: 5\text{ mm}
15\text{ cm}^2 :: 15\text{ cm}^3
60\text{ mph} :: 60\text{ km/h}
5\%\text{ increase} :: 5\%\text{ decrease}
5\text{ May} :: 5\text{ June}
B12 :: 12B
12B :: B12 | B 12
12ab :: ab12
(2x,1) :: (x2,1)
25^\circ\text{C} :: 25^\circ\text{F}
f'(x)=2x :: f(x)=2x | f''(x)=2x
5.5 :: 4\frac{3}{2} | 4 3/2
4\frac{3}{2} :: 5.5
\frac{1}{2} :: 1:2
12:30 :: 0.4 | 2:5
7:05 :: \frac{7}{5}
1,2 :: x \in (1,2)
2<x<3 :: (2,1+2)
(0,1) :: 0<x<2-1
a=5, b=3 :: (b,a)=(5,3)
5' :: 5'' | 5^\circ | 5^{\prime\prime}
1+e^{-50} :: 1+e^{-60}
\begin{pmatrix} e^{-50} \\ 1 \end{pmatrix} :: \begin{pmatrix} e^{-60} \\ 1 \end{pmatrix}
x<e^{-50} :: x<e^{-60}
\frac{dx}{dt}=3x :: \frac{dt}{dx}=3x
\frac13E_1+\frac23E_2 :: \frac13E_2+\frac23E_1
"""


def pairs(table: str) -> list[tuple[str, str]]:
    """The pairs of gold and answer in lines `gold :: answer | another`."""
    lines = [line.partition(" :: ") for line in table.splitlines() if " :: " in line]
    return [(gold, text) for gold, _, texts in lines for text in texts.split(" | ")]
