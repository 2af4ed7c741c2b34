"""The benchmarks measure what they say."""

import pytest

from bench.grading import sample_answers
from bench.step import time_steps
from reward import Verifier


def test_half_of_the_graders_answers_are_right():
    """Each kind of answer has two right ones, then two wrong ones."""
    texts, golds = sample_answers(72)
    with Verifier(workers=2) as verifier:
        assert verifier.score(texts, golds) == 18 * [1, 1, 0, 0]


def test_a_step_is_timed_from_mark_to_mark(tmp_path):
    """What comes before the first mark is not timed, and the processes' CPU time is counted too."""
    script = tmp_path / "steps.py"
    lines = [
        "import time",
        "for pause in (0.5, 0.2, 0.4):",
        "    time.sleep(pause)",
        "    print('step')",
    ]
    script.write_text("\n".join(lines))
    steps = time_steps(1, [str(script)], "step")
    assert steps.wall == pytest.approx([0.2, 0.4], abs=0.15)
    assert len(steps.cpu) == 2
    assert max(steps.cpu) < 0.15


def test_a_run_that_fails_shows_its_end(tmp_path):
    """The error of a run that failed has that run's last words."""
    script = tmp_path / "fails.py"
    script.write_text("raise SystemExit('no such model')")
    with pytest.raises(RuntimeError, match="no such model"):
        time_steps(1, [str(script)], "step")
