"""What there was to learn from: how mixed fresh and replayed groups were, and what the buckets held.

Of n responses to a question k are right, a share p = k/n. Their rewards have the variance p(1 − p): where it
is 0 their advantages are 0 and they teach nothing; at p = 1/2 they teach most. Replayed groups count their
K − 1 new responses, not o*, which is always right; Σ k(K − k) has it in k. The tables are means over the
records that are there, of the arms of the decided rows.
"""

import numpy as np

from studies.jobs import Job
from studies.protocol import ROWS, SETTINGS

DECIDED = [row for row in ROWS if row.family != "exploratory"]
REPLAY = {"w*, mean": "replay/ratio", "effective sample size of w*, share": "replay/ess",
          "o*'s share of the policy term": "replay/gradient_share"}
RUN = {"Σ k(K − k) a step, fresh": "fresh/signal", "Σ k(K − k), replayed, with o*": "replay/signal",
       "tokens generated a step": "rollout/tokens", "seconds a step, one core": "time/step"}
SKIPPED = "loss/skipped"  # optimiser steps, for their gradient norm


def done(setting: str, arm: str) -> dict[int, dict]:
    """{unit: record} of an arm, of those that are there."""
    jobs = [Job(setting, arm, unit) for unit in range(SETTINGS[setting].units)]
    return {job.unit: job.record() for job in jobs if job.done}


def steps(record: dict) -> list[dict]:
    """The rows of metrics of a run's steps, without those of a validation alone."""
    return [row for row in record["rows"] if "fresh/signal" in row]


def markdown(head: list[str], lines: list[list[str]]) -> str:
    """A table."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *lines)) + "\n"


def by_k(rows: list[dict], metric: str) -> np.ndarray:
    """(K + 1,) what the metrics `metric`=k count in these rows, k = 0..K; 0 where there is no such metric."""
    K = max(int(name[8:]) for name in rows[0] if name.startswith("fresh/k="))
    return np.array([sum(row.get(f"{metric}={k}", 0) for row in rows) for k in range(K + 1)])


def mixed(counts: np.ndarray) -> float:
    """Mean p(1 − p) of groups of n responses; counts (n + 1,): how many of them have k = 0..n right."""
    p = np.linspace(0, 1, len(counts))
    return float(counts @ (p * (1 - p)) / max(counts.sum(), 1))


def numbers(record: dict) -> list[float]:
    """A line of `runs`; nan where nothing is replayed."""
    rows = steps(record)
    fresh = by_k(rows, "fresh/k")
    replaying = [row for row in rows if row["replay/questions"]]
    return [(fresh[0] + fresh[-1]) / fresh.sum(), fresh[0] / fresh.sum(), mixed(fresh),
            mixed(by_k(rows, "replay/k")[1:]) if replaying else np.nan,
            *(np.mean([row[m] for row in replaying]) if replaying else np.nan for m in REPLAY.values()),
            *(np.mean([row[m] for row in rows]) for m in RUN.values()),
            sum(row.get(SKIPPED, 0) for row in rows)]


def runs() -> str:
    """Markdown: means over steps and units of every arm; under one of which fewer units are there than of
    ExGRPO, ExGRPO's of the same ones."""
    head = ["fresh groups all right or all wrong", "all wrong", "p(1 − p), fresh",
            "p(1 − p), replayed, new responses", *REPLAY, *RUN, "optimiser steps skipped, of a run"]
    lines = []
    for setting, arm in dict.fromkeys((row.setting, arm) for row in DECIDED for arm in row.arms):
        found = done(setting, arm) if arm != "base" else {}
        replaying = done(setting, "exgrpo") if found else {}
        if found:
            lines.append(_line(f"{setting}, {arm}", found.values()))
        if set(found) < set(replaying):
            line = _line(f"{setting}, exgrpo, of these units", [replaying[unit] for unit in found])
            lines += [line] * (line not in lines)  # of the same units twice
    return markdown(["mean over the run", *head], lines)


def _line(name: str, records) -> list[str]:
    columns = [[value for value in column if not np.isnan(value)] for column in zip(*map(numbers, records))]
    cells = [f"{np.mean(column):.3g}" if column else "–" for column in columns]
    return [f"{name} ({len(records)} run{'s' * (len(records) > 1)})", *cells]


def buckets() -> str:
    """Markdown, ExGRPO's runs of each setting: the share of draws that each bucket had, how often a question
    in it was drawn, and the questions in it after a third, two thirds and all of the steps."""
    head, lines = ["mean over the runs"], []
    for setting in dict.fromkeys(row.setting for row in DECIDED):
        records = [steps(record) for record in done(setting, "exgrpo").values()]
        if not records:
            continue
        drawn = sum(by_k(rows, "replay/from_k") for rows in records)[1:-1]
        held = sum(by_k(rows, "buckets/k") for rows in records)
        waited = (held - sum(by_k(rows[-1:], "buckets/k") for rows in records))[1:-1]  # for a step to draw
        chance = drawn / np.maximum(waited, 1)
        for name, shares in (("draws from the bucket", drawn / max(drawn.sum(), 1)),
                             ("chance, each step, that a question in it is drawn", chance)):
            lines.append([f"{setting}: {name}", *(f"{share:.0%}" for share in shares)])
        last = max(len(rows) for rows in records)
        for step in sorted({max(1, last // 3), max(1, 2 * last // 3), last}):
            held = [by_k(rows[step - 1 : step], "buckets/k")[1:-1] for rows in records if len(rows) >= step]
            lines.append([f"{setting}: questions in it after step {step}",
                          *(f"{n:.0f}" for n in np.mean(held, axis=0))])
        head = [head[0], *(f"k = {k + 1}" for k in range(len(drawn)))]
    return markdown(head, lines)
