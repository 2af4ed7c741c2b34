"""Dynamic sampling on scripted rewards: full batches, of a mask too, tokens counted, nothing asked twice."""

from dataclasses import replace

import numpy as np
import pytest

from buffer import Trajectory
from config import Config
from data import Question
from studies import dynamic, jobs, records
from studies.protocol import ARMS


@pytest.fixture
def run(monkeypatch):
    """Twelve questions, K = 2, B = 2; only those that `run.mixed` names have one right response of two."""
    config = Config(rho=0.0, batch_size=2, num_rollouts=2, k_max=1, steps=2)
    questions = [Question(i, f"q{i}", np.array([1, i], np.int32), "", "x") for i in range(12)]
    run = dynamic.Dynamic(config, questions)
    run.mixed, run.batches = set(), []

    def ask(questions, seeds, temperature, step):
        run.batches.append([q.id for q in questions])
        return [[Trajectory(np.array([q.id, i, 0]), np.zeros(3, np.float32), step,
                            float(i == 0 and q.id in run.mixed), True) for i in range(2)] for q in questions]

    run.ask = ask
    monkeypatch.setattr(dynamic, "budget", lambda config: 9 * config.steps)
    monkeypatch.setattr(dynamic, "ASKED", 2)  # B
    return run


def step(run, number: int):
    plan = run.plan(number, lambda _: [])
    seeds = run.seeds(plan)
    return plan, run.groups(plan, run.ask([run.questions[q] for q in plan.fresh], seeds, 1.0, number))


def test_further_questions_replace_groups_without_signal(run):
    """The third and the fifth of the stream's order have signal: three times two are asked, no two alike."""
    order = run.stream.draw(12, ())
    run.stream.queue = order[::-1]
    run.mixed = {order[2], order[4], order[6]}
    plan, groups = step(run, 0)
    assert run.batches == [order[:2], order[2:4], order[4:6]] and run.stream.queue[::-1] == order[6:]
    assert plan.fresh == [g.question.id for g in groups] == [order[2], order[4]]
    assert run.tokens == 3 * 2 * 2 * 3
    metrics = dynamic.metrics(plan, groups, run)
    assert metrics["rollout/tokens"] == 36 and metrics["dynamic/trained"] == 2
    assert [metrics[f"fresh/k={k}"] for k in range(3)] == [4, 2, 0]  # all that were asked
    assert run.plan(1, lambda _: []) is None  # 36 tokens of 2 steps times 9: the run ends


def test_a_step_asks_so_much_and_no_more(run, monkeypatch):
    """Nothing has signal: after LIMIT batches, or when no question is left, the last groups stand in."""
    monkeypatch.setattr(dynamic, "LIMIT", 3)
    _, groups = step(run, 0)
    assert len(run.batches) == 3 and [g.question.id for g in groups] == run.batches[-1]
    monkeypatch.setattr(dynamic, "ASKED", 3)  # 2, 3 and 3 of at most nine
    run.batches.clear()
    run.tokens = 0
    step(run, 0)
    assert [len(batch) for batch in run.batches] == [2, 3, 3]
    monkeypatch.setattr(dynamic, "ASKED", 2)
    monkeypatch.setattr(dynamic, "LIMIT", 30)
    run.batches.clear()
    plan = dynamic.Plan(1, run.stream.draw(2, ()), {})
    run.groups(plan, run.ask([run.questions[q] for q in plan.fresh], run.seeds(plan), 1.0, 1))
    assert sorted(q for batch in run.batches for q in batch) == list(range(12))


@pytest.mark.parametrize("arm, wanted", [("medium", {3, 4, 5}), ("hardest", {1, 2})])
def test_a_masked_run_trains_on_groups_between_its_bounds(arm, wanted):
    """Question q has q of 8 right: Medium is the open (25%, 75%), Hard (0, 25%]; and tokens end nothing."""
    config = replace(Config(steps=1), **ARMS[arm])
    run = dynamic.Dynamic(config, [Question(q, f"q{q}", np.array([1]), "", "x") for q in range(9)])
    token, prob = np.array([0]), np.zeros(1, np.float32)
    run.ask = lambda questions, *_: [[Trajectory(token, prob, 0, float(i < q.id), True) for i in range(8)]
                                     for q in questions]
    plan = run.plan(0, lambda _: [])
    groups = run.groups(plan, run.ask([run.questions[q] for q in plan.fresh]))
    assert {g.question.id for g in groups} == wanted == set(plan.fresh) and len(groups) == len(wanted)
    run.mini_batches(0, groups)
    assert all(g.advantages.any() for g in groups)  # the mask of Eq. 14 leaves them
    assert dynamic.metrics(plan, groups, run)["dynamic/trained"] == len(wanted)
    run.tokens = 10**12
    assert run.plan(1, lambda _: []) is not None


def test_the_budget_is_what_exgrpos_run_generated(tmp_path, monkeypatch):
    """Two steps of 100 and 51 tokens: 151, of one step the half, rounded down; no record, no run."""
    monkeypatch.setattr(jobs, "RECORDS", tmp_path)
    rows = [{"step": 0}, {"rollout/tokens": 100}, {"rollout/tokens": 51}]
    records.write(jobs.Job("hard", "exgrpo", 3).record_file, {"rows": rows})
    assert [dynamic.budget(Config(seed=3, steps=steps)) for steps in (2, 1)] == [151, 75]
    with pytest.raises(FileNotFoundError):
        dynamic.budget(Config(seed=4))


def test_tokens_are_part_of_a_checkpoint(run):
    """A resumed run has spent what it had spent."""
    run.tokens = 7
    state, run.tokens = run.state_dict(), 0
    run.load_state_dict(state, run.buffer)
    assert run.tokens == 7
