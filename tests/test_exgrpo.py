"""Experience management on scripted runs, with every outcome worked out by hand."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

from buffer import Trajectory
from data import Question
from eval import means
from exgrpo import Experience, Group, Knobs, Plan
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
    knobs = {"batch_size": min(n, 8), "num_mini_batches": 1, "start_threshold": -1.0} | knobs
    return Experience(Knobs(**knobs), questions(n))


def alone(**knobs) -> Experience:
    """A run on question 0 alone, which is replayed once a response to it is stored."""
    return experience(1, rho=1.0, **knobs)


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


def form_groups(run: Experience, plan: Plan, rewards: list[list[float]]) -> list[Group]:
    """A plan's groups with these rewards of new responses, none of which are alike."""
    rollouts = []
    for q, row in zip(plan.question_ids, rewards):
        new = [response(q, plan.step, i, reward=r, step=plan.step) for i, r in enumerate(row)]
        rollouts.append(new)
    return run.form_groups(plan, rollouts)


def answer(run: Experience, plan: Plan, successes) -> list[Group]:
    """A plan's groups, in which the first `successes(q)` new responses are right."""
    rewards = []
    for q, seeds in zip(plan.question_ids, run.seeds(plan)):
        right = successes(q)
        rewards.append([float(i < right) for i in range(len(seeds))])
    return form_groups(run, plan, rewards)


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
    run = experience(2, start_threshold=0.35)
    continuous(run, [0.45] * 8, [0.45] * 8)
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


def test_clip_can_be_set():
    """`on` clips by ε after the start, too, and `off` not even before it."""
    assert experience(clip="on", clip_eps=0.3).clip_eps_now == 0.3
    assert experience(clip="off", start_threshold=0.9).clip_eps_now is None


def test_rho_zero_is_the_plain_baseline():
    """Nothing is stored, replayed or retired, whatever the Pass@1; `retire on` only retires."""
    run, retiring = experience(10, rho=0.0), experience(10, rho=0.0, retire="on")
    for step in range(5):
        plan, _ = take_step(run, step, lambda q: q % 9)
        assert len(plan.fresh) == 8 and not plan.stars
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

    def planned(seed, step):
        run = experience(seed=seed, trajectory_selection="random")
        for q in range(40):
            store(run, q, 4, (5,), (6,))
        plan = make_plan(run, step)
        return plan.fresh, {q: t.token_ids.tolist() for q, t in plan.stars.items()}

    first = planned(3, 1)
    assert first == planned(3, 1)
    for other in (planned(4, 1), planned(3, 2)):
        assert first[0] != other[0] and first[1] != other[1]


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

    before, first, another = state(), make_plan(run, 5), make_plan(run, 10)
    assert first.reinstated and first != another
    assert make_plan(run, 5) == first and state() == before
    run.store(first, answer(run, first, lambda q: 3))
    assert run.stream == first.stream and run.buffer.retired.isdisjoint(first.reinstated)


# ---- which questions, which trajectory -----------------------------------------------------------


def frequencies(**knobs) -> dict[int, float]:
    """Each bucket's share of 600 draws of one; bucket 4 holds one question, bucket 1 nine."""
    run = experience(rho=0.125, **knobs)
    for q in range(10):
        store(run, q, 4 if q == 0 else 1)
    drawn = Counter(run.buffer.bucket_of(*make_plan(run, step).stars) for step in range(300))
    return {k: n / 300 for k, n in drawn.items()}


def test_question_selection():
    """Gaussian draws go by the counts, 1 : exp(-9/2), and uniform ones by the sizes, 1 : 9."""
    gaussian, uniform = frequencies()[4], frequencies(question_selection="uniform")[4]
    # It is 0.989, and the standard error is 0.006.
    assert gaussian == pytest.approx(1 / (1 + np.exp(-4.5)), abs=0.02)
    assert uniform == pytest.approx(0.1, abs=0.05)  # standard error 0.017
    assert frequencies(sigma=2.0, mu=0.0)[1] == pytest.approx(1 / (1 + np.exp(-15 / 8)), abs=0.05)


MEAN_ENTROPIES, NLLS = [0.1, 0.5, 0.4], [0.9, 0.8, 0.2]  # of 20, 3 and 6 tokens


@pytest.mark.parametrize(
    "rule, scores, place",
    [
        ("entropy", MEAN_ENTROPIES, 0),
        ("official", MEAN_ENTROPIES, 1),
        ("highest_entropy", MEAN_ENTROPIES, 1),
        ("nll", NLLS, 2),
    ],
)
def test_o_star_by_each_rule(rule, scores, place):
    """Ours has the lowest mean, the longest here; the official sum takes the short unsure one."""
    run = experience(trajectory_selection=rule)
    responses = [(1,) * 20, (2,) * 3, (3,) * 6]
    store(run, 0, 4, *responses)
    plan = make_plan(run, 0, lambda _: scores)
    assert tuple(plan.stars[0].token_ids) == responses[place]


def test_random_takes_any_response_unscored():
    """Each of three is o* a third of the time, and none is a candidate to be scored."""
    run = experience(trajectory_selection="random")
    store(run, 0, 4, (5,), (6,), (7,))
    assert run.candidates([0]) == []
    picks = Counter(make_plan(run, step).stars[0].token_ids[0] for step in range(600))
    # The standard error is 0.019.
    assert all(picks[token] / 600 == pytest.approx(1 / 3, abs=0.08) for token in (5, 6, 7))


def test_only_contested_choices_are_scored():
    """One stored response needs no score; the metrics have the means of those that do, by name."""
    run, asked = experience(), []
    store(run, 0, 4, (5, 3), (5, 1), (5, 2))
    store(run, 1, 4, (5, 9))

    def score(sequences):
        asked.extend((prompt.tolist(), tokens.tolist()) for prompt, tokens in sequences)
        return by_last_token(sequences)

    plan = make_plan(run, 0, score)
    assert {q: t.token_ids.tolist() for q, t in plan.stars.items()} == {0: [5, 1], 1: [5, 9]}
    assert sorted(asked) == [([1, 100], [5, i]) for i in (1, 2, 3)]
    metrics = step_metrics(plan, answer(run, plan, lambda q: 1), run)
    assert metrics["replay/entropy_chosen"] == 1 and metrics["replay/entropy_candidates"] == 2
    # Of eight questions two have an o* beside the one new success that all have.
    assert (metrics["reward/pass_at_1"], metrics["reward/pass_at_1_fresh"]) == (10 / 64, 1 / 8)
    run.knobs.trajectory_selection = "official"  # two tokens each
    metrics = step_metrics(make_plan(run, 0, score), answer(run, plan, lambda q: 1), run)
    assert metrics["replay/entropy_sum_chosen"] == 2 and "replay/entropy_chosen" not in metrics


# ---- seeds and groups ----------------------------------------------------------------------------


def test_a_mixed_group_is_o_star_and_its_new_responses():
    """o* stands first as it was stored, counts in k, and shares one mean with K - 1 new ones.

    Their seeds are those of (run seed, step, question, place). `normalize_std` divides by the
    group's standard deviation (GRPO).
    """
    run = experience(seed=5)
    store(run, 3, 4, (9, 9, 9))
    plan = make_plan(run, 1)
    of_question = dict(zip(plan.question_ids, run.seeds(plan), strict=True))
    for q, seeds in of_question.items():
        assert seeds == [sample_seed(5, 1, q, i) for i in range(q == 3, K)]
    (mixed,) = [g for g in answer(run, plan, lambda q: 2) if g.star]
    assert mixed.question.id == 3 and len(mixed.trajectories) == K and mixed.num_success == 3
    assert mixed.trajectories[0].token_ids.tolist() == [9, 9, 9]
    assert mixed.trajectories[0].logprobs.tolist() == [-0.125, -0.25, -0.375]
    assert mixed.rewards.tolist() == [1, 1, 1, 0, 0, 0, 0, 0]

    by_hand = [0.625] * 3 + [-0.375] * 5  # 1 - 3/8, 0 - 3/8
    assert run.with_advantages([mixed])[0].advantages.tolist() == by_hand
    run.knobs.normalize_std = True
    std = np.sqrt((3 * 0.625**2 + 5 * 0.375**2) / 7)
    assert run.with_advantages([mixed])[0].advantages == pytest.approx(np.array(by_hand) / std)


@pytest.mark.parametrize("new, named", [(K, "8 new"), (K - 2, "6 new")])
def test_a_group_of_another_size_is_refused(new, named):
    """K new responses beside an o*, or one too few, are told with the question and what is due."""
    run = alone()
    store(run, 0, 4)
    plan = make_plan(run, 0)
    with pytest.raises(ValueError, match=f"question 0: {named} responses, .* asks for 8, one"):
        run.form_groups(plan, [[response(1)] * new])


def test_a_malformed_response_forms_no_group():
    """One without tokens or without a finite reward is refused; a cut one trains."""
    run = experience(1, rho=0.0, num_rollouts=2)
    plan = make_plan(run, 0)
    run.form_groups(plan, [[response(1), response(2, finished=False)]])
    for malformed in (response(), response(2, reward=np.nan), response(2, reward=np.inf)):
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
    [(0, 1, 0), (2, 3, 2), (5, 6, 5), (3, 4, 3)],  # in the first only o* itself is right
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
    assert not run.buffer.retired and not run.buffer.buckets and len(now) == 2
    plan, _ = take_step(run, 2, lambda q: 5)
    assert plan.fresh == [0] and run.buffer.bucket_of(0) == 5 and len(stored(run, 0)) == 7


@pytest.mark.parametrize("threshold", [-1.0, 1.0])
@pytest.mark.parametrize("k", [0, 1, 7, 8])
def test_what_a_fresh_group_stores(k, threshold):
    """0 < k < K stores all successes in bucket k once replay starts; k = K always retires."""
    run = alone(start_threshold=threshold)
    take_step(run, 0, lambda q: k)
    new = range(k if k < K and threshold < 0 else 0)
    assert run.buffer.buckets == ({k: [0]} if new else {})
    assert stored(run, 0) == [[0, 0, i] for i in new]
    assert run.buffer.retired == ({0} if k == K else set())


def test_a_response_that_was_cut_counts_and_is_not_stored():
    """A right one cut at L_max counts in k and is not in E, and cut ones alone store nothing."""
    run = experience(2)
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
    """Of 4 responses 2 have `form`, 1 and 0, and one ran out of time: 0.5 of 2, also validated."""
    rows = [[response(0, i) for i in range(4)]]
    for t, form in zip(rows[0], (1.0, 0.0)):
        t.named_rewards = {"form": form}
    rows[0][3].named_rewards = {"timeouts": 1.0}
    run = experience(1, num_rollouts=4, rho=0.0)
    plan = make_plan(run, 0)
    metrics = step_metrics(plan, run.form_groups(plan, rows), run)
    assert metrics["reward/form"] == 0.5 and metrics["reward/form/count"] == 2
    assert metrics["reward/timeouts"] == 0.25
    same = dict.fromkeys(("reward", "success", "length", "truncated", "timeout"), 1.0)
    judged = {"reward_form": 1.0}, {}, {"reward_form": 0.0}
    validated = means([same | {"source": "s", "judged": values} for values in judged])
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
    assert [*plan.stars] == [0] and 0 not in run.buffer.stored
    assert run.buffer.num_trajectories == 4


def test_reinstatement():
    """At steps 25, 50, ... a seeded tenth of S returns to the epoch, not to E (Table 7)."""

    def returned(seed):
        run, drawn = experience(reinstate_every=25, seed=seed), []
        for q in range(30):
            run.buffer.retire(q)
        for step in (0, 24, 25, 26):
            plan, _ = take_step(run, step, lambda q: 0)
            drawn += plan.fresh
            assert len(run.buffer.retired) == (30 if step < 25 else 27)
        back = set(range(30)) - run.buffer.retired
        assert back <= {*drawn, *run.stream.queue} and len(run.buffer) == 0
        return back

    assert returned(0) == returned(0) != returned(1)


@pytest.mark.parametrize(
    "num_retired, num_left, back",
    [
        (17, 8, 0),  # 8 are left, which is B
        (20, 5, 3),  # B needs 3, a tenth would be 2
        (100, 7, 10),  # B needs 1, and a tenth is more
    ],
)
def test_a_batch_is_never_smaller_than_B(num_retired, num_left, back):
    """As many retired questions return as B needs, at least a tenth; or the run ends."""
    run = experience(num_retired + num_left, reinstate_every=10)
    for q in range(num_retired):
        run.buffer.retire(q)
    plan, _ = take_step(run, 7, lambda q: 0)  # 7 is no multiple of 10
    assert not run.is_exhausted and len(set(plan.question_ids)) == 8
    assert len(plan.reinstated) == num_retired - len(run.buffer.retired) == back
    ends = experience(8)
    ends.buffer.retire(0)
    assert ends.is_exhausted
    with pytest.raises(RuntimeError, match="fewer questions are left"):
        make_plan(ends, 0)


def test_fewer_questions_than_a_batch_are_refused():
    """The sentence names the knob."""
    with pytest.raises(ValueError, match="7 questions .* batch of 8: lower --batch_size"):
        experience(7, batch_size=8)


# ---- continuous rewards (Sec. 5.3) ---------------------------------------------------------------


def continuous(run: Experience, *rewards: list[float]) -> tuple[Plan, list[Group]]:
    plan = make_plan(run, 0)
    groups = form_groups(run, plan, rewards)
    run.store(plan, groups)
    return plan, groups


def test_continuous_rewards_go_by_their_spread():
    """σ = 0, 0.25, 0.5 (K = 4) are buckets 0, 2, 4; all but 0 store what is above their means.

    Where all groups spread alike, σ̃ = 0, and what says something is in bucket 1.
    """
    run = experience(3, num_rollouts=4, difficulty="spread")
    plan, _ = continuous(run, [1, 1, 1, 1], [0.2, 0.7, 0.2, 0.7], [0, 1, 0, 1])
    _, middle, widest = plan.fresh
    assert run.buffer.buckets == {2: [middle], 4: [widest]} and not run.buffer.retired
    for q in (middle, widest):
        assert stored(run, q) == [[q, 0, 1], [q, 0, 3]]
    alike = experience(2, num_rollouts=4, difficulty="spread")
    plan, _ = continuous(alike, [0, 1, 0, 1], [0, 1, 0, 1])
    assert alike.buffer.buckets == {1: plan.fresh}


def test_a_replayed_response_keeps_its_reward():
    """o* enters mean, spread and advantages with the reward it was stored with, not with 1."""
    run = experience(2, num_rollouts=4, difficulty="spread")
    run.buffer.add(1, 2, [response(5, 1, reward=0.5)])
    _, groups = continuous(run, [0, 0, 0, 0], [0.25, 0.5, 0.75])
    groups = run.with_advantages(groups)
    assert groups[1].rewards.tolist() == [0.5, 0.25, 0.5, 0.75]
    assert groups[1].advantages.tolist() == [0, -0.25, 0, 0.25]


def test_a_checkpoint_that_names_other_questions_is_refused(tmp_path):
    """Ids in the buffer, the retired set or the stream must be those of questions there are."""
    spoilers = [
        lambda run: store(run, 5, 4),
        lambda run: run.buffer.retire(7),
        lambda run: run.stream.queue.append(-1),
    ]
    for spoil in spoilers:
        run = experience(3)
        spoil(run)
        run.buffer.save(tmp_path / "buffer")
        with pytest.raises(ValueError, match="names question (5|7|-1), which this run has not"):
            experience(3).load_state_dict(run.state_dict(), tmp_path / "buffer")


# ---- the batch of Eq. 4 --------------------------------------------------------------------------


@pytest.mark.parametrize("replayed, batch_size, parts", [(3, 8, 2), (0, 8, 2), (5, 10, 3)])
def test_mini_batches_are_fair_and_lose_nothing(replayed, batch_size, parts):
    """Sizes and numbers of replayed groups differ by at most one, and every group is in one."""
    run = experience(batch_size=batch_size, num_mini_batches=parts)
    for q in range(replayed):
        store(run, q, 4)
    plan = make_plan(run, 0)
    split = run.mini_batches(0, answer(run, plan, lambda q: 1))
    assert len(split) == parts
    assert sorted(g.question.id for part in split for g in part) == sorted(plan.question_ids)
    for sizes in ([len(part) for part in split], [sum(bool(g.star) for g in p) for p in split]):
        assert np.ptp(sizes) <= 1


def test_mini_batches_are_shuffled_by_seed_and_step():
    """The same seed and step give the same split, and others give others."""
    run, splits = experience(num_mini_batches=2), set()
    groups = answer(run, make_plan(run, 0), lambda q: 1)
    for run.knobs.seed in range(5):
        for step in (0, 1, 0):
            parts = run.mini_batches(step, groups)
            splits.add(str([[g.question.id for g in part] for part in parts]))
    assert len(splits) == 10


def test_masked_grpo():
    """Groups outside Eq. 14's closed interval of k/K stay in N, with advantage 0."""
    run = experience(9, batch_size=9, rho=0.0, alpha_low=0.25, alpha_high=0.75)
    groups = answer(run, make_plan(run, 0), lambda q: q)  # question q has k = q
    (part,) = run.mini_batches(0, run.with_advantages(groups))
    assert len(part) == 9 and {g.question.id for g in part if g.advantages.any()} == {2, 3, 4, 5, 6}
