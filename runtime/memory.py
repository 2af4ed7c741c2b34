"""Reckon the memory of one rank, item by item.

`python -m tools.doctor --gpus N --memory GB` prints it. What is counted follows policy.py: float32
master weights, gradients and AdamW moments sharded over the ranks of a node, the root's weights
(embedding, head, last norm) gathered from forward to backward, two layers gathered at a time, one
float32 copy of a gathered gradient while it is reduced, one chunk of logits. With LoRA only
adapters have master weights, gradients and moments, beside the model in `dtype`.
tests/tools/test_doctor.py holds the sum against a measured update.

`c` is whatever has the knobs dtype, lora_rank and gradient_checkpointing, such as a Config.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")  # where Linux has the limits of a container
# How many float32 logits are held at once. On a GPU a chunk reads and writes the gradient of the
# head once: 2**28, which is 1 GiB, should keep that below a fifth of the arithmetic. This is
# reckoned for 152,064 words on an H100, not measured.
LOGITS_CHUNK = {"cpu": 2**24, "cuda": 2**28}
PROCESS_BYTES = 1e9  # host memory of a rank's libraries
DRIVER_BYTES = 1.5e9  # CUDA context, libraries, NCCL; assumed, not measured
# What vLLM keeps at sleep level 2 (CUDA graphs, buffers); assumed, not measured.
ENGINE_ASLEEP_BYTES = 2.0e9
# What an allocator keeps of a device, per byte of tensors that are alive: gaps come on top. malloc
# loses a third; of torch's allocator, whose segments grow (flags.py), a quarter is reckoned with.
RESERVED = {"cpu": 4 / 3, "cuda": 1.25}
KV_CACHE_ON_CPU = 2**29  # bytes, of a rank's engine
MOMENTS = "optimiser (two float32 moments, sharded)"


@dataclass(frozen=True)
class Shape:
    """What a model's memory depends on in its config.json (Llama and Qwen2 families)."""

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
        """Return the shape that a config.json describes.

        Raises ValueError for a family that has other names for it.
        """
        try:
            hidden = c["hidden_size"]
            heads = c["num_attention_heads"]
            return cls(
                hidden=hidden,
                layers=c["num_hidden_layers"],
                heads=heads,
                kv_heads=c.get("num_key_value_heads") or heads,
                head_dim=c.get("head_dim") or hidden // heads,
                intermediate=c["intermediate_size"],
                vocabulary=c["vocab_size"],
                tied=c.get("tie_word_embeddings", False),
                qkv_bias=c["model_type"] == "qwen2",
            )
        except KeyError as missing:
            raise ValueError(
                f"a model of type {c.get('model_type')} is not built in: its config.json has no "
                f"{missing.args[0]}"
            ) from missing

    @property
    def query(self) -> int:
        """How many outputs the query projection has."""
        return self.heads * self.head_dim

    @property
    def key(self) -> int:
        """How many outputs the key projection has, and the value projection too."""
        return self.kv_heads * self.head_dim

    @property
    def layer(self) -> int:
        """How many parameters one layer has."""
        attention = self.hidden * 2 * (self.query + self.key) + self.qkv_bias * (
            self.query + 2 * self.key
        )
        return attention + 3 * self.hidden * self.intermediate + 2 * self.hidden

    def adapters(self, rank: int) -> int:
        """Return how many parameters one layer's LoRA adapters have.

        Each of its seven matrices adds rank x (inputs + outputs).
        """
        attention = 2 * (self.hidden + self.query) + 2 * (self.hidden + self.key)
        return rank * (attention + 3 * (self.hidden + self.intermediate))

    @property
    def head(self) -> int:
        """How many parameters the embedding has, or the output head."""
        return self.vocabulary * self.hidden

    @property
    def root(self) -> int:
        """How many parameters stand outside the layers."""
        return (1 if self.tied else 2) * self.head + self.hidden

    @property
    def parameters(self) -> int:
        return self.layers * self.layer + self.root


@dataclass(frozen=True)
class Budget:
    """The bytes that one rank holds, item by item."""

    held: dict[str, float]  # all the time: weights, optimiser
    update: dict[str, float]  # during the update, at its worst moment
    sync: dict[str, float]  # while weights go to the engine
    scoring: dict[str, float]  # while stored responses are scored, the engine awake


def budget(c, shape: Shape, ranks: int, tokens: int, responses: int, device: str) -> Budget:
    """Return the bytes that one rank holds, with micro-batches of `tokens` tokens.

    responses: how many of the tokens are in responses. device: "cpu" or "cuda". The list `moments`
    has those at which the sum may peak.
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
    copied = on_cpu and compute == 2  # the head's factors are copied to float32
    # The last norm, the hidden states of the responses, and the gradient of the residual stream.
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
            activations: kept,  # nothing is freed yet when the backward pass begins
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
    scoring = gathered | {"scoring: one layer's activations, or logits": max(layer, 2 * chunk)}
    sync = {"one weight gathered for the engine": compute * max(shape.head, shape.layer)}
    if rank:  # a rank holds its rows of W, of B A and of their sum
        sync |= {"adapters merged, in float32": 12 * shape.hidden * shape.intermediate / ranks}
    return Budget(held, update, sync, scoring)


def bytes_per_weight(c) -> int:
    """Return the bytes of a weight that a forward pass computes with."""
    return 2 if c.dtype == "bfloat16" else 4


def update_bytes(c, shape: Shape, ranks: int, tokens: int, device: str) -> float:
    """Return the bytes that the first update still takes of one rank, once it has the weights.

    These are AdamW's moments and the update at its worst moment, with gaps between its tensors.
    """
    parts = budget(c, shape, ranks, tokens, tokens, device)
    return parts.held[MOMENTS] + RESERVED[device] * sum(parts.update.values())


def tokens_that_fit(c, shape: Shape, ranks: int, free: float, device: str) -> int:
    """Return the largest micro-batch, in tokens, whose update fits into `free` bytes.

    It is halved until it fits, so that equal runs choose alike. It has at most 4,096 tokens on a
    CPU and 16,384 on a GPU, beyond which they bring no speed, and at least 256, come what may.
    """
    tokens = 4096 if device == "cpu" else 16384
    while tokens > 256 and update_bytes(c, shape, ranks, tokens, device) > free:
        tokens //= 2
    return tokens


def host_needs(c, shape: Shape, ranks: int) -> tuple[str, bool]:
    """Return a line on what a rank takes of a host without a GPU, and whether so much is free.

    It takes libraries, engine, cache and all of training. A micro-batch holds the longest sequence
    at least; on auto it is counted as 256 tokens, the least that auto chooses.
    """
    tokens = max(c.tokens_per_micro_batch or 256, c.max_prompt_length + c.max_response_length)
    parts = budget(c, shape, ranks, tokens, tokens, "cpu")
    engine = bytes_per_weight(c) * shape.parameters + KV_CACHE_ON_CPU
    needed = PROCESS_BYTES + engine + sum(parts.held.values()) + sum(parts.update.values())
    free = free_bytes("cpu", ranks)
    line = f"about {needed / 1e9:.1f} GB of memory needed by each of {ranks} ranks"
    return f"{line}, {free / 1e9:.1f} free for it", needed <= free


def free_bytes(device: str, ranks: int) -> float:
    """Return the bytes that are free for this rank: on its GPU, or its share of the host's."""
    if device == "cpu":
        return available_bytes() / ranks
    import torch

    free, _ = torch.cuda.mem_get_info()
    return free


def head_bytes(chunk: float, trained: int, in_float32: bool) -> float:
    """Return the bytes that the output head takes at its worst moment.

    chunk: bytes of a chunk of float32 logits. trained: how many parameters of the head are trained.
    Log-probs and probabilities stand side by side, in the backward pass next to the gradient. On a
    GPU in bfloat16 the logits' gradient is copied, and the copy's product is made before it is
    added (an H100 took what this says, to 1%).
    """
    if in_float32:
        return 2 * chunk + 4 * trained
    return max(2.5 * chunk + 4 * trained, 0.5 * chunk + 8 * trained)


def activation_bytes(shape: Shape, compute: int, on_cpu: bool, lora_rank: int) -> float:
    """Return the bytes per token that the backward pass needs of one layer.

    It needs the inputs of everything, and those of norms in float32.
    """
    # The float32 input, the normalised one (for γ's gradient), and the scaled one.
    norm = 4 + (1 if lora_rank else 2) * compute
    attention = attention_bytes(shape, compute, on_cpu) + compute * shape.query
    # The gate, its activation, up and their product, and A x of the seven adapters.
    mlp = compute * (4 * shape.intermediate + 7 * lora_rank)
    return 2 * norm * shape.hidden + attention + mlp


def attention_bytes(shape: Shape, compute: int, on_cpu: bool) -> float:
    """Return the bytes per token that attention itself needs of one layer.

    They are q, k, v, the output and the log-sum-exp, on the CPU in float32 (model.py). A prompt has
    them for each of its responses, and so has padding.
    """
    return (4 if on_cpu else compute) * 2 * (shape.query + shape.key) + 4 * shape.heads


def available_bytes() -> float:
    """Return the bytes of host memory that are free or can be freed, within a container's limit."""
    import psutil

    free = psutil.virtual_memory().available
    limit, used, stat = (CGROUP / name for name in ("memory.max", "memory.current", "memory.stat"))
    if limit.exists() and limit.read_text().strip() != "max":
        cached = re.search(r"^inactive_file (\d+)", stat.read_text(), re.MULTILINE)
        # The copies of files that were read can be freed.
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
