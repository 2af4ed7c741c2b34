r"""Put what Math-Verify does not know, or takes for something else, into spellings it reads right.

Math-Verify reads `1e11` as 1·e·11, `1\,234` as 1 and 234, of a vector in \langle \rangle only the
last entry, nothing of what a full stop closes, and little of what Unicode has for LaTeX: x², 2√3.
"""

import re
import unicodedata
from decimal import Decimal


def as_fraction(found: re.Match) -> str:
    r"""Return a repeating decimal as a fraction: `0.1\overline{6}` is \frac{15}{90}."""
    sign, whole, fixed, again = found.groups()
    value = int(whole + fixed + again) - int(whole + fixed or 0)
    return rf"{sign}\frac{{{value}}}{{{(10 ** len(again) - 1) * 10 ** len(fixed)}}}"


def as_product(found: re.Match) -> str:
    r"""Return an integer before an improper fraction as a product: `4\frac{3}{2}` is 6.

    It is no mixed number, which stays as it is.
    """
    whole, fraction, *numbers = found.groups()
    above, below = (int(number) for number in numbers if number)
    return found[0] if above < below else rf"{whole} \cdot {fraction}"


def primed(found: re.Match) -> str:
    """Return primes as an index of their letter, as Math-Verify takes no notice of primes."""
    return "_{" + r"\prime" * len(re.findall(r"'|\\prime", found[0])) + "}"


def multiplied(found: re.Match) -> str:
    """Return a number and the number words behind it as one number: 1.2 million is 1200000."""
    number, opened, words = found.groups()
    value = Decimal(number.replace(",", ""))
    for word in re.findall("|".join(NUMBER_WORDS), words.lower()):
        value *= Decimal(NUMBER_WORDS[word])
    return f"{value.normalize():f} {opened or ''}"


def plain(found: re.Match) -> str:
    """Return characters without their print: 2 for ², x for an italic one, 1⁄2 for ½."""
    return unicodedata.normalize("NFKC", found[0])


UNICODE = [
    ("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufe0f\ufeff]+", ""),  # nothing is printed
    ("[º˚]", "°"),
    ("[¹²³⁰-ⁿᵃᵇᵏᵐᵗˣʸ]+", lambda found: f"^{{{plain(found)}}}"),  # x² is not x2
    ("[₀-₎ₐ-ₜᵢⱼ]+", lambda found: f"_{{{plain(found)}}}"),
    (r"\^\{([0-9]+)\}⁄_\{([0-9]+)\}", r"\\frac{\1}{\2}"),
    ("[ℂℕℚℝℤ]", lambda found: rf"\mathbb{{{plain(found)}}}"),
    # Spaces, fullwidth characters, and letters and digits in italics, bold and the like.
    ("[\u00a0µϐ-ϵ\u2000-\u200a\u202f\u205f\u3000！-～\U0001d400-\U0001d7ff]+", plain),
    # A root is of what stands in brackets behind it, of a number, or of one letter.
    (
        r"([√∛∜])\s?(?:\{([^{}]*)\}|\(((?:[^()]|\([^()]*\))*)\)"
        r"|([0-9]+(?:\.[0-9]+)?|[^\W\d_]))",
        r"\1{\2\3\4}",
    ),
    ("[½⅓⅔¼¾⅕-⅞⅐-⅒↉]", lambda found: r"\frac{{{}}}{{{}}}".format(*plain(found).split("⁄"))),
]
# Characters, and the LaTeX of each of them.
CHARACTERS = r"""
    −–—‒―‐‑﹣˗ - ∕⁄ / ∗ * × \times ·⋅∙• \cdot ÷ \div ± \pm ∓ \mp ≤⩽≦ \le ≥⩾≧ \ge ≠ \ne
    ≈ \approx ≡ \equiv ∈ \in ∪ \cup ∩ \cap ∅ \emptyset ∞ \infty → \to … \ldots 、 , 。 .
    ° ^{\circ} ′’ ' ″ '' ∠ \angle △ \triangle √ \sqrt ∛ \sqrt[3] ∜ \sqrt[4] ∑ \sum ∏ \prod
    ∉ \notin ⊂ \subset ⊆ \subseteq ∥ \parallel ⊥ \perp ∣ | ⇒ \Rightarrow ∂ \partial ∫ \int
    ⌊ \lfloor ⌋ \rfloor ⌈ \lceil ⌉ \rceil ⟨〈 \langle ⟩〉 \rangle
    α \alpha β \beta γ \gamma δ \delta ε \epsilon ζ \zeta η \eta θ \theta ι \iota κ \kappa
    λ \lambda μ \mu ν \nu ξ \xi π \pi ρ \rho σ \sigma τ \tau υ \upsilon φ \phi χ \chi ψ \psi
    ω \omega Γ \Gamma Δ \Delta Θ \Theta Λ \Lambda Ξ \Xi Π \Pi Σ \Sigma Φ \Phi Ψ \Psi Ω \Omega
""".split()
LATEX = {
    ord(character): f"{command} " if command[-1].isalpha() else command
    for characters, command in zip(CHARACTERS[::2], CHARACTERS[1::2])
    for character in characters
}

NUMBER_WORDS = dict(
    pair.split(":")
    for pair in "dozen:12 hundred:1e2 thousand:1e3 lakh:1e5 million:1e6 crore:1e7 billion:1e9"
    " trillion:1e12 quadrillion:1e15 quintillion:1e18".split()
)
GAP = r"(?:\s|~|\\[,;:! ]){0,3}"
TEXT = r"\\(?:text[a-z]*|math(?:rm|bf|it|sf)|mbox)\s?\{\s?"
PERCENT = r"(?i:per\s?cent|pct)"
ALONE = r"(?<![0-9_.^])(?<![_^]\{)([0-9]+(?:\.[0-9]+)?)"  # a number, not an index or an exponent
SPELLINGS = [
    (r"\\langle(?![a-zA-Z])", "("),
    (r"\\rangle(?![a-zA-Z])", ")"),
    (
        r"\\begin\{cases\}([^&]{0,300}?)(?:\\\\\s{0,3})?\\end\{cases\}",
        lambda found: found[1].replace(r"\\", ","),
    ),
    (r"(?:(?<=\\boxed\{)|(?<=\\in))\s?\\mathbb\s?\{?R\}?\s?(?=\}$)", r"(-\\infty,\\infty)"),
    (
        r"([+-]?)(?<![0-9.])([0-9]{0,9})\.([0-9]{0,9})"
        r"(?:\\(?:overline|bar|dot)\s?\{|(?<![A-Z]\.)\()([0-9]{1,9})[})]",
        as_fraction,
    ),
    (rf"{ALONE}(?:''|\"|\^\{{?\s?\\prime\s?\\prime\s?\}}?)", r"\1\\text{ sec}"),
    (rf"{ALONE}(?:'|\^\{{?\s?\\prime\s?\}}?)", r"\1\\text{ min}"),
    (r"(?<=[a-zA-Z])(?:'+|\^\{?\s?(?:\\prime\s?)+\}?)", primed),
    (r"\bnp\.", r"\\"),  # np.arcsin(10/13)
    (r"(?<=[0-9])\.(?=/)", ""),  # -1./3
    (r"_\{\\(max|min|odot) *\}", r"_{\1}"),
    (r"\\varnothing(?![a-zA-Z])", r"\\emptyset"),
    (r"(?<=\{)([+-]?[0-9]+(?:\.[0-9]+)?)[eE]([+-]?[0-9]{1,3})\}$", r"\1 \\times 10^{\2}}"),
    (r"(?<=[0-9])(?:\\[,;: ]| |~|\{,\})(?=[0-9]{3}(?![0-9]))", ""),  # 1\,234
    (rf"(?<=[0-9}}]){GAP}(?:{TEXT}{PERCENT}\s?\}}|{PERCENT}\b)", r"\\%"),
    (
        r"(?<![0-9.,/^_])(?<![/^] )([0-9]{1,12}+(?:,[0-9]{3}){0,4}+(?:\.[0-9]{1,12}+)?+)"
        rf"{GAP}({TEXT})?((?i:(?:(?:{'|'.join(NUMBER_WORDS)})s?\b\s?){{1,3}}))",
        multiplied,
    ),
    (r"(?<![0-9./])([0-9]{1,9})\s([0-9]{1,9})/([0-9]{1,9})", r"\1\\frac{\2}{\3}"),
    (
        r"(?<![0-9.^_])([0-9]{1,9})(?:\s|\\[,; ]){0,3}(\\[dtc]?frac\s?"
        r"(?:\{([0-9]{1,9})\}\s?\{([0-9]{1,9})\}|([0-9])\s?([0-9])))",
        as_product,
    ),
    (r"(?<!\\)%", r"\\%"),
]


def latex(text: str) -> str:
    """Return the text, most often a box, in spellings that Math-Verify reads right."""
    for pattern, spelling in UNICODE:
        text = re.sub(pattern, spelling, text)
    text = text.translate(LATEX)
    for pattern, spelling in SPELLINGS:
        text = re.sub(pattern, spelling, text)
    return text
