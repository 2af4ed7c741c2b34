"""Whether an answer is right: Math-Verify, and what can be decided without its symbolic algebra.

Runs in the processes of `worker.py`, which hold it to a time and a memory limit: importing Math-Verify takes a
second, and a hostile answer may take forever.
"""

import functools
import logging
import re

import sympy
from math_verify import grader, parse, verify

PLAIN_INTEGER = re.compile(r"\\boxed\{0*([0-9]{1,18})\}")
E_NOTATION = re.compile(r"\\boxed\{([+-]?[0-9]+(?:\.[0-9]+)?)[eE]([+-]?[0-9]{1,3})\}")
GOLD_REPAIRS = [  # for golds that do not parse as they are
    (re.compile(r"\bnp\."), r"\\"),  # np.arcsin(10/13)
    (re.compile(r"([0-9])\.(?![0-9])"), r"\1"),  # -1./3
    (re.compile(r"_\{\\([a-zA-Z]+) *\}"), r"_{\1}"),  # m_{\max}, M_{\odot}
]

WRAPPERS = re.compile(r"\\(?:boxed|text|textbf|textrm|mathrm|mathbf)\b|[{}$]")
CHOICE = re.compile(r"\(?([A-J])(?:[).:]+(?:\s+((?:(?!\b[A-J]\b).)*))?)?", re.DOTALL)  # a second letter is no answer

ELEMENTARY = (sympy.Add, sympy.Mul, sympy.Pow, sympy.Symbol, sympy.Number, sympy.NumberSymbol, type(sympy.I))
ELEMENTARY += (sympy.exp, sympy.log, sympy.sin, sympy.cos, sympy.tan)
MAX_NODES = 200  # of the two expressions together, for the numeric comparison
symbolic_eq = grader.sympy_symbolic_eq  # Math-Verify's own, which `numeric_then_symbolic_eq` replaces


def latex(text: str) -> str:
    r"""Math-Verify reads `1e11` as 1·e·11, which no right answer equals: it becomes `1 \times 10^{11}`."""
    return E_NOTATION.sub(r"\\boxed{\1 \\times 10^{\2}}", text)


def choice(boxed: str) -> str | None:
    r"""The letter of a multiple-choice answer: C for `\boxed{\textbf{(C)} 12 days}`; None where it is none, or two."""
    found = CHOICE.fullmatch(WRAPPERS.sub("", boxed).strip())
    return found[1] if found else None


def has_expression(parsed: list) -> bool:
    """Whether Math-Verify understood the text; if not, it can only compare strings."""
    return any(not isinstance(item, str) for item in parsed)


@functools.lru_cache(maxsize=4096)
def parse_gold(answer: str) -> tuple[str, list]:
    r"""The gold in a LaTeX environment, without which Math-Verify reads `2\pi` as 2, and what it parses to:
    the expression, if there is one, and the normalised string."""
    boxed = latex(rf"\boxed{{{answer.strip()}}}")
    parsed = parse(boxed, parsing_timeout=None)
    if not has_expression(parsed):
        repaired = functools.reduce(lambda text, repair: repair[0].sub(repair[1], text), GOLD_REPAIRS, boxed)
        parsed = parse(repaired, parsing_timeout=None)
    return boxed, parsed


def math_reward(text: str | None, answer: str) -> float:
    """Eq. 1: 1.0 if `text`, from `graded_text`, is the answer, else 0.0. With None: 1.0 if the answer parses.

    The shortcuts decide as Math-Verify does, but for the letter of a multiple-choice answer, of which they know more
    spellings. Its verdict is true if any pair of candidates matches, equal strings included, so strings may come
    first; and plain integers have no other candidates.
    """
    try:
        boxed, gold = parse_gold(answer)
        if text is None:
            return float(has_expression(gold))
        text = latex(text)
        if text == boxed:
            return float(bool(gold))
        if len(answer.strip()) == 1 and answer.strip() == choice(text):  # Math-Verify knows (C), but not `C.` or `C) 12 days`
            return 1.0
        integers = PLAIN_INTEGER.fullmatch(boxed), PLAIN_INTEGER.fullmatch(text)
        if all(integers):
            return float(integers[0][1] == integers[1][1])
        prediction = parse(text, parsing_timeout=None)
        same = bool(gold) and prediction[-1:] == gold[-1:]
        return float(same or verify(gold, prediction, timeout_seconds=None))
    except Exception:  # whatever a hostile answer provokes: MemoryError, RecursionError, sympy's own
        return 0.0


def plainly_different(a, b) -> bool:
    """True only if expressions a and b of elementary functions differ at a point by far more than rounding.

    Then no simplification of a - b is 0. The point is positive, where identities like sqrt(x^2) = x hold.
    """
    for count, node in enumerate(sympy.preorder_traversal([a, b])):
        if count > MAX_NODES or not isinstance(node, (list, *ELEMENTARY)):
            return False
    symbols = sorted(a.free_symbols | b.free_symbols, key=lambda symbol: symbol.name)
    point = {symbol: sympy.Rational(7 + 2 * i, 11) for i, symbol in enumerate(symbols)}
    try:
        x, y = (complex(expression.evalf(15, subs=point)) for expression in (a, b))
    except Exception:  # no number, or one too large
        return False
    return abs(x - y) > 1e-9 * (1 + abs(x) + abs(y))  # False for nan


def numeric_then_symbolic_eq(a, b) -> bool:
    """`symbolic_eq` simplifies a - b, which is nearly all of the time that a wrong answer takes."""
    return not plainly_different(a, b) and symbolic_eq(a, b)


grader.sympy_symbolic_eq = numeric_then_symbolic_eq
logging.getLogger("math_verify").setLevel(logging.CRITICAL)
math_reward(r"\boxed{\frac{x}{2}}", r"\sqrt{3}")  # the first parse builds tables: not on an answer's time
