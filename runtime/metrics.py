"""Count what a step did, in the metrics that need no tensors (docs/metrics.md explains each)."""

import numpy as np

# What o* is chosen by, under each value of `trajectory_selection`.
SCORES = {
    "entropy": "entropy",
    "highest_entropy": "entropy",
    "nll": "nll",
    "official": "entropy_sum",
}


def step_metrics(plan, groups: list, experience) -> dict[str, float]:
    """Return the metrics of a step, apart from those of the update.

    They follow from its plan and groups, and from the experience after the step (exgrpo.py).
    """
    buffer = experience.buffer
    new = [t for g in groups for t in g.new]
    lengths = [len(t.token_ids) for t in new]
    K = len(groups[0].trajectories)
    k = np.array([g.num_success for g in groups])
    silent = np.array([np.ptp(g.rewards) == 0 for g in groups])
    fresh = np.array([g.star is None for g in groups])
    named = sorted({"timeouts"}.union(*(t.named_rewards for t in new)))
    metrics = {
        **{f"fresh/k={n}": int((k[fresh] == n).sum()) for n in range(K + 1)},
        "fresh/silent": _mean(silent[fresh]),
        **{
            f"reward/{name}": sum(t.named_rewards.get(name, 0.0) for t in new) / len(new)
            for name in named
        },
        "reward/pass_at_1": _mean(k) / K,
        "reward/none_right": _mean(k == 0),
        "reward/pass_at_1_fresh": _mean(k[fresh]) / K,
        "reward/mean": _mean([g.rewards for g in groups]),
        "rollout/length": _mean(lengths),
        "rollout/tokens": sum(lengths),
        "rollout/truncated": _mean([not t.finished for t in new]),
        "replay/questions": len(plan.stars),
        "buckets/questions": len(buffer),
        "buckets/trajectories": buffer.num_trajectories,
        "buckets/retired": len(buffer.retired),
        "buckets/left": len(experience.questions) - len(buffer.retired),
        **{f"buckets/k={n}": len(buffer.buckets.get(n, ())) for n in range(1, K)},
    }
    if not plan.stars:  # what was not replayed has no mean, and no count but that
        return metrics
    metrics |= {
        **{f"replay/k={n}": int((k[~fresh] == n).sum()) for n in range(K + 1)},
        "replay/silent": _mean(silent[~fresh]),
        **{f"replay/from_k={n}": plan.drawn_from.count(n) for n in range(1, K)},
        "replay/age": _mean([plan.step - t.step for t in plan.stars.values()]),
    }
    if plan.scores:
        score = SCORES[experience.knobs.trajectory_selection]
        chosen = [plan.scores[t] for t in plan.stars.values() if t in plan.scores]
        metrics[f"replay/{score}_chosen"] = _mean(chosen)
        metrics[f"replay/{score}_candidates"] = _mean([*plan.scores.values()])
    return metrics


def _mean(values) -> float:
    """Return the mean, which is 0 where there are no values."""
    return float(np.mean(values)) if len(values) else 0.0
