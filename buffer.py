"""The replay buffer E and the retired set S (paper Sec. 4.1, Algorithm 1 lines 1, 5, 25-28 and 32).

E maps a question to its stored successes; each question sits in the bucket of its *latest* success count.
Moving a question costs constant time, and so does keeping the checksum by which ranks compare their copies.

A stored trajectory is one bytes object (a "record", laid out in buffer_file.py), so that Python's overhead is
small beside 8 bytes a token. Its `arrival` counts the trajectories in the order they came.
"""

import os
from collections import deque
from collections.abc import Iterable, KeysView, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from types import MappingProxyType
from zlib import crc32

from buffer_file import (
    HEAD,
    INT64,
    Trajectory,
    checked_integer,
    pack,
    read_buffer_file,
    unpack,
    write_buffer_file,
)

MAX_CHECKSUM = 2**63 - 1


def _digest(record: bytes) -> bytes:
    """What the checksum takes from a record: all bits of step and arrival, 32 of the tokens and log-probs."""
    return record[: HEAD.size] + INT64.pack(crc32(record))


class _Question:
    """A buffered question: its bucket, its place in it, and its records, oldest first."""

    __slots__ = ("num_success", "position", "records")

    def __init__(self):
        self.records: list[bytes] = []


class ReplayBuffer:
    """E and S. Every operation is deterministic: equal histories give equal buffers, bucket order included.

    max_trajectories: None (the paper), or a cap on the whole buffer. An add that goes over it drops the
    trajectories that arrived longest ago (of the oldest steps, as long as steps do not go back); a question
    left with none leaves the buffer. A response stored anew counts as new. Amortised constant time.
    """

    def __init__(self, max_trajectories: int | None = None):
        if max_trajectories is not None and max_trajectories < 1:
            raise ValueError(f"max_trajectories must be at least 1, or None for no cap: {max_trajectories}")
        self.max_trajectories = max_trajectories
        self._questions: dict[int, _Question] = {}
        self._buckets: dict[int, list[int]] = {}
        self._retired: dict[int, None] = {}  # a set that keeps its order
        self._arrivals: deque[tuple[int, int]] = deque()  # with a cap: (arrival, question id), oldest first
        self._next_arrival = 0
        self._num_trajectories = 0
        self._nbytes = 0
        self._checksum = 0

    def __len__(self) -> int:
        """Number of buffered questions, |E|."""
        return len(self._questions)

    def __contains__(self, question_id: int) -> bool:
        return question_id in self._questions

    @property
    def buckets(self) -> Mapping[int, Sequence[int]]:
        """{k: question ids}, non-empty buckets only. A live view, for reading."""
        return MappingProxyType(self._buckets)

    @property
    def retired(self) -> KeysView[int]:
        """S in order of retirement. A live view that behaves like a set."""
        return self._retired.keys()

    @property
    def num_trajectories(self) -> int:
        return self._num_trajectories

    @property
    def nbytes(self) -> int:
        """Bytes of the stored token ids and log-probs: 8 a token."""
        return self._nbytes

    def num_success(self, question_id: int) -> int:
        """The latest success count k of a buffered question; KeyError if it is not in the buffer."""
        return self._questions[question_id].num_success

    def trajectories(self, question_id: int) -> list[Trajectory]:
        """The stored successes, oldest first, as read-only views; [] if the question is not in the buffer."""
        question = self._questions.get(question_id)
        return [unpack(record) for record in question.records] if question else []

    def checksum(self) -> int:
        """In 0..2^63-1; kept up to date by every change, so reading it is free.

        Equal for equal histories, on any machine. Covers every trajectory (tokens, log-probs, step, arrival),
        each question's bucket and its place in it, and the retired set, but not that set's order.
        """
        return self._checksum

    def add(self, question_id: int, num_success: int, trajectories: Sequence[Trajectory]) -> None:
        """Store successes of a question and put it into bucket num_success (Algorithm 1 lines 27-28).

        The latest count wins. A response with the tokens of a stored one replaces it. Arrays are copied. With
        no trajectories, a buffered question only changes its bucket. ValueError, with nothing changed, if the
        question is retired, is new and has nothing to store, or if a trajectory is malformed.
        """
        question_id = checked_integer("question_id", question_id)
        num_success = checked_integer("num_success", num_success, 0, 2**31 - 1)
        if question_id in self._retired:
            raise ValueError(f"question {question_id} is retired: reinstate it before adding to it")
        packed = [pack(trajectory) for trajectory in trajectories]  # all checked before anything changes
        question = self._questions.get(question_id)
        if question is None:
            if not packed:
                raise ValueError(f"question {question_id} is not in the buffer and brings nothing to store")
            question = self._questions[question_id] = _Question()
            self._place(question_id, question, num_success)
        elif question.num_success != num_success:
            self._displace(question_id, question)
            self._place(question_id, question, num_success)
        for step, tokens, logprobs in packed:
            self._drop_duplicate(question_id, question, tokens)
            self._store(question_id, question, HEAD.pack(step, self._next_arrival) + tokens + logprobs)
            self._next_arrival += 1
        self._drop_oldest()

    def retire(self, question_id: int) -> None:
        """Put a question, buffered or not, into S and drop what E holds of it (lines 25-26 and 32)."""
        question_id = checked_integer("question_id", question_id)
        question = self._questions.get(question_id)
        if question is not None:
            while question.records:
                self._drop(question_id, question, len(question.records) - 1)
            self._remove(question_id, question)
        if question_id not in self._retired:
            self._retired[question_id] = None
            self._count(+1, b"retired", question_id, b"")

    def reinstate(self, question_ids: Iterable[int]) -> None:
        """Take questions out of S, so that they can be drawn fresh again; nothing enters E (Table 7)."""
        question_ids = list(question_ids)
        if unknown := [q for q in question_ids if q not in self._retired]:
            raise ValueError(f"cannot reinstate questions that are not retired: {unknown[:10]}")
        for question_id in dict.fromkeys(question_ids):
            del self._retired[question_id]
            self._count(-1, b"retired", question_id, b"")

    # ---- the moves, each in constant time ----

    def _place(self, question_id: int, question: _Question, num_success: int) -> None:
        bucket = self._buckets.setdefault(num_success, [])
        question.num_success, question.position = num_success, len(bucket)
        bucket.append(question_id)
        self._count(+1, b"bucket", question_id, HEAD.pack(num_success, question.position))

    def _displace(self, question_id: int, question: _Question) -> None:
        """Take a question out of its bucket; the bucket's last question fills the gap."""
        k, gap = question.num_success, question.position
        bucket = self._buckets[k]
        last = bucket.pop()
        self._count(-1, b"bucket", question_id, HEAD.pack(k, gap))
        if last != question_id:
            bucket[gap], self._questions[last].position = last, gap
            self._count(-1, b"bucket", last, HEAD.pack(k, len(bucket)))
            self._count(+1, b"bucket", last, HEAD.pack(k, gap))
        if not bucket:
            del self._buckets[k]

    def _remove(self, question_id: int, question: _Question) -> None:
        self._displace(question_id, question)
        del self._questions[question_id]

    def _store(self, question_id: int, question: _Question, record: bytes) -> None:
        question.records.append(record)
        self._num_trajectories += 1
        self._nbytes += len(record) - HEAD.size
        self._count(+1, b"trajectory", question_id, _digest(record))
        if self.max_trajectories is not None:
            self._arrivals.append((HEAD.unpack_from(record)[1], question_id))

    def _drop(self, question_id: int, question: _Question, index: int) -> None:
        record = question.records.pop(index)
        self._num_trajectories -= 1
        self._nbytes -= len(record) - HEAD.size
        self._count(-1, b"trajectory", question_id, _digest(record))

    def _drop_duplicate(self, question_id: int, question: _Question, tokens: bytes) -> None:
        size = HEAD.size + 2 * len(tokens)
        for index, record in enumerate(question.records):
            if len(record) == size and record.startswith(tokens, HEAD.size):
                self._drop(question_id, question, index)
                break  # there is never more than one

    def _drop_oldest(self) -> None:
        """Enforce the cap. Entries of trajectories already gone are skipped, and swept when they pile up."""
        if self.max_trajectories is None:
            return
        while self._num_trajectories > self.max_trajectories:
            arrival, question_id = self._arrivals.popleft()
            question = self._questions.get(question_id)
            if question is not None and HEAD.unpack_from(question.records[0])[1] == arrival:
                self._drop(question_id, question, 0)
                if not question.records:
                    self._remove(question_id, question)
        if len(self._arrivals) > 2 * self._num_trajectories + 1000:
            self._sweep_arrivals()

    def _sweep_arrivals(self) -> None:
        """Rebuild the queue from the trajectories that are there."""
        if self.max_trajectories is None:
            return
        stored = ((question_id, r) for question_id, q in self._questions.items() for r in q.records)
        self._arrivals = deque(sorted((HEAD.unpack_from(r)[1], question_id) for question_id, r in stored))

    def _count(self, sign: int, kind: bytes, question_id: int, content: bytes) -> None:
        """Add an item to the checksum, or take it out. A sum: the order of changes does not matter."""
        digest = blake2b(content, digest_size=8, person=kind, salt=INT64.pack(question_id)).digest()
        self._checksum = (self._checksum + sign * int.from_bytes(digest, "little")) & MAX_CHECKSUM

    # ---- one safetensors file ----

    def save(self, path: str | os.PathLike) -> None:
        """Write the whole state to one safetensors file, streamed (no copy of the data) and atomically."""
        ids = [question_id for k in sorted(self._buckets) for question_id in self._buckets[k]]
        questions = [self._questions[question_id] for question_id in ids]
        columns = {
            "question_ids": ids,
            "num_success": [question.num_success for question in questions],
            "num_stored": [len(question.records) for question in questions],
            "retired": list(self._retired),
        }
        records = [record for question in questions for record in question.records]
        write_buffer_file(path, self._metadata(), columns, records)

    @classmethod
    def load(cls, path: str | os.PathLike) -> "ReplayBuffer":
        """Read what save wrote: the same buffer, bucket order included, so later draws are the same.

        ValueError with the path and the reason for anything else, be it a pickle, a cut file, or one whose
        header or contents contradict each other; nothing larger than the file is ever allocated.
        """
        try:
            metadata, columns, records = read_buffer_file(path)
            cap = metadata["max_trajectories"]
            buffer = cls(None if cap == "None" else int(cap))
            buffer._next_arrival = int(metadata["next_arrival"])
            for question_id in columns["retired"]:
                buffer.retire(question_id)
            stored = iter(records)
            rows = zip(columns["question_ids"], columns["num_success"], columns["num_stored"], strict=True)
            for question_id, num_success, num_stored in rows:
                question = buffer._questions[question_id] = _Question()
                buffer._place(question_id, question, num_success)
                for record in islice(stored, num_stored):
                    buffer._store(question_id, question, record)
            buffer._sweep_arrivals()  # the file has them by question, the queue wants them by age
            if buffer._metadata() != metadata:
                raise ValueError("the contents do not match the checksum in the header: the file is damaged")
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{os.fspath(path)} is not a usable replay buffer: {error}") from error
        return buffer

    def _metadata(self) -> dict[str, str]:
        """What the file keeps beside the tensors; safetensors wants strings."""
        state = {"max_trajectories": self.max_trajectories, "next_arrival": self._next_arrival}
        return {name: str(value) for name, value in (state | {"checksum": self._checksum}).items()}
