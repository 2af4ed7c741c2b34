"""Count what a step did; docs/metrics.md says what each metric tells.

What a step does not have, such as replayed questions, has no metric but the number 0 of them.
"""

from statistics import fmean

import torch


def plan_metrics(plan: list, buffer) -> dict:
    """Return what a plan replays, from which buckets; to be asked before anything is stored."""
    replayed = {group.question.id for group in plan if group.star}
    metrics = {"replay/questions": len(replayed)}
    if replayed:
        for k, ids in buffer.buckets.items():
            metrics[f"replay/from_k={k}"] = len(replayed.intersection(ids))
    return metrics


def group_metrics(groups: list) -> dict:
    """Return the rewards of all groups, apart by fresh and replayed, and the new responses."""
    K = len(groups[0].trajectories)
    metrics = {
        "reward/pass_at_1": fmean(g.num_success for g in groups) / K,
        "reward/mean": fmean(g.rewards.mean() for g in groups),
    }
    for kind in ("fresh", "replay"):
        own = [g for g in groups if (g.star is not None) == (kind == "replay")]
        if own:
            ks = [g.num_success for g in own]
            metrics[f"{kind}/silent"] = fmean(len(set(g.rewards)) == 1 for g in own)
            for k in range(K + 1):
                metrics[f"{kind}/k={k}"] = ks.count(k)
    new = [t for g in groups for t in g.new]
    lengths = [len(t.token_ids) for t in new]
    metrics["rollout/length"] = fmean(lengths)
    metrics["rollout/tokens"] = sum(lengths)
    metrics["rollout/truncated"] = fmean(not t.finished for t in new)
    # What else the reward gave, as a mean over the responses that have it.
    for name in sorted({name for t in new for name in t.named_rewards}):
        values = [t.named_rewards[name] for t in new if name in t.named_rewards]
        metrics[f"reward/{name}"] = fmean(values)
    return metrics


def buffer_metrics(experience) -> dict:
    """Return what is stored and retired after a step, and how many questions are left."""
    buffer = experience.buffer
    metrics = {
        "buckets/questions": len(buffer),
        "buckets/retired": len(buffer.retired),
        "buckets/left": len(experience.questions) - len(buffer.retired),
    }
    for k in range(1, experience.knobs.num_rollouts + 1):
        metrics[f"buckets/k={k}"] = len(buffer.buckets.get(k, []))
    return metrics


# ---- the update: sums over tokens, which add up over micro-batches and ranks ---------------------


@torch.no_grad()
def token_sums(logprobs, old_logprobs, advantages, replayed, ratio, weight) -> dict:
    """Return sums over the tokens given; all inputs are (R,), as `loss.policy_loss` has them."""
    new = ~replayed
    drift = (logprobs.float() - old_logprobs.float()).abs()
    pull = weight * advantages.float().abs()  # how hard each token pulls on its log π_θ
    sums = {
        "new": new.sum(),
        "drift": drift[new].sum(),
        "clipped": (weight[new] == 0).sum(),  # by CLIP, or beyond the clamp of log w
        "replayed": replayed.sum(),
        "replay_ratio": ratio[replayed].sum(),
        "replay_ratio_squared": ratio[replayed].square().sum(),
        "pull": pull.sum(),
        "replay_pull": pull[replayed].sum(),
    }
    return {name: float(value) for name, value in sums.items()}


def add_up(parts: list[dict]) -> dict:
    """Return the sums of the whole from those of its parts."""
    return {name: sum(part[name] for part in parts) for name in parts[0]}


def token_means(sums: dict) -> dict:
    """Return means and shares from the sums of `token_sums`."""
    new = sums["new"]
    replayed = sums["replayed"]
    means = {"loss/clipped": sums["clipped"] / new}
    if replayed:
        means["replay/token_share"] = replayed / (new + replayed)
        means["replay/gradient_share"] = sums["replay_pull"] / (sums["pull"] or 1.0)
        means["replay/ratio"] = sums["replay_ratio"] / replayed
        # The effective sample size as a share of the n replayed tokens: (Σw*)² / (n Σw*²).
        squares = replayed * sums["replay_ratio_squared"]
        means["replay/ess"] = sums["replay_ratio"] ** 2 / squares
    return means
