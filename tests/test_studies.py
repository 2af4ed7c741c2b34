"""The study: its outcomes, its choice of a rate, its p values, and its arm without an o*."""

import numpy as np
import pytest
from conftest import ROOT, toy_config
from test_exgrpo import K, make_plan, questions, store

from studies import analysis, arms, runs
from studies.arms import GRID, Run
from studies.experience import WithoutStar


def record(near: list[float], far: list[float]) -> dict:
    """A record with these curves, of a point every 20 steps from step 0 on."""
    return {"step": [20 * i for i in range(len(near))], "near": near, "far": far}


def test_a_score_is_the_mean_of_two_means():
    """Six points of each curve count, not the base's; a run that ended early keeps its last."""
    # The last stands for steps 60 to 120.
    early = record([0.0, 0.1, 0.2, 0.3], [0.0, 0.0, 0.0, 0.6])
    assert analysis.score(early) == pytest.approx((1.5 + 2.4) / 12)
    # Until step 60 the six points are 10, 20, ..., 60.
    assert analysis.mean(early, "near", until=60) == pytest.approx(1.05 / 6)


def test_the_lowest_rate_near_enough_to_the_best_is_chosen():
    """0.60, 0.63, 0.64, 0.50: 3e-4 is within 0.02 of the best, and one base alone says 4.5e-4."""
    tried = {}
    for lr, level in zip(GRID, (0.60, 0.63, 0.64, 0.50)):
        first = level + 0.04 * (lr == 4.5e-4)
        levels = (first, level, level, level)
        tried[lr] = [record([0.0] + [x] * 6, [0.0] + [x] * 6) for x in levels]
    assert analysis.choice(tried) == 3e-4
    assert analysis.choice({lr: group[:1] for lr, group in tried.items()}) == 4.5e-4


def test_the_rates_are_those_that_the_rule_chooses():
    """Of the records of the four seeds that choose, and no edge of the grid has won."""
    table = analysis.rates(analysis.grouped(runs.read(), arms.BLOCKS)["rates"])
    for arm, chosen in arms.RATES.items():
        assert f"| {arm} | {chosen:g} |" in table and chosen not in (GRID[0], GRID[-1])


def test_the_page_holds_every_comparison():
    """Each line of each table of comparisons, as the records give it, stands in the page."""
    page = (ROOT / "studies/README.md").read_text()
    blocks = analysis.grouped(runs.read(), arms.BLOCKS)
    for name, rows in arms.ROWS.items():
        for line in analysis.compared(blocks[name], rows).splitlines():
            assert line in page


def test_what_decides_is_run_before_the_rest():
    """After the 64 runs of the rates come the 48 of the four rows, on twelve seeds."""
    main = set()
    for row in arms.ROWS["main"]:
        main |= {Run(seed, *group) for group in row[1:3] for seed in arms.DECIDING}
    assert set(arms.all_runs()[64:112]) == main and len(main) == 48
    assert sum(row.decided for row in arms.ROWS["main"]) == 4


def test_sign_flips_and_holm():
    """Of eight sign patterns two are as extreme as +++; Holm stops at the first too large."""
    assert analysis.sign_flip(np.array([1.0, 2.0, 3.0])) == 2 / 8
    ps = {"a": 0.02, "b": 0.012, "c": 0.9, "d": 0.03}
    assert analysis.holm(ps) == ["b"]
    assert analysis.holm(ps | {"a": 0.016}) == ["b", "a"]


@pytest.mark.parametrize(
    ("change", "message"),
    [({"commit": "other"}, "another commit"), ({"weights": "other"}, "built twice")],
)
def test_mixed_records_are_refused(tmp_path, monkeypatch, change, message):
    """Records of two commits, or of a base with two builds, are no study."""
    one = {"world": "320", "arm": "R0", "lr": 3e-4, "base": 70}
    one |= {"commit": arms.COMMIT, "weights": "w", "processor": "AVX512"}
    other = one | {"arm": "P"} | change
    file = tmp_path / "records.jsonl"
    file.write_text(f"{one}\n{other}\n".replace("'", '"'))
    monkeypatch.setattr(runs, "RECORDS", file)
    with pytest.raises(ValueError, match=message):
        runs.read()


def test_what_a_run_measured():
    """Worked out by hand: question 7 taught twice, once in a group that returned from bucket 3."""
    groups = [[0, 7, 3, None], [0, 8, 8, None], [1, 7, 5, 3], [1, 9, 0, None]]
    rows = []
    for step in (1, 2):
        row = {"step": step, "rollout/tokens": 100, "replay/questions": step - 1}
        rows.append(row | {"fresh/silent": 0.5, "buckets/left": 40 - step})
    rows[1] |= dict.fromkeys(list(runs.CURVES.values())[1:], 0.25)
    found = runs.measured(rows, groups)
    assert found["tokens"] == [200] and found["questions_taught"] == [1]
    assert found["fresh_taught"] == [1] and found["returned_taught"] == [1]
    assert found["returns"][3][5] == np.sum(found["returns"]) == 1
    assert found["left_least"] == 38 and found["ended"] == found["replay_from"] == 2


def test_without_a_star_drawn_questions_get_k_new_answers(tmp_path, monkeypatch):
    """What ExGRPO would replay is asked again, K times, and no stored answer is chosen."""
    monkeypatch.setenv("GROUPS_FILE", str(tmp_path / "groups.jsonl"))
    config = toy_config(batch_size=8, start_threshold=-1.0, run_dir=str(tmp_path))
    experience = WithoutStar(config, questions(40))
    for q in range(6):
        store(experience, q, k=4)
    plan = make_plan(experience, 1)
    assert len(set(plan.fresh) & set(range(6))) >= 4 and len(set(plan.fresh)) == 8
    assert not plan.stars and [len(s) for s in experience.seeds(plan)] == [K] * 8
