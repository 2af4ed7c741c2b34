"""The replay buffer: what is kept, in which bucket, at what price in memory (paper Sec. 4.1)."""

import tracemalloc

import numpy as np
import pytest

from buffer import ReplayBuffer, Trajectory


def response(*tokens, step=0, logprob=-0.5):
    """A trajectory with these token ids; its log-probs are logprob, 2 logprob, 3 logprob, ..."""
    logprobs = np.arange(1, len(tokens) + 1, dtype=np.float32) * np.float32(logprob)
    return Trajectory(np.array(tokens, np.int32), logprobs, step)


def contents(replay, question_id):
    """What is stored of a question, as plain lists: (tokens, log-probs, step)."""
    return [(t.token_ids.tolist(), t.logprobs.tolist(), t.step) for t in replay.trajectories(question_id)]


def buckets(replay):
    return {k: list(ids) for k, ids in replay.buckets.items()}


def example():
    """Five questions in three buckets, two retired."""
    replay = ReplayBuffer()
    for question_id, k in [(10, 4), (11, 4), (12, 4), (13, 2), (14, 7)]:
        replay.add(question_id, k, [response(1, question_id), response(2, 3, question_id, step=1)])
    replay.retire(99)
    replay.retire(7)
    return replay


# ---- what is kept ----


def test_the_latest_count_wins():
    """A question moves to the bucket of its newest count and keeps its responses; empty buckets disappear."""
    replay = example()
    replay.add(13, 5, [response(9)])
    replay.add(14, 4, [])
    assert buckets(replay) == {4: [10, 11, 12, 14], 5: [13]}
    assert (replay.num_success(13), replay.num_success(14), len(replay)) == (5, 4, 5)
    assert [tokens for tokens, _, _ in contents(replay, 13)] == [[1, 13], [2, 3, 13], [9]]


def test_leaving_a_bucket_costs_one_move():
    """The last of a bucket takes the place of the one that leaves; nobody else moves."""
    replay = example()
    replay.add(10, 3, [])
    assert buckets(replay) == {4: [12, 11], 3: [10], 2: [13], 7: [14]}
    replay.add(10, 4, [])
    assert buckets(replay)[4] == [12, 11, 10]


def test_stored_values_come_back_bit_for_bit():
    """Token ids, log-probs and step are what was added, as int32 and float32 of one length, read-only."""
    replay, logprobs = ReplayBuffer(), np.float32([-1e-7, -33.25, 0.0])
    replay.add(np.int64(3), 1, [Trajectory(np.array([0, 151_645, 2**31 - 1]), logprobs, np.int64(17))])
    (stored,) = replay.trajectories(3)
    assert stored.token_ids.dtype == np.int32 and stored.token_ids.tolist() == [0, 151_645, 2**31 - 1]
    assert stored.logprobs.dtype == np.float32 and stored.logprobs.tobytes() == logprobs.tobytes()
    assert stored.step == 17
    with pytest.raises(ValueError):
        stored.token_ids[0] = 1


def test_the_caller_may_reuse_its_arrays():
    """The buffer copies what it is given."""
    replay, given = ReplayBuffer(), response(1, 2)
    replay.add(3, 1, [given])
    given.token_ids[:] = 8
    given.logprobs[:] = 8
    assert contents(replay, 3) == [([1, 2], [-0.5, -1.0], 0)]


def test_the_same_tokens_again_replace_the_old_ones():
    """Newer log-probs and step win, also inside one add; a prefix is another response."""
    replay = ReplayBuffer()
    replay.add(3, 1, [response(1, 2), response(5)])
    replay.add(3, 2, [response(1), response(1, 2, step=4, logprob=-2), response(1, step=5)])
    assert contents(replay, 3) == [([5], [-0.5], 0), ([1, 2], [-2, -4], 4), ([1], [-0.5], 5)]
    assert (replay.num_trajectories, replay.nbytes) == (3, 4 * 8)
    replay.add(4, 2, [response(1, 2)])
    assert replay.num_trajectories == 4


def test_a_retired_question_leaves_and_stays_out():
    """Retiring drops the trajectories and refuses new ones; reinstating restores nothing, but allows new."""
    replay = example()
    replay.retire(11)
    replay.retire(11)
    assert set(replay.retired) == {99, 7, 11} and 11 not in replay and replay.trajectories(11) == []
    assert buckets(replay)[4] == [10, 12] and replay.num_trajectories == 8
    with pytest.raises(ValueError, match="question 11 is retired"):
        replay.add(11, 4, [response(1)])
    replay.reinstate([11, 99])
    assert set(replay.retired) == {7} and 11 not in replay and replay.num_trajectories == 8
    replay.add(11, 1, [response(1)])
    assert buckets(replay)[1] == [11]


def test_only_retired_questions_can_be_reinstated():
    """An id that is not retired is an error that changes nothing."""
    replay = example()
    with pytest.raises(ValueError, match=r"not retired: \[10\]"):
        replay.reinstate([99, 10])
    assert set(replay.retired) == {99, 7}


def test_a_cap_keeps_the_newest_of_the_whole_buffer():
    """Over the cap the oldest goes, wherever it is; a question left with none leaves; stored anew is new."""
    replay = ReplayBuffer(max_trajectories=3)
    replay.add(1, 4, [response(1, step=1)])
    replay.add(2, 4, [response(1, step=2), response(2, step=2)])
    replay.add(1, 4, [response(1, step=3)])  # the oldest, renewed
    replay.add(3, 4, [response(1, step=4)])
    assert contents(replay, 1) == [([1], [-0.5], 3)]
    assert contents(replay, 2) == [([2], [-0.5], 2)]
    assert contents(replay, 3) == [([1], [-0.5], 4)]
    replay.add(3, 4, [response(2, step=5), response(3, step=5)])
    assert buckets(replay) == {4: [3]} and (len(replay), replay.num_trajectories) == (1, 3)
    replay.add(4, 1, [response(i, step=6) for i in range(5)])
    assert [tokens for tokens, _, _ in contents(replay, 4)] == [[2], [3], [4]] and len(replay) == 1
    with pytest.raises(ValueError, match="at least 1"):
        ReplayBuffer(max_trajectories=0)


def test_the_queue_of_a_capped_buffer_does_not_grow():
    """Renewing the same response for ever leaves no trail in memory."""
    replay = ReplayBuffer(max_trajectories=10)
    for step in range(5_000):
        replay.add(1, 4, [response(1, step=step)])
    assert len(replay._arrivals) < 1_100


MALFORMED = {
    "lengths differ": Trajectory(np.int32([1, 2]), np.float32([-1]), 0),
    "two axes": Trajectory(np.zeros((1, 2), np.int32), np.zeros((1, 2), np.float32), 0),
    "empty": Trajectory(np.int32([]), np.float32([]), 0),
    "tokens are floats": Trajectory(np.float32([1]), np.float32([-1]), 0),
    "negative token": Trajectory(np.int32([-1]), np.float32([-1]), 0),
    "token over int32": Trajectory(np.array([2**31]), np.float32([-1]), 0),
    "nan": Trajectory(np.int32([1]), np.float32([np.nan]), 0),
    "minus infinity": Trajectory(np.int32([1]), np.float32([-np.inf]), 0),
    "log-probs are integers": Trajectory(np.int32([1]), np.int32([-1]), 0),
    "step over int64": Trajectory(np.int32([1]), np.float32([-1]), 2**63),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_trajectory_is_refused_whole(name):
    """ValueError, and neither the bucket nor the good trajectory beside it is taken over."""
    replay = example()
    before = replay.checksum(), buckets(replay)
    with pytest.raises(ValueError):
        replay.add(10, 5, [response(42), MALFORMED[name]])
    assert (replay.checksum(), buckets(replay)) == before


@pytest.mark.parametrize("arguments", [(50, 3, []), (10, -1, []), (2**63, 3, [response(1)])])
def test_impossible_adds_are_refused(arguments):
    """A new question without trajectories, a negative count, an id beyond int64: refused, nothing changed."""
    replay = example()
    before = replay.checksum()
    with pytest.raises(ValueError):
        replay.add(*arguments)
    assert replay.checksum() == before


@pytest.mark.parametrize("cap", [None, 100_000])
def test_memory_bar(cap):
    """At most 8 bytes a token + 400 a trajectory, Python's overhead included, with 1 or 5 a question."""
    for per_question in (1, 5):
        given = [[response(*range(i, i + 50)) for i in range(per_question)] for _ in range(500)]
        tracemalloc.start()
        replay = ReplayBuffer(cap)
        for question_id, trajectories in enumerate(given):
            replay.add(10**6 + question_id, 1 + question_id % 7, trajectories)
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert used / replay.num_trajectories <= 8 * 50 + 400
        assert replay.nbytes == 8 * 50 * 500 * per_question


# ---- checksum ----


def test_checksum_does_not_depend_on_the_process():
    """A pinned value: no hash randomisation, no address, no machine goes into it."""
    assert example().checksum() == 7_271_395_438_022_130_127


def test_checksum_notices_every_change():
    """Any one thing changed, and the checksum differs; taken back, it returns."""
    variants = {
        "same": lambda r: None,
        "count": lambda r: r.add(14, 6, []),
        "order in a bucket": lambda r: (r.add(10, 3, []), r.add(10, 4, [])),
        "retired": lambda r: r.retire(1_000),
        "reinstated": lambda r: r.reinstate([7]),
        "one more": lambda r: r.add(14, 7, [response(5, 6)]),
        "token": lambda r: r.add(14, 7, [response(5, 7)]),
        "log-prob": lambda r: r.add(14, 7, [response(5, 6, logprob=-0.50001)]),
        "step": lambda r: r.add(14, 7, [response(5, 6, step=1)]),
        "question": lambda r: r.add(13, 2, [response(5, 6)]),
        "gone": lambda r: r.retire(12),
    }
    sums = {}
    for name, change in variants.items():
        replay, twin = example(), example()
        change(replay), change(twin)
        assert replay.checksum() == twin.checksum()
        sums[name] = replay.checksum()
    assert len(set(sums.values())) == len(variants) and all(0 <= value < 2**63 for value in sums.values())
    replay = example()
    replay.add(14, 6, []), replay.add(14, 7, []), replay.retire(5), replay.reinstate([5])
    assert replay.checksum() == sums["same"]
