"""Every value of a knob that chooses: the contract that each keeps, and what each prefers on a case by hand.

A new value of such a knob fails here until it stands in a table; its reverse fails on the case of the table.
"""

from collections import Counter
from typing import Literal, get_args, get_origin

import numpy as np
import pytest
import torch
from transformers import get_scheduler

from buffer import ReplayBuffer, Trajectory
from config import Config
from data import Question
from exgrpo import SCORED_BY, Experience, Group

K, DRAWS = 8, 600

# ---- what each value prefers --------------------------------------------------------------------------

QUESTIONS = {  # question_selection, sigma_unit: buckets k = 1, 4, 7 of equal size, from most to least drawn
    ("gaussian", "count"): "4, then 1 and 7 alike, both hardly ever",
    ("gaussian", "accuracy"): "4 a little before 1 and 7 alike",
    ("uniform", "count"): "all alike",
    ("uniform", "accuracy"): "all alike",
}
SHARES = {  # of the draws: lowest and highest of k = 4, of k = 1, of k = 7
    "4, then 1 and 7 alike, both hardly ever": [(0.95, 1.0), (0.0, 0.03), (0.0, 0.03)],
    "4 a little before 1 and 7 alike": [(0.345, 0.42), (0.27, 0.345), (0.27, 0.345)],
    "all alike": [(0.29, 0.38), (0.29, 0.38), (0.29, 0.38)],
}
STARS = {  # trajectory_selection: o* of five responses; {name: (mean entropy, mean NLL, tokens)}
    "entropy": "lowest entropy", "nll": "lowest NLL", "official": "lowest sum", "highest_entropy": "highest",
    "random": "any",
}
RESPONSES = {"lowest entropy": (0.2, 0.5, 10), "lowest NLL": (0.4, 0.1, 9), "lowest sum": (0.5, 0.6, 2),
             "highest": (0.9, 0.8, 6), "other": (0.6, 0.7, 8)}
BUCKETS = {  # difficulty: the bucket of a question with rewards 0, 0, .3, .6, .6, .6, .6, .7 and std .268
    "success": 5, "spread": 4,  # of 8, where the batch has spreads from 0 to .5
}
CLIPS = {"auto": [True, False], "on": [True, True], "off": [False, False]}  # before, after replay starts
RETIRES = {"auto": [True, False], "on": [True, True], "off": [False, False]}  # with replay, without (ρ = 0)
RATES = {  # lr_schedule: shares of lr at steps 0, 2, 6, 10 of 10 with two of warm-up
    "constant": [0, 1, 1, 1], "linear": [0, 1, 0.5, 0], "cosine": [0, 1, 0.5, 0],
}
MIDWAY = {"constant": 1.0, "linear": 0.75, "cosine": 0.853553}  # and at step 4, which tells them apart
TABLES = {
    "question_selection": {selection for selection, _ in QUESTIONS},
    "sigma_unit": {unit for _, unit in QUESTIONS}, "trajectory_selection": set(STARS),
    "difficulty": set(BUCKETS), "clip": set(CLIPS), "retire": set(RETIRES), "lr_schedule": set(RATES),
}
ELSEWHERE = {  # no preference among experiences: these values are tested where they are used
    "grader": {"strict", "official", "both"},  # tests/test_reward.py
    "engine": {"auto", "vllm", "hf"},  # tests/test_rollout.py
    "dtype": {"float32", "bfloat16"}, "behavior_logprobs": {"engine", "recompute"},  # tests/test_policy.py
    "tracker": {"none", "tensorboard", "wandb"},  # tests/runtime/test_tracking.py
    "world": {"easy", "hard", "weak"},  # tests/worlds/test_arithmetic.py
}


def test_every_choice_stands_in_a_table():
    """A value added to a knob of config.py has to say what it prefers, a knob added has to have a table."""
    choices = {name: set(get_args(f.type)) for name, f in Config.__dataclass_fields__.items()
               if get_origin(f.type) is Literal}
    assert choices == TABLES | ELSEWHERE
    assert set(QUESTIONS) == {(s, u) for s in TABLES["question_selection"] for u in TABLES["sigma_unit"]}


# ---- which questions ----------------------------------------------------------------------------------


def experience(sizes: dict[int, int], order=None, **knobs) -> Experience:
    """A run whose buffer holds so many questions in each bucket k, stored bucket by bucket in this order."""
    ids = {k: [100 * k + i for i in range(n)] for k, n in sizes.items()}
    knobs = {"batch_size": 8, "start_threshold": -1.0, "rho": 1.0, "mini_batches": 1} | knobs
    run = Experience(Config(**knobs), [
        Question(q, "", np.array([1], np.int32), "", "") for of in ids.values() for q in of])
    for k in order or sizes:
        for q in ids[k]:
            run.buffer.add(q, k, [response(q)])
    return run


def response(*token_ids: int) -> Trajectory:
    return Trajectory(np.array(token_ids, np.int32), np.zeros(len(token_ids), np.float32))


def drawn(run: Experience, step: int) -> list[int]:
    return list(run.plan(step, lambda sequences: [0.0] * len(sequences)).replayed)


@pytest.mark.parametrize("selection, unit", QUESTIONS)
@pytest.mark.parametrize("batch_size", [1, 7, 23, 40])
def test_a_draw_of_questions_keeps_the_contract(selection, unit, batch_size):
    """Distinct, buffered, exactly ⌊ρB⌋ or all there are; the same again, another at another step or seed, and
    whatever the order in which buckets came to be."""
    sizes, knobs = {1: 3, 2: 9, 5: 7, 7: 4}, dict(question_selection=selection, sigma_unit=unit)
    runs = [experience(sizes, order, batch_size=batch_size, seed=seed, **knobs)
            for order, seed in (((1, 2, 5, 7), 0), ((7, 2, 1, 5), 0), ((1, 2, 5, 7), 1))]
    several = [[drawn(run, step) for step in range(20)] for run in runs]
    for ids in several[0]:
        assert len(ids) == len(set(ids)) == min(batch_size, 23) and set(ids) <= set(runs[0].questions)
    assert several[0] == several[1] == [drawn(runs[0], step) for step in range(20)]
    assert several[0] != several[2] and len({tuple(ids) for ids in several[0]}) > 1


@pytest.mark.parametrize("selection, unit", QUESTIONS)
def test_a_draw_of_questions_prefers_what_the_table_says(selection, unit):
    """One question out of 20 in each of the buckets 1, 4 and 7, K = 8: the shares of 600 draws."""
    run = experience({1: 20, 4: 20, 7: 20}, batch_size=1, question_selection=selection, sigma_unit=unit)
    seen = Counter(drawn(run, step)[0] // 100 for step in range(DRAWS))
    for k, (low, high) in zip((4, 1, 7), SHARES[QUESTIONS[selection, unit]], strict=True):
        assert low <= seen[k] / DRAWS <= high, (k, seen)


# ---- which response -----------------------------------------------------------------------------------


def star(rule: str, order, seed: int = 0, step: int = 0) -> str:
    """The name of the response that is chosen of RESPONSES, stored in this order."""
    run = Experience(Config(trajectory_selection=rule, rho=1.0, batch_size=1, mini_batches=1, seed=seed,
                            start_threshold=-1.0), [Question(0, "", np.array([1], np.int32), "", "")])
    names = list(RESPONSES)
    for name in order:
        run.buffer.add(0, 4, [response(*[names.index(name)] * RESPONSES[name][2])])
    column = {"mean_entropy": 0, "mean_nll": 1}[SCORED_BY.get(rule, "mean_entropy")]
    plan = run.plan(step, lambda sequences: [RESPONSES[names[ids[0]]][column] for _, ids in sequences])
    return names[plan.replayed[0].token_ids[0]]


@pytest.mark.parametrize("rule", STARS)
def test_the_star_is_what_the_table_says(rule):
    """In every order of storing, for any seed and step; repeatable. `random` takes each about equally often,
    and by its place: a response has no name of its own; the buffer holds them in the order of sampling."""
    forward, backward = list(RESPONSES), list(RESPONSES)[::-1]
    chosen = [star(rule, order, seed, step) for order in (forward, backward) for seed in (0, 1)
              for step in range(75 if rule == "random" else 2)]
    if STARS[rule] == "any":
        assert all(40 <= n <= 80 for n in Counter(chosen).values()) and set(chosen) == set(RESPONSES)
    else:
        assert set(chosen) == {STARS[rule]}
    once, again = ([star(rule, forward, step=step) for step in range(9)] for _ in range(2))
    assert once == again


# ---- the others ---------------------------------------------------------------------------------------


def group(run: Experience, question: int, rewards) -> Group:
    trajectories = [response(question, i) for i in range(len(rewards))]
    for trajectory, reward in zip(trajectories, rewards, strict=True):
        trajectory.reward = reward
    return Group(run.questions[question], trajectories)


@pytest.mark.parametrize("difficulty", BUCKETS)
def test_the_bucket_is_what_the_table_says(difficulty):
    """In a batch with two others of no and of the widest spread, in any order of groups and rewards."""
    for order in (1, -1):
        run = experience({1: 1, 2: 1, 3: 1}, difficulty=difficulty)
        run.buffer = ReplayBuffer()
        case = group(run, 100, [0, 0, 0.3, 0.6, 0.6, 0.6, 0.6, 0.7][::order])
        run.collect([case, group(run, 200, [0] * 8), group(run, 300, [0, 1] * 4)][::order])
        assert run.buffer.num_success(100) == BUCKETS[difficulty]


@pytest.mark.parametrize("clip", CLIPS)
def test_the_clip_is_what_the_table_says(clip):
    """Before and after replay starts."""
    run = experience({4: 2}, clip=clip, start_threshold=0.35)
    before = run.clip_eps
    run.started = True
    assert [eps is not None for eps in (before, run.clip_eps)] == CLIPS[clip]


@pytest.mark.parametrize("retire", RETIRES)
def test_retirement_is_what_the_table_says(retire):
    """Of a question solved K of K times, with replay and in the baseline."""
    retired = []
    for rho in (0.5, 0.0):
        run = experience({4: 1}, retire=retire, rho=rho)
        run.buffer = ReplayBuffer()
        run.collect([group(run, 400, [1.0] * K)])
        retired.append(400 in run.buffer.retired)
    assert retired == RETIRES[retire]


@pytest.mark.parametrize("kind", RATES)
def test_the_learning_rate_is_what_the_table_says(kind):
    """By transformers' scheduler, as policy.py asks for it."""
    name = "constant_with_warmup" if kind == "constant" else kind
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    (factor,) = get_scheduler(name, optimizer, 2, 10).lr_lambdas
    assert [factor(step) for step in (0, 2, 6, 10)] == pytest.approx(RATES[kind])
    assert factor(4) == pytest.approx(MIDWAY[kind])
