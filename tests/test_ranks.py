"""Work is split evenly and whole over the ranks, and what a step did is counted right."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import on_ranks

from buffer import Trajectory
from exgrpo import Group
from model import pack, prompt_units
from runtime import ranks
from runtime.metrics import group_metrics, plan_metrics, token_means, token_sums


def shares():
    return ranks.map_shares([5, 1, 1, 9, 1], lambda share: [(i, ranks.rank()) for i in share])


def test_shares_come_back_in_order():
    """Both ranks get the results of all items, of which each did its share: 9, or 5 + 1 + 1 + 1."""
    expected = [(0, 1), (1, 1), (2, 1), (3, 0), (4, 1)]
    assert on_ranks(2, shares) == [expected, expected]


def responses(prompts, count, prompt, response):
    """So many prompts with `count` responses each, of so many tokens."""
    sequences = []
    for number in range(prompts):
        sequences += [(np.full(prompt, number), np.ones(response, dtype=int))] * count
    return sequences


MICRO_BATCHES = {  # sequences, budget, micro-batches of a rank where there are 1, 2 and 3
    "all are longer than the budget": (responses(64, 1, 10, 1990), 256, (64, 32, 22)),
    "a prompt counts once": (responses(8, 8, 100, 4), 400, (3, 2, 1)),
}


@pytest.mark.parametrize("case", MICRO_BATCHES)
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_micro_batches_cover_every_sequence_once(case, world_size, monkeypatch):
    """Ranks have equally many, as few as can be, each within the budget or of one sequence."""
    sequences, budget, expected = MICRO_BATCHES[case]
    monkeypatch.setattr(ranks, "world_size", lambda: world_size)
    seen = []
    for rank in range(world_size):
        monkeypatch.setattr(ranks, "rank", lambda rank=rank: rank)
        batches = ranks.micro_batches(prompt_units(sequences, budget), budget)
        assert len(batches) == expected[world_size - 1]
        for indices, is_real in batches:
            if is_real:
                seen += indices
            packed = pack([sequences[i] for i in indices])
            assert packed.input_ids.numel() <= budget or len(indices) == 1
    assert sorted(seen) == list(range(len(sequences)))


def response(reward, length, finished=True, step=0, **named):
    ids = np.ones(length, dtype=np.int32)
    return Trajectory(ids, -np.ones(length, np.float32), step, reward, finished, named)


def test_rewards_are_counted_by_hand():
    """Fresh and replayed groups apart; o* counts as a success, not as a rollout."""
    fresh = Group(None, None, [response(1.0, 4, valid=1.0), response(0.25, 8, finished=False)])
    replayed = Group(None, response(1.0, 100), [response(1.0, 6, valid=0.0)])
    expected = {
        "reward/pass_at_1": 0.75,
        "reward/mean": 3.25 / 4,
        "reward/valid": 0.5,
        "replay/questions": 1,
        "fresh/k=1": 1,
        "fresh/silent": 0.0,
        "replay/k=2": 1,
        "replay/silent": 1.0,
        "rollout/length": 6.0,
        "rollout/truncated": pytest.approx(1 / 3),
    }
    metrics = group_metrics([fresh, replayed])
    assert {name: metrics[name] for name in expected} == expected
    without = group_metrics([fresh])
    assert without["replay/questions"] == 0 and "replay/silent" not in without


def test_the_plan_is_counted_by_hand():
    """Two questions return from bucket 1 and one from bucket 2 of what is stored."""
    plan = [Group(SimpleNamespace(id=7))]
    plan += [Group(SimpleNamespace(id=q), response(1.0, 3)) for q in (0, 2, 3)]
    latest_k = {0: 1, 1: 1, 2: 1, 3: 2, 4: 3}
    assert plan_metrics(plan, latest_k) == {"replay/from_k=1": 2, "replay/from_k=2": 1}


def test_tokens_are_counted_by_hand():
    """Of two new and two replayed tokens."""
    sums = token_sums(
        logprobs=torch.tensor([-1.0, -2.0, -1.0, -1.0]),
        old_logprobs=torch.tensor([-1.5, -9.0, -1.25, -9.0]),
        advantages=torch.tensor([1.0, -2.0, -1.0, 2.0]),
        replayed=torch.tensor([False, True, False, True]),
        ratio=torch.tensor([2.0, 1.0, 4.0, 3.0]),
        weight=torch.tensor([2.0, 0.25, 0.0, 0.5]),
    )
    expected = {
        "loss/clipped": 0.5,
        "replay/gradient_share": 1.5 / 3.5,  # of Σ weight · |A|
        "replay/ratio": 2.0,
    }
    means = token_means(sums)
    assert {name: means[name] for name in expected} == pytest.approx(expected)
