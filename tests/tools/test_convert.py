"""Conversion: what is kept, what is dropped and why, and that the result is what training reads."""

import contextlib
import json
import sys
from types import SimpleNamespace

import pyarrow
import pyarrow.parquet
import pytest
import yaml
from conftest import toy_config, write_jsonl

from data import load_questions
from runtime.tables import read_rows
from tools.convert import INSTALL_DATASETS, answer_of, convert, main, turns_of
from worlds import gym

SUM = {"question": "1+1", "answer": "2"}
LINE = json.dumps(SUM)


def pairs(file) -> list[tuple[str, str]]:
    """The last turn and the answer of every row."""
    rows = read_rows(str(file))
    return [(row["prompt"][-1]["content"], row["reward_model"]["ground_truth"]) for row in rows]


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out.parquet"


@pytest.fixture
def lenient(monkeypatch):
    """A verifier that reads every answer, and costs nothing to start."""
    verifier = SimpleNamespace(check_golds=lambda answers: [{"score": 1.0}] * len(answers))
    monkeypatch.setattr("verifier.pool.Verifier", lambda *_, **__: contextlib.nullcontext(verifier))


def test_a_question_file_becomes_questions(tmp_path, out, tokenizer, capsys):
    """Columns and boxes of its own become rows that training reads, the rest is reported."""
    asked = [
        ("1+1=?", r"It is \boxed{2}."),
        ("1+1=?", r"Clearly \boxed{2}"),
        ("2+2=?", r"\boxed{4}"),
        ("2+2=?", r"\boxed{5}"),
        ("3+3=?", "six"),
        (" ", r"\boxed{1}"),
        ("a?", r"\boxed{E_{1},E_{2}}"),
        ("b?", r"\boxed{\frac{1}{2}}"),
        ("c?", None),
        ("d?", r"\boxed{assert f(0)==1}"),
        ("e?", r"\boxed{['7']}"),
        ("f?", r"\boxed{['7', '8']}"),
    ]
    rows = [{"problem": question, "solution": solution} for question, solution in asked]
    rows.append(rows[0] | {"data_source": "other"})
    source = write_jsonl(tmp_path / "mine.jsonl", rows)
    main([source, "--output", str(out), "--extract", "box", "--system", "Think first."])
    report = capsys.readouterr().out
    for said in (
        "13 read",
        "5 kept\n",
        "1 repeated",
        "3 without an answer, for example: 'six', None",
        "1 without a question, for example: ' '",
        "2 with several answers, for example: '4', '5'",
        "1 answers unreadable, for example: 'E_{1},E_{2}'",
        ("1 compared as text: do they need a --reward of yours?, for example: 'assert f"),
    ):
        assert said in report
    assert pyarrow.parquet.read_table(out).to_pylist()[0] == {
        "data_source": "mine",
        "reward_model": {"ground_truth": "2", "style": "rule"},
        "prompt": [
            {"role": "system", "content": "Think first."},
            {"role": "user", "content": "1+1=?"},
        ],
        "extra_info": None,
    }
    config = toy_config(max_prompt_length=100, prompt_template="{question}")
    questions, _ = load_questions([str(out)], config, tokenizer)
    assert [(q.text, q.answer, q.source) for q in questions] == [
        ("1+1=?", "2", "mine"),
        ("b?", r"\frac{1}{2}", "mine"),
        ("d?", "assert f(0)==1", "mine"),
        ("e?", "7", "mine"),
        ("1+1=?", "2", "other"),
    ]


def test_a_question_with_other_extra_info_is_another_for_a_reward_of_ones_own():
    """What a reward may grade by is no repetition, and no second answer."""
    items = [("s", "sum", gold, {"tests": [i]}) for i, gold in ((1, "a"), (2, "b"), (1, "a"))]
    for reward, kept in (("mine:score", [1, 2]), ("math", [])):
        rows, told = convert(items, lambda golds: [{"score": 1.0}] * len(golds), reward=reward)
        assert [r["extra_info"]["tests"][0] for r in rows] == kept
        assert len(told["repeated"]) == 1


def test_hub_names(out, monkeypatch, lenient):
    """Subset and split reach the library, and only the columns needed are read."""
    asked = []

    class Table:
        column_names = ["question", "answer", "long"]

        def select_columns(self, names):
            asked.append(names)
            return [{"question": "How many?", "answer": "Two and two.\n#### 4"}]

    library = SimpleNamespace(load_dataset=lambda *a, **k: asked.append((a, k)) or Table())
    monkeypatch.setitem(sys.modules, "datasets", library)
    flags = "--subset main --split test --extract ####"
    main(["org/name", "--output", str(out), *flags.split()])
    assert asked == [(("org/name", "main"), {"split": "test"}), ["question", "answer"]]
    assert pairs(out) == [("How many?", "4")]


def test_values_of_awkward_columns(tmp_path, out, lenient):
    """Whole numbers in a column of floats lose their point, and a list of one is its item.

    A float that stands for several whole numbers is written as it is read.
    """
    values = {7.0: "7", 2.5: "2.5", 6.02e23: "6.02e+23", 2.0**53: "9007199254740992.0"}
    values |= {2.0**53 - 1: "9007199254740991"}
    for wrap in (lambda v: v, lambda v: {"ground_truth": [v]}):
        rows = [{"question": f"{i}?", "answer": wrap(v)} for i, v in enumerate(values)]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "in.parquet")
        main([str(tmp_path / "in.parquet"), "--output", str(out), "--overwrite"])
        assert [answer for _, answer in pairs(out)] == [*values.values()]
    for nothing in (float("nan"), None, True, ["1", "2"]):
        assert answer_of(nothing, "") is None


def test_turns(tmp_path, out, lenient, capsys):
    """Text becomes a user turn, a system turn is replaced, and worked solutions go.

    What is not asked is counted: further parts of turns, and choices in a column.
    """
    user, system = {"role": "user", "content": "1?"}, {"role": "system", "content": "S"}
    solved = [user, {"role": "assistant", "content": "1", "tool_calls": ["gone with its turn"]}]
    assert turns_of("1?", "") == turns_of(solved, "") == [user]
    assert turns_of([{"role": "system", "content": ""}, user], "") == [user]
    assert turns_of([{"role": "system", "content": "old"}, user], "S") == [system, user]
    for nothing in ([], [system], None, 3, "", [{"role": "user"}], ["1?"]):
        assert turns_of(nothing, "") is None
    asked = [user | {"name": "A", "id": None}, {"role": "tool", "content": "7"}, user]
    rows = [{"prompt": solved, "answer": 1}, {"prompt": asked, "answer": 1, "choices": ["1", "2"]}]
    main([write_jsonl(tmp_path / "in.jsonl", rows), "--output", str(out)])
    assert read_rows(str(out))[1]["prompt"] == [user, asked[1], user]
    report = capsys.readouterr().out
    assert "1 asked without these parts of their turns, for example: ['name']" in report
    assert "1 asked without their choices: are these in the question?" in report


def test_csv(tmp_path, out, lenient):
    """A byte-order mark, CRLF, quoted commas and line breaks; values stay as they are written."""
    text = '\ufeffquestion,answer\r\n"a, b\nc?",007\r\n\r\n"a ""q""?",1.50\r\nna?,true\r\n'
    (tmp_path / "in.csv").write_bytes(text.encode())
    main([str(tmp_path / "in.csv"), "--output", str(out)])
    assert pairs(out) == [("a, b\nc?", "007"), ('a "q"?', "1.50"), ("na?", "true")]


ONE = '{"question": "1", "answer": "1", "extra_info": {"a": {"b": 1}}}\n'
OTHER = '{"question": "2", "answer": "2", "extra_info": {"a": {"b": 1.5}}}'


@pytest.mark.parametrize(
    "name, text, flags, said",
    [
        ("in.csv", "question,answer\n1,2,3\n", "", "in.csv, line 2: not one value for each of"),
        ("in.jsonl", LINE, "--question task", "has no column task, .*choose one with --question"),
        ("in.jsonl", LINE, "--extract box", "0 questions are left.*does it need --extract"),
        ("in.jsonl", LINE, "--held_out 1", "1 questions are left, 1 to be held out"),
        ("in.jsonl", json.dumps(SUM | {"extra_info": {"t": {}}}), "", "same names and types"),
        ("in.jsonl", ONE + OTHER, "", "'b': 1.* would be .*'b': 1.0"),
        ("in.jsonl", json.dumps(SUM | {"data_source": ["a"]}), "", "must be printable text"),
        ("in.jsonl", LINE, "--system prompt.txt", "prompt.txt is no sentence"),
        ("in.jsonl", LINE, "--set max_terms=3", "are for gym:NAME"),
        ("in.jsonl", LINE, "--output {}/out.csv", "must end in .parquet"),
        ("in.jsonl", LINE, "--output {}/there.parquet", "there.parquet exists.* add --overwrite"),
        ("gym:chain_sum", "", "--set max_terms=[1", "parsing"),
        ("org/name", "", "", f"org/name is no .jsonl, .csv or .parquet; .*{INSTALL_DATASETS}"),
    ],
)
def test_refusals(tmp_path, out, monkeypatch, lenient, name, text, flags, said):
    """Each refusal is one sentence, and nothing is written, half files included."""
    monkeypatch.setitem(sys.modules, "datasets", None)
    (tmp_path / "there.parquet").symlink_to("nothing")
    source = tmp_path / name if text else name
    if text:
        source.write_text(text)
    before = sorted(tmp_path.iterdir())
    with pytest.raises((ValueError, yaml.YAMLError), match=said):
        main([str(source), "--output", str(out), *flags.format(tmp_path).split()])
    assert sorted(tmp_path.iterdir()) == before


def test_some_are_held_out(tmp_path, lenient):
    """--held_out 3 of 10 loses none, draws the same ones again, and writes no file over."""
    rows = [{"question": f"{i}?", "answer": i} for i in range(10)]
    source = write_jsonl(tmp_path / "in.jsonl", rows)
    drawn = []
    for name in ("a", "b"):
        main([source, "--output", str(tmp_path / f"{name}.parquet"), "--held_out", "3"])
        drawn.append(
            [pairs(tmp_path / f"{name}.parquet"), pairs(tmp_path / f"{name}-test.parquet")]
        )
    assert drawn[0] == drawn[1]
    assert [len(part) for part in drawn[0]] == [7, 3]
    assert sorted(drawn[0][0] + drawn[0][1]) == [(f"{i}?", str(i)) for i in range(10)]
    (tmp_path / "a.parquet").unlink()
    with pytest.raises(ValueError, match="a-test.parquet exists"):
        main([source, "--output", str(tmp_path / "a.parquet"), "--held_out", "3"])


def test_a_gym_task_becomes_two_files(out, tokenizer, capsys):
    """Training and held-out questions have all that the task's scorer needs."""
    pytest.importorskip("reasoning_gym", reason=gym.INSTALL)
    flags = "--size 30 --held_out 10 --set max_terms=2 --set max_digits=1 --data_source sums"
    main(["gym:chain_sum", "--output", str(out), *flags.split()])
    config = toy_config(max_prompt_length=200, prompt_template="{question}")
    for file, most in ((out, 30), (out.with_stem("out-test"), 10)):
        questions, _ = load_questions([str(file)], config, tokenizer)
        assert most / 2 < len(questions) <= most
        for question in questions:
            assert question.source == "sums"
            assert gym.score(f"= {question.answer}", question.answer, question.row) == 1.0
    assert "--reward worlds.gym:score" in capsys.readouterr().out
