"""Start several ranks, split work over them and gather the results.

Every rank runs the same script on the same plan; only work is split (`map_shares`). Results come
back in the order of the items, so whatever follows is the same on every rank and for every number
of ranks.
"""

import errno
import gc
import hashlib
import os
import socket
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from runtime.console import printable
from runtime.faults import LEFT, Failure, Interrupted, leave, tell_torchrun, watchdog

DRIVER = Path("/proc/driver/nvidia/version")  # exists where the kernel drives NVIDIA GPUs
_ranks_per_node = 1  # LOCAL_WORLD_SIZE when the group was joined: vLLM overwrites it on CPUs


def run(program: Callable[[], object]) -> None:
    """Run `program` as this rank's whole life, and end the job when one rank fails.

    The watchdog (faults.py) sees to that. A rank that raises prints its traceback and waits for
    nobody; torchrun's summary repeats it.
    """
    watchdog.start()
    try:
        program()
        barrier()  # nobody has failed
        watchdog.stop()
        # An interrupted run fails, because what follows it in a script needs a finished one.
        if watchdog.interrupted:
            tell_torchrun(
                "interrupted: the same command goes on from there, training with --resume"
            )
        barrier()  # nobody watches any more: now ranks may end one by one
        # Python's own way to end races with gloo's threads: one run in six ended in SIGABRT
        # (torch 2.13).
        leave(130 if watchdog.interrupted else 0)
    except Exception as error:
        time.sleep(0.5)  # a rank that died may look alive for a moment
        if dead := watchdog.dead():  # then this failure is only the echo of that one
            echo = f"{type(error).__name__}: {str(error).splitlines()[:1]}"
            watchdog.end(f"{watchdog.death(dead)}, see above ({echo})", echo=True)
        said = traceback.format_exc().rstrip()
        if isinstance(error, Failure):
            said = str(error)
        elif os.strerror(errno.ENOSPC) in said or os.strerror(errno.EDQUOT) in said:
            said = f"{error}: make room, then start it again, training with --resume"
        # The message comes last, where it is looked for; it may quote a row of data.
        watchdog.end(printable(said))


def setup(hang_timeout: float = 7200.0) -> torch.device:
    """Join the process group that torchrun describes, and return this rank's device.

    Without torchrun this rank is alone. hang_timeout: seconds to wait for another rank, such as one
    whose rollouts take longer. Raises RuntimeError where this rank would have no GPU to itself, or
    torch cannot use the GPUs of this machine; raises ValueError where nodes differ in their ranks,
    or torchrun would start several nodes again.
    """
    if int(os.environ.get("GROUP_WORLD_SIZE", 1)) > 1 and int(
        os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0)
    ):
        raise ValueError(
            "torchrun --max-restarts is for one node: several count their restarts apart, and "
            "their ranks would never meet. Leave it at 0, start the job again with --resume"
        )
    if "RANK" not in os.environ:  # without torchrun this rank is the only one, whatever else says
        os.environ.update(
            RANK="0",
            WORLD_SIZE="1",
            LOCAL_RANK="0",
            LOCAL_WORLD_SIZE="1",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT="0",  # a free one
        )
    import transformers

    gc.set_threshold(700)  # as Python 3.11 has it; `faults.loading` raised it
    transformers.logging.disable_progress_bar()  # every rank would show one for every model
    transformers.logging.set_verbosity_error()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        index = int(os.environ["LOCAL_RANK"])
        count = torch.cuda.device_count()
        if index >= count:
            raise RuntimeError(
                f"local rank {index}, but this process sees {count} GPU(s): lower --nproc_per_node"
            )
        device = torch.device("cuda", index)
        torch.cuda.set_device(device)
    elif (
        torch.version.cuda
        and DRIVER.exists()
        and os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1")
    ):
        raise RuntimeError(
            f"there is an NVIDIA driver, but torch for CUDA {torch.version.cuda} finds no "
            "GPU: is the driver too old? CUDA_VISIBLE_DEVICES=-1 and --engine hf together run "
            "on the CPU (vLLM for CUDA would still ask the driver)"
        )
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        # Without a prefix restarted ranks would find the addresses of the dead ones in torchrun's
        # store (torch 2.13).
        store, rank, size = next(dist.rendezvous("env://"))
        store = dist.PrefixStore(
            f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store
        )
        # The watchdog has more to say of a hang, and so has a minute to report it first.
        timeout = timedelta(seconds=hang_timeout + 60 if hang_timeout else 1e7)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
        global _ranks_per_node
        _ranks_per_node = int(os.environ["LOCAL_WORLD_SIZE"])
    _introduce(hang_timeout)
    return device


def _introduce(hang_timeout: float) -> None:
    """Tell the watchdog which processes of this machine this rank depends on (a collective)."""
    parent = {"torchrun": os.getppid()} if "TORCHELASTIC_RUN_ID" in os.environ else {}
    here = (socket.gethostname(), os.environ.get("GROUP_RANK"), os.getppid())
    if len(sizes := set(gather(_ranks_per_node))) > 1:  # one mesh needs nodes of one size
        raise ValueError(f"nodes with {sorted(sizes)} ranks: give all the same --nproc_per_node")
    everyone = gather((here, os.getpid()))
    peers = {
        f"rank {r}": pid for r, (where, pid) in enumerate(everyone) if where == here and r != rank()
    }
    turn = int(os.environ.get("LOCAL_RANK", 0))
    watchdog.configure(f"rank {rank()}", {**peers, **parent}, hang_timeout, turn)


def ranks_per_node() -> int:
    """Return how many of the ranks share a node, as torchrun said at the start."""
    return _ranks_per_node


def rank() -> int:
    """Return this process's number, 0 to world_size() - 1."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """Return the number of ranks."""
    return dist.get_world_size() if dist.is_initialized() else 1


def mesh(device_type: str) -> DeviceMesh:
    """Return the mesh by which FSDP2 shards a model inside a node and replicates it over nodes."""
    if (nodes := world_size() // _ranks_per_node) == 1:
        return init_device_mesh(device_type, (world_size(),), mesh_dim_names=("shard",))
    return init_device_mesh(
        device_type, (nodes, _ranks_per_node), mesh_dim_names=("replicate", "shard")
    )


def gather(value) -> list:
    """Return the `value` of every rank, in rank order, on every rank (a collective)."""
    if world_size() == 1:
        return [value]
    values = [None] * world_size()
    dist.all_gather_object(values, value)
    return values


def barrier() -> None:
    """Wait for every rank (a collective)."""
    gather(None)


def leave_if_asked(group: dist.ProcessGroup | None = None) -> None:
    """Raise Interrupted on all ranks where one of them was asked to stop (a collective).

    Nothing happens in a phase that cannot be left.
    """
    if watchdog.phase in LEFT:
        asked = torch.tensor(int(watchdog.interrupted))
        if world_size() > 1:
            dist.all_reduce(asked, dist.ReduceOp.MAX, group)
        if asked:
            watchdog.interrupted = True  # the exit status says so on every node
            raise Interrupted


def check_same(**values) -> None:
    """Raise RuntimeError on every rank where `values` differ between ranks (a collective).

    The message names those that differ.
    """
    digests = {
        name: hashlib.sha256(repr(value).encode()).digest() for name, value in values.items()
    }
    everywhere = gather(digests)
    different = [name for name in values if len({theirs[name] for theirs in everywhere}) > 1]
    if different:
        raise RuntimeError(
            f"ranks disagree on {', '.join(different)}: what they should share has drifted "
            "apart; --resume from the last checkpoint, and report this as a bug"
        )


def split(costs: Sequence[float], parts: int) -> list[list[int]]:
    """Return the indices of `costs` in `parts` lists of nearly equal sums.

    The dearest come first, and each goes to the list that is the cheapest by then.
    """
    lists = [[] for _ in range(parts)]
    sums = [0.0] * parts
    for i in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        cheapest = sums.index(min(sums))
        lists[cheapest].append(i)
        sums[cheapest] += costs[i]
    return [sorted(part) for part in lists]


@dataclass
class MicroBatch:
    """What this rank runs in one forward pass, which is a collective."""

    indices: list[int]  # of the sequences
    is_real: bool  # False where this rank has no work left, and runs a sequence to no effect
    is_last: bool


def micro_batches(sequences: list[tuple[np.ndarray, np.ndarray]], budget: int) -> list[MicroBatch]:
    """Return this rank's share of the sequences, in parts of `budget` tokens at most.

    sequences: pairs of (prompt ids, response ids). Every rank has as many micro-batches. Neighbours
    with one prompt stay together, as a micro-batch shares it, in units small enough to balance. A
    pair that is longer than the budget stands alone.
    """
    total = sum(len(prompt) + len(response) for prompt, response in sequences)
    limit = min(budget, total // (8 * world_size()))
    units = []
    sizes = []
    for i, (prompt, response) in enumerate(sequences):
        if i and np.array_equal(prompt, sequences[i - 1][0]):
            size = sizes[-1] + len(response)
            if size <= limit:
                units[-1].append(i)
                sizes[-1] = size
                continue
        units.append([i])
        sizes.append(len(prompt) + len(response))
    # A unit longer than the budget fills one micro-batch, not several.
    least = sum(min(size, budget) for size in sizes)
    count = -(-least // (world_size() * budget))  # rounded up
    while True:
        parts = split(sizes, world_size() * count)
        if all(len(part) < 2 or sum(sizes[u] for u in part) <= budget for part in parts):
            break
        count += 1
    batches = []
    for part in parts[rank() :: world_size()]:
        indices = [i for u in part for i in units[u]]
        batches.append(MicroBatch(indices or [0], is_real=bool(indices), is_last=False))
    batches[-1].is_last = True
    return batches


def map_shares(costs: Sequence[float], work: Callable[[list[int]], list], group: int = 1) -> list:
    """Split items over the ranks by cost, and return all results on every rank (a collective).

    `work(indices) -> results` runs on each share; the results are in the order of the items. Each
    `group` of neighbouring ranks works on one share together; the first one's results count. Raises
    Interrupted on every rank where `work` raises it on one.
    """
    shares = split(costs, world_size() // group)
    mine = None
    stopped = False
    try:
        mine = work(shares[rank() // group])
    except Interrupted:
        stopped = True
    everyone = gather((None if rank() % group else mine, stopped))
    if any(stopped for _, stopped in everyone):
        watchdog.interrupted = True
        raise Interrupted
    results = [None] * len(costs)
    for share, (part, _) in zip(shares, everyone[::group], strict=True):
        for i, result in zip(share, part, strict=True):
            results[i] = result
    return results
