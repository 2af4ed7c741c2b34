"""Is this machine fit for this run? At most three minutes, before the first step on a new machine.

    python -m tools.doctor                                               # the built-in run
    torchrun --nproc_per_node=8 -m tools.doctor --config configs/qwen2.5-math-7b.yaml
    python -m tools.doctor --config FILE --rollout_memory 0.3 --json     # knobs as for train.py

Each line says ok, slow or wrong, what was found, and what to do. Exit code 1 if anything is wrong. Nothing is
trained or saved: the policy's weights are changed in memory only.
"""

import argparse
import json
import os
import platform
import re
import resource
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, cycle, islice
from pathlib import Path

import torch
import torch.distributed as dist

from config import parse_config
from data import WORLDS, load_tokenizer, read_rows, render, with_built_in_world
from runtime import ranks
from runtime.faults import leave, watchdog
from tools.checks import CHECKS, Case, Finding, available_bytes, judge
from tools.plan import DRIVER_BYTES, ENGINE_ASLEEP_BYTES, model_shape, plan
from worlds.base_model import World, place_of

LIMIT, LAST_START = 175.0, 130.0  # seconds: of everything; when the last check may begin
DRIVERS = {"12": 525, "13": 580}  # CUDA of the wheels -> the oldest driver
PIN = re.compile(r"^(?:ENGINE := )?([\w.-]+)(?:\[\w+\])?==([\w.]+)", re.M)
ROOT = Path(__file__).resolve().parent.parent
PROCESS_BYTES = 1e9  # host memory of a rank's libraries
SHARED_MEMORY = Path("/dev/shm")


# ---- the machine --------------------------------------------------------------------------------------


def driver(case: Case) -> Finding:
    """The NVIDIA driver is as new as the CUDA of the wheels asks for."""
    cuda, file = torch.version.cuda, ranks.DRIVER
    if not file.exists():
        return judge(f"no NVIDIA driver, wheels for {f'CUDA {cuda}' if cuda else 'the CPU'}", False, "")
    number = re.search(r"Kernel Module.*?\s(\d{3,})\.", file.read_text())[1]
    found, oldest = f"driver {number}, wheels for CUDA {cuda}", DRIVERS.get((cuda or "").split(".")[0], 0)
    if not cuda:
        return judge(found, False, "the wheels cannot use the GPU: remove .venv and `make install` again", True)
    return judge(found, int(number) < oldest, f"CUDA {cuda} needs driver {oldest} or newer: ask for an update, or "
                 "use a container host that has it")


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
    gpus = torch.cuda.device_count() if case.device.type == "cuda" else 1
    found = f"{size} on {case.device.type}, 16 MiB added up in {1e3 * (time.perf_counter() - start):.0f} ms"
    if right and ranks.ranks_per_node() < gpus:
        return judge(f"{found}, but {gpus} GPUs", False, f"torchrun --nproc_per_node={gpus}", slow=True)
    return judge(found, not right, "sums are wrong: NCCL_DEBUG=INFO says over what ranks talk; NCCL_P2P_DISABLE=1 "
                 "and NCCL_IB_DISABLE=1 find the part at fault")


def model_and_questions(case: Case) -> Finding:
    """Tokenizer and template work, and a batch of prompts fits; fills in the built-in world."""
    c = case.config
    if not c.train_files and not place_of(World(pretrain_steps=c.base_steps), WORLDS).exists():
        c = replace(c, base_steps=10)  # a whole base model takes minutes, and is as fast and as large
    case.config = c = with_built_in_world(c)
    tokenizer = load_tokenizer(c, c.model)
    rows = islice(chain.from_iterable(map(read_rows, c.train_files)), 2 * c.batch_size)
    prompts = [render(row["prompt"], c, tokenizer) for row in rows]
    fitting = [ids for ids in prompts if 0 < len(ids) <= c.max_prompt_length]
    case.eos, case.prompts = tokenizer.eos_token_id, list(islice(cycle(fitting), c.batch_size))
    found = f"{c.model}, {len(fitting)} of {len(prompts)} prompts fit into {c.max_prompt_length} tokens"
    return judge(found, not fitting, "raise max_prompt_length: training drops the others",
                 slow=len(fitting) < len(prompts) / 2)


def gpu_memory(case: Case) -> Finding:
    """What vLLM reserves is free, and the update fits beside a sleeping engine (by the plan)."""
    if case.device.type != "cuda":
        return judge("no GPU", False, "")
    c, (free, total) = case.config, torch.cuda.mem_get_info()
    parts = planned(case)
    needed = DRIVER_BYTES + sum(parts.held.values()) + max(
        ENGINE_ASLEEP_BYTES + sum(parts.update.values()), c.rollout_memory * total)
    found = f"{free / 1e9:.0f} of {total / 1e9:.0f} GB free, {needed / 1e9:.0f} planned"
    if free < 0.97 * total - DRIVER_BYTES:
        return judge(found, needed > free, "other processes hold the rest: nvidia-smi names them", slow=True)
    return judge(found, needed > free, "tools.plan says what holds it; lower tokens_per_micro_batch, "
                 "rollout_memory, or use more GPUs")


def host_memory(case: Case) -> Finding:
    """Memory of the host while the ranks of a node load the model; without GPUs everything is there."""
    c, shape, each = case.config, model_shape(case.config.model), ranks.ranks_per_node()
    size = 2 if c.dtype == "bfloat16" else 4
    rank = PROCESS_BYTES + (size if c.lora_rank else 4) * shape.parameters
    if case.device.type == "cpu":
        parts = planned(case)
        engine = size * shape.parameters + 2**30  # VLLM_CPU_KVCACHE_SPACE
        rank = PROCESS_BYTES + engine + sum(parts.held.values()) + sum(parts.update.values())
    free = available_bytes()
    return judge(f"{free / 1e9:.0f} GB free, {each} ranks need about {each * rank / 1e9:.1f}", each * rank > free,
                 "fewer ranks, or a smaller tokens_per_micro_batch where there is no GPU")


def disk(case: Case) -> Finding:
    """Room for the checkpoints: those kept, the best, the one being written; and for the model at the end."""
    c, place = case.config, Path(case.config.run_dir).absolute()
    while not place.exists():
        place = place.parent
    checkpoint = sum(planned(case).held.values()) * ranks.ranks_per_node()
    needed = (c.keep + 2) * checkpoint + 4 * model_shape(c.model).parameters
    free = shutil.disk_usage(place).free
    return judge(f"{free / 1e9:.0f} GB free under {place}, {needed / 1e9:.1f} needed", needed > free,
                 "set run_dir to a larger disk, or lower keep")


def file_limits(case: Case) -> Finding:
    """Open files: libraries and data of a rank, and gloo's sockets to every other rank."""
    limit, needed = resource.getrlimit(resource.RLIMIT_NOFILE)[0], 512 + 8 * ranks.world_size()
    return judge(f"{limit:,} open files a process, {needed:,} needed", limit < needed, "ulimit -n 65536")


def shared_memory(case: Case) -> Finding:
    """Ranks of a node exchange tensors through /dev/shm, which containers make 64 MB small."""
    size, needed = shutil.disk_usage(SHARED_MEMORY).total, 1e9 if ranks.ranks_per_node() > 1 else 0
    return judge(f"{size / 1e9:.1f} GB in {SHARED_MEMORY}", size < needed, "run the container with --ipc=host")


def planned(case: Case):
    """The plan of one rank for the configured micro-batches."""
    c = case.config
    tokens = max(c.tokens_per_micro_batch, c.max_prompt_length + c.max_response_length)
    return plan(c, model_shape(c.model), ranks.ranks_per_node(), tokens, tokens, case.device.type == "cpu")


# ---- the examination ----------------------------------------------------------------------------------

ALL = (driver, wheels, ranks_reach_each_other, model_and_questions, gpu_memory, host_memory, disk, file_limits,
       shared_memory, *CHECKS)


def examine(case: Case, checks: Iterable[Callable[[Case], Finding]], tell: Callable[[str, Finding], None],
            start: float) -> bool:
    """Run the checks in order and `tell` of each; returns whether nothing is wrong.

    A check that raises is wrong and the last one. Of several ranks the worst finding counts.
    """
    good = True
    for check in checks:
        name, elapsed = check.__name__.replace("_", " "), max(ranks.gather(time.monotonic() - start))
        watchdog.limit = max(LIMIT - elapsed, 1.0)
        watchdog.enter(name)
        if elapsed > LAST_START:
            tell(name, Finding("slow", f"not tried, {elapsed:.0f} s are over", "once more: caches are warm now"))
            continue
        try:
            finding = check(case)
        except Exception as error:  # whatever it is, it is what the doctor is asked for
            message = f"{type(error).__name__}: {error}"
            tell(name, Finding("wrong", message, "mend this first: later checks build on it"))
            if os.environ.get("WORLD_SIZE", "1") != "1":
                raise  # other ranks may wait for this one: ranks.run ends them
            return False
        found = ranks.gather(finding)
        worst = max(range(len(found)), key=lambda r: (("ok", "slow", "wrong").index(found[r].verdict), -r))
        finding = found[worst]
        tell(name, replace(finding, found=f"rank {worst}: {finding.found}") if worst else finding)
        good = good and finding.verdict != "wrong"
    return good


def as_text(name: str, finding: Finding) -> str:
    """A line, and what to do below it."""
    line = f"{finding.verdict:5}  {name:22}  {finding.found}"
    return f"{line}\n{'':31}-> {finding.advice}" if finding.advice else line


def as_json(name: str, finding: Finding) -> str:
    """An object a line: nothing is lost where a later check ends the process."""
    return json.dumps({"check": name, **asdict(finding)})


def main() -> None:
    """Examine and leave, with 1 if anything is wrong."""
    start = time.monotonic()
    parser = argparse.ArgumentParser("python -m tools.doctor", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", metavar="FILE", help="YAML file of knobs; flags of train.py override it")
    parser.add_argument("--json", action="store_true", help="a JSON object a line")
    args, flags = parser.parse_known_args()
    case = Case(parse_config(flags + (["--config", args.config] if args.config else [])))
    page = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what else is printed does not belong to the report
    first, form = os.environ.get("RANK", "0") == "0", as_json if args.json else as_text

    def tell(name: str, finding: Finding) -> None:
        if first:
            print(form(name, finding), file=page, flush=True)

    if first and not args.json:
        print(f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads a rank, Python "
              f"{platform.python_version()}, {time.strftime('%F')}, load average before the start "
              f"{os.getloadavg()[0]:.1f}", file=page, flush=True)
    watchdog.configure(f"rank {os.environ.get('RANK', 0)}", {}, LIMIT, 0)
    good = examine(case, ALL, tell, start)
    ranks.barrier()
    watchdog.stop()
    ranks.barrier()  # nobody watches any more: ranks may end one by one
    leave(0 if good else 1)


if __name__ == "__main__":
    ranks.run(main)
