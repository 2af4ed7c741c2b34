"""The objective against a loop written from the formulas and closed forms (Eq. 2-4, Sec. 4.2)."""

import math

import pytest
import torch

from loss import combine, group_advantages, policy_loss, shape, token_means

L_MAX, N = 50, 7  # normaliser: tokens, responses of the global mini-batch


def make_case(seed=0, n=6, t=9, spread=0.6):
    """Random inputs of `policy_loss`: n responses of one to t tokens, every third replayed."""
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, t + 1, (n,), generator=g)
    old = -3 * torch.rand(int(lengths.sum()), generator=g)  # (R,)
    new = old + spread * torch.randn(len(old), generator=g)
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
        loss, _ = run(case, clip_eps=clip_eps, beta=beta)
        assert loss.item() == pytest.approx(naive_loss(case, clip_eps, beta), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize(
    "w, weight", [(0.1, 0.25), (1.0, 0.1 / 1.1**2), (1e-6, 1e-5), (30.0, 3.0 / 30.1**2)]
)
def test_gradient_of_a_replayed_token_in_closed_form(w, weight):
    """∂loss/∂log π is -A β w/(w+β)² / (L_max N), largest at w = β and fading to both sides."""
    new = torch.tensor([-1.0], requires_grad=True)
    old = torch.tensor([-1.0 - math.log(w)])
    loss, metrics = run([new, old, torch.tensor([0.7]), torch.tensor([True])], beta=0.1)
    loss.backward()
    assert loss.item() == pytest.approx(
        -0.7 * shape(torch.tensor(w)).item() / (L_MAX * N), rel=1e-5
    )
    assert new.grad.item() == pytest.approx(-0.7 * weight / (L_MAX * N), rel=1e-4)
    assert metrics["replay_pull"].item() == pytest.approx(0.7 * weight, rel=1e-4)


def test_gradient_of_a_fresh_token_in_closed_form():
    """The gradient is -A w / (L_max N), and 0 where the clip binds, on the side that gains."""
    new = torch.tensor([1.1, 1.5, 0.5, 1.1, 1.5, 0.5]).log().requires_grad_()
    advantages = torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0, -1.0])
    fresh = torch.zeros(6, dtype=torch.bool)
    loss, metrics = run([new, torch.zeros(6), advantages, fresh], clip_eps=0.2)
    loss.backward()
    expected = -torch.tensor([1.1, 0.0, 0.5, -1.1, -1.5, 0.0]) / (L_MAX * N)
    assert new.grad.tolist() == pytest.approx(expected.tolist())
    assert metrics["clipped"] == 2 and metrics["pull"].item() == pytest.approx(
        1.1 + 0.5 + 1.1 + 1.5
    )


@pytest.mark.parametrize("beta", [0.1, None])
@pytest.mark.parametrize("log_ratio", [1e4, -1e4, 200.0, -200.0])
def test_huge_ratios_stay_finite(log_ratio, beta):
    """Log-ratios beyond exp's range give finite losses, gradients and metrics."""
    new = torch.full((4,), log_ratio, requires_grad=True)
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0])
    replayed = torch.tensor([True, True, False, False])
    loss, metrics = run([new, torch.zeros(4), advantages, replayed], beta=beta)
    loss.backward()
    assert loss.isfinite() and new.grad.isfinite().all()
    assert all(value.isfinite() for value in metrics.values())
    if beta:  # f(∞) = 1, f(0) = 0: a token that far off no longer pulls
        assert new.grad[:2].abs().max() == 0


def test_micro_batches_add_up():
    """With the normaliser of the whole, losses, gradients and sums of the parts add up to it."""
    case = make_case(n=8)
    whole = case[0].clone().requires_grad_()
    loss, metrics = run([whole, *case[1:]], clip_eps=0.2)
    loss.backward()
    parts, total, sums = case[0].clone().requires_grad_(), 0.0, []
    for some in (slice(0, 1), slice(1, 20), slice(20, None)):
        part, m = run([parts[some], *(x[some] for x in case[1:])], clip_eps=0.2)
        part.backward()
        total += part.item()
        sums.append({k: v.item() for k, v in m.items()})
    assert total == pytest.approx(loss.item(), rel=1e-5)
    assert torch.allclose(parts.grad, whole.grad, rtol=1e-6, atol=0)
    assert combine(sums) == pytest.approx({k: v.item() for k, v in metrics.items()}, rel=1e-5)


def test_half_precision_inputs_are_computed_in_float32():
    """bfloat16 and float64 inputs give the float32 loss of the same, rounded numbers."""
    new, old, advantages, replayed = make_case()
    case = [new.bfloat16(), old.bfloat16(), advantages.double(), replayed]
    loss, _ = run(case, clip_eps=0.2)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(naive_loss(case, 0.2, 0.1), rel=1e-5)


def test_metrics_by_hand():
    """Sums, counts, maxima and means of a new and a replayed response are those by hand."""
    w = torch.tensor([2.0, 1.0, 0.1, 3.0, 12.0])
    advantages = torch.tensor([2.0, 2.0, -1.0, -1.0, -1.0])
    replayed = torch.tensor([False, False, True, True, True])
    _, m = run([w.log(), torch.zeros(5), advantages, replayed], clip_eps=0.2)
    # It is Σ β w / (w + β)² over the replayed tokens, whose |A| is 1.
    pull = 0.1 * (0.1 / 0.2**2 + 3 / 3.1**2 + 12 / 12.1**2)
    expected = dict(
        new_tokens=2, ratio=3.0, ratio_max=2.0, clipped=1, pull=2.0 + pull, replay_tokens=3
    )
    expected |= dict(
        replay_ratio=15.1, replay_ratio_squared=153.01, replay_ratio_max=12, replay_pull=pull
    )
    expected |= dict(
        drift=math.log(2), mismatch=1, replay_weight=pull, replay_above_2=2, replay_above_10=1
    )
    assert {k: v.item() for k, v in m.items()} == pytest.approx(expected, rel=1e-5)
    means = {
        "loss/ratio": 1.5,
        "loss/ratio_max": 2.0,
        "loss/clipped": 0.5,
        "replay/token_share": 0.6,
        "replay/gradient_share": pull / (2 + pull),
        "replay/ratio": 15.1 / 3,
        "replay/ratio_max": 12,
        "replay/ess": 15.1**2 / (153.01 * 3),
        "replay/weight": pull / 3,
        "replay/ratio_above_2": 2 / 3,
        "replay/ratio_above_10": 1 / 3,
    }
    assert token_means({k: v.item() for k, v in m.items()}) == pytest.approx(means, rel=1e-5)


def test_metrics_of_one_kind_only():
    """Without replayed or new responses that kind's sums and maxima are 0."""
    case = make_case()
    fresh_only = run([*case[:3], torch.zeros_like(case[3])])[1]
    replayed_only = run([*case[:3], torch.ones_like(case[3])])[1]
    assert fresh_only["replay_ratio_max"] == replayed_only["ratio_max"] == 0
    assert token_means({k: v.item() for k, v in replayed_only.items()})["loss/ratio"] == 0


def test_advantages_by_hand():
    """A is r - mean, with `normalize_std` over the std (K - 1), and 0 for equal rewards."""
    rewards = torch.tensor([[1.0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]])
    expected = torch.tensor([[0.75, -0.25, -0.25, -0.25], [0.0] * 4, [0.0] * 4])
    assert torch.equal(group_advantages(rewards), expected)
    expected[0] /= 0.5  # std of (1, 0, 0, 0): sqrt((0.75² + 3 · 0.25²) / 3) = 0.5
    assert torch.allclose(
        group_advantages(rewards, normalize_std=True), expected, rtol=1e-6, atol=0
    )
    assert group_advantages(rewards.int()).dtype == torch.float32
    equal = torch.full((1, 7), 0.1)  # their mean rounds to another number
    assert (equal != equal.mean()).all()
    assert (
        not group_advantages(equal).any() and not group_advantages(equal, normalize_std=True).any()
    )
