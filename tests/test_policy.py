"""One gradient, that of Eq. 4, on any ranks and micro-batches; safe steps; whole weights."""

import math
import os
from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import on_ranks, plain_scores
from test_model import KNOBS, config_of, save_model
from transformers import AutoModelForCausalLM

from buffer import Trajectory
from exgrpo import Group
from model import MODEL_TYPES
from policy import Policy
from rollout import HFEngine
from runtime import ranks

CPU = torch.device("cpu")
CLIP_EPS = 3e-4  # below the distance of new tokens
TEMPERATURE = KNOBS["temperature"]
L_MAX = KNOBS["max_response_length"]
LORA_RANKS = {"all weights": 0}
if find_spec("peft"):  # an extra
    LORA_RANKS["adapters"] = 2


def make_policy(directory, **knobs):
    return Policy(config_of(directory, **knobs), CPU)


def make_groups(policy, new=5e-4, star=0.4):
    """Nine responses of one to L_MAX tokens in five groups, three of which begin with an o*.

    The policy's log-probs are so much above the old ones of new responses, and above those of o*.
    """
    rng = np.random.default_rng(0)
    groups = []
    for prompt, lengths in [(1, [1, 5]), (7, [L_MAX]), (3, [9, 4, 12]), (9, [2]), (5, [11, 3])]:
        question = SimpleNamespace(prompt_ids=rng.integers(0, 100, prompt))
        trajectories = []
        for length in lengths:
            ids = rng.integers(0, 100, length)
            [(logprobs, _)] = policy.score([(question.prompt_ids, ids)])
            trajectories.append(Trajectory(ids, logprobs - np.float32(new)))
        first = None
        if len(lengths) > 1:
            first = trajectories.pop(0)
            first.logprobs += np.float32(new - star)
        advantages = rng.standard_normal(len(lengths)).astype(np.float32)
        groups.append(Group(question, first, trajectories, advantages))
    return groups


def sequences_of(groups):
    return [(g.question.prompt_ids, t.token_ids) for g in groups for t in g.trajectories]


def gradients(policy, groups):
    """(metrics of an update by one mini-batch, {name: the gradient that its step saw})."""
    seen = {}

    def note():
        for name, p in policy.module.lm.named_parameters():
            seen[name] = p.grad.full_tensor().numpy().copy()

    policy.optimizer.step = note
    return policy.update([groups], CLIP_EPS), seen


def full_weights(policy):
    return {name: tensor.numpy().copy() for name, tensor in policy.full_weights(torch.float32)}


def assert_same(mine, reference, tolerance=1e-5):
    """Arrays by name are the same, each within a share of its norm."""
    assert mine.keys() == reference.keys()
    for name, expected in reference.items():
        distance = np.linalg.norm(mine[name] - expected)
        assert distance <= tolerance * np.linalg.norm(expected), name


@pytest.fixture(scope="module")
def directory(device, tmp_path_factory):
    """A model in bfloat16, which is trained in float32."""
    path = tmp_path_factory.mktemp("model")
    save_model("llama", path, torch.bfloat16)
    return path


MICRO_BATCHES = [
    {},
    dict(tokens_per_micro_batch=1),  # one for each: of two ranks one has none in the end
    dict(tokens_per_micro_batch=40, gradient_checkpointing=False),
]


def report(directory, groups, place, ranks_of_a_node):
    """(metrics and gradients with these micro-batches, weights that are trained and saved)."""
    os.environ["GROUP_WORLD_SIZE"] = str(ranks.world_size() // ranks_of_a_node)
    updates = [gradients(make_policy(directory, **knobs), groups) for knobs in MICRO_BATCHES]
    trained = {}
    for case, lora_rank in LORA_RANKS.items():
        # So large an ε makes steps smooth.
        policy = make_policy(directory, lr=1e-2, adam_eps=1e-2, lora_rank=lora_rank)
        policy.update([groups[:3], groups[3:]], None)
        policy.save_pretrained(place / case)
        trained[case] = full_weights(policy)
    return updates, trained


@pytest.fixture(scope="module")
def policy(directory):
    """One that no test may train."""
    return make_policy(directory)


@pytest.fixture(scope="module")
def groups(policy):
    return make_groups(policy)


@pytest.fixture(scope="module")
def alone(directory, groups, tmp_path_factory):
    return report(directory, groups, tmp_path_factory.mktemp("saved"), 1)


def test_the_gradient_is_that_of_eq_4(directory, alone, groups):
    """By plain passes it is that of -Σ (CLIP(w, A), or f(w*) A, + bonus) / (L_max N)."""
    metrics, mine = alone[0][0]
    lm = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64)
    loss = 0.0
    bonus = 0.0
    constant = L_MAX * len(sequences_of(groups))
    for group in groups:
        for t, advantage in zip(group.trajectories, group.advantages.tolist()):
            logprobs, entropies = plain_scores(
                lm, group.question.prompt_ids, t.token_ids, TEMPERATURE
            )
            w = (logprobs - torch.as_tensor(t.logprobs)).exp()
            if t is group.star:
                terms = w / (w + 0.1) * advantage
            else:
                held = w.clamp(1 - CLIP_EPS, 1 + CLIP_EPS) * advantage
                terms = torch.minimum(w * advantage, held)
            loss = loss - terms.sum() / constant
            bonus = bonus + KNOBS["entropy_coef"] * entropies.sum() / constant
    (loss - bonus).backward()
    plain = {name: p.grad.numpy() for name, p in lm.named_parameters()}
    assert_same(mine, plain)
    norm = np.linalg.norm([np.linalg.norm(g) for g in plain.values()])
    assert metrics["loss/policy"] == pytest.approx(loss.item(), rel=1e-4)
    assert metrics["loss/grad_norm"] == pytest.approx(norm, rel=1e-5)
    assert 0 < metrics["loss/clipped"] < 1


@pytest.mark.parametrize("ranks_of_a_node", [2, 1])
def test_ranks_nodes_and_micro_batches_change_nothing(
    ranks_of_a_node, directory, alone, groups, tmp_path
):
    """Two ranks, on one node or two, have the gradients and metrics of one, in any micro-batches.

    They hold and save one model, with adapters merged, in bfloat16 as it was before.
    """
    updates, trained_alone = alone
    metrics, gradient = updates[0]
    pair = on_ranks(2, report, directory, groups, tmp_path, ranks_of_a_node)
    for updates, trained in (alone, *pair):
        for seen, mine in updates:
            assert seen == pytest.approx(metrics, rel=1e-4, abs=1e-6)
            assert_same(mine, gradient)
        for case, weights in trained.items():
            assert_same(weights, trained_alone[case])
    for case, weights in trained.items():
        saved = AutoModelForCausalLM.from_pretrained(tmp_path / case, dtype="auto").state_dict()
        for name, tensor in saved.items():
            assert torch.equal(tensor, torch.from_numpy(weights[name]).bfloat16()), name


@pytest.mark.parametrize("lora_rank", LORA_RANKS.values())
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_the_engine_gets_what_was_trained(model_type, lora_rank, device, tmp_path):
    """Every parameter, or adapter, is trained; the engine's log-probs become the policy's."""
    save_model(model_type, tmp_path)
    policy = make_policy(tmp_path, lr=1e-2, lora_rank=lora_rank)
    groups = make_groups(policy)
    policy.update([groups, groups], None)  # the gradient of LoRA's A is 0 in the first step
    for name, p in policy.module.named_parameters():
        if p.requires_grad:
            assert policy.optimizer.state[p]["exp_avg"].full_tensor().any(), name
    engine = HFEngine(policy.config, [2], CPU)
    engine.load(policy.full_weights(engine.dtype))
    prompt = groups[1].question.prompt_ids
    [(_, response)] = engine.generate([(prompt, 0)], TEMPERATURE)
    [(logprobs, _)] = policy.score([(prompt, response.token_ids)])
    np.testing.assert_allclose(response.logprobs, logprobs, atol=1e-4)


def test_candidates_are_scored_by_mean_entropy_or_nll(directory, policy, groups):
    """The means are over all tokens of a response, by question."""
    a, b = sequences_of(groups)[:2]
    (_, h_a), (p_b, h_b) = policy.score([a, b])
    by_nll = make_policy(directory, trajectory_selection="nll")
    h_a, h_b, nll_b = [pytest.approx(x.mean(), rel=1e-5) for x in (h_a, h_b, -p_b)]
    assert policy.score_candidates([[a], [], [b]]) == [[h_a], [], [h_b]]
    assert by_nll.score_candidates([[b]]) == [[nll_b]]


@pytest.mark.parametrize("factor, counts", [(math.nan, (2, 0)), (1e9, (2, 0)), (0.0, (0, 2))])
def test_bad_and_silent_mini_batches_make_no_step(factor, counts, directory, groups):
    """They are counted, leave no trace, and do not touch the good one between them."""
    bad = [replace(g, advantages=g.advantages * np.float32(factor)) for g in groups]
    policy = make_policy(directory)
    metrics = policy.update([bad, groups, bad], None)
    assert (metrics["loss/skipped"], metrics["loss/without_advantage"]) == counts
    alone = make_policy(directory)
    alone.update([groups], None)
    assert_same(full_weights(policy), full_weights(alone), 0.0)


def test_an_engine_with_other_weights_is_refused(directory, policy):
    """New log-probs 0.1 nats off raise before a step; replayed ones may be off."""
    trained = make_policy(directory)
    before = full_weights(trained)
    with pytest.raises(RuntimeError, match=r"1\.00e-01 nats a token"):
        trained.update([make_groups(policy, new=0.1, star=0.0)], None)
    assert_same(full_weights(trained), before, 0.0)
    metrics = trained.update([make_groups(policy, star=2.0)], None)
    assert metrics["engine/drift"] == pytest.approx(5e-4, rel=1e-2)


def test_recomputed_log_probs_are_the_policys(policy):
    """They replace the engine's, not those of o*."""
    given = make_groups(policy, star=0.5)
    expected = make_groups(policy, new=0.0, star=0.5)
    policy.recompute(given)
    for mine, right in zip(given, expected):
        for t, reference in zip(mine.trajectories, right.trajectories):
            np.testing.assert_allclose(t.logprobs, reference.logprobs, atol=1e-5)


def test_importance_correction_divides_by_the_stored_log_probs(directory, policy):
    """With it w* is e^0.5 where they are 0.5 off; without it 1, until the policy moves."""
    off = make_groups(policy, new=0.0, star=0.5)

    def ratio(mini_batches, **knobs):
        policy = make_policy(directory, lr=1e-2, **knobs)
        return policy.update(mini_batches, None)["replay/ratio"]

    assert ratio([off]) == pytest.approx(math.exp(0.5), rel=1e-4)
    assert ratio([off], importance_correction=False) == pytest.approx(1.0, rel=1e-5)
    # The second mini-batch, too, divides by π_θ before the first one's step.
    assert abs(ratio([off, off], importance_correction=False) - 1) > 1e-3
