"""docs/your_trl.py does what docs/your_loop.py does: all of it seen in TRL's own train()."""

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import on_ranks

pytest.importorskip("trl")
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from buffer import Trajectory
from exgrpo import Experience, Knobs

DOCS = Path(__file__).parent.parent.parent / "docs"
sys.path.append(str(DOCS))
import your_loop  # noqa: E402
from your_trl import ExGRPOTrainer  # noqa: E402

your_loop.TEMPERATURE = 0.9
# All of one length: TRL pads prompts on the left, and RoPE is rounded to float32 at every place.
LONG = [question for question in your_loop.read_questions() if len(question.text) == 22][:40]
QUESTIONS = [replace(question, id=row) for row, question in enumerate(LONG)]
KNOBS = {"rho": 0.5, "start_threshold": 0.1}
SIZES = {"batch_size": 8, "num_rollouts": 4, "mini_batches": 2}


def is_odd(completions, **_):
    """A reward that the base model often gets."""
    return [float(sum(c[0]["content"].encode()) % 2) for c in completions]


def train(
    directory,
    questions=QUESTIONS,
    *,
    accumulated=1,
    reward=is_odd,
    beside=None,
    checkpoint=None,
    **changes,
):
    """The trainer after four batches, with its plans and groups; `changes` are of GRPOConfig.

    `beside` makes a callback of it. Without knobs it is TRL's own trainer.
    """
    knobs = changes.pop("knobs", KNOBS)
    config = {
        "per_device_train_batch_size": 16 // accumulated,
        "gradient_accumulation_steps": accumulated,
        "steps_per_generation": 2 * accumulated,
        "num_generations": 4,
        "max_completion_length": your_loop.L_MAX,
        "temperature": your_loop.TEMPERATURE,
        "loss_type": "dr_grpo",
        "scale_rewards": "none",
        "max_steps": 8,
        "save_steps": 2,
        "logging_steps": 1,
        "learning_rate": 1e-3,
        "max_grad_norm": 0,
        "bf16": False,
        "use_cpu": True,
    }
    prompts = [[{"role": "user", "content": question.text}] for question in questions]
    rows = Dataset.from_dict({"prompt": prompts})
    given = (str(your_loop.BASE), reward, GRPOConfig(str(directory), **config | changes), rows)
    trainer = ExGRPOTrainer(*given, knobs=knobs) if knobs else GRPOTrainer(*given)
    trainer.steps = []
    if knobs:
        store = trainer.experience.store
        trainer.experience.store = lambda *both: (trainer.steps.append(both), store(*both))
    if beside:
        trainer.add_callback(beside(trainer))
    trainer.train(checkpoint)
    return trainer


def logged(trainer, name):
    """What its log has under this name."""
    return [row[name] for row in trainer.state.log_history if name in row]


class Loop(TrainerCallback):
    """docs/your_loop.py beside a trainer: it takes the tokens of its new answers, and no more."""

    def __init__(self, trainer):
        self.trainer = trainer
        self.experience = Experience(Knobs(seed=42, **SIZES, **KNOBS), QUESTIONS)
        self.losses = trainer.losses_of_loop = []

    def on_pre_optimizer_step(self, args, state, control, model, **_):
        """Compares the gradient of every update and, before the first one, all groups."""
        step, place = divmod(state.global_step, 2)
        if place == 0:
            self.mini_batches = self.experience.mini_batches(step, self.groups(model, step))
        found = torch.cat([p.grad.flatten() for p in model.parameters()])
        model.zero_grad()
        clip_eps = self.trainer.steps[-1][0].clip_eps
        loss = your_loop.loss_of(model, self.mini_batches[place], clip_eps)
        loss.backward()
        expected = torch.cat([p.grad.flatten() for p in model.parameters()])
        assert (found - expected).norm() <= 1e-5 * expected.norm()
        self.losses.append(loss.item())

    def groups(self, model, step):
        """Its own groups with advantages, which must be the trainer's."""
        experience = self.experience
        drawn = experience.draw(step)
        entropies = your_loop.mean_entropies(model, experience.candidates(drawn))
        plan = experience.plan(step, drawn, entropies)
        _, theirs = self.trainer.steps[-1]
        rollouts = []
        for group in theirs:
            asked = [(group.question.prompt_ids, t.token_ids) for t in group.new]
            scores = [logprobs for logprobs, _ in your_loop.split_scores(model, asked)]
            texts = [your_loop.TOKENIZER.decode(t.token_ids[:-1]) for t in group.new]
            rewards = is_odd([[{"content": text}] for text in texts])
            made = zip(group.new, scores, rewards)
            rollouts.append([Trajectory(t.token_ids, p, step, reward) for t, p, reward in made])
        groups = experience.form_groups(plan, rollouts)
        experience.store(plan, groups)
        groups = experience.with_advantages(groups)
        for mine, other in zip(groups, experience.with_advantages(theirs), strict=True):
            assert mine.question.id == other.question.id
            np.testing.assert_array_equal(mine.advantages, other.advantages)
            for t, u in zip(mine.trajectories, other.trajectories, strict=True):
                np.testing.assert_array_equal(t.token_ids, u.token_ids)
                np.testing.assert_allclose(t.logprobs, u.logprobs, atol=1e-5)
        return groups


@pytest.fixture(scope="module", params=[1, 2])
def run(request, tmp_path_factory):
    """A trainer with the loop beside it; param: gradient accumulation."""
    return train(tmp_path_factory.mktemp("run"), accumulated=request.param, beside=Loop)


def test_it_computes_what_the_loop_computes(run):
    """Groups, o*, advantages, losses and gradients are the same, with and without CLIP."""
    np.testing.assert_allclose(logged(run, "loss"), run.losses_of_loop, rtol=1e-5, atol=1e-7)
    assert [plan.clip_eps for plan, _ in run.steps] == [0.2, None, None, None]
    stars = [len(plan.stars) for plan, _ in run.steps]
    assert [n > 0 for n in stars] == [False, False, True, True]
    assert logged(run, "replay/questions") == stars


def test_a_resumed_run_plans_what_the_run_left_alone_plans(run, tmp_path):
    """From the checkpoint of its second batch: the same questions, and the same o*."""
    resumed = train(
        tmp_path,
        accumulated=run.args.gradient_accumulation_steps,
        checkpoint=f"{run.args.output_dir}/checkpoint-4",
    )
    plans = []
    for steps in (run.steps[2:], resumed.steps):
        stars = [{q: t.token_ids.tolist() for q, t in plan.stars.items()} for plan, _ in steps]
        plans.append(([plan.fresh for plan, _ in steps], stars))
    assert plans[0] == plans[1]


def canned(trainer, prompt_ids, *_):
    """The same random answers for every trainer, different ones to a question."""
    asked = Counter()
    answers = []
    for ids in map(tuple, prompt_ids):
        asked[ids] += 1
        rng = np.random.default_rng([*ids, asked[ids], trainer.state.global_step])
        answers.append([*rng.integers(3, 20, rng.integers(1, 20)).tolist(), your_loop.EOS])
    return answers, None


def test_without_replay_it_is_dr_grpo_of_trl(tmp_path, monkeypatch):
    """Three updates on the same answers to the same questions have the same losses and weights."""
    monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", canned)
    changes = {"gradient_accumulation_steps": 2, "optim": "sgd", "learning_rate": 1, "max_steps": 3}
    theirs, ours = [
        train(tmp_path, QUESTIONS[:8], knobs=knobs, **changes) for knobs in (None, {"rho": 0.0})
    ]
    assert np.abs(logged(theirs, "loss")).min() > 1e-4
    np.testing.assert_allclose(logged(theirs, "loss"), logged(ours, "loss"), rtol=0, atol=1e-6)
    for p, q in zip(theirs.model.parameters(), ours.model.parameters()):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-6)


def on_this_rank(directory, processes):
    """Its groups, and the losses of a run on canned answers."""
    GRPOTrainer._generate_single_turn = canned
    one = train(directory, per_device_train_batch_size=16 // processes)
    return [[group.checksum for group in groups] for _, groups in one.steps], logged(one, "loss")


def test_two_processes_train_as_one(tmp_path, monkeypatch):
    """They agree on all groups; until o* move the answers' places, one process has the same."""
    monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", canned)
    groups, losses = on_this_rank(tmp_path, 1)
    first, second = on_ranks(2, on_this_rank, tmp_path, 2, timeout=300)
    assert first == second
    assert first[0][:2] == groups[:2]
    np.testing.assert_allclose(first[1][:4], losses[:4], rtol=0, atol=1e-6)


def test_a_run_whose_questions_run_out_stops(tmp_path):
    """Where all is solved, twenty questions are two batches of eight."""
    solved = train(tmp_path, QUESTIONS[:20], reward=lambda prompts, **_: [1] * len(prompts))
    assert logged(solved, "buckets/retired") == [8, 16]
    assert solved.state.global_step == 4


@pytest.mark.parametrize("change", [{"beta": 0.1}, {"loss_type": "grpo"}, {"save_steps": 3}])
def test_what_would_be_ignored_is_refused_by_name(tmp_path, change):
    """KL and another loss, and a checkpoint between the mini-batches of a batch."""
    with pytest.raises(ValueError, match=[*change][0]):
        train(tmp_path, **change)
