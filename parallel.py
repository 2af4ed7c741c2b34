"""What runs on several ranks: start-up, the split of work over ranks, the gathering of results.

Every rank runs the same script on the same plan; only work is split (`map_shares`). Results come back in the
order of the items, so whatever follows is the same on every rank and for every number of ranks.
"""

import os
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
import transformers

TIMEOUT = timedelta(hours=2)  # longest wait for a rank whose rollouts are longer than the others'


def setup() -> torch.device:
    """Join the process group that torchrun describes (alone without torchrun) and return this rank's device."""
    for name, value in dict(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1",
                            MASTER_ADDR="127.0.0.1", MASTER_PORT="29511").items():
        os.environ.setdefault(name, value)
    transformers.logging.disable_progress_bar()  # one per rank and model otherwise
    transformers.logging.set_verbosity_error()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=TIMEOUT)
    return device


def rank() -> int:
    """This process's number, 0 to world_size() - 1."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """Number of ranks."""
    return dist.get_world_size() if dist.is_initialized() else 1


def gather(value) -> list:
    """The `value` of every rank, in rank order, on every rank (a collective)."""
    if world_size() == 1:
        return [value]
    values = [None] * world_size()
    dist.all_gather_object(values, value)
    return values


def barrier() -> None:
    """Wait for every rank (a collective)."""
    gather(None)


def check_same(**values) -> None:
    """Raise RuntimeError on every rank, naming the first of `values` that differs between ranks (a collective)."""
    everywhere = gather(values)
    for name in values:
        seen = [v[name] for v in everywhere]
        if any(v != seen[0] for v in seen):
            raise RuntimeError(f"ranks disagree on {name}: {seen}. Their replicated state has drifted apart; "
                               "resume from the last checkpoint and report this as a bug.")


def split(costs: Sequence[float], parts: int) -> list[list[int]]:
    """Indices of `costs` in `parts` lists of nearly equal sums: the dearest first, each to the cheapest list."""
    lists, sums = [[] for _ in range(parts)], [0.0] * parts
    for i in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        cheapest = min(range(parts), key=lambda p: (sums[p], p))
        lists[cheapest].append(i)
        sums[cheapest] += costs[i]
    return [sorted(part) for part in lists]


def map_shares(costs: Sequence[float], work: Callable[[list[int]], list]) -> list:
    """Split items over the ranks by cost, run `work(indices) -> results` on each share, and return the results
    of all items in order, on every rank (a collective)."""
    shares = split(costs, world_size())
    mine = work(shares[rank()])
    results = [None] * len(costs)
    for share, part in zip(shares, gather(mine), strict=True):
        for i, result in zip(share, part, strict=True):
            results[i] = result
    return results
