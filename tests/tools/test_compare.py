"""The comparison of several scores.json."""

import json

import pytest

from tools.compare import main
from worlds.benchmarks import AVERAGES


def test_two_files_side_by_side(tmp_path, capsys):
    """In percent, with intervals; what one of them lacks is a dash, or said of an average."""
    a = {"model": "A", "pass_at_1/aime": 0.316, "interval/aime": [0.2, 0.45], "samples/aime": 32,
         "average/in_distribution": 0.316, "average_of/in_distribution": ["AIME24"]}
    b = {"model": "B", "pass_at_1/aime": 0.25, "samples/aime": 32,
         "pass_at_1/math": 0.5, "interval/math": [0.4, 0.6], "samples/math": 1,
         "average/in_distribution": 0.4, "average_of/in_distribution": list(AVERAGES["in_distribution"])}
    for name, content in (("a", a), ("b", b)):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    main([str(tmp_path / "a.json"), str(tmp_path / "b.json")])
    assert capsys.readouterr().out.splitlines() == [
        "|  | A | B |", "| --- | --- | --- |",
        "| aime (Avg@32) | 31.6 [20.0, 45.0] | 25.0 |",
        "| math (Pass@1) | – | 50.0 [40.0, 60.0] |",
        "| in_distribution (average) | 31.6 (1 of 6 benchmarks) | 40.0 |"]


@pytest.mark.parametrize("content", [None, "no JSON", "[]", '{"pass_at_1/aime": 0.5}'])
def test_a_file_that_holds_no_scores_is_named(tmp_path, content):
    """Missing, damaged or of another kind: the message names the file, without a traceback."""
    file = tmp_path / "scores.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(SystemExit, match=str(file)):
        main([str(file)])
