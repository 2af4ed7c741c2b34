r"""What stands in for Math-Verify's comparison: it decides the same in a fraction of the time.

Boxed integers, decimals and fractions are compared exactly, numbers made of digits read without Python's
`eval`, and the LaTeX parser (ANTLR) first tries its fast mode, which finds the same tree or none. Before
Math-Verify simplifies a difference, solves two equations or subtracts sets (tens of milliseconds), they are
evaluated at a point: where they differ by far more than rounding, nothing makes them equal. None changes a
verdict: `pytest tests/verifier/test_shortcuts.py` compares them with Math-Verify alone on pairs of
expressions, equations, sets and close numbers, and on damaged answers. The gain: `python -m bench grader`.
"""

import re
from fractions import Fraction

import sympy
from antlr4.atn.PredictionMode import PredictionMode
from latex2sympy2_extended.latex2sympy2 import _Latex2Sympy as Reader
from math_verify import grader

LITERAL = re.compile(
    r"\\boxed\{(?P<sign>[-+]?)(?:(?P<number>[0-9]{1,18}|[0-9]{1,9}\.[0-9]{1,9})"
    r"|\\[dt]?frac\{(?P<above>[0-9]{1,9})\}\{(?P<below>[0-9]{1,9})\})\}")
DIGITS = re.compile(r"0|[1-9][0-9]{0,99}"), re.compile(r"(?:0|[1-9][0-9]{0,99})\.[0-9]{1,99}")
ELEMENTARY = (sympy.Add, sympy.Mul, sympy.Pow, sympy.Symbol, sympy.Number, sympy.NumberSymbol, type(sympy.I),
              sympy.exp, sympy.log, sympy.sin, sympy.cos, sympy.tan)  # fmt: skip
MAX_NODES = 200  # of the two expressions together, for the comparison at a point
symbolic_eq, compare_relational = grader.sympy_symbolic_eq, grader.sympy_compare_relational  # their own
compare_sets = grader.sympy_compare_sets
read, create_parser, parse_number = Reader.parse, Reader.create_parser, Reader.parse_number


def literal(boxed: str) -> Fraction | None:
    """The value of a boxed integer, decimal or fraction of digits; None if it is anything else."""
    found = LITERAL.fullmatch(boxed)
    if not found or found["below"] and not int(found["below"]):
        return None
    value = Fraction(found["number"] or int(found["above"])) / int(found["below"] or 1)
    return -value if found["sign"] == "-" else value


def literals_equal(gold: str, text: str) -> bool | None:
    """Whether two boxed literals are equal; None if one is no literal, or if they are about equal:
    Math-Verify compares decimals by their first six places."""
    a, b = literal(gold), literal(text)
    if a is None or b is None or 0 < abs(a - b) < 1e-5:
        return None
    return a == b


def plainly_different(a, b) -> bool:
    """True only if expressions a and b of elementary functions differ at a point by far more than rounding.

    The point is positive, where identities like sqrt(x^2) = x hold.
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


def equations_differ(a, b) -> bool:
    """True only if one equation is linear, with rational coefficients, and the other does not hold at a point
    where that one does: then neither their differences nor their solutions are equal."""
    if not isinstance(a, sympy.Eq) or not isinstance(b, sympy.Eq):
        return False
    a, b = a.lhs - a.rhs, b.lhs - b.rhs
    if a.has(sympy.Float) or b.has(sympy.Float):  # of which it compares six places
        return False
    for line, other in ((a, b), (b, a)):
        symbols = sorted(line.free_symbols, key=lambda symbol: symbol.name)
        slopes = [line.diff(symbol) for symbol in symbols]
        if slopes and all(slope.is_Rational for slope in slopes):
            point = {symbol: sympy.Rational(7 + 2 * i, 11) for i, symbol in enumerate(symbols[1:])}
            root = -line.subs(point | {symbols[0]: 0}) / slopes[0]
            return slopes[0] != 0 and plainly_different(other.subs(point | {symbols[0]: root}), sympy.S.Zero)
    return False


def sets_differ(a, b) -> bool:
    """True only if an element of one finite set, or tuple, plainly differs from all of the other's."""
    if not isinstance(a, (sympy.FiniteSet, sympy.Tuple)) or not isinstance(b, (sympy.FiniteSet, sympy.Tuple)):
        return False
    if a.has(sympy.Float) or b.has(sympy.Float):
        return False
    return any(all(plainly_different(x, y) for y in b.args) for x in a.args)


def differ_or_compare_sets(a, b, *precision) -> bool:
    """What `compare_sets` says, which takes symmetric differences, without that where they plainly differ."""
    return not sets_differ(a, b) and compare_sets(a, b, *precision)


def differ_or_compare_relational(a, b, *precision) -> bool:
    """What `compare_relational` says, which solves both, without that work where they plainly differ."""
    return not equations_differ(a, b) and compare_relational(a, b, *precision)


def plain_or_parse_number(reader: Reader, text: str):
    """What `parse_number` makes of a number, by Python's `eval`, without that for plain digits."""
    integer, decimal = (pattern.fullmatch(text) for pattern in DIGITS)
    if integer:
        return sympy.Integer(int(text))
    return sympy.Float(text) if decimal else parse_number(reader, text)


def numeric_then_symbolic_eq(a, b) -> bool:
    """What `symbolic_eq` says, without its work where the two plainly differ."""
    return not plainly_different(a, b) and symbolic_eq(a, b)


def fast_then_full_read(reader: Reader, latex: str):
    """What `read` makes of the LaTeX: in ANTLR's SLL mode, and only if that fails in its LL mode."""

    def create(mode: PredictionMode):
        parser = create_parser(reader, latex)
        parser._interp.predictionMode = mode
        return parser

    try:
        reader.create_parser = lambda _: create(PredictionMode.SLL)
        return read(reader, latex)
    except Exception:
        reader.create_parser = lambda _: create(PredictionMode.LL)
        return read(reader, latex)


def install(on: bool = True) -> None:
    """Have Math-Verify, in this process, read and compare with the shortcuts, or (`on=False`) by itself."""
    grader.sympy_symbolic_eq = numeric_then_symbolic_eq if on else symbolic_eq
    grader.sympy_compare_sets = differ_or_compare_sets if on else compare_sets
    grader.sympy_compare_relational = differ_or_compare_relational if on else compare_relational
    Reader.parse = fast_then_full_read if on else read
    Reader.parse_number = plain_or_parse_number if on else parse_number
