"""What real-model.md says of its runs is what studies/real_model.py prints from what they left."""

import io
import re
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest

from studies import real_model

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def printed() -> str:
    """What the command prints of the runs kept."""
    with redirect_stdout(io.StringIO()) as lines:
        real_model.main([])
    return lines.getvalue()


def test_the_page_has_the_table(printed):
    """Row by row, with its interval over seeds."""
    page = (ROOT / "docs" / "real-model.md").read_text()
    rows = [line for line in printed.splitlines() if line.startswith("| ")]
    assert len(rows) == 5 and [row for row in rows if row not in page] == []


def test_the_readme_has_its_means(printed):
    """Base, and of the runs mean, lowest and highest."""
    rows = [[cell.strip() for cell in row.split("|")[2:4]] for row in printed.splitlines()[2:6]]
    base = " | ".join(f"{float(before) / 100:.3f}" for before, _ in rows)
    seeds = [[float(after) / 100 for after in afters.split(", ")] for _, afters in rows]
    trained = " | ".join(f"{np.mean(of):.3f} ({min(of):.3f}–{max(of):.3f})" for of in seeds)
    readme = (ROOT / "README.md").read_text()
    assert f"| base | {base} |" in readme and f"| ExGRPO | {trained} |" in readme, trained


def test_the_gates_run_stands_on_both_pages(printed):
    """Its end in README.md, and what it gained, with the intervals over questions."""
    ends, gained = printed.partition("gate, seed 100")[2].splitlines()[1:3]
    cells = " | ".join(f"{float(end) / 100:.3f}" for end in re.findall(r"[0-9.]+", ends))
    assert f"| on-policy, one run seed (100), no pair | {cells} |" in (ROOT / "README.md").read_text()
    page = (ROOT / "docs" / "real-model.md").read_text()
    gains = re.findall(r"[-+]\d+\.\d \[.*?\]", gained)
    assert len(gains) == 4 and [gain for gain in gains if f"| {gain} |" not in page] == []


def test_the_interval_is_students_t_over_runs():
    """Three runs that gain 10, 20 and 30 points: 20 ± 4.303 · 10 / √3."""
    def run(right: float) -> list[dict]:
        return [{"source": "x", "text": str(i), "success": i < 100 * right} for i in range(100)]

    kept = {"base": run(0.1), "trained": [run(r) for r in (0.9, 0.2, 0.3, 0.4)]}  # the gate's first
    low, high = map(float, re.search(r"\[(\S+), (\S+)\]", real_model.table(kept)).groups())
    half = 4.303 * 10 / np.sqrt(3)
    assert low == pytest.approx(20 - half, abs=0.06) and high == pytest.approx(20 + half, abs=0.06)
