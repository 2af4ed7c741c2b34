"""Throughput of the verifier on answers of the kinds that mathematics questions have, all different."""

import argparse
from collections.abc import Iterator

from bench.meters import Row, seconds
from reward import Verifier

TEMPLATES = [  # (answer, gold): right as written, right in another form, wrong, unreadable
    ("{n}", "{n}"), ("{n}.0", "{n}"), ("{n}", "{m}"), (r"\frac{{{n}}}{{7}}", r"\frac{{{n}}}{{7}}"),
    (r"\frac{{{d}}}{{14}}", r"\frac{{{n}}}{{7}}"), (r"{n}\sqrt{{2}}", r"{n}\sqrt{{2}}"), (r"\sqrt{{{s}}}", "{n}"),
    ("({n}, {m})", "({n}, {m})"), ("[{n}, {m})", "({n}, {m})"), (r"{n}\pi", r"{n}\pi"), ("x^2+{n}", "{n}+x^2"),
    (r"\{{{n}, {m}\}}", r"\{{{m}, {n}\}}"), (r"{n}\%", "{n}"), (r"2^{{{n}}}", r"2^{{{n}}}"), (r"\text{{no idea {n}}}", "{n}"),
    (r"\frac{{{n}", "{n}"),
]


def sample_answers(count: int) -> tuple[list[str], list[str]]:
    """`count` different (graded text, gold) pairs, the kinds in turns."""
    pairs = []
    for i in range(count):
        answer, gold = TEMPLATES[i % len(TEMPLATES)]
        n = i + 2
        values = {"n": n, "m": n + 1, "d": 2 * n, "s": n * n}
        pairs.append((rf"so \boxed{{{answer.format(**values)}}}", gold.format(**values)))
    texts, golds = zip(*pairs)
    return list(texts), list(golds)


def bench_verify(args: argparse.Namespace) -> Iterator[Row]:
    """Answers per second of the verifier, by the number of its workers."""
    texts, golds = sample_answers(4096 if args.full else 512)
    for workers in (1, 2):
        with Verifier(workers=workers, timeout=5.0) as verifier:
            verifier.score(texts[: len(TEMPLATES)], golds[: len(TEMPLATES)])  # the workers' start
            rewards = []
            taken = seconds(lambda v=verifier, r=rewards: r.append(v.score(texts, golds)))
            yield (f"verifier, {workers} workers, {len(texts)} different answers of {len(TEMPLATES)} kinds",
                   f"{len(texts) / taken:,.0f} answers/s",
                   f"{sum(rewards[0]) / len(texts):.0%} right, {verifier.timeouts} timed out; the paper's step has 1,024 a node")
