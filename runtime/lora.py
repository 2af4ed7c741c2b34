"""Add LoRA adapters (Hu et al., 2021) by the `peft` library, and merge them into the weights.

A linear layer of the decoder computes W x + (α / r) B A x, where W is frozen, A (r, in) and B
(out, r) are trained, and α is ALPHA. Weights leave merged, as W + (α / r) B A under the names they
have without adapters, so that the engine and the saved model know nothing of LoRA.
"""

from collections.abc import Iterator

import torch
from torch import nn
from torch.distributed.tensor import Replicate

ALPHA = 32.0  # α; changing it rescales the learning rate


def add_adapters(lm: nn.Module, rank: int, seed: int) -> None:
    """Freeze a Hugging Face model and add adapters to every linear layer but the output head.

    A depends on `seed` alone, and is the same on every rank; B is 0, so that the model computes
    what it did before. They have the dtype of the frozen weights.
    """
    from peft import LoraConfig, inject_adapter_in_model  # optional: config.py asks for it

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        adapters = LoraConfig(r=rank, lora_alpha=ALPHA, target_modules="all-linear")
        inject_adapter_in_model(adapters, lm)


def merged(weights: dict, rank: int) -> Iterator[tuple]:
    """Yield (name, weight) of the model without adapters, one weight at a time.

    weights: the sharded state_dict of the model with adapters. rank: r, the adapters' size. Each
    process merges its own rows, in float32: B has the rows of W, and only the small A is gathered.
    """
    for name, weight in weights.items():
        if ".lora_" in name:
            continue
        if name.endswith(".base_layer.weight"):
            a = weights[name.replace("base_layer", "lora_A.default")]  # (r, in)
            b = weights[name.replace("base_layer", "lora_B.default")]  # (out, r)
            a = a.redistribute(placements=[Replicate()] * a.device_mesh.ndim)
            weight = weight.float() + ALPHA / rank * (b @ a)  # (out, in)
        yield name.replace(".base_layer", ""), weight
