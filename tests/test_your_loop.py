"""docs/your_loop.py: a padded loop of one's own computes what the packed policy does."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from test_model import save_model
from test_policy import CLIP_EPS, L_MAX, assert_same, gradients, make_groups, make_policy
from transformers import AutoModelForCausalLM

sys.path.append(str(Path(__file__).parent.parent / "docs"))
import your_loop as loop


def test_the_padded_pass_computes_what_the_packed_one_does(device, tmp_path, monkeypatch):
    """Loss, gradient, and the entropies that o* is chosen by, of the same groups."""
    save_model("llama", tmp_path, torch.float32)
    policy = make_policy(tmp_path, entropy_coef=0.0, temperature=1.0)
    lm = AutoModelForCausalLM.from_pretrained(tmp_path)
    groups = make_groups(policy)
    candidates = [[]]
    for group in groups:
        candidates.append([(group.question.prompt_ids, t.token_ids) for t in group.trajectories])
    found = loop.mean_entropies(lm, candidates)
    expected = policy.score_candidates(candidates)
    np.testing.assert_allclose(np.concatenate(found), np.concatenate(expected), rtol=1e-5)

    monkeypatch.setattr(loop, "L_MAX", L_MAX)
    metrics, expected = gradients(policy, groups)
    loss = loop.loss_of(lm, groups, CLIP_EPS)
    loss.backward()
    assert loss.item() == pytest.approx(metrics["loss/policy"], rel=1e-5)
    assert_same({name: p.grad.numpy() for name, p in lm.named_parameters()}, expected)


def test_it_runs(monkeypatch, capsys):
    """Two steps of its own; it replays in the second."""
    monkeypatch.setattr(loop, "STEPS", 2)
    loop.main()
    first, second = capsys.readouterr().out.splitlines()
    assert " 0 questions replayed" in first
    assert " 0 questions replayed" not in second
