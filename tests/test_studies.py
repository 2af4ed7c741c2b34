"""The study: what its differences, its p values and its arm without an o* are."""

import numpy as np
import pytest
from test_exgrpo import K, by_last_token, questions, store

from config import Config
from studies import analysis, runs
from studies.arms import Row
from studies.experience import WithoutStar


def run(scores: list[float]) -> dict:
    """A record with this test curve, of a point every 20 steps from step 0 on."""
    return {"curve": {"step": [20 * i for i in range(len(scores))], analysis.TRAINED: scores}}


def test_outcomes_are_means_of_the_curve_in_points():
    """Six points count; P's leave two out; a run that ended early keeps its last value."""
    early = run([0.0, 0.1, 0.2, 0.3])  # 0.3 stands for the steps 60 to 120
    whole = run([0.9, 0.0, 0.0, 0.1, 0.1, 0.1, 0.3])
    records = {("default", arm, 0): early for arm in ("R4", "P")} | {("default", "R0", 0): whole}
    difference = analysis.differences(records, Row("", "R4", "R0"), bases=[0])
    np.testing.assert_allclose(difference, 100 * (1.5 / 6 - 0.6 / 6))
    difference = analysis.differences(records, Row("", "P", "R0"), bases=[0])
    np.testing.assert_allclose(difference, 100 * (0.3 - 0.15))


def test_sign_flips_and_holm():
    """Of eight sign patterns two are as extreme as +++; Holm stops at the first too large."""
    assert analysis.sign_flip(np.array([1.0, 2.0, 3.0])) == 2 / 8
    assert analysis.holm([0.02, 0.012, 0.9, 0.03]) == [False, True, False, False]
    assert analysis.holm([0.016, 0.012, 0.9, 0.03]) == [True, True, False, False]


def test_nothing_is_shown_of_an_unfinished_study():
    with pytest.raises(ValueError, match="no record of .*R1.*10"):
        analysis.report({("default", "R0", 10): run([0.1, 0.2])})


def test_the_page_holds_what_the_records_say():
    """Its tables are the command's, and a sceptic's numpy finds the row of H less R4."""
    page = (runs.ROOT / "studies/README.md").read_text()
    records = runs.read()
    tables = {line for line in page.splitlines() if line.startswith("|")}
    assert tables <= set(analysis.report(records).splitlines())
    found = []
    for base in analysis.BASES:
        h, r4 = (records["default", arm, base]["curve"][analysis.TRAINED] for arm in ("H", "R4"))
        found.append(100 * np.subtract(h, r4)[1:].mean())  # of step 0 both are the base's
    mean = np.mean(found)
    half = 2.201 * np.std(found, ddof=1) / 12**0.5  # Student's t, 11 degrees of freedom
    assert f"| H − R4 | {mean:+.1f} [{mean - half:+.1f}, {mean + half:+.1f}] |" in page


def test_without_a_star_drawn_questions_get_k_new_answers(tmp_path):
    """What ExGRPO would replay is asked again, K times, and no stored answer is chosen."""
    config = Config(batch_size=8, start_threshold=-1.0, run_dir=str(tmp_path))
    experience = WithoutStar(config, questions(40))
    for q in range(6):
        store(experience, q, k=4)
    plan = experience.plan(1, by_last_token)
    assert len(set(plan.fresh) & set(range(6))) >= 4 and len(set(plan.fresh)) == 8
    assert not plan.stars and [len(s) for s in experience.seeds(plan)] == [K] * 8
