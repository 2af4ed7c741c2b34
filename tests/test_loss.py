"""The objective equals a loop written from its formulas, and the official code's numbers."""

import math

import pytest
import torch

from loss import MAX_LOG_RATIO, group_advantages, policy_loss

L_MAX, N = 50, 7  # the normaliser: tokens, and responses of the global mini-batch


def make_case():
    """Random inputs of `policy_loss`: 60 tokens, a third of them replayed."""
    g = torch.Generator().manual_seed(0)
    old = -3 * torch.rand(60, generator=g)
    new = old + 0.6 * torch.randn(60, generator=g)
    advantages = torch.randn(60, generator=g)
    replayed = torch.arange(60) % 3 == 1
    return new.requires_grad_(), old, advantages, replayed


def run(*case, **knobs):
    """The loss, each token's weight, and each token's gradient by autograd."""
    loss, _, weight = policy_loss(*case, max_length=L_MAX, num_responses=N, **knobs)
    (gradient,) = torch.autograd.grad(loss, case[0])
    return loss, weight, gradient


def naive_loss(case, clip_eps, beta):
    """Eq. 3 and 4 in floats: -1/(L_max N) Σ over tokens of CLIP(w, A), or of f(w*) A."""
    total = 0.0
    for new, old, advantage, replayed in zip(*(x.tolist() for x in case)):
        w = math.exp(new - old)
        term = w * advantage
        if replayed and beta:
            term = w / (w + beta) * advantage
        if not replayed and clip_eps:
            clipped = max(1 - clip_eps, min(w, 1 + clip_eps))
            term = min(term, clipped * advantage)
        total += term
    return -total / (L_MAX * N)


@pytest.mark.parametrize("beta", [0.1, 0.5, None])
@pytest.mark.parametrize("clip_eps", [0.2, None])
def test_loss_and_gradient_token_by_token(clip_eps, beta):
    """The loss is the loop's, and autograd finds -weight · A / (L_max N) at every token."""
    case = make_case()
    loss, weight, gradient = run(*case, clip_eps=clip_eps, beta=beta)
    assert loss.item() == pytest.approx(naive_loss(case, clip_eps, beta), rel=1e-5)
    torch.testing.assert_close(gradient, -weight * case[2] / (L_MAX * N), rtol=1e-4, atol=1e-9)


def test_the_official_codes_numbers():
    """Two replayed tokens and a new one: `compute_token_on_off_policy_loss` gives these numbers.

    Source: ExGRPO/exgrpo/verl/verl/mix_src/mix_core_alg.py of github.com/ElliottYan/LUFFY (commit
    01f4ae0), run in float64 on these three tokens and one of padding, with the run script's
    off_policy_reshape="p_div_p_0.1", loss_remove_clip and loss_remove_token_mean, and then with
    its "no_reshape". The replayed tokens have w* = 0.1 and 1, where the shaped weight is 1/4, the
    most there is, and 0.083: the gradient is -weight · A / 4. ε = 0.2 would clip the new token.
    """
    new = torch.tensor([-2.50258509, -1.2, -0.9], requires_grad=True)
    old = torch.tensor([-0.2, -1.2, -0.2])
    advantages = torch.tensor([0.625, 0.625, -0.375])
    replayed = torch.tensor([True, True, False])
    official = {
        0.1: [-0.17361558, -0.0390625, -0.01291322, 0.04655487],
        None: [-0.12532013, -0.015625, -0.15625, 0.04655487],
    }
    for beta, expected in official.items():
        case = new, old, advantages, replayed
        loss, _, _ = policy_loss(*case, max_length=4, num_responses=1, beta=beta)
        (gradient,) = torch.autograd.grad(loss, new)
        assert [loss.item(), *gradient.tolist()] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("beta", [0.1, None])
@pytest.mark.parametrize("distance", [19.9, 20.1, 1e4])
def test_weights_on_both_sides_of_the_clamp(distance, beta):
    """A log w just within ±20 has autograd's gradient, one beyond it none, and all is finite."""
    log_ratio = distance * torch.tensor([1.0, -1.0, 1.0, -1.0])
    case = log_ratio.requires_grad_(), torch.zeros(4), torch.ones(4), log_ratio > 0
    loss, weight, gradient = run(*case, beta=beta)
    assert loss.isfinite()
    torch.testing.assert_close(gradient, -weight / (L_MAX * N), rtol=1e-4, atol=1e-9)
    assert weight.any() == (distance < MAX_LOG_RATIO)


def test_what_would_train_wrongly_in_silence():
    """Shapes that broadcast, and β or ε of 0, are refused; π_old never gets a gradient."""
    new, old, advantages, replayed = make_case()
    for wrong in (old[:, None], old[:1]):
        with pytest.raises(ValueError, match="four tensors of one shape"):
            run(new, wrong, advantages, replayed)
    for knobs in ({"beta": 0.0}, {"clip_eps": 0.0}):
        with pytest.raises(ValueError, match="must be above 0, or None"):
            run(new, old, advantages, replayed, **knobs)
    _, _, gradient = run(new, new, advantages, replayed, beta=None)
    torch.testing.assert_close(gradient, -advantages / (L_MAX * N))


def test_advantages_by_hand():
    """A is r - mean, divided by the std (over K - 1) where asked; equal rewards give exactly 0."""
    rewards = torch.zeros(3, 4)
    rewards[0, 0] = 1.0
    rewards[1] = 1.0
    by_hand = torch.zeros(3, 4)
    by_hand[0] = torch.tensor([0.75, -0.25, -0.25, -0.25])
    assert group_advantages(rewards).equal(by_hand)
    std = 0.5  # sqrt((0.75² + 3 · 0.25²) / 3)
    assert group_advantages(rewards, normalize_std=True).equal(by_hand / std)
    tenths = torch.full((1, 7), 0.1)  # their mean rounds to another number
    assert not group_advantages(tenths).any()
    tenths[0, 0] = 0.10000001  # a rounding apart
    assert not group_advantages(tenths, normalize_std=True).any()
