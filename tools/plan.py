"""The memory of one rank, item by item, from a configuration and the shape of a model; nothing is run.

What is counted follows policy.py: float32 master weights, gradients and AdamW moments sharded over the ranks of a
node, the root's weights (embedding, head, last norm) gathered from forward to backward, two layers gathered at a
time, one float32 copy of a gathered gradient while it is reduced, one chunk of logits. With `lora_rank` only adapters
have master weights, gradients and moments, beside the model in `dtype`; with `offload` all these are in host memory.
tests/test_bench.py holds the sum against a measured update, but for `offload`, which needs a GPU. GB are 1e9 bytes.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

from config import Config, read_yaml
from model import LOGITS_CHUNK

DRIVER_BYTES = 1.5e9  # CUDA context, libraries, NCCL; assumed, not measured
ENGINE_ASLEEP_BYTES = 2.0e9  # what vLLM keeps at sleep level 2 (CUDA graphs, buffers); assumed, not measured


@dataclass(frozen=True)
class Shape:
    """What of a model's config.json its memory depends on (Llama and Qwen2 families)."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool = False
    qkv_bias: bool = False

    @property
    def layer(self) -> int:
        """Parameters of one layer."""
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = self.hidden * (2 * query + 2 * key) + self.qkv_bias * (query + 2 * key)
        return attention + 3 * self.hidden * self.intermediate + 2 * self.hidden

    def adapters(self, rank: int) -> int:
        """Parameters of one layer's LoRA adapters: rank x (inputs + outputs) of its seven matrices."""
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return rank * (2 * (self.hidden + query) + 2 * (self.hidden + key) + 3 * (self.hidden + self.intermediate))

    @property
    def head(self) -> int:
        """Parameters of the embedding or of the output head."""
        return self.vocabulary * self.hidden

    @property
    def root(self) -> int:
        """Parameters outside the layers."""
        return (1 if self.tied else 2) * self.head + self.hidden

    @property
    def parameters(self) -> int:
        return self.layers * self.layer + self.root


SHAPES = {
    "Qwen2.5-Math-7B": Shape(3584, 28, 28, 4, 128, 18944, 152_064, qkv_bias=True),
    "Qwen2.5-7B-Instruct": Shape(3584, 28, 28, 4, 128, 18944, 152_064, qkv_bias=True),
    "Qwen2.5-Math-1.5B": Shape(1536, 28, 12, 2, 128, 8960, 151_936, tied=True, qkv_bias=True),
    "Llama-3.1-8B": Shape(4096, 32, 32, 8, 128, 14336, 128_256),
    "Llama-3.1-8B-Instruct": Shape(4096, 32, 32, 8, 128, 14336, 128_256),
}


def model_shape(model: str) -> Shape:
    """The shape of a model of the table by the last part of its name, or of a local directory's config.json."""
    file = Path(model) / "config.json"
    if not file.exists():
        name = model.rstrip("/").split("/")[-1]
        if name not in SHAPES:
            raise ValueError(f"no shape of {model!r}: known are {', '.join(SHAPES)}, or a local directory with a config.json")
        return SHAPES[name]
    c = json.loads(file.read_text())
    heads = c["num_attention_heads"]
    return Shape(c["hidden_size"], c["num_hidden_layers"], heads, c.get("num_key_value_heads") or heads,
                 c.get("head_dim") or c["hidden_size"] // heads, c["intermediate_size"], c["vocab_size"],
                 c.get("tie_word_embeddings", False), c["model_type"] == "qwen2")


@dataclass(frozen=True)
class Budget:
    """Bytes of one rank."""

    held: dict[str, float]  # all the time: weights, optimiser
    update: dict[str, float]  # during the update, at its worst moment
    sync: dict[str, float]  # while weights go to the engine
    host: float  # in host memory, all the time, with `offload`


def activation_bytes(shape: Shape, compute: int, on_cpu: bool, lora_rank: int) -> float:
    """What the backward pass needs of one layer, per token: inputs of norms in float32, of everything else as computed.

    On the CPU attention is computed in float32 (model.py), beside an output that is cast back.
    """
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    norms = 2 * (4 + (1 if lora_rank else 2) * compute) * shape.hidden  # float32 input, normalised (for γ's gradient), scaled
    attention = compute * (3 * query + 2 * key) + 4 * shape.heads  # q, k, v, output, log-sum-exp; output of shared prompts once
    if on_cpu:
        attention = 4 * (2 * query + 2 * key + shape.heads) + compute * query
    return norms + attention + compute * (4 * shape.intermediate + 7 * lora_rank)  # gate, its activation, up, product; A x


def budget(config: Config, shape: Shape, ranks: int, tokens: int, responses: int, on_cpu: bool = False) -> Budget:
    """Bytes per rank for micro-batches of `tokens` tokens, `responses` of them in responses."""
    compute, n, rank = (2 if config.dtype == "bfloat16" else 4), shape.parameters, config.lora_rank
    shards = ranks if config.shard else 1
    frozen, trained = (n, shape.layers * shape.adapters(rank)) if rank else (0, n)
    trained_layer, trained_head, trained_root = (shape.adapters(rank), 0, 0) if rank else (shape.layer, shape.head, shape.root)
    layer = activation_bytes(shape, compute, on_cpu, rank) * tokens
    kept = compute * shape.hidden * tokens * shape.layers if config.gradient_checkpointing else layer * shape.layers
    chunk = 4 * min(LOGITS_CHUNK, responses * shape.vocabulary)
    edges = (4 + 3 * compute) * shape.hidden * tokens  # last norm, hidden states of the responses, gradient of the stream
    # the moments at which the sum may peak: in the head, in the first layer to run backward, in the root's reduction
    # forward: log-probs, probabilities, their product; backward: two of them, in bfloat16 also a copy of the gradient
    head = max(3 * chunk, 2 * chunk + 4 * trained_head if compute == 4 else 2.5 * chunk + 6 * trained_head)
    buffers = (compute + 4) * trained_layer  # of a layer's gradient, as computed and in float32
    in_layer = (layer if config.gradient_checkpointing else 0) + 3 * compute * shape.intermediate * tokens
    moments = {"head": head, "layer": in_layer + buffers + compute * trained_head,
               "root": (compute + 4) * trained_root - (kept + edges)}
    worst = max(moments, key=moments.get)
    how = "checkpointed" if config.gradient_checkpointing else "all kept"
    here, away = (0.0, 1 / shards) if config.offload else (1 / shards, 0.0)  # a rank's share, on the GPU and off it
    kind = f"{config.dtype}, adapters float32" if rank else "float32"
    held = {f"weights ({kind}, sharded)": here * (compute * frozen + 4 * trained),
            "optimiser (two float32 moments, sharded)": here * 8 * trained}
    update = {
        "gradients (float32, sharded)": here * 4 * trained,
        "gathered weights: embedding and head": compute * shape.root,
        "gathered weights: two layers": 2 * compute * (shape.layer + shape.adapters(rank)),
        f"activations ({how})": 0 if worst == "root" else kept + edges,
    }
    if worst == "head":
        update |= {"chunk of logits with its gradient, gradient of the head": head}
    elif worst == "layer":
        update |= {"one layer recomputed and its gradients": in_layer,
                   "gather buffers: a layer's gradient, reduced in float32": buffers,
                   "gradient of the head": compute * trained_head}
    else:
        update |= {"gather buffers: the root's gradient, reduced in float32": (compute + 4) * trained_root}
    if config.offload:  # weights on their way to the GPU, gradients on theirs back: of a layer, or of the root
        update |= {"copies between host and GPU": away * 8 * max(shape.layer, shape.root)}
    engine = 2 if config.rollout_dtype == "bfloat16" else 4
    sync = {"one weight gathered for the engine": engine * max(shape.head, shape.layer)}
    if rank:  # a rank's rows of W, of B A and of their sum
        sync |= {"adapters merged, in float32": 12 * shape.hidden * shape.intermediate / shards}
    return Budget(held, update, sync, host=away * (compute * frozen + 16 * trained))


def print_plan(file: str, gpus: int, gigabytes: float) -> None:
    """The budget of a configuration on GPUs of `gigabytes` each, for the three phases of a step."""
    config = Config(**read_yaml(file) | {"train_files": [], "val_files": []})  # the files need not exist
    shape = model_shape(config.model)
    longest = config.max_prompt_length + config.max_response_length
    tokens = max(config.tokens_per_micro_batch, longest)
    plan, total = budget(config, shape, gpus, tokens, tokens), gigabytes * 1e9
    engine = config.rollout_memory * total
    weights = (2 if config.rollout_dtype == "bfloat16" else 4) * shape.parameters / config.rollout_tp
    note = " (the longest sequence)" if tokens == longest else ""
    print(f"{config.model}: {shape.parameters / 1e9:.2f} billion parameters, {gpus} GPU{'s' * (gpus > 1)} of {gigabytes:g} GB, "
          f"compute in {config.dtype},\nmicro-batches of {tokens:,} tokens{note}, "
          f"checkpointing {'on' if config.gradient_checkpointing else 'off'}\n")
    print("| GB per rank | rollout | update | sync |\n|---|---|---|---|")
    sums = [0.0, 0.0, 0.0]

    def row(name: str, *values: float) -> None:
        print(f"| {name} | {' | '.join(f'{v / 1e9:.1f}' if v else '' for v in values)} |")
        for i, value in enumerate(values):
            sums[i] += value

    row("CUDA, NCCL (assumed)", *[DRIVER_BYTES] * 3)
    for name, value in plan.held.items():
        row(name, value, value, value)
    for name, value in plan.update.items():
        row(name, 0, value, 0)
    row("engine: weights", weights, 0, weights)
    row("engine: the rest of rollout_memory (KV cache, activations)", engine - weights, 0, 0)
    row("engine asleep (assumed)", 0, ENGINE_ASLEEP_BYTES, ENGINE_ASLEEP_BYTES)
    for name, value in plan.sync.items():
        row(name, 0, 0, value)
    print(f"| **sum** | {' | '.join(f'**{s / 1e9:.1f}**' for s in sums)} |")
    size = 2 if config.rollout_dtype == "bfloat16" else 4
    token = 2 * shape.layers * shape.kv_heads * shape.head_dim * size / config.rollout_tp
    room = (engine - weights - 2e9) / token
    loading = (2 if config.lora_rank and config.dtype == "bfloat16" else 4) * shape.parameters
    print(f"\nHost memory: {loading / 1e9:.1f} GB per rank while the model loads, {gpus * loading / 1e9:.0f} GB on the node"
          + (f"; later {plan.host / 1e9:.1f} GB per rank, {gpus * plan.host / 1e9:.0f} GB on the node, for what is offloaded."
             if plan.host else "."))
    print(f"The KV cache holds about {max(room, 0):,.0f} tokens ({max(room, 0) / longest:.0f} sequences of full length).")
    free = total - max(sums)
    if free < 0 or room < longest:
        problem = f"{-free / 1e9:.1f} GB too much" if free < 0 else "the cache is too small; raise rollout_memory"
        print(f"It does not fit: {problem}.\n"
              "Lower tokens_per_micro_batch or rollout_memory, turn on gradient_checkpointing, set lora_rank, or use more GPUs.")
    else:
        print(f"It fits, with {free / 1e9:.1f} GB ({free / total:.0%}) to spare for fragmentation.")


def main() -> None:
    """Print the plan of a configuration file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="YAML file of knobs")
    parser.add_argument("--gpus", type=int, default=8, help="ranks that share a model: GPUs of a node")
    parser.add_argument("--memory", type=float, default=80.0, help="memory of a GPU in GB (1e9 bytes)")
    args = parser.parse_args()
    print_plan(args.config, args.gpus, args.memory)


if __name__ == "__main__":
    main()
