"""One gradient on any number of ranks and micro-batches, safe steps, scores and weights that leave as they should."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from conftest import on_ranks, plain_scores
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM

from config import Config
from data import Question, Sample
from exgrpo import Group
from model import pack
from policy import Policy
from runtime import ranks

L_MAX = 20
KNOBS = dict(max_response_length=L_MAX, entropy_coef=0.02, temperature=0.8, max_drift=10.0, max_grad_norm=1e9, skip_grad_norm=1e9)


def make_policy(directory, **knobs):
    return Policy(Config(**KNOBS | knobs), directory, torch.device("cpu"))


def make_samples(policy, n=9, eos=2, seed=0, noise=0.4):
    """Responses of different lengths, three in a row to one prompt, every third replayed, old log-probs near the policy's."""
    rng = np.random.default_rng(seed)
    sizes = [(1, 1), (7, L_MAX), *(tuple(rng.integers(2, 13, 2)) for _ in range(n))][:n]
    pairs = [(rng.integers(0, 100, p).astype(np.int32), np.append(rng.integers(0, 100, r - 1), eos).astype(np.int32))
             for p, r in sizes]
    pairs[3:6] = [(pairs[3][0].copy(), response) for _, response in pairs[3:6]]
    scores = policy.score(pairs)
    samples = []
    for i, ((prompt, response), (logprobs, _)) in enumerate(zip(pairs, scores)):
        old = (logprobs + noise * rng.standard_normal(len(response))).astype(np.float32)
        samples.append(Sample(prompt, response, old, float(rng.standard_normal()), replayed=i % 3 == 2))
    return samples


def gradients(policy, samples, clip_eps=0.2):
    """(metrics of an update with one mini-batch, the gradient of every weight that its optimiser step saw)."""
    seen = {}

    def note():
        for name, p in policy.module.lm.named_parameters():
            seen[name] = p.grad.full_tensor().numpy().copy()

    policy.optimizer.step = note
    return policy.update([samples], clip_eps), seen


def full_weights(policy):
    return {name: tensor.numpy().copy() for name, tensor in policy.named_tensors()}


@pytest.fixture(scope="module")
def policy(device, tiny_model):
    """A policy on one rank that no test may train."""
    return make_policy(tiny_model)


@pytest.fixture(scope="module")
def samples(policy):
    return make_samples(policy)


def assert_same_gradients(mine, reference, tolerance=1e-5):
    assert mine.keys() == reference.keys()
    for name, expected in reference.items():
        assert np.linalg.norm(mine[name] - expected) <= tolerance * np.linalg.norm(expected), name


def test_gradient_is_eq_4_by_plain_autograd(tiny_model, device, samples):
    """The gradient of an update equals autograd through ordinary forward passes, one response at a time, of
    -Σ (CLIP(w, A) or f(w*) A, plus the entropy bonus) / (L_max N)."""
    metrics, mine = gradients(make_policy(tiny_model), samples)
    lm = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float64)
    total, loss = 0.0, 0.0
    for s in samples:
        logprobs, entropies = plain_scores(lm, s.prompt_ids, s.token_ids, KNOBS["temperature"])
        w = (logprobs - torch.as_tensor(s.old_logprobs)).exp()
        term = w / (w + 0.1) * s.advantage if s.replayed else torch.minimum(w * s.advantage, w.clamp(0.8, 1.2) * s.advantage)
        loss = loss - term.sum() / (L_MAX * len(samples))
        total = total - KNOBS["entropy_coef"] * entropies.sum() / (L_MAX * len(samples))
    (loss + total).backward()
    assert_same_gradients(mine, {name: p.grad.numpy() for name, p in lm.named_parameters()})
    assert metrics["loss/policy"] == pytest.approx((loss + total).item(), rel=1e-5)
    norm = torch.cat([p.grad.flatten() for p in lm.parameters()]).norm()
    assert metrics["loss/grad_norm"] == pytest.approx(float(norm), rel=1e-5)


# name: (knobs, how many of the samples)
CASES = {
    "one micro-batch": ({}, 9),
    "a micro-batch each": (dict(tokens_per_micro_batch=1), 9),
    "some micro-batches": (dict(tokens_per_micro_batch=40), 9),
    "gradient checkpointing": (dict(gradient_checkpointing=True, tokens_per_micro_batch=60), 9),
    "a rank without work": ({}, 1),
    "not sharded": (dict(shard=False, tokens_per_micro_batch=60), 9),
}


def report(directory, samples, save_to=None):
    """What one rank sees of every case, of scoring, and of a model that is trained and saved."""
    policy = make_policy(directory)
    pairs = [(s.prompt_ids, s.token_ids) for s in samples]
    seen = {"score": policy.score(pairs), "score one": policy.score(pairs[:1]), "entropy": policy.mean_entropy(pairs)}
    for name, (knobs, n) in CASES.items():
        seen[name] = gradients(make_policy(directory, **knobs), samples[:n])
    trained = make_policy(directory, lr=1e-2)
    trained.score(pairs)  # leaves the root unsharded; the update must not be hidden by that
    trained.update([samples[:5], samples[5:]], None)
    seen["trained"], seen["trained weights"] = trained.score(pairs), full_weights(trained)
    if save_to:
        trained.save_pretrained(save_to)
    with pytest.raises(RuntimeError, match="max_drift"):  # on every rank alike, or the others would hang
        make_policy(directory, max_drift=0.01).update([samples], None)
    with pytest.raises(RuntimeError, match="ranks disagree on rank" if ranks.world_size() > 1 else "alone"):
        ranks.check_same(fine=1, rank=ranks.rank())
        raise RuntimeError("alone")
    return seen


@pytest.fixture(scope="module")
def reports(device, tiny_model, samples, tmp_path_factory):
    """One rank's report, both reports of two ranks, and where those saved their model."""
    saved = tmp_path_factory.mktemp("saved")
    return report(tiny_model, samples), on_ranks(2, report, tiny_model, samples, saved), saved


@pytest.mark.parametrize("case", CASES)
def test_one_gradient_on_any_ranks_and_micro_batches(case, reports):
    """1 rank, 2 ranks and every split into micro-batches: the same gradients and metrics to 1e-5."""
    alone, pair, _ = reports
    reference = alone["a rank without work" if case == "a rank without work" else "one micro-batch"]
    for seen in (alone, *pair):
        metrics, grads = seen[case]
        assert_same_gradients(grads, reference[1])
        assert metrics == pytest.approx(reference[0], rel=1e-5, abs=1e-7)


def test_scores_do_not_depend_on_ranks(reports):
    """Log-probs and entropies, also of a single sequence, are those of one rank."""
    alone, pair, _ = reports
    for seen in pair:
        for name in ("score", "score one"):
            for mine, reference in zip(seen[name], alone[name], strict=True):
                np.testing.assert_allclose(mine, reference, atol=1e-5)
        np.testing.assert_allclose(seen["entropy"], alone["entropy"], atol=1e-5)


def test_ranks_train_and_save_one_model(reports, samples):
    """After two optimiser steps both ranks hold the same weights, and transformers loads what they saved:
    bit-equal weights, and log-probs equal to the policy's own."""
    alone, pair, saved = reports
    lm = AutoModelForCausalLM.from_pretrained(saved)
    for name, tensor in lm.state_dict().items():
        for seen in pair:
            assert np.array_equal(tensor.numpy(), seen["trained weights"][name]), name
    for s, (logprobs, _), (before, _) in zip(samples, pair[0]["trained"], alone["score"]):
        expected = plain_scores(lm, s.prompt_ids, s.token_ids, KNOBS["temperature"])[0].detach().numpy()
        np.testing.assert_allclose(logprobs, expected, atol=1e-4)
        assert np.abs(logprobs - before).max() > 1e-2


def test_a_group_computes_its_prompt_once(policy, monkeypatch):
    """8 questions of 16 tokens with 8 responses of 4: rows of 8 · (16 + 8 · 4) tokens in all, not of 64 · 20."""
    rng, lengths = np.random.default_rng(0), []
    questions = [rng.integers(0, 100, 16).astype(np.int32) for _ in range(8)]
    pairs = [(q, rng.integers(0, 100, 4).astype(np.int32)) for q in questions for _ in range(8)]
    monkeypatch.setattr("policy.pack", lambda *args: (lengths.append((packed := pack(*args)).input_ids.shape[1]), packed)[1])
    together = policy.score(pairs)
    assert sum(lengths) == 8 * (16 + 8 * 4)
    for (a, _), pair in list(zip(together, pairs))[::7]:
        np.testing.assert_allclose(a, policy.score([pair])[0][0], atol=1e-5)


def test_mean_entropy_counts_eos(policy, samples, tiny_model):
    """The mean of the full-vocabulary entropies at all positions that predict a response token, EOS included;
    the mean NLL is that of the same tokens."""
    lm = AutoModelForCausalLM.from_pretrained(tiny_model)
    pairs = [(s.prompt_ids, s.token_ids) for s in samples]
    with torch.no_grad():
        plain = [plain_scores(lm, *pair, KNOBS["temperature"]) for pair in pairs]
    np.testing.assert_allclose(policy.mean_entropy(pairs), [float(e.mean()) for _, e in plain], atol=1e-5)
    np.testing.assert_allclose(policy.mean_nll(pairs), [-float(p.mean()) for p, _ in plain], atol=1e-5)
    assert abs(policy.mean_entropy(pairs[1:2])[0] - float(plain[1][1][:-1].mean())) > 1e-3


def test_entropy_of_a_uniform_model_is_log_v(tiny_model, device):
    """With an output head of zeros every token has entropy log V and log-prob -log V."""
    policy = make_policy(tiny_model)
    torch.nn.init.zeros_(policy.module.lm.lm_head.weight)
    pairs = [(np.array([1, 5], np.int32), np.array([9, 2], np.int32))]
    v = policy.module.lm.config.vocab_size
    assert policy.mean_entropy(pairs) == pytest.approx([math.log(v)], abs=1e-5)
    assert policy.mean_nll(pairs) == pytest.approx([math.log(v)], abs=1e-5)
    assert policy.score([]) == []
    assert all(isinstance(p, DTensor) for p in policy.module.parameters())  # scoring leaves nothing gathered


@pytest.mark.parametrize("knobs, spoil", [(dict(skip_grad_norm=1e-9), 1.0), ({}, math.nan), ({}, math.inf)],
                         ids=["norm above the bound", "nan", "inf"])
def test_a_bad_step_is_skipped_and_counted(knobs, spoil, tiny_model, samples):
    """A norm above the bound or not finite leaves weights (weight decay too) and moments bit-identical."""
    policy = make_policy(tiny_model, **knobs)
    before = full_weights(policy)
    bad = [Sample(s.prompt_ids, s.token_ids, s.old_logprobs, s.advantage * spoil, s.replayed) for s in samples]
    metrics = policy.update([bad, bad], None)
    assert metrics["loss/skipped"] == 2 and not policy.optimizer.state
    assert all(np.array_equal(before[name], after) for name, after in full_weights(policy).items())


def test_three_bad_steps_in_a_row_stop_the_run(tiny_model, samples):
    """The third skipped step in a row raises with its norm and bound; a good step in between starts the count anew."""
    bad = [Sample(s.prompt_ids, s.token_ids, s.old_logprobs, math.nan, s.replayed) for s in samples]
    policy = make_policy(tiny_model)
    policy.update([bad, bad, samples, bad, bad], None)
    with pytest.raises(RuntimeError, match="gradient norm of nan .bound skip_grad_norm"):
        policy.update([bad], None)


def test_one_bad_mini_batch_does_not_stop_the_other(tiny_model, samples):
    """nan in the first mini-batch, none in the second: one step is skipped, the other one is that of a fresh policy."""
    bad = [Sample(s.prompt_ids, s.token_ids, s.old_logprobs, math.nan, s.replayed) for s in samples]
    policy, other = make_policy(tiny_model), make_policy(tiny_model)
    assert policy.update([bad, samples], None)["loss/skipped"] == 1
    assert other.update([samples], None)["loss/skipped"] == 0
    for name, expected in full_weights(other).items():
        assert np.array_equal(full_weights(policy)[name], expected), name


def test_gradient_clipping_scales_the_gradient(tiny_model, samples, device):
    """With max_grad_norm the optimiser sees the same direction with that norm."""
    _, free = gradients(make_policy(tiny_model), samples)
    _, clipped = gradients(make_policy(tiny_model, max_grad_norm=1e-3), samples)
    norm = math.sqrt(sum(float((g**2).sum()) for g in free.values()))
    assert norm > 1e-3
    assert_same_gradients({k: g * (norm / 1e-3) for k, g in clipped.items()}, free, 1e-3)


def shifted(policy, samples, fresh, replayed):
    """The samples with old log-probs at a fixed distance from the policy's."""
    scores = policy.score([(s.prompt_ids, s.token_ids) for s in samples])
    return [Sample(s.prompt_ids, s.token_ids, p - (replayed if s.replayed else fresh), s.advantage, s.replayed)
            for s, (p, _) in zip(samples, scores)]


def test_drift_stops_the_run_with_numbers(tiny_model, policy, samples):
    """Fresh log-probs 0.1 nats off raise with both numbers before any step; replayed ones may be off."""
    checked = make_policy(tiny_model, max_drift=0.01)
    before = full_weights(checked)
    with pytest.raises(RuntimeError, match=r"1\.00e-01 nats a token, bound max_drift=0\.01"):
        checked.update([shifted(policy, samples, fresh=0.1, replayed=0.0)], None)
    assert all(np.array_equal(before[name], after) for name, after in full_weights(checked).items())
    metrics = checked.update([shifted(policy, samples, fresh=0.001, replayed=2.0)], None)
    assert metrics["engine/drift"] < 0.0011


def test_recomputed_log_probs_are_the_policys(tiny_model, policy, samples):
    """`recompute` puts the policy's log-probs in place of the engine's, not of o*'s; the drift it finds is what update reports,
    and too large a one raises."""
    def groups(off):
        return [Group(Question(0, "", s.prompt_ids, "", ""), [s.token_ids], [s.old_logprobs], np.zeros(1, np.float32), s.replayed)
                for s in shifted(policy, samples, fresh=off, replayed=0.5)]

    made = make_policy(tiny_model, max_drift=0.01, behavior_logprobs="recompute")
    changed = groups(0.001)
    made.recompute(changed)
    for group, sample in zip(changed, samples):
        expected = policy.score([(sample.prompt_ids, sample.token_ids)])[0][0]
        np.testing.assert_allclose(group.logprobs[0], expected - (0.5 if sample.replayed else 0.0), atol=1e-5)
    exact = shifted(policy, samples, fresh=0.0, replayed=0.5)
    assert made.update([exact], None)["engine/drift"] == pytest.approx(0.001, rel=1e-2)
    with pytest.raises(RuntimeError, match=r"1\.00e-01 nats a token, bound max_drift=0\.01"):
        make_policy(tiny_model, max_drift=0.01).recompute(groups(0.1))


def test_ratios_by_option(tiny_model, policy, samples):
    """Stored log-probs 0.5 nats off: w* = e^0.5 with importance correction, 1 without; both then move with the policy
    while the denominator stays that of the step's start."""
    off = shifted(policy, samples, fresh=0.0, replayed=0.5)
    make = partial(make_policy, tiny_model, lr=1e-2)
    assert make().update([off], None)["replay/ratio"] == pytest.approx(math.exp(0.5), rel=1e-4)
    without = make(importance_correction=False)
    metrics = without.update([off], None)
    assert metrics["replay/ratio"] == pytest.approx(1.0, rel=1e-5) and metrics["replay/gradient_share"] > 0
    assert metrics["loss/ratio"] == pytest.approx(1.0, rel=1e-5)
    two_steps = make(importance_correction=False).update([off, off], None)
    assert abs(two_steps["replay/ratio"] - 1) > 1e-3


def test_a_sliding_window_is_refused_where_it_would_matter(device, tmp_path):
    """A Mistral that attends over 8 tokens is taken for prompts and responses of 8 together, and refused for 9, at the start."""
    config = AutoConfig.for_model("mistral", vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
                                  num_attention_heads=1, num_key_value_heads=1, sliding_window=8)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    make_policy(tmp_path, max_prompt_length=4, max_response_length=4)
    with pytest.raises(ValueError, match="last 8 tokens only.* = 9 to that"):
        make_policy(tmp_path, max_prompt_length=5, max_response_length=4)


def test_tied_weights_leave_under_both_names(tiny_models, device, samples, tmp_path):
    """named_tensors has every name of transformers' state_dict, the tied head included, also after an update;
    a tied model saved and loaded is still the policy."""
    for tied, directory in tiny_models.items():
        policy = make_policy(directory, lr=1e-2)
        reference = AutoModelForCausalLM.from_pretrained(directory).state_dict()
        for name, tensor in policy.named_tensors():
            assert torch.equal(tensor, reference[name])
        policy.update([samples], None)
        weights = full_weights(policy)
        assert weights.keys() == reference.keys()
        head, embedding = weights["lm_head.weight"], weights["model.embed_tokens.weight"]
        assert np.array_equal(head, embedding) == tied and not np.array_equal(head, reference["lm_head.weight"])
        policy.save_pretrained(tmp_path / str(tied))
        for name, tensor in AutoModelForCausalLM.from_pretrained(tmp_path / str(tied)).state_dict().items():
            assert np.array_equal(tensor.numpy(), weights[name]), name
        assert {t.dtype for _, t in policy.named_tensors(torch.bfloat16)} == {torch.bfloat16}


def test_bfloat16_compute_keeps_float32_weights(tiny_model, policy, samples, device):
    """dtype=bfloat16: gradients and weights stay float32 and point where the float32 gradient points."""
    half = make_policy(tiny_model, dtype="bfloat16")
    _, reference = gradients(make_policy(tiny_model), samples)
    _, grads = gradients(half, samples)
    assert {g.dtype for g in grads.values()} == {w.dtype for w in full_weights(half).values()} == {np.dtype("float32")}
    a, b = (np.concatenate([g[name].ravel() for name in reference]) for g in (grads, reference))
    assert a @ b > 0.99 * np.linalg.norm(a) * np.linalg.norm(b)
    assert np.linalg.norm(a) == pytest.approx(np.linalg.norm(b), rel=0.05)
