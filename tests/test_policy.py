"""One gradient on any ranks and micro-batches, safe steps, right scores, whole weights."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import on_ranks, plain_scores, toy_config
from transformers import AutoConfig, AutoModelForCausalLM

from buffer import Trajectory
from data import Question
from exgrpo import Group
from policy import Policy

L_MAX = 20
KNOBS = dict(
    max_response_length=L_MAX,
    entropy_coef=0.02,
    temperature=0.8,
    max_drift=10.0,
    max_grad_norm=1e9,
    skip_grad_norm=1e9,
)


def make_policy(directory, **knobs):
    return Policy(toy_config(model=str(directory), **KNOBS | knobs), torch.device("cpu"))


def make_groups(policy):
    """Nine responses in five groups, three of which begin with an o*.

    They have one to L_MAX tokens, and their log-probs are near the policy's.
    """
    rng, groups = np.random.default_rng(0), []
    sizes = [(1, [1, 5]), (7, [L_MAX]), (3, [9, 4, 12]), (9, [2]), (5, [11, 3])]
    for prompt, lengths in sizes:
        prompt_ids = rng.integers(0, 100, prompt).astype(np.int32)
        responses = [np.append(rng.integers(0, 100, n - 1), 2).astype(np.int32) for n in lengths]
        trajectories = []
        for ids, (p, _) in zip(responses, policy.score([(prompt_ids, ids) for ids in responses])):
            near = p + 0.4 * rng.standard_normal(len(p))
            trajectories.append(Trajectory(ids, near.astype(np.float32)))
        advantages = rng.standard_normal(len(lengths)).astype(np.float32)
        star = trajectories.pop(0) if len(lengths) > 1 else None
        question = Question(len(groups), "", prompt_ids, "", "")
        groups.append(Group(question, star, trajectories, advantages))
    return groups


def rows(groups):
    """(group, trajectory, advantage, is it o*) of every response."""
    return [
        (g, t, float(a), is_star)
        for g in groups
        for t, a, is_star in zip(g.trajectories, g.advantages, g.replayed)
    ]


def pairs_of(groups):
    return [(g.question.prompt_ids, t.token_ids) for g in groups for t in g.trajectories]


def spoilt(groups, value=math.nan):
    """The groups with advantages times `value`."""
    return [replace(g, advantages=g.advantages * np.float32(value)) for g in groups]


def gradients(policy, groups, clip_eps=0.2):
    """(metrics of an update by one mini-batch, {name: gradient} that its step saw)."""
    seen = {}

    def note():
        for name, p in policy.module.lm.named_parameters():
            if p.requires_grad:
                seen[name] = p.grad.full_tensor().numpy().copy()

    policy.optimizer.step = note
    return policy.update([groups], clip_eps), seen


def full_weights(policy):
    return {name: tensor.numpy().copy() for name, tensor in policy.full_weights()}


def assert_same_weights(mine, reference):
    assert all(np.array_equal(mine[name], weight) for name, weight in reference.items())


@pytest.fixture(scope="module")
def policy(device, tiny_model):
    """A policy on one rank that no test may train."""
    return make_policy(tiny_model)


@pytest.fixture(scope="module")
def groups(policy):
    return make_groups(policy)


@pytest.fixture(scope="module")
def reference(tiny_model, groups):
    """(metrics, gradients) of an update by the groups."""
    return gradients(make_policy(tiny_model), groups)


def assert_same_gradients(mine, reference, tolerance=1e-5):
    assert mine.keys() == reference.keys()
    for name, expected in reference.items():
        assert np.linalg.norm(mine[name] - expected) <= tolerance * np.linalg.norm(expected), name


def test_gradient_is_eq_4_by_plain_autograd(tiny_model, reference, groups):
    """An update's gradient is that of plain forward passes, one response at a time.

    The loss is -Σ (CLIP(w, A) or f(w*) A, plus the entropy bonus) / (L_max N), and both parts are
    metrics. With max_grad_norm the gradient has that norm and the same direction.
    """
    metrics, mine = reference
    lm = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float64)
    loss, bonus, responses = 0.0, 0.0, rows(groups)
    for group, t, advantage, is_star in responses:
        logprobs, entropies = plain_scores(
            lm, group.question.prompt_ids, t.token_ids, KNOBS["temperature"]
        )
        w = (logprobs - torch.as_tensor(t.logprobs)).exp()
        term = w / (w + 0.1) * advantage
        if not is_star:
            term = torch.minimum(w * advantage, w.clamp(0.8, 1.2) * advantage)
        loss = loss - term.sum() / (L_MAX * len(responses))
        bonus = bonus + KNOBS["entropy_coef"] * entropies.sum() / (L_MAX * len(responses))
    (loss - bonus).backward()
    assert_same_gradients(mine, {name: p.grad.numpy() for name, p in lm.named_parameters()})
    assert metrics["loss/policy"] == pytest.approx(loss.item(), rel=1e-5)
    assert metrics["loss/total"] == pytest.approx((loss - bonus).item(), rel=1e-5)
    norm = torch.cat([p.grad.flatten() for p in lm.parameters()]).norm()
    assert metrics["loss/grad_norm"] == pytest.approx(float(norm), rel=1e-5)
    _, clipped = gradients(make_policy(tiny_model, max_grad_norm=norm / 100), groups)
    assert_same_gradients({name: 100 * g for name, g in clipped.items()}, mine, 1e-3)


CASES = {  # name: knobs
    "one micro-batch": {},
    "a micro-batch each": dict(tokens_per_micro_batch=1),
    "some micro-batches": dict(tokens_per_micro_batch=40),
    "gradient checkpointing": dict(gradient_checkpointing=True, tokens_per_micro_batch=60),
    "a rank without work": {},  # the group of one response
}


def report(directory, groups, save_to=None):
    """What one rank sees of every case, of scoring, and of a model that is trained and saved."""
    policy, pairs = make_policy(directory), pairs_of(groups)
    seen = {"scores": policy.score(pairs) + policy.score(pairs[:1])}
    for name, knobs in CASES.items():
        some = groups[1:2] if name == "a rank without work" else groups
        seen[name] = gradients(make_policy(directory, **knobs), some)
    trained = make_policy(directory, lr=1e-2)
    trained.score(pairs)  # leaves the root unsharded; the update must not be hidden by that
    trained.update([groups[:3], groups[3:]], None)
    seen["trained"], seen["trained weights"] = trained.score(pairs), full_weights(trained)
    if save_to:
        trained.save_pretrained(save_to)
    # It raises on every rank alike, or the others would hang.
    with pytest.raises(RuntimeError, match="max_drift"):
        make_policy(directory, max_drift=0.01).update([groups], None)
    return seen


@pytest.fixture(scope="module")
def reports(device, tiny_model, groups, tmp_path_factory):
    """One rank's report, both reports of two ranks, and where those saved their model."""
    saved = tmp_path_factory.mktemp("saved")
    return report(tiny_model, groups), on_ranks(2, report, tiny_model, groups, saved), saved


@pytest.mark.parametrize("case", CASES)
def test_one_gradient_on_any_ranks_and_micro_batches(case, reports):
    """One and two ranks and every split give the same gradients and metrics to 1e-5."""
    alone, pair, _ = reports
    metrics, grads = alone[case if case == "a rank without work" else "one micro-batch"]
    for seen in (alone, *pair):
        assert_same_gradients(seen[case][1], grads)
        assert seen[case][0] == pytest.approx(metrics, rel=1e-5, abs=1e-7)


def test_scores_do_not_depend_on_ranks(reports):
    """Log-probs and entropies, also of a single sequence, are those of one rank."""
    alone, pair, _ = reports
    for seen in pair:
        for mine, reference in zip(seen["scores"], alone["scores"], strict=True):
            np.testing.assert_allclose(mine, reference, atol=1e-5)


def test_ranks_train_and_save_one_model(reports, groups):
    """After two steps two ranks hold the same weights, and transformers loads these."""
    alone, pair, saved = reports
    lm = AutoModelForCausalLM.from_pretrained(saved)
    weights = {name: tensor.numpy() for name, tensor in lm.state_dict().items()}
    for seen in pair:
        assert_same_weights(seen["trained weights"], weights)
    trained = pair[0]["trained"]
    for sequence, (mine, _), (before, _) in zip(pairs_of(groups), trained, alone["scores"]):
        expected = plain_scores(lm, *sequence, KNOBS["temperature"])[0].detach().numpy()
        np.testing.assert_allclose(mine, expected, atol=1e-4)
        assert np.abs(mine - before).max() > 1e-2


def test_mean_entropy_counts_eos(policy, groups, tiny_model):
    """The mean is over all positions that predict a response token, EOS included.

    The mean NLL is that of the same tokens.
    """
    lm = AutoModelForCausalLM.from_pretrained(tiny_model)
    pairs = pairs_of(groups)
    with torch.no_grad():
        plain = [plain_scores(lm, *pair, KNOBS["temperature"]) for pair in pairs]
    entropies, nlls = zip(*[(float(e.mean()), -float(p.mean())) for p, e in plain])
    np.testing.assert_allclose(policy.mean_entropy(pairs), entropies, atol=1e-5)
    np.testing.assert_allclose(policy.mean_nll(pairs), nlls, atol=1e-5)


@pytest.mark.parametrize(
    "knobs, spoil",
    [(dict(skip_grad_norm=1e-9), 1.0), ({}, math.nan), ({}, math.inf)],
    ids=["norm above the bound", "nan", "inf"],
)
def test_a_bad_step_is_skipped_and_counted(knobs, spoil, tiny_model, groups):
    """A norm above the bound or not finite leaves weights and moments bit-identical."""
    policy, bad = make_policy(tiny_model, **knobs), spoilt(groups, spoil)
    before = full_weights(policy)
    assert policy.update([bad, bad], None)["loss/skipped"] == 2 and not policy.optimizer.state
    assert_same_weights(before, full_weights(policy))


def test_three_bad_steps_in_a_row_stop_the_run(tiny_model, groups):
    """The third raises with norm and bound, and a good step in between starts the count anew."""
    policy, bad = make_policy(tiny_model), spoilt(groups)
    policy.update([bad, bad, groups, bad, bad], None)
    with pytest.raises(RuntimeError, match="gradient norm of nan .bound skip_grad_norm"):
        policy.update([bad], None)


def shifted(policy, groups, fresh, replayed):
    """The groups with log-probs at a fixed distance from the policy's."""
    scores = iter(policy.score(pairs_of(groups)))
    moved = []
    for g in groups:
        star = g.star and replace(g.star, logprobs=next(scores)[0] - replayed)
        new = [replace(t, logprobs=next(scores)[0] - fresh) for t in g.new]
        moved.append(replace(g, star=star, new=new))
    return moved


def test_drift_stops_the_run_with_numbers(tiny_model, policy, groups):
    """New log-probs 0.1 nats off raise before any step, and replayed ones may be off."""
    checked = make_policy(tiny_model, max_drift=0.01)
    before = full_weights(checked)
    with pytest.raises(RuntimeError, match=r"1\.00e-01 nats a token, bound max_drift=0\.01"):
        checked.update([shifted(policy, groups, fresh=0.1, replayed=0.0)], None)
    assert_same_weights(before, full_weights(checked))
    metrics = checked.update([shifted(policy, groups, fresh=0.001, replayed=2.0)], None)
    assert metrics["engine/drift"] < 0.0011 and metrics["rollout/mismatch"] == 0
    assert metrics["engine/drift_bound_share"] == pytest.approx(metrics["engine/drift"] / 0.01)


def test_recomputed_log_probs_are_the_policys(tiny_model, policy, groups):
    """`recompute` replaces the engine's log-probs, not o*'s, and leaves what it was given.

    The drift it finds is what update reports.
    """
    made = make_policy(tiny_model, max_drift=0.01, behavior_logprobs="recompute")
    given = shifted(policy, groups, fresh=0.001, replayed=0.5)
    changed = made.recompute(given)
    scores = policy.score(pairs_of(groups))
    for (_, old, *_), (_, new, _, is_star), (now, _) in zip(rows(given), rows(changed), scores):
        np.testing.assert_array_equal(old.logprobs, now - np.float32(0.5 if is_star else 0.001))
        np.testing.assert_allclose(new.logprobs, now - (0.5 if is_star else 0.0), atol=1e-5)
    assert made.update([changed], None)["engine/drift"] == pytest.approx(0.001, rel=1e-2)


def test_ratios_by_option(tiny_model, policy, groups):
    """Stored log-probs 0.5 off give w* = e^0.5 with importance correction, and 1 without.

    Without it the denominator stays that of the step's start while the policy moves. The stored
    log-probs are left alone.
    """
    off = shifted(policy, groups, fresh=0.0, replayed=0.5)
    stored = [t.logprobs.copy() for _, t, *_ in rows(off)]

    def update(*parts, **knobs):
        return make_policy(tiny_model, lr=1e-2, **knobs).update([*parts], None)

    assert update(off)["replay/ratio"] == pytest.approx(math.exp(0.5), rel=1e-4)
    metrics = update(off, importance_correction=False)
    for name in ("loss/ratio", "replay/ratio"):
        assert metrics[name] == pytest.approx(1.0, rel=1e-5)
    assert metrics["replay/gradient_share"] > 0
    assert abs(update(off, off, importance_correction=False)["replay/ratio"] - 1) > 1e-3
    assert all(np.array_equal(t.logprobs, was) for (_, t, *_), was in zip(rows(off), stored))


def save_small(family, directory, **knobs):
    """A random model of the family, whose heads have 32 numbers."""
    config = AutoConfig.for_model(
        family,
        vocab_size=100,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        pad_token_id=0,
        **knobs,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)


def test_a_sliding_window_is_refused_where_it_would_matter(device, tmp_path):
    """A window of 8 tokens is taken for 8 of prompt and response together, refused for 9."""
    save_small("mistral", tmp_path, sliding_window=8)
    make_policy(tmp_path, max_prompt_length=4, max_response_length=4)
    with pytest.raises(ValueError, match="last 8 tokens only.* = 9 to that"):
        make_policy(tmp_path, max_prompt_length=5, max_response_length=4)


FAMILIES = {  # with parts that are not built in -> how their message names the first of these
    "gemma2": ({"final_logit_softcapping": 2.0, "sliding_window": 4096}, "final_logit_softcapping"),
    "granite": ({"logits_scaling": 4.0}, "logits_scaling"),
    "cohere": ({"logit_scale": 0.25}, "logit_scale"),
    "phi": ({}, "lm_head.bias"),
    "gpt_oss": ({"num_local_experts": 4, "sliding_window": 4096}, "self_attn.sinks"),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_that_the_packed_pass_does_not_know_are_refused(device, family, tmp_path):
    """Each of these models would be scored wrong, so it is refused before the first step."""
    knobs, name = FAMILIES[family]
    save_small(family, tmp_path, head_dim=32, **knobs)
    with pytest.raises(ValueError, match=f"has .*{name}, which is not built in"):
        make_policy(tmp_path)


NOISY = {  # where a family's layers draw random numbers in training
    "opt": {"dropout": 0.5, "layerdrop": 0.5, "ffn_dim": 32},
    "phi3": {"resid_pdrop": 0.5, "embd_pdrop": 0.5},
    "mixtral": {"router_jitter_noise": 0.3, "num_local_experts": 4},
}


@pytest.mark.parametrize("family", NOISY)
def test_a_model_with_dropout_has_the_scores_of_one_without(device, family, tmp_path):
    """Whatever a model draws in training, its policy scores as the model is evaluated."""
    save_small(family, tmp_path, **NOISY[family])
    prompt, response = np.split(np.arange(3, 20, dtype=np.int32), [5])
    [(logprobs, _)] = make_policy(tmp_path).score([(prompt, response)])
    lm = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    plain = plain_scores(lm, prompt, response, KNOBS["temperature"])[0].detach().numpy()
    np.testing.assert_allclose(logprobs, plain, atol=1e-5)


@pytest.mark.parametrize("lora_rank", [0, 2])
def test_a_model_is_saved_in_the_dtype_it_came_in(tiny_model, device, groups, tmp_path, lora_rank):
    """Trained in float32, of which a checkpoint is made, a bfloat16 model leaves in bfloat16.

    Odd settings, a temperature without sampling, which transformers does not write, cost no model.
    """
    lm = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.bfloat16)
    lm.save_pretrained(tmp_path / "half")
    (tmp_path / "half/generation_config.json").write_text('{"temperature": 0.9, "top_p": 0.6}')
    policy = make_policy(tmp_path / "half", lr=1e-2, lora_rank=lora_rank)
    policy.update([groups], None)
    assert {shard.dtype for shard in policy.shards().values()} == {torch.float32}
    policy.save_pretrained(tmp_path / "saved")
    sizes = [(tmp_path / d / "model.safetensors").stat().st_size for d in ("half", "saved")]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.01)
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert saved.dtype == torch.bfloat16 and policy.module.lm.dtype == torch.float32
    for name, weight in full_weights(policy).items():
        assert torch.equal(saved.state_dict()[name], torch.from_numpy(weight).bfloat16())


def test_bfloat16_compute_keeps_float32_weights(tiny_model, reference, groups):
    """Gradients, too, are float32, and point where the float32 gradient points."""
    half = make_policy(tiny_model, dtype="bfloat16")
    _, grads = gradients(half, groups)
    for array in (*grads.values(), *full_weights(half).values()):
        assert array.dtype == np.float32
    a, b = (np.concatenate([g[name].ravel() for name in grads]) for g in (grads, reference[1]))
    assert a @ b > 0.99 * np.linalg.norm(a) * np.linalg.norm(b)
    assert np.linalg.norm(a) == pytest.approx(np.linalg.norm(b), rel=0.05)
