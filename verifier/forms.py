r"""Take an answer apart into values, sides of relations, leaves and their forms.

`last_box` finds it in a text, and `normalise` takes the typography away. The text falls into its
values at commas, "and" and "or", a value into the sides of its relation, a side into leaves (what
stands in its brackets), and each leaf has a `form`: for `x = \left(2, \dfrac{1}{3}\right)` the name
`x`, the number `2` and the fraction `\frac{1}{3}`.
"""

import re

# characters; a longer box is no answer (the longest gold of the paper's benchmarks has 210)
MAX_BOX = 1000
BRACES = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)  # the second branch skips \{ and \}

# ---- The forms of a leaf -------------------------------------------------------------------------

DIGITS = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)"
EXPONENT = "(?:-[0-9]+|[3-9]|[0-9]{2,})"  # not 1 or 2: 7.1 \\times 10^1 is to be worked out
POWER_OF_TEN = (
    rf"(?:[eE]\+?{EXPONENT}|(?:\\times|\\cdot|\*)\s*10\^(?:\{{\+?{EXPONENT}\}}|{EXPONENT}))"
)
ARGUMENT = r"\s*(?:\{[+-]?([0-9]+)\}|([0-9]))"
FORMS = {
    "number": rf"[+-]?{DIGITS}",
    "fraction": rf"[+-]?(?:[0-9]*\s*\\frac{ARGUMENT}{ARGUMENT}|([0-9]+)\.?/([0-9]+)\.?)",
    "scientific": rf"[+-]?[1-9](?:\.[0-9]*)?{POWER_OF_TEN}",
    "power": r"[+-]?[0-9]+\^(?:\{[+-]?[0-9]+\}|[0-9])",
    "base": r"\(?[0-9A-F]+\)?_(?:\{[0-9]+\}|[0-9])",
    "percent": rf"[+-]?{DIGITS}\s*\\?%",
    "infinite": r"[+-]?\\infty",
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
    r"(?:⟨[^⟩]*⟩|\\[a-zA-Z]+\s*\{[a-zA-Z]+\}|\\?[a-zA-Z]+)"  # then its indices and arguments
    r"(?:'|_\{[^{}]*\}|_\w|\^\{?\\prime\s*\}?|\^\{-1\}(?=\())*(?:\{?\([^()]*\)\}?)?"
)
NAME = re.compile(rf"\|?(?:{SYMBOL}\s*)+\|?")
TERM = re.compile(rf"[0-9]*\s*(?:{SYMBOL}(?:\^\{{?[0-9]\}}?)?\s*)+")
RELATION = re.compile(r"\\(?:neq?|[lg]eq?|[lg]eqslant|lt|gt|in|approx|equiv)(?![a-zA-Z])|[=<>]")
COMMA = re.compile("[,;]")
UNION = re.compile(r"\\cup(?![a-zA-Z])")
ROWS = re.compile(r"&|\\\\")
EQUAL = {"=", r"\approx", r"\equiv"}
ABOUT = {r"\approx"}
IN = {r"\in"}
# These commas belong to a number, not to a list.
THOUSANDS = re.compile(r"(?<![0-9,.(\[{])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])")


def form(leaf: str) -> str:
    """Return the form of a leaf, by name.

    It is one of FORMS, "integral" for a fraction that is an integer, "complex", or else
    "expression".
    """
    for name, pattern in FORMS.items():
        if found := re.fullmatch(pattern, leaf):
            numbers = [int(number) for number in found.groups() if number]  # of a fraction
            return "integral" if numbers and numbers[0] % (numbers[1] or 1) == 0 else name
    terms = re.findall(r"[+-]?(?:\{[^{}]*\}|[^+-])+", leaf)
    parts = [re.sub(r"(?<![a-zA-Z\\])i(?![a-zA-Z])", "", term, count=1) for term in terms]
    if len(terms) <= 2 and sum(map(str.__ne__, terms, parts)) == 1:
        if all(part in "+-" or form(part) in ("number", "fraction") for part in parts):
            return "complex"
    return "expression"


def names(text: str) -> set[str]:
    """Return the variables of an expression, without subscripts, units and constants."""
    text = OPERATOR.sub(" ", NO_NAME.sub(" ", text)).lower()  # to Math-Verify R is r
    return set(re.findall(r"\\[a-z]+|[^\W\d_]", text)) - CONSTANTS


def operators(text: str) -> set[str]:
    """Return the sums, integrals, limits and the like of a text, by name."""
    return {name.lstrip("i") for name in OPERATOR.findall(re.sub(r"_\{\\m(?:ax|in) *\}", "", text))}


def is_name(side: str) -> bool:
    """Return whether a left side only names what the right side is.

    Such are x, (a,b), P(X=2), m+n and 100m+n; not x+1, 2x, nor what can be worked out: gcd(4,6).
    """
    if side and not names(side) and "⟨" not in side and side not in CONSTANTS:
        return False
    side = re.sub(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", r"\1 \2", side)
    terms = [term.strip() for term in re.split(r"[+-](?![^({]*[)}])", side)]
    if len(terms) > 1:
        return all(map(TERM.fullmatch, terms))
    return not side or all(map(NAME.fullmatch, leaves(side)))


# ---- Taking a text apart -------------------------------------------------------------------------


def last_box(text: str) -> str | None:
    r"""Return the content of the `\boxed{...}` that closes last, stripped; None if none closes."""
    opened = []  # for every brace still open: where its box begins, or None if it is no box
    box = None  # begin and end; cut out only once, so that nested boxes take linear time
    for token in BRACES.finditer(text):
        if token[0].startswith(r"\boxed"):
            opened.append(token.end())
        elif token[0] == "{":
            opened.append(None)
        elif token[0] == "}" and opened:
            start = opened.pop()
            if start is not None:
                box = start, token.start()
    if box is None:
        return None
    start, end = box
    return text[start:end].strip()


def words(found: re.Match) -> str:
    """Return text that is words, or a unit, in ⟨⟩, and other text apart from its neighbours.

    Other text is a number, or a choice.
    """
    inner = found[1].strip()
    if re.fullmatch(r"[a-zA-Z](?:[a-zA-Z\s./'^23-]|\^\{-?[1-9]\})*", inner):
        return f"⟨{inner}⟩"
    return " " + re.sub(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}[a-zA-Z. ]*", r"⟨\g<0>⟩", found[1]) + " "


def normalise(text: str) -> str:
    """Return the text without typography."""
    text = text.strip()
    while found := re.fullmatch(r"\\f?box(?:ed)?\s*\{(.*)\}", text, re.DOTALL):
        text = found[1].strip()
    text = re.sub(
        r"\\(?:displaystyle|left|right|[bB]igg?[lr]?)(?![a-zA-Z])|\\!\s*|\\?\$|£|€", "", text
    )
    text = re.sub(r"\\[dtc](frac|binom)", r"\\\1", text).replace("{,}", ",")
    text = re.sub(r"(\\frac\s*\{|\}\s*\{)\\mathrm\s*\{d\}", r"\1d", text)  # a derivative's, no unit
    text = re.sub(r"(\\[pm]{2})\s+(?=[0-9.])", r"\1", text)
    # Spaces become one and do not vanish: 8 \quad 9 is not 89.
    text = re.sub(r"(?:(?<!\\)\\[,;:> ]|\\q?quad(?![a-zA-Z])|~|\s)+", " ", text)
    text = re.sub(r"\\text\{\s*(and|or)\s*\}", r" \1 ", text)
    text = re.sub(r"(?:,\s*)?(?<![a-zA-Z\\{])(?:and|or)(?![a-zA-Z])", ",", text)
    text = re.sub(
        r"\\(?:text[a-z]*|math(?:rm|bf|it|sf)|mbox)\s*\{((?:[^{}]|\{[^{}]*\})*)\}", words, text
    )
    text = THOUSANDS.sub(lambda found: found[0].replace(",", ""), text)
    text = text.replace(r"\lbrace", r"\{").replace(r"\rbrace", r"\}").strip()
    text = re.sub(r"(?<![0-9a-zA-Z])\s+|\s+(?![0-9a-zA-Z])", "", text)
    text = re.sub(r"^\{([0-9]+)\}/\{([0-9]+)\}$", r"\1/\2", text)
    text = re.sub(r"^([+-])\(([0-9./]+)\)$", r"\1\2", text)
    text = re.sub(r"_\{?⟨([^⟩]*)⟩\}?", r"_{\1}", text)
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


def leaves(side: str) -> list[str]:
    """Return what stands in the brackets of a side, at any depth, or the side itself."""
    parts, _ = split(side, UNION)
    if len(parts) == 1:
        matrix = re.fullmatch(
            r"\\begin\{(.?matrix|array)\}(?:\{[clr|]*\})?(.*)\\end\{\1\}", side, re.DOTALL
        )
        inner = re.fullmatch(r"(?:\\?[\[({]|\\langle)(.*?)\\?(?:[\])}]|\\rangle)", side, re.DOTALL)
        if matrix:
            parts = ROWS.split(matrix[2])
        elif inner and balanced(inner[1]):
            parts, _ = split(inner[1], COMMA)
        else:
            return [re.sub(r"\\pm|\\mp", "+", side)] * (2 if re.search(r"\\pm|\\mp", side) else 1)
    return [leaf for part in parts for leaf in leaves(part)]


def balanced(text: str) -> bool:
    """Return whether brackets open before they close, and as many."""
    depths = [0]
    for bracket in re.findall(r"[\[({})\]]", text):
        depths.append(depths[-1] + (1 if bracket in "([{" else -1))
    return min(depths) == depths[-1] == 0
