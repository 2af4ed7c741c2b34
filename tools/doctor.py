"""Examine in a minute or two whether this machine is fit for a run.

    python -m tools.doctor                                       # by the tiny model that is shipped
    torchrun --nproc_per_node=8 -m tools.doctor --config configs/own-model.yaml --model DIR

It takes the knobs of train.py and reads no questions: prompts are made up. Each line is a check
that is passed; the first that fails ends the command and says what to do. The policy's weights are
changed in memory only.
"""

import shutil
import sys
from importlib.metadata import version

import numpy as np
import torch

from config import Config, parse_config
from data import load_tokenizer
from policy import MAX_DRIFT, Policy
from rollout import make_engine
from runtime import ranks

SHIPPED = ["--config", "configs/arithmetic.yaml", "--model", "worlds/base"]


def check(what: str, found, good: bool = True) -> None:
    """Print what was found on rank 0; AssertionError on a rank where it is not good."""
    assert good, f"{what}: {found}"
    if ranks.rank() == 0:
        print(f"ok  {what}: {found}", flush=True)


def drift(engine, policy: Policy, config: Config) -> float:
    """Mean |log π_engine - log π_θ| of new responses, in nats a token (a collective)."""
    prompt = np.arange(16, dtype=np.int32)  # any tokens will do
    requests = [(prompt, seed) for seed in range(8)]
    responses = [response for _, response in engine.generate(requests, config.temperature)]
    gaps = []
    for of_rank in ranks.gather(responses):
        pairs = [(prompt, r.token_ids) for r in of_rank]
        for (logprobs, _), r in zip(policy.score(pairs), of_rank):
            gaps.append(np.abs(logprobs - r.logprobs).mean())
    return np.mean(gaps)


def main() -> None:
    """Make the checks; AssertionError for the first that fails."""
    config = parse_config(sys.argv[1:] or SHIPPED)
    config.max_response_length = 32  # of the responses that `drift` compares
    device = ranks.setup()
    check("versions of torch and transformers", [version("torch"), version("transformers")])
    devices = ranks.gather(str(device))
    check("device of each rank", devices)

    ones = torch.ones(1 << 22, device=device)  # 16 MiB
    torch.distributed.all_reduce(ones)
    check("all-reduce (NCCL_DEBUG=INFO says how)", ones, (ones == len(devices)).all())

    shared = shutil.disk_usage("/dev/shm").total / 1e9  # where ranks exchange tensors
    check("shared memory in GB (docker run --ipc=host)", shared, shared >= 1 or len(devices) == 1)

    _, stop_ids = load_tokenizer(config)
    engine = make_engine(config, stop_ids, device)
    engine.sleep()
    policy = Policy(config, device)

    bound = MAX_DRIFT[config.dtype]
    for factor in (1.0, 1.1):
        with torch.no_grad():
            for p in policy.module.parameters():
                p.mul_(factor)
        engine.wake(policy.full_weights(engine.dtype))
        gap = drift(engine, policy, config)
        check(f"log-probs apart by nats a token, weights times {factor}", gap, gap <= bound)
        engine.sleep()


if __name__ == "__main__":
    ranks.run(main)
