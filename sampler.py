"""Which questions of a batch are replayed, and which are fresh (paper Sec. 4.1, Algorithm 2).

A bucket holds the stored questions that had k successes among K responses when last asked; a
question that then had none stays in its bucket. The chance of a bucket follows a normal density
around medium difficulty, p_k ∝ N(k; μK, σ); inside a bucket all questions are equally likely. The
density is over the count k, as in the official code. The paper's text has it over k/K, where σ = 1
makes all buckets nearly equal: for that, set σ = K here.

Nothing here touches global randomness: a generator, or the seed of one, is always passed in.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np


def bucket_weights(
    success_counts: Sequence[int], num_rollouts: int, mu: float = 0.5, sigma: float = 1.0
) -> np.ndarray:
    """p_k ∝ N(k; mu·K, sigma) over the given buckets: float64 (buckets,), sums to 1.

    success_counts: k of each bucket, at least one; K = num_rollouts. mu: an accuracy. sigma: in
    successes, above 0.
    """
    k = np.asarray(success_counts, dtype=np.float64)  # (buckets,)
    center = mu * num_rollouts
    squared_distance = (k - center) ** 2
    # The nearest bucket gets the weight exp(0) = 1, so that not all vanish where sigma is small.
    excess = squared_distance - squared_distance.min()
    weights = np.exp(-excess / (2 * sigma**2))
    return weights / weights.sum()


def sample_questions(
    buckets: Mapping[int, Sequence[int]],
    n: int,
    num_rollouts: int,
    rng: np.random.Generator,
    mu: float = 0.5,
    sigma: float = 1.0,
) -> list[int]:
    """min(n, total) distinct question ids in order of k, by the five steps of Algorithm 2.

    buckets: {k: question ids}, k in 0..num_rollouts, no id twice. The outcome depends only on rng
    and on the order of the ids inside each bucket, not on the mapping's own order.

    Six questions from three buckets with p_k = 0.62, 0.37, 0.01. The first round's counts are 3, 3
    and 0, but bucket 4 has only one question and bucket 5 two. So a second round draws the missing
    three, from bucket 7, which alone has some left.

    >>> buckets = {4: [40], 5: [50, 51], 7: range(70, 80)}
    >>> drawn = sample_questions(buckets, 6, 8, np.random.default_rng(0))
    >>> [len([q for q in drawn if q in buckets[k]]) for k in buckets]
    [1, 2, 3]
    """
    sizes = {k: len(buckets[k]) for k in sorted(buckets)}
    taken = dict.fromkeys(sizes, 0)
    total = sum(sizes.values())
    remaining = min(n, total)
    while remaining:
        # Step 1: p_k of the buckets that have questions left.
        unfinished = [k for k in sizes if taken[k] < sizes[k]]
        weights = bucket_weights(unfinished, num_rollouts, mu, sigma)
        # Step 2: how many of each, in one draw.
        counts = rng.multinomial(remaining, weights).tolist()
        for k, count in zip(unfinished, counts):
            # Step 3: a bucket that is too small gives all it has.
            count = min(count, sizes[k] - taken[k])
            taken[k] += count
            remaining -= count
        # Step 4: what is still missing is drawn in the next round, from the buckets with some left.
    # Step 5: which questions of each, all equally likely.
    drawn = []
    for k, count in taken.items():
        places = rng.choice(sizes[k], count, replace=False)
        drawn += [buckets[k][place] for place in places]
    return drawn


def seed_for(*key) -> int:
    """A 63-bit seed from a key of plain values: (purpose, run seed, step, ...).

    The purpose stands first, so that no two kinds of draws share their numbers.
    """
    text = repr(key).encode()
    digest = blake2b(text, digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def rng_for(*key) -> np.random.Generator:
    """A generator seeded by `seed_for`."""
    seed = seed_for(*key)
    return np.random.default_rng(seed)


@dataclass
class FreshStream:
    """The fresh questions B_on: a seeded order per epoch, without retired ones (lines 16, 18)."""

    ids: list[int]
    seed: int
    epoch: int = -1
    queue: list[int] = field(default_factory=list)  # what is left of the epoch, next question last

    def draw(self, n: int, retired: set[int], skip: Collection[int] = ()) -> list[int]:
        """The next n distinct questions that are neither retired nor in `skip`, or all there are.

        A question is passed over if it is in `skip`, or if this draw has taken it already, from the
        end of the epoch before. It comes first in the next draw, unless `insert` shuffles before
        that. `skip` must hold no retired question.
        """
        available = len(self.ids) - len(retired) - len(skip)
        n = min(n, available)
        taken = []
        passed = []
        while len(taken) < n:
            if not self.queue:
                self.epoch += 1
                rng = rng_for("stream", self.seed, self.epoch)
                self.queue = rng.permutation(self.ids).tolist()
            question = self.queue.pop()
            if question in skip or question in taken:
                if question not in passed:  # one draw may meet it in two epochs
                    passed.append(question)
            elif question not in retired:
                taken.append(question)
        self.queue += reversed(passed)  # the end of the queue is drawn first
        return taken

    def insert(self, questions: list[int], rng: np.random.Generator) -> None:
        """Shuffle questions (retired ones put back, Table 7) into what is left of the epoch."""
        # A set, since a returning question may still be there: only `draw` takes retired ones out.
        left = sorted({*self.queue, *questions})
        self.queue = rng.permutation(left).tolist()
