"""Packed and chunked scores equal the plain ones, in value and gradient, and in bounded memory."""

import doctest
import inspect
from itertools import accumulate

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import plain_scores
from torch.nn.attention import varlen
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModelForCausalLM

import model
from model import PackedLM, TokenScores, pack

TEMPERATURE = 0.7


def load(directory, attention="packed"):
    """The tiny model in float64, so that equality means equality."""
    return AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float64, attn_implementation=attention
    )


def draw_sequences():
    """(prompt ids, response ids) of different lengths, also of one token."""
    rng = np.random.default_rng(0)
    sizes = [(1, 6), (4, 1), (4, 7), (4, 2), (9, 5)]
    draw = [[rng.integers(0, 100, size).astype(np.int32) for size in pair] for pair in sizes]
    prompt = draw[1][0]  # of three responses in a row
    return [(prompt.copy() if len(p) == 4 else p, response) for p, response in draw]


@pytest.fixture(params=[False, True], ids=["untied", "tied"])
def directory(request, tiny_models):
    return tiny_models[request.param]


def test_packed_is_plain_in_value_and_gradient(directory):
    """Scores and gradients of packed sequences are those of plain passes over each alone.

    The models have grouped-query attention and tied or untied heads, and there is a temperature.
    """
    sequences = draw_sequences()
    packed_lm, plain_lm = PackedLM(load(directory), TEMPERATURE), load(directory, "sdpa")
    scores = packed_lm(pack(sequences))
    alone = [plain_scores(plain_lm, *s, TEMPERATURE) for s in sequences]
    expected = [torch.cat(parts) for parts in zip(*alone)]
    for mine, reference in zip(scores, expected):
        torch.testing.assert_close(mine, reference.float(), rtol=1e-5, atol=1e-5)
    mix = [torch.randn(len(scores[0])) for _ in scores]
    sum((m * s).sum() for m, s in zip(mix, scores)).backward()
    sum((m * s).sum() for m, s in zip(mix, expected)).backward()
    reference = dict(plain_lm.named_parameters())
    assert len(reference) == len(list(packed_lm.lm.parameters()))
    for name, p in packed_lm.lm.named_parameters():
        assert torch.allclose(p.grad, reference[name].grad, rtol=1e-4, atol=1e-5), name


def by_definition(
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, scale, window_size, enable_gqa
):
    """Attention of each sequence by itself, (M, H, D) -> (M, H, D), as the kernel for GPUs."""
    assert cu_seq_q is cu_seq_k and window_size == (-1, 0)
    assert max_q == max_k == cu_seq_q.diff().max()
    out = []
    for start, end in zip(cu_seq_q.tolist(), cu_seq_q.tolist()[1:]):
        q, k, v = (x[start:end].transpose(0, 1) for x in (query, key, value))  # (h, L, D)
        options = dict(is_causal=True, scale=scale, enable_gqa=enable_gqa)
        out.append(F.scaled_dot_product_attention(q, k, v, **options))
    return torch.cat(out, dim=1).transpose(0, 1)


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_attention_in_a_row_is_that_over_padded_copies(kv_heads, monkeypatch):
    """The branch for GPUs has the outputs and gradients of the branch that runs here.

    Its kernel is replaced by a loop that is called as the kernel's signature allows.
    """
    packing, g = pack(draw_sequences()), torch.Generator()
    signature = inspect.signature(varlen.varlen_attn)

    def kernel(*args, **kwargs):
        bound = signature.bind(*args, **kwargs).arguments
        return by_definition(**bound)

    monkeypatch.setattr(varlen, "varlen_attn", kernel)
    length, options = packing.input_ids.shape[1], dict(generator=g, dtype=torch.float64)
    heads = (4, kv_heads, kv_heads)
    qkv = [torch.randn(1, h, length, 8, requires_grad=True, **options) for h in heads]
    mine, reference = (f(*qkv, 0.3, packing) for f in (model.attend_in_a_row, model.attend_padded))
    torch.testing.assert_close(mine, reference)
    mix = torch.randn(mine.shape, generator=g, dtype=mine.dtype)
    gradients = [torch.autograd.grad((mix * out).sum(), qkv) for out in (mine, reference)]
    torch.testing.assert_close(*gradients)


def test_the_example_of_pack_is_right():
    """The docstrings' examples are right: what neighbours share, and the chunked gradient."""
    assert doctest.testmod(model).attempted >= 6 and not doctest.testmod(model).failed


def random_head(rows=11, hidden=6, vocabulary=13):
    g = torch.Generator().manual_seed(0)
    h, w = (torch.randn(n, hidden, generator=g).requires_grad_() for n in (rows, vocabulary))
    return h, w, torch.randint(vocabulary, (rows,), generator=g)


def full_scores(hidden, weight, targets, temperature):
    """The same scores by autograd through all logits at once."""
    log_p = (hidden @ weight.T / temperature).log_softmax(-1)
    return log_p.gather(1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


@pytest.mark.parametrize("chunk", [1, 13 * 4, 2**25])
def test_chunked_scores_equal_full_ones(chunk, monkeypatch):
    """With any chunk size scores and their gradients equal autograd's through full logits."""
    monkeypatch.setitem(model.LOGITS_CHUNK, "cpu", chunk)
    h, w, y = random_head()
    mix = torch.randn(len(y))
    for mine, reference in zip(
        TokenScores.apply(h, w, y, TEMPERATURE), full_scores(h, w, y, TEMPERATURE)
    ):
        torch.testing.assert_close(mine, reference, rtol=1e-5, atol=1e-5)
        gradients = torch.autograd.grad((mix * mine).sum(), (h, w), retain_graph=True)
        expected = torch.autograd.grad((mix * reference).sum(), (h, w), retain_graph=True)
        torch.testing.assert_close(gradients, expected, rtol=1e-4, atol=1e-5)


def test_scores_of_extreme_logits_stay_finite():
    """Logits of ±1e4 give finite scores, an entropy of 0 and finite gradients."""
    h, w, y = random_head()
    h = (h.detach() * 1e4).requires_grad_()
    logprobs, entropies = TokenScores.apply(h, w, y, 1.0)
    (logprobs + entropies).sum().backward()
    assert logprobs.isfinite().all() and h.grad.isfinite().all() and w.grad.isfinite().all()
    assert entropies.abs().max() < 1e-3


def test_a_bfloat16_model_has_a_float32_head(tiny_model):
    """On the CPU its scores are those of a float32 product, and gradients flow."""
    lm, packed = load(tiny_model).bfloat16(), pack(draw_sequences())
    mine = PackedLM(lm)(packed)
    hidden = lm.model(
        packed.input_ids, position_ids=packed.position_ids, use_cache=False, packing=packed
    )[0]
    weight = lm.lm_head.weight.float()
    expected = full_scores(hidden[0, packed.predictors].float(), weight, packed.targets, 1.0)
    # A bfloat16 product would be 1e-2 off.
    torch.testing.assert_close(mine, expected, rtol=1e-6, atol=1e-5)
    (mine[0].sum() + mine[1].sum()).backward()
    assert all(p.grad.dtype == torch.bfloat16 and p.grad.abs().sum() > 0 for p in lm.parameters())


def peak_tensor_bytes(function) -> int:
    """The most bytes of tensors alive at once, beyond those before the call.

    A CPU's allocator keeps no count, but the profiler records all that it makes or frees.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        function()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda e: e.start_ns())
    return max(accumulate(e.nbytes() for e in events))


def test_memory_of_scores_is_bounded_by_the_chunk(monkeypatch):
    """Beside the head's own gradient more than one chunk of 4 MiB is held, and less than three.

    One copy of the logits, of 1,024 tokens and 32k words, would be 128 MiB.
    """
    rows, hidden, vocabulary = 1024, 64, 32_000
    monkeypatch.setitem(model.LOGITS_CHUNK, "cpu", 2**20)  # 4 MiB
    h, w, y = random_head(rows, hidden, vocabulary)

    def score():
        logprobs, entropies = TokenScores.apply(h, w, y, 1.0)
        (logprobs + entropies).sum().backward()

    extra = peak_tensor_bytes(score) - h.nbytes - w.nbytes  # beside the gradients
    assert 1 * 2**22 < extra < 3 * 2**22, f"{extra / 2**20:.1f} MiB"
