"""What only runs on a GPU, as far as a machine without one can tell."""

import gc
import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from conftest import free_port, needs_cpu_vllm, on_ranks
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, Qwen2Config

import rollout
from config import Config
from model import load_model
from rollout import VLLMEngine
from runtime import flags, ranks
from runtime.memory import Shape
from tools.doctor import SHAPES

EOS = 2
ROOT = Path(__file__).parent.parent.parent
A_GPU = "GPU {}: NVIDIA H100 80GB HBM3 (UUID: GPU-5a1b)"
AN_INSTANCE = "  MIG 3g.40gb     Device  {}: (UUID: MIG-77d0)"


def hf_config(shape: Shape) -> PreTrainedConfig:
    """The configuration of a Qwen2, or without biases of a Llama, that has this shape."""
    kind = Qwen2Config if shape.qkv_bias else LlamaConfig
    return kind(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=16384,
        dtype="bfloat16",
    )


def on_meta(config: PreTrainedConfig) -> torch.nn.Module:
    """The model without memory: shapes and dtypes are real, numbers are not there."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def write_holes(file: Path, tensors: dict[str, torch.Tensor]) -> None:
    """A safetensors file of bfloat16 zeros that takes no disk."""
    header = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        start = end
        end += 2 * tensor.numel()
        about = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [start, end]}
        header[name] = about
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text)
    os.truncate(file, file.stat().st_size + end)


def test_names_of_weights_cost_no_memory(tmp_path):
    """The names of 3 GB of weights, a tied head's among them, are there and no weight is read."""
    config = hf_config(SHAPES["Qwen2.5-Math-1.5B"])
    config.save_pretrained(tmp_path)
    model = on_meta(config)
    write_holes(tmp_path / "model.safetensors", dict(model.named_parameters()))
    process = psutil.Process()
    before = process.memory_info().rss
    loaded = load_model(Config(), str(tmp_path), "auto")
    assert process.memory_info().rss - before < 3e8
    assert set(loaded.state_dict()) == set(model.state_dict()) > {"lm_head.weight"}


class Recorder:
    """Stands for vLLM's `LLM`, and keeps its arguments and the calls in order."""

    def __init__(self, **arguments):
        self.arguments, self.calls = arguments, []

    def __getattr__(self, name: str):
        def call(*args, **kwargs):
            if "kwargs" in kwargs:  # the weights of reload_weights
                kwargs = {name: list(iterator) for name, iterator in kwargs["kwargs"].items()}
            self.calls.append((name, *args, *kwargs.values()))
            return True

        return call


@pytest.fixture
def recorded(monkeypatch, tiny_model):
    """(configuration, engine) -> an engine as for a GPU, with a recorder in place of vLLM."""
    vllm = pytest.importorskip("vllm")
    monkeypatch.setattr(vllm, "LLM", Recorder)
    monkeypatch.setattr(rollout, "KEPT", [])
    for name in ("VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_LOGGING_LEVEL", "TRITON_F32_DEFAULT"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    return lambda config: VLLMEngine(config, tiny_model, [EOS], torch.device("cuda"))


def test_vllm_takes_the_arguments_for_a_gpu(recorded):
    """Each argument is a field of vLLM's EngineArgs, and training's own have their values."""
    from vllm import EngineArgs

    config = Config(
        max_prompt_length=100, max_response_length=156, dtype="bfloat16", rollout_memory=0.3
    )
    arguments = EngineArgs(**recorded(config).llm.arguments)
    assert arguments.enable_sleep_mode and arguments.enable_prefix_caching
    assert arguments.enable_chunked_prefill and not arguments.enforce_eager
    assert (arguments.max_model_len, arguments.dtype) == (256, "bfloat16")
    assert (arguments.gpu_memory_utilization, arguments.logprobs_mode) == (
        0.3,
        "processed_logprobs",
    )
    assert arguments.distributed_executor_backend == "external_launcher"


def test_a_long_start_is_announced(recorded, capsys):
    """Before the engine starts on a GPU one line says that it may take minutes, and why."""
    recorded(Config(max_prompt_length=100, max_response_length=100))
    assert "first start of vLLM may take minutes: it compiles" in capsys.readouterr().err


def test_order_of_sleep_and_wake(recorded):
    """Waking makes space, loads all weights, drops old prefixes, and only then wakes the cache."""
    engine = recorded(Config(max_prompt_length=100, max_response_length=100))
    weights = [(name, torch.zeros(1)) for name in sorted(engine.names)]
    engine.sleep()
    engine.wake(iter(weights))
    assert engine.llm.calls == [
        ("sleep", 2),
        ("wake_up", ["weights"]),
        ("collective_rpc", "reload_weights", weights),
        ("reset_prefix_cache",),
        ("wake_up", ["kv_cache"]),
    ]


def test_a_second_engine_on_a_gpu_is_refused(recorded):
    """The error stands before anything of the second one is loaded."""
    config = Config(max_prompt_length=100, max_response_length=100)
    recorded(config)
    with pytest.raises(RuntimeError, match="one vLLM engine"):
        recorded(config)


def after_an_engine_went_out_of_scope(model: str):
    """(whether there is a group, how many ranks it reaches) of a rank whose engine is gone."""
    # On a GPU vLLM imports this first by itself; then nothing else holds the engine by chance.
    import vllm.v1.engine.core  # noqa: F401

    def use_one():
        VLLMEngine(Config(max_prompt_length=8, max_response_length=8), model, EOS, ranks.setup())

    use_one()
    gc.collect()
    return dist.is_initialized(), len(ranks.gather(None))


@needs_cpu_vllm
def test_the_group_outlives_an_engine(tiny_model):
    """Ranks still reach each other when nobody holds the engine any more."""
    assert on_ranks(2, after_an_engine_went_out_of_scope, tiny_model) == [(True, 2), (True, 2)]


def on_a_pretended_gpu(port: str):
    """(backend asked for, device, objects gathered) of a rank that believes it has a GPU.

    A backend that moves nothing stands for NCCL, so that what arrives came over the CPU.
    """
    # The import registers the backend "fake".
    from torch.testing._internal.distributed import fake_pg  # noqa: F401

    join, asked = dist.init_process_group, []

    def pretend(backend, **arguments):
        asked.append(backend)
        join(backend.replace("nccl", "fake"), **arguments)

    dist.destroy_process_group()
    os.environ["MASTER_PORT"] = port
    dist.init_process_group = pretend
    torch.cuda.is_available, torch.cuda.device_count = (lambda: True), (lambda: 2)
    torch.cuda.set_device = lambda device: None
    device = ranks.setup()
    ranks.barrier()
    return asked, str(device), ranks.gather({"rank": ranks.rank()})


def test_objects_travel_over_the_cpu(device):
    """With GPUs the group has gloo and NCCL, and objects take gloo."""
    results = on_ranks(2, on_a_pretended_gpu, free_port())
    for rank, (asked, device_name, everyone) in enumerate(results):
        assert asked == ["cpu:gloo,cuda:nccl"] and device_name == f"cuda:{rank}"
        assert everyone == [{"rank": 0}, {"rank": 1}]


GROW = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}


@pytest.mark.parametrize(
    "given, then",
    [
        ({}, GROW),
        *[({name: "x"}, {name: "x"}) for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")],
    ],
)
def test_segments_grow_unless_the_user_chose(given, then, monkeypatch):
    """The allocator's setting is made where there is none, under either of its names."""
    monkeypatch.setattr(os, "environ", dict(given))
    flags.loading()
    assert os.environ == then


# Ends with code 0 where torch is not imported yet when the setting is made.
PROBE = """
import runpy, sys
from runtime import flags
flags.loading = lambda: sys.exit("torch" in sys.modules)
sys.argv = sys.argv[1:]
run = runpy.run_path if sys.argv[0].endswith(".py") else runpy.run_module
run(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize(
    "program", ["train.py", "eval.py --model x --data README.md", "tools.doctor"]
)
def test_the_setting_is_made_before_torch_is_imported(program):
    """torch would not look again: train, eval and the doctor make it in time."""
    subprocess.run([sys.executable, "-c", PROBE, *program.split()], cwd=ROOT, check=True)


@pytest.mark.parametrize(
    "lines, code, cpu, ranks",
    [
        ([], 0, True, 2),
        ([A_GPU.format(0)], 0, False, 1),
        ([A_GPU.format(i) for i in range(8)], 0, False, 8),
        (["NVIDIA-SMI has failed because it couldn't communicate with", "the driver."], 9, True, 2),
        ([A_GPU.format(0), AN_INSTANCE.format(0), AN_INSTANCE.format(1)], 0, False, 1),
    ],
    ids=["none", "one", "eight", "failing", "MIG"],
)
def test_make_counts_gpus(lines, code, cpu, ranks, tmp_path):
    """`make train` starts a rank a GPU, one where MIG splits it, and two where there is none."""
    stub = tmp_path / "nvidia-smi"
    stub.write_text("\n".join(["#!/bin/sh", "cat <<END", *lines, "END", f"exit {code}"]))
    stub.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = ["make", "-n", "train", f"VENV={tmp_path}"]
    said = subprocess.check_output(command, cwd=ROOT, env=environment, text=True)
    assert re.findall(r"nproc_per_node=(\d+)", said) == [str(ranks)]
    assert ("requirements-cpu.txt" in said) == cpu and ("MIG is on" in said) == (
        "MIG" in str(lines)
    )
