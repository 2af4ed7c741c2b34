"""The memory of one rank, item by item, from a configuration and the shape of a model; nothing is run.

    python -m tools.plan configs/qwen2.5-math-7b.yaml --gpus 8 --memory 80

The formula and what it counts are in runtime/memory.py. GB are 1e9 bytes.
"""

import argparse
import json
import math
from pathlib import Path

from config import Config
from runtime.console import printable
from runtime.flags import or_refuse, parse_flags
from runtime.memory import Budget, Shape, budget, tokens_that_fit

DRIVER_BYTES = 1.5e9  # CUDA context, libraries, NCCL; assumed, not measured
ENGINE_ASLEEP_BYTES = 2.0e9  # what vLLM keeps at sleep level 2 (CUDA graphs, buffers); assumed, not measured
BYTES_A_SECOND = 2.3e12  # that a GPU reads of its memory: 70% of an H100's 3.35e12; assumed, not measured

SHAPES = {
    "Qwen2.5-Math-7B": Shape(3584, 28, 28, 4, 128, 18944, 152_064, qkv_bias=True),
    "Qwen2.5-7B-Instruct": Shape(3584, 28, 28, 4, 128, 18944, 152_064, qkv_bias=True),
    "Qwen2.5-Math-1.5B": Shape(1536, 28, 12, 2, 128, 8960, 151_936, tied=True, qkv_bias=True),
    "Llama-3.1-8B": Shape(4096, 32, 32, 8, 128, 14336, 128_256),
    "Llama-3.1-8B-Instruct": Shape(4096, 32, 32, 8, 128, 14336, 128_256),
}


def model_shape(model: str) -> Shape:
    """The shape of a model of the table by the last part of its name, or of a local directory's
    config.json."""
    file = Path(model) / "config.json"
    if not file.exists():
        name = model.rstrip("/").split("/")[-1]
        if name not in SHAPES:
            raise ValueError(f"no shape of {model!r}: known are {', '.join(SHAPES)}, or with --model DIR a "
                             "local directory with a config.json")
        return SHAPES[name]
    return Shape.of(json.loads(file.read_text()))


def plan(c: Config, shape: Shape, ranks: int, tokens: int, responses: int, device: str = "cuda") -> Budget:
    """The budget of one rank for micro-batches of `tokens` tokens, `responses` of them in responses."""
    return budget(shape, ranks, tokens, responses, dtype=c.dtype, lora_rank=c.lora_rank, device=device,
                  gradient_checkpointing=c.gradient_checkpointing)


def table(phases: list[dict[str, float]]) -> tuple[list[str], list[float]]:
    """Lines of a Markdown table of {item: bytes} for each phase in GB, and each phase's sum in bytes."""
    names = dict.fromkeys(name for phase in phases for name in phase)
    lines = []
    for name in names:
        values = [phase.get(name, 0) for phase in phases]
        lines.append(f"| {name} | {' | '.join(f'{v / 1e9:.1f}' if v else '' for v in values)} |")
    sums = [sum(phase.values()) for phase in phases]
    return [*lines, f"| **sum** | {' | '.join(f'**{s / 1e9:.1f}**' for s in sums)} |"], sums


def print_plan(file: str, gpus: int, gigabytes: float, model: str = "") -> None:
    """The budget of a configuration on GPUs of `gigabytes` each, for the three phases of a step; of another
    model than it names, where one is given."""
    elsewhere = {"train_files": [], "val_files": [], "engine": "auto"}  # no file, no engine need be here
    knobs = parse_flags(Config, ["--config", file], "", Config)
    config = Config(**knobs | elsewhere | ({"model": model} if model else {}))
    shape, total = model_shape(config.model), gigabytes * 1e9
    longest = config.max_prompt_length + config.max_response_length
    size, trained = 2 if config.dtype == "bfloat16" else 4, 0 if config.lora_rank else shape.parameters
    free = total - DRIVER_BYTES - ENGINE_ASLEEP_BYTES - (4 * trained or size * shape.parameters) / gpus
    chosen = config.tokens_per_micro_batch or tokens_that_fit(
        shape, gpus, free, device="cuda", dtype=config.dtype, lora_rank=config.lora_rank,
        gradient_checkpointing=config.gradient_checkpointing)
    tokens = max(chosen, longest)
    weights, engine = size * shape.parameters / config.rollout_tp, config.rollout_memory * total
    parts = plan(config, shape, gpus, tokens, tokens)
    always = {"CUDA, NCCL (assumed)": DRIVER_BYTES, **parts.held}
    asleep = {"engine asleep (assumed)": ENGINE_ASLEEP_BYTES}
    rest = {"engine: the rest of rollout_memory (KV cache, activations)": engine - weights}
    lines, sums = table([always | parts.scoring | {"engine: weights": weights} | rest,
                         always | parts.update | asleep,
                         always | {"engine: weights": weights} | asleep | parts.sync])

    note = " (the longest sequence)" if tokens == longest else ""
    print(f"{printable(config.model)}: {shape.parameters / 1e9:.2f} billion parameters, "
          f"{gpus} GPU{'s' * (gpus > 1)} of {gigabytes:g} GB, compute in {config.dtype},\n"
          f"micro-batches of {tokens:,} tokens{note}, "
          f"checkpointing {'on' if config.gradient_checkpointing else 'off'}\n")
    print("\n".join(["| GB per rank | rollout | update | sync |", "|---|---|---|---|", *lines]))
    loading = 2 * shape.parameters
    print(f"\nHost memory: {loading / 1e9:.1f} GB per rank while the model (stored in 16 bits) loads, "
          f"{gpus * loading / 1e9:.0f} GB on the node.")
    token = 2 * shape.layers * shape.key * size / config.rollout_tp
    room = max((engine - weights - 2e9) / token, 0)
    print(f"The KV cache holds about {room:,.0f} tokens ({room / longest:.0f} sequences of full length).")
    print(f"A response of {config.max_response_length:,} tokens takes at least "
          f"{config.max_response_length * weights / BYTES_A_SECOND:.0f} s: for each of them a GPU reads "
          f"{weights / 1e9:.1f} GB of weights (1/rollout_tp), {BYTES_A_SECOND / 1e12:g} TB a second assumed.")
    free = total - max(sums)
    if gpus % config.rollout_tp:
        print(f"It does not run: rollout_tp {config.rollout_tp} must divide the number of GPUs.")
    elif free < 0 or room < longest:
        why = f"{-free / 1e9:.1f} GB too much" if free < 0 else "the cache is too small; raise rollout_memory"
        print(f"It does not fit: {why}.\nLower "
              "tokens_per_micro_batch or rollout_memory, turn on gradient_checkpointing, set lora_rank, or "
              "use more GPUs.")
    else:
        print(f"It fits, with {free / 1e9:.1f} GB ({free / total:.0%}) to spare for fragmentation.")


def main() -> None:
    """Print the plan of a configuration file."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="YAML file of knobs")
    parser.add_argument("--model", default="", help="directory with a config.json, in place of the file's")
    parser.add_argument("--gpus", type=int, default=8, help="ranks that share a model: GPUs of a node")
    parser.add_argument("--memory", type=float, default=80.0, help="memory of a GPU in GB (1e9 bytes)")
    args = parser.parse_args()
    if args.gpus < 1 or not 0 < args.memory < math.inf:
        parser.error("--gpus must be at least 1, --memory a number of GB above 0")
    print_plan(args.config, args.gpus, args.memory, args.model)


if __name__ == "__main__":
    or_refuse(main)
