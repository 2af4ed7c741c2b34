"""Decide whether an answer is right, by Math-Verify on spellings that it knows (`spellings.py`).

Its outermost form is the gold's (`shapes.py`), or one that CROSSINGS lets stand for it, and their
parts are equal, one by one. A part that equals a value must also have an answer's form. Math-Verify
works out what it is given: to it `5 - 9` is -4, and a policy learns in twenty steps to restate the
question, and nothing else. So where the gold is a literal (42, 1.8, 9/5, 3+2i, or a name's relation
to one) all that the answer says must be literals too; where it is an expression or an equation, the
answer holds no more variables or operators than it.

This runs in the processes of `worker.py`, held to a time and a memory limit: importing Math-Verify
takes a second, and a hostile answer may take forever. Two plain numbers are compared here, exactly.
"""

import functools
import logging
import re
from fractions import Fraction
from itertools import dropwhile

from latex2sympy2_extended import NormalizationConfig
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
from sympy import Float, log, preorder_traversal, simplify, sympify

from verifier.forms import (
    EQUAL,
    MAX_BOX,
    RELATION,
    WORD,
    form,
    is_name,
    is_text,
    last_box,
    names,
    normalise,
    operators,
    plain,
    split,
    without_units,
)
from verifier.shapes import shape
from verifier.spellings import latex

TINY = 1e-3  # numbers below it are compared in six digits, others in six decimals
CHOICE = re.compile(r"\(?([A-J])(?:[).:]+(.*))?", re.DOTALL)
LITERAL = re.compile(r"[+-]?(?:[0-9]{1,9}/0*[1-9][0-9]{0,8}|[0-9]*\.?[0-9]+(?:e[+-]?[0-9]{1,3})?)")
SECOND = re.compile(
    r"\b[A-J](?:\)|[.:]\s*\S)|(?:\b(?:or|and)|[,;/&])\s*\(?[A-J]\b|^\s*\(?[A-J]\W*$"
)
CROSSINGS = {  # the gold's shape: shapes whose parts may have any order | shapes with its order
    "value": "| value",
    "ratio": "| ratio value",  # 1:2 is \frac{1}{2}; odds of 1:2 are no probability of \frac{1}{2}
    "clock": "| clock",
    "pair": "| pair interval list named",  # named values come in the order of their names
    "interval": "| interval pair",
    "set": "set list named |",
    "list": "set list | pair named",
    "named": "named | list pair",
    "union": "union |",
    "matrix": "| matrix",
}
# These are Math-Verify's own settings, but without its list of units, to which m, s and t belong:
# units are gone by then.
SETTINGS = (
    LatexExtractionConfig(normalization_config=NormalizationConfig(malformed_operators=True)),
    ExprExtractionConfig(),
)


def choice(text: str) -> str | None:
    r"""Return the letter of a multiple-choice answer without typography.

    It is C for `(C)⟨12 days⟩`, and None if there is none, or two.
    """
    found = CHOICE.fullmatch(re.sub(r"\\text[a-z]*|[⟨⟩{}]", "", text))
    return found[1] if found and not SECOND.search(found[2] or "") else None


@functools.lru_cache(maxsize=4096)
def parsed(text: str) -> list:
    """Return what Math-Verify makes of a text without typography."""
    text = re.sub("⟨([^⟩]{2,})⟩", r"\\text{\1}", text)
    text = re.sub("[⟨⟩]", " ", text)
    return parse(rf"\boxed{{{text}}}", SETTINGS, parsing_timeout=None)


def has_expression(items: list) -> bool:
    """Return whether Math-Verify understood the text; if not, it can only compare strings."""
    return any(not isinstance(item, str) for item in items)


def boxed_gold(answer: str) -> str:
    r"""Return the gold in a LaTeX environment, without which Math-Verify reads `2\pi` as 2."""
    return latex(rf"\boxed{{{answer.strip()}}}")


def literal(text: str) -> Fraction | None:
    """Return the value of an integer, decimal, fraction or power of ten, or else None."""
    text = re.sub(r"^([+-]?)\\frac\{([0-9]+)\}\{([0-9]+)\}$", r"\1\2/\3", text)
    text = re.sub(r"\s?\\(?:times|cdot)\s?10\^(?:\{([-+]?[0-9]+)\}|([0-9]))$", r"e\1\2", text)
    return Fraction(text) if LITERAL.fullmatch(text) else None


def literals_equal(gold: str, text: str) -> bool | None:
    """Return whether two literals are equal, or None if Math-Verify has to say."""
    a = literal(gold)
    b = literal(text)
    if None in (a, b):
        return None
    if a == b:
        return True
    if min(abs(a), abs(b)) < TINY:
        return "." in gold + text and abs(a - b) <= max(abs(a), abs(b)) / 10**6
    return None if abs(a - b) < 1e-5 else False


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


@functools.lru_cache(maxsize=4096)
def equal(text: str, gold: str) -> bool:
    """Return Math-Verify's verdict on two normalised texts without units."""
    said = literals_equal(gold, text)
    if said is not None:
        return said
    if equal_values(parsed(gold), parsed(text)):
        return True
    # A percent sign is optional where the gold has it.
    return "%" in gold and "%" not in text and equal(text + r"\%", gold)


# ---- The form of a value -------------------------------------------------------------------------


def same(a: str, b: str, about: bool) -> bool:
    """Return whether two sides of a chain are equal, or with `about` within 1%."""
    if not about:
        return equal(a, b)
    a, b = (float(parsed(side)[0].evalf()) for side in (a, b))
    return abs(a - b) <= 0.01 * abs(b)


def bare(side: str) -> str:
    """Return a side without brackets."""
    return re.sub("[⟨⟩{}()]", "", side)


def told(sides: list[str]) -> list[str]:
    """Return the last side of a relation, and those of the others that are more than a name."""
    *others, last = sides
    return [side for side in others if not is_name(side) or re.search("[+-]", side)] + [last]


@functools.lru_cache(maxsize=4096)
def is_rational(side: str) -> bool:
    """Return whether an expression is a rational number; one with variables never is."""
    try:
        if names(side):
            return False
        value = parsed(side)[0]
        known = value.is_rational  # None if it has to be simplified first
        return (simplify(value).is_rational if known is None else known) is True
    except Exception:
        return False


def allowed(side: str, gold: str) -> bool:
    """Return whether a side of the answer may stand for what is in the gold."""
    kind = form(side)
    golds = told(split(gold, RELATION)[0])
    forms = set(map(form, golds))
    if kind in ("number", "fraction", "scientific", "infinite"):
        return True
    if bare(side) in map(bare, golds):
        return True
    if kind == "percent":  # 25\% is not 25, as it is to Math-Verify
        return "percent" in forms or not re.fullmatch(r"[+-]?[0-9]+(?:\.0*)?", golds[-1])
    if kind == "base":
        return "base" not in forms and side.endswith("_{10}")  # the gold's own passed above
    # A rational number in closed form: 2021 \cdot 505 \cdot 337.
    closed = any(form(one) == "expression" and is_rational(one) for one in golds)
    if kind in ("power", "integral", "complex"):
        return kind in forms or closed or kind == "power" and "scientific" in forms
    if "expression" not in forms or operators(side) - operators(gold) or names(side) - names(gold):
        return False
    return closed or not is_rational(side)


def is_answer(text: str, gold: str) -> bool:
    """Return whether a value that is equal to the gold's has an answer's form."""
    sides, between = split(text, RELATION)
    golds, relations = split(gold, RELATION)
    solved = len(told(golds)) == 1 and form(golds[-1]) != "expression"
    if relations and not (solved and set(relations) <= EQUAL):
        return all(allowed(side, gold) for side in told(sides))
    *chain, last = sides
    about = r"\approx" in between
    return (
        set(between) <= EQUAL
        and allowed(last, gold)
        and all(same(last, side, about) for side in dropwhile(is_name, chain))
    )


# ---- The shape of an answer ----------------------------------------------------------------------


def matches(text: str, gold: str) -> bool:
    """Return whether a text is the gold, by its shape and part by part; both are normalised."""
    if text == gold:
        return True
    given = shape(text)
    wanted = shape(gold)
    kinds = CROSSINGS[wanted.kind]
    parts = given.parts
    if given.kind not in kinds or len(parts) != len(wanted.parts):
        return False
    if wanted.kind == "value":
        return equal(*parts, *wanted.parts) and is_answer(*parts, *wanted.parts)
    if not (wanted.ends.startswith(given.ends) or given.ends.startswith(wanted.ends)):
        return False
    if given.kind in kinds.split("|")[1]:
        if given.kind == "named":
            parts = sorted(parts, key=lambda part: part.lstrip("\\").casefold())
        return all(map(matches, parts, wanted.parts))
    rest = list(parts)
    for part in wanted.parts:
        found = [one for one in rest if matches(one, part)]
        if not found:
            return False
        rest.remove(found[0])
    return True


def math_reward(text: str | None, answer: str) -> dict[str, float]:
    """Return the reward of Eq. 1: `score` is 1.0 if `text` is an answer and equals the gold.

    Otherwise it is 0.0. The letter of a choice is compared as a letter and words as text, a unit
    may be left out, and the rest is Math-Verify's. `unevaluated` is 1.0 where the text equals the
    gold and is no answer. With None for the text, `score` says whether the gold can be read, and a
    box can hold it, and `as_text` whether it is compared as text.
    """
    try:
        whole_gold = normalise(boxed_gold(answer))
        gold, gold_units = without_units(whole_gold)
        letter = choice(whole_gold)
        as_text = not letter and (is_text(gold) or bool(WORD.fullmatch(gold)))
        if text is None:
            boxed = last_box(rf"\boxed{{{answer}}}")
            readable = as_text or has_expression(parsed(gold))
            possible = boxed == answer.strip() and len(boxed) <= MAX_BOX
            return {"score": float(readable and possible), "as_text": float(as_text)}
        whole = normalise(latex(text))
        if letter:  # Math-Verify knows (C), not `C) 12 days`
            return verdict(choice(whole) == letter)
        text, units = without_units(whole)
        if as_text or is_text(text):
            return verdict(plain(whole) == plain(whole_gold))
        same_units = units <= gold_units or units >= gold_units
        right = same_units and matches(text, gold)
        return verdict(right, unevaluated=not right and same_units and equal(text, gold))
    except Exception:
        # A hostile answer may provoke anything: MemoryError, RecursionError, sympy's own.
        return verdict(False)


def verdict(right: bool, unevaluated: bool = False) -> dict[str, float]:
    """Return what is said of every answer that is graded, so that both have one denominator."""
    return {"score": float(right), "unevaluated": float(unevaluated)}


def official_reward(text: str | None, answer: str) -> float:
    """Return the verdict of Math-Verify alone on all of the text, as in the official code.

    The text may have a box or not. With None for it, the verdict is whether the gold can be read.
    """
    try:
        gold = parse(boxed_gold(answer), parsing_timeout=None)
        if text is None:
            return float(has_expression(gold))  # it equals itself, then
        return float(verify(gold, parse(text, parsing_timeout=None), timeout_seconds=None))
    except Exception:
        return 0.0


logging.getLogger("math_verify").setLevel(logging.CRITICAL)
# The first parse builds tables, which must not take up the time of an answer.
math_reward(r"\boxed{\frac{x}{2}}", r"\sqrt{3}")
