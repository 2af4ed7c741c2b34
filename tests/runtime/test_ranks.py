"""How sequences become micro-batches."""

import numpy as np
import pytest

from model import pack
from runtime import ranks


def groups(many: int, count: int, prompt: int, response: int) -> list[tuple]:
    """`many` prompts with `count` responses each, of so many tokens."""
    pairs = []
    for number in range(many):
        pairs += [(np.full(prompt, number), np.ones(response, dtype=int))] * count
    return pairs


CASES = {  # name: sequences, budget, ranks, micro-batches of each rank
    "all are longer than the budget": (groups(64, 1, 10, 1990), 256, 2, 32),
    "no two fit together": (groups(5, 1, 30, 30), 100, 2, 3),
    "one is longer": (groups(1, 1, 10, 1990) + groups(100, 1, 4, 6), 256, 1, 5),
    "a prompt counts once": (groups(8, 8, 100, 4), 400, 1, 3),  # 3 prompts in each
}


@pytest.mark.parametrize("case", CASES)
def test_as_many_micro_batches_as_are_needed(case, monkeypatch):
    """Each rank has that many; each holds one pair or what fits by what the model is given."""
    sequences, budget, world_size, expected = CASES[case]
    monkeypatch.setattr(ranks, "world_size", lambda: world_size)
    seen = []
    for rank in range(world_size):
        monkeypatch.setattr(ranks, "rank", lambda rank=rank: rank)
        batches = ranks.micro_batches(sequences, budget)
        assert [batch.is_last for batch in batches] == [False] * (expected - 1) + [True]
        for batch in batches:
            if batch.is_real:
                seen += batch.indices
            packed = pack([sequences[i] for i in batch.indices])
            assert packed.input_ids.numel() <= budget or len(batch.indices) == 1
    assert sorted(seen) == list(range(len(sequences)))
