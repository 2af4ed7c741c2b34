"""The studies' arithmetic, by hand: intervals and verdicts, scores of curves, what sampled responses say."""

import numpy as np
import pytest

from studies import responses
from studies.measures import IN, at_equal, decision, end, height, interval, mean_height, spent
from studies.responses import auc, choice, columns

# ---------------------------------------------------------------- intervals, verdicts, curves


def test_the_interval_by_hand():
    """Three values 1, 2, 3: mean 2, standard error 1/√3, quantile of t with 2 degrees of freedom 4.303."""
    mean, half = interval([1.0, 2.0, 3.0])
    assert mean == 2 and half == pytest.approx(4.303 / 3**0.5)
    for values in ([1.0], [1.0] * 11):
        with pytest.raises(ValueError, match="2 to 10 seeds"):
            interval(values)


def test_the_interval_covers_as_often_as_it_says():
    """Of 4,000 samples of five normal numbers, 95 % have the true mean in their interval (standard error 0.35
    points)."""
    draws = np.random.default_rng(0).normal(3.0, 2.0, (4000, 5))
    covered = [abs(mean - 3.0) <= half for mean, half in map(interval, draws)]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.012)


@pytest.mark.parametrize("values, expected", [
    ([0.02, 0.03, 0.025, 0.03, 0.02], "agrees"), ([-0.02, -0.03, -0.025, -0.03, -0.02], "disagrees"),
    ([0.02, -0.03, 0.025, 0.03, 0.02], "open"), ([0.0, 0.0, 0.0], "open"), ([0.01, 0.01], "agrees"),
    ([0.1, float("nan")], "open"),
])
def test_the_rule_of_the_verdict(values, expected):
    """The whole interval above 0, the whole of it below, or neither; what is not a number decides nothing."""
    assert decision(values) == expected


def test_mean_height_by_hand():
    """A triangle and a plateau; the curve is cut at `end`, and goes on level beyond its last point."""
    x, y = np.array([0.0, 2.0, 4.0]), np.array([0.0, 1.0, 1.0])
    assert [mean_height(x, y, e) for e in (1.0, 2.0, 4.0, 8.0)] == pytest.approx([0.25, 0.5, 0.75, 0.875])


ROWS = [{"step": 0, IN: 0.2},
        {"step": 1, "rollout/tokens": 100, "time/update": 1.0, "time/rollout": 1.0, "time/validate": 50.0},
        {"step": 2, "rollout/tokens": 100, "time/update": 2.0, IN: 0.6}]


def test_scores_of_a_run_by_hand():
    """Height over the steps, over more than there were; the end; what was spent: validation costs nothing."""
    assert height(ROWS, 2) == pytest.approx(0.4) and height(ROWS, 4) == pytest.approx(0.5)
    assert end(ROWS) == pytest.approx(0.4)
    assert spent(ROWS, "tokens").tolist() == [0, 100, 200] and spent(ROWS, "seconds").tolist() == [0, 2, 4]


def test_at_equal_tokens():
    """The same curve at twice the tokens: over the 200 tokens both spent, one has risen to 0.6, the other to
    0.4."""
    dear = [{**row, "rollout/tokens": 2 * row.get("rollout/tokens", 0)} for row in ROWS]
    assert at_equal("tokens", ROWS, dear) == pytest.approx(0.4 - 0.3)


# ---------------------------------------------------------------- samples


def sampled() -> dict:
    """Questions with K = 4: two with three right answers (k/K = 0.75, Easy), two with two (Medium); some are
    copies."""
    rows = [  # question, k, reward, valid, shortcut, length, entropy, nll
        (0, 3, 1, 1, 0, 20, 0.10, 0.1), (0, 3, 1, 0, 0, 10, 0.15, 0.3), (0, 3, 1, 0, 1, 3, 0.60, 0.9),
        (0, 3, 0, 0, 0, 20, 0.90, 0.9), (1, 2, 1, 1, 0, 20, 0.20, 0.2), (1, 2, 1, 0, 0, 20, 0.30, 0.1),
        (1, 2, 0, 0, 0, 20, 0.90, 0.9), (1, 2, 0, 0, 1, 3, 0.90, 0.9),
        *2 * [(2, 3, 1, 1, 0, 20, 0.10, 0.1)], (2, 3, 1, 0, 0, 10, 0.30, 0.3), (2, 3, 0, 0, 0, 20, 0.90, 0.9),
        *2 * [(3, 2, 1, 1, 0, 20, 0.20, 0.2)], *2 * [(3, 2, 0, 0, 0, 20, 0.90, 0.9)]]
    names = ("question", "k", "reward", "valid", "shortcut", "length", "entropy", "nll")
    return {"num_rollouts": 4, "columns": {name: [row[i] for row in rows] for i, name in enumerate(names)}}


def test_samples_by_hand():
    """Buckets by k/K, entropy gaps with and without shortcuts, AUC with ties."""
    s = columns(sampled())
    assert s["bucket"].tolist() == ["Easy"] * 4 + ["Medium"] * 4 + ["Easy"] * 4 + ["Medium"] * 4
    assert responses.bucket_gap(s, "Easy") == pytest.approx(0.35 - 0.10)
    assert responses.bucket_gap(s, "Easy", shortcuts=False) == pytest.approx(0.225 - 0.10)
    assert responses.bucket_gap(s,
                                "Medium") == pytest.approx(0.10) and np.isnan(responses.bucket_gap(s, "Hard"))
    assert auc(np.array([1, 2]), np.array([2, 3])) == (0.5 + 1 + 1 + 1) / 4
    assert responses.bucket_auc(s, "entropy") == 1 and responses.bucket_auc(s, "nll") == 0.5
    assert responses.bucket_auc(s, "length") == pytest.approx(0.75)  # shorter is flawed: better than 0.25


def test_rules_of_selection_by_hand():
    """A buffer keeps one copy of each response; what the two rules choose from it, held against chance."""
    s = columns(sampled())
    rows = responses.stored(s)
    assert [sorted(r.tolist()) for r in rows] == [[0, 1, 2], [4, 5], [8, 10]]  # question 3 leaves no choice
    assert [choice(s, "paper", r) for r in rows] == [0, 4, 8]
    assert [choice(s, "official", r) for r in rows] == [1, 4, 8]  # sums 2.0, 1.5, 1.8; 4, 6; 2, 3
    assert responses.agreement(s) == pytest.approx((0 - 1 / 3 + 1 - 1 / 2 + 1 - 1 / 2) / 3)
    assert responses.shortness(s) == pytest.approx((0 - 1 / 3 + 1 - 1 + 0 - 1 / 2) / 3)
    assert responses.validity(s, "official") == pytest.approx(1 / 3)
    assert responses.validity(s, "random") == pytest.approx((1 - 1 / 3 + 1 - 1 / 2 + 1 - 1 / 2) / 3)
