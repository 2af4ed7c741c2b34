"""Conversion: what is kept, what is dropped and why, and that the result is what training reads."""

import contextlib
import datetime
import json
import sys
from types import SimpleNamespace

import pyarrow
import pyarrow.parquet
import pytest

from config import Config
from data import load_questions
from runtime.tables import read_rows
from tools.convert import answer_of, command, convert, main, parse, turns_of
from tools.sources import INSTALL_DATASETS
from worlds import gym


def write_jsonl(path, rows) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_question_file_becomes_questions(tmp_path, tokenizer, capsys):
    """JSONL with columns of its own, answers in boxes: rows in the layout that `load_questions` reads, and a
    report."""
    rows = [
        {"problem": "1+1=?", "solution": r"It is \boxed{2}."},
        {"problem": "1+1=?", "solution": r"Clearly \boxed{2}"},
        {"problem": "2+2=?", "solution": r"\boxed{4}"}, {"problem": "2+2=?", "solution": r"\boxed{5}"},
        {"problem": "3+3=?", "solution": "six"}, {"problem": " ", "solution": r"\boxed{1}"},
        {"problem": "a?", "solution": r"\boxed{E_{1},E_{2}}"},
        {"problem": "b?", "solution": r"\boxed{\frac{1}{2}}"},
        {"problem": "c?"},
    ]
    source, out = write_jsonl(tmp_path / "mine.jsonl", rows), tmp_path / "data" / "train.parquet"
    counts = main([source, "--output", str(out), "--extract", "box", "--system", "Think first."])
    assert counts == {"read": 9, "repeated": 1, "without an answer": 2, "without a question": 1,
                      "with several answers": 2,
                      "answers unreadable": 1, "kept": 2}
    report = capsys.readouterr().out
    assert all(said in report for said in ("'problem'", "'solution'", "E_{1},E_{2}", "Think first."))
    kept = list(read_rows(str(out)))
    assert [r["reward_model"]["ground_truth"] for r in kept] == ["2", r"\frac{1}{2}"]
    first = {"data_source": "mine", "ability": "math", "reward_model": {"ground_truth": "2", "style": "rule"},
             "prompt": [{"role": "system", "content": "Think first."}, {"role": "user", "content": "1+1=?"}],
             "extra_info": {"index": 0, "split": "default"}}
    assert pyarrow.parquet.read_table(out).to_pylist()[0] == first
    questions, _ = load_questions([str(out)], Config(max_prompt_length=100, prompt_template="{question}"),
                                  tokenizer)
    assert [(q.text, q.answer, q.source) for q in questions] == [("1+1=?", "2", "mine"),
                                                                 ("b?", r"\frac{1}{2}", "mine")]

    with pytest.raises(ValueError, match="exists; --overwrite replaces it"):
        main([source, "--output", str(out)])
    assert list(read_rows(str(out))) == kept
    main([source, "--output", str(out), "--extract", "box", "--overwrite", "--data_source", "other"])
    assert [(r["data_source"], len(r["prompt"])) for r in read_rows(str(out))] == [("other", 1)] * 2
    assert not list(out.parent.glob("*.tmp"))


@pytest.fixture
def lenient(monkeypatch):
    """A verifier that reads every answer, and costs nothing to start."""
    verifier = SimpleNamespace(check_golds=lambda answers: [{"score": 1.0}] * len(answers))
    monkeypatch.setattr("reward.Verifier", lambda *_, **__: contextlib.nullcontext(verifier))


def test_a_file_in_the_layout(tmp_path, lenient):
    """Questions and answers of a parquet file in the layout stay, with source and system turn; worked
    solutions go."""
    turns = [{"content": "Think.", "role": "system"}, {"content": "7*8?", "role": "user"}]
    row = {"data_source": "openr1", "prompt": turns, "target": [{"content": "long", "role": "assistant"}],
           "reward_model": {"ground_truth": "56", "style": "rule"}}
    source, out = str(tmp_path / "in.parquet"), tmp_path / "out.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), source)
    main([source, "--output", str(out)])
    (kept,) = read_rows(str(out))
    assert (kept["data_source"], kept["reward_model"]["ground_truth"]) == ("openr1",
                                                                           "56") and "target" not in kept
    assert kept["prompt"] == [{"role": "system", "content": "Think."}, {"role": "user", "content": "7*8?"}]


def test_hub_names(tmp_path, monkeypatch, lenient):
    """A name that is no file goes to the `datasets` library with split and subset; without it, the command to
    install it."""
    out = str(tmp_path / "out.parquet")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=f"org/name is no file.*{INSTALL_DATASETS}"):
        main(["org/name", "--output", out])
    asked = []

    class Table:
        column_names = ["question", "answer", "long"]

        def select_columns(self, names):
            asked.append(names)
            return [{"question": "How many?", "answer": "Two and two.\n#### 4"}]

    library = SimpleNamespace(load_dataset=lambda *a, **k: asked.append((a, k)) or Table())
    monkeypatch.setitem(sys.modules, "datasets", library)
    main(["org/name", "--output", out, "--subset", "main", "--split", "test", "--extract", "####"])
    assert asked == [(("org/name", "main"), {"split": "test"}), ["question", "answer"]]
    (row,) = read_rows(out)
    assert (row["data_source"], row["reward_model"]["ground_truth"]) == ("name", "4")


def test_the_papers_training_set(tmp_path, monkeypatch, capsys):
    """Rows in the columns of OpenR1-Math-46k, by the real library: worked solutions and unreadable golds go,
    with a report."""
    datasets = pytest.importorskip("datasets", reason=INSTALL_DATASETS)
    system, golds = {"role": "system", "content": "Think."}, ["56", "E_{1},E_{2}", r"\frac{1}{2}"]
    rows = [{"data_source": "openr1", "prompt": [system, {"role": "user", "content": f"question {i}?"}],
             "target": [{"role": "assistant", "content": "a long solution"}], "ability": "math",
             "reward_model": {"ground_truth": gold, "style": "rule"},
             "extra_info": {"index": i, "split": "default"}}
            for i, gold in enumerate(golds)]
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, split: datasets.Dataset.from_list(rows))
    counts = main(["Elliott/Openr1-Math-46k-8192", "--output", str(tmp_path / "openr1.parquet")])
    assert (counts["read"], counts["answers unreadable"], counts["kept"]) == (3, 1, 2)
    assert "E_{1},E_{2}" in capsys.readouterr().out
    kept = list(read_rows(str(tmp_path / "openr1.parquet")))
    assert [r["reward_model"]["ground_truth"] for r in kept] == ["56", r"\frac{1}{2}"]
    assert [r["prompt"] for r in kept] == [rows[0]["prompt"], rows[2]["prompt"]] and "target" not in kept[0]


def test_values_of_awkward_columns():
    """A column of whole numbers with gaps reads as floats; NaN is no answer; content in parts is no question;
    an empty system turn is none."""
    values = (7.0, 2.5, float("nan"), float("inf"), None)
    assert [answer_of(value, "") for value in values] == ["7", "2.5", None, None, None]
    turn = {"role": "user", "content": "1?"}
    assert turns_of([turn | {"content": [{"type": "text", "text": "1?"}]}], None) is None
    assert turns_of([{"role": "system", "content": ""}, turn], None) == [turn]


@pytest.mark.parametrize("argv, reason", [
    (["missing.jsonl", "--output", "x.parquet"], "missing.jsonl: no such file"),
    (["missing.jsonl", "--output", "x.csv"], "must end in .parquet"),
    (["{file}", "--output", "x.parquet", "--question", "text", "--answer", "label", "--system", "prompt.tx"],
     "no such file,"),
    (["{file}", "--output", "x.parquet", "--question", "q"],
     "no column q among text, label: name one with --question"),
    (["{file}", "--output", "x.parquet", "--question", "text"],
     "no column answer or reward_model .* --answer"),
    (["{file}", "--output", "x.parquet", "--question", "text", "--answer", "label", "--extract", "box"],
     "no question is left"),
    (["{file}", "--output", "x.parquet", "--question", "text", "--answer", "label", "--held_out", "1"],
     "1 questions are left, 1 to be held out"),
    (["{file}", "--output", "x.parquet", "--held_out", "-1"], "--held_out must be at least 0, got -1"),
    (["{file}", "--output", "x.parquet", "--size", "30"], "--size and --set are for gym:NAME"),
])
def test_mistakes_have_reasons(tmp_path, monkeypatch, lenient, argv, reason):
    """What cannot work fails with the reason and leaves no file."""
    monkeypatch.chdir(tmp_path)
    file = write_jsonl(tmp_path / "in.jsonl", [{"text": "1?", "label": "1"}])
    with pytest.raises(ValueError, match=reason):
        main([file if a == "{file}" else a for a in argv])
    assert [p.name for p in tmp_path.iterdir()] == ["in.jsonl"]


@pytest.mark.parametrize("value, extract, answer", [
    ("4", "", "4"), (4, "", "4"), (0.5, "", "0.5"), (["4"], "", "4"), (["4", "5"], "", None),
    ({"ground_truth": "4"}, "", "4"),
    (None, "", None), ("", "", None), (" ", "", None), (True, "", None), ({}, "", None),
    (r"\boxed{1} \boxed{\frac{1}{2}}", "box", r"\frac{1}{2}"),
    (r"\boxed{}", "box", None), ("so 4", "box", None), ("a #### 1 #### 1,000", "####", "1,000"),
    ("4", "####", None),
])
def test_answers(value, extract, answer):
    """Where the answer is looked for in a column's value."""
    assert answer_of(value, extract) == answer


def test_turns():
    """Text becomes a user turn, a system turn is replaced, worked solutions go, anything else is no
    question."""
    user, system = {"role": "user", "content": "1?"}, {"role": "system", "content": "S"}
    assert turns_of("1?", None) == turns_of([user, {"role": "assistant", "content": "1"}], None) == [user]
    assert turns_of([{"role": "system", "content": "old"}, user | {"extra": 1}], "S") == [system, user]
    assert [turns_of(x, None) for x in ([], [system], None, 3, "", [{"role": "user"}], ["1?"])] == [None] * 7


def test_the_same_question_in_two_sources_is_two():
    """Repeats are looked for inside a data source only."""
    rows, counts, _ = convert([("a", "1?", "1", None), ("b", "1?", "1", None), ("a", "1?", "1", None)],
                              lambda answers: [True] * len(answers))
    assert [r["data_source"] for r in rows] == ["a", "b"] and counts["repeated"] == 1


def test_extra_info_is_kept(tmp_path, lenient):
    """What a reward function is promised of a row survives; a row without it gets its number."""
    extra = {"tests": ["1 + 1"], "index": 7}
    rows = [{"question": "1?", "answer": "1", "extra_info": extra}, {"question": "2?", "answer": "2"}]
    main([write_jsonl(tmp_path / "in.jsonl", rows), "--output", str(tmp_path / "out.parquet")])
    table = pyarrow.parquet.read_table(tmp_path / "out.parquet")
    first, second = table["extra_info"].to_pylist()
    assert first | extra == first and second["index"] == 1 and second["tests"] is None


@pytest.mark.parametrize("name, text", [
    ("in.csv", 'question,answer\n"1+1, said he",2\n2+2,4\n'),
    ("in.json", '[\n {"question": "1+1, said he", "answer": 2},\n {"question": "2+2", "answer": "4"}\n]'),
    ("in.jsonl", '[{"question": "1+1, said he", "answer": 2}, {"question": "2+2", "answer": 4}]'),
])
def test_other_files(tmp_path, lenient, name, text):
    """CSV, and JSON in one array, whatever the file calls itself."""
    (tmp_path / name).write_text("\ufeff" + text)
    main([str(tmp_path / name), "--output", str(tmp_path / "out.parquet")])
    found = [(r["prompt"][0]["content"], r["reward_model"]["ground_truth"])
             for r in read_rows(str(tmp_path / "out.parquet"))]
    assert found == [("1+1, said he", "2"), ("2+2", "4")]


@pytest.mark.parametrize("name, text", [("in.jsonl", ""), ("in.json", "[1, 2]"), ("in.csv", "a,b\n")])
def test_files_without_rows_are_refused(tmp_path, name, text):
    """Nothing, or values without column names."""
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=f"{name}: needs rows of named columns"):
        main([str(tmp_path / name), "--output", str(tmp_path / "out.parquet")])


@pytest.mark.parametrize("name, text, said", [
    ("in.csv", "question,answer\n2+2,4,5,6\n", "row 0: more cells than columns"),
    ("in.json", '[{"question": "1+1", "answer": 2, "extra_info": {"t": {}}}]', "have one type"),
    ("in.json", '[{"question": "1+1", "answer": 2, "extra_info": {"n": 1180591620717411303424}}]', "type"),
    ("in.json", '[{"question": "1+1", "answer": 2, "data_source": ["a"]}]', "data_source must be text"),
    ("in.json", '[{"question": "1+1", "answer": 2, "data_source": 7}]', "data_source must be text"),
])
def test_what_training_would_refuse_is_refused(tmp_path, lenient, name, text, said):
    """Before anything is written, half files included."""
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=said):
        main([str(tmp_path / name), "--output", str(tmp_path / "out.parquet")])
    assert [path.name for path in tmp_path.iterdir() if path.is_file() and path.suffix != ".py"] == [name]


def test_dates_are_refused(tmp_path, lenient):
    """Parquet can hold them, metrics and processes that grade cannot."""
    row = {"question": "1+1", "answer": "2", "extra_info": {"day": datetime.date(2026, 1, 1)}}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "in.parquet")
    with pytest.raises(ValueError, match="must be what JSON can hold"):
        main([str(tmp_path / "in.parquet"), "--output", str(tmp_path / "out.parquet")])
    assert not (tmp_path / "out.parquet").exists()


@pytest.mark.parametrize("flags, said", [(["--reward", "nosuch:score"], "nosuch"),
                                         (["--set", "max_terms=[1"], "parsing")])
def test_what_cannot_be_imported_or_read_is_one_sentence(tmp_path, monkeypatch, flags, said):
    """A reward's typo and a setting that is no YAML: no traceback."""
    source = write_jsonl(tmp_path / "in.jsonl", [{"question": "1+1", "answer": "2"}])
    source = "gym:chain_sum" if flags[0] == "--set" else source
    monkeypatch.setattr(sys, "argv", ["convert", source, "--output", str(tmp_path / "out.parquet"), *flags])
    with pytest.raises(ValueError, match=said):
        command()


def test_what_is_not_kept_is_shown(tmp_path, capsys):
    """A list is no answer, a program no mathematics: each with an example, as the column may be right."""
    answers = ["1", ["1", "2"], "assert f(0)==1"]
    rows = [{"question": f"{i}?", "answer": answer} for i, answer in enumerate(answers)]
    main([write_jsonl(tmp_path / "in.jsonl", rows), "--output", str(tmp_path / "out.parquet")])
    said = capsys.readouterr().out
    assert "without an answer, for example: ['1', '2']" in said
    assert "1 kept are no plain mathematics" in said and "for example: 'assert f(0)==1'" in said


def test_some_are_held_out(tmp_path, lenient):
    """--held_out 3 of 10: other questions in the two files, none lost, and the same ones again."""
    rows = [{"question": f"{i}?", "answer": i} for i in range(10)]
    source = write_jsonl(tmp_path / "in.jsonl", rows)
    drawn = []
    for out in ("a", "b"):
        main([source, "--output", str(tmp_path / f"{out}.parquet"), "--held_out", "3"])
        files = [tmp_path / f"{out}.parquet", tmp_path / f"{out}-test.parquet"]
        drawn.append([[r["prompt"][0]["content"] for r in read_rows(str(file))] for file in files])
    assert drawn[0] == drawn[1] and [*map(len, drawn[0])] == [7, 3]
    assert sorted(drawn[0][0] + drawn[0][1]) == [f"{i}?" for i in range(10)]


def test_held_out_questions_are_not_overwritten_unasked(tmp_path):
    """A gym task writes a second file, which may be there already; another input writes one."""
    (tmp_path / "out-test.parquet").write_text("mine")
    argv = ["--output", str(tmp_path / "out.parquet")]
    with pytest.raises(ValueError, match="out-test.parquet exists; --overwrite"):
        parse(["gym:chain_sum", *argv])
    assert parse(["gym:chain_sum", *argv, "--overwrite"]) and parse(["in.jsonl", *argv])


def test_files_beside_the_output_are_left_alone(tmp_path, lenient):
    """A user's out.tmp, out.parquet.tmp and out.jsonl outlive a conversion to out.parquet."""
    file = write_jsonl(tmp_path / "in.jsonl", [{"question": "1?", "answer": "1"}])
    mine = [tmp_path / name for name in ("out.tmp", "out.parquet.tmp", "out.jsonl")]
    for path in mine:
        path.write_text("mine")
    main([file, "--output", str(tmp_path / "out.parquet")])
    assert [path.read_text() for path in mine] == ["mine"] * 3
    assert {path.name for path in tmp_path.iterdir()} == {"in.jsonl", "out.parquet", *(p.name for p in mine)}


def test_a_gym_task_becomes_two_files(tmp_path, tokenizer, capsys):
    """Training and held-out questions in the layout, each with all that its scorer needs."""
    pytest.importorskip("reasoning_gym", reason=gym.INSTALL)
    out = tmp_path / "sums.parquet"
    flags = "--size 30 --held_out 10 --set max_terms=2 --set max_digits=1 --data_source sums"
    counts = main(["gym:chain_sum", "--output", str(out), *flags.split()])
    config = Config(max_prompt_length=200, prompt_template="{question}")
    files = str(out), str(tmp_path / "sums-test.parquet")
    sets = [load_questions([file], config, tokenizer)[0] for file in files]
    assert [len(questions) for questions in sets] == [counts["kept"], counts["held out"]]
    for question in sets[0] + sets[1]:
        assert question.source == "sums"
        assert gym.score(f"= {question.answer}", question.answer, question.row) == 1.0
    assert "--reward worlds.gym:score" in capsys.readouterr().out
    with pytest.raises(ValueError, match="exists; --overwrite"):
        main(["gym:chain_sum", "--output", str(out)])
