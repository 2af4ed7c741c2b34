"""The objective of ExGRPO (Eq. 2-4, Sec. 4.2) as pure functions: tensors in, loss and metrics out.

A token is replayed if it belongs to an o*, and new if it was generated in this step. Its ratio is
w = π_θ / π_old where it is new and w* = π_θ / π_past where it is replayed. f(w*) = w* / (w* + β) is
the policy shaping, and A the advantage of the response. Everything is computed in float32.
Shapes: Q questions with K responses each; R response tokens, one response after another, unpadded.
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
        std = rewards.std(dim=1, keepdim=True)
        advantages = advantages / std.masked_fill(equal, 1.0)
    return advantages.masked_fill(equal, 0.0)


def shape(ratio: torch.Tensor, beta: float = 0.1) -> torch.Tensor:
    """Policy shaping f(w) = w / (w + β), for w >= 0 (Sec. 4.2).

    Against ∇ log π_θ a replayed token weighs d f / d log w = β w / (w + β)², where the plain ratio
    has w: 0.083 at w = 1, at most 1/4 (at w = β), and → 0 as w → 0 or ∞. Once the policy has moved
    and w is far above 1, the plain ratio would rule the update; f keeps it finite.
    """
    return ratio / (ratio + beta)


def policy_loss(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    replayed: torch.Tensor,
    *,
    max_length: int,
    num_responses: int,
    clip_eps: float | None = None,
    beta: float | None = 0.1,
):
    """Minus the objective of Eq. 4, -Σ_tokens / (max_length · num_responses), and `token_metrics`.

    All responses weigh the same, as in Eq. 4 where |B_exp| = ρB, so that ρ does not appear;
    max_length stands for |o|. All four inputs have one entry a token, (R,). logprobs: under π_θ.
    old_logprobs: under the policy that made the token, π_old or π_past. advantages: of the token's
    response. replayed: bool, true for the tokens of an o*.
    num_responses: those of the *global* mini-batch, so that the sum over micro-batches and ranks is
    the loss. clip_eps: ε of CLIP for new tokens, None for no clip.
    beta: β of the shaping of replayed tokens, None for the plain ratio.
    """
    advantages = advantages.float()
    log_ratio = logprobs.float() - old_logprobs.float()  # log w, log w* where replayed
    ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()

    # On-policy term: CLIP(w, A) of Eq. 3.
    plain = ratio * advantages
    on_policy = plain
    if clip_eps is not None:
        clipped_ratio = ratio.clamp(1 - clip_eps, 1 + clip_eps)
        on_policy = torch.minimum(plain, clipped_ratio * advantages)

    # Replayed term: f(w*) · A of Sec. 4.2. The clamp of log w changes f by at most 2e-8 at β = 0.1.
    shaped = ratio if beta is None else shape(ratio, beta)
    objective = torch.where(replayed, shaped * advantages, on_policy)
    loss = -objective.sum() / (max_length * num_responses)

    # The factor of a token's A ∇ log π_θ in the gradient: the slope of f where it is replayed;
    # where it is new, w, or 0 if CLIP cut it off.
    slope = ratio if beta is None else shaped * (1 - shaped)  # d f / d log w = f (1 - f)
    new_weight = ratio.masked_fill(on_policy < plain, 0)
    weight = torch.where(replayed, slope, new_weight)
    return loss, token_metrics(log_ratio, ratio, weight, advantages, replayed)


@torch.no_grad()
def token_metrics(log_ratio, ratio, weight, advantages, replayed) -> dict:
    """Sums over the tokens given, and maxima in `*_max`: tensors of one number; all inputs (R,)."""
    new = ~replayed
    w = ratio[new]
    w_star = ratio[replayed]
    pull = weight * advantages.abs()  # how hard each token pulls on its log π_θ
    return {
        # How far π_θ has moved from what made the new tokens.
        "new_tokens": new.sum(),
        "ratio": w.sum(),
        "ratio_max": ratio.masked_fill(replayed, 0).max(),  # 0 where no token is new
        "clipped": (weight[new] == 0).sum(),  # w itself is never 0
        # Before the first optimiser step, how far apart engine and policy are: 0 but for rounding.
        "drift": log_ratio[new].abs().sum(),
        "mismatch": ((w - 1).abs() > 0.1).sum(),
        # How far it has moved from what made the replayed tokens.
        "replay_tokens": replayed.sum(),
        "replay_ratio": w_star.sum(),
        "replay_ratio_squared": w_star.square().sum(),
        "replay_ratio_max": ratio.masked_fill(new, 0).max(),
        "replay_above_2": (w_star > 2).sum(),
        "replay_above_10": (w_star > 10).sum(),
        # Who rules the update: replay's part of the pull, and what a replayed token weighs.
        "pull": pull.sum(),
        "replay_pull": pull[replayed].sum(),
        "replay_weight": weight[replayed].sum(),
    }


def combine(parts: list[dict]) -> dict:
    """Metrics of the whole from those of its parts: sums, and maxima of `*_max`."""
    whole = {}
    for name in parts[0]:
        values = [part[name] for part in parts]
        whole[name] = max(values) if name.endswith("_max") else sum(values)
    return whole


def token_means(sums: dict) -> dict:
    """Means and shares from the sums of `token_metrics`; of replay only where some was."""
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
        "replay/ratio_above_2": per("replay_above_2", replayed),
        "replay/ratio_above_10": per("replay_above_10", replayed),
        "replay/weight": per("replay_weight", replayed),
        "replay/ess": ess,
    }
