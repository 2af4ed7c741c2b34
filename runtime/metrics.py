"""Count what a step did, in the metrics that need no tensors (docs/metrics.md explains each)."""

import numpy as np


def step_metrics(plan, groups: list, buffer) -> dict[str, float]:
    """Return the metrics of a step, apart from those of the update.

    They follow from its plan and groups (exgrpo.py), and from `buffer`, which is E after the step.
    """
    new = [t for g in groups for t in g.new_trajectories]
    lengths = [len(t.token_ids) for t in new]
    K = len(groups[0].trajectories)
    k = np.array([g.num_success for g in groups])
    fresh = np.array([not g.has_star for g in groups])
    named = sorted({"timeouts"}.union(*(t.named_rewards for t in new)))
    return {
        **{f"fresh/k={n}": int((k[fresh] == n).sum()) for n in range(K + 1)},
        **{f"replay/k={n}": int((k[~fresh] == n).sum()) for n in range(K + 1)},
        **{f"replay/from_k={n}": plan.drawn_from.count(n) for n in range(1, K)},
        **{
            f"reward/{name}": sum(t.named_rewards.get(name, 0.0) for t in new) / len(new)
            for name in named
        },
        "reward/pass_at_1": _mean(k) / K,
        "reward/none_right": _mean(k == 0),
        "reward/pass_at_1_fresh": _mean(k[fresh]) / K,
        "reward/mean": _mean([g.rewards for g in groups]),
        "reward/all_equal_groups": _mean([np.ptp(g.rewards) == 0 for g in groups]),
        "rollout/length": _mean(lengths),
        "rollout/tokens": sum(lengths),
        "rollout/truncated": _mean([not t.finished for t in new]),
        "replay/questions": len(plan.stars),
        "replay/age": _mean([plan.step - t.step for t in plan.stars.values()]),
        "replay/selected_score": plan.selected_score,
        "replay/candidate_score": plan.candidate_score,
        "buckets/questions": len(buffer),
        "buckets/trajectories": buffer.num_trajectories,
        "buckets/retired": len(buffer.retired),
        **{f"buckets/k={n}": len(buffer.buckets.get(n, ())) for n in range(1, K)},
    }


def _mean(values) -> float:
    """Return the mean, which is 0 where there are no values."""
    return float(np.mean(values)) if len(values) else 0.0
