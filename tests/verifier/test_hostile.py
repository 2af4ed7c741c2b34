"""Four hundred hostile and random answers go through the workers, and no run notices."""

import random
import time

import pytest

from reward import Verifier, graded_text

TIMEOUT = 3.0  # seconds; a bomb outlasts any
BOMB_TIMEOUT = 0.2
MEMORY = 2 * 2**30  # bytes
REAL = (
    r"\frac{t}{4} \sin (2 t) | \frac{1}{b-a}\left(e^{-a t}-e^{-b t}\right) | "
    r"(-\infty, 2) \cup (3, \infty) | \frac{e^{t}}{3}+c e^{-2 t} | 1 \pm \sqrt{19} | "
    r"62.5\% | 204 | 0.000849 | 1,2,4,5 | y=2x+1 | 5.47e5 | "
    r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix} | \text{Evelyn} | \binom{2n}{n} | "
    r"x \in [-2,7] | 75^\circ | x=\frac{1}{6} \pi+\pi k, \frac{1}{3} \pi+\pi k | "
    r"\frac{\log 2}{\log 2-\log 3} | \{1\pm\sqrt{5},-2\}"
).split(" | ")
PIECES = r"""
    \ { } ^ _ $ & ! ( ) [ ] , ; = < \le % ' - \frac \sqrt \boxed{ \left \right \text{
    \sum_{n=1}^{\infty} \int_0^x \begin{cases} \end{cases} \begin{matrix} \\ \infty \pi \cup
    \binom \prod \log_ \def\a{\a\a} \newcommand \input{/etc/passwd} \mathbb{R} i e x f(x) 0 1 7
    9999999999 1e400 0.1 __import__('os') lambda:0
""".split()
PIECES += ["\0", "\n", r"\lim_{x \to 0}", "d x", "½", "٣", "√", "∞", "ﷺ", "\u202e", "\ud800", "数"]


def mutant(rng: random.Random) -> str:
    """A soup of characters or pieces, or a real answer with some put in, taken out or doubled."""
    kind = rng.random()
    if kind < 0.1:
        return "".join(chr(rng.randrange(0x110000)) for _ in range(rng.randint(1, 10)))
    if kind < 0.6:
        return "".join(rng.choice(PIECES) for _ in range(rng.randint(1, 10)))
    text = rng.choice(REAL)
    for _ in range(rng.randint(1, 3)):
        i, j = sorted((rng.randint(0, len(text)), rng.randint(0, len(text))))
        text = text[:i] + rng.choice([rng.choice(PIECES), "", 2 * text[i:j]]) + text[j:]
    return text[:900]


def handmade() -> list[str]:
    """Answers that are known to hang, bloat or break a symbolic algebra system.

    There is one of a kind, since each that hangs costs a new worker.
    """
    tower = "".join(f"{n}^{{" for n in range(9, 2, -1)) + "2" + 7 * "}"
    return [
        tower,
        "100000000!",
        r"\sum_{n=1}^{10^{12}} \sin(n^n)",
        r"\int_0^{\infty} e^{-x^x} \sin(x^{x^x}) dx",
        r"\lim_{x \to 0} \frac{\sin(x^{x^x})}{x^{1/x}}",
        r"\binom{10^{10}}{10^9}",
        r"\frac{1}{0}",
        r"\frac{0}{0}",
        r"0^0",
        r"\infty - \infty",
        "1/" * 300 + "1",
        "1+" * 400 + "1",
        "-" * 900,
        "9" * 900,
        "0." + "3" * 900,
        "1," * 400,
        "x" * 900,
        "=" * 900,
        "1=" * 400 + "1",
        r"\frac" * 150,
        r"\sqrt" * 150,
        r"\sqrt{" * 140 + "2" + "}" * 140,
        r"\boxed{" * 120 + "1" + "}" * 120,
        r"\text{" * 120 + "1" + "}" * 120,
        r"\left(" * 100 + r"\right)" * 40,
        r"(a+b+c+d+e)^{200}",
        "x^{99999} + x + 1 = 0",
        "e^{e^{e^{e^{9}}}}",
        r"\begin{matrix}" + 200 * "1 &" + r"\end{matrix}",
        r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}^{10^{9}}",
        r"\gcd(10^{1000}, 3^{999})",
        r"|" * 300,
        "\0" * 900,
        "$" * 900,
        "$1$" * 300,
        "final answer is $1$. I hope",
        400 * "(" + "x" + 400 * ")",
        400 * "{" + "x" + 400 * "}",
    ]


class Pool:
    """The verifier under fire, with its own count of what went through."""

    def __init__(self, verifier: Verifier):
        self.verifier, self.seen = verifier, set()

    def fire(self, texts: list[str], gold: str) -> list[float]:
        """Grades the texts: scores are 0 or 1, and a time-out costs no more than the limit."""
        begin, timeouts = time.monotonic(), self.verifier.timeouts
        scores = self.verifier.score(texts, [gold] * len(texts))
        self.seen.update(texts)
        seconds, timeouts = time.monotonic() - begin, self.verifier.timeouts - timeouts
        assert len(scores) == len(texts)
        assert set(scores) <= {0.0, 1.0}
        bound = (timeouts + len(texts) / 64 + 1) * (TIMEOUT + 60)  # a stall, on a busy machine
        assert seconds < bound, f"{seconds:.0f} s, {timeouts} time-outs"
        timeouts = self.verifier.timeouts
        good = self.verifier.score([r"\boxed{\frac{2}{4}}", r"\boxed{2}"], ["0.5", "3"])
        assert good == [1.0, 0.0] or self.verifier.timeouts > timeouts  # a stall
        return scores


@pytest.mark.slow
def test_hostile_answers():
    """Time and memory stay bounded, and good answers are still graded right in between.

    The answers are bombs, nests, macros, Unicode, megabytes, and mutations of real answers.
    """
    with Verifier(workers=2, timeout=BOMB_TIMEOUT, memory=MEMORY) as verifier:
        pool = Pool(verifier)
        bombs = [rf"\boxed{{{bomb}}}" for bomb in handmade()]
        assert sum(pool.fire(bombs, "7")) == 0
        raw = [
            "9" * 1_000_000,
            r"\boxed{" * 100_000,
            "{" * 1_000_000,
            r"\boxed{1}" * 100_000,
            "$x$" * 300_000,
        ]
        assert sum(pool.fire(raw[:2] + [graded_text(text, False, False) for text in raw], "7")) == 0
    with Verifier(workers=2, timeout=TIMEOUT, memory=MEMORY) as verifier:
        pool.verifier = verifier
        rng = random.Random(0)
        while len(pool.seen) < 400:
            pool.fire([rf"\boxed{{{mutant(rng)}}}" for _ in range(50)], rng.choice(REAL))
        assert verifier.timeouts < len(pool.seen) / 50
        for worker in verifier.workers:
            with open(f"/proc/{worker.process.pid}/status") as status:
                peak = next(
                    int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM")
                )
            assert peak < MEMORY
