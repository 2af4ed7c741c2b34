"""Time what a step asks of buffer and sampler: draw 64 questions, move 128 to other buckets.

python -m bench.draw
"""

from timeit import timeit

import numpy as np

from buffer import ReplayBuffer, Trajectory
from sampler import sample_questions


def milliseconds(num_questions: int) -> float:
    """The mean time of both together, with the questions spread over the buckets 1 to 7."""
    token_ids = np.arange(4, dtype=np.int32)  # (T,)
    logprobs = np.zeros(4, dtype=np.float32)  # (T,)
    response = Trajectory(token_ids, logprobs, reward=1.0)
    buffer = ReplayBuffer()
    for question in range(num_questions):
        buffer.add(question, 1 + question % 7, [response])
    rng = np.random.default_rng(0)

    def draw_and_move() -> None:
        sample_questions(buffer.buckets, 64, 8, rng)
        for question in range(128):
            buffer.add(question, int(rng.integers(1, 8)), [])

    return 1e3 * timeit(draw_and_move, number=200) / 200


if __name__ == "__main__":
    for size in (45_000, 1_000_000):
        print(f"{size:9,} questions: {milliseconds(size):.2f} ms a step")
