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
    """Questions 10 to 12 in two buckets, 13 in none any more, 99 and 7 retired."""
    replay = ReplayBuffer()
    for q, k in [(10, 4), (13, 7), (11, 2), (12, 4)]:
        replay.add(q, k, [response(1, q), response(2, 3, q, step=5)])
    replay.add(13, 0, [])
    for q in (99, 7):
        replay.retire(q)
    return replay


def test_the_latest_count_is_the_bucket():
    """A question moves with its k; 0 keeps its responses but takes it out of the draw."""
    replay = example()
    assert replay.buckets == {4: [10, 12], 2: [11]} and len(replay) == 3
    replay.add(12, 2, [])
    replay.add(13, 2, [response(8)])
    assert replay.buckets == {4: [10], 2: [13, 11, 12]}
    assert replay.num_trajectories == 9


def test_equal_tokens_replace_what_was_stored():
    """A new response with the tokens of a stored one leaves its own log-probs and step."""
    replay = ReplayBuffer()
    replay.add(3, 1, [response(5, 6)])
    replay.add(3, 1, [response(5, 6, step=9, logprob=-0.25), response(5)])
    replaced, _ = replay.trajectories(3)
    assert replaced.step == 9 and replaced.logprobs.tolist() == [-0.25, -0.25]


def test_retire_and_reinstate():
    """A retired question leaves E, and comes back empty; before that nothing can be added."""
    replay = example()
    replay.retire(11)
    assert replay.retired == {7, 11, 99} and replay.buckets == {4: [10, 12]}
    with pytest.raises(ValueError, match="question 11 is retired"):
        replay.add(11, 3, [response(5)])
    replay.reinstate([11, 7])
    replay.add(11, 3, [response(5)])
    assert replay.retired == {99} and len(replay.trajectories(11)) == 1


@pytest.mark.parametrize("build", [ReplayBuffer, example])
def test_save_and_load_give_equal_draws(build, tmp_path):
    """Contents, orders and draws are those of before, also after a further change of both."""
    before = build()
    before.save(tmp_path / "buffer")
    after = ReplayBuffer.load(tmp_path / "buffer")
    assert contents(after) == contents(before) and after.retired == before.retired
    draws = []
    for replay in (before, after):
        replay.add(13, 4, [response(6)])
        rng = np.random.default_rng(0)
        draws.append([sample_questions(replay.buckets, 3, 8, rng) for _ in range(20)])
    assert draws[0] == draws[1]


def test_malformed_responses_are_refused():
    """Ids and log-probs of other lengths, no reward, no token, a log-prob above 0."""
    malformed = [
        Trajectory(np.int32([1, 2]), np.float32([-1]), reward=1.0),
        Trajectory(np.int32([1]), np.float32([-1])),  # not graded
        response(),
        response(1, logprob=0.5),
    ]
    for bad in malformed:
        with pytest.raises(ValueError, match="a response needs"):
            bad.check()
