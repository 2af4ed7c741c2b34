"""What is drawn: bucket weights by hand, Algorithm 2 by its frequencies, the fresh stream."""

import doctest
import math

import numpy as np
import pytest

import sampler
from sampler import FreshStream, bucket_weights, sample_questions

K = 8


def rng():
    return np.random.default_rng(0)


def by_weight(buckets, n, generator):
    return sample_questions(buckets, n, K, generator)


def assert_frequencies(counts, n, p):
    """Every count is within 4.5 standard deviations of its mean; a false alarm is below 1e-5."""
    for count, chance in zip(counts, p):
        assert abs(count - n * chance) <= 4.5 * math.sqrt(n * chance * (1 - chance))


# ---- bucket weights ------------------------------------------------------------------------------


def test_the_official_codes_bucket_weights():
    """N(k; K/2, 1) over k = 1..7 of 8 is what the official code draws by.

    Source: the probabilities that `WeightedBucketSampler(buckets, 8, "normal")` makes of its
    `_normal_mapping`, in ExGRPO/exgrpo/verl/verl/mix_src/experience/weighted_bucket_sampler.py of
    github.com/ElliottYan/LUFFY (commit 01f4ae0).
    """
    official = [0.00443305, 0.05400558, 0.24203623, 0.39905028, 0.24203623, 0.05400558, 0.00443305]
    assert bucket_weights(range(1, K), K) == pytest.approx(official, rel=1e-5)


def test_the_papers_text_is_sigma_k():
    """N(k; μK, K) is the paper's N(k/K; μ, 1), where all buckets are within 7%."""
    of_1, of_4 = bucket_weights([1, 4], K, sigma=K)
    assert of_1 / of_4 == pytest.approx(math.exp(-((1 / 8 - 0.5) ** 2) / 2))


def test_a_tiny_sigma_leaves_the_nearest_buckets():
    """Where all densities would underflow to 0, the nearest buckets share the weight."""
    assert bucket_weights([1, 2, 6, 7], K, sigma=0.001).tolist() == [0, 0.5, 0.5, 0]


# ---- Algorithm 2 ---------------------------------------------------------------------------------


@pytest.mark.parametrize("of_medium", [900_000, 10])
def test_frequencies_of_the_buckets(of_medium):
    """Of 50,000 drawn each bucket has its weight's share, whatever the buckets' sizes.

    What a too small bucket lacks is split over the others by their weights.
    """
    sizes = {1: 60_000, 2: 700_000, 3: 55_000, 4: of_medium}
    buckets = {k: range(k * 1_000_000, k * 1_000_000 + size) for k, size in sizes.items()}
    drawn = by_weight(buckets, 50_000, rng())
    counts = {k: sum(q in buckets[k] for q in drawn) for k in sizes}
    if of_medium == 10:
        assert counts.pop(4) == 10
    weights = bucket_weights([*counts], K)
    assert_frequencies(counts.values(), sum(counts.values()), weights)


def test_the_deficits_of_the_docstring():
    """The example's three buckets, one too small and one emptied, are drawn as it shows."""
    result = doctest.testmod(sampler)
    assert result.attempted > 1 and result.failed == 0


def test_all_questions_of_a_bucket_are_equally_likely():
    """Three of ten are drawn 2,000 times."""
    generator, seen = rng(), np.zeros(10)
    for _ in range(2_000):
        seen[by_weight({4: range(10)}, 3, generator)] += 1
    assert_frequencies(seen, 2_000, [0.3] * 10)


def test_as_many_as_there_are_and_by_the_generator_alone():
    """min(n, total) distinct ids are drawn, if need be from buckets without weight.

    The order of the buckets does not matter.
    """
    buckets = {100: [1], 2: [20, 21], 4: range(40, 90), 5: []}
    for n, number in [(20, 20), (99, 53)]:
        drawn = by_weight(buckets, n, rng())
        assert len(drawn) == len(set(drawn)) == number
        assert drawn == by_weight(dict(reversed(buckets.items())), n, rng())


# ---- the stream of fresh questions ---------------------------------------------------------------


def test_an_epoch_is_a_permutation():
    """Every question comes once per epoch, in an order of that epoch and seed.

    Where an epoch ends inside a batch, no question is in it twice.
    """
    runs = []
    for seed in (3, 3, 4):
        stream = FreshStream([*range(7)], seed)
        batches = [stream.draw(5, set()) for _ in range(140)]
        assert all(len(set(batch)) == 5 for batch in batches)
        assert np.bincount(np.concatenate(batches)).tolist() == [100] * 7
        assert batches[:7] != batches[7:14]
        runs.append(batches)
    assert runs[0] == runs[1] != runs[2]


def test_retired_skipped_and_inserted_questions():
    """A retired one is never drawn, and a skipped one opens the next draw.

    Those put back come in what is left of the epoch. No question waits twice.
    """
    stream = FreshStream([*range(8)], seed=0, queue=[7, 6, 5, 4, 3, 2, 1, 0])
    assert stream.draw(3, {1}, skip=[0, 3]) == [2, 4, 5]
    assert stream.draw(2, {1, 6}) == [0, 3]
    stream.insert([1, 6], rng())
    assert sorted(stream.queue) == [1, 6, 7]
    for _ in range(20):
        assert not {1, 6} & set(stream.draw(3, {1, 6}))
    stream = FreshStream([*range(4)], seed=0, queue=[0])
    stream.draw(3, set(), skip=[0])
    assert stream.queue == [0]
