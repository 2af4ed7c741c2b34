"""The comparison of several evaluations."""

import json

import numpy as np
import pytest

from tools.compare import difference, labels, main, read_scores
from worlds.benchmarks import AVERAGES

A = {"model": "A", "pass_at_1/aime": 0.316, "interval/aime": [0.2, 0.45], "samples/aime": 32,
     "average/in_distribution": 0.316, "average_of/in_distribution": ["AIME24"]}
B = {"model": "B", "pass_at_1/aime": 0.25, "samples/aime": 32,
     "pass_at_1/math": 0.5, "interval/math": [0.4, 0.6], "samples/math": 1,
     "average/in_distribution": 0.4, "average_of/in_distribution": list(AVERAGES["in_distribution"])}


def evaluation(directory, scores, right=(), **settings) -> str:
    """A directory as eval.py leaves it; right: (question, success) of each response."""
    directory.mkdir(parents=True)
    (directory / "scores.json").write_text(json.dumps(scores))
    (directory / "settings.json").write_text(json.dumps(settings))
    rows = [{"source": "x", "text": text, "gold": "1", "success": success} for text, success in right]
    (directory / "responses.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(directory)


def test_two_files_side_by_side(tmp_path, capsys):
    """In percent, with intervals; what one of them lacks is a dash, or said of an average."""
    for name, content in (("a", A), ("b", B)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "scores.json").write_text(json.dumps(content))
    main([str(tmp_path / "a" / "scores.json"), str(tmp_path / "b")])
    assert capsys.readouterr().out.splitlines() == [
        "|  | a | b |", "| --- | --- | --- |",
        "| aime (Avg@32) | 31.6 [20.0, 45.0] | 25.0 |",
        "| math (Pass@1) | – | 50.0 [40.0, 60.0] |",
        "| in_distribution (average) | 31.6 (1 of 6 benchmarks) | 40.0 |"]


def test_paired_differences_are_of_the_questions_of_both(tmp_path, capsys):
    """By hand: q is right in 1 of 2 responses and then in both, r in both times, s never; t is not asked
    again: differences 1/2, 0, 0, their mean 16.7 ± 1.96 · 28.9 / √3 points."""
    before = [("q", True), ("q", False), ("r", True), ("s", False), ("t", True)]
    after = [("q", True), ("r", True), ("s", False), ("u", True)]
    names = [evaluation(tmp_path / name / "eval", {"model": "m"}, right, eval_temperature=t, model=name)
             for name, right, t in (("before", before, 0.6), ("after", after, 1.0))]
    main(names)
    printed = capsys.readouterr().out
    assert "| minus before, in points, same questions | after |" in printed
    assert "| x | +16.7 [-16.0, +49.3] of 3 |" in printed
    assert printed.strip().splitlines()[-1] == "eval_temperature differs: 0.6 (before), 1.0 (after)"
    main([*names, "--label", "base", "ours"])
    printed = capsys.readouterr().out
    assert "| minus base" in printed and "0.6 (base), 1.0 (ours)" in printed
    with pytest.raises(SystemExit, match="1 labels for 2"):
        main([*names, "--label", "base"])


def test_the_interval_covers_the_difference_in_95_of_100():
    """Paired draws of 200 questions whose true difference is 10 points: covered in 92 to 98% of 400."""
    rng, covered = np.random.default_rng(0), 0
    for _ in range(400):
        ease = rng.uniform(0, 0.9, 200)
        base, other = (dict(enumerate((rng.random(200) < ease + gain).astype(float))) for gain in (0, 0.1))
        low, high = map(float, difference(base, other).partition("[")[2].partition("]")[0].split(","))
        covered += low <= 10 <= high
    assert 0.92 <= covered / 400 <= 0.98


def test_no_spread_is_no_certainty():
    """Thirty questions that both models miss, or two that one learned, have no interval of width 0."""
    assert difference(*[dict.fromkeys(range(30), 0.0)] * 2) == "+0.0 (of each of 30, so without an interval)"
    assert difference({1: 0.0, 2: 0.0}, {1: 1.0, 2: 1.0}).startswith("+100.0 (of each of 2,")
    assert difference({1: 0.0, 2: 1 / 3}, {1: 1 / 3, 2: 2 / 3}).startswith("+33.3 (of each of 2,")


@pytest.mark.parametrize("names, expected", [
    (["runs/A/eval", "runs/B/eval"], ["A", "B"]), (["runs/x/before", "runs/x/after"], ["before", "after"]),
    (["r/A/eval/scores.json", "r/B/eval"], ["A", "B"]), (["eval"], ["eval"]), (["a", "a"], ["a", "a"]),
    (["A/before", "A/after", "B/after"], ["A/before", "A/after", "B/after"])])
def test_names_are_what_tells_directories_apart(names, expected):
    """The last parts in which they differ."""
    assert labels(names) == expected


@pytest.mark.parametrize("content", [None, "no JSON", "[]", '{"pass_at_1/aime": 0.5}'])
def test_a_file_that_holds_no_scores_is_named(tmp_path, content):
    """Missing, damaged or of another kind: the message names the file, without a traceback."""
    file = tmp_path / "scores.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(SystemExit, match=str(file)):
        main([str(file)])


def test_a_run_is_no_evaluation(tmp_path):
    """The directory of a run: what scores it, and what shows it."""
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(ValueError, match="a run; `eval.py --model .*/model --output DIR` scores it"):
        read_scores(str(tmp_path))


def test_scores_of_fewer_responses_than_lie_beside_them_are_refused(tmp_path):
    """After a narrower evaluation into the same place the score and the pairs speak of different ones."""
    scores = {"model": "m", "pass_at_1/x": 1.0, "questions/x": 1, "samples/x": 1}
    (tmp_path / "scores.json").write_text(json.dumps(scores))
    lines = [json.dumps({"source": "x", "text": f"q{i}", "gold": "1", "success": True}) for i in range(2)]
    (tmp_path / "responses.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(SystemExit, match="scores of 1 responses of x, beside others"):
        main([str(tmp_path), str(tmp_path)])
