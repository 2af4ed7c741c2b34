r"""Decide whether a text that equals the gold is an answer, and not the question once more.

Math-Verify works out what it is given, so `5 - 9` is -4 to it, and a policy learns in twenty steps
to restate the question, and nothing else. `is_answer` comes on top of Math-Verify's equality and
looks at the form, judged by the value of the gold. Where that is a literal (42, 1.8, 9/5, 3+2i, a
word, or tuples, sets, intervals, matrices, lists of such, or a name's relation to one) all that the
answer says must be literals too; where it is an expression or an equation, the answer holds no more
variables or operators than it. What a form is stands in `forms.py`.
"""

import functools
import re
from dataclasses import dataclass

from math_verify import parse, verify
from sympy import Float, log, preorder_traversal, simplify, sympify

from verifier.forms import (
    ABOUT,
    COMMA,
    EQUAL,
    IN,
    NAME,
    RELATION,
    UNION,
    balanced,
    form,
    is_name,
    leaves,
    names,
    operators,
    split,
)

TINY = 1e-3  # numbers below it are compared in six digits, others in six decimals


@dataclass(frozen=True)
class Gold:
    """The properties of a gold to which an answer is held."""

    forms: set[str]  # of its leaves
    leaves: set[str]  # with capitals folded
    count: int  # how many leaves; infinity is none
    values: int  # how many values
    names: set[str]
    operators: set[str]
    equation: bool  # whether it is one of more than a name and a literal
    inequality: bool  # whether it is one, or a membership
    interval: bool  # whether it is one, or a set, or what may be one
    union: bool
    whole: bool  # whether it holds an integer
    closed: bool  # whether it is a rational number in closed form: 2021 \cdot 505 \cdot 337


def folded(leaf: str) -> str:
    """Return a leaf without brackets and capitals."""
    return re.sub("[⟨⟩{}()]", "", leaf).casefold()


@functools.lru_cache(maxsize=4096)
def read_gold(text: str) -> Gold:
    """Return what a gold without typography and units holds an answer to."""
    values = values_of(text)
    found = []
    relations = set()
    equation = False
    for value in values:
        sides, between = split(value, RELATION)
        relations |= set(between)
        named = len(sides) > 1 and set(between) <= EQUAL and NAME.fullmatch(sides[0])
        told = sides[bool(named) :] if set(between) <= EQUAL else unnamed(sides)
        here = [leaf for side in told for leaf in leaves(side)]
        equation |= bool(between) and (
            not named or any(form(leaf) == "expression" for leaf in here)
        )
        found += here
    forms = {form(leaf) for leaf in found}
    interval = bool(re.match(r"\\?[\[({]", text))
    union = bool(UNION.search(text))
    whole = any(re.fullmatch(r"[+-]?[0-9]+(?:\.0*)?", leaf) for leaf in found)
    closed = any(form(leaf) == "expression" and is_rational(leaf) for leaf in found)
    count = sum("infty" not in leaf for leaf in found)
    return Gold(
        forms,
        set(map(folded, found)),
        count,
        len(values),
        names(text),
        operators(text),
        equation,
        bool(relations - EQUAL),
        interval,
        union,
        whole,
        closed,
    )


def unnamed(sides: list[str]) -> list[str]:
    """Return the sides of a relation that are more than a name, or the one that stands alone."""
    return [
        side for side in sides if len(sides) == 1 or not (NAME.fullmatch(side) and is_name(side))
    ]


def values_of(text: str) -> list[str]:
    """Return the values of a text, which commas separate.

    Brackets that stand around equations are taken off: x = 5 in brackets is x = 5.
    """
    inner = re.fullmatch(r"\\?[({](.*?)\\?[)}]", text)
    if inner and balanced(inner[1]):
        first = split(inner[1], COMMA)[0][0]
        if text[0] == "{" or len(split(first, RELATION)[0]) > 1:
            return values_of(inner[1])
    return split(text, COMMA)[0]


def is_rational(leaf: str) -> bool:
    """Return whether an expression is a rational number; one with variables never is."""
    try:
        if names(leaf):
            return False
        value = parse(rf"\boxed{{{leaf}}}", parsing_timeout=None)[0]
        known = value.is_rational  # None if it has to be simplified first
        return (simplify(value).is_rational if known is None else known) is True
    except Exception:
        return False


def equal_values(gold: list, text: list) -> bool:
    """Return Math-Verify's verdict on two parsed texts, in digits enough for their smallest number.

    Its own 6 decimals, 15 where neither is one, make no difference between e^{-50} and e^{-60}.
    """
    values = [sympify(value) for value in [*gold, *text] if not isinstance(value, str)]
    zeros = 0  # that follow the point
    for value in values:
        parts = preorder_traversal(value)
        for part in parts:
            if part.is_number:
                parts.skip()  # what it is made of may be smaller
                size = abs(part.evalf(3).doit())
                if size.is_Float and 0 < size < TINY:
                    zeros = max(zeros, int(-log(size, 10)))
    exact = not any(value.has(Float) for value in values)
    return verify(
        gold,
        text,
        float_rounding=6 + zeros,
        numeric_precision=zeros + (50 if exact else 15),  # a decimal is known to 15 digits
        timeout_seconds=None,
    )


def same(a: str, b: str, about: bool) -> bool:
    """Return whether two sides of a chain are equal, or with `about` within 1%."""
    a, b = (parse(rf"\boxed{{{side}}}", parsing_timeout=None) for side in (a, b))
    if about and a and b:
        a = float(a[0].evalf())
        b = float(b[0].evalf())
        return abs(a - b) <= 0.01 * abs(b)
    return equal_values(a, b)


def allowed(leaf: str, gold: Gold) -> bool:
    """Return whether a leaf of the answer may stand for what is in the gold."""
    kind = form(leaf)
    if folded(leaf) in gold.leaves or kind in ("number", "fraction", "scientific", "infinite"):
        return True
    if kind == "percent":  # 25\% is not 25, as it is to Math-Verify
        return "percent" in gold.forms or not gold.whole
    if kind == "base":
        return "base" not in gold.forms and leaf.endswith("_{10}")  # the gold's own passed above
    if kind in ("power", "integral", "complex"):
        return kind in gold.forms or gold.closed or kind == "power" and "scientific" in gold.forms
    if (
        "expression" not in gold.forms
        or operators(leaf) - gold.operators
        or names(leaf) - gold.names
    ):
        return False
    return gold.closed or not is_rational(leaf)


def fits(values: list[str], gold: Gold) -> bool:
    """Return whether these values have the form of the gold's, and are as many."""
    count = 0
    inequality = False
    for value in values:
        sides, between = split(value, RELATION)
        inequality |= not set(between) <= EQUAL | IN
        # A union of finite sets is still to be worked out.
        if not gold.union and UNION.search(value) and r"\{" in value:
            return False
        if set(between) <= EQUAL:
            while len(sides) > 1 and is_name(sides[0]) and not gold.equation:
                sides = sides[1:]
                between = between[1:]
            if not gold.equation:
                if not all(
                    same(sides[-1], side, bool(ABOUT & set(between))) for side in sides[:-1]
                ):
                    return False
                sides = sides[-1:]
        elif not (gold.inequality or gold.interval or set(between) <= IN and r"\{" in value):
            return False
        found = [leaf for side in unnamed(sides) for leaf in leaves(side)]
        if not all(allowed(leaf, gold) for leaf in found):
            return False
        count += sum("infty" not in leaf for leaf in found)
    if gold.equation:
        return len(values) == gold.values
    return inequality or gold.inequality or count == gold.count


def is_answer(text: str, gold: str) -> bool:
    """Return whether a text that is equal to the gold has an answer's form; both are normalised."""
    return fits(values_of(text), read_gold(gold))
