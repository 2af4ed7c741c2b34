"""Experience management: a run worked out by hand, and the rule behind each of its steps."""

import json
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from buffer import Trajectory
from exgrpo import Experience, Group, Knobs

K = 8


def experience(n=40, **knobs):
    """A run on n questions, in batches of eight; replay starts at once unless knobs say else."""
    knobs = {"batch_size": min(n, 8), "num_mini_batches": 1, "start_threshold": -1.0} | knobs
    questions = [SimpleNamespace(id=q, prompt_ids=np.int32([1, 100 + q])) for q in range(n)]
    return Experience(Knobs(**knobs), questions)


def response(*tokens, reward=1.0, finished=True):
    logprobs = np.full(len(tokens), -0.5, np.float32)
    return Trajectory(np.array(tokens, np.int32), logprobs, reward=reward, finished=finished)


def group_of(run, question, *rewards, star=None):
    """A question's group with these rewards of its new responses."""
    new = [response(question, i, reward=reward) for i, reward in enumerate(rewards)]
    return Group(run.questions[question], star, new)


def make_plan(run, step):
    """Lines 4 to 18; a response's last token is its entropy."""
    drawn = run.draw(step)
    scores = [[float(ids[-1]) for _, ids in stored] for stored in run.candidates(drawn)]
    return run.plan(step, drawn, scores)


def take_step(run, step, *successes):
    """A step in which so many new responses are right, to each question of the plan."""
    plan = make_plan(run, step)
    rollouts = []
    for right, seeds in zip(successes, run.seeds(plan), strict=True):
        ids = [(seed % 1000, i) for i, seed in enumerate(seeds)]
        rollouts.append([response(*t, reward=float(t[1] < right)) for t in ids])
    groups = run.form_groups(plan, rollouts)
    run.store(groups)
    return plan, groups


def contents(run):
    """{question: (its bucket, how many responses are stored)}"""
    E = run.buffer
    return {q: (k, len(E.trajectories(q))) for k, ids in E.buckets.items() for q in ids}


def test_a_run_by_hand():
    """Algorithm 1 for five steps: B = 4, K = 4, ρ = 0.5, replay once Pass@1 exceeds 0.25."""
    run = experience(12, batch_size=4, num_rollouts=4, start_threshold=0.25)
    # A Pass@1 of exactly 4/16 does not start. What is solved K of K retires all the same.
    plan, _ = take_step(run, 0, 4, 0, 0, 0)
    a = plan.fresh[0]
    assert not run.started and plan.clip_eps == 0.2
    # The batch that exceeds it is still clipped, and leaves nothing in E.
    plan, _ = take_step(run, 1, 3, 2, 0, 0)
    assert run.started and plan.clip_eps == 0.2 and contents(run) == {}
    # The next one stores. Nothing could be replayed in it.
    plan, _ = take_step(run, 2, 3, 1, 0, 0)
    b, c = plan.fresh[:2]
    assert plan.clip_eps is None and not plan.stars
    assert contents(run) == {b: (3, 3), c: (1, 1)} and run.buffer.retired == {a}
    # Both are replayed beside two fresh ones. c succeeds with its o* alone, b is solved.
    plan, groups = take_step(run, 3, 2, 0, 0, 3)
    assert list(plan.stars) == [c, b] and len(set(plan.question_ids)) == 4
    assert [g.replayed for g in groups[1:3]] == [[False] * 4, [True, False, False, False]]
    d = plan.fresh[0]
    assert contents(run) == {c: (1, 1), d: (2, 2)} and run.buffer.retired == {a, b}
    # Replay goes on whatever Pass@1 is. The latest k is the bucket, also a lower one.
    plan, _ = take_step(run, 4, 0, 0, 2, 0)
    assert list(plan.stars) == [c, d] and run.started
    assert contents(run) == {c: (3, 3), d: (1, 2)}


OFF = {"retire": "off"}
LATE = {"start_threshold": 1.0}
ON_POLICY = {"rho": 0.0}


@pytest.mark.parametrize(
    "knobs, question, successes, bucket, stored, retired",
    [
        ({}, "new", 0, None, 0, False),
        ({}, "new", 1, 1, 1, False),
        ({}, "new", 7, 7, 7, False),
        ({}, "new", 8, None, 0, True),
        ({}, "stored", 0, 4, 2, False),
        ({}, "stored", 6, 6, 8, False),
        ({}, "replayed", 0, 1, 2, False),
        ({}, "replayed", 5, 6, 7, False),
        ({}, "replayed", 7, None, 0, True),
        (OFF, "replayed", 7, None, 2, False),
        (LATE, "new", 5, None, 0, False),
        (LATE, "new", 8, None, 0, True),
        (ON_POLICY, "new", 5, None, 0, False),
        (ON_POLICY, "new", 8, None, 0, False),
        (ON_POLICY | {"retire": "on"}, "new", 8, None, 0, True),
    ],
)
def test_what_a_group_leaves(knobs, question, successes, bucket, stored, retired):
    """k, with o*, is the bucket; all new successes are stored; k = 0 changes nothing."""
    run = experience(**knobs)
    if question != "new":
        run.buffer.add(0, 4, [response(9, 1), response(9, 2)])
    star = run.buffer.trajectories(0)[0] if question == "replayed" else None
    rewards = [float(i < successes) for i in range(7 if star else 8)]
    run.store([group_of(run, 0, *rewards, star=star)])
    assert contents(run).get(0, (None,))[0] == bucket
    assert len(run.buffer.trajectories(0)) == stored
    assert run.buffer.retired == ({0} if retired else set())


def test_a_response_that_was_cut_counts_and_is_not_stored():
    """It counts in k, and its question is stored only with a success that ended by itself."""
    run = experience()
    for q, num_cut in [(0, 1), (1, 2)]:
        group = group_of(run, q, 1, 1, 0, 0, 0, 0, 0, 0)
        for t in group.new[:num_cut]:
            t.finished = False
        run.store([group])
    assert contents(run) == {0: (2, 1)}


def test_clip_can_be_set():
    """`on` clips by ε after the start, too, and `off` not even before it."""
    assert make_plan(experience(clip="on", clip_eps=0.3), 0).clip_eps == 0.3
    assert make_plan(experience(clip="off", **LATE), 0).clip_eps is None


@pytest.mark.parametrize(
    "rho, batch_size, size, n", [(0.5, 8, 3, 3), (0.5, 7, 20, 3), (0.29, 100, 40, 29)]
)
def test_number_of_replayed_questions(rho, batch_size, size, n):
    """n = min(⌊ρB⌋, |E|), and the rest are fresh ones; 0.29 · 100 is 28.999... in floats."""
    run = experience(120, rho=rho, batch_size=batch_size)
    for q in range(size):
        run.buffer.add(q, 1 + q % 7, [response(1)])
    plan = make_plan(run, 0)
    assert len(plan.stars) == n and len(set(plan.question_ids)) == batch_size


@pytest.mark.parametrize(
    "knobs, of_4",
    [
        ({}, 1 / (1 + np.exp(-4.5))),  # N(1; 4, 1) beside N(4; 4, 1)
        ({"mu": 0.0, "sigma": 2.0}, 1 / (1 + np.exp(15 / 8))),  # N(1; 0, 2) beside N(4; 0, 2)
        ({"question_selection": "uniform"}, 0.1),
    ],
)
def test_question_selection(knobs, of_4):
    """Of 600 draws of one question, of ten with one in bucket 4, so many are that one."""
    run = experience(rho=0.125, **knobs)
    for q in range(10):
        run.buffer.add(q, 1 if q else 4, [response(1)])
    share = sum(run.draw(step) == [0] for step in range(600)) / 600
    assert share == pytest.approx(of_4, abs=0.055)  # 4.5 standard errors or more


def test_o_star_by_each_rule():
    """Ours is the lowest mean; official the lowest sum, here the short unsure one; or random."""
    entropies, nlls = [0.1, 0.5, 0.4], [0.9, 0.8, 0.2]
    rows = [
        ("entropy", entropies, 0),
        ("official", entropies, 1),
        ("highest_entropy", entropies, 1),
        ("nll", nlls, 2),
    ]
    responses = [response(*[1] * 20), response(2, 2, 2), response(*[3] * 6)]
    for rule, scores, place in rows:
        run = experience(1, rho=1.0, trajectory_selection=rule)
        run.buffer.add(0, 4, responses)
        ((prompts, token_ids),) = [zip(*stored) for stored in run.candidates([0])]
        assert [len(ids) for ids in token_ids] == [20, 3, 6]
        assert all(prompt.tolist() == [1, 100] for prompt in prompts)
        assert run.plan(0, [0], [scores]).stars == {0: responses[place]}

    # Where there is nothing to compare, nothing is scored.
    run = experience(1, rho=1.0, trajectory_selection="random")
    run.buffer.add(0, 4, responses)
    assert run.candidates([0]) == [[]]
    picks = Counter(len(make_plan(run, step).stars[0].token_ids) for step in range(600))
    for length in (20, 3, 6):
        assert picks[length] == pytest.approx(200, abs=52)  # 4.5 standard errors
    single = experience()
    single.buffer.add(5, 4, responses[:1])
    assert single.candidates([5]) == [[]] and make_plan(single, 0).stars == {5: responses[0]}


def test_a_mixed_group():
    """o* stands first with its stored reward, counts in k, and shares one mean with K - 1 others.

    Every new response has a seed of its own.
    """
    run = experience(num_rollouts=4)
    run.buffer.add(3, 1, [response(9, reward=0.5)])
    plan = make_plan(run, 0)
    seeds = run.seeds(plan)
    assert [len(row) for row in seeds] == [4] * 7 + [3]
    assert len({seed for row in seeds for seed in row}) == 31
    assert run.seeds(plan) == seeds != run.seeds(make_plan(run, 1))

    mixed = group_of(run, 3, 0.25, 0.5, 0.75, star=plan.stars[3])
    assert mixed.rewards.tolist() == [0.5, 0.25, 0.5, 0.75] and mixed.num_success == 1
    (ours,) = run.with_advantages([mixed])
    assert ours.advantages.tolist() == [0, -0.25, 0, 0.25]
    run.knobs.normalize_std = True
    (normalized,) = run.with_advantages([mixed])
    assert normalized.advantages[3] == pytest.approx(0.25 / np.sqrt(2 * 0.25**2 / 3))


def test_malformed_responses_form_no_group():
    """A reward that is no number, or a question without its responses, is refused."""
    run = experience(1, rho=0.0)
    plan = make_plan(run, 0)
    with pytest.raises(ValueError, match="reward nan"):
        run.form_groups(plan, [[response(1, reward=np.nan)]])
    with pytest.raises(ValueError):
        run.form_groups(plan, [])


def test_a_tenth_of_the_retired_returns():
    """At steps 25, 50, ... a seeded tenth of S goes back to the stream, not to E (Table 7)."""

    def returned(seed):
        run = experience(reinstate_every=25, seed=seed)
        for q in range(30):
            run.buffer.retire(q)
        drawn = []
        for step in (0, 24, 25, 26):
            assert len(run.buffer.retired) == (30 if step < 26 else 27)
            drawn += make_plan(run, step).fresh
        back = set(range(30)) - run.buffer.retired
        assert back <= {*drawn, *run.stream.queue} and len(run.buffer) == 0
        return back

    assert returned(0) == returned(0) != returned(1)


def test_the_end_of_a_run():
    """A batch of fewer than B questions is never trained on."""
    run = experience(9)
    for q, ends in [(0, False), (1, True)]:
        run.buffer.retire(q)
        assert run.is_exhausted == ends


def test_continuous_rewards_go_by_their_spread():
    """σ = 0, 0.25, 0.5 (K = 4) are buckets 0, 2, 4; all but 0 store what is above their means.

    Nothing retires. Where all groups spread alike, σ̃ = 0, and what teaches is in bucket 1.
    """
    run = experience(3, num_rollouts=4, difficulty="spread")
    rewards = [(1, 1, 1, 1), (0.2, 0.7, 0.2, 0.7), (0, 1, 0, 1)]
    run.store([group_of(run, q, *row) for q, row in enumerate(rewards)])
    assert contents(run) == {1: (2, 2), 2: (4, 2)} and not run.buffer.retired
    assert [t.token_ids.tolist() for t in run.buffer.trajectories(1)] == [[1, 1], [1, 3]]
    run.store([group_of(run, 0, 0, 1, 0, 1)])
    assert run.buffer.buckets[1] == [0]


def test_masked_grpo():
    """Groups outside Eq. 14's closed range of k/K get advantage 0."""
    run = experience(rho=0.0, alpha=[0.25, 0.75])
    groups = [group_of(run, k, *[float(i < k) for i in range(K)]) for k in range(K + 1)]
    taught = [g.question.id for g in run.with_advantages(groups) if g.advantages.any()]
    assert taught == [2, 3, 4, 5, 6]


@pytest.mark.parametrize("num_stars, number", [(3, 2), (0, 2), (5, 3)])
def test_mini_batches(num_stars, number):
    """They lose no group, share the replayed ones equally, and go by seed and step."""
    run = experience(num_mini_batches=number)
    groups = [group_of(run, q, 1, star=response(1) if q < num_stars else None) for q in range(8)]
    splits = [run.mini_batches(step, groups) for step in (0, 0, 1)]
    assert splits[0] == splits[1] != splits[2]
    assert sorted(g.question.id for part in splits[0] for g in part) == [*range(8)]
    sizes = [len(part) for part in splits[0]]
    shares = [sum(g.star is not None for g in part) for part in splits[0]]
    assert len(sizes) == number and np.ptp(sizes) <= 1 and np.ptp(shares) <= 1


def test_a_resumed_run_plans_alike(tmp_path):
    """From state_dict, through JSON, and the buffer's file the next steps are the same."""
    knobs = {"trajectory_selection": "random", "reinstate_every": 5, "start_threshold": 0.2}
    runs = [experience(**knobs), experience(**knobs)]
    for step in range(3):
        take_step(runs[0], step, 8, 7, 6, 5, 4, 3, 2, 0)
    runs[0].buffer.save(tmp_path / "buffer")
    runs[1].load_state_dict(json.loads(json.dumps(runs[0].state_dict())), tmp_path / "buffer")
    for step in range(3, 7):
        first, second = [take_step(run, step, 8, 7, 6, 5, 4, 3, 2, 0)[0] for run in runs]
        assert len(first.stars) == 4 and first.clip_eps is second.clip_eps is None
        assert first.question_ids == second.question_ids
        for q, star in first.stars.items():
            assert star.token_ids.tolist() == second.stars[q].token_ids.tolist()
        assert runs[0].seeds(first) == runs[1].seeds(second)


def test_impossible_knobs_are_refused():
    """Each by a sentence that names the knob."""
    rows = [
        {"rho": 1.5},
        {"rho": -0.1},
        {"rho": 0.1, "batch_size": 5},
        {"sigma": "1e-1"},
        {"sigma": 0.0},
        {"mu": np.nan},
        {"num_rollouts": 1},
        {"num_mini_batches": 129},
        {"alpha": [0.8, 0.2]},
        {"clip": "sometimes"},
        {"retire": "on", "difficulty": "spread"},
    ]
    for knobs in rows:
        with pytest.raises(ValueError, match=next(iter(knobs))):
            Knobs(**knobs)
