"""The replay buffer E and the retired set S (paper Sec. 4.1, Algorithm 1 lines 1, 5, 25-28 and 32).

E maps a question to its stored successes, in the bucket of its *latest* success count. Leaving it takes
constant time, as the last one fills the gap: [10, 11, 12] becomes [12, 11]. Equal histories, equal buffers.
"""

import os
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import safetensors.numpy


@dataclass(slots=True, eq=False)
class Trajectory:
    """One response o, fresh or stored."""

    token_ids: np.ndarray  # int32 (T,), T >= 1, EOS included where there is one
    logprobs: np.ndarray  # float32 (T,), under the policy that generated it: π_old, or π_past once stored
    step: int = 0  # training step of the rollout
    reward: float = 1.0  # Eq. 1; a stored one is a success unless said otherwise
    finished: bool = True  # ended by EOS, not by the length limit
    also: dict[str, float] | None = None  # further rewards by name, to be logged; not stored


@dataclass(slots=True, eq=False)
class _Stored:
    """A response as the buffer keeps it. Bytes take 60 less than an array, and nobody can write into them."""

    token_ids: bytes  # int32
    logprobs: bytes  # float32
    step: int
    reward: float


class ReplayBuffer:
    """E and S. `len` counts the questions in buckets; `in` and `trajectories` find shelved ones too.

    max_trajectories: None (the paper), or a cap on the whole buffer. An add that goes over it drops the
    responses that were stored longest ago; a question left with none leaves. Stored anew counts as new.
    """

    def __init__(self, max_trajectories: int | None = None):
        self.max_trajectories = max_trajectories
        self.buckets: dict[int, list[int]] = {}  # {k: question ids}, none of them empty; for reading
        self.retired: set[int] = set()  # S; for reading
        self._place: dict[int, tuple[int, int]] = {}  # question -> k, position in that bucket
        self._stored: dict[int, tuple[_Stored, ...]] = {}  # question -> its responses, oldest first
        self._by_age: OrderedDict[_Stored, int] = OrderedDict()  # under a cap: -> question, oldest first

    def __len__(self) -> int:
        return len(self._place)

    def __contains__(self, question_id: int) -> bool:
        return question_id in self._stored

    @property
    def stored(self) -> set[int]:  # questions, shelved ones too
        return set(self._stored)

    @property
    def num_trajectories(self) -> int:
        return sum(map(len, self._stored.values()))

    @property
    def nbytes(self) -> int:  # of token ids and log-probs: 8 a token
        return sum(2 * len(t.token_ids) for stored in self._stored.values() for t in stored)

    def num_success(self, question_id: int) -> int:
        """The latest success count k; KeyError for a question that is in no bucket."""
        return self._place[question_id][0]

    def trajectories(self, question_id: int) -> list[Trajectory]:
        """What is stored of a question, oldest first, with read-only arrays; [] if nothing is."""
        return [Trajectory(np.frombuffer(t.token_ids, np.int32), np.frombuffer(t.logprobs, np.float32),
                           t.step, t.reward) for t in self._stored.get(question_id, ())]

    def add(self, question_id: int, num_success: int, trajectories: list[Trajectory]) -> None:
        """Store successes of a question and put it into bucket num_success (Algorithm 1 lines 27-28).

        The latest count wins. A response with the tokens of a stored one replaces it. Arrays are copied. A
        question that has some stored may bring none: it changes its bucket. ValueError, with nothing changed,
        if it is retired, if there is nothing stored nor to store, or if a trajectory is malformed.
        """
        copies = [_checked_copy(t) for t in trajectories]  # all of them before anything changes
        if question_id in self.retired:
            raise ValueError(f"question {question_id} is retired: reinstate it before adding to it")
        if num_success < 0 or not (copies or question_id in self):
            raise ValueError(f"question {question_id}: {num_success} successes, none stored or to store")
        self._move(question_id, num_success)
        for new in copies:
            stored = self._stored.get(question_id, ())
            self._stored[question_id] = (*stored, new)
            if self.max_trajectories:
                self._by_age[new] = question_id
            for old in stored:
                if old.token_ids == new.token_ids:
                    self._drop(question_id, old)
        while self.max_trajectories and len(self._by_age) > self.max_trajectories:
            oldest, owner = next(iter(self._by_age.items()))
            self._drop(owner, oldest)

    def shelve(self, question_id: int) -> None:
        """Take a question (solved K of K, not to retire) out of its bucket; an add puts it back, with all."""
        self._move(question_id, None)

    def retire(self, question_id: int) -> None:
        """Put a question, buffered or not, into S and drop what E holds of it (lines 25-26 and 32)."""
        for trajectory in self._stored.get(question_id, ()):
            self._drop(question_id, trajectory)
        self.retired.add(question_id)

    def reinstate(self, question_ids: list[int]) -> None:
        """Take questions out of S, so that they can be drawn fresh again; nothing enters E (Table 7)."""
        self.retired.difference_update(question_ids)

    def _move(self, question_id: int, to: int | None) -> None:
        """Out of the bucket it is in, if any, and into bucket `to`, if any."""
        k, position = self._place.get(question_id, (None, 0))
        if k is not None and k != to:
            bucket = self.buckets[k]
            bucket[position] = last = bucket[-1]  # may be the question itself
            self._place[last] = k, position
            del bucket[-1], self._place[question_id]
            if not bucket:
                del self.buckets[k]
        if to is not None and k != to:
            bucket = self.buckets.setdefault(to, [])
            self._place[question_id] = to, len(bucket)
            bucket.append(question_id)

    def _drop(self, question_id: int, old: Trajectory) -> None:
        """Forget a response, and with its last one the question."""
        self._by_age.pop(old, None)
        self._stored[question_id] = tuple(t for t in self._stored[question_id] if t is not old)
        if not self._stored[question_id]:
            self._move(question_id, None)
            del self._stored[question_id]

    def save(self, path: str | os.PathLike) -> None:
        """Write one safetensors file. It takes the place of an old one when it is whole and on the disk."""
        stored = self._by_age.items() or [(t, q) for q, ts in self._stored.items() for t in ts]
        tensors = {
            "max_trajectories": np.array(self.max_trajectories or 0),
            "questions": np.array([(q, k) for k, ids in self.buckets.items() for q in ids], np.int64),
            "retired": np.array(sorted(self.retired), np.int64),
            "trajectories": np.array([(q, t.step, len(t.token_ids) // 4) for t, q in stored], np.int64),
            "rewards": np.array([t.reward for t, _ in stored], np.float64),
            "token_ids": np.frombuffer(b"".join(t.token_ids for t, _ in stored), np.int32),
            "logprobs": np.frombuffer(b"".join(t.logprobs for t, _ in stored), np.float32),
        }
        aside = f"{os.fspath(path)}.tmp"
        safetensors.numpy.save_file(tensors, aside)
        with open(aside, "rb") as file:
            os.fsync(file.fileno())
        os.replace(aside, path)
        directory = os.open(os.path.dirname(aside) or ".", os.O_RDONLY)
        os.fsync(directory)  # makes the rename itself last
        os.close(directory)

    @classmethod
    def load(cls, path: str | os.PathLike) -> "ReplayBuffer":
        """An equal buffer, so that draws are equal too; ValueError with the path if the file is no buffer."""
        try:
            file, end = safetensors.numpy.load_file(path), 0
            token_ids, logprobs, rewards = file["token_ids"], file["logprobs"], file["rewards"].tolist()
            buffer = cls(file["max_trajectories"].item() or None)
            buffer.retired.update(file["retired"].tolist())
            for (q, step, length), reward in zip(file["trajectories"].tolist(), rewards, strict=True):
                part = slice(end, end := end + length)
                buffer.add(q, 0, [Trajectory(token_ids[part], logprobs[part], step, reward)])
            buffer.buckets, buffer._place = {}, {}  # the order in them is the file's
            for q, num_success in file["questions"].tolist():
                buffer._move(q, num_success)
            found = end, buffer.num_trajectories, len(buffer._place.keys() & buffer._stored)
            if found != (len(logprobs), len(rewards), len(file["questions"])) or end != len(token_ids):
                raise ValueError("its tables contradict each other")
        except (safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{os.fspath(path)} is not a usable replay buffer: {error!r}") from error
        return buffer


def _checked_copy(t: Trajectory) -> _Stored:
    """What is stored of a response; ValueError where it is malformed."""
    ids, logprobs = np.asarray(t.token_ids), np.asarray(t.logprobs)  # (T,), (T,)
    typed = ids.dtype == np.int32 and logprobs.dtype == np.float32 and ids.shape == logprobs.shape
    if not (t.finished and typed and ids.ndim == 1 and ids.min() >= 0 and np.isfinite(logprobs).all()):
        raise ValueError("not a finished response of int32 ids (T,) >= 0 and finite float32 log-probs (T,)")
    return _Stored(ids.tobytes(), logprobs.tobytes(), t.step, t.reward)
