"""The replay buffer E and the retired set S (paper Sec. 4.1, Algorithm 1 lines 1, 5, 25-28 and 32).

E maps a question to its stored successes, and has it in the bucket of its *latest* success count.
When a question leaves a bucket, the last one there takes its place: [10, 11, 12] without 10 is
[12, 11]. Equal histories of calls give equal orders, and so equal draws.
"""

import os
from collections import OrderedDict
from dataclasses import dataclass, field
from math import isfinite, nan

import numpy as np
import safetensors.numpy

SUCCESS_THRESHOLD = 0.5  # a response with a larger reward is a success


@dataclass(slots=True, eq=False)
class Trajectory:
    """One response o, new or stored. Compared by identity (eq=False), so it can be a dict's key."""

    token_ids: np.ndarray  # int32 (T,), T >= 1, EOS included where there is one
    # float32 (T,), under the policy that generated it: π_old, or π_past once stored
    logprobs: np.ndarray
    step: int = 0  # training step of the rollout
    reward: float = nan  # Eq. 1; nan, which `check` refuses, until it is graded
    finished: bool = True  # ended by EOS, not by the length limit
    # what else the reward function gave, by name, to be logged; not stored
    named_rewards: dict[str, float] = field(default_factory=dict)
    # what the reward's judge says of it, for evaluation and for people; not stored
    judged: dict = field(default_factory=dict)

    @property
    def is_success(self) -> bool:
        """Whether it is right, by its reward in float32, as the update sees rewards."""
        return bool(np.float32(self.reward) > SUCCESS_THRESHOLD)

    def check(self) -> None:
        """ValueError unless it has tokens, as many log-probs of at most 0, and a finite reward."""
        ids = self.token_ids
        logprobs = self.logprobs
        typed = ids.dtype == np.int32 and logprobs.dtype == np.float32
        flat = ids.ndim == 1 and ids.size > 0 and ids.shape == logprobs.shape
        sound = np.isfinite(logprobs).all() and isfinite(self.reward)
        if not (typed and flat and sound and ids.min() >= 0 and logprobs.max() <= 0):
            raise ValueError(
                "a response needs int32 ids (T,) >= 0, T >= 1, finite float32 log-probs (T,) <= 0"
                f" and a finite reward; this one has {ids.dtype} {ids.shape}, {logprobs.dtype}"
                f" {logprobs.shape} and reward {self.reward}"
            )


class ReplayBuffer:
    """E and S. `len` is |E|: the questions in buckets, which are those that can be replayed.

    max_trajectories: the most responses that are stored, or 0 for no limit (the paper). An add
    beyond it drops the oldest, and a question without responses leaves E. A response that comes
    again counts as new.
    """

    def __init__(self, max_trajectories: int = 0):
        self.max_trajectories = max_trajectories
        # Others read these three and never write into them.
        self.buckets = {}  # {k: question ids}, none of them empty
        self.retired = set()  # S: question ids
        self.stored = {}  # {question id: its responses, oldest first}
        self._place = {}  # {question id: (k, position in that bucket)}
        # {response: its question id}, oldest first; a plain dict is slow to drop its first
        self._owners = OrderedDict()

    def __len__(self) -> int:
        return len(self._place)

    @property
    def num_trajectories(self) -> int:
        return len(self._owners)

    def bucket_of(self, question_id: int) -> int:
        """The k of the bucket that a question is in; KeyError if it is in none."""
        k, _ = self._place[question_id]
        return k

    def trajectories(self, question_id: int) -> list[Trajectory]:
        """What is stored of a question, oldest first, with read-only arrays; [] if nothing is."""
        return list(self.stored.get(question_id, []))

    def add(self, question_id: int, num_success: int, trajectories: list[Trajectory]) -> None:
        """Store successes of a question and put it into bucket num_success (lines 27-28).

        num_success: k, or whatever else the buckets go by; the latest wins. A response with the
        tokens of a stored one replaces it. Arrays are copied. A question that has some stored may
        bring none: it changes its bucket. ValueError, with nothing changed, if it is retired, if
        num_success is no int or negative, if nothing is stored or to be stored, or if a trajectory
        is malformed.
        """
        copies = [_checked_copy(t) for t in trajectories]  # all of them before anything changes
        if question_id in self.retired:
            raise ValueError(f"question {question_id} is retired: reinstate it before adding to it")
        if not isinstance(num_success, int) or num_success < 0:
            raise ValueError(f"num_success must be an int of at least 0, got {num_success!r}")
        if not copies and question_id not in self.stored:
            raise ValueError(f"question {question_id} has no response stored, and brings none")
        self._enter_bucket(num_success, question_id)
        for new in copies:
            before = self.trajectories(question_id)
            # First the new one is kept: without any response the question would leave its bucket.
            self._keep(question_id, new)
            for old in before:
                if np.array_equal(old.token_ids, new.token_ids):
                    self._drop(question_id, old)
        while 0 < self.max_trajectories < len(self._owners):
            oldest, owner = next(iter(self._owners.items()))
            self._drop(owner, oldest)

    def retire(self, question_id: int) -> None:
        """Put a question, buffered or not, into S and drop what E holds of it (lines 25-26, 32)."""
        for trajectory in self.trajectories(question_id):
            self._drop(question_id, trajectory)  # with the last one it leaves its bucket
        self.retired.add(question_id)

    def reinstate(self, question_ids: list[int]) -> None:
        """Take questions out of S, to be drawn fresh again; nothing enters E (Table 7)."""
        self.retired.difference_update(question_ids)

    def _enter_bucket(self, k: int, question_id: int) -> None:
        """Into bucket k, out of the one it is in; nothing happens if that is k."""
        if question_id in self._place and self.bucket_of(question_id) == k:
            return
        self.shelve(question_id)
        bucket = self.buckets.setdefault(k, [])
        self._place[question_id] = k, len(bucket)
        bucket.append(question_id)

    def shelve(self, question_id: int) -> None:
        """Take a question out of its bucket, if it is in one; its responses stay.

        So one is not replayed that was solved K of K and has not retired; `add` brings it back.
        """
        if question_id not in self._place:
            return
        k, position = self._place.pop(question_id)
        bucket = self.buckets[k]
        last = bucket.pop()
        if last != question_id:
            bucket[position] = last
            self._place[last] = k, position
        if not bucket:
            del self.buckets[k]

    def _keep(self, question_id: int, new: Trajectory) -> None:
        """Store a response as the newest."""
        self.stored.setdefault(question_id, []).append(new)
        self._owners[new] = question_id

    def _drop(self, question_id: int, old: Trajectory) -> None:
        """Forget a response, and with its last one the question."""
        del self._owners[old]
        self.stored[question_id].remove(old)
        if not self.stored[question_id]:
            self.shelve(question_id)
            del self.stored[question_id]

    def save(self, path: str | os.PathLike) -> None:
        """Write one safetensors file. A checkpoint sees to it that it reaches the disk."""
        owners = self._owners
        questions = [(q, k) for k, ids in self.buckets.items() for q in ids]
        trajectories = [(q, t.step, len(t.token_ids)) for t, q in owners.items()]
        rewards = [t.reward for t in owners]
        token_ids = b"".join(t.token_ids for t in owners)
        logprobs = b"".join(t.logprobs for t in owners)
        tensors = {
            "questions": np.array(questions, np.int64),
            "retired": np.array(sorted(self.retired), np.int64),
            "trajectories": np.array(trajectories, np.int64),
            "rewards": np.array(rewards, np.float64),
            "token_ids": np.frombuffer(token_ids, np.int32),
            "logprobs": np.frombuffer(logprobs, np.float32),
        }
        safetensors.numpy.save_file(tensors, path)

    @classmethod
    def load(cls, path: str | os.PathLike, max_trajectories: int = 0) -> "ReplayBuffer":
        """An equal buffer, with equal draws; ValueError with the path if the file holds none."""
        try:
            file = safetensors.numpy.load_file(path)
            token_ids = file["token_ids"]
            logprobs = file["logprobs"]
            rewards = file["rewards"].tolist()
            trajectories = file["trajectories"].tolist()
            questions = file["questions"].tolist()
            buffer = cls(max_trajectories)
            buffer.retired.update(file["retired"].tolist())
            end = 0
            for (q, step, length), reward in zip(trajectories, rewards, strict=True):
                start = end
                end = start + length
                one = Trajectory(token_ids[start:end], logprobs[start:end], step, reward)
                buffer._keep(q, _checked_copy(one))
            for q, num_success in questions:
                buffer._enter_bucket(num_success, q)
        except (safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{os.fspath(path)} is not a usable replay buffer: {error!r}"
            ) from error
        return buffer


def _checked_copy(t: Trajectory) -> Trajectory:
    """A response as the buffer has it, with read-only arrays; ValueError if malformed or cut."""
    t.check()
    if not t.finished:
        raise ValueError("a response that was cut is not stored")
    ids = np.frombuffer(t.token_ids.tobytes(), np.int32)
    logprobs = np.frombuffer(t.logprobs.tobytes(), np.float32)
    return Trajectory(ids, logprobs, t.step, t.reward)
