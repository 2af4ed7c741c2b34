"""Count what a step and its update did (docs/metrics.md explains each metric)."""

import numpy as np
import torch

# What o* is chosen by, where `trajectory_selection` itself does not say it.
SCORES = {"highest_entropy": "entropy", "official": "entropy_sum"}


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
    metrics = {
        **{f"fresh/k={n}": int((k[fresh] == n).sum()) for n in range(K + 1)},
        "fresh/silent": _mean(silent[fresh]),
        **_named_means(new),
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
        **{f"buckets/k={n}": len(buffer.buckets.get(n, ())) for n in range(1, K + 1)},
    }
    if not plan.stars:  # what was not replayed has no mean, and no count but that
        return metrics
    drawn_from = [choice.bucket for choice in plan.choices]
    metrics |= {
        **{f"replay/k={n}": int((k[~fresh] == n).sum()) for n in range(K + 1)},
        "replay/silent": _mean(silent[~fresh]),
        **{f"replay/from_k={n}": drawn_from.count(n) for n in range(1, K + 1)},
        "replay/age": _mean([plan.step - t.step for t in plan.stars.values()]),
    }
    compared = [choice for choice in plan.choices if choice.scores]
    if compared:
        rule = experience.knobs.trajectory_selection
        score = SCORES.get(rule, rule)
        metrics[f"replay/{score}_chosen"] = _mean([c.scores[c.place] for c in compared])
        metrics[f"replay/{score}_candidates"] = _mean([s for c in compared for s in c.scores])
    return metrics


def _named_means(new: list) -> dict[str, float]:
    """Return the mean of each further reward over the responses that have it, and their number.

    Beside them stands the share of all responses whose grading ran out of time.
    """
    found = {}
    for t in new:
        for name, value in t.named_rewards.items():
            found.setdefault(name, []).append(value)
    late = found.pop("timeouts", [])
    metrics = {"reward/timeouts": len(late) / len(new)}
    for name, values in sorted(found.items()):
        metrics[f"reward/{name}"] = _mean(values)
        metrics[f"reward/{name}/count"] = len(values)
    return metrics


# ---- the update: sums over tokens, which add up over micro-batches and ranks ---------------------


@torch.no_grad()
def token_sums(logprobs, old_logprobs, advantages, replayed, ratio, weight) -> dict[str, float]:
    """Return sums over the tokens given, and maxima in `*_max`; all inputs are (R,).

    What `loss.policy_loss` is given and what it gives. R is at least 1.
    """
    new = ~replayed
    drift = (logprobs.float() - old_logprobs.float())[new]
    w = ratio[new]
    w_star = ratio[replayed]
    pull = weight * advantages.float().abs()  # how hard each token pulls on its log π_θ
    sums = {
        # How far π_θ has moved from what made the new tokens.
        "new_tokens": new.sum(),
        "ratio": w.sum(),
        "ratio_max": ratio.masked_fill(replayed, 0).max(),  # 0 where no token is new
        "clipped": (weight[new] == 0).sum(),  # by CLIP, or beyond the clamp of log w
        # Before the first optimiser step, how far apart engine and policy are: 0 but for rounding.
        "drift": drift.abs().sum(),
        "mismatch": ((w - 1).abs() > 0.1).sum(),
        # How far it has moved from what made the replayed tokens.
        "replay_tokens": replayed.sum(),
        "replay_ratio": w_star.sum(),
        "replay_ratio_squared": w_star.square().sum(),
        "replay_ratio_max": ratio.masked_fill(new, 0).max(),
        # Who rules the update: replay's part of the pull, and what a replayed token weighs.
        "pull": pull.sum(),
        "replay_pull": pull[replayed].sum(),
        "replay_weight": weight[replayed].sum(),
    }
    return {name: float(value) for name, value in sums.items()}


def combine(parts: list[dict]) -> dict:
    """Return the sums of the whole from those of its parts, and the maxima of `*_max`."""
    whole = {}
    for name in parts[0]:
        values = [part[name] for part in parts]
        whole[name] = max(values) if name.endswith("_max") else sum(values)
    return whole


def engine_gap(sums: dict) -> dict[str, float]:
    """Return how far apart engine and policy are, from the sums before the first optimiser step."""
    tokens = max(sums["new_tokens"], 1)
    return {"drift": sums["drift"] / tokens, "mismatch": sums["mismatch"] / tokens}


def token_means(sums: dict) -> dict:
    """Return means and shares from the sums of `token_sums`; of replay only where some was."""
    new = sums["new_tokens"]
    replayed = sums["replay_tokens"]

    def per(name, whole):
        return sums[name] / whole if whole else 0.0

    means = {
        "loss/ratio": per("ratio", new),
        "loss/ratio_max": sums["ratio_max"],
        "loss/clipped": per("clipped", new),
    }
    if not replayed:
        return means
    # The effective sample size as a share of the n replayed tokens: Σw*/n · Σw*/Σw*².
    ess = per("replay_ratio", replayed) * per("replay_ratio", sums["replay_ratio_squared"])
    return means | {
        "replay/token_share": per("replay_tokens", new + replayed),
        "replay/gradient_share": per("replay_pull", sums["pull"]),
        "replay/ratio": per("replay_ratio", replayed),
        "replay/ratio_max": sums["replay_ratio_max"],
        "replay/weight": per("replay_weight", replayed),
        "replay/ess": ess,
    }


def _mean(values) -> float:
    """Return the mean, which is 0 where there are no values."""
    return float(np.mean(values)) if len(values) else 0.0
