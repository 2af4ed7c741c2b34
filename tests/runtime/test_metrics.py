"""The metrics of the update: sums over tokens, and means by hand."""

import math

import pytest
import torch
from test_loss import make_case, run

from runtime.metrics import token_means, token_sums


def sums_of(case) -> dict[str, float]:
    """What an update adds up of these inputs of `policy_loss`."""
    _, ratio, weight = run(case, clip_eps=0.2)
    return token_sums(*case, ratio, weight)


def test_metrics_by_hand():
    """Sums, counts, maxima and means of a new and a replayed response are those by hand."""
    w = torch.tensor([2.0, 1.0, 0.1, 3.0, 12.0])
    advantages = torch.tensor([2.0, 2.0, -1.0, -1.0, -1.0])
    replayed = torch.tensor([False, False, True, True, True])
    m = sums_of([w.log(), torch.zeros(5), advantages, replayed])
    # It is Σ β w / (w + β)² over the replayed tokens, whose |A| is 1.
    pull = 0.1 * (0.1 / 0.2**2 + 3 / 3.1**2 + 12 / 12.1**2)
    expected = dict(
        new_tokens=2, ratio=3.0, ratio_max=2.0, clipped=1, pull=2.0 + pull, replay_tokens=3
    )
    expected |= dict(
        replay_ratio=15.1, replay_ratio_squared=153.01, replay_ratio_max=12, replay_pull=pull
    )
    expected |= dict(drift=math.log(2), mismatch=1, replay_weight=pull)
    assert m == pytest.approx(expected, rel=1e-5)
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
    }
    assert token_means(m) == pytest.approx(means, rel=1e-5)


def test_metrics_of_one_kind_only():
    """Without replayed or new responses that kind's sums and maxima are 0."""
    case = make_case()
    new_only = sums_of([*case[:3], torch.zeros_like(case[3])])
    replayed_only = sums_of([*case[:3], torch.ones_like(case[3])])
    assert new_only["replay_ratio_max"] == replayed_only["ratio_max"] == 0
    assert not any("replay" in name for name in token_means(new_only))
    assert token_means(replayed_only)["loss/ratio"] == 0
