"""Count what a step did; docs/metrics.md says what each metric tells.

A mean or a share is absent where a step has nothing to count.
"""

from collections import Counter, defaultdict
from statistics import fmean

import torch


def plan_metrics(plan: list, latest_k: dict) -> dict:
    """Return how many questions return from each bucket; asked before anything is stored."""
    buckets = Counter(latest_k[group.question.id] for group in plan if group.star)
    return {f"replay/from_k={k}": number for k, number in buckets.items()}


def group_metrics(groups: list) -> dict:
    """Return metrics of the groups, fresh and replayed ones apart, and of their responses."""
    counts = Counter()
    values = defaultdict(list)  # of each metric that is a mean
    for group in groups:
        kind = "replay" if group.star else "fresh"
        counts["replay/questions"] += kind == "replay"
        values[f"{kind}/silent"].append(len(set(group.rewards)) == 1)
        for k in range(len(group.trajectories) + 1):
            counts[f"{kind}/k={k}"] += group.num_success == k
        for t in group.trajectories:
            values["reward/pass_at_1"].append(t.is_success)
            values["reward/mean"].append(t.reward)
        for t in group.new:
            counts["rollout/tokens"] += len(t.token_ids)
            values["rollout/length"].append(len(t.token_ids))
            values["rollout/truncated"].append(not t.finished)
            # The reward's other values, each a mean over the responses that have it.
            for name, value in t.named_rewards.items():
                values[f"reward/{name}"].append(value)
    means = {name: fmean(of) for name, of in values.items()}
    return {**means, **counts}


def buffer_metrics(experience) -> dict:
    """Return how many questions are stored, in which buckets, and retired after a step."""
    buffer = experience.buffer
    metrics = {"buckets/questions": len(buffer), "buckets/retired": len(buffer.retired)}
    for k in range(1, experience.knobs.num_rollouts + 1):
        metrics[f"buckets/k={k}"] = len(buffer.buckets.get(k, []))
    return metrics


# ---- the update: sums over tokens, which add up over micro-batches and ranks ---------------------


@torch.no_grad()
def token_sums(logprobs, old_logprobs, advantages, replayed, ratio, weight) -> dict:
    """Return sums over the tokens given; all inputs are (R,), as `loss.policy_loss` has them."""
    new = ~replayed
    drift = (logprobs - old_logprobs).abs()
    pull = weight * advantages.float().abs()  # how hard each token pulls on its log π_θ
    sums = {
        "new": new.sum(),
        "drift": drift[new].sum(),
        "clipped": (weight[new] == 0).sum(),  # without gradient: by CLIP, or by the clamp of log w
        "replayed": replayed.sum(),
        "replay_ratio": ratio[replayed].sum(),
        "pull": pull.sum(),
        "replay_pull": pull[replayed].sum(),
    }
    return {name: float(value) for name, value in sums.items()}


def add_up(parts: list[dict]) -> dict:
    """Return the sums of the whole from those of its parts."""
    return {name: sum(part[name] for part in parts) for name in parts[0]}


def token_means(sums: dict) -> dict:
    """Return means and shares from the sums of `token_sums`."""
    replayed = sums["replayed"]
    means = {"loss/clipped": sums["clipped"] / sums["new"]}
    if replayed:
        means["replay/gradient_share"] = sums["replay_pull"] / (sums["pull"] or 1.0)
        means["replay/ratio"] = sums["replay_ratio"] / replayed
    return means
