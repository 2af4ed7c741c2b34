"""Time what a step asks of buffer and sampler: draw 64 questions, move 128 to other buckets."""

from collections.abc import Callable, Iterator
from statistics import median
from timeit import repeat

import numpy as np

from buffer import ReplayBuffer, Trajectory
from sampler import sample_questions

LIMITS = {  # questions -> what draw and moves may take
    # The official code was measured on one core; its draw grows with the square of the questions.
    45_000: "at most 1.6 ms, the official code's 7.7 s",
    1_000_000: "at most 2.0 ms",
}


def filled_buffer(num_questions: int) -> ReplayBuffer:
    """A buffer with four tokens in response to each question, spread over the buckets 1 to 7."""
    token_ids = np.arange(4, dtype=np.int32)  # [T]
    logprobs = np.zeros(4, dtype=np.float32)  # [T]
    replay = ReplayBuffer()
    for question_id in range(num_questions):
        replay.add(question_id, 1 + question_id % 7, [Trajectory(token_ids, logprobs, reward=1.0)])
    return replay


def draw(replay: ReplayBuffer, rng: np.random.Generator) -> None:
    """Draw 64 questions by Algorithm 2."""
    sample_questions(replay.buckets, 64, 8, rng)


def move(replay: ReplayBuffer, rng: np.random.Generator) -> None:
    """Move 128 questions to the next bucket, as new rollouts would."""
    for question_id in rng.integers(0, len(replay), 128).tolist():
        replay.add(question_id, 1 + replay.bucket_of(question_id) % 7, [])


def median_milliseconds(work: Callable, replay: ReplayBuffer) -> float:
    """The median time of 201 calls of `work`."""
    rng = np.random.default_rng(1)
    seconds = repeat(lambda: work(replay, rng), number=1, repeat=201)
    return 1e3 * median(seconds)


def bench_sampler() -> Iterator[tuple[str, str, str]]:
    """A row with the milliseconds of draw and moves for each size in LIMITS."""
    for num_questions, limit in LIMITS.items():
        replay = filled_buffer(num_questions)
        drawing = median_milliseconds(draw, replay)
        moving = median_milliseconds(move, replay)
        yield (
            f"draw 64 of {num_questions:,} questions, move 128",
            f"{drawing:.2f} + {moving:.2f} = {drawing + moving:.2f} ms",
            limit,
        )
