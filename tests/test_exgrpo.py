"""Experience management: a run worked out by hand, and the rule behind each of its steps."""

from types import SimpleNamespace

import numpy as np
import pytest

from buffer import Trajectory
from exgrpo import Experience, Group, Knobs


def experience(n=40, **knobs):
    """A run on n questions, B = 8; replay starts at once unless the knobs say otherwise."""
    knobs = {"batch_size": 8, "num_mini_batches": 2, "start_threshold": -1.0} | knobs
    questions = [SimpleNamespace(id=q, prompt_ids=[q]) for q in range(n)]
    return Experience(Knobs(**knobs), questions)


def response(*tokens, reward=1.0):
    logprobs = np.full(len(tokens), -0.5, np.float32)
    return Trajectory(np.array(tokens, np.int32), logprobs, reward=reward)


def new_responses(rewards, step=0):
    return [response(step, i, reward=reward) for i, reward in enumerate(rewards)]


def group_of(run, question, rewards, star=None):
    """A question's group with these rewards of its new responses."""
    return Group(run.questions[question], star, new_responses(rewards))


def grades(right, number):
    return [1.0] * right + [0.0] * (number - right)


def make_plan(run, step):
    """Lines 4 to 18; a response's last token is its entropy."""
    drawn = run.draw(step)
    scores = [[ids[-1] for _, ids in stored] for stored in run.candidates(drawn)]
    return run.plan(step, drawn, scores)


def take_step(run, step, *successes):
    """A step in which so many new responses are right, for each question of the plan."""
    plan = make_plan(run, step)
    rollouts = []
    for right, seeds in zip(successes, run.seeds(step, plan), strict=True):
        rollouts.append(new_responses(grades(right, len(seeds)), step))
    run.store(run.form_groups(plan, rollouts))
    return plan


def ids(plan):
    """The questions of a plan, the fresh ones first."""
    return [group.question.id for group in plan]


def replayed(plan):
    """{question: its o*}"""
    return {group.question.id: group.star for group in plan if group.star}


def contents(run):
    """{question: (its bucket, how many of its responses are stored)}"""
    stored = run.buffer.trajectories
    return {q: (k, len(stored(q))) for k, ids in run.buffer.buckets.items() for q in ids}


def test_a_run_by_hand():
    """Algorithm 1 for five steps: B = 4, K = 4, ρ = 0.5, replay once Pass@1 exceeds 0.25."""
    run = experience(12, batch_size=4, num_rollouts=4, start_threshold=0.25)
    # A Pass@1 of exactly 4/16 does not start. What is solved K of K retires all the same.
    plan = take_step(run, 0, 4, 0, 0, 0)
    a = ids(plan)[0]
    assert not run.started and run.clip_eps == 0.2
    # The batch that exceeds it is still clipped, and leaves nothing in E.
    plan = take_step(run, 1, 3, 2, 0, 0)
    assert run.started and run.clip_eps == 0.2 and contents(run) == {}
    # The next one stores. Nothing could be replayed in it.
    plan = take_step(run, 2, 3, 1, 0, 0)
    b, c = ids(plan)[:2]
    assert run.clip_eps is None and not replayed(plan)
    assert contents(run) == {b: (3, 3), c: (1, 1)} and run.buffer.retired == {a}
    # Both are replayed beside two fresh ones. c succeeds with its o* alone, b is solved.
    plan = take_step(run, 3, 2, 0, 0, 3)
    assert list(replayed(plan)) == [c, b] and len(set(ids(plan))) == 4
    d = ids(plan)[0]
    assert contents(run) == {c: (1, 1), d: (2, 2)} and run.buffer.retired == {a, b}
    # Replay goes on whatever Pass@1 is. The latest k is the bucket, also a lower one.
    plan = take_step(run, 4, 0, 0, 2, 0)
    assert list(replayed(plan)) == [c, d]
    assert contents(run) == {c: (3, 3), d: (1, 2)}


LATE = {"start_threshold": 1.0}
ON_POLICY = {"rho": 0.0}


@pytest.mark.parametrize(
    "knobs, question, successes, bucket, stored, retired",
    [
        ({}, "new", 7, 7, 7, False),
        ({}, "new", 8, None, 0, True),
        ({}, "stored", 0, 4, 2, False),
        ({}, "replayed", 0, 1, 2, False),
        ({"retire": "off"}, "replayed", 7, 0, 2, False),
        (LATE, "new", 5, None, 0, False),
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
    run.store([group_of(run, 0, grades(successes, 7 if star else 8), star)])
    assert run.buffer.latest_k.get(0) == bucket
    assert len(run.buffer.trajectories(0)) == stored and (0 in run.buffer.retired) == retired


def test_a_response_that_was_cut_counts_and_is_not_stored():
    """Where both successes are cut, nothing is stored; where one is, k is 2 all the same."""
    run = experience()
    group = group_of(run, 0, grades(2, 8))
    for t in group.new:
        t.finished = False
    run.store([group])
    assert contents(run) == {}
    group.new[0].finished = True
    run.store([group])
    assert contents(run) == {0: (2, 1)}


def test_clip_can_be_set():
    """`on` clips by ε after the start, too, and `off` not even before it."""
    runs = experience(clip="on", clip_eps=0.3), experience(clip="off", **LATE)
    for run in runs:
        make_plan(run, 0)
    assert [run.clip_eps for run in runs] == [0.3, None]


@pytest.mark.parametrize(
    "knobs, of_4",
    [
        ({"mu": 0.0, "sigma": 2.0}, 1 / (1 + np.exp(15 / 8))),  # N(1; 0, 2) beside N(4; 0, 2)
        ({"question_selection": "uniform"}, 0.1),
    ],
)
def test_question_selection(knobs, of_4):
    """Of 600 draws of one of ten questions so many are the one in bucket 4."""
    run = experience(rho=0.125, **knobs)
    for q in range(10):
        run.buffer.add(q, 1 if q else 4, [response(1)])
    share = sum(run.draw(step) == [0] for step in range(600)) / 600
    assert share == pytest.approx(of_4, abs=0.062)  # 4.5 standard errors


@pytest.mark.parametrize(
    "rule, scores, lengths",
    [
        ("entropy", [0.1, 0.5, 0.4], {20}),
        ("official", [0.1, 0.5, 0.4], {3}),
        ("highest_entropy", [0.1, 0.5, 0.4], {3}),
        ("nll", [0.9, 0.8, 0.2], {6}),
        ("random", [], {20, 3, 6}),
    ],
)
def test_o_star_by_each_rule(rule, scores, lengths):
    """Ours is the lowest mean; official the lowest sum, here the short unsure one; or random."""
    run = experience(trajectory_selection=rule)
    run.buffer.add(0, 4, [response(*[1] * 20), response(2, 2, 2), response(*[3] * 6)])
    run.buffer.add(1, 4, [response(4)])
    stored, single = run.candidates([0, 1])
    # The random rule asks for no scores, nor does a single response.
    assert len(stored) == len(scores) and single == []
    stars = [run.plan(step, [0], [scores])[-1].star for step in range(40)]
    assert {len(star.token_ids) for star in stars} == lengths


def test_a_mixed_group():
    """o* stands first with its stored reward, counts in k, and shares one mean with K - 1 others.

    Every new response has a seed of its own.
    """
    run = experience(num_rollouts=4)
    run.buffer.add(3, 1, [response(9, reward=0.5)])
    plan = make_plan(run, 0)
    seeds = run.seeds(0, plan)
    assert len(seeds[-1]) == 3 and len(set(sum(seeds, []))) == 31
    assert run.seeds(1, plan) != seeds

    mixed = group_of(run, 3, [0.25, 0.5, 0.75], plan[-1].star)
    assert mixed.replayed == [True, False, False, False] and mixed.num_success == 1
    run.set_advantages([mixed])
    assert mixed.advantages.tolist() == [0, -0.25, 0, 0.25]
    with pytest.raises(ValueError, match="reward nan"):
        run.form_groups(plan, [[response(1, reward=np.nan)]] * 8)


def test_the_end_of_a_run_and_a_return():
    """A batch of fewer than B questions is never trained on.

    At steps 25, 50, ... a tenth of S goes back to the stream (Table 7).
    """
    run = experience(reinstate_every=25)
    for q in range(33):
        assert not run.is_exhausted
        run.buffer.retire(q)
    assert run.is_exhausted
    assert len(make_plan(run, 24)) == 7  # the rest of the epoch
    returned = ids(make_plan(run, 25))[:4]
    assert set(returned) == set(range(33)) - run.buffer.retired


def test_continuous_rewards_go_by_their_spread():
    """σ = 0, 0.25, 0.5 (K = 4) are buckets 0, 2, 4; all but 0 store what is above their means.

    Nothing retires. Where all groups spread alike, σ̃ = 0, and what teaches is in bucket 1.
    """
    run = experience(num_rollouts=4, difficulty="spread")
    rewards = [[1, 1, 1, 1], [0.2, 0.7, 0.2, 0.7], [0, 1, 0, 1]]
    run.store([group_of(run, q, row) for q, row in enumerate(rewards)])
    assert contents(run) == {1: (2, 2), 2: (4, 2)} and not run.buffer.retired
    assert all(t.reward > 0.6 for t in run.buffer.trajectories(1))
    run.store([group_of(run, 0, [0, 1, 0, 1])])
    assert run.buffer.buckets[1] == [0]


def test_masked_grpo():
    """Groups outside Eq. 14's closed range of k/K get advantage 0."""
    run = experience(alpha=[0.25, 0.75])
    groups = [group_of(run, k, grades(k, 8)) for k in range(9)]
    run.set_advantages(groups)
    taught = [g.question.id for g in groups if g.advantages.any()]
    assert taught == [2, 3, 4, 5, 6]


def test_mini_batches():
    """They lose no group, share the replayed ones equally, and go by seed and step."""
    run = experience(61, num_mini_batches=3)
    groups = [group_of(run, q, [1], response(1) if q < 31 else None) for q in range(61)]
    splits = [run.mini_batches(step, groups) for step in (0, 0, 1)]
    assert splits[0] == splits[1] != splits[2]
    assert sorted(g.question.id for part in splits[0] for g in part) == [*range(61)]
    shares = [sum(g.star is not None for g in part) for part in splits[0]]
    assert sorted(shares) == [10, 10, 11]


def test_a_resumed_run_plans_alike(tmp_path):
    """From state_dict and the buffer's file the next steps are the same."""
    knobs = {"trajectory_selection": "random", "reinstate_every": 5, "start_threshold": 0.2}
    runs = [experience(30, **knobs), experience(30, **knobs)]
    successes = 8, 7, 6, 5, 4, 3, 2, 0
    for step in range(3):
        take_step(runs[0], step, *successes)
    runs[0].buffer.save(tmp_path / "buffer")
    runs[1].load_state_dict(runs[0].state_dict(), tmp_path / "buffer")
    for step in range(3, 9):
        told = []
        for run in runs:
            plan = take_step(run, step, *successes)
            stars = [t.token_ids.tolist() for t in replayed(plan).values()]
            told.append((ids(plan), stars))
        assert told[0] == told[1]


def test_knobs():
    """Impossible ones are refused by a sentence with the name; ⌊0.29 · 100⌋ is 29 in floats too."""
    rows = [{"rho": 1.5}, {"rho": 0.1, "batch_size": 8}, {"mu": np.nan}, {"alpha": [0.8, 0.2]}]
    for knobs in rows:
        with pytest.raises(ValueError, match=next(iter(knobs))):
            Knobs(**knobs)
    assert Knobs(rho=0.29, batch_size=100).max_replayed == 29
