"""Examine in about two minutes whether this machine is fit for a run, before its first step.

    python -m tools.doctor --config configs/arithmetic.yaml     # the built-in run
    torchrun --nproc_per_node=8 -m tools.doctor                 # the paper's run

It takes the knobs of train.py. Each line of its report says ok, slow or wrong, what was found, and
what to do. The exit code is 1 if anything is wrong. Nothing is trained or saved: the policy's
weights are changed in memory only. A check may take five minutes, and the engine's start on a GPU
half an hour, as the first one compiles.

    python -m tools.doctor --config configs/qwen2.5-math-7b.yaml --gpus 8 --memory 80

This command examines nothing. It prints by formula (runtime/memory.py) what a rank would hold on a
node of so many GPUs of so many GB (1e9 bytes) each, and whether it fits. Of the model it needs the
shape only: a local directory has it in its config.json, and the paper's five models are known. With
tokens_per_micro_batch auto it counts the least, one sequence of full length.
"""

import argparse
import json
import math
import os
from pathlib import Path

from config import Config, parse_config, ready
from runtime.console import printable
from runtime.faults import or_refuse
from runtime.memory import (
    DRIVER_BYTES,
    ENGINE_ASLEEP_BYTES,
    RESERVED,
    Shape,
    budget,
    bytes_per_weight,
)

ENGINE_ACTIVATION_BYTES = 2e9  # of rollout_memory, beside weights and cache; assumed, not measured

SHAPES = {
    "Qwen2.5-Math-7B": Shape(3584, 28, 28, 4, 128, 18944, 152_064, qkv_bias=True),
    "Qwen2.5-7B-Instruct": Shape(3584, 28, 28, 4, 128, 18944, 152_064, qkv_bias=True),
    "Qwen2.5-Math-1.5B": Shape(1536, 28, 12, 2, 128, 8960, 151_936, tied=True, qkv_bias=True),
    "Llama-3.1-8B": Shape(4096, 32, 32, 8, 128, 14336, 128_256),
    "Llama-3.1-8B-Instruct": Shape(4096, 32, 32, 8, 128, 14336, 128_256),
}


# ---- the machine that is there -------------------------------------------------------------------


def examine_machine(config: Config) -> None:
    """Print a line for every check, and end this process with code 1 if anything is wrong."""
    import torch

    from runtime import ranks
    from runtime.faults import leave, tell_torchrun, watchdog
    from tools.checks import LIMIT, MACHINE, Case, examine
    from tools.trials import TRIALS

    page = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no part of the report, so it goes to stderr

    def tell(line: str) -> None:
        print(printable(line), file=page, flush=True)

    rank = os.environ.get("RANK", "0")
    if rank == "0":
        threads = torch.get_num_threads()
        tell(f"{os.cpu_count()} cores, {threads} threads a rank, torch {torch.__version__}")
    watchdog.configure(f"rank {rank}", {}, LIMIT, 0)  # ranks may wait for each other from the start
    good = examine(Case(config), MACHINE + TRIALS, tell)
    watchdog.stop()
    ranks.barrier()  # nobody watches any more: ranks may end one by one
    if not good:
        tell_torchrun("something is wrong with this machine or this run: see the report above")
        leave(1)


# ---- a machine that is elsewhere -----------------------------------------------------------------


def shape_of(model: str) -> Shape:
    """The shape in a local directory's config.json, or that of a model in SHAPES.

    There the last part of the model's name counts. ValueError if the model is neither.
    """
    file = Path(model) / "config.json"
    if file.exists():
        return Shape.of(json.loads(file.read_text()))
    name = model.rstrip("/").split("/")[-1]
    if name not in SHAPES:
        raise ValueError(
            f"{model} has no config.json. Give --model a local directory that has one, or one of "
            f"{', '.join(SHAPES)}"
        )
    return SHAPES[name]


def print_formula(c: Config, gpus: int, gigabytes: float) -> None:
    """Print what a rank holds in the three phases of a step, and whether it fits.

    The node has `gpus` GPUs of `gigabytes` GB each.
    """
    shape = shape_of(c.model)
    total = gigabytes * 1e9
    stored = bytes_per_weight(c) * shape.parameters
    longest = c.max_prompt_length + c.max_response_length
    tokens = max(c.tokens_per_micro_batch or 0, longest)

    engine = c.rollout_memory * total
    weights = stored / c.rollout_tp
    parts = budget(c, shape, gpus, tokens, tokens, "cuda")
    driver = {"CUDA, NCCL (assumed)": DRIVER_BYTES}
    awake = {"engine: weights": weights}
    cache = {"engine: the rest of rollout_memory (KV cache, activations)": engine - weights}
    asleep = {"engine asleep (assumed)": ENGINE_ASLEEP_BYTES}
    tensors = [parts.held | part for part in (parts.scoring, parts.update, parts.sync)]
    others = [awake | cache, asleep, awake | asleep]
    phases = [driver | ours | other for ours, other in zip(tensors, others)]
    allocated = [sum(phase.values()) for phase in phases]
    gaps = [(RESERVED["cuda"] - 1) * sum(ours.values()) for ours in tensors]
    reserved = [a + b for a, b in zip(allocated, gaps)]

    print(
        f"{printable(c.model)}: {shape.parameters / 1e9:.2f} billion parameters, "
        f"{gpus} x {gigabytes:g} GB, compute in {c.dtype},\n"
        f"micro-batches of {tokens:,} tokens, "
        f"checkpointing {'on' if c.gradient_checkpointing else 'off'}\n"
    )
    print("| GB per rank | rollout | update | sync |\n|---|---|---|---|")
    for item in dict.fromkeys(item for phase in phases for item in phase):
        print_row(item, [phase.get(item) for phase in phases])
    print_row("allocated", allocated)
    print_row("gaps between the policy's tensors (assumed)", gaps)
    print_row("reserved", reserved)

    bytes_per_token = 2 * shape.layers * shape.key * bytes_per_weight(c) / c.rollout_tp
    room = max((engine - weights - ENGINE_ACTIVATION_BYTES) / bytes_per_token, 0)
    print(
        f"\nThe KV cache holds about {room:,.0f} tokens ({room / longest:.0f} sequences of full"
        " length)."
    )
    spare = (total - max(reserved)) / 1e9
    if gpus % c.rollout_tp:
        print(f"It does not run: rollout_tp {c.rollout_tp} must divide the number of GPUs.")
    elif room < longest:
        print("It does not fit: the cache is too small; raise rollout_memory.")
    elif spare < 0:
        print(
            f"It does not fit: {-spare:.1f} GB too much. Lower tokens_per_micro_batch or"
            " rollout_memory, turn on gradient_checkpointing, set lora_rank, or use more GPUs."
        )
    else:
        print(f"It fits, with {spare:.1f} GB ({spare / gigabytes:.0%}) to spare.")


def print_row(item: str, phases: list[float | None]) -> None:
    """Print a row of the table, in GB; a cell is empty where a phase holds none of the item."""
    cells = [f"{size / 1e9:.1f}" if size else "" for size in phases]
    print(f"| {item} | {' | '.join(cells)} |")


# ---- the command ---------------------------------------------------------------------------------


def main() -> None:
    """Examine this machine, or print the formula if the flags describe another one."""
    parser = argparse.ArgumentParser(
        "python -m tools.doctor",
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--gpus", type=int, help="The GPUs of a node, for the formula.")
    parser.add_argument("--memory", type=float, help="The GB of each of them, for the formula.")
    args, flags = parser.parse_known_args()
    if args.gpus is None and args.memory is None:
        config = or_refuse(lambda: here(flags))
        from runtime import ranks

        ranks.run(lambda: examine_machine(config))
    elif not (args.gpus and args.gpus > 0 and args.memory and 0 < args.memory < math.inf):
        parser.error("the formula takes both: --gpus at least 1, --memory a number of GB above 0")
    else:
        or_refuse(lambda: print_formula(elsewhere(flags), args.gpus, args.memory))


def here(flags: list[str]) -> Config:
    """The configuration of a run on this machine, where its reward works."""
    config = parse_config(flags)
    ready(config, config.train_files)
    return config


def elsewhere(flags: list[str]) -> Config:
    """The configuration of a run elsewhere, whose files and engine need not be here."""
    return parse_config([*flags, "--train_files", "--val_files", "--engine", "auto"])


if __name__ == "__main__":
    main()
