"""The benchmarks of Table 1, and the numbers in a row of that table (Sec. 5.1).

A benchmark is known by its data_source. A record is one response as plain values: `source` and
`question` (names), `success`, and where it is known `answer` (what is boxed, or None). This module
works with neither models nor files.
"""

import math
import re
from collections import defaultdict
from statistics import multimode

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
SMALL = ("AIME24", "AIME25", "AMC")  # the paper gives Avg@32 of these and Pass@1 of the others


def benchmark(source: str) -> str | None:
    """The benchmark of Table 1 that a data_source names, or None.

    Only letters and digits after the last / count, in any case: `math` and `HuggingFaceH4/MATH-500`
    are one.
    """
    return BENCHMARKS.get(re.sub("[^a-z0-9]", "", source.rpartition("/")[2].lower()))


def reward_of(questions: list, reward: str) -> str:
    """The arithmetic world's own reward in place of "math", where all questions are of that world.

    It is known by data_source and by form, as other files may use the name.
    """
    chain = re.compile(r"[0-9]([a-j][-+*][0-9])+")
    built_in = all(
        q.source in ("arithmetic", "arithmetic-ood") and chain.fullmatch(q.text) for q in questions
    )
    return "worlds.arithmetic:reward" if reward == "math" and built_in else reward


def statistics(records: list[dict]) -> dict:
    """What a table needs beside the means, per data_source, and the two averages of Table 1.

    A data_source has `questions`, `samples` (responses to a question), `interval` (95%, of Pass@1)
    and `pass_at_<k>` for k = 2, 4 and so on. Where boxes are asked for, it also has `no_box` and,
    of all n samples, `maj_at_<n>`. Then `averages` follow.
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
    """The averages of Table 1 over the benchmarks that are there, from {data_source: score}.

    `average/<group>` is the mean, and `average_of/<group>` names the benchmarks in it. A benchmark
    under two data_sources has the weight of one.
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


def interval(right: list[list]) -> list[float]:
    """Wilson's 95% interval of Pass@1, with as many trials as the spread of questions implies.

    The responses to one question are not independent, so the question is the unit: where all
    questions agree there is no spread to go by, and each counts as one trial.
    """
    from scipy.stats import binomtest  # takes seconds to import

    per_question = [np.mean(r) for r in right]
    p = np.mean(per_question)
    variance = np.var(per_question)
    trials = len(right)
    if variance > 0:
        trials = min(round(trials * p * (1 - p) / variance), sum(map(len, right)))
    found = binomtest(round(p * trials), trials).proportion_ci(method="wilson")
    return [float(found.low), float(found.high)]


def pass_at_k(n: int, successes: int, k: int) -> float:
    """The chance that k of n responses, drawn without replacement, hold a success.

    It is an unbiased estimate of Pass@k.
    """
    return 1.0 - math.comb(n - successes, k) / math.comb(n, k)


def majority(records: list[dict]) -> float:
    """Whether the answer that most responses to a question box is right, as 0 or 1.

    Answers are compared without spaces. If several have the most votes, the mean over them counts.
    Responses without a box have no vote; without any vote it is 0.
    """
    votes = [
        ("".join(r["answer"].split()), r["success"]) for r in records if r["answer"] is not None
    ]
    right = dict(votes)
    most_voted = multimode(answer for answer, _ in votes)
    return float(np.mean([right[answer] for answer in most_voted] or [0.0]))
