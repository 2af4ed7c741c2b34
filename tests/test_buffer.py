"""The replay buffer: what is kept, in which bucket, in how much memory; its file (Sec. 4.1)."""

import os
import pickle
import tracemalloc

import numpy as np
import pytest
from safetensors.numpy import load_file, save

from buffer import ReplayBuffer, Trajectory


def response(*tokens, step=0, logprob=-0.5, reward=1.0, finished=True):
    """A trajectory with these token ids; its log-probs are logprob, 2 logprob, 3 logprob, ..."""
    logprobs = np.arange(1, len(tokens) + 1, dtype=np.float32) * np.float32(logprob)
    return Trajectory(np.array(tokens, np.int32), logprobs, step, reward, finished)


def contents(replay, question_id):
    """What is stored of a question, as plain values: (tokens, log-probs, step, reward)."""
    stored = replay.trajectories(question_id)
    return [(t.token_ids.tolist(), t.logprobs.tolist(), t.step, t.reward) for t in stored]


def everything(replay):
    """All that an outsider sees of a buffer with ids below 100: contents and orders."""
    stored = {q: contents(replay, q) for q in range(100)}
    sizes = len(replay), replay.num_trajectories
    return list(replay.buckets.items()), replay.retired, stored, sizes


def example():
    """Four questions in three buckets and one on the shelf, two retired; two responses each."""
    replay = ReplayBuffer()
    for question_id, k in [(10, 4), (11, 4), (12, 4), (13, 2), (14, 7)]:
        replay.add(question_id, k, [response(1, question_id), response(2, 3, question_id, step=1)])
    replay.shelve(14)
    replay.retire(99)
    replay.retire(7)
    return replay


class Naive:
    """The same from the definitions: one list of what is stored, oldest first."""

    def __init__(self, cap):
        self.cap, self.stored, self.buckets, self.retired = cap, [], {}, set()

    def of(self, question_id):
        return [row for q, row in self.stored if q == question_id]

    def leave(self, question_id):
        for ids in self.buckets.values():
            if question_id in ids:
                ids[ids.index(question_id)] = ids[-1]
                ids.pop()
        self.buckets = {k: ids for k, ids in self.buckets.items() if ids}

    def add(self, question_id, k, responses):
        if question_id not in self.buckets.get(k, []):
            self.leave(question_id)
            self.buckets.setdefault(k, []).append(question_id)
        for t in responses:
            tokens = t.token_ids.tolist()
            same = question_id, tokens
            self.stored = [(q, row) for q, row in self.stored if (q, row[0]) != same]
            self.stored.append((question_id, (tokens, t.logprobs.tolist(), t.step, t.reward)))
        while self.cap and len(self.stored) > self.cap:
            oldest, _ = self.stored.pop(0)
            if not self.of(oldest):
                self.leave(oldest)

    def retire(self, question_id):
        self.leave(question_id)
        self.stored = [(q, row) for q, row in self.stored if q != question_id]
        self.retired.add(question_id)


@pytest.mark.parametrize("cap", [0, 1, 3, 8])
def test_any_history_equals_a_naive_buffer(cap, tmp_path):
    """After each of many random changes, saves and loads both are equal, order included."""
    rng, replay, naive = np.random.default_rng(cap), ReplayBuffer(cap), Naive(cap)
    for step in range(300):
        question_id, k = int(rng.integers(10)), int(rng.integers(1, 5))
        kind = rng.random() if step else 1.0  # the empty one is saved, too
        if kind < 0.7:
            tokens = [rng.integers(0, 2, rng.integers(1, 3)) for _ in range(rng.integers(4))]
            new = [response(*t, step=step, logprob=-step) for t in tokens]
            if question_id not in naive.retired and (new or naive.of(question_id)):
                replay.add(question_id, k, new), naive.add(question_id, k, new)
        elif kind < 0.8:
            replay.shelve(question_id), naive.leave(question_id)
        elif kind < 0.85:
            replay.retire(question_id), naive.retire(question_id)
        elif kind < 0.9:
            back = sorted(naive.retired)[:2]
            replay.reinstate(back), naive.retired.difference_update(back)
        else:
            replay.save(tmp_path / "buffer")
            replay = ReplayBuffer.load(tmp_path / "buffer", cap)
        assert replay.buckets == naive.buckets and replay.retired == naive.retired
        assert all(contents(replay, q) == naive.of(q) for q in range(10))
        assert replay.stored.keys() == {q for q, _ in naive.stored}
        places = {q: k for k, ids in naive.buckets.items() for q in ids}
        assert {q: replay.bucket_of(q) for q in places} == places
        assert (len(replay), replay.num_trajectories) == (len(places), len(naive.stored))


def test_what_is_stored_cannot_be_changed():
    """The caller may use its arrays again, and the buffer hands out none that can be written."""
    replay, given = ReplayBuffer(), response(5, 6)
    replay.add(3, 1, [given])
    given.token_ids[:] = 8
    given.logprobs[:] = 8
    (stored,) = replay.trajectories(3)
    assert contents(replay, 3) == [([5, 6], [-0.5, -1.0], 0, 1.0)]
    assert not (stored.token_ids.flags.writeable or stored.logprobs.flags.writeable)


def test_a_success_exceeds_one_half_in_float32():
    """As the update sees rewards: there 0.5000000000000001 is 0.5."""
    rewards = (0.5, 0.5000000000000001, 0.50000007)
    assert [response(1, reward=r).is_success for r in rewards] == [False, False, True]


MALFORMED = {
    "lengths differ": Trajectory(np.int32([1, 2]), np.float32([-1]), reward=1.0),
    "two axes": Trajectory(np.int32([[1]]), np.float32([[-1]]), reward=1.0),
    "tokens of 64 bits": Trajectory(np.int64([1]), np.float32([-1]), reward=1.0),
    "log-probs of 64 bits": Trajectory(np.int32([1]), np.float64([-1]), reward=1.0),
    "empty": response(),
    "negative token": response(5, -1),
    "a log-prob that is nan": response(1, logprob=np.nan),
    "a log-prob above 0": response(1, logprob=0.5),
    "a reward that is nan": response(1, reward=np.nan),
    "no reward": Trajectory(np.int32([1]), np.float32([-1])),
    "cut off": response(1, finished=False),
}
ADDS = {name: (10, 5, [response(42), malformed]) for name, malformed in MALFORMED.items()}
ADDS |= {
    "new, but empty": (50, 3, []),
    "a negative count": (10, -1, [response(5)]),
    "half a count": (10, 2.5, [response(5)]),
    "retired": (7, 3, [response(5)]),
}


WHAT_IT_GOT = {
    "tokens of 64 bits": r"int64 \(1,\), float32 \(1,\)",
    "log-probs of 64 bits": r"int32 \(1,\), float64 \(1,\)",
    "no reward": "reward nan",
    "cut off": "cut is not stored",
}


@pytest.mark.parametrize("name", ADDS)
def test_an_impossible_add_changes_nothing(name):
    """The add is a ValueError, and not even the good trajectory beside a bad one is taken."""
    replay = example()
    with pytest.raises(ValueError, match=WHAT_IT_GOT.get(name)):
        replay.add(*ADDS[name])
    assert everything(replay) == everything(example())


def test_memory_bar():
    """A buffer takes at most 8 bytes a token and 700 a response, Python's overhead included."""
    given = [[response(*range(i, i + 50), step=1_000) for i in range(4)] for _ in range(1_000)]
    tracemalloc.start()
    replay = ReplayBuffer()
    for question_id, trajectories in enumerate(given):
        replay.add(10**6 + question_id, 1 + question_id % 7, trajectories)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used <= (8 * 50 + 700) * 4_000


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


def test_nothing_else_is_taken_and_no_code_runs(tmp_path, monkeypatch):
    """Pickles, archives and files cut, lengthened or without a table are refused by name."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "buffer"
    example().save(path)
    whole = path.read_bytes()
    others = [pickle.dumps(Bomb()), b"PK\x03\x04" + bytes(100), b"\xff" * 100, whole + b"\0"]
    tables = load_file(path)
    for name in ("token_ids", "logprobs", "rewards", "retired"):
        others.append(save({table: values for table, values in tables.items() if table != name}))
    for data in others + [whole[:n] for n in range(0, len(whole), 7)]:
        path.write_bytes(data)
        with pytest.raises(ValueError, match=f"^{path} is not a usable replay buffer"):
            ReplayBuffer.load(path)
    assert os.listdir() == ["buffer"]
