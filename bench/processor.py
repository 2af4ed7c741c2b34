"""Train as a processor with AVX2 alone would, on one that has AVX-512.

    ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2 \\
        python -m bench.processor [flags of train.py]

torch, MKL and oneDNN each read their variable. vLLM 0.32.0 reads none: it asks the processor
through two functions of torch, which are answered here before vLLM is imported.
"""

import runpy

import torch


def no() -> bool:
    """The answer to both of vLLM's questions about AVX-512."""
    return False


if __name__ == "__main__":
    torch.cpu._is_avx512_supported = no
    torch.cpu._is_avx512_bf16_supported = no
    runpy.run_module("train", run_name="__main__", alter_sys=True)
