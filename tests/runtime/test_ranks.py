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


MIXED = groups(1, 1, 10, 90) + groups(10, 1, 5, 5)
SHARED = groups(8, 8, 100, 4)
CASES = {  # name: sequences, budget, copy share, padded, ranks, micro-batches of each rank
    "all are longer than the budget": (groups(64, 1, 10, 1990), 256, 0.1, True, 2, 32),
    "no two fit together": (groups(5, 1, 30, 30), 100, 0.1, False, 2, 3),
    "one is longer": (groups(1, 1, 10, 1990) + groups(100, 1, 4, 6), 256, 0.1, False, 1, 5),
    "copies are free": (SHARED, 400, 0.0, False, 1, 3),  # 3 prompts in each
    # n responses to a prompt hold 100 + 4n + (104n - 100 - 4n) / 2 = 50 + 54n: six fit, two remain,
    # and two such pairs fit together.
    "copies count half": (SHARED, 400, 0.5, False, 1, 12),
    "nothing is padded": (MIXED, 200, 1.0, False, 1, 1),
    "padding counts": (MIXED, 200, 1.0, True, 1, 2),  # 11 x 100 cells together
}


@pytest.mark.parametrize("case", CASES)
def test_as_many_micro_batches_as_are_needed(case, monkeypatch):
    """Each rank has that many; each holds one pair or what fits by what the model is given."""
    sequences, budget, copy_share, padded, world_size, expected = CASES[case]
    monkeypatch.setattr(ranks, "world_size", lambda: world_size)
    seen = []
    for rank in range(world_size):
        monkeypatch.setattr(ranks, "rank", lambda rank=rank: rank)
        batches = ranks.micro_batches(sequences, budget, copy_share, padded)
        assert [batch.is_last for batch in batches] == [False] * (expected - 1) + [True]
        for batch in batches:
            if batch.weight:
                seen += batch.indices
            packed = pack([sequences[i] for i in batch.indices])
            row = packed.input_ids.numel()
            attention = packed.place_of_cell if padded else packed.place_of_token
            held = row + copy_share * (attention.numel() - row)
            assert held <= budget or len(batch.indices) == 1
    assert sorted(seen) == list(range(len(sequences)))
