"""Whether an answer is right: Math-Verify, on spellings that it knows (`spellings.py`).

Runs in the processes of `worker.py`, held to a time and a memory limit: importing Math-Verify takes
a second, and a hostile answer may take forever. Two plain numbers are compared here, exactly.
"""

import functools
import logging
import re
from fractions import Fraction

from math_verify import parse, verify

from verifier.answer import is_answer, read_gold
from verifier.spellings import latex

GOLD_REPAIRS = [  # for golds that do not parse as they are
    (re.compile(r"\bnp\."), r"\\"),  # np.arcsin(10/13)
    (re.compile(r"([0-9])\.(?=/)"), r"\1"),  # -1./3
    (re.compile(r"_\{\\([a-zA-Z]+) *\}"), r"_{\1}"),  # m_{\max}, M_{\odot}
]
WRAPPERS = re.compile(r"\\(?:boxed|text[a-z]*|math(?:rm|bf|it|sf))(?![a-zA-Z])|[{}$]")
BLANKS = re.compile(r"\\[,;:! ]|\\q?quad(?![a-zA-Z])|~")
CHOICE = re.compile(r"\(?([A-J])(?:[).:]+(.*))?", re.DOTALL)
TINY = 1e-3  # Math-Verify compares decimals by their first six places, to which 1.6e-19 is 9.1e-31
LITERAL = re.compile(
    r"\\boxed\{\s?(?P<sign>[-+]?)"
    r"(?:\\[dt]?frac\{(?P<above>[0-9]{1,9})\}\{(?P<below>[0-9]{1,9})\}"
    r"|(?P<number>[0-9]*\.?[0-9]+)"
    r"(?:\s?\\(?:times|cdot)\s?10\^(?:\{(?P<power>[-+]?[0-9]{1,3})\}|(?P<digit>[0-9])))?)"
    r"\s?\}"
)
SECOND = re.compile(
    r"\b[A-J](?:\)|[.:]\s*\S)|(?:\b(?:or|and)|[,;/&])\s*\(?[A-J]\b|^\s*\(?[A-J]\W*$"
)


def choice(boxed: str) -> str | None:
    r"""The letter of a multiple-choice answer:
    C for `\boxed{\textbf{(C)} 12 days}`; None if none, or two.
    """
    found = CHOICE.fullmatch(BLANKS.sub(" ", WRAPPERS.sub("", boxed)).strip())
    return found[1] if found and not SECOND.search(found[2] or "") else None


def has_expression(parsed: list) -> bool:
    """Whether Math-Verify understood the text; if not, it can only compare strings."""
    return any(not isinstance(item, str) for item in parsed)


def boxed_gold(answer: str) -> str:
    r"""The gold in a LaTeX environment, without which Math-Verify reads `2\pi` as 2."""
    return latex(rf"\boxed{{{answer.strip()}}}")


@functools.lru_cache(maxsize=4096)
def parse_gold(answer: str) -> list:
    """What the gold parses to: the expression, if there is one, and the normalised string."""
    boxed = boxed_gold(answer)
    parsed = parse(boxed, parsing_timeout=None)
    if not has_expression(parsed):
        repaired = functools.reduce(
            lambda text, repair: repair[0].sub(repair[1], text), GOLD_REPAIRS, boxed
        )
        parsed = parse(repaired, parsing_timeout=None)
    return parsed


def literal(boxed: str) -> Fraction | None:
    """The value of a boxed integer, decimal, fraction or power of ten;
    None if it is anything else.
    """
    found = LITERAL.fullmatch(boxed)
    if not found:
        return None
    if found["number"]:
        power = int(found["power"] or found["digit"] or 0)
        value = Fraction(found["number"]) * Fraction(10) ** power
    elif int(found["below"]):
        value = Fraction(int(found["above"]), int(found["below"]))
    else:
        return None
    return -value if found["sign"] == "-" else value


def literals_equal(gold: str, text: str) -> bool | None:
    """Whether two boxed literals are equal, tiny decimals
    in six digits; None if Math-Verify has to say.
    """
    a, b = literal(gold), literal(text)
    if a is None or b is None:
        return None
    if a == b:
        return True
    if min(abs(a), abs(b)) < TINY and "frac" not in gold + text:
        return abs(a - b) <= max(abs(a), abs(b)) / 10**6
    return None if abs(a - b) < 1e-5 else False


def equal(text: str, answer: str) -> bool:
    """Math-Verify's verdict on `text`, from `graded_text`;
    of a choice gold, whether it is its letter.
    """
    boxed, text = boxed_gold(answer), latex(text)
    said = literals_equal(boxed, text)
    if said is not None:
        return said
    gold = parse_gold(answer)
    if text == boxed:
        return bool(gold)
    if choice(boxed):
        return choice(text) == choice(boxed)  # Math-Verify knows (C), not `C) 12 days`
    prediction = parse(text, parsing_timeout=None)
    # Its verdict is true if any pair of candidates matches, equal strings included: those may come
    # first.
    right = (
        bool(gold)
        and prediction[-1:] == gold[-1:]
        or verify(gold, prediction, timeout_seconds=None)
    )
    if not right and "%" in boxed and "%" not in text:  # optional where the gold has it
        prediction = parse(text.removesuffix("}") + r"\%}", parsing_timeout=None)
        right = verify(gold, prediction, timeout_seconds=None)
    return right


def math_reward(text: str | None, answer: str) -> dict[str, float]:
    """Eq. 1: `score` is 1.0 if `text` is an answer and equal to the gold, else 0.0.

    `unevaluated` is 1.0 where it is equal and no answer. With None for the text, `score` says
    whether the gold parses, `malformed` whether Math-Verify alone judges.
    """
    try:
        if text is None:
            malformed = read_gold(boxed_gold(answer)) is None
            return {
                "score": float(has_expression(parse_gold(answer))),
                "malformed": float(malformed),
            }
        if not equal(text, answer):
            return {"score": 0.0}
        boxed = boxed_gold(answer)
        right = latex(text) == boxed or choice(boxed) is not None or is_answer(latex(text), boxed)
        return {"score": float(right), "unevaluated": float(not right)}
    except Exception:
        # Whatever a hostile answer provokes: MemoryError, RecursionError, sympy's own.
        return {"score": 0.0}


def official_reward(text: str | None, answer: str) -> float:
    """Math-Verify alone on all of the text, box or not,
    as in the official code. With None as above.
    """
    try:
        gold = parse_gold(answer)
        if text is None:
            return float(has_expression(gold))
        return float(verify(gold, parse(text, parsing_timeout=None), timeout_seconds=None))
    except Exception:
        return 0.0


logging.getLogger("math_verify").setLevel(logging.CRITICAL)
# The first parse builds tables: not on an answer's time.
math_reward(r"\boxed{\frac{x}{2}}", r"\sqrt{3}")
