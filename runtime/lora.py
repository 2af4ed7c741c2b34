"""Add LoRA adapters (Hu et al., 2021) by the `peft` library, and merge them into the weights.

A linear layer of the decoder computes W x + (α / r) B A x, where W is frozen, A (r, in) and B
(out, r) are trained, and α is ALPHA. Weights leave merged, as W + (α / r) B A under the names they
have without adapters, so that the engine and the saved model know nothing of LoRA.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed.tensor import Replicate

ALPHA = 32.0  # α; another one is another learning rate


def add_adapters(lm: nn.Module, rank: int, seed: int) -> None:
    """Freeze a Hugging Face model and add float32 adapters to its layers.

    Every linear layer but the output head has them. A depends on `seed` alone, and is the same on
    every rank; B is 0, so that the model computes what it did before.
    """
    from peft import LoraConfig, inject_adapter_in_model  # optional: config.py asks for it

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        adapters = LoraConfig(r=rank, lora_alpha=ALPHA, target_modules="all-linear")
        inject_adapter_in_model(adapters, lm)
    for p in lm.parameters():
        if p.requires_grad:
            # peft has made it in the dtype of the frozen weights, too coarse for small steps.
            p.data = p.data.float()


def merged(weights: dict, rank: int, device: torch.device) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, weight) of the model without adapters, one weight at a time.

    weights: the sharded state_dict of the model with adapters. rank: r. Each process merges its own
    rows, in float32: B has the rows of W, and only the small A is gathered.
    """
    for name, weight in weights.items():
        layer, wrapped, kind = name.partition(".base_layer.")
        if ".lora_" in name:
            continue
        if wrapped and kind == "weight":
            # A is (r, in), B is (out, r).
            a, b = (weights[f"{layer}.lora_{part}.default.weight"].to(device) for part in "AB")
            a = a.redistribute(placements=[Replicate()] * a.device_mesh.ndim)
            weight = weight.to(device, torch.float32) + ALPHA / rank * (b @ a)  # (out, in)
        yield f"{layer}.{kind}" if wrapped else name, weight
