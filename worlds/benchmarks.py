"""The benchmarks of Table 1: by which data_source each is known,
and what a row of the table says (Sec. 5.1).

A record is one response as plain values: `source` and `question` (names), `success`, and where it
is known `answer` (what is boxed, or None). Only numbers here: no model, no files.
"""

import math
import re
from collections import Counter, defaultdict

import numpy as np

AVERAGES = {  # {average: {benchmark: what its data_source may be, as `benchmark` reads it}}
    "in_distribution": {
        "AIME24": ("aime", "aime24", "aime2024"),
        "AIME25": ("aime25", "aime2025"),
        "AMC": ("amc", "amc23", "amc2023"),
        "MATH-500": ("math", "math500"),
        "Minerva": ("minerva", "minervamath"),
        "OlympiadBench": ("olympiad", "olympiadbench"),
    },
    "out_of_distribution": {
        "ARC-c": ("arcc", "arcchallenge"),
        "GPQA-Diamond": ("gpqa", "gpqadiamond"),
        "MMLU-Pro": ("mmlupro",),
    },
}
BENCHMARKS = {
    word: name for members in AVERAGES.values() for name, words in members.items() for word in words
}
SMALL = ("AIME24", "AIME25", "AMC")  # Avg@32 in the paper, the others are Pass@1
Z = 1.96  # of a 95% interval


def benchmark(source: str) -> str | None:
    """The benchmark of Table 1 that a data_source names, or None.

    Only letters and digits after the last / count, in any case: `math` and `HuggingFaceH4/MATH-500`
    are one.
    """
    return BENCHMARKS.get(re.sub("[^a-z0-9]", "", source.rpartition("/")[2].lower()))


def of_built_in_world(questions: list) -> bool:
    """Whether they are the arithmetic world's,
    by data source and form: other files may be named so.
    """
    chain = re.compile(r"[0-9]([a-j][-+*][0-9])+")
    return all(
        q.source in ("arithmetic", "arithmetic-ood") and chain.fullmatch(q.text) for q in questions
    )


def statistics(records: list[dict]) -> dict:
    """What a table needs beside the means, per data_source, and the two averages of Table 1.

    `questions`, `samples` (responses a question), `interval` (95%, of Pass@1), `pass_at_<k>` for k
    = 2, 4,
    ..., and where boxes are asked for `no_box` and `maj_at_<n>` of all n samples; then `averages`.
    """
    sources = defaultdict(lambda: defaultdict(list))
    for r in records:
        sources[r["source"]][r["question"]].append(r)
    result = {}
    pass_at_1 = {}
    for source, questions in sources.items():
        groups = list(questions.values())
        right = [[r["success"] for r in group] for group in groups]
        n = min(map(len, right))
        about = {"questions": len(right), "samples": n, "interval": interval(right)}
        for k in (2**i for i in range(1, n.bit_length())):
            about[f"pass_at_{k}"] = float(np.mean([pass_at_k(len(r), sum(r), k) for r in right]))
        if "answer" in groups[0][0]:
            about["no_box"] = float(
                np.mean([r["answer"] is None for group in groups for r in group])
            )
            if n > 1:
                about[f"maj_at_{n}"] = float(np.mean([majority(group) for group in groups]))
        result |= {f"{name}/{source}": value for name, value in about.items()}
        pass_at_1[source] = float(np.mean([r for group in right for r in group]))
    return result | averages(pass_at_1)


def averages(scores: dict) -> dict:
    """Of {data_source: score}: `average/<group>` of the benchmarks
    that are there, `average_of/<group>`.

    A benchmark under two data_sources has the weight of one.
    """
    found = defaultdict(list)
    for source, score in scores.items():
        found[benchmark(source)].append(score)
    result = {}
    for group, members in AVERAGES.items():
        there = [name for name in members if name in found]
        if there:
            result[f"average/{group}"] = float(np.mean([np.mean(found[name]) for name in there]))
            result[f"average_of/{group}"] = there
    return result


def interval(right: list[list]) -> list:
    """95% interval of Pass@1: Wilson's, with as many trials as give the spread between questions.

    The responses to one question are not independent, so the question is the unit; where all
    questions agree there is no spread to go by, and it counts once.
    """
    per_question = np.array([np.mean(r) for r in right])
    p = float(per_question.mean())
    q = len(per_question)
    error = float(per_question.std(ddof=1) / math.sqrt(q)) if q > 1 else 0.0
    trials = min(p * (1 - p) / error**2, sum(map(len, right))) if error > 0 else q
    centre = p + Z**2 / (2 * trials)
    half = Z * math.sqrt(p * (1 - p) / trials + Z**2 / (4 * trials**2))
    scale = 1 + Z**2 / trials
    return [max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)]


def pass_at_k(n: int, successes: int, k: int) -> float:
    """The chance that k of n responses, drawn without replacement,
    hold a success: unbiased for Pass@k.
    """
    return 1.0 - math.comb(n - successes, k) / math.comb(n, k)


def majority(records: list[dict]) -> float:
    """Whether the answer that most responses to a question box is right,
    spaces apart; of equals, their mean.

    Responses without a box have no vote; without any vote it is 0.
    """
    votes = [
        ("".join(r["answer"].split()), r["success"]) for r in records if r["answer"] is not None
    ]
    counts = Counter(answer for answer, _ in votes)
    right = dict(votes)
    most = max(counts.values(), default=0)
    return float(
        np.mean([right[answer] for answer, count in counts.items() if count == most] or [0.0])
    )
