"""What only saves time decides as Math-Verify does."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from math_verify import parse, parser, verify

from tests.verifier.test_hostile import REAL, mutant
from verifier import shortcuts
from verifier.math_answers import equal


def read_alone(text: str) -> list:
    """What Math-Verify reads without the shortcuts and without its memory of the last twenty texts."""
    parser.parse_latex_cached.cache_clear()
    parser.extract_latex.cache_clear()
    return parse(text, parsing_timeout=None)


def verdicts(gold: str, text: str) -> tuple[float, bool]:
    """With the shortcuts, and from Math-Verify alone."""
    shortcuts.install(on=False)
    try:
        alone = verify(parse(rf"\boxed{{{gold}}}"), parse(text))
    finally:
        shortcuts.install()
    return equal(text, gold), alone


GOLDS = [
    r"\frac{t}{4} \sin (2 t)", r"\frac{e^{t}}{3}+c e^{-2 t}", r"I(0) e^{-\frac{t}{R C}}",
    r"\sqrt{2} \cos (2 t-\pi / 4)", r"\frac{1}{b-a}\left(e^{-a t}-e^{-b t}\right)",
    r"\arcsin{1.3 \sin{\theta_w}}", r"\frac{1}{s}-\frac{1}{s} e^{-s T}",
    r"\frac{v_{0}}{r_{0}} \frac{1}{\left(1+r / r_{0}\right)^{3 / 2}}", r"k\left(4 k^{2}+k-1\right) / 2",
    r"\frac{1}{2 n+2}", r"1 \pm \sqrt{19}", r"(-\infty, 2) \cup (3, \infty)",
    r"\frac{\log 2}{\log 2-\log 3}", r"16 \sqrt{3}", r"\frac{11}{36}", r"(\frac{1}{4}, \frac{1}{27})",
    "1+2i", "y=2x+1", "x^5 - x^4 + x^3 - x^2 + x - 1", r"75^\circ", r"62.5\%", "0.000849", "5.0", "-4",
    "1,2,4,5", r"\cot x", r"\binom{2n}{n}", r"\begin{pmatrix} 1 & x \\ 3 & 4 \end{pmatrix}",
    r"\text{Evelyn}", r"\frac{1}{\sqrt{x^2}}", r"\frac{1}{x}", r"2 \cdot (x+1) / 2", "x+1", "1+x",
    r"\frac{\sqrt{12}}{2}", r"\sqrt{3}", r"\ln x^2", r"2\ln x", r"\frac{e^{i\pi}}{2}", r"-\frac{1}{2}",
    r"\frac{1}{0}", r"10^{-12}", r"2 \cdot 10^{-12}",
]  # fmt: skip


def test_shortcuts_change_no_verdict():
    """Pairs of 43 expressions, equal in other words or not at all, get Math-Verify's own verdict."""
    pairs = [(GOLDS[i], GOLDS[j]) for i in range(len(GOLDS)) for j in range(i % 13, len(GOLDS), 13)]
    pairs += list(zip(GOLDS, GOLDS[1:], strict=False)) + list(zip(GOLDS[1:], GOLDS, strict=False))
    pairs += [(gold, gold) for gold in GOLDS] + [(gold, gold + " + 0") for gold in GOLDS]
    found = {pair: verdicts(pair[0], rf"\boxed{{{pair[1]}}}") for pair in pairs}
    assert len(found) == 272
    assert not [pair for pair, (ours, alone) in found.items() if ours != alone]


EQUATIONS = [
    "y=2x+1", "y=3x+1", "2x-y+1=0", "4x-2y+2=0", "x=5", "5=x", "x=7", "y=5", "x=5.0000001", "x=5.1",
    "y=x^2+1", "x^2+y^2=25", "x+y+z=1", "2x+2y+2z=2", "(x-1)^2=0", "x=1", "(x-1)(x-2)=0", "xz=5z", "y=2z+1",
    r"y=\frac{x}{3}", "y=0.333333x", "x=3y", "f(x)=2x", "xy=1", r"x=\sqrt{2}", "y=X", "0=0", "x-x=0",
]  # fmt: skip


def test_equations_get_the_same_verdict():
    """Lines and others, the same line in other words, curves that hold it, decimals near an integer: pairs of
    28 equations get Math-Verify's own verdict, and most that differ do so without it."""
    pairs = [(a, b) for i, a in enumerate(EQUATIONS) for b in EQUATIONS[i % 9 :: 9]]
    pairs += [*zip(EQUATIONS, EQUATIONS[1:])]
    found = {pair: verdicts(pair[0], rf"\boxed{{{pair[1]}}}") for pair in pairs}
    assert len(found) > 100 and not [pair for pair, (ours, alone) in found.items() if ours != alone]
    one, two, *others = (parse(rf"\boxed{{{e}}}")[0] for e in ("y=2x+1", "y=3x+1", "4x-2y+2=0", "x=5.1"))
    assert shortcuts.equations_differ(one, two)
    assert not any(map(shortcuts.equations_differ, [one] * 2, others))


SETS = [
    "1, 2", "2, 1", r"\{1, 2\}", "(1, 2)", "(2, 1)", "1, 3", "1, 2, 2", "2", r"\{\frac{2}{2}, 2\}", "1, 2.0",
    "1, 2.0000001", r"1 \pm \sqrt{19}", r"1-\sqrt{19}, 1+\sqrt{19}", r"\{\sqrt{8}, 1\}",
    r"\{2\sqrt{2}, 1\}", "x, 1",
    "1, x", "y, 1", r"(1, \frac{\pi}{2})", "[1, 2]", r"x=1, x=2", r"\emptyset", r"(1, 2), (3, 4)",
    "(3, 4), (1, 2)",
]  # fmt: skip


def test_sets_get_the_same_verdict():
    """Sets, tuples, intervals and lists of numbers, surds, names and relations: pairs of 24 get Math-Verify's
    own verdict, and most that differ do so without it."""
    pairs = [(a, b) for i, a in enumerate(SETS) for b in SETS[i % 4 :: 4]] + [*zip(SETS, SETS[1:])]
    found = {pair: verdicts(pair[0], rf"\boxed{{{pair[1]}}}") for pair in pairs}
    assert len(found) > 150 and not [pair for pair, (ours, alone) in found.items() if ours != alone]
    one, two, three = (parse(rf"\boxed{{{s}}}")[0] for s in ("1, 2", "1, 3", "2, 1"))
    assert shortcuts.sets_differ(one, two) and not shortcuts.sets_differ(one, three)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.from_regex("(0|[1-9][0-9]{0,30})([.][0-9]{1,30})?|[0-9.,]{1,6}", fullmatch=True))
def test_numbers_are_read_alike(text):
    """Digits become what `sympy.Number` makes of them, with its precision; all else is left to it."""
    def read(parse_number):
        try:
            number = parse_number(None, text)
            return type(number), str(number), getattr(number, "_prec", None)
        except Exception as error:
            return type(error)

    assert read(shortcuts.plain_or_parse_number) == read(shortcuts.parse_number)


NUMBERS = st.one_of(
    st.integers(-20, 20).map(str),
    st.integers(-20, 20).map("{:+d}".format),
    st.integers(-20, 20).map(lambda n: f"{n / 1e6:.7f}"),
    st.integers(-20, 20).map(lambda n: f"{(10**8 + n) / 1e8:.8f}"),
    st.integers(0, 10**20).map(str),
    st.integers(0, 30).map(lambda n: f"{n:04d}"),
    st.decimals(-3, 3, places=2).map(str),
    st.tuples(st.integers(-9, 9), st.integers(1, 9)).map(lambda f: rf"\frac{{{f[0]}}}{{{f[1]}}}"),
    st.tuples(st.integers(-9, 9), st.integers(0, 9)).map(lambda f: rf"-\dfrac{{{f[0]}}}{{{f[1]}}}"),
    st.tuples(st.integers(0, 10**9), st.integers(1, 10**9)).map(lambda f: rf"\tfrac{{{f[0]}}}{{{f[1]}}}"),
    st.tuples(st.integers(-9, 9), st.integers(1, 9)).map(lambda f: f"{f[0]}/{f[1]}"),
)


@settings(max_examples=600, deadline=None, derandomize=True)
@given(NUMBERS, NUMBERS)
def test_numbers_get_the_same_verdict(gold, number):
    """Numbers in all spellings, near each other, get Math-Verify's own verdict."""
    ours, alone = verdicts(gold, rf"\boxed{{{number}}}")
    assert ours == alone


def test_damaged_answers_are_read_alike():
    """Whole answers, and 500 with pieces put in, taken out or doubled, are read as without the shortcuts."""
    rng = random.Random(0)
    texts = [rf"\boxed{{{text}}}" for text in [*GOLDS, *REAL, *(mutant(rng)[:60] for _ in range(500))]]
    read = [read_alone(text) for text in texts]
    shortcuts.install(on=False)
    try:
        assert [repr(read_alone(text)) for text in texts] == [repr(one) for one in read]
    finally:
        shortcuts.install()
