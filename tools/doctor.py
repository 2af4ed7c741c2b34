"""Examine in a minute or two whether this machine is fit for a run, before its first step.

    python -m tools.doctor --config configs/arithmetic.yaml
    torchrun --nproc_per_node=8 -m tools.doctor                        # for the paper's run

It takes the knobs of train.py, and no question files: prompts of full length are made up. Each line
of its report says ok or wrong, what was found, and what to do. The exit code is 1 if anything is
wrong. Nothing is trained or saved: the policy's weights are changed in memory only.
"""

import re
import shutil
import sys
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from config import Config, parse_config
from runtime.faults import loading, or_refuse


def parse(argv: list[str] | None = None) -> Config:
    """The knobs of the run that is examined, without its files."""
    given = sys.argv[1:] if argv is None else argv
    config = parse_config([*given, "--train_files", "--val_files"])
    loading()
    return config


CONFIG = or_refuse(parse) if __name__ == "__main__" else None  # refuses before the slow imports

import numpy as np
import torch
import torch.distributed as dist

from buffer import Trajectory
from data import Question, load_tokenizer
from exgrpo import Group
from policy import Policy
from rollout import make_engine
from runtime import ranks
from runtime.chat import turn_ends
from runtime.console import printable
from runtime.faults import leave, out_of_memory_names_knobs, tell_torchrun, watchdog

ROOT = Path(__file__).parent.parent
SHARED_MEMORY = Path("/dev/shm")
ESSENTIAL = ("torch", "transformers", "vllm")  # libraries whose other versions are wrong
START_LIMIT = 1800.0  # seconds of a check; an engine's first start on a GPU compiles
FEW = 8  # questions whose responses are compared
SHORT = 32  # tokens of a response that is compared
NOISE = 0.2  # relative size of the random change of a weight


class Finding(NamedTuple):
    """What a check found, and what to do if that is wrong."""

    found: str
    good: bool
    advice: str


@dataclass
class Case:
    """The run that is examined, and what earlier checks leave for later ones."""

    config: Config
    device: torch.device | None = None
    words: int = 0  # of the tokenizer
    engine: object = None
    policy: Policy | None = None
    pairs: list[tuple] = field(default_factory=list)  # (prompt ids, response ids) that are compared

    def made_up(self, length: int, seed: int) -> np.ndarray:
        """Random token ids, int32 (length,)."""
        rng = np.random.default_rng(seed)
        return rng.integers(self.words, size=length, dtype=np.int32)

    def weights(self):
        """The policy's weights, as a sync sends them to the engine."""
        return self.policy.full_weights(self.engine.dtype)


# ---- the checks; each is a collective ------------------------------------------------------------


def ranks_add_up(case: Case) -> Finding:
    """Join the process group, and let the ranks add up a tensor on their devices."""
    case.device = ranks.setup(START_LIMIT)
    watchdog.enter("ranks add up")
    size = ranks.world_size()
    tensor = torch.full((1 << 22,), float(ranks.rank() + 1), device=case.device)  # 16 MiB
    dist.all_reduce(tensor)
    good = tensor[[0, -1]].tolist() == [size * (size + 1) / 2] * 2
    advice = "NCCL_DEBUG=INFO says how ranks talk; NCCL_P2P_DISABLE=1 leaves out a way"
    return Finding(f"{size} on {case.device.type}", good, advice)


def versions(case: Case) -> Finding:
    """Compare the libraries with the pins; another version of some is only a remark."""
    file = "requirements.txt" if torch.version.cuda else "requirements-cpu.txt"
    pins = re.findall(r"^([\w.-]+)(?:\[\w+\])?==(\S+)", (ROOT / file).read_text(), re.MULTILINE)
    remarks = {}
    for library, pinned in pins:
        found = installed(library)
        if found != pinned:
            remarks[library] = f"{library} {found or 'is missing'}, not {pinned}"
    same = f"{len(pins) - len(remarks)} of {len(pins)} as in {file}"
    good = not remarks.keys() & set(ESSENTIAL)
    return Finding("; ".join([same, *remarks.values()]), good, "`make install` has what was tested")


def installed(library: str) -> str:
    """Its version, without the part that names a build; empty if it is not there."""
    try:
        return version(library).partition("+")[0]
    except PackageNotFoundError:
        return ""


def shared_memory(case: Case) -> Finding:
    """Look whether /dev/shm, where ranks exchange tensors, is not a container's 64 MB."""
    size = shutil.disk_usage(SHARED_MEMORY).total
    good = size >= 1e9 or ranks.ranks_per_node() == 1
    return Finding(f"{size / 1e9:.1f} GB in {SHARED_MEMORY}", good, "docker run --ipc=host")


def engine_starts(case: Case) -> Finding:
    """Start the engine, let it sleep while the policy loads, and wake it with its weights."""
    c = case.config
    tokenizer = load_tokenizer(c, c.model)
    case.words = len(tokenizer)
    case.engine = make_engine(c, turn_ends(c.model, tokenizer), case.device)
    case.engine.sleep()
    case.policy = Policy(c, case.device)
    case.engine.wake(case.weights())
    return Finding(type(case.engine).__name__, True, "")


def log_probs_agree(case: Case) -> Finding:
    """Compare engine and policy, before and after a change of all weights and a sync."""
    bound = case.policy.max_drift
    drift = difference(case)
    before = scores(case)
    torch.manual_seed(ranks.rank() % ranks.ranks_per_node())  # copies on other nodes change alike
    with torch.no_grad():
        for p in case.policy.module.parameters():
            shard = p.to_local()
            shard.mul_(1 + NOISE * torch.randn_like(shard))
    moved = float(np.abs(scores(case) - before).mean())
    case.engine.sleep()
    case.engine.wake(case.weights())
    after = difference(case)
    found = (
        f"drift {drift:.1e} nats a token (at most {bound:g}), {after:.1e} after a change by"
        f" {moved:.2g} and a sync"
    )
    advice = "engine and policy compute different models, or the engine kept old weights"
    return Finding(found, drift <= bound and after <= moved / 4, advice)


def difference(case: Case) -> float:
    """The mean |log-prob difference| of engine and policy on new responses, in nats a token."""
    c = case.config
    length = min(SHORT, c.max_response_length)
    prompts = [case.made_up(c.max_prompt_length, i) for i in range(FEW * ranks.world_size())]

    def work(share: list[int]) -> list:
        asked = [prompts[i] for i in share]
        return case.engine.generate(asked, list(share), c.temperature, length)

    responses = ranks.map_shares([1] * len(prompts), work, c.rollout_tp)
    case.pairs = [(prompt, r.token_ids) for prompt, r in zip(prompts, responses)]
    engine = np.concatenate([r.logprobs for r in responses])
    return float(np.abs(engine - scores(case)).mean())


def scores(case: Case) -> np.ndarray:
    """The policy's log-probs of the responses in `case.pairs`, one after another."""
    return np.concatenate([logprobs for logprobs, _ in case.policy.score(case.pairs)])


def longest_update(case: Case) -> Finding:
    """Update on sequences of full length, two micro-batches as full as they get on every rank."""
    c = case.config
    case.engine.sleep()
    longest = c.max_prompt_length + c.max_response_length
    count = max(c.tokens_per_micro_batch // longest, 1)
    logprobs = np.full(c.max_response_length, -np.log(case.words), dtype=np.float32)
    groups = []
    for i in range(2 * count * ranks.world_size()):
        question = Question(i, "", case.made_up(c.max_prompt_length, i), "", "")
        response = Trajectory(case.made_up(c.max_response_length, i), logprobs)
        groups.append(Group(question, None, [response], np.ones(1, dtype=np.float32)))
    # Nobody sampled these tokens, so the guards of a run do not apply.
    tokens = count * longest
    guards = {"behavior_logprobs": "recompute", "skip_grad_norm": 1e9}
    case.policy.config = replace(c, tokens_per_micro_batch=tokens, **guards)
    with out_of_memory_names_knobs(tokens, c.gradient_checkpointing):
        norm = case.policy.update([groups], None)["loss/grad_norm"]
    found = f"micro-batches of {tokens:,} tokens, gradient norm {norm:.2g}"
    if case.device.type == "cuda":
        peak = torch.cuda.max_memory_reserved() / 1e9
        total = torch.cuda.mem_get_info()[1] / 1e9
        found += f", {peak:.1f} of {total:.0f} GB reserved beside the sleeping engine"
    return Finding(found, bool(0 < norm < np.inf), "no gradient comes through: see versions")


CHECKS = (ranks_add_up, versions, shared_memory, engine_starts, log_probs_agree, longest_update)

# ---- the report ----------------------------------------------------------------------------------


def examine(case: Case, checks=CHECKS) -> bool:
    """Make the checks, print a line of each on rank 0, and return whether all are good.

    The worst finding of all ranks counts. A check that raises ends all ranks, by `ranks.run`.
    """
    all_good = True
    for check in checks:
        name = check.__name__.replace("_", " ")
        watchdog.enter(name)
        findings = ranks.gather(check(case))
        worst = min(range(len(findings)), key=lambda rank: findings[rank].good)
        found, good, advice = findings[worst]
        if ranks.rank() == 0:
            text = f"{'ok   ' if good else 'wrong'}  {name:16}  {found}"
            if not good:
                text += f" (rank {worst})\n{'':25}-> {advice}"
            print(printable(text), flush=True)
        all_good = all_good and good
    return all_good


def main() -> None:
    """Examine this machine, and end this process with code 1 if anything is wrong."""
    good = examine(Case(CONFIG))
    ranks.barrier()
    if not good:
        tell_torchrun("something is wrong with this machine or this run: see the report above")
        leave(1)


if __name__ == "__main__":
    ranks.run(main)
