"""Measure how many answers a second the verifier grades.

The answers are of the kinds that mathematics questions have, and half of them are wrong.
"""

import time
from collections.abc import Iterator

from reward import Verifier

# A kind is a gold, then two right and two wrong answers; m is n + 1, and odd is 2 n + 1.
INTEGER = ("{n}", "{n}", "{n}.0", "{m}", "-{n}")
OTHERS = [
    (r"\frac{{{n}}}{{7}}", r"\frac{{{n}}}{{7}}", "{n}/7", r"\frac{{{m}}}{{7}}", "0.{n}"),
    ("{n}.5", "{n}.5", r"\frac{{{odd}}}{{2}}", "{m}.5", "{n}"),
    (
        r"{n}\sqrt{{2}}",
        r"{n}\sqrt{{2}}",
        r"\sqrt{{2}} \cdot {n}",
        r"{n}\sqrt{{3}}",
        r"{m}\sqrt{{2}}",
    ),
    (r"{n}\pi", r"{n} \pi", r"\pi \cdot {n}", "{n}", r"\frac{{\pi}}{{{n}}}"),
    ("({n}, {m})", r"\left( {n}, {m} \right)", "({n},{m})", "({m}, {n})", "({n}, {n})"),
    ("{n}, {m}", r"\{{{n}, {m}\}}", r"{m} \text{{ and }} {n}", "{n}", "{n}, {m}, 1"),
    ("x^2+{n}", "x^2 + {n}", "{n}+x^2", "x^2-{n}", "x+{n}"),
    ("y={n}x+1", "y = {n}x+1", "y-{n}x=1", "y={m}x+1", "y={n}x"),
    (r"{n}^\circ", r"{n}^\circ", "{n}", r"{m}^\circ", r"\text{{no idea {n}}}"),
]
KINDS = [INTEGER] * len(OTHERS) + OTHERS  # half are integers, as in the benchmarks
WARM_UP = 8 * len(KINDS)  # answers, two rounds, in which the parser fills its tables, once in a run


def sample_answers(count: int) -> tuple[list[str], list[str]]:
    """`count` boxed answers and their golds: four to a gold, the kinds in turns, no pair twice."""
    texts = []
    golds = []
    for i in range(count // 4):
        n = i + 2
        kind = KINDS[i % len(KINDS)]
        gold, *answers = [form.format(n=n, m=n + 1, odd=2 * n + 1) for form in kind]
        for answer in answers:
            texts.append(rf"\boxed{{{answer}}}")
            golds.append(gold)
    return texts, golds


def bench_grader() -> Iterator[tuple[str, str, str]]:
    """A row with the speed of two workers, which have a core each."""
    texts, golds = sample_answers(1600)
    with Verifier(workers=2, timeout=5.0) as verifier:
        verifier.score(texts[:WARM_UP], golds[:WARM_UP])
        start = time.perf_counter()
        rewards = verifier.score(texts[WARM_UP:], golds[WARM_UP:])
        taken = time.perf_counter() - start
        count = len(rewards)
        yield (
            f"{count} answers, {sum(rewards) / count:.0%} of them right, two workers",
            f"{count / taken:,.0f} answers a second",
            f"at least 250; {verifier.timeouts} ran out of time",
        )
