"""Conversion: exact rows, what is refused, and that held-out questions are never trained on."""

import pyarrow.parquet as pq
import pytest
from conftest import jsonl, write_jsonl

from runtime.tables import read_rows
from tools.convert import convert


def test_a_csv_file_becomes_these_rows(tmp_path, capsys):
    """Quoted commas, zeros in front and line breaks stay; a row without an answer is named."""
    (tmp_path / "in.csv").write_text(
        '\ufeffquestion,answer\n"a, b\nc?",007\nd?,\n"e ""f""?",1.50\n'
    )
    convert(str(tmp_path / "in.csv"), tmp_path / "new/out.parquet", system="Think.")
    first = {"role": "system", "content": "Think."}
    assert pq.read_table(tmp_path / "new/out.parquet").to_pylist() == [
        {
            "data_source": "in",
            "prompt": [first, {"role": "user", "content": asked}],
            "reward_model": {"ground_truth": gold},
            "extra_info": None,
        }
        for asked, gold in [("a, b\nc?", "007"), ('e "f"?', "1.50")]
    ]
    assert "row 1 is left out" in capsys.readouterr().out


def test_a_comma_without_quotes_is_no_answer(tmp_path):
    """The row with too many values is named."""
    (tmp_path / "in.csv").write_text("question,answer\na?,1\nof 1,000?,2\n")
    with pytest.raises(SystemExit, match="row 1: not one value for each column"):
        convert(str(tmp_path / "in.csv"), tmp_path / "out.parquet")


@pytest.mark.parametrize(
    "extract, value, gold",
    [
        ("", 7, "7"),
        ("", {"ground_truth": "x"}, "x"),
        ("box", r"So \boxed{1}, no, \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        ("####", "2 + 2\n#### 4", "4"),
    ],
)
def test_a_jsonl_file_becomes_these_rows(tmp_path, extract, value, gold):
    """Columns by name, chat turns, extra_info of any form, and the answer out of a solution."""
    turns = [{"role": "user", "content": "1?"}]
    extra = {"a": 1} if extract else {"b": [2]}
    given = {"asked": turns, "solved": value, "data_source": "s", "extra_info": extra}
    file = write_jsonl(tmp_path / "in.jsonl", [given])
    convert(file, tmp_path / "out.jsonl", question="asked", answer="solved", extract=extract)
    expected = {"data_source": "s", "prompt": turns, "reward_model": {"ground_truth": gold}}
    assert jsonl(tmp_path / "out.jsonl") == [expected | {"extra_info": extra}]


def test_a_row_without_a_column_is_named(tmp_path, capsys):
    """It is left out; where all rows are, a column's name was wrong, and nothing is written."""
    whole = {"question": "1?", "answer": "1"}
    given = [{"question": "1?"}, {"answer": "1"}, whole, whole | {"answer": {}}]
    file = write_jsonl(tmp_path / "in.jsonl", given)
    convert(file, tmp_path / "out.jsonl")
    assert len(jsonl(tmp_path / "out.jsonl")) == 1
    said = capsys.readouterr().out
    assert all(f"row {number} is left out" in said for number in (0, 1, 3))
    with pytest.raises(SystemExit, match="no row has both Question and answer"):
        convert(file, tmp_path / "other.jsonl", question="Question")
    assert not (tmp_path / "other.jsonl").exists()


def test_golds_of_a_float_column_are_refused(tmp_path):
    """0.1 as 32 bits would be read with digits that nobody wrote."""
    import pyarrow as pa

    table = pa.table({"question": ["q"], "answer": pa.array([0.1], pa.float32())})
    pq.write_table(table, tmp_path / "in.parquet")
    with pytest.raises(SystemExit, match="floats.*make them text"):
        convert(str(tmp_path / "in.parquet"), tmp_path / "out.parquet")


def test_no_held_out_question_is_trained_on(tmp_path):
    """A question that comes again in other blanks, letters or sources is held out as one."""
    rows = []
    for number in range(40):
        for text in (f"What is {number}?", f" what  IS {number}?"):
            rows.append({"question": text, "answer": "1", "data_source": text[:2]})
    convert(write_jsonl(tmp_path / "in.jsonl", rows), tmp_path / "out.parquet", held_out=10)
    train, test = (
        [" ".join(row["prompt"][0]["content"].lower().split()) for row in read_rows(str(file))]
        for file in (tmp_path / "out.parquet", tmp_path / "out-test.parquet")
    )
    assert len(set(test)) == len(test) == 10
    assert len(train) == 60 and not set(train) & set(test)


def test_a_gym_task(tmp_path, monkeypatch):
    """Settings are YAML values, and held-out questions are drawn on top of the size."""
    asked = []

    def gym_rows(*given):
        asked.append(given)
        row = {"data_source": "sums", "answer": "1", "extra_info": {"gym": "entry"}}
        return [row | {"question": f"{i}?"} for i in range(given[1])]

    pytest.importorskip("reasoning_gym")
    monkeypatch.setattr("worlds.gym.gym_rows", gym_rows, raising=False)
    convert("gym:sums", tmp_path / "out.jsonl", size=3, held_out=1, seed=5, set=("n=2", "b=true"))
    assert asked == [("sums", 4, 5, {"n": 2, "b": True})]
    [row, *more] = jsonl(tmp_path / "out.jsonl")
    assert len(more) == 2 and (row["data_source"], row["extra_info"]) == ("sums", {"gym": "entry"})


REWARDS = """
def right(response, answer): return float(response == answer)
async def coroutine(response, answer): return 1.0
def string(response, answer): return "1.0"
def none(response, answer): pass
def nan(response, answer): return float("nan")
def parameter(response): return 1.0
"""


@pytest.mark.parametrize("name", ["right", "coroutine", "string", "none", "nan", "parameter"])
def test_a_reward_is_tried(tmp_path, monkeypatch, capsys, name):
    """Both scores are printed, and what would end a run later ends the conversion."""
    (tmp_path / "my_rewards.py").write_text(REWARDS)
    monkeypatch.syspath_prepend(tmp_path)
    file = write_jsonl(tmp_path / "in.jsonl", [{"question": "q", "answer": "1"}])
    given = dict(output=tmp_path / "out.jsonl", reward=f"my_rewards:{name}")
    if name == "right":
        convert(file, **given)
        printed = capsys.readouterr().out
        assert "'1': {'score': 1.0}" in printed and "'': {'score': 0.0}" in printed
    else:
        with pytest.raises(RuntimeError, match="my_rewards"):
            convert(file, **given)
        assert not (tmp_path / "out.jsonl").exists()
