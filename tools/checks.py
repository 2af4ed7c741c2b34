"""How the doctor checks a machine, and the checks that it makes before a model is loaded.

A check takes the case, which all checks share, and returns a finding. Every rank makes every check,
in the same order.
"""

import os
import re
import shutil
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from config import Config
from data import load_questions, load_tokenizer
from model import model_config
from policy import Policy
from runtime import ranks
from runtime.chat import turn_ends
from runtime.faults import watchdog
from runtime.memory import (
    DRIVER_BYTES,
    ENGINE_ASLEEP_BYTES,
    RESERVED,
    Budget,
    Shape,
    budget,
    host_needs,
)

LIMIT = 300.0  # seconds that a check may take
# The same for the engine's start on a GPU, which loads weights, compiles and captures graphs.
START_LIMIT = 1800.0
OLDEST_DRIVER = {"12": 525, "13": 580}  # major version of torch's CUDA -> its oldest driver
SHARED_MEMORY = Path("/dev/shm")
ESSENTIAL = ("torch", "transformers", "vllm")
HERE = Path(__file__).parent.parent  # where the requirements files are
TESTED = "`make install` has the versions that were tested"


@dataclass
class Finding:
    """One line of the report, with advice where something is wrong or slow."""

    found: str
    wrong: bool = False
    advice: str = ""
    slow: bool = False

    @property
    def verdict(self) -> str:
        if self.wrong:
            return "wrong"
        return "slow" if self.slow else "ok"


@dataclass
class Case:
    """The run that is examined, and what earlier checks leave for later ones."""

    config: Config
    device: torch.device | None = None
    shape: Shape | None = None
    turn_ends: list[int] = field(default_factory=list)
    prompts: list[np.ndarray] = field(default_factory=list)  # token ids of a batch's prompts
    engine: object = None
    policy: Policy | None = None
    # (prompt ids, response ids)
    pairs: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)

    @property
    def longest(self) -> int:
        """The number of tokens in a sequence of full length."""
        return self.config.max_prompt_length + self.config.max_response_length

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The policy's weights by name, as a sync sends them to the engine."""
        return self.policy.full_weights(self.engine.dtype)

    def planned(self, tokens: int) -> Budget:
        """The bytes of one rank, by the formula, for micro-batches of `tokens` tokens."""
        responses = tokens * self.config.max_response_length // self.longest
        node = ranks.ranks_per_node()
        return budget(self.config, self.shape, node, tokens, responses, self.device.type)


def examine(
    case: Case, checks: Iterable[Callable[[Case], Finding]], tell: Callable[[str], None]
) -> bool:
    """Make the checks in order, tell a line of each, and return whether nothing is wrong.

    The worst finding of all ranks counts, and rank 0 tells it. A check that raises is the last one.
    Its rank tells that itself, since the others may wait for it until `ranks.run` ends them.
    """
    me = int(os.environ.get("RANK", 0))  # from torchrun, as the ranks have not met yet
    good = True
    for check in checks:
        name = check.__name__.replace("_", " ")
        starts = check.__name__ == "engine_start" and case.device.type == "cuda"
        watchdog.limit = START_LIMIT if starts else LIMIT
        watchdog.enter(name)
        try:
            finding = check(case)
        except Exception as error:
            found = f"rank {me}: {type(error).__name__}: {error}"
            tell(line(name, Finding(found, True, "mend this first: later checks build on it")))
            raise
        findings = ranks.gather(finding)
        severity = [(f.wrong, f.slow) for f in findings]
        worst = severity.index(max(severity))
        finding = findings[worst]
        if worst > 0:
            finding.found = f"rank {worst}: {finding.found}"
        if me == 0:
            tell(line(name, finding))
        good = good and not finding.wrong
    return good


def line(name: str, finding: Finding) -> str:
    """A check's line of the report, with any advice on a line below it."""
    text = f"{finding.verdict:5}  {name:22}  {finding.found}"
    if finding.verdict != "ok":
        text += f"\n{'':31}-> {finding.advice}"
    return text


# ---- the machine ---------------------------------------------------------------------------------


def driver(case: Case) -> Finding:
    """Check that the NVIDIA driver is as new as torch's CUDA asks for."""
    cuda = torch.version.cuda
    if not ranks.DRIVER.exists():
        return Finding(f"no NVIDIA driver, torch for {f'CUDA {cuda}' if cuda else 'the CPU'}")
    [number] = re.findall(r"Kernel Module.*?\s(\d{3,})\.", ranks.DRIVER.read_text())
    found = f"driver {number}, torch for CUDA {cuda}"
    if not cuda:
        advice = "torch cannot use the GPU: remove .venv, `make install`"
        return Finding(found, False, advice, slow=True)
    oldest = OLDEST_DRIVER.get(cuda.split(".")[0], 0)
    advice = f"update the driver of the host: CUDA {cuda} needs {oldest}"
    return Finding(found, int(number) < oldest, advice)


def libraries(case: Case) -> Finding:
    """Check that libraries have the pinned versions.

    Another one is wrong of a library that trains or generates, and a remark elsewhere.
    """
    file = "requirements.txt" if torch.version.cuda else "requirements-cpu.txt"
    pins = re.findall(r"^([\w.-]+)(?:\[\w+\])?==(\S+)", (HERE / file).read_text(), re.MULTILINE)
    wrong = False
    remarks = []
    for library, pinned in pins:
        found = installed(library)
        if found != pinned:
            remarks.append(f"{library} {found or 'is missing'}, not {pinned}")
            wrong = wrong or library in ESSENTIAL
    same = f"{len(pins) - len(remarks)} of {len(pins)} as in {file}"
    return Finding("; ".join([same, *remarks]), wrong, TESTED)


def installed(library: str) -> str:
    """The version of a library, without the part that names a build; empty if it is not there."""
    try:
        return version(library).partition("+")[0]
    except PackageNotFoundError:
        return ""


def c_compiler(case: Case) -> Finding:
    """Check that a C compiler and Python's headers are there, with which Triton makes kernels."""
    compiler = os.environ.get("CC") or shutil.which("clang") or shutil.which("gcc")
    header = Path(sysconfig.get_config_var("INCLUDEPY"), "Python.h")
    there = [compiler or "no C compiler", f"{'' if header.exists() else 'no '}{header}"]
    lacking = not (compiler and header.exists())
    python = "python{}.{}-dev".format(*sys.version_info)
    on_gpu = torch.version.cuda is not None  # Triton has nothing to do on a CPU
    return Finding(", ".join(there), lacking and on_gpu, f"apt-get install gcc {python}")


def ranks_reach_each_other(case: Case) -> Finding:
    """Join the process group, and check that ranks add up tensors on their devices."""
    case.device = ranks.setup(START_LIMIT)  # the longest that one rank may wait for another
    watchdog.limit = LIMIT
    watchdog.enter("ranks reach each other")
    size = ranks.world_size()
    tensor = torch.full((1 << 22,), float(ranks.rank() + 1), device=case.device)  # 16 MiB
    dist.all_reduce(tensor.clone())  # the first call connects the ranks
    start = time.perf_counter()
    dist.all_reduce(tensor)
    ends = tensor[[0, -1]].tolist()  # reading values waits for a GPU
    milliseconds = 1e3 * (time.perf_counter() - start)
    found = f"{size} on {case.device.type}, 16 MiB added up in {milliseconds:.0f} ms"
    total = size * (size + 1) / 2
    if ends != [total, total]:
        advice = (
            "NCCL_DEBUG=INFO says how ranks talk; NCCL_P2P_DISABLE=1, NCCL_IB_DISABLE=1 leave out a"
            " part"
        )
        return Finding(f"{found}: the sum is wrong", True, advice)
    gpus = torch.cuda.device_count()
    idle = gpus > ranks.ranks_per_node()
    return Finding(
        found, False, f"{gpus} GPUs are here: torchrun --nproc_per_node={gpus}", slow=idle
    )


def shared_memory(case: Case) -> Finding:
    """Check that /dev/shm, where ranks of a node exchange tensors, is not a container's 64 MB."""
    size = shutil.disk_usage(SHARED_MEMORY).total
    small = size < 1e9 and ranks.ranks_per_node() > 1
    return Finding(
        f"{size / 1e9:.1f} GB in {SHARED_MEMORY}", small, "start the container with --ipc=host"
    )


def model_and_questions(case: Case) -> Finding:
    """Check that tokenizer and template work, and that there are questions whose prompts fit.

    The built-in world is built on first use.
    """
    c = case.config
    case.shape = Shape.of(model_config(c, c.model).to_dict())
    tokenizer = load_tokenizer(c, c.model)
    case.turn_ends = turn_ends(c.model, tokenizer)
    questions, counts = load_questions(c.train_files, c, tokenizer)
    case.prompts = [q.prompt_ids for q in islice(cycle(questions), c.batch_size)]
    return Finding(f"{c.model}, {len(questions)} questions {counts}")


def memory(case: Case) -> Finding:
    """Check by the formula that there is memory for the run.

    A GPU must have room for the engine and, while that sleeps, for the update.
    """
    c = case.config
    if case.device.type == "cpu":
        found, fits = host_needs(c, case.shape, ranks.ranks_per_node())
        return Finding(found, not fits, "fewer ranks, or a smaller tokens_per_micro_batch")
    free, total = torch.cuda.mem_get_info()
    parts = case.planned(max(c.tokens_per_micro_batch or 0, case.longest))
    held = sum(parts.held.values())
    update = ENGINE_ASLEEP_BYTES + RESERVED["cuda"] * (held + sum(parts.update.values()))
    rollout = c.rollout_memory * total + RESERVED["cuda"] * (held + sum(parts.scoring.values()))
    needed = DRIVER_BYTES + max(update, rollout)
    found = f"{free / 1e9:.0f} of {total / 1e9:.0f} GB free, about {needed / 1e9:.0f} reserved"
    advice = (
        "python -m tools.doctor --gpus N --memory GB says by what: lower tokens_per_micro_batch or "
        "rollout_memory, use more GPUs; nvidia-smi names other processes that hold some"
    )
    return Finding(found, needed > free, advice)


MACHINE = (
    driver,
    libraries,
    c_compiler,
    ranks_reach_each_other,
    shared_memory,
    model_and_questions,
    memory,
)
