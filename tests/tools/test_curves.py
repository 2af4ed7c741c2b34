"""Curves: what is read from a run, and that a picture is made of it."""

import json

import pytest

from tools.curves import draw, read_curve

ROWS = [
    {"step": 0, "val/pass_at_1/arithmetic": 0.1},
    {"step": 1, "replay/questions": 0},
    {"step": 2, "replay/questions": 3, "val/pass_at_1/arithmetic": 0.4},
    {"step": 3, "replay/questions": 5},
]


def test_a_curve_has_the_validated_steps_and_the_first_that_replayed(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    assert read_curve(tmp_path, "arithmetic") == ([0, 2], [0.1, 0.4], 2)
    draw([tmp_path], ["ours"], "arithmetic", tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="has no validation of 'gsm8k'"):
        read_curve(tmp_path, "gsm8k")
