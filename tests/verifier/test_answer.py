"""An answer must be one: leaks that Math-Verify calls right score 0, honest spellings score 1."""

import pytest

from tests.verifier.answers import (
    HONEST,
    HONEST_ASIDE,
    LEAKS,
    LEAKS_ASIDE,
    WORDS,
    paid,
    pairs,
    refused,
    rewards,
)
from verifier.math_answers import math_reward


@pytest.mark.parametrize("table", [HONEST, HONEST_ASIDE], ids=["first", "aside"])
def test_honest_spellings(table):
    """Typography, units, names, equal forms, orders and chains of benchmark golds are right."""
    assert not refused(table)


def test_leaks():
    """What is to be worked out, or says more or less than the gold, is wrong and counted."""
    leaked = {"score": 0.0, "unevaluated": 1.0}  # equal to Math-Verify
    assert not [pair for pair in pairs(LEAKS) if rewards(*pair) != leaked]
    assert not paid(LEAKS_ASIDE)


@pytest.mark.parametrize(("gold", "right", "wrong"), WORDS)
def test_words_units_and_what_looks_like_them(gold, right, wrong):
    """One unit may be left out or spelt otherwise, while other words, letters and primes count.

    What is a product is none of these.
    """
    assert not refused({gold: right})
    assert not paid({gold: wrong})


def test_golds_that_are_text():
    """Words, prose, letters in order and senseless brackets are; units and products are not."""
    golds = [r"\text{east}", "listen", "IV", r"5\text{ ft }6\text{ in}", "t(0,4]]"]
    golds += [r"$f(x)=a x+b$, where $b$ is an arbitrary integer"]
    assert all(math_reward(None, gold)["as_text"] for gold in golds)
    others = [r"5\text{ ft}", "2xy", "B", r"\text{(C)}", r"\text{Area} = 12", "$221,$8$", "f'(x)"]
    assert not any(math_reward(None, gold)["as_text"] for gold in others)


def test_what_attacks_found():
    """What was found by attacks on the rule has the verdict that it deserves.

    A space after ± is typography. A derivative in roman letters is still to be worked out, and so
    is an inequality that is not solved. Numbers side by side are no number. A solution set may have
    a name.
    """
    right = {
        "2,-2": r"\pm 2",
        r"\pm2": r"x=\pm 2",
        r"\{-3,3\}": r"\pm 3",
        r"\frac{d}{2}": r"\frac{\mathrm{d}}{2}",
        "71": r"\textbf{71}",
        "1,2": r"x \in \{1,2\}",
        "x>3": "3<x",
        "x>a+1": "x-1>a",
    }
    wrong = {
        "7,3": r"5\pm 2",
        "x^2-1": r"\frac{\mathrm{d}}{\mathrm{d}x}(\frac{x^3}{3}-x)",
        "2x": r"\frac{\mathrm{d}(x^2)}{\mathrm{d}x}",
        "71": r"71\textbf{65}",
        "1,2": r"x \in (1,2) | x \in \{1,1+1\}",
        r"$k \geqslant 2$": r"3k-1 \geq 2k+1",
    }
    assert not refused(right)
    assert not paid(wrong)
