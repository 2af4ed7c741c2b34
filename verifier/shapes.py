r"""Tell the shape of an answer: what it is by its outermost form.

`(2, \frac{1}{3})` is a pair of the values `2` and `\frac{1}{3}`, and `x = 2, y = 1/3` are named
values. That these may stand for that pair is said in the CROSSINGS of `math_answers.py`.
"""

import re
from dataclasses import dataclass, replace
from math import gcd

from verifier.forms import COMMA, EQUAL, RELATION, UNION, balanced, is_name, names, split

# A solved inequality, from its low end to its high one or the other way round.
VARIABLE = r"(?P<name>(?:[a-zA-Z]|\\(?!pi|infty)[a-z]+)(?:_\w|_\{\w+\})?)"
LESS = re.compile(
    r"(?:(?P<low>[^<>]+)(?P<first><|\\l(?:t|eq?|eqslant)(?![a-zA-Z]))\s?)??"
    rf"{VARIABLE}(?:(?P<last><|\\l(?:t|eq?|eqslant)(?![a-zA-Z]))\s?(?P<high>[^<>]+))?"
)
GREATER = re.compile(
    r"(?:(?P<high>[^<>]+)(?P<last>>|\\g(?:t|eq?|eqslant)(?![a-zA-Z]))\s?)??"
    rf"{VARIABLE}(?:(?P<first>>|\\g(?:t|eq?|eqslant)(?![a-zA-Z]))\s?(?P<low>[^<>]+))?"
)
COLON = re.compile(":")
CLOCK = re.compile(r"(?:[01]?[0-9]|2[0-4])(?::[0-5][0-9]){1,2}")
BRACKETS = re.compile(r"(\\?[\[({])(?!\\?.$)(.*?)\\?([\])}])", re.DOTALL)
MATRIX = re.compile(r"\\begin\{([pbB]?matrix|array)\}(?:\{[clr|]*\})?(.*)\\end\{\1\}", re.DOTALL)


@dataclass(frozen=True)
class Shape:
    """What an answer is by its outermost form, and the texts of what it is made of.

    kind: "value" (a number, an expression, an equation), "ratio", "clock", "pair" (of any length,
    in parentheses: it may be an open interval), "interval", "set", "list" (without brackets),
    "named" (values of several names), "union" or "matrix".
    """

    kind: str
    parts: list[str]
    ends: str = ""  # brackets of a pair or an interval and its variable; a matrix's number of &
    name: str = ""  # what stands left of the relation


def shape(text: str) -> Shape:
    """Return the shape of a normalised text without units."""
    pieces = pieces_of(text)
    if len(pieces) > 1:
        return several(text, pieces)
    sides, between = split(text, RELATION)
    if between:
        return relation(text, sides, between)
    if len(parts := split(text, UNION)[0]) > 1:
        return Shape("union", parts)
    if len(terms := split(text, COLON)[0]) > 1:
        return ratio(text, terms)
    if found := MATRIX.fullmatch(text):
        entries = re.split(r"&|\\\\", found[2].removesuffix(r"\\"))
        return Shape("matrix", entries, ends=str(found[2].count("&")))
    found = BRACKETS.fullmatch(text)
    if not found or not balanced(found[2]):
        return Shape("value", [text])
    opened, inner, closed = found.groups()
    parts = pieces_of(inner)
    if opened == "{" or len(parts) == 1 or RELATION.search(parts[0]):
        return shape(inner)
    if opened == r"\{":
        return Shape("set", parts)
    ends = opened + closed if len(parts) == 2 else "()"
    return Shape("pair" if ends == "()" else "interval", parts, ends)


def pieces_of(text: str) -> list[str]:
    """Return what commas separate, and both values of a piece with one ± outside of sets."""
    pieces = []
    for piece in split(text, COMMA)[0]:
        both = re.findall(r"\\pm|\\mp|\\\{", piece) == [r"\pm"]
        pieces += [piece.replace(r"\pm", sign) for sign in "+-"] if both else [piece]
    return pieces


def several(text: str, pieces: list[str]) -> Shape:
    """Return the shape of pieces between commas: several values of one name are a set.

    Names that differ in their index alone are one: x_1 and x_2 are two roots.
    """
    shapes = list(map(shape, pieces))
    heads = {re.sub(r"_(?:\{[^{}]*\}|\w)", "", one.name) for one in shapes}
    if len(heads) == 1 and {one.kind for one in shapes} == {"interval"}:
        return Shape("union", pieces)
    named = heads - {""}
    if len(named) == len(pieces):
        return Shape("named", pieces)
    return Shape("set" if named or r"\pm" in text else "list", pieces)


def relation(text: str, sides: list[str], between: list[str]) -> Shape:
    """Return the shape of a relation; a name to the right of a number goes left."""
    first, *middle, last = sides
    value = Shape("value", [text], name=first)
    if not set(between) - {r"\in"} <= EQUAL:
        return inequality(text) or value
    if is_name(last) and not names(first):
        return shape("=".join([last, first, *middle]))
    inner = shape(last)
    if middle or inner.kind == "value" or not is_name(first):
        return value
    if r"\in" in between:
        return replace(inner, kind=inner.kind.replace("pair", "interval"), name=first)
    named = shape(first).parts
    if inner.kind == "pair" and len(named) == len(inner.parts):  # (a, b) = (5, 3)
        inner = replace(inner, parts=list(map("{}={}".format, named, inner.parts)))
    return replace(inner, name=first)


def inequality(text: str) -> Shape | None:
    """Return a solved inequality as the interval that it is, or None for another relation."""
    found = LESS.fullmatch(text) or GREATER.fullmatch(text)
    at = found.groupdict("") if found else {}
    if not found or names(at["low"] + at["high"]):
        return None
    ends = "(["["e" in at["first"]] + ")]"["e" in at["last"]] + at["name"]
    return Shape("interval", [at["low"] or r"-\infty", at["high"] or r"\infty"], ends, at["name"])


def ratio(text: str, terms: list[str]) -> Shape:
    """Return a ratio as the quotients of its terms, or a clock time as its hours and minutes.

    A time looks like one and is, as a ratio, not in lowest terms: 12:30, 7:05, but not 9:16.
    """
    if CLOCK.fullmatch(text) and (":0" in text or gcd(*map(int, terms)) > 1):
        return Shape("clock", terms)
    return Shape("ratio", list(map(r"\frac{{{}}}{{{}}}".format, terms, terms[1:])))
