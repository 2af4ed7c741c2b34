r"""Spellings that Math-Verify does not know, or takes
for something else, in those that it reads right.

It reads `1e11` as 1·e·11, `1\,234` as 1 and 234, of a vector in \langle \rangle the last entry
alone, and nothing of what a full stop closes.
"""

import re


def as_fraction(found: re.Match) -> str:
    r"""A repeating decimal as what it is: `0.1\overline{6}` is \frac{15}{90}."""
    sign, whole, fixed, again = found.groups()
    value = int(whole + fixed + again) - int(whole + fixed or 0)
    return rf"{sign}\frac{{{value}}}{{{(10 ** len(again) - 1) * 10 ** len(fixed)}}}"


def as_list(found: re.Match) -> str:
    """A system of equations, row by row."""
    return found[1].replace(r"\\", ",")


SPELLINGS = [
    (re.compile(r"\\langle(?![a-zA-Z])"), "("),
    (re.compile(r"\\rangle(?![a-zA-Z])"), ")"),
    (re.compile(r"\\begin\{cases\}([^&]{0,300}?)(?:\\\\\s{0,3})?\\end\{cases\}"), as_list),
    (re.compile(r"(?<=\\boxed\{)\s?\\mathbb\s?\{?R\}?\s?(?=\}$)"), r"(-\\infty,\\infty)"),
    (
        re.compile(
            r"([+-]?)(?<![0-9.])([0-9]{0,9})\.([0-9]{0,9})\\(?:overline|bar|dot)\s?\{([0-9]{1,9})\}"
        ),
        as_fraction,
    ),
    (re.compile(r"(?<=[0-9])\s{0,3}(?:\\text\{\s?percent\s?\}|percent\b)"), r"\\%"),
    *(
        (
            re.compile(rf"(?<=[0-9])\s{{0,3}}(?:\\text\{{\s?{word}\s?\}}|{word}\b)"),
            rf" \\times 10^{{{power}}}",
        )
        for word, power in (("thousand", 3), ("million", 6), ("billion", 9))
    ),
    (
        re.compile(r"(?<=\{)([+-]?[0-9]+(?:\.[0-9]+)?)[eE]([+-]?[0-9]{1,3})\}$"),
        r"\1 \\times 10^{\2}}",
    ),
    (re.compile(r"(?<=[0-9])(?:\\[,;: ]|~|\{,\})(?=[0-9]{3}(?![0-9]))"), ""),  # 1\,234
    (re.compile(r"(?<!\\)%"), r"\\%"),
    (re.compile("°"), r"^\\circ"),
    (re.compile("−"), "-"),
    (re.compile(r"\\text\{((?:\\\$)?[-+]?[0-9.,]+)\}"), r"\1"),
    (re.compile(r"(?<!\.)\s?\.\s?(?=\}+$)"), ""),  # the sentence's full stop
]
PLUS_MINUS = re.compile(r"\\pm(?![a-zA-Z])|±")


def latex(text: str) -> str:
    """The text, most often a box, in spellings that Math-Verify reads right."""
    for pattern, spelling in SPELLINGS:
        text = pattern.sub(spelling, text)
    return both_signs(text)


def both_signs(boxed: str) -> str:
    r"""A box whose only ± stands in brackets, `\frac{1 \pm a}{2}`,
    with both values; others as they are.
    """
    found, inner = (
        list(PLUS_MINUS.finditer(boxed)),
        re.fullmatch(r"\\boxed\{(.*)\}", boxed, re.DOTALL),
    )
    if len(found) != 1 or not inner or "," in boxed or r"\boxed" in inner[1]:
        return boxed
    before, after = boxed[inner.start(1) : found[0].start()], boxed[found[0].end() : inner.end(1)]
    if sum(map(before.count, "([{")) <= sum(map(before.count, ")]}")):
        return boxed
    return rf"\boxed{{{before}+{after}, {before}-{after}}}"
