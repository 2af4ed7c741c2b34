"""Throughput of the verifier on answers of the kinds that mathematics questions have, half of them wrong."""

import argparse
import os
from collections.abc import Iterator

from bench.meters import Row, seconds
from reward import Verifier

# gold: right as written, right in another form, two wrong; m = n + 1; half are integers, as in the benchmarks
KINDS = 9 * [("{n}", "{n}", "{n}.0", "{m}", "-{n}")] + [
    (r"\frac{{{n}}}{{7}}", r"\frac{{{n}}}{{7}}", "{n}/7", r"\frac{{{m}}}{{7}}", "0.{n}"),
    ("{n}.5", "{n}.5", r"\frac{{{odd}}}{{2}}", "{m}.5", "{n}"),
    (r"{n}\sqrt{{2}}", r"{n}\sqrt{{2}}", r"\sqrt{{2}} \cdot {n}", r"{n}\sqrt{{3}}", r"{m}\sqrt{{2}}"),
    (r"{n}\pi", r"{n} \pi", r"\pi \cdot {n}", "{n}", r"\frac{{\pi}}{{{n}}}"),
    ("({n}, {m})", r"\left( {n}, {m} \right)", "({n},{m})", "({m}, {n})", "({n}, {n})"),
    ("{n}, {m}", r"\{{{n}, {m}\}}", r"{m} \text{{ and }} {n}", "{n}", r"{n}, {m}, 1"),
    ("x^2+{n}", "x^2 + {n}", "{n}+x^2", "x^2-{n}", "x+{n}"),
    (r"y={n}x+1", r"y = {n}x+1", r"y-{n}x=1", "y={m}x+1", "y={n}x"),
    (r"{n}^\circ", r"{n}^\circ", "{n}", r"{m}^\circ", r"\text{{no idea {n}}}"),
]


def sample_answers(count: int) -> tuple[list[str], list[str]]:
    """`count` different (graded text, gold) pairs, the kinds in turns, four answers to a gold."""
    pairs = []
    for i in range(count // 4):
        n = i + 2
        values = {"n": n, "m": n + 1, "odd": 2 * n + 1}
        gold, *answers = [form.format(**values) for form in KINDS[i % len(KINDS)]]
        pairs += [(rf"\boxed{{{answer}}}", gold) for answer in answers]
    texts, golds = zip(*pairs)
    return list(texts), list(golds)


def cpu_seconds(verifier: Verifier) -> float:
    """CPU time that the workers have used (Linux): what a busy machine does not change."""
    ticks = 0
    for worker in verifier.workers:
        with open(f"/proc/{worker.process.pid}/stat") as stat:
            ticks += sum(int(field) for field in stat.read().rpartition(")")[2].split()[11:13])
    return ticks / os.sysconf("SC_CLK_TCK")


def equality(text: str | None, answer: str) -> float:
    """Math-Verify's verdict alone, on the same box: what grading costs without the rule."""
    from verifier.math_answers import equal

    return float(text is not None and equal(text, answer))


def bench_verify(args: argparse.Namespace) -> Iterator[Row]:
    """Answers per second of the verifier, by the number of its workers, with and without the rule."""
    texts, golds = sample_answers(4000 if args.full else 800)
    warm = 8 * len(KINDS)  # two rounds: the parser's tables are filled as it parses, once in a run
    for workers, rule in ((1, "math"), (2, "math"), (2, "bench.verify:equality")):
        with Verifier(workers=workers, timeout=5.0, function=rule) as verifier:
            verifier.score(texts[:warm], golds[:warm])
            used, rewards = cpu_seconds(verifier), []
            taken = seconds(lambda v=verifier, r=rewards: r.append(v.score(texts[warm:], golds[warm:])))
            used, count = cpu_seconds(verifier) - used, len(rewards[0])
            yield (f"verifier, {workers} workers, {'with' if rule == 'math' else 'without'} the rule",
                   f"{count / taken:,.0f} answers/s, {count / used:,.0f} per second of a worker's CPU",
                   f"bar 500/s on 2 free cores; {count} different answers of {len(set(KINDS))} kinds, "
                   f"{sum(rewards[0]) / count:.0%} right, {verifier.timeouts} time-outs")
