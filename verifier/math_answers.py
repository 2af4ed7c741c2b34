"""Whether an answer is right: Math-Verify, on spellings that it knows (`spellings.py`).

Runs in the processes of `worker.py`, held to a time and a memory limit: importing Math-Verify takes a second,
and a hostile answer may take forever. What only saves time stands in `shortcuts.py`.
"""

import functools
import logging
import math
import re

from math_verify import parse, verify

from verifier import shortcuts
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
TINY = 1e-3
NUMBER = re.compile(r"\\boxed\{\s?([+-]?[0-9]*\.?[0-9]+)\s?"
                    r"(?:\\(?:times|cdot)\s?10\^(?:\{([+-]?[0-9]{1,3})\}|([0-9])))?\s?\}")
SECOND = re.compile(r"\b[A-J](?:\)|[.:]\s*\S)|(?:\b(?:or|and)|[,;/&])\s*\(?[A-J]\b|^\s*\(?[A-J]\W*$")


def choice(boxed: str) -> str | None:
    r"""The letter of a multiple-choice answer: C for `\boxed{\textbf{(C)} 12 days}`; None if none, or two."""
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
        repaired = functools.reduce(lambda text, repair: repair[0].sub(repair[1], text), GOLD_REPAIRS, boxed)
        parsed = parse(repaired, parsing_timeout=None)
    return parsed


def tiny_equal(gold: str, text: str) -> bool | None:
    """Whether two boxed numbers agree in six digits, if one is below TINY; else None. Math-Verify compares
    decimals by their first six places, to which 1.6e-19 is 9.1e-31."""
    found = [NUMBER.fullmatch(boxed) for boxed in (gold, text)]
    if not all(found):
        return None
    a, b = (float(f"{number}e{power or digit or 0}") for number, power, digit in (f.groups() for f in found))
    return math.isclose(a, b, rel_tol=1e-6) if min(abs(a), abs(b)) < TINY else None


def equal(text: str, answer: str) -> bool:
    """Math-Verify's verdict on `text`, from `graded_text`; of a choice gold, whether it is its letter."""
    boxed, text = boxed_gold(answer), latex(text)
    for compare in (shortcuts.literals_equal, tiny_equal):
        if (said := compare(boxed, text)) is not None:
            return said
    gold = parse_gold(answer)
    if text == boxed:
        return bool(gold)
    if choice(boxed):
        return choice(text) == choice(boxed)  # Math-Verify knows (C), not `C) 12 days`
    prediction = parse(text, parsing_timeout=None)
    # Its verdict is true if any pair of candidates matches, equal strings included: those may come first.
    right = bool(gold) and prediction[-1:] == gold[-1:] or verify(gold, prediction, timeout_seconds=None)
    if not right and "%" in boxed and "%" not in text:  # optional where the gold has it
        prediction = parse(text.removesuffix("}") + r"\%}", parsing_timeout=None)
        right = verify(gold, prediction, timeout_seconds=None)
    return right


def math_reward(text: str | None, answer: str) -> dict[str, float]:
    """Eq. 1: `score` is 1.0 if `text` is an answer and equal to the gold, else 0.0.

    `unevaluated` is 1.0 where it is equal and no answer. With None for the text, `score` says whether the
    gold parses, `malformed` whether Math-Verify alone judges.
    """
    try:
        if text is None:
            malformed = read_gold(boxed_gold(answer)) is None
            return {"score": float(has_expression(parse_gold(answer))), "malformed": float(malformed)}
        if not equal(text, answer):
            return {"score": 0.0}
        boxed = boxed_gold(answer)
        right = latex(text) == boxed or choice(boxed) is not None or is_answer(latex(text), boxed)
        return {"score": float(right), "unevaluated": float(not right)}
    except Exception:  # whatever a hostile answer provokes: MemoryError, RecursionError, sympy's own
        return {"score": 0.0}


def official_reward(text: str | None, answer: str) -> float:
    """Math-Verify alone on all of the text, box or not, as in the official code. With None as above."""
    try:
        gold = parse_gold(answer)
        if text is None:
            return float(has_expression(gold))
        return float(verify(gold, parse(text, parsing_timeout=None), timeout_seconds=None))
    except Exception:
        return 0.0


def both_rewards(text: str | None, answer: str, row: dict | None = None) -> dict[str, float]:
    """The verdict of `math_reward` on row["boxed"], and beside it `official_reward`'s on the text."""
    if text is None:
        return math_reward(None, answer)
    strict = math_reward(row["boxed"], answer) if row["boxed"] else {"score": 0.0}
    return strict | {"official": official_reward(text, answer)}


shortcuts.install()
logging.getLogger("math_verify").setLevel(logging.CRITICAL)
math_reward(r"\boxed{\frac{x}{2}}", r"\sqrt{3}")  # the first parse builds tables: not on an answer's time
