"""Whether an answer is right: Math-Verify, and the spellings that it does not know.

Runs in the processes of `worker.py`, held to a time and a memory limit: importing Math-Verify takes a second,
and a hostile answer may take forever. What only saves time stands in `shortcuts.py`.
"""

import functools
import logging
import re

from math_verify import parse, verify

from verifier import shortcuts

E_NOTATION = re.compile(r"\\boxed\{([+-]?[0-9]+(?:\.[0-9]+)?)[eE]([+-]?[0-9]{1,3})\}")
GOLD_REPAIRS = [  # for golds that do not parse as they are
    (re.compile(r"\bnp\."), r"\\"),  # np.arcsin(10/13)
    (re.compile(r"([0-9])\.(?![0-9])"), r"\1"),  # -1./3
    (re.compile(r"_\{\\([a-zA-Z]+) *\}"), r"_{\1}"),  # m_{\max}, M_{\odot}
]
WRAPPERS = re.compile(r"\\(?:boxed|text|textbf|textrm|mathrm|mathbf)\b|[{}$]")
CHOICE = re.compile(r"\(?([A-J])(?:[).:]+(?:\s+((?:(?!\b[A-J]\b).)*))?)?", re.DOTALL)  # no second letter


def latex(text: str) -> str:
    r"""Math-Verify reads `1e11` as 1·e·11, which no right answer equals: it becomes `1 \times 10^{11}`."""
    return E_NOTATION.sub(r"\\boxed{\1 \\times 10^{\2}}", text)


def choice(boxed: str) -> str | None:
    r"""The letter of a multiple-choice answer: C for `\boxed{\textbf{(C)} 12 days}`; None if none, or two."""
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
    """Eq. 1: 1.0 if `text`, from `graded_text`, is the answer, else 0.0. With None: does the gold parse."""
    try:
        boxed, gold = parse_gold(answer)
        if text is None:
            return float(has_expression(gold))
        text = latex(text)
        if text == boxed:
            return float(bool(gold))
        if len(answer.strip()) == 1 and answer.strip() == choice(text):
            return 1.0  # Math-Verify knows (C), not `C) 12 days`
        equal = shortcuts.integers_equal(boxed, text)
        if equal is not None:
            return float(equal)
        prediction = parse(text, parsing_timeout=None)
        # Its verdict is true if any pair of candidates matches, equal strings included: those may come first.
        same = bool(gold) and prediction[-1:] == gold[-1:]
        return float(same or verify(gold, prediction, timeout_seconds=None))
    except Exception:  # whatever a hostile answer provokes: MemoryError, RecursionError, sympy's own
        return 0.0


shortcuts.install()
logging.getLogger("math_verify").setLevel(logging.CRITICAL)
math_reward(r"\boxed{\frac{x}{2}}", r"\sqrt{3}")  # the first parse builds tables: not on an answer's time
