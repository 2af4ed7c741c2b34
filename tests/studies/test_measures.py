"""The studies' arithmetic, by hand: intervals, Holm, the rule, the end of a run, AUC within a question."""

import numpy as np
import pytest

from studies import easy
from studies.measures import (
    end,
    half_width,
    holm_levels,
    mean_of,
    p_value,
    restated,
    t_quantile,
    verdict,
    within_question_auc,
)


def test_quantiles_and_p_of_student():
    """Against printed tables; a t of the 97.5% quantile has a two-sided p of 0.05."""
    table = {(0.975, 1): 12.706, (0.975, 7): 2.365, (0.9875, 7): 2.841, (0.95, 7): 1.895}
    assert all(t_quantile(*key) == pytest.approx(value, abs=5e-4) for key, value in table.items())
    values = np.array([1.0, 2.0, 3.0])  # mean 2, standard error 1/√3
    assert half_width(values) == pytest.approx(4.3027 / 3**0.5, abs=1e-3)
    assert p_value(values - 2 + 4.3027 / 3**0.5) == pytest.approx(0.05, abs=1e-5)
    assert p_value([0.0, 0.0]) == 1 and p_value([0.1, 0.1]) == 0
    with pytest.raises(ValueError, match="two units"):
        half_width([1.0])


def test_the_interval_covers_as_often_as_it_says():
    """Of 4,000 samples of eight normal numbers, 95% contain the true mean (standard error 0.35)."""
    draws = np.random.default_rng(0).normal(3.0, 2.0, (4000, 8))
    widths = t_quantile(0.975, 7) * draws.std(1, ddof=1) / 8**0.5
    assert half_width(draws[0]) == pytest.approx(widths[0])
    assert np.mean(np.abs(draws.mean(1) - 3) <= widths) == pytest.approx(0.95, abs=0.012)


def spread(mean: float, half: float) -> list[float]:
    """Eight numbers with this mean and this half width of their 95% interval."""
    unit = np.array([-1.0, 1.0] * 4)
    return list(mean + unit * half / half_width(unit))


def test_holm_by_hand():
    """Of two rows the clearer one stands at 97.5%; the other at 95% only if that one was decided."""
    clear, weaker, none = spread(1, 0.2), spread(1, 0.9), spread(1, 1.5)
    assert holm_levels([clear, weaker]) == [0.975, 0.95]
    assert holm_levels([weaker, clear]) == [0.95, 0.975]
    assert holm_levels([none, none]) == [0.975, 0.975] and holm_levels([none]) == [0.95]
    assert verdict(weaker, 0.975) == "undecided" and verdict(weaker, 0.95) == "better"


@pytest.mark.parametrize("values, answer", [
    (spread(0.05, 0.04), "better"), (spread(-0.05, 0.04), "worse"),
    (spread(0.01, 0.02), "equal within 3 points"), (spread(0.01, 0.03), "undecided"),
    (spread(0.025, 0.02), "better"), (spread(0.0, 0.05), "undecided")])
def test_the_rule(values, answer):
    """The interval excludes 0, or else the 90% interval lies inside 3 points, or neither."""
    assert verdict(values, 0.95) == answer


def test_the_end_of_a_run_by_hand():
    """Two checkpoints, two trained sources of one and two questions, one held out; four samples each."""
    record = {"result": {"samples": 4, "ends": {"90": {"a": [4], "b": [0, 2], "c": [1]},
                                                "100": {"a": [4], "b": [4, 4], "c": [3]}}}}
    assert end(record, ["c"]) == pytest.approx((6 / 12 + 12 / 12) / 2)
    assert end(record, ["c"], "held out") == pytest.approx((1 / 4 + 3 / 4) / 2)


def test_a_mean_over_steps_skips_rows_without_the_metric():
    """Validation rows and nulls do not count."""
    assert mean_of({"rows": [{}, {"x": 1.0}, {"x": None}, {"x": 2.0}]}, "x") == 1.5


def test_the_share_that_only_restates_by_hand():
    """Of the last two of eight steps 5 and 3 are right, of which 1 and 1 restate."""
    rows = [{"snowball/right": right, "snowball/restated": said}
            for right, said in [(9, 9)] * 6 + [(5, 1), (3, 1)]]
    assert restated({"rows": [{"step": 0}, *rows]}) == pytest.approx(0.25)
    assert np.isnan(restated({"rows": [{"snowball/right": 0, "snowball/restated": 0}]}))


def test_auc_within_a_question_by_hand():
    """Question 0: two valid, two flawed, three of four pairs the right way round and a tie; 1 has no pair."""
    columns = {"question": [0, 0, 0, 0, 0, 1], "reward": [1, 1, 1, 1, 0, 1], "valid": [1, 1, 0, 0, 1, 1],
               "entropy": [0.1, 0.3, 0.3, 0.5, 9.0, 0.0]}
    assert within_question_auc(columns) == (pytest.approx((3 + 0.5) / 4 - 0.5), 4)
    auc, pairs = within_question_auc({name: values[4:] for name, values in columns.items()})
    assert np.isnan(auc) and pairs == 0


def test_the_curves_of_the_easy_world_by_hand(monkeypatch):
    """A triangle and a plateau; the last three of four validations."""
    rows = [{"step": s, easy.IN: v} for s, v in ((0, 0.0), (2, 1.0), (4, 1.0), (8, 1.0))] + [{"step": 8}]
    monkeypatch.setattr(easy, "_read", lambda *_: {"rows": rows})
    assert easy.height("x", 0) == pytest.approx(7 / 8) and easy.last("x", 0) == 1
