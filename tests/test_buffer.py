"""The replay buffer: what is kept, in which bucket, and equal draws after save and load."""

import numpy as np
import pytest

from buffer import ReplayBuffer, Trajectory
from sampler import sample_questions


def response(*tokens, step=0, reward=1.0, logprob=-0.5):
    """A trajectory with these tokens, all of one log-prob."""
    logprobs = np.full(len(tokens), logprob, np.float32)
    return Trajectory(np.array(tokens, np.int32), logprobs, step, reward)


def contents(replay):
    """All that is stored, in its order, as plain values."""
    rows = []
    for q in replay.stored:
        for t in replay.trajectories(q):
            rows.append((q, t.token_ids.tolist(), t.logprobs.tolist(), t.step, t.reward))
    return rows


def example():
    """Questions 10 to 13 in two buckets, 14 in none though stored, 99 and 7 retired."""
    replay = ReplayBuffer()
    for q, k in [(10, 4), (11, 2), (12, 4), (13, 4), (14, 7)]:
        replay.add(q, k, [response(1, q), response(2, 3, q, step=5, reward=0.9)])
    replay.shelve(14)
    replay.retire(99)
    replay.retire(7)
    return replay


def test_the_latest_count_is_the_bucket():
    """A question moves with its k; `shelve` takes it out with its responses kept, `add` back in."""
    replay = example()
    assert replay.buckets == {4: [10, 12, 13], 2: [11]}
    assert (len(replay), replay.num_trajectories) == (4, 10)
    replay.add(12, 2, [])
    replay.add(14, 2, [response(8)])
    assert replay.buckets == {4: [10, 13], 2: [11, 12, 14]}
    assert (len(replay), replay.num_trajectories) == (5, 11)


def test_equal_tokens_replace_what_was_stored():
    """A new response with the tokens of a stored one leaves its own log-probs and step."""
    replay = ReplayBuffer()
    replay.add(3, 1, [response(5, 6), response(5)])
    replay.add(3, 1, [response(5, 6, step=9, logprob=-0.25)])
    assert contents(replay) == [(3, [5, 6], [-0.25, -0.25], 9, 1.0), (3, [5], [-0.5], 0, 1.0)]


def test_retire_drops_and_reinstate_brings_back_nothing():
    """A retired question leaves E, and cannot be added to before it is reinstated."""
    replay = example()
    replay.retire(10)
    assert replay.retired == {7, 10, 99} and replay.trajectories(10) == []
    assert 10 not in replay.buckets[4]
    with pytest.raises(ValueError, match="question 10 is retired"):
        replay.add(10, 3, [response(5)])
    replay.reinstate([10, 7])
    assert replay.retired == {99} and len(replay) == 3
    replay.add(10, 3, [response(5)])
    assert replay.buckets[3] == [10]


@pytest.mark.parametrize("build", [ReplayBuffer, example])
def test_save_and_load_give_equal_draws(build, tmp_path):
    """All values and orders are those of before, and so are the draws, with equal later changes."""
    before = build()
    before.save(tmp_path / "buffer")
    after = ReplayBuffer.load(tmp_path / "buffer")
    draws = []
    for replay in (before, after):
        replay.add(14, 4, [response(6)])
        rng = np.random.default_rng(0)
        draws.append([sample_questions(replay.buckets, 3, 8, rng) for _ in range(20)])
    assert draws[0] == draws[1]
    assert contents(after) == contents(before)
    assert list(after.buckets.items()) == list(before.buckets.items())
    assert after.retired == before.retired


def test_malformed_responses_are_refused():
    """Nothing is taken, not even the good response beside a bad one."""
    one = np.int32([1])
    malformed = [
        Trajectory(np.int32([1, 2]), np.float32([-1]), reward=1.0),
        Trajectory(np.int64([1]), np.float32([-1]), reward=1.0),
        Trajectory(one, np.float64([-1]), reward=1.0),
        Trajectory(one[None], np.float32([[-1]]), reward=1.0),
        Trajectory(one, np.float32([-1])),  # not graded
        response(),
        response(1, logprob=np.nan),
        response(1, logprob=0.5),
        response(1, reward=np.inf),
    ]
    replay = example()
    for bad in malformed:
        with pytest.raises(ValueError, match="a response needs"):
            replay.add(10, 5, [response(42), bad])
    assert contents(replay) == contents(example()) and replay.buckets == example().buckets
