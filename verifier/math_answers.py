r"""Decide whether an answer is right.

Math-Verify decides which answers are equal. But it works out what it is given: to it `5 - 9` is -4,
and a policy learns in twenty steps to restate the question and nothing else. The strict grader
(`math_reward`) adds what an answer has to be besides equal. `--grader official` is without it.

1. It is worked out. To a gold that is a literal (42, 1.8, 9/5, 3+2i) only a literal is an answer,
   to an expression what holds no further variable, sum, integral or the like.
2. It has as many values as the gold: to 71, neither `71, 72` nor `71, 71` is an answer.
3. It has the gold's outermost form: the point (1, 2) is no set and no `1 <= x <= 2`, but the open
   interval is `1 < x < 2`, as Math-Verify says.
4. In a chain `a = b = c` the last side answers, and the others are names or equal to it.
5. Words are compared as words, and the letter of a choice as a letter.
6. A unit may be left out, and is not compared; what is no unit may not: 5 million is not 5.
7. Where Math-Verify reads a name of the gold as something else (\gamma as a function, \gcd(n,3) as
   1), the answer holds the same names and numbers. Tiny numbers are compared by their size.

Known gaps stand beside the cases in tests/verifier/answers.py. This runs in the processes of
`worker.py`, which have a limit on time and memory.
"""

import logging
import math
import re
import unicodedata
from typing import NamedTuple

from latex2sympy2_extended import NormalizationConfig
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

# Math-Verify's own settings, but without its list of units, to which m, s and t belong: units are
# gone by then.
SETTINGS = (
    LatexExtractionConfig(normalization_config=NormalizationConfig(malformed_operators=True)),
    ExprExtractionConfig(),
)

# ---- Typography ----------------------------------------------------------------------------------

# A spelling and what takes its place, in this order. Spaces become one and do not vanish, as
# 8 \quad 9 is not 89; text in a box of its own (words, units) comes out in ⟨⟩. ␣ is a space.
UNICODE_TYPOGRAPHY = r"""
    (?s)^\s*\\f?box(?:ed)?\s*\{(.*)\}\s*$ → \1
    (?s)^\s*\\f?box(?:ed)?\s*\{(.*)\}\s*$ → \1
    [\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufe0f\ufeff]+ →
    ([¹²³⁰-ⁿᵃᵇᵏᵐᵗˣʸ]+) → ^{\1}
    ([₀-₎ₐ-ₜᵢⱼ]+) → _{\1}
    ([½⅓⅔¼¾⅕-⅞⅐-⅒↉]) → \\frac{\1}
    ([√∛∜])\s?\(((?:[^()]|\([^()]*\))*)\) → \1{\2}
    ([√∛∜])\s?([0-9]+(?:\.[0-9]+)?|[^\W\d_]) → \1{\2}
    ℝ → \\mathbb{R}
    [°º˚] → ^{\\circ}
"""
TYPOGRAPHY = r"""
    [−–—‒―‐‑﹣˗] → -
    [∕⁄] → /
    [∗] → *
    × → \\times␣
    [·⋅∙•] → \\cdot␣
    ÷ → \\div␣
    ± → \\pm␣
    [≤⩽≦] → \\le␣
    [≥⩾≧] → \\ge␣
    ≠ → \\ne␣
    ≈ → \\approx␣
    ∈ → \\in␣
    ∪ → \\cup␣
    ∅ → \\emptyset␣
    ∞ → \\infty␣
    [′’] → '
    √ → \\sqrt
    ∛ → \\sqrt[3]
    ∑ → \\sum␣
    ∫ → \\int␣
    ⌊ → \\lfloor␣
    ⌋ → \\rfloor␣
    ⌈ → \\lceil␣
    ⌉ → \\rceil␣
    ∠ → \\angle␣
    [⟨〈] → (
    [⟩〉] → )
    π → \\pi␣
    θ → \\theta␣
    α → \\alpha␣
    β → \\beta␣
    γ → \\gamma␣
    λ → \\lambda␣
    μ → \\mu␣
    ω → \\omega␣
    φ → \\phi␣
    \\frac\{([0-9]+)[/⁄]([0-9]+)\} → \\frac{\1}{\2}
    \\(?:displaystyle|left|right|[bB]igg?[lr]?)(?![a-zA-Z])|\\!\s*|\\?\$|£|€ →
    \\[dtc](frac|binom) → \\\1
    (\\frac|\\sqrt)\s?([0-9a-z]) → \1{\2}
    (\\frac\{[^{}]*\})\s?([0-9a-z]) → \1{\2}
    (\\frac\s*\{|\}\s*\{)\\mathrm\s*\{d\} → \1d
    \\lt(?![a-zA-Z]) → <
    \\gt(?![a-zA-Z]) → >
    \\([lg]e|ne)(?:q|qslant)(?![a-zA-Z]) → \\\1
    \\langle(?![a-zA-Z]) → (
    \\rangle(?![a-zA-Z]) → )
    \\lbrace(?![a-zA-Z]) → \\{
    \\rbrace(?![a-zA-Z]) → \\}
    \\varnothing|\\\{\s*\\\} → \\emptyset
    \\begin\{cases\}([^&\\]*)\\\\([^&\\]*)(?:\\\\\s*)?\\end\{cases\} → \1,\2
    \^\{?\s?\\prime\s?\\prime\s?\}? → ''
    \^\{?\s?\\prime\s?\}? → '
    \.([0-9]{0,9})\\(?:overline|bar|dot)\s?\{([0-9]{1,9})\} → .\1\2\2\2\2\2\2\2
    \{,\} → ,
    (?<=[0-9])(?:\\[,;: ]|\s|~)(?=[0-9]{3}(?![0-9])) →
    (\\[pm]{2})\s+(?=[0-9.]) → \1
    (?:(?<!\\)\\[,;:>\s]|\\q?quad(?![a-zA-Z])|~|\s)+ → ␣
    \\text\{\s*(and|or)\s*\} → ␣\1␣
    (?:,\s*)?(?<![a-zA-Z\\{])(?:and|or)(?![a-zA-Z]) → ,
    \\(?:text[a-z]*|math(?:rm|bf|it|sf)|mbox)\s*\{\s?((?:[^{}]|\{[^{}]*\})*)\} → ⟨\1⟩
    ⟨((?:[^⟩a-zA-Z]|[a-zA-Z](?![a-zA-Z])(?=[^⟩]*[0-9)]))*)⟩ → ␣\1␣
    (?<![0-9,.(\[{])([0-9]{1,3}),([0-9]{3}),([0-9]{3}),([0-9]{3})(?![0-9,]) → \1\2\3\4
    (?<![0-9,.(\[{])([0-9]{1,3}),([0-9]{3}),([0-9]{3})(?![0-9,]) → \1\2\3
    (?<![0-9,.(\[{])([0-9]{1,3}),([0-9]{3})(?![0-9,]) → \1\2
    (?<=[0-9}])\s?⟨?(?:per\s?cent|pct)\b\s?⟩? → \\%
    (?<!\\)% → \\%
    (?<=[0-9])\s?⟨?thousand\b → \\cdot10^{3}⟨
    (?<=[0-9])\s?⟨?million\b → \\cdot10^{6}⟨
    (?<=[0-9])\s?⟨?billion\b → \\cdot10^{9}⟨
    (?<=[0-9])\s?⟨?trillion\b → \\cdot10^{12}⟨
    ⟨\s?⟩|⟨$ →
    (?<![0-9./])([0-9]{1,9})\s([0-9]{1,9})/([0-9]{1,9}) → \1\\frac{\2}{\3}
    (?<![0-9a-zA-Z])\s+|\s+(?![0-9a-zA-Z]) →
    ^([+-]?[0-9]+(?:\.[0-9]+)?)[eE]([+-]?[0-9]{1,3})(?![0-9]) → \1\\cdot10^{\2}
    ([_^])\{(\w)\} → \1\2
    _\{\\([a-z]+)\} → _{\1}
    (?<=[0-9])\.(?=/) →
    ^(?:[a-z]:[a-z]=)?([0-9]+):([0-9]+)$ → \\frac{\1}{\2}
    ^\{([0-9]+)\}/\{([0-9]+)\}$ → \1/\2
    ^([+-])\(([0-9./]+)\)$ → \1\2
    _\{?⟨([^⟩]*)⟩\}? → _{\1}
    ^(?:[a-zA-Z]\\in)?\\mathbb\{?R\}?$ → (-\\infty,\\infty)
    (^|,|\\\{)((?:[^,\\]|\\(?!pm|\{))*)\\pm((?:[^,\\]|\\(?!\}|pm|mp))*)(?=$|,|\\\}) → \1\2+\3,\2-\3
    [.,;\s]+$ →
"""


def respell(text: str, table: str) -> str:
    """Return a text with the spellings of a table, a pattern and what takes its place a line."""
    for line in table.strip().splitlines():
        pattern, plain = line.split("→")
        text = re.sub(pattern.strip(), plain.strip().replace("␣", " "), text)
    return text


def normalise(text: str) -> str:
    """Return the text without typography."""
    text = unicodedata.normalize("NFKC", respell(text, UNICODE_TYPOGRAPHY))
    return respell(text.strip(), TYPOGRAPHY)


# ---- Units and words -----------------------------------------------------------------------------

# A unit stands behind one number, and nothing but the next value comes after it.
UNIT = re.compile(
    r"(?<=[^,;:=<>(\[{^_+*⟩-])"
    r"(?:\s*(?:\^\{?\\circ\}?|\\degree|(?:/|\\cdot)?⟨[^⟩]*⟩(?:\^\{?-?[1-9]\}?)?)"
    r"|(?<=[0-9}%]) (?:[a-zA-Z]{4,}(?: [a-zA-Z]+)*|[ckm]m|kg|ft|in|lb|oz|mi|hr|min|sec|[ap]\.?m)"
    r"(?:\^\{?[23]\}?)?)+(?=$|[,;=)\]}&]|\\[}\\])"
)
# With one of these the words behind a number are no unit: they change it, deny it or compare it.
NO_UNIT = re.compile(
    r"(?i)\b(?:\w*illion\w*|(?:hundred|thousand|lakh|crore|dozen)\w*|[mb]ln|bn|gross|percent\w*"
    r"|ones?|two|three|four|five|six|seven|eight|nine|tens?|eleven|twelve|\w+teen|\w+ty|hal(?:f|ves)"
    r"|\w+(?:rd|th)s?|quarters?|double|twice|triple|factorial|minus|negative|plus|\w{2,}(?<!e)ed"
    r"|is|are|was|were|be|has|have|do|does|did|will|would|should|could|equals?|fails?|exceeds?"
    r"|no|not|non|never|none|neither|nor|cannot|\w+n't?|wrong|incorrect|false|untrue|invalid"
    r"|more|less|fewer|greater|larger|bigger|higher|smaller|lower|most|least|than|over|under|above"
    r"|below|beyond|if|the|it|we|you|for|but|of|to|by|my|so|any|all|out|off|red|blue)\b"
)
# A text with one of these is words: what is no unit, prose, a second quantity as in 5 ft 6 in; or
# nothing but letters (three, or two capitals) and digits: listen, IV, \angle ABC.
WORDS = re.compile(r"⟨[^⟩]{2,}⟩|⟩[0-9]|(?<![\\a-zA-Z])[a-z]{4,} [a-z]+|(?:\\circ\}?|:) ?[0-9]")
WORD = re.compile(
    r"(?=(?:[^A-Z]*[A-Z]){2}|(?:[^a-zA-Z]*[a-zA-Z]){3})"
    r"(?:\\(?:m?angle|triangle|over[a-z]+|vec)|[0-9a-zA-Z\s{}_'])+"
)
# The letter of a multiple-choice answer, and no second one behind it.
CHOICE = re.compile(
    r"(?s)\(?([A-J])(?:[).:]+(?!.*\b[A-J](?:\)|[.:]\s*\S)|.*(?:\b(?:or|and)|[,;/&])\s*\(?[A-J]\b"
    r"|\s*\(?[A-J]\W*$).*)?"
)


def without_units(text: str) -> str:
    """Return a text without the units behind its numbers."""
    return UNIT.sub(lambda found: found[0] if NO_UNIT.search(found[0]) else "", text)


def as_words(text: str) -> list[str]:
    """Return what to compare of a text that is words: no capitals, and no order between commas."""
    values, _ = split(text.casefold(), COMMA)
    return sorted(re.sub(r"\.(?![0-9])|[\s⟨⟩{}_\\]", "", value) for value in values)


def is_words(text: str) -> bool:
    """Return whether a text without units has words; a name before = does not count."""
    value = re.sub("(?<![^=,])[^=,]*=(?!=)", "", text)
    return bool(WORDS.search(value) or WORD.fullmatch(text))


def choice(text: str) -> str | None:
    r"""Return the letter of a multiple-choice answer, C for `(C)⟨12 days⟩`; None for two."""
    found = CHOICE.fullmatch(re.sub("[⟨⟩{}]", "", text))
    return found[1] if found else None


# ---- The sides of a relation ---------------------------------------------------------------------

RELATION = re.compile(r"\\(?:ne|[lg]e|in|approx|equiv)(?![a-zA-Z])|[=<>]")
COMMA = re.compile("[,;]")
EQUAL = {"=", r"\approx", r"\equiv"}

DIGITS = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)"
REAL = rf"(?:{DIGITS}(?:/[0-9]+)?|\\frac\{{[+-]?[0-9]+\}}\{{[+-]?[0-9]+\}})"
LITERALS = {
    "number": rf"[+-]?{DIGITS}|[+-]?\\infty",
    "fraction": r"[+-]?[0-9]*\s*\\frac\{[+-]?([0-9]+)\}\{[+-]?([0-9]+)\}|[+-]?([0-9]+)/-?([0-9]+)",
    "scientific": rf"[+-]?{DIGITS}(?:\\times|\\cdot|\*)\s?10\^\{{?[+-]?[0-9]+\}}?",
    "percent": rf"[+-]?{DIGITS}\\%",
    "power": r"[+-]?[0-9]+\^\{?[+-]?[0-9]+\}?",
    "base": r"\(?[0-9A-F]+\)?_\{?[0-9]+\}?",
    "complex": rf"(?=[^i]*i[^i]*$)(?:[+-]?i?{REAL}?\s?i?(?=[+-]|$)){{1,2}}",
}
# What any expression may hold, and what is no name of a value.
PLAIN = set(
    r"\frac \sqrt \cdot \times \div \pi \log \ln \exp \sin \cos \tan \cot \sec \csc \arcsin \arccos"
    r" \arctan \sinh \cosh \tanh \binom \circ \infty \mathbb \begin \end \cup \to \pm \mp \in \le"
    r" \ge \ne \approx \equiv e i".split()
)
WORKED_OUT = set(
    r"\int \iint \oint \sum \lim \prod \gcd \lcm \min \max \sup \inf \det \bmod \pmod \mod"
    r" \lfloor \rfloor \lceil \rceil \operatorname".split()
)
# Functions without their backslash get it, and indices and units vanish.
TO_SYMBOLS = r"""
    (?<![\\a-zA-Z])((?:arc)?(?:sin|cos|tan)h?|cot|sec|csc|log|ln|exp|sqrt)(?![a-zA-Z]) → \\\1
    (?<![\\a-zA-Z])(gcd|lcm|max|min|floor|ceil)(?![a-zA-Z]) → \\\1
    _\{[^{}]*\}|_\\?\w|⟨[^⟩]*⟩|\\(?:begin|end)\{[a-z]*\} → ␣
"""
SYMBOL = r"\\?[a-zA-Z]++(?:'|_\{[^{}]*\}|_\w|\^\{-1\}(?=\())*(?:\{?\([^()]*\)\}?)?"
TERM = rf"[0-9]*\s*(?:(?:{SYMBOL}|⟨[^⟩]*⟩)(?:\^\{{?[0-9]\}}?)?\s*)+"
ONE = rf"\|?(?:(?:{SYMBOL}|⟨[^⟩]*⟩)\s*)+\|?"
NAME = re.compile(
    rf"(?:{TERM}[+:-])+{TERM}|\\?[({{]?{ONE}(?:,{ONE})*\\?[)}}]?|\\frac\{{{ONE}\}}\{{{ONE}\}}"
)


def symbols(text: str) -> set[str]:
    """Return the letters and commands of an expression, without indices and units."""
    text = respell(text, TO_SYMBOLS)
    return set(re.findall(r"\\[a-zA-Z]+|[a-zA-Z]'*", text))


def names(text: str) -> set[str]:
    """Return the variables of an expression."""
    return symbols(text) - PLAIN - WORKED_OUT


def is_name(side: str) -> bool:
    """Return whether a left side only names what the right side is.

    Such are x, (a,b), P(X=2), m+n and 100m+n; not x+1, 2x, nor what can be worked out: gcd(4,6).
    """
    if side in ("", "e", "i"):
        return True
    return bool(NAME.fullmatch(side) and (names(side) or "⟨" in side))


def literal(side: str) -> str | None:
    """Return which of LITERALS a side is; a fraction that is an integer is an "integral"."""
    for kind, pattern in LITERALS.items():
        if found := re.fullmatch(pattern, side):
            above, below = [int(one) for one in found.groups() if one] or (1, 2)
            return "integral" if above % (below or 1) == 0 else kind
    return None


def split(text: str, separator: re.Pattern) -> tuple[list[str], list[str]]:
    """Return the pieces of a text between separators outside of brackets, and those separators."""
    depth = 0
    start = 0
    pieces = []
    found = []
    for token in re.finditer(rf"[\[({{\])}}]|{separator.pattern}", text):
        if token[0] in "[({":
            depth += 1
        elif token[0] in "])}":
            depth -= 1
        elif depth == 0:
            pieces.append(text[start : token.start()].strip())
            found.append(token[0])
            start = token.end()
    return [*pieces, text[start:].strip()], found


# ---- Equality, and the form of a value -----------------------------------------------------------


TO_LATEX = r"""
    ⟨([^⟩]{2,})⟩ → \\text{\1}
    [⟨⟩] → ␣
"""


def parsed(text: str) -> list:
    """Return what Math-Verify makes of a normalised text."""
    boxed = rf"\boxed{{{respell(text, TO_LATEX)}}}"
    return parse(boxed, SETTINGS, parsing_timeout=None)


def marks(side: str) -> list[str]:
    """Return the names and numbers of a side, sorted."""
    found = re.findall(r"[0-9]+|\\[a-zA-Z]+|[a-zA-Z]", side)
    return sorted(mark for mark in found if mark not in PLAIN)


def reads_alike(text: str, gold: str) -> bool:
    r"""Return whether names and numbers are the gold's where Math-Verify misreads one of its names.

    It takes \gamma for a function, I_3 for the imaginary unit, and \gcd(n,3) for 1.
    """
    read = set(re.findall("[a-z]+", str(parsed(gold)[0]).lower())) - {"e", "i"}
    if {name.strip("\\'").lower() for name in names(gold)} <= read:
        return True
    return marks(text) == marks(gold)


def equal(text: str, gold: str) -> bool:
    """Return Math-Verify's verdict on two normalised texts without units.

    It compares six decimals; two numbers may not differ by more than 1e-5 of their size, too.
    """
    a = parsed(gold)
    b = parsed(text)
    if not verify(a, b, allow_set_relation_comp=True, timeout_seconds=None):
        return False
    try:
        return math.isclose(a[0].doit(), b[0].doit(), rel_tol=1e-5)
    except (AttributeError, TypeError):
        return True  # they are no numbers


def allowed(side: str, kinds: set[str | None], gold: str) -> bool:
    """Return whether a side of the answer has the form of one to a gold with values of such kinds.

    kinds: for each value its literal, or None where it is an expression.
    """
    kind = literal(side)
    if kind in ("number", "fraction", "scientific", "percent") or side == gold:
        return True
    if kind:
        return kind != "base" and not kinds.isdisjoint({kind, None})
    return None in kinds and symbols(side) <= symbols(gold) | PLAIN


def is_value(text: str, gold: str) -> bool:
    """Return whether a text is equal to the gold's value, and an answer."""
    sides, between = split(text, RELATION)
    golds, relations = split(gold, RELATION)
    *heads, value = golds
    kinds = {literal(value)} | {literal(head) for head in heads if not is_name(head)}
    if relations and None in kinds or not {*between, *relations} <= EQUAL:
        fits = [is_name(side) or allowed(side, kinds, gold) for side in sides]
        return "" not in sides and equal(text, gold) and all(fits)
    *chain, last = sides
    # A percent sign is optional where the gold has it.
    right = equal(last, value) or "%" in value and equal(last + r"\%", value)
    named = all(is_name(side) or equal(last, side) for side in chain)
    return right and named and allowed(last, kinds, value)


# ---- The form of an answer -----------------------------------------------------------------------

INNER = r"(?:[^()\[\]{}\\]|\\[^{}])*+"
for _ in range(5):  # brackets in brackets
    INNER = rf"(?:[^()\[\]{{}}\\]|\\[^{{}}]|\\?[(\[{{]{INNER}\\?[)\]}}])*+"
BRACKETS = re.compile(rf"(\\?[\[({{])({INNER})\\?([\])}}])")
CROSSINGS = {  # the gold's kind: kinds that may stand for it, in any order | in its order
    "value": "| value pair",
    "pair": "| pair list value",
    "set": "set list |",
    "list": "set list | pair",
}


class Form(NamedTuple):
    """What an answer is by its outermost form, and the texts of what it is made of.

    kind: "value" (a number, an expression, a relation), "pair" (of any length and in order: a
    point, an interval, or values of several names, in the order of those), "set" or "list" (without
    brackets). ends: brackets of a pair. name: what stands left of the relation.
    """

    text: str
    kind: str
    parts: list[str] = []
    ends: str = ""
    name: str = ""


def form(text: str) -> Form:
    """Return the form of a normalised text without units."""
    pieces = split(text, COMMA)[0]
    if len(pieces) > 1:
        return several(text, pieces)
    sides, between = split(text, RELATION)
    if between:
        inner = form(sides[-1])
        if len(sides) > 2 or inner.kind == "value" or not is_name(sides[0]):
            inner = Form(text, "value")
        return inner._replace(name=sides[0])
    found = BRACKETS.fullmatch(text)
    if not found:
        return Form(text, "value")
    opened, inner, closed = found.groups()
    parts = split(inner, COMMA)[0]
    if opened == "{" or len(parts) == 1:
        return form(inner)
    if opened == r"\{":
        return Form(text, "set", parts)
    return Form(text, "pair", parts, opened + closed)


def several(text: str, pieces: list[str]) -> Form:
    """Return the form of pieces between commas: several values of one name are a set.

    Names that differ in their index alone are one: x_1 and x_2 are two roots.
    """
    heads = {form(piece).name.rstrip("_{}0123456789") for piece in pieces}
    if len(heads) == len(pieces):
        ordered = sorted(pieces, key=lambda piece: piece.lstrip("\\"))
        return Form(text, "pair", [piece.partition("=")[2] for piece in ordered])
    return Form(text, "set" if heads - {""} else "list", pieces)


def matches(text: str, gold: str) -> bool:
    """Return whether a text is the gold, by its form and part by part; both are normalised."""
    if text == gold:
        return True
    given = form(text)
    wanted = form(gold)
    any_order, in_order = CROSSINGS[wanted.kind].split("|")
    if given.kind not in any_order + in_order:
        return False
    if wanted.kind == "value" and given.kind == "pair":
        return is_value(wanted.text, given.text)  # the gold is an inequality, told as its interval
    if "value" in (given.kind, wanted.kind):
        return is_value(given.text, wanted.text)
    if len(given.parts) != len(wanted.parts):
        return False
    if wanted.ends and given.ends not in ("", wanted.ends):
        return False
    if given.kind in in_order:
        return all(map(matches, given.parts, wanted.parts))
    rest = list(given.parts)
    for part in wanted.parts:
        found = [one for one in rest if matches(one, part)]
        if not found:
            return False
        rest.remove(found[0])
    return True


# ---- The two graders -----------------------------------------------------------------------------


def math_reward(response: str | None, answer: str) -> dict[str, float]:
    """Return the reward of Eq. 1: `score` is 1.0 if the response, a box, is right.

    With None for the response, `score` says whether the gold can be read.
    """
    try:
        whole_gold = normalise(answer)
        gold = without_units(whole_gold)
        letter = choice(whole_gold)
        as_text = not letter and is_words(gold)
        if response is None:
            readable = letter or as_text or not isinstance(parsed(gold)[0], str)
            return {"score": float(bool(readable))}
        whole = normalise(response)
        text = without_units(whole)
        if letter:
            right = choice(whole) == letter
        elif as_text or is_words(text):
            right = as_words(whole) == as_words(whole_gold)
        else:
            right = reads_alike(text, gold) and matches(text, gold)
        return {"score": float(right)}
    except Exception:
        # A hostile answer may provoke anything: RecursionError, sympy's own.
        return {"score": 0.0}


def official_reward(response: str | None, answer: str) -> float:
    """Return the verdict of Math-Verify alone on all of the text, as in the official code.

    With None for the response, the verdict is whether the gold can be read.
    """
    boxed = rf"\boxed{{{answer}}}"
    if response is None:
        response = boxed
    try:
        gold = parse(boxed, parsing_timeout=None)
        said = parse(response, parsing_timeout=None)
        return float(verify(gold, said, timeout_seconds=None))
    except Exception:
        return 0.0


logging.getLogger("math_verify").setLevel(logging.CRITICAL)
# The first parse builds tables, which must not take up the time of an answer.
math_reward(r"\frac{x}{2}", r"\sqrt{3}")
