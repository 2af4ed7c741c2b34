"""Honest answers that the rule of verifier/answer.py rejects: `python -m bench.spellings FILE...` (Parquet).

Each distinct gold is respelled in every way below; of the pairs that Math-Verify calls equal those that the
rule rejects are counted, and printed to be looked at.
"""

import argparse
import re
from collections.abc import Iterator

import pyarrow.parquet
import sympy
from math_verify import parse

from reward import graded_text
from verifier.math_answers import equal, math_reward

REWRITES = [  # pattern, replacement: the typography that models vary
    (r"\\frac", r"\\dfrac"), (r"\\dfrac", r"\\frac"), (r"\\left|\\right", ""), (r",", ", "),
    (r"(?<![a-zA-Z])\s+|\s+(?![a-zA-Z])", ""), (r"\\frac\{(\w+)\}\{(\w+)\}", r"\1/\2"),
    (r"\\frac\{(\d)\}\{(\d)\}", r"\\frac\1\2"), (r"\^\{(\w)\}", r"^\1"), (r"\^(\w)", r"^{\1}"),
    (r"_\{(\w)\}", r"_\1"), (r"_(\w)", r"_{\1}"), (r"\\sqrt\{(\d)\}", r"\\sqrt\1"), (r"\^\{?\\circ\}?", ""),
    (r"\^\{?\\circ\}?", r" \\text{ degrees}"), (r"\\%", ""), (r"(?<!\\)%", r"\\%"), (r"\\\$", ""),
    (r"\\[!,]\s*", ""), (r"\\(?:text|mbox)\{[^}]*\}(?:\^\d)?", ""), (r"\\text\{(.*)\}", r"\1"), (r"\$", ""),
    (r"pmatrix", "bmatrix"), (r"^(\$?)\w(?:\(\w\))?\s*=", r"\1"), (r"\b(\d+)\.0\b", r"\1"), (r"\.?0+$", ""),
    (r"^(-?\d+)$", r"\1.0"), (r"^(-?\d+)(\d{3})$", r"\1,\2"), (r"^(-?\d+)(\d{3})$", r"\1{,}\2"),
    (r"e(-?\d+)$", r" \\times 10^{\1}"), (r"e(-?\d+)$", r"\\cdot 10^{\1}"),
    (r"^(.*)\\pm(.*)$", r"\1+\2, \1-\2"), (r"^([^(\[{]*),([^,(\[{]*)$", r"\2,\1"),
    (r",([^,]*)$", r" \\text{ and }\1"), (r"^([^()\[\]]*,[^()\[\]]*)$", r"\\{\1\\}"),
]  # fmt: skip
FRAMES = ["{}", " {} ", "{}.", "x = {}", r"\text{{Area}} = {}", "P(X=2) = {}", "m+n = {}", "= {}",
          r"{} \text{{ cm}}", r"{} \text{{ square units}}", "{{{}}}", r"\boxed{{{}}}", r"\left({}\right)",
          r"{}^\circ"]  # fmt: skip


def spellings(gold: str) -> Iterator[str]:
    """The gold in other typography, in a frame, and as computer algebra writes it in equal forms."""
    plain = gold.strip().strip("$") if gold.count("$") == 2 else gold.strip()
    yield from (frame.format(plain) for frame in FRAMES if "=" not in frame or "=" not in plain)
    yield from (re.sub(pattern, replacement, plain) for pattern, replacement in REWRITES)
    expression = parse(rf"\boxed{{{gold}}}", parsing_timeout=None)[0]
    for form in (lambda e: e, sympy.expand, sympy.factor, sympy.together, sympy.N):
        try:
            yield sympy.latex(form(expression))
            yield sympy.latex(form(expression), fold_short_frac=True, ln_notation=True, mul_symbol="dot")
        except Exception:
            continue  # a set, a relation, a word


def main() -> None:
    """Print how many equal spellings of the files' golds the rule rejects, and which."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", metavar="FILE")
    rows = [row for file in parser.parse_args().files for row in pyarrow.parquet.read_table(file).to_pylist()]
    golds = dict.fromkeys(row["reward_model"]["ground_truth"] for row in rows)
    readable = [gold for gold in golds if math_reward(None, gold)["score"]]
    malformed = [gold for gold in readable if math_reward(None, gold)["malformed"]]
    pairs, rejected = 0, []
    for gold in readable:
        for spelling in dict.fromkeys(spellings(gold)):
            text = graded_text(rf"\boxed{{{spelling}}}", thinking=False)
            if text is not None and equal(text, gold):
                pairs += 1
                if not math_reward(text, gold)["score"]:
                    rejected.append((gold, spelling))
    print(f"{len(golds)} distinct golds, {len(golds) - len(readable)} unreadable, malformed: {malformed}")
    print(f"{pairs} pairs equal to Math-Verify, {len(rejected)} rejected ({len(rejected) / pairs:.2%})")
    for gold, spelling in rejected:
        print(f"{gold!r} <- {spelling!r}")


if __name__ == "__main__":
    main()
