"""What only runs on a GPU, as far as a machine without one can tell."""

import os
import subprocess
import sys
from copy import deepcopy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ROOT, toy_config
from torch.fx.experimental import _config as fx_config
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PreTrainedConfig,
    Qwen2Config,
    masking_utils,
)

import model
import rollout
from config import Config, parse_config
from loss import policy_loss
from model import PackedLM, extend_context, pack
from rollout import VLLMEngine
from runtime.lora import add_adapters

EOS = 2
A_GPU = "GPU {}: NVIDIA H100 80GB HBM3 (UUID: GPU-5a1b)"
AN_INSTANCE = "  MIG 3g.40gb     Device  {}: (UUID: MIG-77d0)"


QWEN = {"vocab_size": 152064, "num_hidden_layers": 2, "max_position_embeddings": 16384}
QWEN_7B = Qwen2Config(
    hidden_size=3584, intermediate_size=18944, num_attention_heads=28, num_key_value_heads=4, **QWEN
)
QWEN_1_5B = Qwen2Config(
    hidden_size=1536,
    intermediate_size=8960,
    num_attention_heads=12,
    num_key_value_heads=2,
    tie_word_embeddings=True,
    **QWEN,
)
LLAMA_8B = LlamaConfig(
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=2,
    num_attention_heads=32,
    num_key_value_heads=8,
    max_position_embeddings=16384,
)
# A file of configs/ -> the shape of its model, with two layers; others train these models alike.
FILES = {
    "qwen2.5-math-7b.yaml": QWEN_7B,
    "qwen2.5-math-7b-lora-1x80gb.yaml": QWEN_7B,
    "qwen2.5-math-1.5b.yaml": QWEN_1_5B,
    "qwen2.5-math-1.5b-lora-1x24gb.yaml": QWEN_1_5B,
    "llama-3.1-8b.yaml": LLAMA_8B,
}


def on_meta(config: PreTrainedConfig) -> torch.nn.Module:
    """The model without memory: shapes and dtypes are real, numbers are not there."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


# ---- shapes and dtypes ---------------------------------------------------------------------------


class LikeFactors(TorchDispatchMode):
    """Refuses to multiply two dtypes, as CUDA does and the meta device does not."""

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if operator.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm):
            assert len({x.dtype for x in args if isinstance(x, torch.Tensor)}) == 1
        return operator(*args, **kwargs or {})


@pytest.fixture
def meta_is_a_gpu(monkeypatch):
    """Tensors on the meta device take the paths of CUDA's, but for what looks at their numbers."""
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: tensor.is_meta))
    monkeypatch.setitem(model.LOGITS_CHUNK, "meta", model.LOGITS_CHUNK["cuda"])
    monkeypatch.setattr(model, "attend_padded", None)  # the other path
    monkeypatch.setattr(masking_utils, "find_packed_sequence_indices", lambda positions: None)
    with fx_config.patch(meta_nonzero_assume_all_nonzero=True), LikeFactors():
        yield


def batches(c: Config) -> dict[str, list]:
    """Micro-batches as full as they get: the longest response, one group, many short groups."""
    prompt = np.arange(c.max_prompt_length)
    budget = c.tokens_per_micro_batch
    share = (budget - len(prompt)) // c.num_rollouts
    group = [(prompt, np.zeros(share))] * c.num_rollouts
    short = []
    for i in range(budget // (len(prompt) + 20 * c.num_rollouts)):
        short += [(prompt + i, np.zeros(20))] * c.num_rollouts
    return {"longest": [(prompt, np.zeros(c.max_response_length))], "group": group, "short": short}


@pytest.mark.parametrize("file", FILES)
def test_a_step_has_the_shapes_and_dtypes_of_a_gpu(file, meta_is_a_gpu):
    """Each operator has a rule for them, forward and backward, up to the loss of a full batch.

    Two layers stand for all of a model, as they are alike.
    """
    if "lora" in file:
        pytest.importorskip("peft")
    c = parse_config(["--config", f"{ROOT}/configs/{file}", "--train_files", "--val_files"])
    lm = on_meta(extend_context(deepcopy(FILES[file]), c))
    if c.lora_rank:
        with torch.device("meta"):
            add_adapters(lm, c.lora_rank, c.seed)
    lm.to(getattr(torch, c.dtype))  # as FSDP2 does for a pass
    lm.gradient_checkpointing_enable({"use_reentrant": False})
    lm.set_attn_implementation("packed")
    packed_lm = PackedLM(lm, c.temperature).train()
    for sequences in batches(c).values():
        packed = pack(sequences, "meta")
        logprobs, entropies = packed_lm(packed)
        tokens = packed.targets.shape
        zeros = torch.zeros(tokens, device="meta")
        loss, _, _ = policy_loss(
            logprobs,
            zeros,
            zeros,
            zeros.bool(),
            max_length=c.max_response_length,
            num_responses=c.batch_size * c.num_rollouts // c.num_mini_batches,
            clip_eps=c.clip_eps,
            beta=c.beta,
        )
        (loss + entropies.sum()).backward()
        assert logprobs.shape == entropies.shape == tokens and loss.shape == ()
        assert logprobs.dtype == entropies.dtype == loss.dtype == torch.float32
        for p in filter(lambda p: p.requires_grad, lm.parameters()):
            assert (p.grad.shape, p.grad.dtype) == (p.shape, p.dtype)


# ---- the engine ----------------------------------------------------------------------------------


@pytest.fixture
def recorded(monkeypatch, tiny_model):
    """knobs -> an engine as for a GPU of 256 tokens, whose `llm` is the arguments of vLLM's."""
    vllm = pytest.importorskip("vllm")
    monkeypatch.setattr(vllm, "LLM", SimpleNamespace)
    monkeypatch.setattr(rollout, "VLLM_ENGINES", [])
    for name in ("VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_LOGGING_LEVEL", "TRITON_F32_DEFAULT"):
        monkeypatch.setenv(name, os.environ.get(name, ""))

    def make(**knobs):
        lengths = dict(max_prompt_length=100, max_response_length=156)
        config = toy_config(model=tiny_model, **lengths, **knobs)
        return VLLMEngine(config, [EOS], torch.device("cuda"))

    return make


def test_vllm_takes_the_arguments_for_a_gpu(recorded):
    """Each argument is a field of vLLM's EngineArgs, and training's own have their values."""
    from vllm import EngineArgs

    engine = recorded(dtype="bfloat16", rollout_memory=0.3)
    arguments = EngineArgs(**vars(engine.llm))
    assert arguments.enable_sleep_mode and arguments.enable_prefix_caching
    assert arguments.enable_chunked_prefill and not arguments.enforce_eager
    assert (arguments.max_model_len, arguments.dtype) == (256, "bfloat16")
    assert (arguments.gpu_memory_utilization, arguments.logprobs_mode) == (
        0.3,
        "processed_logprobs",
    )
    assert arguments.distributed_executor_backend == "external_launcher"


def test_a_second_engine_on_a_gpu_is_refused(recorded):
    """The error stands before anything of the second one is loaded."""
    recorded()
    with pytest.raises(RuntimeError, match="one vLLM engine"):
        recorded()


# Prints the allocator's settings where torch is imported, and ends there.
PROBE = """
import os, runpy, sys
class Probe:
    def find_spec(self, name, *_):
        if name == "torch":
            sys.exit(str({name: os.environ[name] for name in os.environ if "ALLOC_CONF" in name}))
sys.meta_path.insert(0, Probe())
sys.argv = sys.argv[1:]
run = runpy.run_path if sys.argv[0].endswith(".py") else runpy.run_module
run(sys.argv[0], run_name="__main__")
"""
GROW = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}


@pytest.mark.parametrize(
    "program, given, then",
    [
        ("train.py", {}, GROW),
        ("tools.doctor", {}, GROW),
        ("eval.py", {"PYTORCH_CUDA_ALLOC_CONF": "x"}, {"PYTORCH_CUDA_ALLOC_CONF": "x"}),
    ],
)
def test_segments_grow_unless_the_user_chose(program, given, then):
    """The setting is made before torch is imported, which would not look again."""
    command = [sys.executable, "-c", PROBE, program]
    environment = {n: v for n, v in os.environ.items() if "ALLOC_CONF" not in n} | given
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stderr.strip() == str(then)


@pytest.mark.parametrize(
    "lines, code, file, ranks",
    [
        ("NVIDIA-SMI has failed because it couldn't communicate with\nthe driver.", 9, "-cpu", 2),
        ("\n".join(A_GPU.format(i) for i in range(8)), 0, "", 8),
        (f"{A_GPU.format(0)}\n{AN_INSTANCE.format(0)}\n{AN_INSTANCE.format(1)}", 0, "", 1),
    ],
    ids=["failing", "eight", "MIG"],
)
def test_make_counts_gpus(lines, code, file, ranks, tmp_path):
    """`make train` starts a rank a GPU, one where MIG splits it, and two where there is none."""
    stub = tmp_path / "nvidia-smi"
    stub.write_text(f"#!/bin/sh\ncat <<END\n{lines}\nEND\nexit {code}")
    stub.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = ["make", "-n", "train", f"VENV={tmp_path}"]
    said = subprocess.check_output(command, cwd=ROOT, env=environment, text=True)
    assert f"nproc_per_node={ranks} " in said and f"requirements{file}.txt" in said
