"""What a table of results says of many responses: means, intervals, Pass@k, Maj@k, the averages of Table 1 (Sec. 5.1).

A record is one response, a dict: source, question, sample, reward, length, truncated, and where they are known judged
({judge: verdict}) and answer (what is boxed, or None). Only numbers here: no model, no files but `compare`'s.
"""

import json
import math
import re
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

AVERAGES = {  # Table 1: the benchmarks behind each average, and the names that their data_source may have (see `benchmark`)
    "in_distribution": {
        "AIME24": ("aime", "aime24", "aime2024"), "AIME25": ("aime25", "aime2025"), "AMC": ("amc", "amc23"),
        "MATH-500": ("math", "math500"), "Minerva": ("minerva", "minervamath"), "OlympiadBench": ("olympiad", "olympiadbench")},
    "out_of_distribution": {
        "ARC-c": ("arcc", "arcchallenge"), "GPQA-Diamond": ("gpqa", "gpqadiamond"), "MMLU-Pro": ("mmlupro",)},
}
BENCHMARKS = {name: benchmark for group in AVERAGES.values() for benchmark, names in group.items() for name in names}
Z = 1.96  # of a 95% interval
SUCCESS = 0.5  # a response with a larger reward is a success


def benchmark(source: str) -> str | None:
    """The benchmark of Table 1 that a data_source names, or None: only letters and digits after the last / count, in any
    case, so that `math`, `MATH-500` and `HuggingFaceH4/MATH-500` are one."""
    return BENCHMARKS.get(re.sub("[^a-z0-9]", "", source.rpartition("/")[2].lower()))


def means(records: list[dict]) -> dict[str, float]:
    """`pass_at_1`, `length`, `truncated` and the judges' names of every data_source: means over all of its responses."""
    values = defaultdict(list)
    for r in records:
        named = {"pass_at_1": r["reward"], "length": r["length"], "truncated": r["truncated"], **r.get("judged", {})}
        for name, value in named.items():
            values[f"{name}/{r['source']}"].append(value)
    return {name: float(np.mean(v)) for name, v in values.items()}


def statistics(records: list[dict]) -> dict:
    """What a table of results needs beside `means`, per data_source, and the averages of Table 1.

    `questions`, `samples` (responses a question), `interval` (95%, of pass_at_1), `no_box`, `pass_at_<k>` for k = 2, 4,
    8, ... and `maj_at_<n>` of all n samples; then `averages`.
    """
    sources = defaultdict(lambda: defaultdict(list))
    for r in records:
        sources[r["source"]][r["question"]].append(r)
    result = {}
    for source, questions in sources.items():
        groups = list(questions.values())
        rewards, n = [[r["reward"] for r in g] for g in groups], min(map(len, groups))
        result |= {f"questions/{source}": len(groups), f"samples/{source}": n, f"interval/{source}": interval(rewards)}
        for k in (2**i for i in range(1, n.bit_length()) if 2**i <= n):
            result[f"pass_at_{k}/{source}"] = float(np.mean([pass_at_k(len(r), sum(x > SUCCESS for x in r), k) for r in rewards]))
        if "answer" in groups[0][0]:
            result[f"no_box/{source}"] = float(np.mean([r["answer"] is None for g in groups for r in g]))
            if n > 1:
                result[f"maj_at_{n}/{source}"] = float(np.mean([majority(g) for g in groups]))
    return result | averages(records)


def averages(records: list[dict]) -> dict:
    """`average/<group>` of Table 1 over those of its benchmarks that are there, and their names, `average_of/<group>`."""
    scores = defaultdict(list)  # {benchmark: pass_at_1 of the data_source that names it, or of several}
    for name, value in means(records).items():
        if name.startswith("pass_at_1/"):
            scores[benchmark(name.removeprefix("pass_at_1/"))].append(value)
    result = {}
    for group, members in AVERAGES.items():
        if there := [name for name in members if name in scores]:
            result[f"average/{group}"] = float(np.mean([np.mean(scores[name]) for name in there]))
            result[f"average_of/{group}"] = there
    return result


def interval(rewards: list[list[float]]) -> list[float]:
    """95% interval of the mean reward: Wilson's, with as many trials as give the spread between questions.

    The responses to one question are not independent, so the question is the unit; where all questions agree there is
    no spread to go by, and it counts once. Rewards outside [0, 1] get the normal interval.
    """
    per_question = np.array([np.mean(r) for r in rewards])
    p, q = float(per_question.mean()), len(per_question)
    error = float(per_question.std(ddof=1) / math.sqrt(q)) if q > 1 else 0.0
    if min(map(min, rewards)) < 0 or max(map(max, rewards)) > 1:
        return [p - Z * error, p + Z * error]
    trials = min(p * (1 - p) / error**2, sum(map(len, rewards))) if error > 0 else q
    centre, half = p + Z**2 / (2 * trials), Z * math.sqrt(p * (1 - p) / trials + Z**2 / (4 * trials**2))
    return [max(0.0, (centre - half) / (1 + Z**2 / trials)), min(1.0, (centre + half) / (1 + Z**2 / trials))]


def pass_at_k(n: int, successes: int, k: int) -> float:
    """The chance that k of n responses, drawn without replacement, hold a success: the unbiased estimate of Pass@k."""
    return 1.0 - math.comb(n - successes, k) / math.comb(n, k)


def majority(records: list[dict]) -> float:
    """Reward of the answer that most responses to a question box, spaces apart; of equals, their mean.

    Responses without a box have no vote; without any vote the reward is 0.
    """
    votes = [("".join(r["answer"].split()), r["reward"]) for r in records if r["answer"] is not None]
    counts = Counter(answer for answer, _ in votes)
    rewards = dict(votes)
    return float(np.mean([rewards[a] for a, count in counts.items() if count == max(counts.values())] or [0.0]))


def compare(files: list[str]) -> str:
    """A table of several scores.json, side by side: pass_at_1 in percent with its 95% interval, then the averages.

    An average that lacks a benchmark of Table 1 says how many it has: such averages do not compare.
    """
    results = [json.loads(Path(file).read_text()) for file in files]
    for file, result in zip(files, results):
        if "model" not in result:
            raise ValueError(f"{file} is no scores.json of eval.py --output")
    names = dict.fromkeys(name for r in results for name in r if name.startswith("pass_at_1/"))
    names |= dict.fromkeys(name for r in results for name in r if name.startswith("average/"))
    rows = [["", *(str(r["model"]) for r in results)]]
    for name in names:
        source, cells = name.partition("/")[2], []
        for r in results:
            low, high = r.get(f"interval/{source}", (math.nan, math.nan))
            note = f" [{100 * low:.1f}, {100 * high:.1f}]" if low == low else ""
            there = r.get(f"average_of/{source}")
            if there and len(there) < len(AVERAGES[source]):
                note = f" ({len(there)} of {len(AVERAGES[source])} benchmarks)"
            cells.append(f"{100 * r[name]:.1f}{note}" if name in r else "–")
        n = {r.get(f"samples/{source}") for r in results} - {None}
        label = f"{source} (average)" if name.startswith("average/") else f"{source} (Avg@{'/'.join(map(str, sorted(n)))})"
        rows.append([label.replace("(Avg@1)", "(Pass@1)"), *cells])
    rows.insert(1, ["---"] * len(rows[0]))
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
