"""Both engines sample from the policy's own distribution, also after a weight sync."""

import importlib.util
import json
import shutil
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import plain_scores, toy_config
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import rollout
from buffer import Trajectory
from data import Question
from exgrpo import Group
from model import load_model
from policy import MAX_DRIFT, Policy
from rollout import HFEngine, VLLMEngine, make_engine
from runtime.faults import Failure

EOS, T = 2, 0.8  # <eos> of the built-in tokenizer; sampling temperature
needs_vllm = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="vllm is not installed"
)
ENGINES = [pytest.param(HFEngine, id="hf"), pytest.param(VLLMEngine, id="vllm", marks=needs_vllm)]


def make_config(**knobs):
    given = dict(max_prompt_length=256, max_response_length=64, temperature=T)
    return toy_config(**given | knobs)


def make_requests(n=10):
    """Prompts of many lengths, each with a seed.

    One is longer than a cache block, one has an EOS inside.
    """
    rng = np.random.default_rng(0)
    prompts = [
        rng.integers(3, 100, size).astype(np.int32) for size in [200, 1, *rng.integers(2, 30, n)]
    ][:n]
    prompts[2][0] = EOS
    return prompts, [int(rng.integers(2**63)) for _ in prompts]


@pytest.fixture(scope="module")
def engines(device, tokenizer, tiny_models):
    """(engine class, tied, knobs) -> (engine, policy) on the same weights, made once each.

    Tests share them, as every vLLM engine lives on until the process ends.
    """
    assert tokenizer.eos_token_id == EOS
    made = {}

    def get(kind, tied=False, **knobs):
        key = kind, tied, *knobs
        if key not in made:
            if kind is VLLMEngine and device.type == "cuda" and rollout.VLLM_ENGINES:
                pytest.skip("on a GPU vLLM's sleep mode allows one engine a process")
            config = make_config(model=tiny_models[tied], **knobs)
            made[key] = kind(config, [EOS], device), Policy(config, device)
        return made[key]

    return get


@pytest.fixture(params=ENGINES)
def kind(request):
    return request.param


@pytest.fixture
def engine(kind, engines):
    return engines(kind)[0]


def same(a, b):
    return len(a) == len(b) and all(np.array_equal(x.token_ids, y.token_ids) for x, y in zip(a, b))


def greedy(lm, prompt, n):
    """The arg max of plain forward passes, one token after the other, up to EOS."""
    ids = prompt.tolist()
    while len(ids) < len(prompt) + n and (len(ids) == len(prompt) or ids[-1] != EOS):
        ids.append(int(lm(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


@torch.no_grad()
def check_engine(engine, policy, lm):
    """The greedy tokens, after a check of them and of samples against `policy` and `lm`."""
    prompts, seeds = make_requests()
    chosen = engine.generate(prompts, seeds, temperature=0.0, max_tokens=8)
    for prompt, response in zip(prompts, chosen):
        assert response.token_ids.tolist() == greedy(lm, prompt, 8)
    sampled = engine.generate(prompts, seeds, temperature=T, max_tokens=20)
    scores = policy.score([(prompt, r.token_ids) for prompt, r in zip(prompts, sampled)])
    for prompt, response, (logprobs, _) in zip(prompts, sampled, scores):
        np.testing.assert_allclose(response.logprobs, logprobs, atol=1e-4)
        plain = plain_scores(lm, prompt, response.token_ids, T)[0].numpy()
        np.testing.assert_allclose(response.logprobs, plain, atol=1e-4)
    return chosen


@pytest.mark.slow
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_engine_is_the_policy_before_and_after_a_sync(kind, tied, engines, tiny_models):
    """Greedy tokens and log-probs are the policy's, also after its weights moved and went back.

    Prefixes of the same prompts are cached then.
    """
    engine, policy = engines(kind, tied)
    lm = AutoModelForCausalLM.from_pretrained(tiny_models[tied])
    before = check_engine(engine, policy, lm)
    original = {name: tensor.clone() for name, tensor in policy.full_weights()}
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in policy.module.parameters():
            p.to_local().add_(
                0.03 * torch.randn(p.to_local().shape, generator=generator).to(p.device)
            )
    engine.sleep()
    engine.wake(policy.full_weights(engine.dtype))
    lm.load_state_dict(dict(policy.full_weights()))
    assert not same(check_engine(engine, policy, lm), before)
    with torch.no_grad():
        for name, p in policy.module.lm.named_parameters():
            p.to_local().copy_(original[name])
    engine.load(policy.full_weights(engine.dtype))
    lm.load_state_dict(original)
    assert same(check_engine(engine, policy, lm), before)


@needs_vllm
def test_sleep_and_wake_of_the_gpu_on_the_cpu(engines, tiny_model, monkeypatch):
    """vLLM's own sleep pauses its scheduler until both tags wake, and the weights are new.

    Its worker has nothing to free on the CPU, but the prefix cache is emptied.
    """
    engine, policy = engines(VLLMEngine)
    core, lm = engine.llm.llm_engine, AutoModelForCausalLM.from_pretrained(tiny_model)
    asleep, load = [], engine.load

    def watched(tensors):
        load(tensors)
        asleep.append(core.is_sleeping())  # the cache is not awake yet

    monkeypatch.setattr(engine, "on_gpu", True)
    monkeypatch.setattr(engine, "load", watched)
    for factor in (1.2, 1 / 1.2):
        with torch.no_grad():
            for p in policy.module.parameters():
                p.to_local().mul_(factor)
        engine.sleep()
        assert core.is_sleeping()
        engine.wake(policy.full_weights(engine.dtype))
        assert not core.is_sleeping()
        lm.load_state_dict(dict(policy.full_weights()))
        check_engine(engine, policy, lm)
    assert asleep == [True, True]


def test_an_extended_context_is_the_same_in_both(kind, engines):
    """With another RoPE base and twice the positions the engine samples as the policy does."""
    policy_before = engines(kind)[1]
    engine, policy = engines(
        kind, rope_theta=300.0, max_position_embeddings=1024, max_prompt_length=900
    )
    prompts = [np.random.default_rng(n).integers(3, 100, n).astype(np.int32) for n in (40, 700)]
    responses = engine.generate(prompts, [1, 1], T, 20)
    pairs = [(prompt, response.token_ids) for prompt, response in zip(prompts, responses)]
    for response, (logprobs, _) in zip(responses, policy.score(pairs)):
        assert np.abs(response.logprobs - logprobs).max() < 1e-4
    [(before, _)] = policy_before.score(pairs[:1])
    assert np.abs(responses[0].logprobs - before).max() > 0.01


def test_a_sample_depends_on_its_seed_only(engine, monkeypatch):
    """A sample is the same in any order, company and batch size, and changes with its seed."""
    prompts, seeds = make_requests()
    reference = engine.generate(prompts, seeds, T, 20)
    torch.manual_seed(1)
    assert same(engine.generate(prompts, seeds, T, 20), reference)
    assert same(engine.generate(prompts[::-1], seeds[::-1], T, 20)[::-1], reference)
    assert same(
        [engine.generate([p], [s], T, 20)[0] for p, s in zip(prompts[:3], seeds)], reference[:3]
    )
    monkeypatch.setattr(engine, "batch_size", 3, raising=False)  # vLLM has none
    twice = engine.generate(prompts + prompts[::-1], seeds + seeds[::-1], T, 20)
    assert same(twice, reference + reference[::-1])
    others = engine.generate(prompts, [s + 1 for s in seeds], T, 20)
    assert not any(np.array_equal(a.token_ids, b.token_ids) for a, b in zip(others, reference))


def test_responses_end_as_they_say(engine, monkeypatch):
    """A finished response ends with the first token of the set, another has max_tokens and none.

    With one token more in the set it is what it was, up to there. on_finish sees each once.
    """
    prompt, seen = make_requests()[0][3], {}
    requests = [prompt] * 100, list(range(100)), T, 30
    whole = engine.generate(*requests, lambda i, r: seen.setdefault(i, []).append(r))
    assert seen == {i: [r] for i, r in enumerate(whole)}
    assert 5 < sum(r.finished for r in whole) < 95
    usual = np.bincount(np.concatenate([r.token_ids[:-1] for r in whole])).argmax()
    both, last = [EOS, int(usual)], set()
    monkeypatch.setattr(engine, "turn_ends", both)
    for before, now in zip(whole, engine.generate(*requests)):
        for r, ends in ((before, [EOS]), (now, both)):
            found = np.flatnonzero(np.isin(before.token_ids, ends))
            length = found[0] + 1 if len(found) else 30
            assert len(r.token_ids) == len(r.logprobs) == length and r.finished == bool(len(found))
            assert np.array_equal(r.token_ids, before.token_ids[:length])
            assert (r.token_ids.dtype, r.logprobs.dtype) == (np.int32, np.float32)
        last |= {now.token_ids[-1]} & set(both)
    assert last == set(both)
    assert engine.generate([], [], T, 30) == []


def test_first_tokens_follow_the_softmax(engine, tiny_model):
    """Frequencies of 2,000 first tokens lie within 4.5 standard deviations, each."""
    n, prompt = 2000, make_requests()[0][4]
    responses = engine.generate([prompt] * n, list(range(n)), T, 1)
    lm = AutoModelForCausalLM.from_pretrained(tiny_model)
    with torch.no_grad():
        p = (
            (lm(input_ids=torch.tensor(prompt[None].astype(np.int64))).logits[0, -1] / T)
            .softmax(-1)
            .numpy()
        )
    frequencies = np.bincount([r.token_ids[0] for r in responses], minlength=len(p)) / n
    assert p.max() < 0.9 and (p > 0.01).sum() > 3  # a distribution worth testing
    assert (np.abs(frequencies - p) <= 4.5 * np.sqrt(p * (1 - p) / n) + 1 / n).all()


def test_drift_in_bfloat16_tells_rounding_from_a_wrong_layer(kind, engines):
    """Rounding is within a fifth of `max_drift: auto`, and a layer in another's place beyond.

    bench/README.md has the figures of a real model.
    """
    engine, policy = engines(kind, dtype="bfloat16", max_drift=100.0)
    prompts, seeds = make_requests(40)
    made = engine.generate(prompts, seeds, T, 20)
    groups = [Group(Question(0, "", prompt, "", ""), None, [t]) for prompt, t in zip(prompts, made)]
    policy.recompute(groups)
    healthy = policy.engine_metrics
    first, second = policy.module.lm.model.layers
    with torch.no_grad():
        for p, other in zip(first.parameters(), second.parameters()):
            p.copy_(other)
    policy.recompute(groups)
    wrong = policy.engine_metrics
    assert healthy["engine/drift"] < MAX_DRIFT["bfloat16"] / 5
    assert wrong["engine/drift"] > MAX_DRIFT["bfloat16"]
    assert healthy["rollout/mismatch"] < 0.2 < wrong["rollout/mismatch"]


@pytest.mark.parametrize("kind", [*ENGINES, pytest.param(None, id="policy")])
def test_weights_missing_in_a_directory_are_named(kind, device, tiny_model, tmp_path):
    """A tensor left out is refused, where both libraries make one up."""
    missing = "model.layers.1.mlp.up_proj.weight"
    shutil.copytree(tiny_model, tmp_path, dirs_exist_ok=True)
    weights = load_file(tmp_path / "model.safetensors")
    del weights[missing]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    ends = [[EOS]] if kind else []
    with pytest.raises(ValueError, match=f"'lacks': .'{missing}'.*is it whole"):
        (kind or Policy)(make_config(model=str(tmp_path)), *ends, device)


def test_weights_to_spare_are_named(device, tiny_model, tmp_path):
    """A config.json of fewer layers, which would leave the others out in silence, is refused."""
    shutil.copytree(tiny_model, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))
    with pytest.raises(ValueError, match="'has to spare': .'model.layers.1"):
        HFEngine(make_config(model=str(tmp_path)), [EOS], device)


ONE, A, B = "model.safetensors", "model-1-of-2.safetensors", "model-2-of-2.safetensors"
LORA = "adapter_model.safetensors"


@pytest.mark.parametrize(
    "files, indexed, second",
    [
        ([ONE], None, None),
        ([A, B], [A, B], None),
        ([ONE, "pytorch_model.bin"], None, None),  # both engines prefer safetensors
        ([ONE, A, B], [A, B], ONE),
        ([ONE, A, B], None, f"{A}, {B}"),  # vLLM reads all
        ([A, B, "consolidated.safetensors"], [A, B], "consolidated.safetensors"),
        ([ONE, "adapter_config.json", LORA], None, f"adapter_config.json, {LORA}"),
        (["adapter_config.json"], None, "adapter_config.json"),  # its model lies elsewhere
    ],
)
def test_two_sets_of_weights_are_refused(tmp_path, files, indexed, second):
    """What an index does not name, or lies beside the only file, is refused by its name."""
    for name in files:
        (tmp_path / name).touch()
    if indexed:
        index = json.dumps({"weight_map": dict(enumerate(indexed))})
        (tmp_path / "model.safetensors.index.json").write_text(index)
    refusal = pytest.raises(ValueError, match="config.json")  # looked for next
    if second:
        refusal = pytest.raises(Failure, match=f"two sets of weights, the second in {second}, and")
    with refusal:
        load_model(make_config(model=str(tmp_path)), "auto")


def test_engine_choice(device, tiny_model, monkeypatch):
    """`hf` is Hugging Face; where vLLM is missing, `auto` is too and `vllm` says what to do."""
    config = make_config(model=tiny_model)
    chosen = make_engine(replace(config, engine="hf"), [EOS], device)
    assert isinstance(chosen, HFEngine)
    monkeypatch.setattr(rollout.importlib.util, "find_spec", lambda name: None)
    assert isinstance(make_engine(config, [EOS], device), HFEngine)
    monkeypatch.setattr("runtime.preflight.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="make install"):
        make_config(engine="vllm")


def test_log_probs_that_are_no_numbers_end_the_run(device):
    """The error says where they come from, before they are stored or trained on."""
    broken = Trajectory(np.array([5, EOS], np.int32), np.array([-0.1, np.nan], np.float32))

    def generate(prompts, seeds, temperature, max_tokens, on_finish):
        on_finish(0, broken)
        return [broken]

    engine = SimpleNamespace(generate=generate)
    grading = Future()
    grading.set_result({"score": 1.0})
    grader = SimpleNamespace(config=make_config(), submit=lambda *_: grading)
    question = Question(0, "1?", np.array([5], dtype=np.int32), "1", "x")
    with pytest.raises(RuntimeError, match="^log-probs of the engine are no numbers"):
        rollout.roll_out(engine, grader, [question], [[1]], 1.0)


@pytest.mark.parametrize(
    "tied, name", [(False, "model.layers.1.mlp.up_proj.weight"), (True, "lm_head.weight")]
)
def test_a_weight_missing_in_a_sync_is_named(kind, tied, name, engines):
    """Neither engine goes on with an old weight, be it a layer's or a tied head's.

    This is the last test of the file, since the engines are of no use after it.
    """
    engine, policy = engines(kind, tied)
    weights = dict(policy.full_weights(engine.dtype))
    with pytest.raises(KeyError, match=name):
        engine.load((k, v) for k, v in weights.items() if k != name)
