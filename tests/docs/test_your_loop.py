"""docs/your_loop.py: a padded loop around the island computes what the packed policy does."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from test_house import ISLAND, ROOT, imported
from test_policy import (
    KNOBS,
    L_MAX,
    assert_same_gradients,
    gradients,
    make_groups,
    make_policy,
    pairs_of,
)
from transformers import AutoModelForCausalLM

from buffer import Trajectory
from exgrpo import Experience, Knobs

FILE = Path(__file__).parent.parent.parent / "docs" / "your_loop.py"


@pytest.fixture
def loop(monkeypatch):
    """The file as a module, with the policy's temperature and length."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec = importlib.util.spec_from_file_location("your_loop", FILE)
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    module.TEMPERATURE = KNOBS["temperature"]
    module.L_MAX = L_MAX
    return module


@pytest.mark.parametrize("file", ["your_loop.py", "your_trl.py"])
def test_of_ours_it_needs_the_island_and_the_world(file):
    """It imports nothing else of this project."""
    ours = imported(FILE.with_name(file)) & (ROOT | {"worlds", "runtime", "verifier", "tools"})
    assert ours == (ISLAND - {"sampler"}) | {"worlds"}


def test_the_padded_loop_computes_what_the_packed_policy_does(loop, tiny_model, device):
    """Log-probs, entropies, o*, loss and gradient of both agree, with and without CLIP."""
    policy = make_policy(tiny_model, entropy_coef=0.0)
    lm = AutoModelForCausalLM.from_pretrained(tiny_model)
    groups = make_groups(policy)
    assert any(group.star for group in groups)
    sequences = pairs_of(groups)
    for mine, packed in zip(loop.split_scores(lm, sequences), policy.score(sequences)):
        np.testing.assert_allclose(mine, packed, atol=1e-5)

    for clip_eps in (0.2, None):
        metrics, expected = gradients(make_policy(tiny_model, entropy_coef=0.0), groups, clip_eps)
        lm.zero_grad()
        loss = loop.loss_of(lm, groups, clip_eps)
        loss.backward()
        assert loss.item() == pytest.approx(metrics["loss/policy"], rel=1e-5, abs=1e-7)
        found = {name: p.grad.numpy() for name, p in lm.named_parameters()}
        assert_same_gradients(found, expected)

    stars = []
    for score in (policy.mean_entropy, lambda asked: loop.mean_entropies(lm, asked)):
        experience = Experience(Knobs(batch_size=4, start_threshold=-1), loop.read_questions())
        for q in (3, 7):
            rng = np.random.default_rng(q)
            stored = [rng.integers(3, 100, n).astype(np.int32) for n in (9, 4, 12)]
            zeros = [np.zeros(len(ids), np.float32) for ids in stored]
            old = [Trajectory(*both, reward=1.0) for both in zip(stored, zeros)]
            experience.buffer.add(q, 4, old)
        drawn = experience.draw(0)
        plan = experience.plan(0, drawn, score(experience.candidates(drawn)))
        stars.append({q: star.token_ids.tolist() for q, star in plan.stars.items()})
    assert stars[0] == stars[1]
    assert set(stars[0]) == {3, 7}


def test_it_trains(loop, monkeypatch, capsys):
    """Three steps of its own move the model: it replays, and says what it did."""
    made = []

    def kept(*args):
        made.append(AutoModelForCausalLM.from_pretrained(*args))
        return made[-1]

    monkeypatch.setattr(loop, "AutoModelForCausalLM", type("Auto", (), {"from_pretrained": kept}))
    monkeypatch.setattr(loop, "STEPS", 3)
    monkeypatch.setattr(loop, "L_MAX", 72)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    loop.main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert " 0 questions replayed" in lines[0]
    assert " 0 q" not in lines[2]
    before = AutoModelForCausalLM.from_pretrained(loop.BASE).state_dict()
    assert not any(torch.equal(before[name], x) for name, x in made[0].state_dict().items())
