"""Runs of one kind of processor on another: AVX2 alone, by the variables in README.md, in vLLM's kernels too.

torch, MKL and oneDNN read their variables; vLLM 0.32.0 asks the processor, by these two functions of torch.
"""

import os

import torch

ASKED = os.environ.get("ATEN_CPU_CAPABILITY") == "avx2"


def as_asked() -> None:
    """To be called before vLLM is imported."""
    if ASKED:
        torch.cpu._is_avx512_supported = torch.cpu._is_avx512_bf16_supported = lambda: False


def run(**instead) -> None:
    """`train.py`, as asked, with other objects under names of its module; KeyError for one it has not."""
    as_asked()
    import train
    from config import parse_config
    from runtime import ranks

    for name, value in instead.items():
        vars(train)[name]  # it has to be there
        setattr(train, name, value)
    ranks.run(lambda: train.train(parse_config()))
