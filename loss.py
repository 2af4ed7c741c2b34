"""The objective of ExGRPO (Eq. 2-4, Sec. 4.2) as pure functions: tensors in, loss and metrics out.

Symbols, per token: w = π_θ / π_old where fresh, w* = π_θ / π_past where replayed, f(w*) = w* / (w*
+ β) the policy shaping; A is the advantage of a response. Everything is computed in float32.
Shapes: Q questions, K responses each, N responses of up to T tokens.
"""

import torch

MAX_LOG_RATIO = 20.0  # log w is clamped to ±this before it is exponentiated


def group_advantages(rewards: torch.Tensor, normalize_std: bool = False) -> torch.Tensor:
    """A_i = r_i - mean of the group (Eq. 2 without the division, as Dr. GRPO).

    rewards: (Q, K) -> (Q, K) float32. With `normalize_std` the group's standard deviation divides
    (GRPO); a group whose rewards are all equal has advantage 0 either way.
    """
    rewards = rewards.float()
    advantages = rewards - rewards.mean(dim=1, keepdim=True)  # (Q, K)
    equal = (rewards == rewards[:, :1]).all(dim=1, keepdim=True)  # (Q, 1)
    if normalize_std:
        advantages = advantages / rewards.std(dim=1, keepdim=True).masked_fill(equal, 1.0)
    return advantages.masked_fill(equal, 0.0)


def shape(ratio: torch.Tensor, beta: float = 0.1) -> torch.Tensor:
    """Policy shaping f(w) = w / (w + β), for w >= 0 (Sec. 4.2).

    Against ∇ log π_θ a replayed token weighs d f / d log w = β w / (w + β)², where the plain ratio
    has w: 0.083 of a fresh one at w = 1, at most 1/4 (at w = β), and → 0 as w → 0 or ∞. Until the
    policy has moved, replay is thus about 1% of the policy term, whichever response it is; where it
    has, w far above 1, the plain ratio would rule the update, and f keeps it finite.
    """
    return ratio / (ratio + beta)


def policy_loss(
    logprobs,
    old_logprobs,
    advantages,
    response_mask,
    replay_mask,
    *,
    max_length: int,
    num_responses: int,
    clip_eps: float | None = None,
    beta: float | None = 0.1,
):
    """Minus the objective of Eq. 4 over the responses given: -Σ_tokens / (max_length ·
    num_responses).

    logprobs, old_logprobs: (N, T) under π_θ and under the policy that made the tokens (π_old or
    π_past). advantages, replay_mask: (N,); replay_mask marks the o*. response_mask: (N, T) bool;
    positions outside it may hold inf or nan, they change nothing and receive a gradient of exactly
    0.
    num_responses: those of the *global* mini-batch, so that the sum over micro-batches and ranks is
    the loss. clip_eps: ε of CLIP for on-policy tokens, None for no clip.
    beta: β of the shaping of replayed tokens, None for the plain ratio.

    Returns (loss, metrics); metrics are tensors of one number, sums over the tokens given, `*_max`
    maxima.
    """
    mask, replay = (
        response_mask.bool(),
        replay_mask.bool()[:, None] & response_mask.bool(),
    )  # (N, T)
    fresh = mask & ~replay
    advantage = advantages.float()[:, None]  # (N, 1)
    # masked before any arithmetic: the gradient of `where` is exactly 0 at poisoned positions
    new = torch.where(mask, logprobs.float(), 0)
    old = torch.where(mask, old_logprobs.float(), 0)
    log_ratio = new - old  # (N, T)
    ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()

    # on-policy term: CLIP(w, A) of Eq. 3
    on_policy, clipped = ratio * advantage, torch.zeros_like(mask)
    if clip_eps is not None:
        bounded = ratio.clamp(1 - clip_eps, 1 + clip_eps) * advantage
        clipped = fresh & (bounded < on_policy)
        on_policy = torch.minimum(on_policy, bounded)

    # replayed term: f(w*) · A of Sec. 4.2; beyond the clamp of log w, f is flat, 1 or 0 to 2e-8 at
    # β = 0.1
    shaped = ratio if beta is None else shape(ratio, beta)
    objective = torch.where(replay, shaped * advantage, on_policy)
    loss = -torch.where(mask, objective, 0).sum() / (max_length * num_responses)

    with torch.no_grad():
        slope = ratio if beta is None else shaped * (1 - shaped)  # d f / d log w = f (1 - f)
        pull = (
            torch.where(replay, slope, ratio.masked_fill(clipped, 0)) * advantage.abs()
        )  # on ∇ log π_θ
        metrics = {
            "tokens": fresh.sum(),
            "ratio": ratio[fresh].sum(),
            "drift": log_ratio[fresh].abs().sum(),
            "mismatch": ((ratio[fresh] - 1).abs() > 0.1).sum(),
            "ratio_max": ratio[fresh].max() if fresh.any() else ratio.new_zeros(()),
            "clipped": clipped.sum(),
            "pull": pull[mask].sum(),
            "replay_tokens": replay.sum(),
            "replay_ratio": ratio[replay].sum(),
            "replay_ratio_squared": ratio[replay].square().sum(),
            "replay_ratio_max": ratio[replay].max() if replay.any() else ratio.new_zeros(()),
            "replay_above_2": (ratio[replay] > 2).sum(),
            "replay_above_10": (ratio[replay] > 10).sum(),
            "replay_slope": slope[replay].sum(),
            "replay_pull": pull[replay].sum(),
        }
    return loss, metrics


def combine(parts: list[dict[str, float]]) -> dict[str, float]:
    """Metrics of several parts as those of the whole: sums, and maxima of `*_max`."""
    return {
        name: (max if name.endswith("_max") else sum)(p[name] for p in parts) for name in parts[0]
    }


def token_means(sums: dict[str, float]) -> dict[str, float]:
    """Means and shares over tokens from the sums of `policy_loss`; 0 where there are no such
    tokens.
    """
    tokens, replayed = sums["tokens"], sums["replay_tokens"]

    def per(total, count):
        return total / count if count else 0.0

    return {
        "loss/ratio": per(sums["ratio"], tokens),
        "loss/ratio_max": sums["ratio_max"],
        "loss/clipped": per(sums["clipped"], tokens),
        "replay/token_share": per(replayed, tokens + replayed),
        "replay/gradient_share": per(sums["replay_pull"], sums["pull"]),
        "replay/ratio": per(sums["replay_ratio"], replayed),
        "replay/ratio_max": sums["replay_ratio_max"],
        "replay/ratio_above_2": per(sums["replay_above_2"], replayed),
        "replay/ratio_above_10": per(sums["replay_above_10"], replayed),
        "replay/weight": per(sums["replay_slope"], replayed),
        "replay/ess": per(sums["replay_ratio"] ** 2, sums["replay_ratio_squared"] * replayed),
    }
