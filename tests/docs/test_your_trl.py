"""docs/your_trl.py does what docs/your_loop.py does: all of it seen in TRL's own train()."""

import sys
from collections import Counter
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
from your_trl import NEEDED, ExGRPOTrainer  # noqa: E402

your_loop.TEMPERATURE = 0.9
QUESTIONS = your_loop.read_questions()[:40]
# TRL itself pads prompts on the left, and RoPE is rounded to float32 at every place.
OF_ONE_LENGTH = [question for question in QUESTIONS if len(question.text) == 22]
KNOBS = {"rho": 0.5, "start_threshold": 0.1}


def is_odd(completions, **_):
    """A reward that the base model often gets."""
    return [float(sum(c[0]["content"].encode()) % 2) for c in completions]


def train(
    directory, questions=QUESTIONS, *, reward=is_odd, beside=None, checkpoint=None, **changes
):
    """The trainer after four batches, with its plans and groups; `changes` are of GRPOConfig.

    `beside` makes a callback of it. Without knobs it is TRL's own trainer.
    """
    knobs = changes.pop("knobs", KNOBS)
    accumulated = changes.get("gradient_accumulation_steps", 1)
    config = {
        "per_device_train_batch_size": 16 // accumulated,
        "steps_per_generation": 2 * accumulated,
        "num_generations": 4,
        "max_completion_length": your_loop.L_MAX,
        "temperature": your_loop.TEMPERATURE,
        "max_steps": 8,
        "save_steps": 2,
        "logging_steps": 1,
        "learning_rate": 1e-3,
        "max_grad_norm": 0,
        "bf16": False,
        "use_cpu": True,
    }
    config = GRPOConfig(str(directory), **NEEDED | config | changes)
    prompts = [[{"role": "user", "content": question.text}] for question in questions]
    given = str(your_loop.BASE), reward, config, Dataset.from_dict({"prompt": prompts})
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


def checksums(trainer):
    """Of the groups of each batch."""
    return [[group.checksum for group in groups] for _, groups in trainer.steps]


def gradient(model):
    """As one vector."""
    return torch.cat([p.grad.flatten() for p in model.parameters()])


class Loop(TrainerCallback):
    """docs/your_loop.py beside a trainer: it takes the tokens of its new answers, and no more."""

    def __init__(self, trainer):
        self.trainer = trainer
        sizes = {"batch_size": 8, "num_rollouts": 4, "num_mini_batches": 2}
        self.experience = Experience(Knobs(seed=42, **sizes, **KNOBS), QUESTIONS)
        self.losses = trainer.losses_of_loop = []

    def on_pre_optimizer_step(self, args, state, control, model, **_):
        """Compares the gradient of every update and, before the first one, all groups."""
        step, place = divmod(state.global_step, 2)
        plan, theirs = self.trainer.steps[-1]
        if place == 0:
            groups = self.groups(model, step, theirs)
            self.mini_batches = self.experience.mini_batches(step, groups)
        found = gradient(model)
        model.zero_grad()
        loss = your_loop.loss_of(model, self.mini_batches[place], plan.clip_eps)
        loss.backward()
        expected = gradient(model)
        assert (found - expected).norm() <= 1e-5 * expected.norm()
        self.losses.append(loss.item())

    def groups(self, model, step, theirs):
        """Its own groups with advantages, which must be the trainer's."""
        experience = self.experience
        drawn = experience.draw(step)
        entropies = your_loop.mean_entropies(model, experience.candidates(drawn))
        plan = experience.plan(step, drawn, entropies)
        rollouts = []
        for group in theirs:
            asked = [(group.question.prompt_ids, t.token_ids) for t in group.new]
            new = []
            for (_, ids), (logprobs, _) in zip(asked, your_loop.split_scores(model, asked)):
                [reward] = is_odd([[{"content": your_loop.TOKENIZER.decode(ids[:-1])}]])
                new.append(Trajectory(ids, logprobs, step, reward))
            rollouts.append(new)
        groups = experience.form_groups(plan, rollouts)
        experience.store(plan, groups)
        assert [group.checksum for group in groups] == checksums(self.trainer)[-1]
        for mine, other in zip(groups, theirs):
            for t, u in zip(mine.trajectories, other.trajectories):
                np.testing.assert_allclose(t.logprobs, u.logprobs, atol=1e-5)
        return experience.with_advantages(groups)


@pytest.fixture(scope="module", params=[1, 2])
def run(request, tmp_path_factory):
    """A trainer with the loop beside it; param: gradient accumulation."""
    directory = tmp_path_factory.mktemp("run")
    return train(directory, beside=Loop, gradient_accumulation_steps=request.param)


def test_it_computes_what_the_loop_computes(run):
    """Groups, o*, advantages, losses and gradients are the same, with and without CLIP."""
    np.testing.assert_allclose(logged(run, "loss"), run.losses_of_loop, rtol=1e-5, atol=1e-7)
    assert [plan.clip_eps for plan, _ in run.steps] == [0.2, None, None, None]
    stars = [len(plan.stars) for plan, _ in run.steps]
    assert stars[:2] == [0, 0] and min(stars[2:]) > 0
    assert logged(run, "replay/questions") == stars


def test_a_resumed_run_goes_on_as_the_run_left_alone(run, tmp_path):
    """From the checkpoint of its second batch: the same groups. None is inside a batch."""
    accumulated = run.args.gradient_accumulation_steps
    checkpoint = f"{run.args.output_dir}/checkpoint-4"
    resumed = train(tmp_path, checkpoint=checkpoint, gradient_accumulation_steps=accumulated)
    assert checksums(resumed) == checksums(run)[2:]
    longer = {"steps_per_generation": 8, "per_device_train_batch_size": 4, "save_steps": 8}
    with pytest.raises(ValueError, match="inside a generation batch"):
        train(tmp_path, checkpoint=checkpoint, **longer)


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
    sizes = {"per_device_train_batch_size": 16, "steps_per_generation": 2}  # one update a batch
    changes = {"gradient_accumulation_steps": 2, "optim": "sgd", "learning_rate": 1, "max_steps": 3}
    theirs, ours = [
        train(tmp_path, OF_ONE_LENGTH[:8], knobs=knobs, **sizes, **changes)
        for knobs in (None, {"rho": 0.0})
    ]
    assert np.abs(logged(theirs, "loss")).min() > 1e-4
    np.testing.assert_allclose(logged(theirs, "loss"), logged(ours, "loss"), rtol=0, atol=1e-6)
    for p, q in zip(theirs.model.parameters(), ours.model.parameters()):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-6)


def on_this_rank(directory, processes):
    """The checksums and the losses of a run on canned answers."""
    GRPOTrainer._generate_single_turn = canned
    one = train(directory, per_device_train_batch_size=16 // processes)
    return checksums(one), logged(one, "loss")


def test_two_processes_train_as_one(tmp_path, monkeypatch):
    """They agree on all groups; until o* move the answers' places, one process has the same."""
    monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", canned)
    groups, losses = on_this_rank(tmp_path, 1)
    first, second = on_ranks(2, on_this_rank, tmp_path, 2, timeout=300)
    assert first == second
    assert first[0][:2] == groups[:2]
    np.testing.assert_allclose(first[1][:4], losses[:4], rtol=0, atol=1e-6)


def test_a_run_whose_questions_run_out_stops(tmp_path):
    """Where all is solved, twenty questions are two batches of eight; resumed, it ends at once."""
    given = {"questions": QUESTIONS[:20], "reward": lambda prompts, **_: [1] * len(prompts)}
    solved = train(tmp_path, save_steps=6, **given)
    assert logged(solved, "buckets/retired") == [8, 16]
    resumed = train(tmp_path, checkpoint=f"{tmp_path}/checkpoint-4", **given)
    assert resumed.state.global_step == solved.state.global_step == 4


@pytest.mark.parametrize(
    "sentence, change",
    [
        ("beta=0.0", {"beta": 0.1}),
        ("loss_type='dr_grpo'", {"loss_type": "grpo"}),
        ("save_steps to n . 2", {"save_steps": 3}),
        ("steps_per_generation to n . 4", {"gradient_accumulation_steps": 4}),
        ("reward nan", {"reward": lambda prompts, **_: [None] * len(prompts)}),
    ],
)
def test_what_would_go_wrong_is_refused(tmp_path, sentence, change):
    """What would be ignored, checkpoints and updates that split a batch, ungraded answers."""
    with pytest.raises(ValueError, match=sentence):
        train(tmp_path, **{"steps_per_generation": 2} | change)
