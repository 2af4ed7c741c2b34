"""The comparison of evaluations, against differences and intervals by hand."""

import json

import pytest
from conftest import write_jsonl

from tools.compare import compare


def evaluation(run, seed, successes):
    """The evaluation of a run: (question, success) of each response, which earns half of it."""
    (run / "eval").mkdir(parents=True)
    (run / "config.json").write_text(json.dumps({"seed": seed}))
    (run / "eval/scores.json").write_text(json.dumps({"model": str(run / "model")}))
    rows = []
    for question, success in successes:
        values = {"success": bool(success), "reward": success / 2}
        rows.append({"source": "s", "text": question, "gold": "1"} | values)
    write_jsonl(run / "eval/responses.jsonl", rows)
    return run / "eval"


def test_two_evaluations(tmp_path, capsys):
    """Samples are averaged by question; the four of both differ by 1/2, 1, 0 and 0.

    The mean is 0.375 and the interval 3.182 · 0.479 / √4 to either side; e is not asked twice.
    """
    before = evaluation(tmp_path / "a", 0, [("a", 0), ("a", 1), *zip("bcde", (0, 0, 1, 1))])
    after = evaluation(tmp_path / "b", 0, [("a", 1), *zip("dcb", (1, 0, 1))])
    compare((before, after))
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| s | Pass@1 | 0.375 | 0.750 | +0.375 (-0.387 to +1.137) | 4 |",
        "| s | mean reward | 0.188 | 0.375 | +0.188 (-0.193 to +0.568) | 4 |",
    ]


def test_runs_are_paired_by_seed(tmp_path, capsys):
    """In whatever order they are named: seeds 1 and 10 gain 0 and 1, so 0.5 ± 12.706 · 0.5."""
    low, middle, high = ([("a", i > 0), ("b", i > 1)] for i in range(3))
    first = evaluation(tmp_path / "a1", 1, middle), evaluation(tmp_path / "a10", 10, low)
    second = evaluation(tmp_path / "b10", 10, high), evaluation(tmp_path / "b1", 1, middle)
    compare(first, second)
    printed = capsys.readouterr().out
    assert "| s | Pass@1 | 0.250 | 0.750 | +0.500 (-5.853 to +6.853) | 2 |" in printed
    compare(second, tuple(reversed(second)))
    assert "+0.000 (the same in all 2, so without an interval)" in capsys.readouterr().out


@pytest.mark.parametrize("seeds", [(1, 11), (1,), (1, 1)])
def test_runs_without_partners_are_refused(tmp_path, seeds):
    """Another seed, one run less, and the same seed twice."""
    runs = tuple(evaluation(tmp_path / f"a{seed}", seed, [("a", 1)]) for seed in (1, 10))
    others = enumerate(seeds)
    against = [evaluation(tmp_path / f"b{i}", seed, [("a", 1)]) for i, seed in others]
    with pytest.raises(SystemExit, match="paired by seed"):
        compare(runs, tuple(against))
    (tmp_path / "a1/config.json").unlink()
    with pytest.raises(SystemExit, match="no config.json of a run"):
        compare(runs, runs)
