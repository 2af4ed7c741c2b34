"""Packed and chunked scores equal the plain ones, in value and gradient, and in a bounded amount of memory."""

from itertools import accumulate

import numpy as np
import pytest
import torch
from conftest import plain_scores
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModelForCausalLM

import model
from model import PackedLM, TokenScores, pack

TEMPERATURE = 0.7


def load(directory, attention="packed"):
    """The tiny model in float64, so that equality means equality."""
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64, attn_implementation=attention)


def draw_sequences(n=5, seed=0):
    """(prompt ids, response ids) pairs of different lengths, among them a prompt and a response of one token."""
    rng = np.random.default_rng(seed)
    sizes = [(1, 6), (4, 1)] + [tuple(rng.integers(2, 12, 2)) for _ in range(n - 2)]
    sequences = [tuple(rng.integers(0, 100, k).astype(np.int32) for k in pair) for pair in sizes]
    same = sequences[1][0]  # one prompt, three responses in a row
    return sequences[:2] + [(same.copy(), r) for _, r in sequences[2:4]] + sequences[4:]


@pytest.fixture(params=[False, True], ids=["untied", "tied"])
def directory(request, tiny_models):
    return tiny_models[request.param]


def test_packed_is_plain_in_value_and_gradient(directory):
    """Scores of packed sequences, and every weight's gradient of a random mix of them, equal the sum over plain
    single-sequence passes: grouped-query attention, temperature, tied and untied heads."""
    sequences = draw_sequences()
    packed_lm, plain_lm = PackedLM(load(directory), TEMPERATURE), load(directory, "sdpa")
    scores = packed_lm(pack(sequences))
    expected = [torch.cat(parts) for parts in zip(*(plain_scores(plain_lm, *s, TEMPERATURE) for s in sequences))]
    for mine, reference in zip(scores, expected):
        torch.testing.assert_close(mine, reference.float(), rtol=1e-5, atol=1e-5)
    mix = [torch.randn(len(scores[0])) for _ in scores]
    sum((m * s).sum() for m, s in zip(mix, scores)).backward()
    sum((m * s).sum() for m, s in zip(mix, expected)).backward()
    reference = dict(plain_lm.named_parameters())
    assert len(reference) == len(list(packed_lm.lm.parameters()))
    for name, p in packed_lm.lm.named_parameters():
        torch.testing.assert_close(p.grad, reference[name].grad, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


def test_adversarial_neighbours_change_nothing(directory):
    """Replacing all tokens of one sequence (and its length) leaves the others' scores as they were."""
    sequences, lm = draw_sequences(), PackedLM(load(directory), TEMPERATURE)
    with torch.no_grad():
        before = lm(pack(sequences))[0].split([len(r) for _, r in sequences])
        for i in range(len(sequences)):
            changed = list(sequences)
            changed[i] = (np.full(9, 7 + i, np.int32), np.full(13, 3, np.int32))
            after = lm(pack(changed))[0].split([len(r) for _, r in changed])
            for j in set(range(len(sequences))) - {i}:
                torch.testing.assert_close(after[j], before[j], rtol=0, atol=1e-6)


def test_order_and_company_do_not_matter(directory):
    """A sequence scores the same alone, first or last in the row."""
    sequences, lm = draw_sequences(), PackedLM(load(directory), TEMPERATURE)
    with torch.no_grad():
        alone = [lm(pack([s]))[0] for s in sequences]
        turned = lm(pack(sequences[::-1]))[0].split([len(r) for _, r in sequences[::-1]])
    for a, b in zip(alone, turned[::-1]):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


def test_gradient_checkpointing_changes_nothing(tiny_model):
    """Recomputed activations give the same scores and gradients."""
    grads = []
    for checkpointing in (False, True):
        lm = load(tiny_model).train()
        if checkpointing:
            lm.gradient_checkpointing_enable({"use_reentrant": False})
        logprobs, entropies = PackedLM(lm)(pack(draw_sequences()))
        (logprobs.sum() + entropies.square().sum()).backward()
        grads.append([p.grad for p in lm.parameters()])
    for a, b in zip(*grads):
        torch.testing.assert_close(a, b)


def test_unpack_puts_tokens_in_their_rows():
    """(R,) values land row by row at the left, zeros elsewhere; targets and positions are those of the sequences."""
    packed = pack([(np.array([5]), np.array([1, 2])), (np.array([6, 7]), np.array([3]))])
    assert packed.unpack(torch.tensor([1.0, 2.0, 3.0])).tolist() == [[1, 2], [3, 0]]
    assert packed.input_ids.tolist() == [[5, 1, 2, 6, 7, 3]] and packed.position_ids.tolist() == [[0, 1, 2, 0, 1, 2]]
    assert packed.targets.tolist() == [1, 2, 3] and packed.predictors.tolist() == [0, 1, 4]
    assert packed.cu_seqlens.tolist() == [0, 3, 6] and packed.pad_index.shape == (2, 3)


def test_a_shared_prompt_is_there_once():
    """Two responses to one prompt, then another prompt: the row, and where attention and head find each token, by hand."""
    a, b = np.array([5, 6]), np.array([7])
    packed = pack([(a, np.array([1, 2])), (a, np.array([3])), (b, np.array([4]))])
    assert packed.input_ids.tolist() == [[5, 6, 1, 2, 3, 7, 4]] and packed.position_ids.tolist() == [[0, 1, 2, 3, 2, 0, 1]]
    assert packed.pad_index.tolist() == [[0, 1, 2, 3], [0, 1, 4, 0], [5, 6, 0, 0]]
    assert packed.cell_index.tolist() == [0, 1, 2, 3, 6, 8, 9]
    assert packed.repeated.tolist() == [0, 1, 2, 3, 0, 1, 4, 5, 6] and packed.once.tolist() == [0, 1, 2, 3, 6, 7, 8]
    assert packed.cu_seqlens.tolist() == [0, 4, 7, 9]
    assert packed.predictors.tolist() == [1, 2, 1, 5] and packed.targets.tolist() == [1, 2, 3, 4]


def random_head(rows=11, hidden=6, vocabulary=13, dtype=torch.float64, seed=0):
    g = torch.Generator().manual_seed(seed)
    h, w = (torch.randn(n, hidden, generator=g, dtype=dtype).requires_grad_() for n in (rows, vocabulary))
    return h, w, torch.randint(vocabulary, (rows,), generator=g)


def full_scores(hidden, weight, targets, temperature):
    """The same scores by autograd through all logits at once."""
    log_p = (hidden @ weight.T / temperature).log_softmax(-1)
    return log_p.gather(1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("chunk", [1, 13 * 4, 2**25])
def test_chunked_scores_equal_full_ones(chunk, dtype, monkeypatch):
    """Any chunk size: log-probs, entropies and both gradients equal autograd through the full logits."""
    monkeypatch.setattr(model, "LOGITS_CHUNK", chunk)
    h, w, y = random_head(dtype=dtype)
    mine, reference = TokenScores.apply(h, w, y, TEMPERATURE), full_scores(h, w, y, TEMPERATURE)
    a, b = torch.randn(2, len(y), dtype=dtype)
    for part, expected in zip(mine, reference):
        torch.testing.assert_close(part.to(dtype), expected, rtol=1e-5, atol=1e-5)
    for part in (lambda s: (a * s[0]).sum(), lambda s: (b * s[1]).sum(), lambda s: (a * s[0] + b * s[1]).sum()):
        for grad, expected in zip(torch.autograd.grad(part(mine), (h, w), retain_graph=True),
                                  torch.autograd.grad(part(reference), (h, w), retain_graph=True)):
            torch.testing.assert_close(grad, expected, rtol=1e-4, atol=1e-5)


def test_scores_of_extreme_logits_stay_finite():
    """Logits of ±1e4 give finite scores, an entropy of 0 and finite gradients."""
    h, w, y = random_head(dtype=torch.float32)
    h = (h.detach() * 1e4).requires_grad_()
    logprobs, entropies = TokenScores.apply(h, w, y, 1.0)
    (logprobs + entropies).sum().backward()
    assert logprobs.isfinite().all() and h.grad.isfinite().all() and w.grad.isfinite().all()
    assert entropies.abs().max() < 1e-3


def test_bfloat16_head_is_scored_in_float32():
    """bfloat16 hidden states and head: float32 scores, gradients in bfloat16 near the float32 ones."""
    h, w, y = random_head(rows=40, hidden=32, vocabulary=50, dtype=torch.float32)
    h16, w16 = (x.detach().bfloat16().requires_grad_() for x in (h, w))
    mine, reference = TokenScores.apply(h16, w16, y, 1.0), full_scores(h16.float(), w16.float(), y, 1.0)
    assert mine[0].dtype == mine[1].dtype == torch.float32
    torch.testing.assert_close(mine, reference, rtol=0.02, atol=0.1)
    (mine[0].sum() + mine[1].sum()).backward()
    h32, w32 = (x.detach().float().requires_grad_() for x in (h16, w16))
    (full_scores(h32, w32, y, 1.0)[0].sum() + full_scores(h32, w32, y, 1.0)[1].sum()).backward()
    for small, full in ((h16, h32), (w16, w32)):
        assert small.grad.dtype == torch.bfloat16
        assert (small.grad.float() - full.grad).norm() < 0.02 * full.grad.norm()


def peak_bytes(function) -> int:
    """The most bytes of tensors alive at once that `function()` allocates, by the allocator's own events."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        function()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    return max(accumulate(e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())))


def test_memory_of_scores_is_bounded_by_the_chunk(monkeypatch):
    """Forward and backward over 4,096 tokens and 32k words: at most five chunks beside the head's own gradient,
    where one copy of the logits would be 512 MiB."""
    rows, hidden, vocabulary = 4096, 64, 32_000
    monkeypatch.setattr(model, "LOGITS_CHUNK", 2**20)  # 4 MiB
    h, w, y = random_head(rows, hidden, vocabulary, torch.float32)

    def score():
        logprobs, entropies = TokenScores.apply(h, w, y, 1.0)
        (logprobs + entropies).sum().backward()

    extra = peak_bytes(score) - h.nbytes - w.nbytes  # beside the gradients
    assert 2 * 2**22 < extra < 5 * 2**22, f"{extra / 2**20:.1f} MiB"
