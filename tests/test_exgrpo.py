"""Experience management on scripted runs, with every outcome worked out by hand."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from buffer import Trajectory
from data import Question
from eval import means
from exgrpo import Experience, Group, Knobs, Plan
from policy import Policy
from runtime.metrics import step_metrics
from sampler import sample_seed
from verifier.worker import TAKEN

K = 8


def questions(n: int) -> list[Question]:
    return [
        Question(i, f"q{i}", np.array([1, 100 + i], dtype=np.int32), str(i), "test")
        for i in range(n)
    ]


def experience(n: int = 40, **knobs) -> Experience:
    """A run on n questions; replay starts at once unless the knobs say otherwise."""
    knobs = {"batch_size": min(n, 8), "start_threshold": -1.0} | knobs
    return Experience(Knobs(**{"batch_size": 32} | knobs), questions(n))


def alone(**knobs) -> Experience:
    """A run on question 0 alone, which is replayed once a response to it is stored."""
    return experience(1, batch_size=1, rho=1.0, num_mini_batches=1, **knobs)


def response(
    *token_ids: int, reward: float = 1.0, step: int = 0, finished: bool = True
) -> Trajectory:
    logprobs = -np.arange(1, len(token_ids) + 1, dtype=np.float32) / 8
    return Trajectory(np.array(token_ids, dtype=np.int32), logprobs, step, reward, finished)


def by_last_token(sequences) -> list[float]:
    """A response's last token is its entropy."""
    return [float(tokens[-1]) for _, tokens in sequences]


def make_plan(run: Experience, step: int, score=by_last_token) -> Plan:
    """Lines 4-18, as the loop has them."""
    drawn = run.draw(step)
    return run.plan(step, drawn, score(run.candidates(drawn)))


def answer(run: Experience, plan: Plan, successes) -> list[Group]:
    """A plan's groups, in which the first `successes(q)` new responses are right; none alike."""
    rollouts = []
    for q, seeds in zip(plan.question_ids, run.seeds(plan)):
        right = successes(q)
        new = [
            response(q, plan.step, i, reward=float(i < right), step=plan.step)
            for i in range(len(seeds))
        ]
        rollouts.append(new)
    return run.form_groups(plan, rollouts)


def take_step(run: Experience, step: int, successes) -> tuple[Plan, list[Group]]:
    plan = make_plan(run, step)
    groups = answer(run, plan, successes)
    run.store(plan, groups)
    return plan, groups


def store(run: Experience, question: int, k: int, *token_ids, step: int = 0) -> None:
    """Put responses of a question into E; by default one, of one token."""
    run.buffer.add(question, k, [response(*ids, step=step) for ids in token_ids or [(7,)]])


def stored(run: Experience, question: int) -> list[list[int]]:
    return [t.token_ids.tolist() for t in run.buffer.trajectories(question)]


# ---- the delayed start ---------------------------------------------------------------------------


def test_delayed_start_is_exact_and_latched():
    """A Pass@1 equal to the threshold does not start; one more success does, for good."""
    run = experience(batch_size=5, start_threshold=0.35)  # 14 of the 40 responses of a batch

    def first(total):  # `total` successes in a batch, at most 7 a question
        left = iter([7] * (total // 7) + [total % 7] + [0] * 5)
        return lambda q: next(left)

    plan, _ = take_step(run, 0, first(14))
    assert not run.started and plan.clip_eps == 0.2

    # The batch that exceeds it is still clipped and stores nothing.
    plan, _ = take_step(run, 1, first(15))
    assert run.started and plan.clip_eps == 0.2 and len(run.buffer) == 0

    plan, _ = take_step(run, 2, lambda q: 3)  # the next stores; E was empty when it was planned
    assert plan.clip_eps is None and not plan.stars and len(run.buffer) == 5

    # The one after that replays, and a Pass@1 near 0 changes nothing.
    plan, _ = take_step(run, 3, lambda q: 0)
    assert run.started and len(plan.stars) == 2 and plan.clip_eps is None


def test_the_start_counts_successes_not_rewards():
    """Rewards of 0.45 have a mean above 0.35 and no success among them: nothing starts."""
    run = experience(2, batch_size=2, num_mini_batches=1, start_threshold=0.35)
    continuous(run, 0, [0.45] * 8, [0.45] * 8)
    assert not run.started


@pytest.mark.parametrize(
    "before, after, started",
    [
        ({}, {"rho": 0.0}, False),
        ({}, {"start_threshold": 0.9}, True),
        ({"start_threshold": 0.9}, {}, True),
    ],
)
def test_resuming_with_another_rho_or_threshold(tmp_path, before, after, started):
    """ρ = 0 ends storing and brings the clip back, a start stays, a threshold below 0 starts."""
    old, new = experience(**before), experience(**after)
    old.buffer.save(tmp_path / "buffer")
    new.load_state_dict(old.state_dict(), tmp_path / "buffer")
    assert new.started is started and new.clip_eps_now == (None if started else 0.2)


@pytest.mark.parametrize(
    "knobs, clip_before, clip_after",
    [
        ({"clip_eps": 0.3}, 0.3, None),
        ({"clip": "on"}, 0.2, 0.2),
        ({"clip": "off"}, None, None),
        ({"rho": 0.0}, 0.2, 0.2),
    ],
)
def test_clip(knobs, clip_before, clip_after):
    """`auto` clips until replay starts, and always when ρ = 0; `on` and `off` do as they say."""
    run = experience(**{"start_threshold": 0.1} | knobs)
    assert [take_step(run, step, lambda q: 4)[0].clip_eps for step in (0, 1)] == [
        clip_before,
        clip_after,
    ]


def test_rho_zero_is_the_plain_baseline():
    """Nothing is stored, replayed or retired, whatever the Pass@1; `retire on` only retires."""
    run, retiring = experience(10, rho=0.0), experience(10, rho=0.0, retire="on")
    for step in range(5):
        plan, groups = take_step(run, step, lambda q: q % 9)
        assert len(plan.fresh) == 8 and not plan.stars and not any(g.star for g in groups)
        take_step(retiring, step, lambda q: q % 9)
    assert not run.started and len(run.buffer) == len(run.buffer.retired) == 0
    assert retiring.buffer.retired == {8} and len(retiring.buffer) == 0


# ---- the plan ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rho, batch_size, buffered, n",
    [
        (0.5, 8, 0, 0),
        (0.5, 8, 3, 3),
        (0.5, 7, 20, 3),
        (1.0, 8, 20, 8),
        (0.29, 100, 40, 29),  # 0.29 · 100 = 28.999... in floating point
    ],
)
def test_number_of_replayed_questions(rho, batch_size, buffered, n):
    """n = min(⌊ρB⌋, |E|), the rest fresh: B distinct questions, whatever is in E."""
    run = experience(120, rho=rho, batch_size=batch_size)
    for q in range(buffered):
        store(run, q, 1 + q % 7)
    plan = make_plan(run, 0)
    assert len(plan.stars) == n and len(plan.fresh) == batch_size - n
    assert len(set(plan.question_ids)) == batch_size and set(plan.stars) <= set(range(buffered))


def test_the_plan_depends_on_seed_step_and_buffer_only():
    """Equal histories plan alike, other seeds and steps do not."""

    def plans(seed):
        run, chosen = experience(seed=seed), []
        for step in range(6):
            plan, _ = take_step(run, step, lambda q, step=step: (q * 5 + step) % 9)
            replayed = [(q, t.token_ids.tolist()) for q, t in plan.stars.items()]
            chosen.append((plan.fresh, replayed))
        return chosen

    assert plans(3) == plans(3) != plans(4)
    run = experience()
    for q in range(40):
        store(run, q, 4)
    assert list(make_plan(run, 1).stars) != list(make_plan(run, 2).stars)


def test_a_plan_changes_nothing(tmp_path):
    """Two plans of a step are equal, and so is the state, though another was planned in between."""
    run = experience(60, reinstate_every=5)
    for q in range(12):
        store(run, q, 4, (5, q), (6, q))
    for q in range(30, 50):
        run.buffer.retire(q)
    take_step(run, 1, lambda q: 3)

    def state():
        run.buffer.save(tmp_path / "buffer")
        return run.state_dict(), (tmp_path / "buffer").read_bytes()

    before = state()
    first = make_plan(run, 5)
    another = make_plan(run, 10)
    assert first.reinstated and first != another
    assert make_plan(run, 5) == first
    assert state() == before
    run.store(first, answer(run, first, lambda q: 3))
    assert run.stream == first.stream and run.buffer.retired.isdisjoint(first.reinstated)


# ---- which questions, which trajectory -----------------------------------------------------------


def frequencies(**knobs) -> dict[int, float]:
    """Each bucket's share of 600 draws of one; bucket 4 holds one question, bucket 1 nine."""
    run = experience(rho=0.125, **knobs)
    for q in range(10):
        store(run, q, 4 if q == 0 else 1)
    drawn = Counter(run.buffer.bucket_of(*make_plan(run, step).stars) for step in range(600))
    return {k: n / 600 for k, n in drawn.items()}


def test_question_selection():
    """Gaussian draws go by the counts, 1 : exp(-9/2), and uniform ones by the sizes, 1 : 9."""
    gaussian, uniform = frequencies()[4], frequencies(question_selection="uniform")[4]
    # It is 0.989, and the standard error is 0.004.
    assert gaussian == pytest.approx(1 / (1 + np.exp(-4.5)), abs=0.02)
    assert uniform == pytest.approx(0.1, abs=0.05)  # standard error 0.012
    assert frequencies(sigma=2.0, mu=0.0)[1] == pytest.approx(1 / (1 + np.exp(-15 / 8)), abs=0.05)


class KnownScores(Policy):
    """A policy that is told its scores of stored responses: {token ids: (log-probs, entropies)}."""

    def __init__(self, known: dict):
        self.known = known

    def score(self, sequences):
        known = [self.known[tuple(tokens.tolist())] for _, tokens in sequences]
        return [tuple(np.array(values, dtype=np.float32) for values in scores) for scores in known]


# These are stored responses to one question, named by what they are lowest in.
SURE, UNSURE, LIKELY = (1,) * 20, (2,) * 3, (3,) * 6
KNOWN = {  # their log-probs and entropies, token by token
    SURE: ([-0.9] * 20, [0.10] * 20),  # mean entropy 0.10, total 2.0
    UNSURE: ([-0.8] * 3, [0.50] * 3),  # mean entropy 0.50, total 1.5
    LIKELY: ([-0.2] * 6, [0.40] * 6),  # mean entropy 0.40, total 2.4, NLL 0.2
}


def select(rule: str, score) -> tuple[int, ...]:
    run = experience(trajectory_selection=rule)
    store(run, 0, 4, *KNOWN)
    return tuple(make_plan(run, 0, score).stars[0].token_ids.tolist())


def test_lowest_mean_entropy_where_the_official_rule_errs():
    """Ours takes the lowest mean, the longest here; the official sum takes the short unsure one."""
    assert select("entropy", KnownScores(KNOWN).mean_entropy) == SURE
    assert select("official", KnownScores(KNOWN).mean_entropy) == UNSURE


def test_other_trajectory_selections():
    """highest_entropy and nll take the extreme of their score, random any candidate unscored."""
    policy = KnownScores(KNOWN)
    assert select("highest_entropy", policy.mean_entropy) == UNSURE
    assert select("nll", policy.mean_nll) == LIKELY
    run = experience(trajectory_selection="random")
    store(run, 0, 4, *KNOWN)
    assert run.candidates([0]) == []
    picks = Counter(tuple(make_plan(run, step).stars[0].token_ids.tolist()) for step in range(600))
    # The standard error is 0.019.
    assert all(picks[c] / 600 == pytest.approx(1 / 3, abs=0.08) for c in KNOWN)


def test_only_contested_choices_are_scored():
    """One stored response needs no score; the metrics have the means of those that do, by name."""
    run, asked = experience(), []
    store(run, 0, 4, (5, 3), (5, 1), (5, 2))
    store(run, 1, 4, (5, 9))

    def score(sequences):
        asked.extend((prompt.tolist(), tokens.tolist()) for prompt, tokens in sequences)
        return by_last_token(sequences)

    plan = make_plan(run, 0, score)
    assert experience().candidates([]) == []
    assert {q: t.token_ids.tolist() for q, t in plan.stars.items()} == {0: [5, 1], 1: [5, 9]}
    assert sorted(asked) == [([1, 100], [5, i]) for i in (1, 2, 3)]
    metrics = step_metrics(plan, answer(run, plan, lambda q: 1), run)
    assert metrics["replay/entropy_chosen"] == 1 and metrics["replay/entropy_candidates"] == 2
    # Of eight questions two have an o* beside the one new success that all have.
    assert (metrics["reward/pass_at_1"], metrics["reward/pass_at_1_fresh"]) == (10 / 64, 1 / 8)
    run.knobs.trajectory_selection = "official"  # two tokens each
    metrics = step_metrics(make_plan(run, 0, score), answer(run, plan, lambda q: 1), run)
    sums = metrics["replay/entropy_sum_chosen"], metrics["replay/entropy_sum_candidates"]
    assert sums == (2, 4) and "replay/entropy_chosen" not in metrics


# ---- seeds and groups ----------------------------------------------------------------------------


def test_seeds():
    """K seeds if fresh, K - 1 if replayed, of (run seed, step, question, index)."""
    run = experience(seed=5)
    for q in range(4):
        store(run, q, 4)
    plan = make_plan(run, 1)
    for q, seeds in zip(plan.question_ids, run.seeds(plan), strict=True):
        indices = range(1, K) if q in plan.stars else range(K)
        assert seeds == [sample_seed(5, 1, q, i) for i in indices]


def test_a_mixed_group_is_o_star_and_its_new_responses():
    """o* stands first as it was stored, counts in k, and shares one mean with K - 1 new ones."""
    run = experience(20)
    store(run, 3, 4, (9, 9, 9))
    plan = make_plan(run, 0)
    groups = answer(run, plan, lambda q: 2)
    mixed = next(g for g in groups if g.star)
    assert mixed.question.id == 3 and len(mixed.trajectories) == K and mixed.num_success == 3
    assert mixed.trajectories[0].token_ids.tolist() == [9, 9, 9]
    assert mixed.trajectories == [mixed.star, *mixed.new]
    assert mixed.trajectories[0].logprobs.tolist() == [-0.125, -0.25, -0.375]
    assert mixed.rewards.tolist() == [1, 1, 1, 0, 0, 0, 0, 0]

    mixed = run.with_advantages([mixed])[0]
    assert mixed.advantages.tolist() == [0.625] * 3 + [-0.375] * 5  # 1 - 3/8, 0 - 3/8


@pytest.mark.parametrize("new, named", [(K, "8 new"), (K - 2, "6 new")])
def test_a_group_of_another_size_is_refused(new, named):
    """K new responses beside an o*, or one too few, are told with the question and what is due."""
    run = alone()
    store(run, 0, 4)
    plan = make_plan(run, 0)
    with pytest.raises(ValueError, match=f"question 0: {named} responses, .* asks for 8, one"):
        run.form_groups(plan, [[response(1)] * new])


def test_a_malformed_response_forms_no_group():
    """One without a finite reward, or with log-probs above 0, is refused; a cut one trains."""
    run = experience(1, batch_size=1, rho=0.0, num_rollouts=2, num_mini_batches=1)
    plan = make_plan(run, 0)
    run.form_groups(plan, [[response(1), response(2, finished=False)]])
    lucky = response(2)
    lucky.logprobs[:] = 0.5
    for malformed in (response(), response(2, reward=np.nan), response(2, reward=np.inf), lucky):
        with pytest.raises(ValueError, match="a response needs"):
            run.form_groups(plan, [[response(1), malformed]])


@pytest.mark.parametrize("ids", [["a", "b"], [0, 0], [np.int64(0), np.int64(1)]])
def test_ids_that_are_no_distinct_ints_are_refused(ids):
    """Other ids would fail late: in the stream's order, in the buffer's file, or in silence."""
    with pytest.raises(ValueError, match="ids of questions must be ints, and no two the same"):
        Experience(Knobs(), [SimpleNamespace(id=id, prompt_ids=None) for id in ids])


# ---- what a group leaves in E --------------------------------------------------------------------


def replay_one(successes: int, **knobs) -> tuple[Experience, list[list[int]]]:
    """A run that has just replayed question 0, of bucket 4 with two responses; o* is (5, 1)."""
    run = alone(**knobs)
    store(run, 0, 4, (5, 1), (5, 2))
    plan, groups = take_step(run, 1, lambda q: successes)
    assert plan.stars[0].token_ids.tolist() == [5, 1] and groups[0].num_success == successes + 1
    return run, stored(run, 0)


@pytest.mark.parametrize(
    "successes, bucket, new",
    [
        (0, 1, 0),  # only o* itself is right: k = 1
        (2, 3, 2),
        (5, 6, 5),
        (3, 4, 3),
    ],
)
def test_a_replayed_group_moves_its_question(successes, bucket, new):
    """The latest k, with o*, is the bucket, and new successes are stored."""
    run, now = replay_one(successes)
    assert run.buffer.bucket_of(0) == bucket
    assert now == [[5, 1], [5, 2]] + [[0, 1, i] for i in range(new)]
    assert [t.step for t in run.buffer.trajectories(0)] == [0, 0] + [1] * new


def test_a_replayed_group_that_is_all_right_retires():
    """With o* and K - 1 new successes k is K, and the question's trajectories are dropped.

    With `retire off` it only leaves its bucket, so that it is not replayed as medium. It comes back
    with all it has when it fails again.
    """
    run, now = replay_one(7)
    assert run.buffer.retired == {0} and len(run.buffer) == 0 and now == []
    run, now = replay_one(7, retire="off")
    assert (
        not run.buffer.retired and not run.buffer.buckets and len(run.buffer) == 0 and len(now) == 2
    )
    plan, _ = take_step(run, 2, lambda q: 5)
    assert plan.fresh == [0] and run.buffer.bucket_of(0) == 5 and len(stored(run, 0)) == 7


@pytest.mark.parametrize(
    "k, threshold, bucket",
    [(0, -1.0, None), (1, -1.0, 1), (7, -1.0, 7), (8, -1.0, None), (3, 1.0, None), (8, 1.0, None)],
)
def test_what_a_fresh_group_stores(k, threshold, bucket):
    """0 < k < K stores all successes in bucket k once replay starts; k = K always retires."""
    run = alone(start_threshold=threshold)
    take_step(run, 0, lambda q: k)
    assert run.buffer.buckets == ({bucket: [0]} if bucket else {})
    assert stored(run, 0) == ([[0, 0, i] for i in range(k)] if bucket else [])
    assert run.buffer.retired == ({0} if k == 8 else set())


def test_a_response_that_was_cut_counts_and_is_not_stored():
    """A right one cut at L_max counts in k and is not in E, and cut ones alone store nothing."""
    run = experience(2, batch_size=2, num_mini_batches=1)
    plan = make_plan(run, 0)
    rows = [
        [response(q, i, reward=float(i < 3), finished=i > last) for i in range(8)]
        for q, last in zip(plan.question_ids, (0, 2))
    ]
    groups = run.form_groups(plan, rows)
    run.store(plan, groups)
    some, none = plan.fresh
    assert run.buffer.bucket_of(some) == 3 and stored(run, some) == [[some, 1], [some, 2]]
    assert none not in run.buffer.stored
    metrics = step_metrics(plan, groups, run)
    # A reward of the user's with one of these names would be lost.
    assert {name for name in metrics if name.startswith("reward/")} == {
        f"reward/{name}" for name in TAKEN
    }


def test_a_further_reward_is_a_mean_over_the_responses_that_have_it():
    """Of 4 responses 2 have `form`, 1 and 0, and one ran out of time: 0.5 of 2 in both places."""
    named = [{"form": 1.0}, {}, {"form": 0.0}, {"timeouts": 1.0}]
    rows = [[response(0, i) for i in range(4)]]
    for t, rewards in zip(rows[0], named):
        t.named_rewards = rewards
    run = experience(1, batch_size=1, num_rollouts=4, num_mini_batches=1, rho=0.0)
    plan = make_plan(run, 0)
    metrics = step_metrics(plan, run.form_groups(plan, rows), run)
    assert metrics["reward/form"] == 0.5 and metrics["reward/form/count"] == 2
    assert metrics["reward/timeouts"] == 0.25
    same = dict.fromkeys(("reward", "success", "length", "truncated", "timeout"), 1.0)
    records = [
        same | {"source": "s", "judged": {f"reward_{n}": v for n, v in r.items() if n == "form"}}
        for r in named
    ]
    validated = means(records)
    assert validated["reward_form/s"] == 0.5 and validated["reward_form/s/count"] == 2


def test_the_latest_count_wins_and_zero_changes_nothing():
    """Fresh draws with k = 2 and 6 move a buffered question, k = 0 leaves it with all it has."""
    run = alone()
    run.knobs.rho = 0.1  # too little for o*: the question comes by the stream alone
    buckets = []
    for step, k in enumerate((4, 2, 6, 0)):
        take_step(run, step, lambda q, k=k: k)
        buckets.append((run.buffer.bucket_of(0), len(stored(run, 0))))
    assert buckets == [(4, 4), (2, 6), (6, 12), (6, 12)]


def test_a_replayed_question_that_the_cap_pushed_out():
    """A question that new successes evicted stays out where its own group adds nothing."""
    run = experience(8, max_trajectories=4, rho=0.125)
    store(run, 0, 4)
    plan, _ = take_step(run, 1, lambda q: 0 if q == 0 else 4)
    assert (
        list(plan.stars) == [0] and 0 not in run.buffer.stored and run.buffer.num_trajectories == 4
    )


def test_reinstatement():
    """At steps 25, 50, ... a seeded tenth of S returns to the epoch, not to E (Table 7)."""

    def returned(seed):
        run, drawn = experience(400, reinstate_every=25, seed=seed), []
        for q in range(30):
            run.buffer.retire(q)
        for step in range(46):  # 25 batches of 8 before, 21 after: an epoch of 370 is nearly over
            plan, _ = take_step(run, step, lambda q: 0)
            drawn += plan.fresh
            assert len(run.buffer.retired) == (30 if step < 25 else 27)
        back = set(range(30)) - run.buffer.retired
        assert sorted(q for q in drawn + run.stream.queue if q in back) == sorted(back)  # once each
        assert (
            run.stream.epoch == 0 and len(run.buffer) == 0 and {q for q in drawn if q < 30} <= back
        )
        return back

    assert returned(0) == returned(0) != returned(1)


@pytest.mark.parametrize(
    "num_retired, num_left, every, back",
    [
        (17, 8, 10, 0),  # 8 are left, which is B
        (20, 5, 10, 3),  # B needs 3, a tenth would be 2
        (100, 7, 10, 10),  # B needs 1, and a tenth is more
        (18, 7, 0, None),  # none comes back: the run ends
    ],
)
def test_a_batch_is_never_smaller_than_B(num_retired, num_left, every, back):
    """As many retired questions return as B needs, at least a tenth; or the run ends."""
    run = experience(num_retired + num_left, reinstate_every=every)
    for q in range(num_retired):
        run.buffer.retire(q)
    if back is None:
        assert run.is_exhausted
        with pytest.raises(RuntimeError, match="fewer questions are left"):
            make_plan(run, 7)
    else:
        plan, _ = take_step(run, 7, lambda q: 0)  # 7 is no multiple of 10
        assert not run.is_exhausted and len(set(plan.question_ids)) == 8
        assert len(plan.reinstated) == num_retired - len(run.buffer.retired) == back


def test_fewer_questions_than_a_batch_are_refused():
    """The sentence names the knob."""
    experience(8, batch_size=8)
    with pytest.raises(ValueError, match="7 questions .* batch of 8: lower --batch_size"):
        experience(7, batch_size=8)


# ---- continuous rewards (Sec. 5.3) ---------------------------------------------------------------


def continuous(run: Experience, step: int, *rewards: list[float]) -> tuple[Plan, list[Group]]:
    plan = make_plan(run, step)
    rollouts = [
        [response(q, step, i, reward=r) for i, r in enumerate(row)]
        for q, row in zip(plan.question_ids, rewards)
    ]
    groups = run.form_groups(plan, rollouts)
    run.store(plan, groups)
    return plan, groups


def test_continuous_rewards_go_by_their_spread():
    """σ = 0, 0.25, 0.5 (K = 4) are buckets 0, 2, 4; all but 0 store what is above their means."""
    run = experience(3, num_rollouts=4, batch_size=3, difficulty="spread")
    plan, _ = continuous(run, 0, [1, 1, 1, 1], [0.2, 0.7, 0.2, 0.7], [0, 1, 0, 1])
    _, middle, widest = plan.fresh
    assert run.buffer.buckets == {2: [middle], 4: [widest]}
    for q in (middle, widest):
        assert stored(run, q) == [[q, 0, 1], [q, 0, 3]]
    assert not run.buffer.retired


@pytest.mark.parametrize("other", [[0, 1, 0, 1], [1, 1, 1, 1]], ids=["alike", "silent"])
def test_a_group_that_says_something_is_stored_whatever_the_others_do(other):
    """Where all groups spread alike, σ̃ = 0 and the bucket is 1; one alone has σ̃ = 1: bucket K."""
    run = experience(2, num_rollouts=4, batch_size=2, difficulty="spread")
    plan, _ = continuous(run, 0, [0, 1, 0, 1], other)
    first, second = plan.fresh
    alone = np.ptp(other) == 0
    assert run.buffer.buckets == ({4: [first]} if alone else {1: [first, second]})


def test_a_replayed_response_keeps_its_reward():
    """o* enters mean, spread and advantages with the reward it was stored with, not with 1."""
    run = experience(2, num_rollouts=4, batch_size=2, difficulty="spread", num_mini_batches=1)
    run.buffer.add(1, 2, [response(5, 1, reward=0.5)])
    _, groups = continuous(run, 0, [0, 0, 0, 0], [0.25, 0.5, 0.75])
    groups = run.with_advantages(groups)
    assert groups[1].rewards.tolist() == [0.5, 0.25, 0.5, 0.75]
    assert groups[1].advantages.tolist() == [0, -0.25, 0, 0.25]


def test_a_checkpoint_that_names_other_questions_is_refused(tmp_path):
    """Ids in the buffer, the retired set or the stream must be those of questions there are."""
    for spoil in (
        lambda run: store(run, 5, 4),
        lambda run: run.buffer.retire(7),
        lambda run: run.stream.queue.append(-1),
    ):
        run, resumed = experience(3), experience(3)
        run.buffer.save(tmp_path / "buffer")
        resumed.load_state_dict(run.state_dict(), tmp_path / "buffer")
        spoil(run)
        run.buffer.save(tmp_path / "buffer")
        with pytest.raises(ValueError, match="names question (5|7|-1), which this run has not"):
            resumed.load_state_dict(run.state_dict(), tmp_path / "buffer")


# ---- the batch of Eq. 4 --------------------------------------------------------------------------


def one_batch(replayed: int = 4, batch_size: int = 8, **knobs):
    run = experience(batch_size=batch_size, **knobs)
    for q in range(replayed):
        store(run, q, 4)
    return run, answer(run, make_plan(run, 0), lambda q: q % 9)


def ids(part: list[Group]) -> list[int]:
    return [g.question.id for g in part]


@pytest.mark.parametrize("replayed, batch_size, parts", [(3, 8, 2), (0, 8, 2), (5, 10, 3)])
def test_mini_batches_are_fair_and_lose_nothing(replayed, batch_size, parts):
    """Sizes and numbers of replayed groups differ by at most one, and every group is in one."""
    run, groups = one_batch(replayed, batch_size, num_mini_batches=parts)
    split = run.mini_batches(0, groups)
    assert len(split) == parts
    assert sorted(q for part in split for q in ids(part)) == sorted(ids(groups))
    assert np.ptp([len(part) for part in split]) <= 1
    assert np.ptp([sum(g.star is not None for g in part) for part in split]) <= 1


def test_mini_batches_are_shuffled_by_seed_and_step():
    """The same seed and step give the same split, and others give others."""
    run, groups = one_batch()
    splits = set()
    for seed in range(5):
        run.knobs.seed = seed
        for step in (0, 1, 0):
            splits.add(str([ids(part) for part in run.mini_batches(step, groups)]))
    assert len(splits) == 10


def test_masked_grpo():
    """Groups outside Eq. 14's closed interval of k/K stay in N, with advantage 0."""
    run = experience(9, batch_size=9, num_mini_batches=1, rho=0.0, alpha_low=0.25, alpha_high=0.75)
    groups = answer(run, make_plan(run, 0), lambda q: q)  # question q has k = q
    (part,) = run.mini_batches(0, run.with_advantages(groups))
    assert len(part) == 9 and {g.question.id for g in part if g.advantages.any()} == {2, 3, 4, 5, 6}


def test_advantages_with_standard_deviation():
    """`normalize_std` divides by the group's standard deviation (GRPO)."""
    run = alone(normalize_std=True)
    groups = answer(run, make_plan(run, 0), lambda q: 4)
    std = np.sqrt(8 * 0.5**2 / 7)
    groups = run.with_advantages(groups)
    assert groups[0].advantages.tolist() == pytest.approx([0.5 / std] * 4 + [-0.5 / std] * 4)
