"""What is drawn: bucket weights in closed form, Algorithm 2 by statistics, the fresh stream."""

import doctest
import math
import random
from itertools import product

import numpy as np
import pytest

import sampler
from sampler import (
    FreshStream,
    bucket_weights,
    rng_for,
    sample_questions,
    sample_seed,
    sample_uniform,
)

K = 8


def rng(seed=0):
    return np.random.default_rng(seed)


def by_weight(buckets, n, generator):
    return sample_questions(buckets, n, K, generator)


def far_buckets(sizes):
    """Buckets of any size without memory: in bucket 4 are the ids 4,000,000 and up."""
    return {k: range(1_000_000 * k, 1_000_000 * k + n) for k, n in sizes.items()}


def assert_multinomial(counts, n, p):
    """Every count is within 4.5 standard deviations of its mean, false alarms below 1e-5."""
    for count, chance in zip(counts, p, strict=True):
        assert abs(count - n * chance) <= 4.5 * math.sqrt(n * chance * (1 - chance))


# ---- weights ----


def test_weights_on_counts_are_the_papers_ratios():
    """k = 4, 3, 2, 1 of 8 weigh 1 : 0.61 : 0.14 : 0.01, symmetric around 4."""
    weights = bucket_weights([1, 2, 3, 4, 5, 6, 7], K)
    assert np.round(weights / weights[3], 2).tolist() == [0.01, 0.14, 0.61, 1, 0.61, 0.14, 0.01]


def test_the_papers_text_is_sigma_8():
    """N(k; μK, 8) is the paper's N(k/K; μ, 1): all buckets are within 7%."""
    density = [math.exp(-((k / K - 0.5) ** 2) / 2) for k in range(1, K)]
    expected = np.array(density) / sum(density)
    assert bucket_weights(range(1, K), K, sigma=8.0) == pytest.approx(expected)
    assert expected.min() / expected.max() > 0.93


@pytest.mark.parametrize("sigma", [0.001, 0.01])
def test_a_tiny_sigma_leaves_the_nearest_buckets(sigma):
    """Where sigma is small and the buckets far, the nearest share the weight; no nan."""
    assert bucket_weights([1, 2, 6, 7], K, sigma=sigma).tolist() == [0, 0.5, 0.5, 0]
    assert bucket_weights([6, 7], K, mu=0.0, sigma=sigma).tolist() == [1, 0]


# ---- Algorithm 2 ----


@pytest.mark.parametrize("of_medium", [900_000, 10])
def test_bucket_counts_are_multinomial(of_medium):
    """Of 50,000 drawn, each bucket's share is its weight; the buckets' sizes do not matter.

    What a bucket lacks is split over the others by their weights.
    """
    sizes = {1: 60_000, 2: 700_000, 3: 55_000, 5: 60_000, 6: 50_001, 7: 999_999, 4: of_medium}
    drawn = sample_questions(far_buckets(sizes), 50_000, K, rng())
    counts = [sum(q // 1_000_000 == k for q in drawn) for k in sizes]
    if of_medium == 10:
        assert counts.pop() == 10
    assert len(set(drawn)) == 50_000
    assert_multinomial(counts, sum(counts), bucket_weights([*sizes][: len(counts)], K))


def test_uniform_inside_a_bucket():
    """Each of 20 questions of one bucket is among the 5 drawn a quarter of the time."""
    generator, seen = rng(), np.zeros(20)
    for _ in range(2_000):
        seen[sample_questions({4: range(20)}, 5, K, generator)] += 1
    assert_multinomial(seen, 2_000, [0.25] * 20)


def test_uniform_sampling_ignores_the_buckets():
    """A question's chance depends neither on its bucket nor on that one's size (Table 6)."""
    buckets = {7: [0], 1: [1, 2, 3, 4, 5, 6, 7], 4: [8, 9], 2: []}
    generator, seen = rng(), np.zeros(10)
    for _ in range(2_000):
        drawn = sample_uniform(buckets, 3, generator)
        assert len(set(drawn)) == 3
        seen[drawn] += 1
    assert_multinomial(seen, 2_000, [0.3] * 10)


def test_the_example_of_the_redistribution_is_right():
    """The docstring's three buckets, one too small and one emptied, are drawn as it shows."""
    assert doctest.testmod(sampler).attempted > 1 and not doctest.testmod(sampler).failed


def test_redistribution_goes_on_until_all_are_drawn():
    """The nearest come first, and the others even where their weights vanish."""
    buckets = {1: [1], 2: [20, 21], 4: [40, 41], 5: [], 7: [70, 71, 72]}
    everything = {1, 20, 21, 40, 41, 70, 71, 72}
    for n in (8, 1_000):
        assert set(sample_questions(buckets, n, K, rng(), sigma=0.001)) == everything
    assert set(sample_questions(buckets, 4, K, rng(), sigma=0.001)) == {40, 41, 20, 21}


@pytest.mark.parametrize("draw", [by_weight, sample_uniform])
def test_drawn_questions_are_distinct_and_as_many_as_asked(draw):
    """min(n, total) different ids are drawn, all from the buckets, as Python ints; often none."""
    cases = [({}, 5), ({3: []}, 5), ({3: [300]}, 0)]
    for seed in range(10):
        sizes = rng(seed).integers(0, 12, K + 1).tolist()
        buckets = {k: np.arange(100 * k, 100 * k + size) for k, size in enumerate(sizes)}
        cases.append((buckets, 6 * seed))
    for buckets, n in cases:
        drawn = draw(buckets, n, rng(1))
        assert len(drawn) == len(set(drawn)) == min(n, sum(map(len, buckets.values())))
        assert all(type(q) is int and q in buckets[q // 100] for q in drawn)


def test_the_generator_decides_everything():
    """Neither the mapping's order nor global state matters, and another seed does."""
    buckets = far_buckets({2: 50, 4: 20_000, 5: 700})
    before = random.getstate(), np.random.get_state()[1].tolist()
    for draw in (by_weight, sample_uniform):
        drawn = draw(buckets, 64, rng(5))
        assert (
            drawn == draw(dict(reversed(buckets.items())), 64, rng(5)) != draw(buckets, 64, rng(6))
        )
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


# ---- the stream of fresh questions --------------------------------------------------------------


def test_an_epoch_is_a_permutation():
    """Every question comes once per epoch, and each epoch and seed has another order."""
    stream = FreshStream(range(10), seed=3)
    drawn = [q for _ in range(5) for q in stream.draw(4, ())]
    assert sorted(drawn[:10]) == sorted(drawn[10:]) == list(range(10)) and drawn[:10] != drawn[10:]
    assert FreshStream(range(10), 3).draw(10, ()) == drawn[:10]
    assert FreshStream(range(10), 4).draw(10, ()) != drawn[:10]


def test_retired_questions_are_never_drawn():
    """Retirement takes effect at once, also for what is left of the epoch."""
    stream = FreshStream(range(10), seed=0, queue=[4, 3, 2, 1, 0])
    assert stream.draw(3, {0, 2}) == [1, 3, 4]
    assert not {0, 2} & {q for _ in range(20) for q in stream.draw(4, {0, 2})}


def test_skipped_questions_come_back_first():
    """What is replayed in a batch is not fresh in it, and opens the next one in its order."""
    stream = FreshStream(range(8), seed=0, queue=[5, 4, 3, 2, 1, 0])
    assert stream.draw(3, (), skip=[0, 2]) == [1, 3, 4]
    assert stream.draw(3, ()) == [0, 2, 5]


def test_what_is_always_skipped_waits_once_for_each_epoch_at_most():
    """Questions that every batch skips pile up no copies, and no turns for later."""
    stream = FreshStream(range(10), seed=0)
    for _ in range(400):
        assert not {0, 1} & set(stream.draw(4, (), skip=[0, 1]))
        assert len(stream.queue) <= 20
    counts = np.bincount([q for _ in range(100) for q in stream.draw(5, ())], minlength=10)
    assert np.ptp(counts) <= 2  # of fifty: one for the cut of the epoch, one that was owed


def test_no_question_twice_in_a_batch_across_the_epoch_boundary():
    """The second epoch's copies of what a batch has wait for the next batch."""
    for seed in range(20):
        stream = FreshStream(range(7), seed)
        batches = [stream.draw(5, ()) for _ in range(14)]
        assert all(len(set(batch)) == 5 for batch in batches)
        assert np.ptp(np.bincount(np.concatenate(batches), minlength=7)) <= 1  # nobody is forgotten


def test_the_batch_shrinks_and_ends():
    """A batch has what is left, once each, and at last nothing, without looping for ever."""
    stream = FreshStream(range(6), seed=0)
    assert sorted(stream.draw(10, {0, 1}, skip=[2])) == [3, 4, 5]
    assert stream.draw(10, {0, 1, 2}, skip=[3, 4, 5]) == stream.draw(4, set(range(6))) == []
    assert sorted(stream.draw(10, ())) == [0, 1, 2, 3, 4, 5]
    assert FreshStream([], seed=0).draw(3, ()) == []


def test_inserted_questions_are_drawn_within_the_epoch():
    """Returned questions mix into what is left, at seeded places, once each (Table 7).

    One that retired and was put back before its turn came does not stand in the epoch twice.
    """
    seen = set()
    for seed in range(20):
        stream = FreshStream([], seed=0, queue=[6, 5, 7])
        stream.insert([3, 4, 5], rng(seed))
        drawn = stream.queue[::-1]
        assert sorted(drawn) == [3, 4, 5, 6, 7] and [q for q in drawn if q > 4] == [7, 5, 6]
        seen.add(drawn.index(3))
    assert len(seen) == 5


def test_purposes_do_not_share_random_numbers():
    """Equal keys give equal numbers for one purpose only, be it the stream's or the plan's."""
    drawn = {rng_for(p, 0, n).integers(2**60) for p in ("stream", "plan") for n in range(5)}
    assert len(drawn) == 10 and rng_for("plan", 0, 3).integers(2**60) in drawn


def test_sample_seeds_are_distinct_and_fixed():
    """Seeds differ in every part of the key, fit 63 bits, and are the same in every process."""
    keys = product(range(3), range(5), range(20), range(8))  # run seed, step, question, index
    seeds = {sample_seed(*key) for key in keys}
    assert len(seeds) == 3 * 5 * 20 * 8 and 0 <= min(seeds) and max(seeds) < 2**63
    assert sample_seed(0, 1, 2, 3) == 5735612403627336365
