"""What the doctor looks at before a model is loaded: driver, wheels, ranks, data, memory, disk, limits.

A check takes the case, which all share, and returns a finding; each does so on every rank.
"""

import re
import resource
import shutil
import time
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, cycle, islice
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from config import Config
from data import WORLDS, load_tokenizer, read_rows, render, with_built_in_world
from model import model_config
from policy import Policy
from runtime import ranks
from runtime.memory import PROCESS_BYTES, Budget, Shape, available_bytes, host_bytes
from tools.plan import DRIVER_BYTES, ENGINE_ASLEEP_BYTES, plan
from worlds.arithmetic import PRESETS
from worlds.base_model import build_world, place_of

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 175.0  # seconds that the doctor may take
DRIVERS = {"12": 525, "13": 580}  # CUDA of the wheels -> the oldest driver
PIN = re.compile(r"^(?:ENGINE := )?([\w.-]+)(?:\[\w+\])?==([\w.]+)", re.M)
SHARED_MEMORY = Path("/dev/shm")


@dataclass
class Finding:
    """One line of the report."""

    verdict: str  # ok, slow or wrong
    found: str
    advice: str = ""


@dataclass
class Case:
    """The run that is examined, and what checks leave for later ones."""

    config: Config
    device: torch.device | None = None
    eos: int = 0
    prompts: list[np.ndarray] = field(default_factory=list)  # of a batch
    engine: object = None
    policy: Policy | None = None
    pairs: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)  # (prompt ids, response ids)
    length: float = 0.0  # of a response on average, in tokens: at most
    update_tokens: int = 0  # so many tokens on each rank take no longer than UPDATE_SECONDS
    seconds: dict[str, float] = field(default_factory=dict)  # of a step's phases

    @property
    def shape(self) -> Shape:
        """The model's, from its configuration: of a directory or the hub."""
        return Shape.of(model_config(self.config, self.config.model).to_dict())

    def weights(self):
        """What a sync sends."""
        return self.policy.named_tensors(self.engine.dtype)

    def micro_batch(self, tokens: int = 256) -> int:
        """Tokens of the largest micro-batch: a sequence of full length may be longer than `tokens`."""
        c = self.config
        return max(c.tokens_per_micro_batch or tokens, c.max_prompt_length + c.max_response_length)

    def hangs(self, phase: str) -> bool:
        """Whether a phase would last so long that the watchdog ends the run."""
        return 0 < self.config.hang_timeout < self.seconds[phase]


def judge(found: str, wrong: bool, advice: str, slow: bool = False) -> Finding:
    """A finding with the advice where it is needed."""
    verdict = "wrong" if wrong else "slow" if slow else "ok"
    return Finding(verdict, found, advice if wrong or slow else "")


def driver(case: Case) -> Finding:
    """The NVIDIA driver is as new as the CUDA of the wheels asks for."""
    cuda, file = torch.version.cuda, ranks.DRIVER
    if not file.exists():
        return judge(f"no NVIDIA driver, wheels for {f'CUDA {cuda}' if cuda else 'the CPU'}", False, "")
    number = re.search(r"Kernel Module.*?\s(\d{3,})\.", file.read_text())[1]
    found, oldest = f"driver {number}, wheels for CUDA {cuda}", DRIVERS.get((cuda or "").split(".")[0], 0)
    if not cuda:
        return judge(found, False, "the wheels cannot use the GPU: remove .venv, `make install`", slow=True)
    return judge(found, int(number) < oldest, f"update the driver of the host: CUDA {cuda} needs {oldest}")


def wheels(case: Case) -> Finding:
    """What is installed is what was tested; what is not installed only some need."""
    file = "requirements.txt" if torch.version.cuda else "requirements-cpu.txt"
    pins, other = PIN.findall((ROOT / file).read_text() + (ROOT / "Makefile").read_text()), []
    for name, pinned in pins:
        try:
            installed = version(name).partition("+")[0]
        except PackageNotFoundError:
            continue
        if installed != pinned:
            other.append(f"{name}=={pinned}")  # what to install
    main = [f"{name} {version(name)}" for name in ("torch", "transformers")]
    found = f"{', '.join(main)}: {len(other) or 'no'} other versions than pinned"
    return judge(found, bool(other), f"`make install` in a fresh .venv, or pip install {' '.join(other)}")


def ranks_reach_each_other(case: Case) -> Finding:
    """Ranks meet, exchange objects, and add up tensors on their devices; joins the process group."""
    case.device = ranks.setup(LIMIT)
    size, everyone = ranks.world_size(), ranks.gather(ranks.rank())
    tensor = torch.full((1 << 22,), float(ranks.rank() + 1), device=case.device)  # 16 MiB
    dist.all_reduce(tensor.clone())  # makes connections
    start = time.perf_counter()
    dist.all_reduce(tensor)
    right = set(tensor[[0, -1]].tolist()) == {size * (size + 1) / 2} and everyone == list(range(size))
    found = f"{size} on {case.device.type}, 16 MiB added up in {1e3 * (time.perf_counter() - start):.0f} ms"
    gpus = torch.cuda.device_count() if case.device.type == "cuda" else 1
    if right and ranks.ranks_per_node() < gpus:
        return judge(f"{found}, but {gpus} GPUs", False, f"torchrun --nproc_per_node={gpus}", slow=True)
    return judge(found, not right, "sums are wrong: NCCL_DEBUG=INFO says how ranks talk; NCCL_P2P_DISABLE=1 "
                 "or NCCL_IB_DISABLE=1 leaves out the part at fault")


def model_and_questions(case: Case) -> Finding:
    """Tokenizer and template work, and a batch of prompts fits; fills in the built-in world."""
    c = case.config
    world = replace(PRESETS[c.world], seed=c.world_seed)
    if not c.train_files and not place_of(world, WORLDS).exists():
        # to build it takes minutes; with a base model that has learned nothing all else is the same
        place = build_world(WORLDS, replace(world, pretrain_steps=1), progress=False)
        c = replace(c, model=c.model or str(place / "model"), train_files=[str(place / "train.jsonl")])
    case.config = c = with_built_in_world(c)
    tokenizer = load_tokenizer(c, c.model)
    rows = islice(chain.from_iterable(map(read_rows, c.train_files)), 2 * c.batch_size)
    prompts = [render(row["prompt"], c, tokenizer) for row in rows]
    fitting = [ids for ids in prompts if 0 < len(ids) <= c.max_prompt_length]
    if not fitting:
        raise ValueError(f"none of the first {len(prompts)} prompts fits into max_prompt_length="
                         f"{c.max_prompt_length}: raise it")
    case.eos, case.prompts = tokenizer.eos_token_id, list(islice(cycle(fitting), c.batch_size))
    found = f"{c.model}, {len(fitting)} of {len(prompts)} prompts fit into {c.max_prompt_length} tokens"
    return judge(found, False, "training drops the others: raise max_prompt_length",
                 slow=len(fitting) < len(prompts) / 2)


def gpu_memory(case: Case) -> Finding:
    """What vLLM reserves is free, and the update fits beside a sleeping engine (by the plan)."""
    if case.device.type != "cuda":
        return judge("no GPU", False, "")
    c, (free, total) = case.config, torch.cuda.mem_get_info()
    parts = planned(case, case.micro_batch())
    needed = DRIVER_BYTES + sum(parts.held.values()) + max(
        ENGINE_ASLEEP_BYTES + sum(parts.update.values()), c.rollout_memory * total)
    found = f"{free / 1e9:.0f} of {total / 1e9:.0f} GB free, {needed / 1e9:.0f} planned"
    if free < 0.97 * total - DRIVER_BYTES:
        return judge(found, needed > free, "other processes hold the rest: nvidia-smi names them", slow=True)
    return judge(found, needed > free, "tools.plan says what holds it; lower tokens_per_micro_batch, "
                 "rollout_memory, or use more GPUs")


def host_memory(case: Case) -> Finding:
    """Memory of the host while the ranks of a node load the model; without GPUs everything is there."""
    c, shape, each = case.config, case.shape, ranks.ranks_per_node()
    rank = PROCESS_BYTES + 2 * shape.parameters  # as stored, in 16 bits
    if case.device.type == "cpu":
        rank = host_bytes(shape, each, case.micro_batch(), dtype=c.dtype, lora_rank=c.lora_rank,
                          gradient_checkpointing=c.gradient_checkpointing)
    free = available_bytes()
    found = f"{free / 1e9:.0f} GB free, about {rank / 1e9:.1f} needed by each of {each} ranks"
    return judge(found, each * rank > free, "fewer ranks; without a GPU a smaller tokens_per_micro_batch too")


def disk(case: Case) -> Finding:
    """Room for the checkpoints: those kept, the best, the one being written; and for the model at the end."""
    c, place = case.config, Path(case.config.run_dir).absolute()
    while not place.exists():
        place = place.parent
    checkpoint = sum(planned(case, 1).held.values()) * ranks.ranks_per_node()
    needed = (c.keep + 2) * checkpoint + 4 * case.shape.parameters
    free = shutil.disk_usage(place).free
    return judge(f"{free / 1e9:.0f} GB free under {place}, {needed / 1e9:.1f} needed", needed > free,
                 "set run_dir to a larger disk, or lower keep")


def file_limits(case: Case) -> Finding:
    """Open files: libraries and data of a rank, and gloo's sockets to every other rank."""
    limit, needed = resource.getrlimit(resource.RLIMIT_NOFILE)[0], 512 + 8 * ranks.world_size()
    return judge(f"{limit:,} open files a process, {needed:,} needed", limit < needed, "ulimit -n 65536")


def shared_memory(case: Case) -> Finding:
    """Ranks of a node exchange tensors through /dev/shm, which containers make 64 MB small."""
    size = shutil.disk_usage(SHARED_MEMORY).total
    return judge(f"{size / 1e9:.1f} GB in {SHARED_MEMORY}", size < 1e9 and ranks.ranks_per_node() > 1,
                 "start the container with --ipc=host")


def planned(case: Case, tokens: int) -> Budget:
    """The plan of one rank for micro-batches of so many tokens."""
    c = case.config
    responses = tokens * c.max_response_length // (c.max_prompt_length + c.max_response_length)
    return plan(c, case.shape, ranks.ranks_per_node(), tokens, responses, case.device.type)


CHECKS = (driver, wheels, ranks_reach_each_other, model_and_questions, gpu_memory, host_memory, disk,
          file_limits, shared_memory)
