"""The replay buffer E and the retired set S (paper Sec. 4.1, Algorithm 1 lines 1, 5, 25-28 and 32).

E maps a question to its stored successes and to its bucket, the *latest* success count k above 0.
Bucket 0 is for questions that are not to be replayed. Equal histories of calls give equal orders,
and so equal draws, also after `save` and `load`.
"""

from dataclasses import dataclass, field
from math import isfinite, nan
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save

SUCCESS_THRESHOLD = 0.5  # a response with a larger reward is a success


@dataclass(slots=True, eq=False)
class Trajectory:
    """One response o, new or stored."""

    token_ids: np.ndarray  # int32 (T,), T >= 1, EOS included where there is one
    # float32 (T,), under the policy that generated it: π_old, or π_past once stored
    logprobs: np.ndarray
    step: int = 0  # training step of the rollout
    reward: float = nan  # Eq. 1; nan, which `check` refuses, until it is graded
    finished: bool = True  # ended by EOS, not by the length limit
    # what else the reward function gave, by name, to be logged; `ReplayBuffer.save` leaves it out
    named_rewards: dict[str, float] = field(default_factory=dict)

    @property
    def is_success(self) -> bool:
        """Whether it is right."""
        return self.reward > SUCCESS_THRESHOLD

    def check(self) -> None:
        """ValueError unless it has tokens, as many log-probs of at most 0, and a finite reward."""
        ids = self.token_ids
        logprobs = self.logprobs
        flat = ids.ndim == 1 and ids.size > 0 and ids.shape == logprobs.shape
        sound = isfinite(self.reward) and (logprobs <= 0).all()
        if not (flat and sound):
            raise ValueError(
                "a response needs token ids (T,), T >= 1, log-probs (T,) <= 0 and a finite reward;"
                f" this one has ids {ids.shape}, log-probs {logprobs.shape}, reward {self.reward}"
            )


class ReplayBuffer:
    """E and S. `len` is the number of questions that can be replayed, those in a bucket above 0."""

    def __init__(self):
        # Others read these three and never write into them.
        self.stored = {}  # {question id: its responses, in the order of `add`}
        self.latest_k = {}  # {question id: its bucket, the latest k given to `add`}, same keys
        self.retired = set()  # S: question ids

    def __len__(self) -> int:
        return sum(k > 0 for k in self.latest_k.values())

    @property
    def num_trajectories(self) -> int:
        """How many responses are stored."""
        return sum(map(len, self.stored.values()))

    @property
    def buckets(self) -> dict[int, list[int]]:
        """{k: ids of the questions that `add` last put into bucket k}, for k above 0 (line 5)."""
        buckets = {}
        for question_id, k in self.latest_k.items():
            if k > 0:
                buckets.setdefault(k, []).append(question_id)
        return buckets

    def trajectories(self, question_id: int) -> list[Trajectory]:
        """What is stored of a question, in the order of `add`; [] if nothing is."""
        return list(self.stored.get(question_id, []))

    def add(self, question_id: int, num_success: int, trajectories: list[Trajectory]) -> None:
        """Store successes of a question and put it into bucket num_success (lines 27-28).

        num_success: k, or whatever else the buckets go by; the latest wins, and 0 keeps the
        question from being replayed. A response with the tokens of a stored one takes its place.
        ValueError if the question is retired.
        """
        if question_id in self.retired:
            raise ValueError(f"question {question_id} is retired: reinstate it before adding to it")
        by_tokens = {}
        for t in self.trajectories(question_id) + trajectories:
            by_tokens[t.token_ids.tobytes()] = t
        self.stored[question_id] = list(by_tokens.values())
        self.latest_k[question_id] = num_success

    def retire(self, question_id: int) -> None:
        """Put a question, stored or not, into S and take it out of E (lines 25-26, 32)."""
        self.stored.pop(question_id, None)
        self.latest_k.pop(question_id, None)
        self.retired.add(question_id)

    def reinstate(self, question_ids: list[int]) -> None:
        """Take questions out of S, to be drawn fresh again; nothing enters E (Table 7)."""
        self.retired.difference_update(question_ids)

    def save(self, path: str | Path) -> None:
        """Write one safetensors file: a row of `heads` for each response, and all their tokens."""
        heads = []
        token_ids = [np.zeros(0, np.int32)]
        logprobs = [np.zeros(0, np.float32)]
        for question_id, responses in self.stored.items():
            for t in responses:
                k = self.latest_k[question_id]
                heads.append((question_id, k, t.step, t.reward, len(t.token_ids)))
                token_ids.append(t.token_ids)
                logprobs.append(t.logprobs)
        content = save(
            {
                "retired": np.array(sorted(self.retired), np.int64),
                "heads": np.array(heads, np.float64),
                "token_ids": np.concatenate(token_ids),
                "logprobs": np.concatenate(logprobs),
            }
        )
        # safetensors' own `save_file` makes files that only their owner may read.
        Path(path).write_bytes(content)

    @classmethod
    def load(cls, path: str | Path) -> "ReplayBuffer":
        """An equal buffer, with equal draws."""
        file = load_file(path)
        buffer = cls()
        buffer.retired = set(file["retired"].tolist())
        start = 0
        for question_id, k, step, reward, length in file["heads"].tolist():
            end = start + int(length)
            ids = file["token_ids"][start:end]
            logprobs = file["logprobs"][start:end]
            one = Trajectory(ids, logprobs, int(step), reward)
            buffer.add(int(question_id), int(k), [one])
            start = end
        return buffer
