"""Decide whether an answer is right, by Math-Verify on spellings that it knows (`spellings.py`).

This runs in the processes of `worker.py`, held to a time and a memory limit: importing Math-Verify
takes a second, and a hostile answer may take forever. Two plain numbers are compared here, exactly.
"""

import functools
import logging
import re
from fractions import Fraction

from latex2sympy2_extended import NormalizationConfig
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

from verifier.answer import TINY, equal_values, is_answer
from verifier.forms import MAX_BOX, WORD, is_text, last_box, normalise, plain, without_units
from verifier.spellings import latex

CHOICE = re.compile(r"\(?([A-J])(?:[).:]+(.*))?", re.DOTALL)
LITERAL = re.compile(r"[+-]?(?:[0-9]{1,9}/0*[1-9][0-9]{0,8}|[0-9]*\.?[0-9]+(?:e[+-]?[0-9]{1,3})?)")
SECOND = re.compile(
    r"\b[A-J](?:\)|[.:]\s*\S)|(?:\b(?:or|and)|[,;/&])\s*\(?[A-J]\b|^\s*\(?[A-J]\W*$"
)
# These are Math-Verify's own settings, but without its list of units, to which m, s and t belong:
# units are gone by then.
parse_text = functools.partial(
    parse,
    extraction_config=(
        LatexExtractionConfig(normalization_config=NormalizationConfig(malformed_operators=True)),
        ExprExtractionConfig(),
    ),
    parsing_timeout=None,
)
parse_gold = functools.lru_cache(maxsize=4096)(parse_text)


def choice(text: str) -> str | None:
    r"""Return the letter of a multiple-choice answer without typography.

    It is C for `(C)⟨12 days⟩`, and None if there is none, or two.
    """
    found = CHOICE.fullmatch(re.sub(r"\\text[a-z]*|[⟨⟩{}]", "", text))
    return found[1] if found and not SECOND.search(found[2] or "") else None


def box(text: str) -> str:
    """Return a text without typography in a box that Math-Verify reads."""
    text = re.sub("⟨([^⟩]{2,})⟩", r"\\text{\1}", text)
    return rf"\boxed{{{re.sub('[⟨⟩]', ' ', text)}}}"


def has_expression(parsed: list) -> bool:
    """Return whether Math-Verify understood the text; if not, it can only compare strings."""
    return any(not isinstance(item, str) for item in parsed)


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
    if a is None or b is None:
        return None
    if a == b:
        return True
    if min(abs(a), abs(b)) < TINY:
        return "." in gold + text and abs(a - b) <= max(abs(a), abs(b)) / 10**6
    return None if abs(a - b) < 1e-5 else False


def equal(text: str, gold: str) -> bool:
    """Return Math-Verify's verdict on two normalised texts without units."""
    said = literals_equal(gold, text)
    if said is not None:
        return said
    expected = parse_gold(box(gold))
    prediction = parse_text(box(text))
    if equal_values(expected, prediction):
        return True
    if re.search(r"[<>]|\\[lg]e", text):  # the answer may say 0 < x < 1 for an interval
        return equal_values(prediction, expected)
    # A percent sign is optional where the gold has it.
    return "%" in gold and "%" not in text and equal(text + r"\%", gold)


def math_reward(text: str | None, answer: str) -> dict[str, float]:
    """Return the reward of Eq. 1: `score` is 1.0 if `text` is an answer and equals the gold.

    Otherwise it is 0.0. The letter of a choice is compared as a letter and words as text, a unit
    may be left out, and the rest is Math-Verify's. `unevaluated` is 1.0 where the text equals the
    gold and is no answer. With None for the text, `score` says whether the gold can be read, and is
    right itself in a box, and `as_text` whether it is compared as text.
    """
    try:
        whole_gold = normalise(boxed_gold(answer))
        gold, gold_units = without_units(whole_gold)
        letter = choice(whole_gold)
        as_text = not letter and (is_text(gold) or bool(WORD.fullmatch(gold)))
        if text is None:
            boxed = last_box(rf"\boxed{{{answer}}}") or ""
            readable = as_text or has_expression(parse_gold(box(gold)))
            possible = readable and len(boxed) <= MAX_BOX
            right = possible and math_reward(rf"\boxed{{{boxed}}}", answer)["score"]
            return {"score": float(right), "as_text": float(as_text)}
        whole = normalise(latex(text))
        if letter:  # Math-Verify knows (C), not `C) 12 days`
            return verdict(choice(whole) == letter)
        text, units = without_units(whole)
        if as_text or is_text(text):
            return verdict(plain(whole) == plain(whole_gold))
        same_units = units <= gold_units or units >= gold_units
        if not same_units or (text != gold and not equal(text, gold)):
            return verdict(False)
        right = text == gold or is_answer(text, gold)
        return verdict(right, unevaluated=not right)
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
