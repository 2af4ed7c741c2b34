r"""Take an answer apart into the sides of a relation, and tell the form of each.

`last_box` finds it in a text, `normalise` takes the typography away, and `without_units` the units.
`x = \dfrac{1}{3} \text{ cm}` has the sides `x` and `\frac{1}{3}`, whose `form` is a fraction.
"""

import re

# characters; a longer box is no answer (the longest gold of the paper's benchmarks has 210)
MAX_BOX = 1000
BRACES = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)  # the second branch skips \{ and \}

# ---- The forms of a side -------------------------------------------------------------------------

DIGITS = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)"
EXPONENT = "(?:-[0-9]+|[3-9]|[0-9]{2,})"  # not 1 or 2: 7.1 \\times 10^1 is to be worked out
POWER_OF_TEN = (
    rf"(?:[eE]\+?{EXPONENT}|(?:\\times|\\cdot|\*)\s*10\^(?:\{{\+?{EXPONENT}\}}|{EXPONENT}))"
)
ARGUMENT = r"\s*(?:\{[+-]?([0-9]+)\}|([0-9]))"
REAL = rf"(?:{DIGITS}(?:/[0-9]+)?|\\frac(?:\{{[+-]?[0-9]+\}}|[0-9]){{2}})"
FORMS = {
    "number": rf"[+-]?{DIGITS}",
    "fraction": rf"[+-]?(?:[0-9]*\s*\\frac{ARGUMENT}{ARGUMENT}|([0-9]+)\.?/-?([0-9]+)\.?)",
    "scientific": rf"[+-]?[1-9](?:\.[0-9]*)?{POWER_OF_TEN}",
    "power": r"[+-]?[0-9]+\^(?:\{[+-]?[0-9]+\}|[0-9])",
    "base": r"\(?[0-9A-F]+\)?_(?:\{[0-9]+\}|[0-9])",
    "percent": rf"[+-]?{DIGITS}\s*\\?%",
    "infinite": r"[+-]?\\infty",
    "complex": rf"(?=[^i]*i[^i]*$)(?:[+-]?i?{REAL}?\s?i?(?=[+-]|$)){{1,2}}",
    "word": r"⟨[^⟩]*⟩",
}
# A unit stands behind one number, and nothing but the next value comes after it.
UNIT = re.compile(
    r"(?<=[^,;:=<>(\[{^_+*⟩-])"
    r"(?:\s*(?:\^\{?\\circ\}?|\\degree|(?:/|\\cdot)?⟨[^⟩]*⟩(?:\^\{?-?[1-9]\}?)?)"
    r"|(?<=[0-9}%]) (?:[a-zA-Z]{4,}(?: [a-zA-Z]+)*|[ckm]m|kg|ft|in|lb|oz|mi|hr|min|sec|[ap]\.?m)"
    r"(?:\^\{?[23]\}?)?)+(?=$|[,;=)\]}&]|\\[}\\])"
)
# With these a unit is still one noun: square miles, m/s squared, degrees Celsius.
MEASURE = re.compile(r"(?i)\b(?:square|sq|cubic|cu|squared|cubed|circ|degrees?)\b")
# With one of these the words behind a number are no unit: they change it, deny it or compare it.
NO_UNIT = re.compile(
    r"(?i)\b(?:\w*illion\w*|(?:hundred|thousand|lakh|crore|dozen)\w*|[mb]ln|bn|gross|percent\w*"
    r"|ones?|two|three|four|five|six|seven|eight|nine|tens?|eleven|twelve|\w+teen"
    r"|(?:twen|thir|for|fif|six|seven|eigh|nine)ty|hal(?:f|ves)|quarters?"
    r"|(?:thir|four|fif|six|seven|eigh|nin|ten|twelf)(?:d|th)s?"
    r"|double|twice|triple|factorial|minus|negative|plus|opposite|inverse|reciprocal|\w{2,}(?<!e)ed"
    r"|is|are|was|were|be|has|have|had|do|does|did|will|would|should|could|equals?|fails?|exceeds?"
    r"|no|not|non|never|none|neither|nor|cannot|\w+n't?|wrong|incorrect|false|untrue|invalid"
    r"|more|less|fewer|greater|larger|bigger|higher|smaller|lower|most|least|than|over|under|above"
    r"|below|beyond|if|the|it|we|you|for|but|of|to|by|my|so|any|all|out|off)\b"
)
# Each unit has one name here; a plural has lost its s by then.
SHORT = dict(
    pair.split(":")
    for pair in "inche:in inch:in feet:ft foot:ft yard:yd mile:mi meter:m metre:m millimeter:mm"
    " centimeter:cm centimetre:cm kilometer:km kilometre:km gram:g kilogram:kg pound:lb ounce:oz"
    " liter:l litre:l second:s sec:s minute:min hour:h hr:h year:yr degree:circ celsiu:c"
    " fahrenheit:f square:2 sq:2 cubic:3 cu:3".split()
)
# Digits behind letters are no factor: B12 is not 12B. It is all of a value, so not n2^{n-1}, and
# 4e33 is a number.
CODE = re.compile("(?![0-9]+[eE][0-9]+$)(?=.*[a-zA-Z] ?[0-9])[0-9a-zA-Z ]+")
# A text with one of these is words: what is no unit, prose, a second quantity as in 5 ft 6 in.
WORDS = re.compile(r"⟨[^⟩]{2,}⟩|⟩[0-9]|(?<![\\a-zA-Z])[a-z]{4,} [a-z]+|(?:\\circ\}?|['\"]) ?[0-9]")
# Nothing but letters (three, or two capitals) and digits is a word: listen, IV, \angle ABC.
WORD = re.compile(
    r"(?=(?:[^A-Z]*[A-Z]){2}|(?:[^a-zA-Z]*[a-zA-Z]){3})"
    r"(?:\\(?:m?angle|triangle|over[a-z]+|vec|prime)|[0-9a-zA-Z\s{}_])+"
)

OPERATOR = re.compile(
    r"(?<![a-zA-Z])(?:i*int|oint|sum|lim|prod|gcd|lcm|min|max|sup|inf|det|b?mod|pmod)(?![a-zA-Z])|floor|ceil"
)
NO_NAME = re.compile(
    r"\\?(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?(?![a-zA-Z])|\\?(?:log|ln|exp|sqrt|frac|binom|pi)(?![a-zA-Z])"
    r"|\\(?:cdot|times|div|pm|mp|circ|prime|infty|cup|cap|to|operatorname|math[a-z]+|[lcd]?dots)(?![a-zA-Z])"
    r"|_\{[^{}]*\}|_\\?\w|⟨[^⟩]*⟩|\\(?:begin|end)\{[a-z]*\}"
)
CONSTANTS = {"e", "i"}
SYMBOL = (
    r"(?:⟨[^⟩]*⟩|\\[a-zA-Z]+\s*\{[a-zA-Z]+\}|\\?[a-zA-Z]++)"  # then its indices and arguments
    r"(?:'|_\{[^{}]*\}|_\w|\^\{?\\prime\s*\}?|\^\{-1\}(?=\())*(?:\{?\([^()]*\)\}?)?"
)
TERM = rf"[0-9]*\s*(?:{SYMBOL}(?:\^\{{?[0-9]\}}?)?\s*)+"
ONE = rf"\|?(?:{SYMBOL}\s*)+\|?"
NAME = re.compile(
    rf"(?:{TERM}[+:-])+{TERM}|\\?[({{]?{ONE}(?:,{ONE})*\\?[)}}]?|\\frac\{{{ONE}\}}\{{{ONE}\}}|"
)
RELATION = re.compile(r"\\(?:neq?|[lg]eq?|[lg]eqslant|lt|gt|in|approx|equiv)(?![a-zA-Z])|[=<>]")
COMMA = re.compile("[,;]")
UNION = re.compile(r"\\cup(?![a-zA-Z])")
EQUAL = {"=", r"\approx", r"\equiv"}


def form(side: str) -> str:
    """Return the form of a side, by name.

    It is one of FORMS, "integral" for a fraction that is an integer, or else "expression".
    """
    for name, pattern in FORMS.items():
        if found := re.fullmatch(pattern, side):
            numbers = [int(number) for number in found.groups() if number]  # of a fraction
            return "integral" if numbers and numbers[0] % (numbers[1] or 1) == 0 else name
    return "expression"


def names(text: str) -> set[str]:
    """Return the variables of an expression, without subscripts, units and constants."""
    text = OPERATOR.sub(" ", NO_NAME.sub(" ", text)).lower()  # to Math-Verify R is r
    return set(re.findall(r"\\[a-z]+|[^\W\d_]", text)) - CONSTANTS


def operators(text: str) -> set[str]:
    """Return the sums, integrals, limits and the like of a text, by name."""
    return {name.lstrip("i") for name in OPERATOR.findall(text)}


def is_name(side: str) -> bool:
    """Return whether a left side only names what the right side is.

    Such are x, (a,b), P(X=2), m+n and 100m+n; not x+1, 2x, nor what can be worked out: gcd(4,6).
    """
    if side and not names(side) and "⟨" not in side and side not in CONSTANTS:
        return False
    return bool(NAME.fullmatch(side))


# ---- Taking a text apart -------------------------------------------------------------------------


def last_box(text: str) -> str | None:
    r"""Return the content of the `\boxed{...}` that closes last, stripped; None if none closes."""
    opened = []  # for every brace still open: where its box begins, or None if it is no box
    box = None  # cut out only once, so that nested boxes take linear time
    for token in BRACES.finditer(text):
        if token[0].startswith(r"\boxed"):
            opened.append(token.end())
        elif token[0] == "{":
            opened.append(None)
        elif token[0] == "}" and opened:
            start = opened.pop()
            if start is not None:
                box = slice(start, token.start())
    return text[box].strip() if box else None


def words(found: re.Match) -> str:
    """Return text that is words, or a unit, in ⟨⟩, and other text apart from its neighbours.

    Other text is a number, or a choice.
    """
    inner = found[1].strip()
    if re.fullmatch(r"[a-zA-Z](?:[a-zA-Z\s./'^23-]|\^\{-?[1-9]\})*", inner):
        return f"⟨{inner}⟩"
    return " " + re.sub(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}[a-zA-Z. ]*", r"⟨\g<0>⟩", found[1]) + " "


TYPOGRAPHY = [
    (r"\\(?:displaystyle|left|right|[bB]igg?[lr]?)(?![a-zA-Z])|\\!\s*|\\?\$|£|€", ""),
    (r"\\[dtc](frac|binom)", r"\\\1"),
    (r"\{,\}", ","),
    (r"(\\frac\s*\{|\}\s*\{)\\mathrm\s*\{d\}", r"\1d"),  # a derivative's, no unit
    (r"(\\[pm]{2})\s+(?=[0-9.])", r"\1"),
    # Spaces become one and do not vanish: 8 \quad 9 is not 89.
    (r"(?:(?<!\\)\\[,;:> ]|\\q?quad(?![a-zA-Z])|~|\s)+", " "),
    (r"\\text\{\s*(and|or)\s*\}", r" \1 "),
    (r"(?:,\s*)?(?<![a-zA-Z\\{])(?:and|or)(?![a-zA-Z])", ","),
    (r"\\(?:text[a-z]*|math(?:rm|bf|it|sf)|mbox)\s*\{((?:[^{}]|\{[^{}]*\})*)\}", words),
    # These commas belong to a number, not to a list.
    (
        r"(?<![0-9,.(\[{])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])",
        lambda found: found[0].replace(",", ""),
    ),
    (r"\\lbrace", r"\\{"),
    (r"\\rbrace", r"\\}"),
    (r"(?<![0-9a-zA-Z])\s+|\s+(?![0-9a-zA-Z])", ""),
    (r"^\{([0-9]+)\}/\{([0-9]+)\}$", r"\1/\2"),
    (r"^([+-])\(([0-9./]+)\)$", r"\1\2"),
    (r"_\{?⟨([^⟩]*)⟩\}?", r"_{\1}"),
    (r"(?<![\w.])1(?=i(?![a-zA-Z]))", ""),  # -1i
    (r"^([a-zA-Z])\\neq? ?([^a-z,]+)$", r"\1<\2,\1>\2"),
]


def normalise(text: str) -> str:
    """Return the text without typography."""
    text = text.strip()
    while found := re.fullmatch(r"\\f?box(?:ed)?\s*\{(.*)\}", text, re.DOTALL):
        text = found[1].strip()
    for pattern, plain in TYPOGRAPHY:
        text = re.sub(pattern, plain, text)
    return text.rstrip(".,; ")


def without_units(text: str) -> tuple[str, set[str]]:
    """Return a normalised text without the units behind its numbers, and the words of those.

    5 in^2 and 5 square inches have the same.
    """
    words = short_words(" ".join(filter(is_unit, UNIT.findall(text))))
    text = UNIT.sub(lambda found: "" if is_unit(found[0]) else found[0], text)
    return text, set(filter(str.isalnum, words)) - {"per"}


def is_unit(words: str) -> bool:
    """Return whether words behind a number are a unit.

    That is one noun, or several that / or "per" parts, or abbreviations: N m, kWh per day.
    """
    if re.match(r"\W*(?:squared|cubed)", words):
        return False
    words = MEASURE.sub(" ", words)
    for part in re.split(r"/|\\cdot|\bper\b", words):
        nouns = re.findall("[a-zA-Z'-]+", part)
        if len(nouns) > 1 and max(map(len, nouns)) > 3:
            return False
    return not NO_UNIT.search(words)


def short_words(text: str) -> list[str]:
    """Return the words of a text and the signs between them, units by their short names.

    They come without capitals, blanks, braces and a plural's s.
    """
    text = text.casefold().replace("mph", "miles per hour")
    text = re.sub(r"\.(?![0-9])|(?<=[a-z]{2})s(?![a-z])", "", text)
    return [SHORT.get(word, word) for word in re.findall(r"[a-z]+|[^a-z\s⟨⟩{}_\\]", text)]


def plain(text: str) -> str:
    """Return a normalised text as nothing but text, to be compared as such.

    A name before = is left out; what stands between commas comes in alphabetical order.
    """
    values, _ = split(re.sub("^[^=]*=(?=[^=]*$)", "", text), COMMA)
    return ",".join(sorted("".join(short_words(value)) for value in values))


def is_text(text: str) -> bool:
    """Return whether a text without units has words, codes, or brackets that make no sense.

    A name before = does not count.
    """
    told = re.sub("(?<![^=,])[^=,]*=(?!=)", "", text)
    coded = any(map(CODE.fullmatch, re.split(r"[,;(){}\[\]]", told)))
    return coded or not balanced(text) or bool(WORDS.search(told))


def split(text: str, separator: re.Pattern) -> tuple[list[str], list[str]]:
    """Return the pieces of a text between separators outside of brackets, and those separators."""
    depth = 0
    start = 0
    pieces = []
    found = []
    for token in re.finditer(rf"[\[({{]|[\])}}]|{separator.pattern}", text):
        if token[0] in "[({":
            depth += 1
        elif token[0] in "])}":
            depth -= 1
        elif depth == 0:
            pieces.append(text[start : token.start()].strip())
            found.append(token[0])
            start = token.end()
    return [*pieces, text[start:].strip()], found


def balanced(text: str) -> bool:
    """Return whether brackets open before they close, and as many."""
    left = re.sub(r"[^\[({})\]]", "", text)
    while left != (without := re.sub(r"[\[({][\])}]", "", left)):
        left = without
    return not left
