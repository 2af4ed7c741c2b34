"""Buffer and sampler: draws, updates, memory, files. No GPU, no torch."""

import argparse
import multiprocessing
import os
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np

from bench.meters import Row, peak_resident_bytes, seconds
from buffer import ReplayBuffer, Trajectory
from sampler import sample_questions

# The official code, per step, one core, measured: the draw of 64 questions grows with the square.
OFFICIAL_DRAW = {1_000: 0.004, 5_000: 0.09, 20_000: 1.4, 45_000: 7.7}  # seconds
OFFICIAL_MOVES = {45_000: 0.013}  # seconds for 128 bucket moves


def random_trajectory(rng: np.random.Generator, length: int, step: int) -> Trajectory:
    token_ids = rng.integers(0, 150_000, length, dtype=np.int32)  # [T]
    return Trajectory(token_ids, -rng.random(length, dtype=np.float32), step)


def filled_buffer(num_questions: int, per_question: int, length: int) -> ReplayBuffer:
    rng, replay = np.random.default_rng(0), ReplayBuffer()
    for question_id in range(num_questions):
        stored = [random_trajectory(rng, length, question_id // 128) for _ in range(per_question)]
        replay.add(question_id, 1 + question_id % 7, stored)
    return replay


def bench_buffer(args: argparse.Namespace) -> Iterator[Row]:
    for num_questions in (1_000, 45_000, 1_000_000):
        yield from bench_updates(num_questions)
    for per_question, length in ((1, 100), (4, 100), (4, 1_000)):
        yield bench_memory(per_question, length)
    yield from bench_file(200_000 if args.full else 10_000, length=1_000)


def bench_updates(num_questions: int) -> Iterator[Row]:
    """One step's work on the buffer: draw 64 questions; move 128, with 0, 1 or 4 new responses each."""
    replay, rng = filled_buffer(num_questions, per_question=1, length=4), np.random.default_rng(1)
    brought = {  # number of responses -> those of each of the 128 questions
        n: [[random_trajectory(rng, 1_000, step=1) for _ in range(n)] for _ in range(128)] for n in (0, 1, 4)
    }

    def draw():
        return sample_questions(replay.buckets, 64, 8, rng)

    def move(n):
        chosen = rng.integers(0, num_questions, 128).tolist()
        for question_id, new in zip(chosen, brought[n], strict=True):
            replay.add(question_id, 1 + replay.num_success(question_id) % 7, new)

    drawing, moving = seconds(draw, 201), seconds(lambda: move(0), 201)
    storing = {n: seconds(partial(move, n), 21) for n in (1, 4)}
    size = f"{num_questions:,} questions"
    official, ratio = OFFICIAL_DRAW.get(num_questions), ""
    if official:
        ratio = f"official {official * 1e3:,.0f} ms ({official / drawing:,.0f}x)"
    if num_questions == 45_000:
        ratio += ", bar 5,000x"
    yield f"{size}: draw 64", f"{drawing * 1e3:.3f} ms", ratio
    official = OFFICIAL_MOVES.get(num_questions)
    ratio = f"official {official * 1e3:.0f} ms ({official / moving:.0f}x)" if official else ""
    yield f"{size}: 128 bucket moves", f"{moving * 1e3:.3f} ms", ratio
    yield f"{size}: draw + moves", f"{(drawing + moving) * 1e3:.3f} ms", "bar 1.6 ms at 45k, 2 ms at 1M"
    for n, taken in storing.items():
        yield f"{size}: 128 moves, responses of 1,000 tokens with each: {n}", f"{taken * 1e3:.2f} ms", ""


def bench_memory(per_question: int, length: int) -> Row:
    """Everything Python allocates for a stored trajectory, its share of the question included."""
    num_questions = 2_000
    filled_buffer(1, per_question, length)  # what Python and NumPy allocate once is not counted
    tracemalloc.start()
    replay = filled_buffer(num_questions, per_question, length)
    used = tracemalloc.get_traced_memory()[0] / replay.num_trajectories
    tracemalloc.stop()
    return (
        f"memory a trajectory, {length:,} tokens, {per_question} a question",
        f"{used:,.0f} B = 8 a token + {used - 8 * length:.0f}",
        "bar 8 a token + 450",
    )


def bench_file(num_trajectories: int, length: int) -> Iterator[Row]:
    """Save and load, each in a process of its own, so that its peak memory is only its own."""
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "buffer.safetensors")
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as pool:
            saving, save_cpu, save_peak = pool.submit(timed_save, path, num_trajectories, length).result()
            loading, load_cpu, load_peak = pool.submit(timed_load, path).result()
        gigabytes = os.path.getsize(path) / 1e9
        start = time.perf_counter()
        with open(path + ".copy", "wb") as file:  # the disk's own speed, for comparison
            for _ in range(round(gigabytes * 1e9 / (1 << 24))):
                file.write(bytes(1 << 24))
            os.fsync(file.fileno())
        plain = time.perf_counter() - start
    what = f"{num_trajectories:,} trajectories of {length:,} tokens ({gigabytes:.2f} GB)"
    yield (
        f"save {what}",
        f"{saving:.2f} s ({save_cpu:.2f} s CPU)",
        f"bar 10 s at 1.6 GB; plain write of as much {plain:.2f} s",
    )
    yield f"load {what}", f"{loading:.2f} s ({load_cpu:.2f} s CPU)", "bar 10 s at 1.6 GB"
    yield "peak memory while saving / loading", f"{save_peak:.2f} / {load_peak:.2f} of the data", "bar 2.2"


def timed_save(path: str, num_trajectories: int, length: int) -> tuple[float, float, float]:
    """(wall seconds, CPU seconds, peak memory as a multiple of the data)."""
    before = peak_resident_bytes()
    replay = filled_buffer(num_trajectories // 5, 5, length)
    wall, cpu = time.perf_counter(), time.process_time()
    replay.save(path)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return wall, cpu, (peak_resident_bytes() - before) / replay.nbytes


def timed_load(path: str) -> tuple[float, float, float]:
    before, wall, cpu = peak_resident_bytes(), time.perf_counter(), time.process_time()
    replay = ReplayBuffer.load(path)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return wall, cpu, (peak_resident_bytes() - before) / replay.nbytes
