"""Start the ranks, split work over them and gather the results.

Every rank runs the same script on the same plan; only work is split (`map_shares`). Results come
back in the order of the items, so whatever follows is the same on every rank and for every number
of ranks. A rank that raises, or dies, ends the job: torchrun sees it leave, and kills those of the
others that do not leave by themselves within its shutdown timeout.
"""

import itertools
import logging
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
import transformers
from torch.distributed import get_rank as rank
from torch.distributed import get_world_size as world_size
from torch.distributed.elastic.multiprocessing.errors import record

# How long a rank waits for another one: the slowest rollout may take most of an hour.
TIMEOUT = timedelta(hours=1)


class Refusal(SystemExit, ValueError):
    """What the user can mend: only its sentence is printed.

    As a SystemExit it leaves no traceback in torchrun's summary.
    """


def run(program: Callable) -> None:
    """Run `program` as this rank's whole life, and leave with the exit status that it returns.

    A `Refusal` is printed by rank 0. Any other exception prints its traceback, and torchrun's
    summary repeats it.
    """
    status = 1
    try:
        status = record(program)() or 0
    except Refusal as refusal:
        if os.environ.get("RANK", "0") == "0":  # it may come before `setup`
            print(refusal, file=sys.stderr)
    except SystemExit as stop:  # by the command line: an unknown flag
        status = stop.code
    except BaseException:
        traceback.print_exc()
    if status:
        # torchrun ends the others once one has left. Before that rank 0 must have said why, and a
        # rank that fails because another one died must not be the first to leave.
        time.sleep(3.0)
    sys.stdout.flush()
    # Python's own exit races with gloo's threads: one run in six ended in SIGABRT (torch 2.13).
    os._exit(status)


def setup() -> torch.device:
    """Join the process group that torchrun describes, and return this rank's device.

    Without torchrun this rank is alone.
    """
    if "RANK" not in os.environ:
        os.environ.update(
            RANK="0",
            WORLD_SIZE="1",
            LOCAL_RANK="0",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT="0",  # a free one
        )
    # vLLM says what means nothing to a user: no Triton on a CPU, and an old name in torch.
    logging.getLogger("vllm.triton_utils").setLevel("ERROR")
    warnings.filterwarnings("ignore", category=FutureWarning)
    transformers.logging.disable_progress_bar()  # every rank would show one for every model
    device = torch.device("cpu")
    backend = "gloo"
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        # Segments that grow leave fewer gaps between the policy's and the engine's memory.
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
        backend = "cpu:gloo,cuda:nccl"
    if not dist.is_initialized():
        dist.init_process_group(backend, timeout=TIMEOUT)
    return device


def mesh(device_type: str):
    """Return the mesh by which FSDP2 shards a model inside a node and replicates it over nodes."""
    nodes = int(os.environ.get("GROUP_WORLD_SIZE", 1))  # torchrun's name for their number
    if nodes == 1:
        # A mesh of 1 x N would be the same, but torch warns of NCCL's mean over one rank.
        return dist.init_device_mesh(device_type, (world_size(),))
    shape = (nodes, world_size() // nodes)
    return dist.init_device_mesh(device_type, shape, mesh_dim_names=("replicate", "shard"))


def gather(value) -> list:
    """Return the `value` of every rank, in rank order, on every rank (a collective)."""
    values = [None] * world_size()
    dist.all_gather_object(values, value)
    return values


# ---- work that is split --------------------------------------------------------------------------


def split(costs: list, parts: int) -> list:
    """Return the indices of `costs` in `parts` lists of nearly equal sums.

    The dearest are dealt first, equal ones by index, each to the list with the smallest sum so far.
    """
    lists = [[] for _ in range(parts)]
    sums = [0.0] * parts
    for i in sorted(range(len(costs)), key=lambda i: -costs[i]):
        cheapest = sums.index(min(sums))
        lists[cheapest].append(i)
        sums[cheapest] += costs[i]
    return [sorted(part) for part in lists]


def map_shares(costs: list, work) -> list:
    """Split items over the ranks by cost, and return all results on every rank (a collective).

    `work(indices) -> results` runs on each share; the results are in the order of the items.
    """
    shares = split(costs, world_size())
    results = [None] * len(costs)
    for share, part in zip(shares, gather(work(shares[rank()]))):
        for i, result in zip(share, part, strict=True):
            results[i] = result
    return results


def micro_batches(units: list[tuple], budget: int) -> list:
    """Return this rank's share of the units, in micro-batches of `budget` tokens at most.

    units: pairs of (indices of sequences that stay together, their tokens). A unit that is longer
    than the budget stands alone. A micro-batch is a pair: the indices of its sequences, and whether
    it is real. All ranks get equally many, since a pass is a collective. A rank that has no work
    left gets the first sequence as a micro-batch that is not real: it must not count.
    """
    sizes = [size for _, size in units]
    for count in itertools.count(1):
        parts = split(sizes, world_size() * count)
        if all(len(part) < 2 or sum(sizes[u] for u in part) <= budget for part in parts):
            break
    batches = []
    for part in parts[rank() :: world_size()]:
        indices = [i for u in part for i in units[u][0]]
        batches.append((indices or [0], bool(indices)))
    return batches
