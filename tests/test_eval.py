"""Evaluation: records and means by hand on scripted responses, and the command on a tiny model."""

import json
import math
import os
import shutil
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import jsonl, on_ranks, toy_config, write_jsonl
from transformers import AutoConfig

import eval as evaluation
from buffer import Trajectory
from config import Config
from data import Question
from eval import means, respond, validate
from rollout import HFEngine
from runtime.faults import Interrupted, watchdog
from runtime.responses import LONGEST, in_short, judged_numbers, open_kept, row_key
from sampler import sample_seed
from worlds.arithmetic import judge

SCRIPT = {  # {(question, sample): (response, a letter a token; reward; finished)}
    (0, 0): ("a3+4=7#7", 1.0, True),
    (0, 1): ("#7", 0.6, True),
    (1, 0): ("a3+5=7#7", 0.5, True),
    (1, 1): ("8", 0.0, False),
}
QUESTIONS = [
    Question(0, "3a+4", np.array([5, 6], dtype=np.int32), "7", "x"),
    Question(1, "3a+5", np.array([5, 7], dtype=np.int32), "8", "y"),
]


class Engine:
    """Gives responses that were written beforehand, found by seed, and keeps what was asked."""

    def generate(self, prompts, seeds, temperature, max_tokens, on_finish):
        self.asked = [p[-1] for p in prompts], temperature, max_tokens
        made = []
        for index, seed in enumerate(seeds):
            (key,) = [k for k in SCRIPT for run in (0, 7) if sample_seed("eval", run, *k) == seed]
            text, _, finished = SCRIPT[key]
            token_ids = np.array([ord(letter) for letter in text], dtype=np.int32)
            made.append(Trajectory(token_ids, np.zeros(len(token_ids)), finished=finished))
            on_finish(index, made[-1])
        return made


def grader(config: Config) -> SimpleNamespace:
    """Gives the rewards of the script."""
    rewards = {text: reward for text, reward, _ in SCRIPT.values()}

    def text(token_ids):
        return "".join(map(chr, token_ids))

    def submit(question, token_ids):
        graded = Future()
        said = text(token_ids)
        judged = judge(question.text, said, question.answer)
        graded.set_result({"score": rewards[said], "tidy": 0.25, "judged": judged})
        return graded

    return SimpleNamespace(
        config=config,
        submit=submit,
        text=text,
        warn=lambda *_: None,
        piece=lambda question, token_ids: rf"\boxed{{{len(token_ids)}}}",
    )


def test_means_per_source():
    """Avg@2 of two sources is that by hand, and a reward above 0.5 is a success."""
    config = toy_config(
        reward="worlds.arithmetic:graded_reward", eval_temperature=0.7, max_response_length=9
    )
    engine = Engine()
    records = respond(
        engine, grader(config), [(q, i) for q in QUESTIONS for i in range(2)], 7, texts=True
    )
    assert means(records) == {
        "pass_at_1/x": 1.0,
        "reward/x": 0.8,
        "length/x": 5.0,
        "truncated/x": 0.0,
        "timeout/x": 0.0,
        "pass_at_1/y": 0.0,
        "reward/y": 0.25,
        "length/y": 4.5,
        "truncated/y": 0.5,
        "timeout/y": 0.0,
        "valid/x": 0.5,
        "shortcut/x": 0.5,
        "valid/y": 0.0,
        "shortcut/y": 0.5,
        "reward_tidy/x": 0.25,
        "reward_tidy/y": 0.25,
        "reward_tidy/x/count": 2,
        "reward_tidy/y/count": 2,
    }
    assert engine.asked == ([6, 6, 7, 7], 0.7, 9)


def test_a_record_by_hand():
    """A record holds question, gold and response, and what is boxed where a box is wanted."""
    for config, boxed in ((toy_config(), {"answer": "2"}), (toy_config(require_box=False), {})):
        [record] = respond(Engine(), grader(config), [(QUESTIONS[0], 1)], 7, texts=True)
        assert len(record.pop("question")) == len(record.pop("row")) == 16
        assert record == boxed | {
            "source": "x",
            "sample": 1,
            "reward": 0.6,
            "success": True,
            "length": 2,
            "truncated": False,
            "timeout": False,
            "text": "3a+4",
            "gold": "7",
            "response": "#7",
            "judged": {"reward_tidy": 0.25, "valid": False, "shortcut": True},
        }


def test_judged_are_numbers_under_names_of_their_own():
    """What is no number is refused with the first responses, and so are evaluation's own names."""
    assert judged_numbers({"valid": True, "marked": "text", "lengths": 1.5}) == {
        "valid": True,
        "lengths": 1.5,
    }
    own = "pass_at_1 maj_at_32 reward reward_tidy length timeout interval average_of a/b".split()
    for name in own:
        with pytest.raises(ValueError, match=f"choose another name than '{name}'"):
            judged_numbers({name: 0.25})
    for value in ("text", None, math.nan, [1]):
        with pytest.raises(ValueError, match="valid must be a finite number"):
            judged_numbers({"valid": value})


def test_what_names_a_row():
    """Gold and row as read do, whatever the template makes of it and the order of names."""
    row = {"data_source": "x", "extra_info": {"a": 1, "b": 2}, "prompt": ["first", "last"]}
    one = replace(QUESTIONS[0], row=row)
    same = replace(one, text="", prompt_ids=np.zeros(0), row=row | {"extra_info": {"b": 2, "a": 1}})
    changes = ({"data_source": "y"}, {"extra_info": None}, {"prompt": ["other", "last"]})
    others = [replace(one, row=row | change) for change in changes] + [replace(one, answer="8")]
    assert row_key(one) == row_key(same)
    assert len({row_key(question) for question in [one, *others]}) == 5


def test_validation_is_one_response_a_question_whatever_the_seed_of_the_run():
    """The samples' seed is 0, so that runs are compared on the same random numbers."""
    engine = Engine()
    scores = validate(engine, grader(toy_config(seed=3)), QUESTIONS)
    assert scores["val/pass_at_1/x"] == 1.0 and scores["val/length/y"] == 8.0
    assert engine.asked == ([6, 7], 0.6, 72)


# ---- what people read of it ----------------------------------------------------------------------


def answered(question: str, *rewards: float, source: str = "x", **about) -> list[dict]:
    """The records of a question whose responses have these rewards."""
    record = {"source": source, "question": question, "text": f"asked {question}", "gold": "7"}
    record |= {"length": 9, "truncated": False, "timeout": False}
    return [
        record | {"response": f"{question}{i}", "reward": r, "success": r > 0.5} | about
        for i, r in enumerate(rewards)
    ]


NEVER = answered("a", 0, 0) + answered("b", 0, 0.3)  # b's rewards differ: it says something
MIXED = answered("c", 0, 1) + answered("d", 1, 1)
COUNTS = "---- x: 4 questions by k, the right ones of 2 responses: k=0: 2, k=1: 1, k=2: 1"
SENTENCE = "50% are never right, 25% always: of groups like these 50% are silent"


def test_how_many_questions_are_right_how_often():
    """Counts by hand. A source's K is its own; one with one sample has none: that is Pass@1."""
    records = NEVER + MIXED + answered("e", 1, 0, 1, source="y") + answered("f", 1, source="z")
    assert in_short(records).splitlines()[9:] == [
        COUNTS,
        SENTENCE,
        "---- y: 1 questions by k, the right ones of 3 responses: k=0: 0, k=1: 0, k=2: 1, k=3: 0",
        "0% are never right, 0% always: of groups like these 0% are silent",
    ]


def test_three_responses_are_shown():
    """The first right and the first wrong one, then another question; what is foreign is text."""
    hostile = "\x1b[2J\n" + "ab" * LONGEST
    records = answered("q", 1, 1) + answered("r", 1) + answered("s", 0, truncated=True)
    records += answered("t", 1)
    records[0] |= {"response": hostile, "gold": "\u202e"}
    assert in_short(records).splitlines()[:9] == [
        "---- right, reward 1, 9 tokens, gold: \\u202e",
        "asked q",
        r"\x1b[2J\n" + "ab" * 145 + "a [... 609 characters ...] " + "ab" * 150,
        "---- wrong, reward 0, 9 tokens, cut at the limit, gold: 7",
        "asked s",
        "s0",
        "---- right, reward 1, 9 tokens, gold: 7",
        "asked r",
        "r0",
    ]


# ---- the command ---------------------------------------------------------------------------------


def row(source: str, text: str, answer: str = "7") -> dict:
    prompt = [{"role": "user", "content": text}]
    return {"data_source": source, "prompt": prompt, "reward_model": {"ground_truth": answer}}


def kept(out: Path) -> list[tuple]:
    """(question, number of the sample) of each response in the directory of --output."""
    return [(r["text"], r["sample"]) for r in jsonl(out / "responses.jsonl")]


def command(model: str, file: str, *flags: str) -> list[str]:
    return [
        "--model",
        model,
        "--data",
        file,
        "--engine",
        "hf",
        "--max_prompt_length",
        "30",
        "--max_response_length",
        "5",
        *flags,
    ]


@pytest.fixture
def file(tmp_path):
    """Five questions of the built-in world, and one with a prompt that is too long."""
    texts = ("3a+4", "1a+6", "2a+5", "9a-2", "0a+7", "1" * 60)
    return write_jsonl(tmp_path / "test.jsonl", [row("arithmetic", text) for text in texts])


def test_main_on_a_file(tiny_model, device, file, capsys):
    """The command scores a file, says what it dropped, and gives the same again."""
    argv = command(tiny_model, file, "--max_response_length", "20", "--samples", "3")
    scores = evaluation.main(argv)
    report = json.loads(capsys.readouterr().out)
    assert report["questions"]["prompts too long"] == 1
    assert {name: report[name] for name in scores} == scores == evaluation.main(argv)
    assert scores != evaluation.main([*argv, "--seed", "1"])
    greedy = [evaluation.main([*argv, "--eval_temperature", "0", "--seed", seed]) for seed in "01"]
    assert greedy[0] == greedy[1]


def test_the_default_length_is_what_the_model_has_positions_for(tiny_model, device, file, capsys):
    """By default it is 8192 tokens, or the positions that the longest prompt leaves, and told."""
    argv = command(tiny_model, file)
    del argv[argv.index("--max_response_length") :]
    evaluation.main(argv)
    positions = AutoConfig.from_pretrained(tiny_model).max_position_embeddings
    printed = capsys.readouterr()
    assert json.loads(printed.out)["max_response_length"] == positions - 7
    assert (
        f"responses have {positions - 7} tokens, which the model's positions leave" in printed.err
    )


def test_the_papers_protocol_in_one_command(tiny_model, device, tmp_path, capfd):
    """--avg_samples counts for AIME and AMC alone: Avg@3 of one, Pass@1 of the others.

    Without that flag rows that repeat a question, which would add no sample, are refused.
    """
    rows = [row("aime", "3a+4"), row("arc_c", "3a+4", "C"), row("mine", "3a+4", "E_{1},E_{2}")]
    argv = command(tiny_model, write_jsonl(tmp_path / "papers.jsonl", [*rows, rows[0]]))
    with pytest.raises(
        ValueError, match="papers.jsonl: 1 rows repeat a question.*--avg_samples 32"
    ):
        evaluation.main(argv)
    evaluation.main([*argv, "--avg_samples", "3"])
    report = json.loads(capfd.readouterr().out)
    assert report["questions"] == {
        "read": 4,
        "repeated": 1,
        "answers unreadable": 1,
        "answers compared as text": 0,
    }
    assert (report["samples/aime"], report["samples/arc_c"]) == (3, 1)
    assert "maj_at_3/aime" in report and report["average_of/in_distribution"] == ["AIME24"]
    assert report["average_of/out_of_distribution"] == ["ARC-c"]


def test_a_prompt_that_fills_the_model_is_refused(tiny_model, device, tmp_path):
    """Where the longest prompt leaves no position for a response, the error names the knobs."""
    file = write_jsonl(tmp_path / "long.jsonl", [row("arithmetic", "1" * 600)])
    with pytest.raises(
        ValueError, match="no room.*takes 603 of 512 positions.*--max_prompt_length"
    ):
        evaluation.main(["--model", tiny_model, "--data", file, "--engine", "hf"])


def test_output_is_continued(tiny_model, device, file, tmp_path, monkeypatch, capfd):
    """A command told to stop keeps its whole blocks and goes on to the scores of one go."""
    monkeypatch.setattr(evaluation, "BLOCK", 4)
    argv = command(tiny_model, file, "--samples", "2")
    one_go = evaluation.main(argv)
    out, asked, generate = tmp_path / "out", [], HFEngine.generate

    def counting(self, prompts, *options):
        asked.append(len(prompts))
        if len(asked) == 3:
            raise Interrupted
        return generate(self, prompts, *options)

    monkeypatch.setattr(HFEngine, "generate", counting)
    argv += ["--output", str(out)]
    monkeypatch.setattr(watchdog, "interrupted", False)  # and so again in the end
    assert evaluation.main(argv) == {} and watchdog.interrupted
    assert f"{out} is kept, the same command goes on" in capfd.readouterr().err
    assert not (out / "scores.json").exists()
    watchdog.interrupted = False
    texts = ("3a+4", "1a+6", "2a+5", "9a-2", "0a+7")
    assert kept(out) == [(text, i) for text in texts[:4] for i in range(2)]
    whole = (out / "responses.jsonl").read_text()
    (out / "responses.jsonl").write_text(whole[:-9])  # killed in the middle of its last line
    assert json.loads((out / "settings.json").read_text())["turn_ends"] == [2]
    assert evaluation.main(argv) == one_go and asked == [4, 4, 2, 3]
    assert kept(out) == [(text, i) for text in texts for i in range(2)]
    scores = json.loads((out / "scores.json").read_text())
    assert one_go.items() <= scores.items() and scores["questions/arithmetic"] == 5
    evaluation.main([*argv, "--samples", "3"])  # more samples: only those
    assert asked[4:] == [4, 1] and kept(out)[10:] == [(text, 2) for text in texts]
    with pytest.raises(ValueError, match="eval_temperature.*0.6 -> 1.0.*another --output"):
        evaluation.main([*argv, "--eval_temperature", "1"])


def test_what_nobody_can_continue_is_refused(tmp_path):
    """Responses without settings.json, and a line that is none of ours, are refused by name.

    An empty settings.json is none: a kill has left it.
    """
    file = tmp_path / "responses.jsonl"
    (tmp_path / "settings.json").touch()
    file.write_text('{"question": "q", "sample": 0}\n{"question": \n')
    with pytest.raises(ValueError, match="no settings.json.*choose another --output"):
        open_kept(tmp_path, {})
    (tmp_path / "settings.json").write_text("{}")
    with pytest.raises(ValueError, match=r"responses.jsonl, line 2: not JSON"):
        open_kept(tmp_path, {})


def test_a_reward_that_is_too_slow_is_told(tiny_model, device, file, tmp_path, monkeypatch, capfd):
    """A score of 0 for lack of time looks like a result, so it is counted and said."""
    (tmp_path / "slow_reward.py").write_text(
        "import time\ndef score(response, answer): time.sleep(60)"
    )
    monkeypatch.chdir(tmp_path)
    flags = "--eval_questions 2 --reward slow_reward:score --verify_timeout 0.2".split()
    evaluation.main(command(tiny_model, file, *flags))
    said = capfd.readouterr()
    assert json.loads(said.out)["timeout/arithmetic"] == 1.0 and "2 responses score 0" in said.err


def test_output_of_other_weights_is_not_reported(tiny_model, device, file, tmp_path):
    """Changed weights are an error, a new model card beside them is none."""
    model = shutil.copytree(tiny_model, tmp_path / "model")
    argv = command(str(model), file, "--output", str(tmp_path / "out"))
    scores = evaluation.main(argv)
    (model / "README.md").write_text("a card, written later")
    assert evaluation.main(argv) == scores
    os.utime(model / "model.safetensors", (1, 1))
    with pytest.raises(ValueError, match="other settings.*model.safetensors"):
        evaluation.main(argv)


def test_output_on_two_ranks(tiny_model, file, tmp_path):
    """Every response is written once, and the scores are those of one rank."""
    argv = command(tiny_model, file)
    alone = evaluation.main(argv)
    assert on_ranks(2, evaluation.main, [*argv, "--output", str(tmp_path / "out")]) == [
        alone,
        alone,
    ]
    assert len(kept(tmp_path / "out")) == 5


@pytest.mark.parametrize(
    "argv, reason",
    [
        ([], "needs --model DIR and --data FILE"),
        (["--model", "x", "--data", "missing.parquet"], "missing.parquet is not there"),
    ],
)
def test_main_says_what_is_missing(argv, reason, device):
    """A command that cannot work fails with the reason."""
    with pytest.raises(ValueError, match=reason):
        evaluation.main(argv)


def test_what_only_training_knows_is_no_flag(tmp_path, capsys):
    """A file may have it, a flag is refused with the nearest; so is what nobody knows."""
    file = tmp_path / "training.yaml"
    file.write_text("temperature: 0.5\ntrain_files: [a, b]\n")
    argv = ["--model", "x", "--data", "eval.py", "--config", str(file)]
    assert evaluation.parse_command(argv) == evaluation.parse_command(argv[:4])
    with pytest.raises(SystemExit):
        evaluation.parse_command([*argv, "--temperature", "1"])
    assert "--eval_temperature FLOAT" in capsys.readouterr().err
    file.write_text("max_tokens: 5\n")
    with pytest.raises(ValueError, match="training.yaml: unknown knob max_tokens"):
        evaluation.parse_command(argv)
