"""docs/your_trl.py: in TRL's own train() it does what docs/your_loop.py does with its answers."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from test_house import ISLAND, ROOT, imported
from test_policy import assert_same_gradients

pytest.importorskip("trl")
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from buffer import Trajectory
from exgrpo import Experience, Knobs

DOCS = Path(__file__).parent.parent.parent / "docs"
KNOBS = {"rho": 0.5, "start_threshold": 0.1}
K = 4


def module(name):
    """A file of docs/ as a module."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    spec.loader.exec_module(made := importlib.util.module_from_spec(spec))
    return made


sys_path = [*sys.path]
LOOP, TRL = module("your_loop"), module("your_trl")
sys.path[:] = sys_path
LOOP.TEMPERATURE = 0.9
QUESTIONS = LOOP.read_questions()[:32]


def is_odd(completions, **_):
    """A reward that the base model gets half of the time."""
    return [float(sum(c[0]["content"].encode()) % 2) for c in completions]


def trainer(directory, accumulated=1, questions=QUESTIONS, kind=TRL.ExGRPOTrainer, **changes):
    """Batches of 8 questions, two mini-batches; changes: of GRPOConfig, `reward` and `more`."""
    reward = changes.pop("reward", is_odd)
    more = changes.pop("more", {"knobs": KNOBS})
    options = {
        "per_device_train_batch_size": 16 // accumulated,
        "gradient_accumulation_steps": accumulated,
        "steps_per_generation": 2 * accumulated,
        "num_generations": K,
        "max_completion_length": LOOP.L_MAX,
        "temperature": LOOP.TEMPERATURE,
        "loss_type": "dr_grpo",
        "scale_rewards": "none",
        "max_steps": 8,
        "save_steps": 2,
        "save_only_model": False,
        "logging_steps": 1,
        "learning_rate": 1e-3,
        "max_grad_norm": 0,
        "bf16": False,
        "use_cpu": True,
        "disable_tqdm": True,
    }
    prompts = [[{"role": "user", "content": q.text}] for q in questions]
    rows = Dataset.from_dict({"prompt": prompts})
    config = GRPOConfig(str(directory), **options | changes)
    made = kind(str(LOOP.BASE), reward, config, rows, **more)
    if kind is not GRPOTrainer:
        made.steps = []
        store = made.experience.store
        made.experience.store = lambda *both: (made.steps.append(both), store(*both))
    return made


class Loop(TrainerCallback):
    """The loop of docs/your_loop.py beside a trainer: its answers, and nothing else of it."""

    def __init__(self, trainer):
        self.trainer = trainer
        knobs = Knobs(batch_size=8, num_rollouts=K, seed=trainer.args.seed, **KNOBS)
        self.experience = Experience(knobs, QUESTIONS)
        self.losses = []

    def on_step_begin(self, args, state, control, model, **_):
        if state.global_step % 2 == 0:  # before the first update of a batch
            step = state.global_step // 2
            drawn = self.experience.draw(step)
            entropies = LOOP.mean_entropies(model, self.experience.candidates(drawn))
            self.plan = self.experience.plan(step, drawn, entropies)

    def on_pre_optimizer_step(self, args, state, control, model, **_):
        if state.global_step % 2 == 0:
            self.mini_batches = self.mini_batches_of(model)
        found = {name: p.grad.numpy().copy() for name, p in model.named_parameters()}
        model.zero_grad()
        loss = LOOP.loss_of(model, self.mini_batches.pop(0), self.plan.clip_eps)
        loss.backward()
        expected = {name: p.grad.numpy() for name, p in model.named_parameters()}
        assert_same_gradients(found, expected)
        self.losses.append(loss.item())

    def mini_batches_of(self, model):
        """The groups of this batch, which must be the trainer's."""
        _, theirs = self.trainer.steps[-1]
        rollouts = []
        for group in theirs:
            asked = [(group.question.prompt_ids, t.token_ids) for t in group.new]
            rewards = is_odd([[{"content": LOOP.TOKENIZER.decode(ids[:-1])}] for _, ids in asked])
            new = []
            for (_, ids), (logp, _), reward in zip(asked, LOOP.split_scores(model, asked), rewards):
                new.append(Trajectory(ids, logp, self.plan.step, reward))
            rollouts.append(new)
        groups = self.experience.form_groups(self.plan, rollouts)
        self.experience.store(self.plan, groups)
        groups = self.experience.with_advantages(groups)
        for mine, other in zip(
            groups, self.trainer.experience.with_advantages(theirs), strict=True
        ):
            assert mine.question.id == other.question.id
            np.testing.assert_array_equal(mine.advantages, other.advantages)
            for t, u in zip(mine.trajectories, other.trajectories, strict=True):
                np.testing.assert_array_equal(t.token_ids, u.token_ids)
                np.testing.assert_allclose(t.logprobs, u.logprobs, atol=1e-5)
        return self.experience.mini_batches(self.plan.step, groups)


@pytest.fixture(scope="module", params=[1, 2])
def run(request, tmp_path_factory):
    """A trainer after four batches, with the loop beside it; param: gradient accumulation."""
    made = trainer(tmp_path_factory.mktemp("run"), request.param)
    made.loop = Loop(made)
    made.add_callback(made.loop)
    made.train()
    return made


def logged(trainer, name):
    return [row[name] for row in trainer.state.log_history if name in row]


def test_groups_loss_and_gradient_are_those_of_the_loop(run):
    """The callback compared groups, advantages and gradients; with and without CLIP and o*."""
    np.testing.assert_allclose(logged(run, "loss"), run.loop.losses, atol=1e-5)
    assert [plan.clip_eps for plan, _ in run.steps] == [0.2, None, None, None]


def test_replay_happens(run):
    """Returning questions are logged; an o* is an answer of an earlier step, with its log-probs."""
    assert logged(run, "replay/questions")[0] == 0
    assert logged(run, "replay/questions")[-1] > 0
    made = {}
    replayed = 0
    for _, groups in run.steps:
        for group in groups:
            if group.star:
                replayed += 1
                key = group.question.id, group.star.step, group.star.token_ids.tobytes()
                np.testing.assert_array_equal(group.star.logprobs, made[key])
            for t in group.new:
                made[group.question.id, t.step, t.token_ids.tobytes()] = t.logprobs
    assert replayed == sum(logged(run, "replay/questions"))


def test_a_resumed_run_plans_what_the_other_planned(run):
    """From the checkpoint after two batches, the third and the fourth are those of the run."""
    again = trainer(run.args.output_dir, run.args.gradient_accumulation_steps)
    again.train(resume_from_checkpoint=f"{run.args.output_dir}/checkpoint-4")
    plans = [plan.question_ids for plan, _ in run.steps]
    assert [plan.question_ids for plan, _ in again.steps] == plans[2:]


def test_of_ours_it_needs_the_island_and_the_world():
    """It imports nothing else of this project."""
    ours = imported(DOCS / "your_trl.py") & (ROOT | {"worlds", "runtime", "verifier", "tools"})
    assert ours == (ISLAND - {"sampler"}) | {"worlds"}
