"""One gradient, that of Eq. 4, on any ranks and micro-batches; safe steps; whole weights."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import on_ranks, plain_scores
from test_model import KNOBS, config_of, save_model
from transformers import AutoModelForCausalLM

import policy as policy_module
from buffer import Trajectory
from exgrpo import Group
from model import MODEL_TYPES
from policy import Policy
from rollout import HFEngine
from runtime import ranks

CPU = torch.device("cpu")
CLIP_EPS = 3e-4  # half of the new tokens are beyond it
TEMPERATURE = KNOBS["temperature"]
L_MAX = KNOBS["max_response_length"]


def make_policy(directory, **knobs):
    return Policy(config_of(directory, **knobs), CPU)


def make_groups(policy):
    """Nine responses of one to L_MAX tokens in five groups, three of which begin with an o*.

    Old log-probs are within the allowed drift of the policy's, those of o* further away.
    """
    rng = np.random.default_rng(0)
    groups = []
    for prompt, lengths in [(1, [1, 5]), (7, [L_MAX]), (3, [9, 4, 12]), (9, [2]), (5, [11, 3])]:
        question = SimpleNamespace(prompt_ids=rng.integers(0, 100, prompt))
        responses = [rng.integers(0, 100, length) for length in lengths]
        trajectories = []
        for ids, (p, _) in zip(
            responses, policy.score([(question.prompt_ids, r) for r in responses])
        ):
            distance = 5e-4 if trajectories or len(lengths) == 1 else 0.4
            noise = rng.standard_normal(len(ids)).astype(np.float32)
            trajectories.append(Trajectory(ids, p + distance * noise))
        star = trajectories.pop(0) if len(lengths) > 1 else None
        advantages = rng.standard_normal(len(lengths)).astype(np.float32)
        groups.append(Group(question, star, trajectories, advantages))
    return groups


def sequences_of(groups):
    return [(g.question.prompt_ids, t.token_ids) for g in groups for t in g.trajectories]


def shifted(groups, policy, new, star):
    """The groups with log-probs at these distances from the policy's."""
    scores = iter(policy.score(sequences_of(groups)))
    result = []
    for g in groups:
        moved = []
        for t, replayed in zip(g.trajectories, g.replayed):
            logprobs, _ = next(scores)
            moved.append(replace(t, logprobs=logprobs - np.float32(star if replayed else new)))
        first = moved.pop(0) if g.star else None
        result.append(replace(g, star=first, new=moved))
    return result


def gradients(policy, groups):
    """(metrics of an update by one mini-batch, {name: the gradient that its step saw})."""
    seen = {}

    def note():
        for name, p in policy.module.lm.named_parameters():
            seen[name] = p.grad.full_tensor().numpy().copy()

    policy.optimizer.step = note
    return policy.update([groups], CLIP_EPS), seen


def full_weights(policy):
    return {name: tensor.numpy().copy() for name, tensor in policy.full_weights()}


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


@pytest.fixture(scope="module")
def policy(directory):
    """One that no test may train."""
    return make_policy(directory)


@pytest.fixture(scope="module")
def groups(policy):
    return make_groups(policy)


@pytest.fixture(scope="module")
def reference(directory, groups):
    """The metrics and gradients of one rank in one micro-batch."""
    return gradients(make_policy(directory), groups)


def test_the_gradient_is_that_of_eq_4(directory, reference, groups):
    """By plain passes it is that of -Σ (CLIP(w, A), or f(w*) A, + bonus) / (L_max N)."""
    metrics, mine = reference
    lm = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64)
    loss = 0.0
    bonus = 0.0
    clipped = []
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
                clipped += (held < w * advantage).tolist()
            loss = loss - terms.sum() / constant
            bonus = bonus + KNOBS["entropy_coef"] * entropies.sum() / constant
    (loss - bonus).backward()
    plain = {name: p.grad.numpy() for name, p in lm.named_parameters()}
    assert_same(mine, plain)
    norm = math.sqrt(sum((g**2).sum() for g in plain.values()))
    assert metrics["loss/policy"] == pytest.approx(loss.item(), rel=1e-4)
    assert metrics["loss/grad_norm"] == pytest.approx(norm, rel=1e-5)
    assert metrics["loss/clipped"] == pytest.approx(np.mean(clipped))
    assert 0.1 < np.mean(clipped) < 0.9


MICRO_BATCHES = {
    "all in one": {},
    "one for each": dict(tokens_per_micro_batch=1),
    "some": dict(tokens_per_micro_batch=40, gradient_checkpointing=True),
}
TRAINED = {"weights": {}, "adapters": dict(lora_rank=2)}
WORLDS = {"one rank": (1, 1), "two ranks": (2, 2), "two nodes": (2, 1)}  # ranks, ranks of a node


def report(directory, groups, ranks_of_a_node, place):
    """What a rank sees of all cases; the trained models are saved."""
    ranks._ranks_per_node = ranks_of_a_node
    seen = {}
    for case, knobs in MICRO_BATCHES.items():
        seen[case] = gradients(make_policy(directory, **knobs), groups)
    seen["a rank without work"] = gradients(make_policy(directory), groups[1:2])
    for case, knobs in TRAINED.items():
        # So large an ε makes steps smooth.
        trained = make_policy(directory, lr=1e-2, adam_eps=1e-2, **knobs)
        trained.update([groups[:3], groups[3:]], None)
        scores = dict(enumerate(trained.score(sequences_of(groups))))
        seen[case] = scores, full_weights(trained)
        trained.save_pretrained(place / case)
    return seen


@pytest.fixture(scope="module", params=WORLDS)
def reports(request, directory, groups, tmp_path_factory):
    """The reports of all ranks of a world, and where they saved."""
    world_size, ranks_of_a_node = WORLDS[request.param]
    place = tmp_path_factory.mktemp("saved")
    return on_ranks(world_size, report, directory, groups, ranks_of_a_node, place), place


def test_ranks_nodes_and_micro_batches_change_nothing(reports, directory, reference, groups):
    """Gradients and metrics are those of one rank with one micro-batch, to 1e-5."""
    single = gradients(make_policy(directory), groups[1:2])
    for seen in reports[0]:
        for case in (*MICRO_BATCHES, "a rank without work"):
            metrics, expected = single if case == "a rank without work" else reference
            assert_same(seen[case][1], expected)
            assert seen[case][0] == pytest.approx(metrics, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("case", TRAINED)
def test_ranks_hold_and_save_the_model_that_they_score_with(case, reports, groups):
    """What transformers loads is in bfloat16, as the model was, what each rank scores with."""
    everyone, place = reports
    saved = AutoModelForCausalLM.from_pretrained(place / case, dtype="auto")
    exact = AutoModelForCausalLM.from_pretrained(place / case, dtype=torch.float32)
    for seen in everyone:
        scores, weights = seen[case]
        tensors = {name: torch.from_numpy(weight) for name, weight in weights.items()}
        for name, tensor in saved.state_dict().items():
            assert torch.equal(tensor, tensors[name].bfloat16()), name
        exact.load_state_dict(tensors)
        for sequence, mine in zip(sequences_of(groups), scores.values()):
            plain = plain_scores(exact, *sequence, TEMPERATURE)
            for scored, expected in zip(mine, plain):
                np.testing.assert_allclose(scored, expected.detach(), atol=1e-4)


@pytest.mark.parametrize("lora_rank", [0, 2])
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_the_engine_gets_what_was_trained(model_type, lora_rank, device, tmp_path):
    """Every parameter, or adapter, is trained; the engine's log-probs become the policy's."""
    save_model(model_type, tmp_path)
    base = make_policy(tmp_path)
    policy = make_policy(tmp_path, lr=1e-2, lora_rank=lora_rank)
    groups = make_groups(policy)
    policy.update([groups, groups], None)  # the gradient of LoRA's A is 0 in the first step
    for name, p in policy.module.named_parameters():
        if p.requires_grad:
            assert policy.optimizer.state[p]["exp_avg"].full_tensor().any(), name
    engine = HFEngine(policy.config, [2], CPU)
    engine.load(policy.full_weights(engine.dtype))
    prompt = groups[1].question.prompt_ids
    [response] = engine.generate([prompt], [0], TEMPERATURE, L_MAX)
    [(now, _)] = policy.score([(prompt, response.token_ids)])
    [(before, _)] = base.score([(prompt, response.token_ids)])
    np.testing.assert_allclose(response.logprobs, now, atol=1e-4)
    assert np.abs(now - before).max() > 1e-2


def test_candidates_are_scored_by_mean_entropy_or_nll(directory, groups):
    """The means over the tokens of each response are those of plain passes."""
    lm = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    a, b, c = sequences_of(groups)[:3]
    plain = [plain_scores(lm, *sequence, TEMPERATURE) for sequence in (a, b, c)]
    for rule, values in {
        "entropy": [entropies.mean().item() for _, entropies in plain],
        "nll": [-logprobs.mean().item() for logprobs, _ in plain],
    }.items():
        scores = make_policy(directory, trajectory_selection=rule).score_candidates(
            [[a, b], [], [c]]
        )
        assert [len(own) for own in scores] == [2, 0, 1]
        np.testing.assert_allclose(scores[0] + scores[2], values, atol=1e-5)


@pytest.mark.parametrize(
    "factor, metric",
    [
        (math.nan, "loss/skipped"),
        (math.inf, "loss/skipped"),
        (1e9, "loss/skipped"),
        (0.0, "loss/without_advantage"),
    ],
)
def test_bad_and_silent_mini_batches_make_no_step(factor, metric, directory, groups):
    """They are counted, leave no trace, and do not touch the good one between them."""
    bad = [replace(g, advantages=g.advantages * np.float32(factor)) for g in groups]
    policy = make_policy(directory)
    metrics = policy.update([bad, groups, bad], None)
    alone = make_policy(directory)
    assert metrics[metric] == 2
    assert metrics["loss/skipped"] + metrics["loss/without_advantage"] == 2
    assert alone.update([groups], None)[metric] == 0
    assert_same(full_weights(policy), full_weights(alone), 0.0)


def test_mini_batches_are_stepped_on_in_order(directory, groups, monkeypatch):
    """Each makes a step of its own, from where the one before has led."""
    monkeypatch.setitem(policy_module.MAX_DRIFT, "float32", math.inf)
    at_once = make_policy(directory)
    at_once.update([groups[:3], groups[3:]], None)
    in_turn = make_policy(directory)
    in_turn.update([groups[:3]], None)
    in_turn.update([groups[3:]], None)
    assert_same(full_weights(at_once), full_weights(in_turn), 0.0)


def test_an_engine_with_other_weights_is_refused(directory, policy, groups):
    """New log-probs 0.1 nats off raise before a step; replayed ones may be off."""
    trained = make_policy(directory)
    before = full_weights(trained)
    with pytest.raises(RuntimeError, match=r"1\.00e-01 nats a token"):
        trained.update([shifted(groups, policy, new=0.1, star=0.0)], None)
    assert_same(full_weights(trained), before, 0.0)
    metrics = trained.update([shifted(groups, policy, new=5e-4, star=2.0)], None)
    assert metrics["engine/drift"] == pytest.approx(5e-4, rel=1e-2)


def test_recomputed_log_probs_are_the_policys(policy, groups):
    """They replace the engine's, not those of o*."""
    given = shifted(groups, policy, new=5e-4, star=0.5)
    expected = shifted(groups, policy, new=0.0, star=0.5)
    for mine, right in zip(policy.recompute(given), expected):
        for t, reference in zip(mine.trajectories, right.trajectories, strict=True):
            np.testing.assert_allclose(t.logprobs, reference.logprobs, atol=1e-5)
    assert policy.drift == pytest.approx(5e-4, rel=1e-2)


def test_importance_correction_divides_by_the_stored_log_probs(directory, policy, groups):
    """With it w* is e^0.5 where they are 0.5 off; without it 1, until the policy moves."""
    off = shifted(groups, policy, new=0.0, star=0.5)

    def ratio(mini_batches, **knobs):
        policy = make_policy(directory, lr=1e-2, **knobs)
        return policy.update(mini_batches, None)["replay/ratio"]

    assert ratio([off]) == pytest.approx(math.exp(0.5), rel=1e-4)
    assert ratio([off], importance_correction=False) == pytest.approx(1.0, rel=1e-5)
    # The second mini-batch, too, divides by π_θ before the first one's step.
    assert abs(ratio([off, off], importance_correction=False) - 1) > 1e-3
