"""docs/your_trl.py in TRL's own train(): it replays, and its loss is that of docs/your_loop.py."""

import sys
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("trl")
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

sys.path.append(str(Path(__file__).parent.parent / "docs"))
import your_loop
from your_trl import NEEDED, ExGRPOTrainer

# TRL itself pads prompts on the left, where RoPE rounds otherwise.
QUESTIONS = [q for q in your_loop.read_questions() if len(q.text) == 22][:40]


def is_odd(completions, **_):
    """A reward that the base model often gets."""
    return [float(sum(c[0]["content"].encode()) % 2) for c in completions]


def make_trainer(directory, kind, questions, **changes):
    """A trainer on batches of eight questions with four responses each, in four micro-batches."""
    config = GRPOConfig(
        str(directory),
        per_device_train_batch_size=8,
        steps_per_generation=4,
        num_generations=4,
        max_completion_length=your_loop.L_MAX,
        logging_steps=1,
        max_grad_norm=0,
        bf16=False,
        use_cpu=True,
        **NEEDED,
        **changes,
    )
    prompts = [[{"role": "user", "content": q.text}] for q in questions]
    return kind(str(your_loop.BASE), is_odd, config, Dataset.from_dict({"prompt": prompts}))


def logged(trainer, name):
    """What its log has under this name."""
    return [row[name] for row in trainer.state.log_history if name in row]


def gradient(model):
    """As one vector."""
    return torch.cat([p.grad.flatten() for p in model.parameters()])


class Loop(TrainerCallback):
    """docs/your_loop.py beside a trainer, on the groups of each of its updates."""

    def __init__(self, experience):
        self.losses = []
        self.mini_batches = experience.mini_batches
        experience.mini_batches = self.keep

    def keep(self, step, groups):
        self.kept = self.mini_batches(step, groups)
        return self.kept

    def on_pre_optimizer_step(self, args, state, control, model, **_):
        found = gradient(model)
        model.zero_grad()
        loss = your_loop.loss_of(model, self.kept[state.global_step % 2], None)
        loss.backward()
        expected = gradient(model)
        assert (found - expected).norm() <= 1e-5 * expected.norm()
        self.losses.append(loss.item())


def test_it_replays_and_computes_what_the_loop_computes(tmp_path):
    """Losses and gradients of six updates, three batches, of two micro-batches each."""
    kind = partial(ExGRPOTrainer, knobs={"start_threshold": -1})
    sizes = {"gradient_accumulation_steps": 2, "max_steps": 6, "learning_rate": 1e-3}
    trainer = make_trainer(tmp_path, kind, QUESTIONS, **sizes)
    loop = Loop(trainer.experience)
    trainer.add_callback(loop)
    trainer.train()
    np.testing.assert_allclose(logged(trainer, "loss"), loop.losses, rtol=1e-5, atol=1e-7)
    replayed = logged(trainer, "replay/questions")
    assert replayed[0] == 0 and min(replayed[1:]) > 0


def test_without_replay_it_is_dr_grpo_of_trl(tmp_path, monkeypatch):
    """Three updates on the same responses to the same eight questions leave the same weights."""

    def canned(trainer, prompt_ids, *_):
        asked = Counter()
        answers = []
        for ids in map(tuple, prompt_ids):
            asked[ids] += 1
            rng = np.random.default_rng([*ids, asked[ids], trainer.state.global_step])
            length = rng.integers(1, 20)  # at equal lengths every loss would be 0
            answers.append([*rng.integers(3, 20, length).tolist(), your_loop.EOS])
        return answers, None

    monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", canned)
    sizes = {"gradient_accumulation_steps": 4, "max_steps": 3, "learning_rate": 1, "optim": "sgd"}
    kinds = GRPOTrainer, partial(ExGRPOTrainer, knobs={"rho": 0.0})
    theirs, ours = [make_trainer(tmp_path, kind, QUESTIONS[:8], **sizes) for kind in kinds]
    for trainer in (theirs, ours):
        trainer.train()
    assert np.abs(logged(ours, "loss")).min() > 1e-4  # something was learned
    for p, q in zip(theirs.model.parameters(), ours.model.parameters()):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-6)
