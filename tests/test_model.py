"""Packed scores are those of plain passes for each type of model taken; what is not, is refused."""

import doctest
import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import plain_scores
from torch.nn.attention import varlen
from transformers import AutoConfig, AutoModelForCausalLM

import model
from config import Config
from model import MODEL_TYPES, PackedLM, TokenScores, load_model, pack, packed_attention
from runtime.ranks import Refusal

KNOBS = dict(
    max_prompt_length=10,
    max_response_length=20,
    temperature=0.8,
    entropy_coef=0.02,
    max_grad_norm=1e3,  # clips nothing
    dtype="float32",
)
SHAPE = dict(
    vocab_size=100,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    sliding_window=30,  # just the lengths above
)


def config_of(directory, **knobs):
    return Config(model=str(directory), **KNOBS | knobs)


def save_model(model_type, directory, dtype=torch.float32):
    """Write a random model of the type; two types have their heads tied."""
    tied = model_type in ("llama", "qwen3")
    shape = AutoConfig.for_model(model_type, **SHAPE, tie_word_embeddings=tied)
    torch.manual_seed(0)
    lm = AutoModelForCausalLM.from_config(shape)
    for p in lm.parameters():
        p.data += 0.1 * torch.randn_like(p)  # biases and norms, too
    lm.to(dtype).save_pretrained(directory)


def draw_sequences():
    """Pairs of (prompt ids, response ids), also of one token; three neighbours share a prompt."""
    rng = np.random.default_rng(0)
    sizes = [(1, 6), (4, 1), (4, 7), (4, 2), (9, 5)]
    prompts = {size: rng.integers(0, 100, size) for size in (1, 4, 9)}
    return [(prompts[p].copy(), rng.integers(0, 100, r)) for p, r in sizes]


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_packed_is_plain_in_value_and_gradient(model_type, tmp_path):
    """Scores and gradients of packed sequences are those of plain passes over each alone."""
    save_model(model_type, tmp_path)
    config = config_of(tmp_path)
    sequences = draw_sequences()
    packed_lm = PackedLM(load_model(config, torch.float64, attn_implementation="packed"), 0.7)
    plain_lm = load_model(config, torch.float64)
    scores = torch.stack(packed_lm(pack(sequences)))  # (2, R)
    alone = [torch.stack(plain_scores(plain_lm, *pair, 0.7)) for pair in sequences]
    expected = torch.cat(alone, dim=1)
    torch.testing.assert_close(scores, expected.float(), rtol=1e-5, atol=1e-5)
    mix = torch.randn(scores.shape)
    (mix * scores).sum().backward()
    (mix * expected).sum().backward()
    for p, plain in zip(packed_lm.lm.parameters(), plain_lm.parameters(), strict=True):
        torch.testing.assert_close(p.grad, plain.grad, rtol=1e-4, atol=1e-5)


REFUSED = {  # type of the model, what its config.json says in place of the truth, the sentence
    "type": ("llama", dict(model_type="gpt_neox"), "gpt_neox, which was never compared"),
    "window": ("mistral", dict(sliding_window=29), "= 30 tokens, but .* sees 29"),
    "window in use": ("qwen2", dict(sliding_window=29, use_sliding_window=True), "sees 29"),
    "rope": ("llama", dict(rope_parameters=dict(rope_type="dynamic", factor=2.0)), "of type dyn"),
    "too few weights": ("llama", dict(num_hidden_layers=3), r"lacks weights.*layers\.2"),
    "too many weights": ("llama", dict(num_hidden_layers=1), r"lacks weights.*layers\.1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_be_scored_wrongly_is_refused(case, tmp_path):
    """The sentence names what is wrong."""
    model_type, changes, sentence = REFUSED[case]
    save_model(model_type, tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(Refusal, match=sentence):
        load_model(config_of(tmp_path), torch.float32)


def kernel(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale, window_size, enable_gqa):
    """Attention of each sequence by itself, (M, H, D) -> (M, H, D), called as torch's is."""
    assert cu_seq_q is cu_seq_k
    assert window_size == (-1, 0)
    lengths = cu_seq_q.diff()
    assert max_q == max_k == lengths.max()
    parts = [x.transpose(0, 1).split(lengths.tolist(), dim=1) for x in (query, key, value)]
    options = dict(is_causal=True, scale=scale, enable_gqa=enable_gqa)
    out = [F.scaled_dot_product_attention(*qkv, **options) for qkv in zip(*parts)]
    return torch.cat(out, dim=1).transpose(0, 1)


class OnGPU(torch.Tensor):
    """It says that it is on a GPU."""

    is_cuda = True


def test_attention_in_a_row_is_that_over_padded_copies(monkeypatch):
    """The path for GPUs, with a loop for its kernel, has outputs and gradients of the other."""
    monkeypatch.setattr(varlen, "varlen_attn", kernel)
    packing = pack(draw_sequences())
    row = packing.input_ids.shape[1]
    options = dict(dtype=torch.float64, requires_grad=True)
    qkv = [torch.randn(1, heads, row, 8, **options) for heads in (4, 2, 2)]
    on_gpu = [x.as_subclass(OnGPU) for x in qkv]
    mine, _ = packed_attention(None, *on_gpu, None, 0.3, packing)
    reference, _ = packed_attention(None, *qkv, None, 0.3, packing)
    assert isinstance(mine, OnGPU)
    tolerance = dict(rtol=1e-5, atol=1e-5)  # the reference is in float32
    mine = mine.as_subclass(torch.Tensor)
    torch.testing.assert_close(mine, reference, **tolerance)
    mix = torch.randn_like(mine)
    gradients = [torch.autograd.grad((mix * out).sum(), qkv) for out in (mine, reference)]
    torch.testing.assert_close(*gradients, **tolerance)


def test_the_examples_are_right():
    """Of `pack`, where neighbours share a prompt, and of the chunked head."""
    result = doctest.testmod(model)
    assert result.attempted >= 6 and not result.failed


@pytest.mark.parametrize("chunk", [13, 13 * 4, 2**25])
def test_the_chunked_head_has_the_scores_and_gradients_of_autograd(chunk, monkeypatch):
    """With any chunk they are those of full logits, of log-probs and entropies."""
    monkeypatch.setitem(model.LOGITS_CHUNK, "cpu", chunk)
    hidden = torch.randn(11, 6, requires_grad=True)
    weight = torch.randn(13, 6, requires_grad=True)
    targets = torch.randint(13, (11,))
    distribution = torch.distributions.Categorical(logits=hidden @ weight.T / 0.7)
    expected = torch.stack([distribution.log_prob(targets), distribution.entropy()])  # (2, 11)
    mine = torch.stack(TokenScores.apply(hidden, weight, targets, 0.7))
    torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-5)
    mix = torch.randn(2, 11)
    gradients = [torch.autograd.grad((mix * x).sum(), (hidden, weight)) for x in (mine, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)
