"""The objective against a loop written from the formulas and closed forms (Eq. 2-4, Sec. 4.2)."""

import math

import pytest
import torch

from loss import MAX_LOG_RATIO, group_advantages, policy_loss

L_MAX, N = 50, 7  # normaliser: tokens, responses of the global mini-batch


def make_case(seed=0, n=6):
    """Random inputs of `policy_loss`: n responses of one to nine tokens, every third replayed."""
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 10, (n,), generator=g)
    old = -3 * torch.rand(int(lengths.sum()), generator=g)  # (R,)
    new = old + 0.6 * torch.randn(len(old), generator=g)
    advantages = torch.randn(n, generator=g).repeat_interleave(lengths)
    replayed = (torch.arange(n) % 3 == 1).repeat_interleave(lengths)
    return [new, old, advantages, replayed]


def run(case, **knobs):
    return policy_loss(*case, max_length=L_MAX, num_responses=N, **knobs)


def naive_loss(case, clip_eps, beta):
    """Eq. 3 and 4 in floats: -1/(L_max N) Σ over tokens of CLIP(w, A), or f(w*) A if replayed."""
    total = 0.0
    for new, old, advantage, replayed in zip(*(x.tolist() for x in case), strict=True):
        w = math.exp(new - old)
        if replayed:
            total += (w / (w + beta) if beta else w) * advantage
        elif clip_eps:
            total += min(w * advantage, max(1 - clip_eps, min(w, 1 + clip_eps)) * advantage)
        else:
            total += w * advantage
    return -total / (L_MAX * N)


@pytest.mark.parametrize("beta", [0.1, None])
@pytest.mark.parametrize("clip_eps", [0.2, None])
def test_loss_is_eq_4_token_by_token(clip_eps, beta):
    """The loss equals the loop over tokens of both kinds, with and without clip and shaping."""
    for seed in range(3):
        case = make_case(seed)
        loss, *_ = run(case, clip_eps=clip_eps, beta=beta)
        assert loss.item() == pytest.approx(naive_loss(case, clip_eps, beta), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize(
    "w, weight", [(0.1, 0.25), (1.0, 0.1 / 1.1**2), (1e-6, 1e-5), (30.0, 3.0 / 30.1**2)]
)
def test_gradient_of_a_replayed_token_in_closed_form(w, weight):
    """∂loss/∂log π is -A β w/(w+β)² / (L_max N), largest at w = β and fading to both sides."""
    new = torch.tensor([-1.0], requires_grad=True)
    old = torch.tensor([-1.0 - math.log(w)])
    loss, ratio, factor = run([new, old, torch.tensor([0.7]), torch.tensor([True])], beta=0.1)
    loss.backward()
    assert new.grad.item() == pytest.approx(-0.7 * weight / (L_MAX * N), rel=1e-4)
    assert ratio.item() == pytest.approx(w) and factor.item() == pytest.approx(weight, rel=1e-4)


def test_gradient_of_a_new_token_in_closed_form():
    """The gradient is -A w / (L_max N), and 0 where the clip binds, on the side that gains."""
    new = torch.tensor([1.1, 1.5, 0.5, 1.1, 1.5, 0.5]).log().requires_grad_()
    advantages = torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0, -1.0])
    none = torch.zeros(6, dtype=torch.bool)
    loss, *_ = run([new, torch.zeros(6), advantages, none], clip_eps=0.2)
    loss.backward()
    expected = -torch.tensor([1.1, 0.0, 0.5, -1.1, -1.5, 0.0]) / (L_MAX * N)
    assert new.grad.tolist() == pytest.approx(expected.tolist())


@pytest.mark.parametrize("beta", [0.1, 0.5, None])
def test_the_weight_is_what_autograd_finds(beta):
    """Of every token of both kinds the gradient is -weight · A / (L_max N), clipped or not."""
    new, old, advantages, replayed = make_case(n=40)
    new.requires_grad_()
    loss, ratio, weight = run([new, old, advantages, replayed], clip_eps=0.2, beta=beta)
    (grad,) = torch.autograd.grad(loss, new)
    assert (weight == 0).sum() > 5 and not (ratio.requires_grad or weight.requires_grad)
    torch.testing.assert_close(grad, -weight * advantages / (L_MAX * N), rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("clip_eps", [0.2, None])
@pytest.mark.parametrize("beta", [0.1, None])
@pytest.mark.parametrize("distance", [19.9, 20.1, 1e4])
def test_the_weight_on_both_sides_of_the_clamp(distance, beta, clip_eps):
    """It is what autograd finds where log w is just within ±20, and 0 beyond: all stays finite."""
    signs = torch.tensor([1.0, -1.0]).repeat(4)  # of log w
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0]).repeat(2)
    replayed = torch.arange(8) < 4
    new = (distance * signs).requires_grad_()
    case = [new, torch.zeros(8), advantages, replayed]
    loss, ratio, weight = run(case, clip_eps=clip_eps, beta=beta)
    assert loss.isfinite() and ratio.isfinite().all()
    (grad,) = torch.autograd.grad(loss, new)
    atol = 1e-9 if beta else 0  # of f near 1 autograd's differences are rounded
    torch.testing.assert_close(grad, -weight * advantages / (L_MAX * N), rtol=1e-4, atol=atol)
    if distance > MAX_LOG_RATIO:
        assert not weight.any()


def test_what_would_train_wrongly_in_silence():
    """(R, 1) beside (R,) broadcasts to (R, R); β = 0 has no gradient; nor has π_θ as its own π_old.

    The first two are refused, and π_old is a constant: there w = 1 and the gradient is -A.
    """
    new, old, advantages, replayed = make_case()
    for wrong in (
        [new, old[:, None], advantages, replayed],
        [new, old, advantages[:, None], replayed],
        [new, old, advantages, replayed[:-1]],
        [x[None] for x in make_case()],
    ):
        with pytest.raises(ValueError, match="four tensors of one shape"):
            run(wrong)
    for knobs in ({"beta": 0.0}, {"clip_eps": -0.2}):
        with pytest.raises(ValueError, match="must be above 0, or None"):
            run(make_case(), **knobs)
    new.requires_grad_()
    loss, *_ = run([new, new, advantages, replayed], beta=None)
    (gradient,) = torch.autograd.grad(loss, new)
    assert torch.allclose(gradient, -advantages / (L_MAX * N))


def test_half_precision_inputs_are_computed_in_float32():
    """bfloat16 and float64 inputs give the float32 loss of the same, rounded numbers."""
    new, old, advantages, replayed = make_case()
    case = [new.bfloat16(), old.bfloat16(), advantages.double(), replayed]
    loss, *_ = run(case, clip_eps=0.2)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(naive_loss(case, 0.2, 0.1), rel=1e-5)


def test_advantages_by_hand():
    """A is r - mean, with `normalize_std` over the std (K - 1), and 0 for equal rewards."""
    rewards = torch.tensor([[1.0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]])
    expected = torch.tensor([[0.75, -0.25, -0.25, -0.25], [0.0] * 4, [0.0] * 4])
    assert torch.equal(group_advantages(rewards), expected)
    expected[0] /= 0.5  # std of (1, 0, 0, 0): sqrt((0.75² + 3 · 0.25²) / 3) = 0.5
    normalized = group_advantages(rewards, normalize_std=True)
    assert torch.allclose(normalized, expected, rtol=1e-6, atol=0)
    assert group_advantages(rewards.int()).dtype == torch.float32
    equal = torch.full((1, 7), 0.1)  # their mean rounds to another number
    assert (equal != equal.mean()).all()
    for normalize_std in (False, True):
        assert not group_advantages(equal, normalize_std).any()
