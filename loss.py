"""The objective of ExGRPO (Eq. 2-4, Sec. 4.2) as pure functions: tensors in, tensors out.

A token is replayed if it belongs to an o*, and new if it was generated in this step. Its ratio is
w = π_θ / π_old where it is new and w* = π_θ / π_past where it is replayed. f(w*) = w* / (w* + β) is
the policy shaping, and A the advantage of the response. Everything is computed in float32.
Shapes: Q questions with K responses each; R response tokens, one response after another, unpadded.
"""

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0  # log w is clamped to ±this before it is exponentiated


def group_advantages(rewards: Tensor, normalize_std: bool = False) -> Tensor:
    """A_i = r_i - mean of the group (Eq. 2 without the division, as Dr. GRPO).

    rewards: (Q, K) -> (Q, K) float32. With `normalize_std` the group's standard deviation divides
    (GRPO). Where all rewards of a group are equal, but for rounding, its advantages are exactly 0.
    """
    rewards = rewards.float()
    advantages = rewards - rewards.mean(dim=1, keepdim=True)  # (Q, K)
    if normalize_std:
        advantages = advantages / rewards.std(dim=1, keepdim=True)  # 0 / 0 where all are equal
    equal = torch.isclose(rewards, rewards[:, :1]).all(dim=1, keepdim=True)  # (Q, 1)
    return advantages.masked_fill(equal, 0.0)


def shape(ratio: Tensor, beta: float = 0.1) -> Tensor:
    """Policy shaping f(w) = w / (w + β), for w >= 0 (Sec. 4.2).

    A token's gradient is its weight times A ∇ log π_θ. Unshaped, the weight is w itself; shaped, it
    is w f'(w) = β w / (w + β)², which is 0.083 at w = 1 and at most 1/4, at w = β. Where the policy
    has moved so that w is far above 1, the plain ratio would rule the update; the shaped weight
    goes to 0.
    """
    return ratio / (ratio + beta)


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    replayed: Tensor,
    *,
    max_length: int,
    num_responses: int,
    clip_eps: float | None = None,
    beta: float | None = 0.1,
) -> tuple[Tensor, Tensor, Tensor]:
    """Minus the objective of Eq. 4; and, for metrics, each token's ratio and weight, (R,) each.

    The loss is minus the sum of all tokens' terms, divided by max_length · num_responses. The
    constant max_length replaces |o| of Eq. 3, as in Dr. GRPO, so that every token counts alike.
    ρ does not appear here: Eq. 4 weighs the mean over the replayed groups by ρ and the mean over
    the others by 1 - ρ, and where ρB of B groups are replayed, that is the mean over all.
    All four inputs have one entry per token, (R,), and R may be 0. logprobs: under π_θ, at the
    temperature of sampling. old_logprobs: the same under the policy that made the token, π_old or
    π_past. advantages: of the token's response. replayed: bool, true for the tokens of an o*.
    num_responses: of the *global* mini-batch, so that losses add up over micro-batches and ranks.
    Where ranks average their gradients, multiply the loss by the world size.
    clip_eps: ε of CLIP for new tokens, None for no clip. beta: β of the shaping of replayed tokens,
    None for the plain ratio.
    ratio: w, or w* of a replayed token. weight: the factor of A ∇ log π_θ in the token's gradient,
    without 1 / (max_length · num_responses).
    """
    shapes = [tuple(x.shape) for x in (logprobs, old_logprobs, advantages, replayed)]
    if logprobs.ndim != 1 or len(set(shapes)) > 1:
        raise ValueError(f"policy_loss takes four tensors of one shape (R,), got {shapes}")
    for constant in (clip_eps, beta):
        if constant is not None and not constant > 0:
            raise ValueError(f"clip_eps and beta must be above 0, or None, got {constant}")
    advantages = advantages.float()
    old_logprobs = old_logprobs.float().detach()
    log_ratio = logprobs.float() - old_logprobs  # log w, and log w* where replayed
    clamped = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = clamped.exp()

    # The term of a new token: CLIP(w, A) of Eq. 3.
    plain = ratio * advantages
    new_term = plain
    if clip_eps is not None:
        clipped_ratio = ratio.clamp(1 - clip_eps, 1 + clip_eps)
        new_term = torch.minimum(plain, clipped_ratio * advantages)

    # The term of a replayed token: f(w*) · A of Sec. 4.2.
    shaped = ratio
    weight_of_replayed = ratio
    if beta is not None:
        shaped = shape(ratio, beta)
        weight_of_replayed = shaped * (1 - shaped)  # w f'(w), which is f (1 - f) for this `shape`
    objective = torch.where(replayed, shaped * advantages, new_term)
    loss = -objective.sum() / (max_length * num_responses)

    # The weight of a new token: w, or 0 where it is clipped, which makes its term a constant.
    weight_of_new = ratio.masked_fill(new_term < plain, 0)
    weight = torch.where(replayed, weight_of_replayed, weight_of_new)
    # Where log w is clamped, no gradient flows.
    weight = weight.masked_fill(log_ratio != clamped, 0)
    return loss, ratio.detach(), weight.detach()
