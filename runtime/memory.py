"""The memory of one rank, item by item; `python -m tools.doctor --gpus N --memory GB` prints it.

What is counted follows policy.py: float32 master weights, gradients and AdamW moments sharded over
the ranks of a node, the root's weights (embedding, head, last norm) gathered from forward to
backward, two layers gathered at a time, one float32 copy of a gathered gradient while it is
reduced, one chunk of logits. With LoRA only adapters have master weights, gradients and moments,
beside the model in `dtype`. tests/tools/test_doctor.py holds the sum against a measured update.

`c` is what has the knobs dtype, lora_rank and gradient_checkpointing, a Config say.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")  # of a container, on Linux
# Elements of float32 logits held at once. On a GPU a chunk reads and writes the gradient of the
# head once: 2**28, 1 GiB, should keep that below a fifth of the arithmetic (152,064 words, H100,
# reckoned, not run).
LOGITS_CHUNK = {"cpu": 2**24, "cuda": 2**28}
PROCESS_BYTES = 1e9  # host memory of a rank's libraries
DRIVER_BYTES = 1.5e9  # CUDA context, libraries, NCCL; assumed, not measured
ENGINE_ASLEEP_BYTES = (
    2.0e9  # what vLLM keeps at sleep level 2 (CUDA graphs, buffers); assumed, not measured
)
KV_CACHE_ON_CPU = 2**29  # bytes, of a rank's engine
MOMENTS = "optimiser (two float32 moments, sharded)"


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

    @classmethod
    def of(cls, c: dict) -> "Shape":
        """The shape that a config.json describes; ValueError for a family of other names."""
        try:
            hidden = c["hidden_size"]
            layers = c["num_hidden_layers"]
            heads = c["num_attention_heads"]
            intermediate = c["intermediate_size"]
            vocabulary = c["vocab_size"]
        except KeyError as missing:
            raise ValueError(
                f"a model of type {c.get('model_type')} is not built in: its config.json has no "
                f"{missing.args[0]}"
            ) from missing
        kv_heads = c.get("num_key_value_heads") or heads
        head_dim = c.get("head_dim") or hidden // heads
        tied = c.get("tie_word_embeddings", False)
        qkv_bias = c["model_type"] == "qwen2"
        return cls(
            hidden, layers, heads, kv_heads, head_dim, intermediate, vocabulary, tied, qkv_bias
        )

    @property
    def query(self) -> int:
        """Outputs of the query projection."""
        return self.heads * self.head_dim

    @property
    def key(self) -> int:
        """Outputs of the key projection, and of the value projection."""
        return self.kv_heads * self.head_dim

    @property
    def layer(self) -> int:
        """Parameters of one layer."""
        attention = self.hidden * 2 * (self.query + self.key) + self.qkv_bias * (
            self.query + 2 * self.key
        )
        return attention + 3 * self.hidden * self.intermediate + 2 * self.hidden

    def adapters(self, rank: int) -> int:
        """Parameters of one layer's LoRA adapters: rank x
        (inputs + outputs) of its seven matrices.
        """
        attention = 2 * (self.hidden + self.query) + 2 * (self.hidden + self.key)
        return rank * (attention + 3 * (self.hidden + self.intermediate))

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


@dataclass(frozen=True)
class Budget:
    """Bytes of one rank."""

    held: dict[str, float]  # all the time: weights, optimiser
    update: dict[str, float]  # during the update, at its worst moment
    sync: dict[str, float]  # while weights go to the engine
    scoring: dict[str, float]  # while stored responses are scored, the engine awake


def budget(c, shape: Shape, ranks: int, tokens: int, responses: int, device: str) -> Budget:
    """Bytes per rank for micro-batches of `tokens` tokens, `responses` of them in responses.

    device: "cpu" or "cuda". `moments` are those at which the sum may peak.
    """
    compute = bytes_per_weight(c)
    rank = c.lora_rank
    on_cpu = device == "cpu"
    n = shape.parameters
    adapters = shape.adapters(rank)
    frozen, trained = (n, shape.layers * adapters) if rank else (0, n)
    layer_trained, head_trained, root_trained = (
        (adapters, 0, 0) if rank else (shape.layer, shape.head, shape.root)
    )
    layer = activation_bytes(shape, compute, on_cpu, rank) * tokens
    kept = (compute * shape.hidden * tokens if c.gradient_checkpointing else layer) * shape.layers
    # last norm, hidden states of the responses, gradient of the stream
    copied = on_cpu and compute == 2  # the head's factors, to float32
    kept += (4 + 2 * compute + 4 * copied) * shape.hidden * tokens
    recomputed = (
        layer if c.gradient_checkpointing else 0
    ) + 3 * compute * shape.intermediate * tokens
    activations = f"activations ({'checkpointed' if c.gradient_checkpointing else 'all kept'})"
    chunk = 4 * min(LOGITS_CHUNK[device], responses * shape.vocabulary)
    head = head_bytes(chunk, head_trained, compute == 4 or copied) + 4 * copied * shape.head
    moments = [
        {activations: kept, "chunk of logits with its gradient, gradient of the head": head},
        {
            activations: kept,  # the first layer to run backward
            "one layer recomputed and its gradients": recomputed,
            "gather buffers: a layer's gradient, reduced in float32": (compute + 4) * layer_trained,
            "gradient of the head": compute * head_trained,
        },
        {"gather buffers: the root's gradient, reduced in float32": (compute + 4) * root_trained},
    ]
    kind = f"{c.dtype}, adapters float32" if rank else "float32"
    held = {
        f"weights ({kind}, sharded)": (compute * frozen + 4 * trained) / ranks,
        MOMENTS: 8 * trained / ranks,
    }
    gathered = {
        "gathered weights: embedding and head": compute * shape.root,
        "gathered weights: two layers": 2 * compute * (shape.layer + adapters),
    }
    update = {
        "gradients (float32, sharded)": 4 * trained / ranks,
        **gathered,
        **max(moments, key=lambda items: sum(items.values())),
    }
    scoring = gathered | {"scoring: one layer's activations, or logits": max(layer, 3 * chunk)}
    sync = {"one weight gathered for the engine": compute * max(shape.head, shape.layer)}
    if rank:  # a rank's rows of W, of B A and of their sum
        sync |= {"adapters merged, in float32": 12 * shape.hidden * shape.intermediate / ranks}
    return Budget(held, update, sync, scoring)


def bytes_per_weight(c) -> int:
    """Of what a forward pass computes with."""
    return 2 if c.dtype == "bfloat16" else 4


def update_bytes(c, shape: Shape, ranks: int, tokens: int, device: str) -> float:
    """What the first update still takes of one rank, once the weights are there.

    AdamW's moments and the update at its worst; some for fragments, on a CPU a quarter, as malloc
    loses.
    """
    parts = budget(c, shape, ranks, tokens, tokens, device)
    used = 0.75 if device == "cpu" else 0.9
    return parts.held[MOMENTS] + sum(parts.update.values()) / used


def tokens_that_fit(c, shape: Shape, ranks: int, free: float, device: str) -> int:
    """The largest micro-batch, in tokens, whose update fits into `free` bytes.

    In steps of two, so that equal runs choose alike; at most 4,096 on a CPU and 16,384 on a GPU,
    beyond which they bring no speed, and at least 256, come what may.
    """
    tokens = 4096 if device == "cpu" else 16384
    while tokens > 256 and update_bytes(c, shape, ranks, tokens, device) > free:
        tokens //= 2
    return tokens


def host_needs(c, shape: Shape, ranks: int) -> tuple[str, bool]:
    """Where there is no GPU: a line on what a rank takes of the host, and whether so much is free.

    Libraries, engine, cache, all of training. A micro-batch holds the longest sequence at least; by
    auto it takes no more than 256 tokens if it must.
    """
    tokens = max(c.tokens_per_micro_batch or 256, c.max_prompt_length + c.max_response_length)
    parts = budget(c, shape, ranks, tokens, tokens, "cpu")
    engine = bytes_per_weight(c) * shape.parameters + KV_CACHE_ON_CPU
    needed = PROCESS_BYTES + engine + sum(parts.held.values()) + sum(parts.update.values())
    free = free_bytes("cpu", ranks)
    line = f"about {needed / 1e9:.1f} GB of memory needed by each of {ranks} ranks"
    return f"{line}, {free / 1e9:.1f} free for it", needed <= free


def free_bytes(device: str, ranks: int) -> float:
    """What this rank may still take: all that is free on its GPU, or its share of the host's."""
    if device == "cpu":
        return available_bytes() / ranks
    import torch

    free, _ = torch.cuda.mem_get_info()
    return free


def head_bytes(chunk: float, trained: int, in_float32: bool) -> float:
    """The output head at its worst: a chunk of float32 logits,
    and `trained` parameters of the head.

    Forward: log-probs, probabilities, their product; backward: two of them, and on a GPU in
    bfloat16 a copy of the gradient, and its product before it is added.
    """
    return max(3 * chunk, 2 * chunk + 4 * trained if in_float32 else 2.5 * chunk + 8 * trained)


def activation_bytes(shape: Shape, compute: int, on_cpu: bool, lora_rank: int) -> float:
    """What the backward pass needs of one layer, per token:
    the inputs of everything, of norms in float32.

    On the CPU attention is computed in float32 (model.py), beside an output that is cast back.
    """
    # Float32 input, normalised (for γ's gradient), scaled.
    norm = 4 + (1 if lora_rank else 2) * compute
    # q, k, v, output, that of shared prompts; log-sum-exp
    attention = compute * (3 * shape.query + 2 * shape.key) + 4 * shape.heads
    if on_cpu:
        attention = 4 * (2 * shape.query + 2 * shape.key + shape.heads) + compute * shape.query
    # Gate, its activation, up, product; A x.
    mlp = compute * (4 * shape.intermediate + 7 * lora_rank)
    return 2 * norm * shape.hidden + attention + mlp


def available_bytes() -> float:
    """Host memory that is free or can be freed, within a container's limit."""
    import psutil

    free = psutil.virtual_memory().available
    limit, used, stat = (CGROUP / name for name in ("memory.max", "memory.current", "memory.stat"))
    if limit.exists() and limit.read_text().strip() != "max":
        cached = re.search(r"^inactive_file (\d+)", stat.read_text(), re.MULTILINE)
        # Files that were read can go.
        taken = int(used.read_text()) - (int(cached[1]) if cached else 0)
        free = min(free, int(limit.read_text()) - taken)
    return free


@contextmanager
def advice(tokens_per_micro_batch: int | str, gradient_checkpointing: bool) -> Iterator[None]:
    """Turn "out of memory" inside into a RuntimeError that names the knobs and their values."""
    import torch

    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch.cuda.OutOfMemoryError is a RuntimeError
        known = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if not known and "can't allocate memory" not in str(error):
            raise
        raise RuntimeError(
            "out of memory in the policy. Lower tokens_per_micro_batch (now"
            f" {tokens_per_micro_batch}), turn on gradient_checkpointing (now"
            f" {gradient_checkpointing}), or use more ranks: none of these changes the gradient. On"
            " a GPU rollout_memory is what the engine may keep. lora_rank trains adapters alone,"
            " in less memory. python -m tools.doctor --gpus N --memory GB adds up what a rank"
            " holds."
        ) from error
