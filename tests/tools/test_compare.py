"""The comparison of several evaluations."""

import json

import pytest
from conftest import write_jsonl

from tools.compare import difference, main
from worlds.benchmarks import AVERAGES

A = {
    "model": "A",
    "pass_at_1/aime": 0.316,
    "interval/aime": [0.2, 0.45],
    "samples/aime": 32,
    "average/in_distribution": 0.316,
    "average_of/in_distribution": ["AIME24"],
}
B = {
    "model": "B",
    "pass_at_1/aime": 0.25,
    "samples/aime": 32,
    "pass_at_1/math": 0.5,
    "interval/math": [0.4, 0.6],
    "samples/math": 1,
    "reward_worked/math": 0.25,
    "reward_worked/math/count": 8,
    "pass_at_1/a/count": 0.75,
    "samples/a/count": 1,
    "reward_worked/a/count": 0.125,
    "average/in_distribution": 0.4,
    "average_of/in_distribution": list(AVERAGES["in_distribution"]),
}


def evaluation(directory, scores, responses=(), more=(), **settings) -> str:
    """A directory as eval.py leaves it, with (question, text) pairs, right where there is a 7.

    Those of `responses` are of the source x, those of `more` of y. What precedes a / in a question
    are its earlier turns.
    """
    directory.mkdir()
    (directory / "scores.json").write_text(json.dumps(scores))
    (directory / "settings.json").write_text(json.dumps(settings))
    rows = []
    for source, of in (("x", responses), ("y", more)):
        for asked, text in of:
            row = {"source": source, "row": asked, "text": asked.rpartition("/")[2], "gold": "7"}
            rows.append(row | {"response": text, "success": "7" in text})
    write_jsonl(directory / "responses.jsonl", rows)
    return str(directory)


def test_scores_side_by_side(tmp_path, capsys):
    """Scores stand in percent with intervals, and what one of them lacks is a dash or said.

    The number of responses behind a score is none, and a source may be called a/count.
    """
    main([evaluation(tmp_path / "a", A), evaluation(tmp_path / "b", B), "--label", "a", "b"])
    assert capsys.readouterr().out.splitlines() == [
        "|  | a | b |",
        "| --- | --- | --- |",
        "| aime (Avg@32) | 31.6 [20.0, 45.0] | 25.0 |",
        "| math (Pass@1) | – | 50.0 [40.0, 60.0] |",
        "| a/count (Pass@1) | – | 75.0 |",
        "| in_distribution (average) | 31.6 (1 of 6 benchmarks) | 40.0 |",
        "| math (reward_worked) | – | 25.0 |",
        "| a/count (reward_worked) | – | 12.5 |",
    ]


def test_what_is_said_of_the_questions_of_both(tmp_path, capsys):
    """The mean difference is that of the rows that both answered, with Student's interval by hand.

    1/q is right in 1 of 2 responses and then in both, 2/q both times, s never; t is not asked
    again. So they differ by 50, 0 and 0, in the mean 16.7 ± 4.303 · 28.9 / √3. With z, of y, that
    is 37.5 ± 3.182 · 47.9 / √4. The first answers stand above.
    """
    before = [("t", "7"), ("1/q", "a long\nway"), ("1/q", "7"), ("2/q", "7"), ("s", "6\x1b[2J")]
    after = [("2/q", "7"), ("1/q", "is 7"), ("s", "5"), ("u", "7")]
    told = {"eval_temperature": 0.6, "model": "m"}
    old = evaluation(tmp_path / "old", {"model": "m"}, before, [("z", "8")], **told)
    told = {"eval_temperature": 1.0, "model": "n"}
    new = evaluation(tmp_path / "new", {"model": "m"}, after, [("z", "7")], **told)
    main([old, new, "--label", "before", "after", "--first", "2"])
    assert capsys.readouterr().out.splitlines() == [
        "---- q  [7]",
        "before, wrong: a long",
        "way",
        "after, right: is 7",
        "---- q  [7]",
        "before, right: 7",
        "after, right: 7",
        "",
        "|  | before | after |",
        "| --- | --- | --- |",
        "",
        "| minus before, in points, same questions | after |",
        "| --- | --- |",
        "| x | +16.7 [-55.0, +88.4] of 3 |",
        "| y | – (fewer than two questions of both) |",
        "| all sources | +37.5 [-38.7, +113.7] of 4 |",
        "",
        "The interval covers the choice of questions only, not training runs: with another seed a"
        " run ends elsewhere. --against takes several runs an arm.",
        "",
        "eval_temperature differs: 0.6 (before), 1.0 (after)",
    ]
    main([old, new, "--first", "9"])
    assert f"{old}, wrong: 6\\x1b[2J" in capsys.readouterr().out  # hostile text is shown as text


def arm(tmp_path, name, *runs) -> list[str]:
    """A directory for each run; a run is a text for each of two questions of x and one of y."""
    directories = []
    for i, (q, r, other) in enumerate(runs):
        scores = {"model": "m", "samples/x": 1, "samples/y": 1}
        scores["pass_at_1/x"] = (("7" in q) + ("7" in r)) / 2
        scores["pass_at_1/y"] = float("7" in other)
        x = [("q", q), ("r", r)]
        directories.append(evaluation(tmp_path / f"{name}{i}", scores, x, [("s", other)]))
    return directories


def test_arms_of_several_runs(tmp_path, capsys):
    """Mean and range over pairs of runs, in order, by hand; the last row pools the sources.

    In x the pairs differ by 2/2 - 0/2 and 1/2 - 1/2, and over all three questions by 3/3 - 0/3 and
    1/3 - 2/3. Of y there is one question.
    """
    base = arm(tmp_path, "base", ("5", "5", "5"), ("7", "5", "7"))
    other = arm(tmp_path, "other", ("7", "7", "7"), ("5", "7", "5"))
    main([*base, "--against", *other, "--label", "R0", "P"])
    assert capsys.readouterr().out.splitlines() == [
        "|  | R0 | P |",
        "| --- | --- | --- |",
        "| x (Pass@1) | 25.0 (0.0 to 50.0) | 75.0 (50.0 to 100.0) |",
        "| y (Pass@1) | 50.0 (0.0 to 100.0) | 50.0 (0.0 to 100.0) |",
        "",
        "| minus R0, in points, same questions | P |",
        "| --- | --- |",
        "| x | +50.0 (+0.0 to +100.0) |",
        "| y | – (fewer than two questions of both) |",
        "| all sources | +33.3 (-33.3 to +100.0) |",
        "",
        "Mean over 2 pairs of runs, and from the lowest pair to the highest.",
    ]
    main([*base, "--against", *other, "--against", *base])  # a third arm
    assert f"| minus {base[0]} and 1 more, in points" in capsys.readouterr().out
    with pytest.raises(ValueError, match="3 labels for 2 directories or arms"):
        main([*base, "--against", *other, "--label", "a", "b", "c"])
    with pytest.raises(ValueError, match="--against has 1 runs, the first arm 2.*in order"):
        main([*base, "--against", other[0]])


def test_no_spread_is_no_certainty():
    """Where all questions differ by the same share there is no interval of width 0."""
    assert difference([[0.0, 0.0]]) == "+0.0 (of each of 2, so without an interval)"
    thirds = [100 * (1 / 3 - 0), 100 * (2 / 3 - 1 / 3)]  # a rounding apart
    assert difference([thirds]).startswith("+33.3 (of each of 2,")


@pytest.mark.parametrize(
    "scores, said",
    [
        (None, "No such file.*: a run; `eval.py --model .*/model --output DIR` scores it"),
        ("no JSON", "Expecting value"),
        ("[]", "no scores.json of"),
        ('{"pass_at_1/aime": 0.5}', "no scores.json of"),
        (
            '{"model": "m", "questions/x": 1, "samples/x": 1}',
            "scores of 1 responses of x, beside 2 in responses",
        ),
    ],
)
def test_what_holds_no_scores_is_named(tmp_path, scores, said):
    """A run, a damaged or foreign file, and one of fewer responses than lie beside it are named."""
    directory = tmp_path / "it"
    evaluation(directory, {}, [("q", "7"), ("r", "7")])
    (directory / "metrics.jsonl").touch()
    (directory / "scores.json").unlink()
    if scores:
        (directory / "scores.json").write_text(scores)
    with pytest.raises(ValueError, match=f"{directory}/scores.json.*{said}"):
        main([str(directory)])
