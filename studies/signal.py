"""What there was to learn from: the signal of fresh and of replayed groups, and what the buckets held.

The rewards of a group of K responses, k of them right, have a summed variance of k(K − k)/K: with k = 0 or K
its advantages are all 0 and it teaches nothing; k = K/2 teaches most. The tables are means over the records
that are there, of the arms of the decided rows.
"""

from itertools import product

import numpy as np

from studies.jobs import Job
from studies.measures import mean_of
from studies.protocol import ROWS, SETTINGS

RUN = {"groups without signal": "reward/all_equal_groups", "without a success": "reward/none_right",
       "w* of replayed tokens, mean": "replay/ratio", "effective sample size of w*": "replay/ess",
       "replayed share of the policy term": "replay/gradient_share",
       "tokens generated a step": "rollout/tokens", "seconds a step": "time/step"}


def done(setting: str, arm: str) -> list[dict]:
    """The records that are there of an arm."""
    jobs = [Job(setting, arm, unit) for unit in range(SETTINGS[setting].units)]
    return [job.record() for job in jobs if job.done]


def markdown(head: list[str], lines: list[list[str]]) -> str:
    """A table."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *lines)) + "\n"


def runs() -> str:
    """Markdown: means over steps and units."""
    arms = dict.fromkeys((row.setting, arm) for row in ROWS if row.family != "exploratory"
                         for arm in row.arms if arm != "base")
    lines = []
    for setting, arm in arms:
        records = done(setting, arm)
        values = [np.mean([mean_of(r, metric) for r in records]) if records else None
                  for metric in RUN.values()]
        cells = ["–" if value is None else f"{value:.3g}" for value in values]
        lines.append([f"{setting}, {arm} ({len(records)} runs)", *cells])
    return markdown(["mean over the run", *RUN], lines)


def by_k(records: list[dict], metric: str, steps: slice = slice(None)) -> np.ndarray:
    """(K + 1,) what the metrics `metric`=k count, k = 0..K, 0 where there is none: summed over the steps of
    a run, mean over runs. `steps` are positions among the rows of metrics; the first is before training."""
    K = max(int(name[8:]) for name in records[0]["rows"][-1] if name.startswith("fresh/k="))
    rows = [row for record in records for row in record["rows"][steps]]
    return np.array([sum(row.get(f"{metric}={k}", 0) for row in rows) for k in range(K + 1)]) / len(records)


def groups() -> str:
    """Markdown, ExGRPO's runs of each setting: shares of the fresh and of the replayed groups with k of K
    right, of the buckets that the draws came from, mean k(K − k); questions in each bucket."""
    head, lines = ["mean over the runs"], []
    for setting in SETTINGS:
        records = done(setting, "exgrpo")
        if not records:
            continue
        for name, metric in (("fresh groups", "fresh/k"), ("replayed groups", "replay/k"),
                             ("drawn from the bucket", "replay/from_k")):
            share = by_k(records, metric)
            share = share / max(share.sum(), 1)
            k, K = np.arange(len(share)), len(share) - 1
            lines.append([f"{setting}: {name}", *(f"{s:.1%}" for s in share), f"{share @ (k * (K - k)):.2f}"])
        last = len(records[0]["rows"]) - 1
        for step in (last // 3, 2 * last // 3, last):
            sizes = [f"{n:.0f}" for n in by_k(records, "buckets/k", slice(step, step + 1))[1:K]]
            lines.append([f"{setting}: questions in the bucket at step {step}", "–", *sizes, "–", "–"])
        head = [head[0], *(f"k = {n}" for n in k), "k(K − k)"]
    return markdown(head, lines)


def judged() -> str:
    """Markdown, unit by unit of the built-in worlds, before training and after: of the responses to the
    validation questions (one each) the right ones / those whose every step is right / bare answers."""
    names = ["pass_at_1", "valid", "shortcut"]
    places = [("trained", "arithmetic"), ("out of distribution", "arithmetic-ood")]
    lines = []
    for setting, unit in product(("hard", "weak"), range(8)):
        jobs = [Job(setting, arm, unit) for arm in ("on_policy", "exgrpo")]
        if not all(job.done for job in jobs):
            continue
        scored = [[row for row in job.record()["rows"] if "val/valid/arithmetic" in row] for job in jobs]
        rows = scored[0][0], scored[0][-1], scored[1][-1]  # the base, then what each arm made of it
        cells = [" / ".join(f"{row[f'val/{name}/{source}']:.2f}" for name in names)
                 for _, source in places for row in rows]
        lines.append([f"{setting}, base {unit}", *cells])
    head = [f"{where}: {who}" for where, _ in places for who in ("base", "on-policy", "ExGRPO")]
    return markdown(["right / valid / bare", *head], lines)
