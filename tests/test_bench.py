"""The memory plan adds up to what an update really allocates, and the benchmarks' own parts do what they say."""

import json

import numpy as np
import pytest
from conftest import on_ranks

from config import Config
from studies.measure import peak_tensor_bytes
from studies.memory_plan import SHAPES, budget, model_shape, print_plan

KNOBS = dict(max_prompt_length=64, max_response_length=192, tokens_per_micro_batch=2048, max_drift=100.0, skip_grad_norm=1e9)


def measured(model: str, knobs: dict) -> tuple[int, int]:
    """(bytes of weights and optimiser, peak bytes of an update beyond them) on this rank."""
    import parallel
    from data import Sample
    from policy import Policy

    rng = np.random.default_rng(0)
    ids = [rng.integers(6, 100, n).astype(np.int32) for n in (64, 192)]
    samples = [Sample(*ids, np.zeros(192, np.float32), 1.0, False)] * (16 * parallel.world_size())  # two micro-batches a rank
    policy = Policy(Config(model=model, **knobs), model, parallel.setup())
    policy.update([samples], None)  # AdamW makes its moments here
    shards = [p.to_local() for p in policy.module.parameters()]
    moments = [v.to_local() for state in policy.optimizer.state.values() for v in state.values() if v.ndim]
    held = sum(t.nbytes for t in shards + moments)
    return held, peak_tensor_bytes(lambda: policy.update([samples], None))


@pytest.fixture(scope="module")
def middling_model(tmp_path_factory, tokenizer) -> str:
    """A Llama whose layers, activations and logits are all large enough to count."""
    from transformers import LlamaConfig, LlamaForCausalLM

    directory = str(tmp_path_factory.mktemp("middling"))
    LlamaForCausalLM(LlamaConfig(
        vocab_size=4000, hidden_size=256, intermediate_size=704, num_hidden_layers=6, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=False)).save_pretrained(directory)
    return directory


@pytest.mark.parametrize("ranks, dtype, checkpointing",
                         [(1, "float32", False), (2, "float32", True), (2, "bfloat16", False), (2, "bfloat16", True)])
def test_plan_agrees_with_a_measured_update(middling_model, ranks, dtype, checkpointing):
    """Held bytes are exact; the peak of an update is the plan's within 10%, by every way of keeping activations."""
    knobs = {**KNOBS, "dtype": dtype, "gradient_checkpointing": checkpointing}
    plan = budget(Config(**knobs), model_shape(middling_model), ranks, tokens=2048, responses=8 * 192, on_cpu=True)
    for held, peak in on_ranks(ranks, measured, middling_model, knobs):
        assert held == pytest.approx(sum(plan.held.values()), rel=0.01)
        assert peak == pytest.approx(sum(plan.update.values()), rel=0.10), {k: v / 1e6 for k, v in plan.update.items()}


def test_shapes_have_the_published_sizes(tmp_path):
    """Parameter counts of the table's models, and a shape read from a config.json."""
    counts = {name: shape.parameters / 1e9 for name, shape in SHAPES.items()}
    assert counts["Qwen2.5-Math-7B"] == pytest.approx(7.616, abs=0.001)
    assert counts["Qwen2.5-Math-1.5B"] == pytest.approx(1.544, abs=0.001)
    assert counts["Llama-3.1-8B"] == pytest.approx(8.030, abs=0.001)
    (tmp_path / "config.json").write_text(json.dumps(dict(
        model_type="qwen2", hidden_size=1536, num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2,
        intermediate_size=8960, vocab_size=151_936, tie_word_embeddings=True)))
    assert model_shape(str(tmp_path)) == SHAPES["Qwen2.5-Math-1.5B"]
    with pytest.raises(ValueError, match="no shape of"):
        model_shape("somebody/unknown")


def test_paper_configuration_fits_eight_gpus_of_80_gb(capsys):
    """The plan of configs/qwen2.5-math-7b.yaml fits, and on two GPUs of 40 GB it does not."""
    print_plan("configs/qwen2.5-math-7b.yaml", 8, 80.0)
    assert "It fits" in capsys.readouterr().out
    print_plan("configs/qwen2.5-math-7b.yaml", 2, 40.0)
    assert "It does not fit" in capsys.readouterr().out
