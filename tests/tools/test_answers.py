"""The same questions answered by two models, side by side."""

import json

import pytest

from tools.answers import main


def responses(directory, texts: dict[str, str]):
    """A responses.jsonl with two samples of each question."""
    directory.mkdir()
    rows = [{"question": question, "sample": i, "text": question, "gold": "7", "response": f"{text} ({i})",
             "success": "7" in text} for question, text in texts.items() for i in (0, 1)]
    (directory / "responses.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(directory)


def test_the_first_questions(tmp_path, capsys):
    """In file order, the first sample of each, with its verdict, in full; other questions are refused."""
    base = responses(tmp_path / "base", {"3+4": "a long\nway", "1+6": "7", "2+5": "5"})
    trained = responses(tmp_path / "trained", {"3+4": "is 7", "1+6": "6", "2+5": "7"})
    main([base, trained, "--first", "2"])
    assert capsys.readouterr().out.splitlines() == [
        "---- 3+4  [7]", "base, wrong: a long", "way (0)", "trained, right: is 7 (0)",
        "---- 1+6  [7]", "base, right: 7 (0)", "trained, wrong: 6 (0)"]
    (tmp_path / "A").mkdir(), (tmp_path / "B").mkdir()  # the last parts of both paths are alike
    main([responses(tmp_path / "A" / "eval", {"3+4": "7"}), responses(tmp_path / "B" / "eval", {"3+4": "8"})])
    assert capsys.readouterr().out.splitlines() == ["---- 3+4  [7]", "A, right: 7 (0)", "B, wrong: 8 (0)"]
    main([str(tmp_path / "A" / "eval")] * 2)  # nothing tells them apart, none is lost
    assert capsys.readouterr().out.count("right: 7 (0)") == 2
    with pytest.raises(SystemExit, match="at least 1, got 0"):
        main([base, trained, "--first", "0"])
    with pytest.raises(SystemExit, match="other questions"):
        main([base, responses(tmp_path / "other", {"9+9": "18"})])
    with pytest.raises(SystemExit, match="nowhere"):
        main([base, str(tmp_path / "nowhere")])
