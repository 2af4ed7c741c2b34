"""Evaluation: records and means by hand on scripted responses, and the command on a tiny model."""

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import on_ranks
from transformers import AutoConfig

import eval as evaluation
from config import Config
from data import Question, sample_seed
from eval import means, respond, validate

SCRIPT = {  # {(question, sample): (response, a letter a token; reward; finished)}
    (0, 0): ("a3+4=7#7", 1.0, True), (0, 1): ("#7", 0.6, True),
    (1, 0): ("a3+5=7#7", 0.5, True), (1, 1): ("8", 0.0, False)}
QUESTIONS = [Question(0, "3a+4", np.array([5, 6], dtype=np.int32), "7", "x"),
             Question(1, "3a+5", np.array([5, 7], dtype=np.int32), "8", "y")]
GRADER = SimpleNamespace(
    text=lambda ids: "".join(map(chr, ids)),
    piece=lambda question, ids: rf"\boxed{{{len(ids)}}}")


@pytest.fixture
def asked(monkeypatch):
    """Rollouts that were written beforehand, found by seed; and what was asked for."""
    script = {sample_seed("eval", seed, *key): value for key, value in SCRIPT.items() for seed in (0, 7)}
    asked = []

    def roll_out(engine, grader, questions, seeds, temperature):
        asked.append(([q.id for q in questions], temperature))
        return [[SimpleNamespace(token_ids=[ord(c) for c in text], reward=reward, finished=finished)
                 for text, reward, finished in map(script.get, group)] for group in seeds]

    monkeypatch.setattr(evaluation, "roll_out", roll_out)
    return asked


def test_means_per_source(asked):
    """Avg@2 of two sources: a reward above 0.5 is a success; its mean, length, truncation, judges."""
    config = Config(reward="worlds.arithmetic:graded_reward", eval_temperature=0.7, max_response_length=9)
    wanted = [(q, i) for q in QUESTIONS for i in range(2)]
    records = respond(None, GRADER, wanted, config, seed=7)
    assert means(records) == {
        "pass_at_1/x": 1.0, "reward/x": 0.8, "length/x": 5.0, "truncated/x": 0.0,
        "pass_at_1/y": 0.0, "reward/y": 0.25, "length/y": 4.5, "truncated/y": 0.5,
        "valid/x": 0.5, "shortcut/x": 0.5, "valid/y": 0.0, "shortcut/y": 0.5}
    assert asked == [([0, 0, 1, 1], 0.7)] and not {"response", "answer"} & set(records[0])


def test_records_hold_the_text_where_asked(asked):
    """Text, gold and response; what is boxed where a box is wanted; judges only in the built-in world."""
    record = respond(None, GRADER, [(QUESTIONS[0], 1)], Config(), seed=7, texts=True)[0]
    assert record.pop("question") and record == {
        "source": "x", "sample": 1, "reward": 0.6, "success": True, "length": 2, "truncated": False,
        "text": "3a+4", "gold": "7", "response": "#7", "answer": "2"}
    free = respond(None, GRADER, [(QUESTIONS[0], 1)], Config(require_box=False), 7, texts=True)[0]
    assert free["response"] == "#7" and "answer" not in free


def test_validation_is_one_response_a_question_whatever_the_seed_of_the_run(asked):
    """Seed 3 of the run, seed 0 of the samples: two runs are compared on the same random numbers."""
    scores = validate(None, GRADER, QUESTIONS, Config(seed=3))
    assert scores["val/pass_at_1/x"] == 1.0 and scores["val/length/y"] == 8.0 and asked == [([0, 1], 0.6)]


# ---- the command ------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    """Five questions of the built-in world, one of them twice, and one with a prompt that is too long."""
    texts = ("3a+4", "3a+4", "1a+6", "2a+5", "9a-2", "0a+7", "1" * 60)
    return write(tmp_path / "test.jsonl", [row("arithmetic", text) for text in texts])


def row(source: str, text: str, answer: str = "7") -> dict:
    prompt = [{"role": "user", "content": text}]
    return {"data_source": source, "prompt": prompt, "reward_model": {"ground_truth": answer}}


def write(path: Path, rows: list[dict]) -> str:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return str(path)


def command(model: str, file: str, *flags: str) -> list[str]:
    return ["--model", model, "--data", file, "--engine", "hf", "--max_prompt_length", "30", *flags]


def test_main_on_a_file(tiny_model, device, file, capsys):
    """The command scores a file with a model directory, says what it dropped, and gives the same again."""
    argv = command(tiny_model, file, "--max_response_length", "20", "--samples", "3")
    scores = evaluation.main(argv)
    assert {name.removesuffix("/arithmetic") for name in scores} == {
        "pass_at_1", "reward", "length", "truncated", "valid", "shortcut"}
    report = json.loads(capsys.readouterr().out)
    assert report["questions"] == {"read": 7, "prompts too long": 1, "repeated": 1, "answers unreadable": 0}
    assert {name: report[name] for name in scores} == scores == evaluation.main(argv)
    assert scores != evaluation.main([*argv, "--seed", "1"])
    greedy = [evaluation.main([*argv, "--eval_temperature", "0", "--seed", seed]) for seed in "01"]
    assert greedy[0] == greedy[1]


def test_the_default_length_is_what_the_model_has_positions_for(tiny_model, device, file, capsys):
    """8192 tokens by default, but no more than the positions that the longest prompt, 7 tokens, leaves."""
    evaluation.main(command(tiny_model, file))
    positions = AutoConfig.from_pretrained(tiny_model).max_position_embeddings
    assert json.loads(capsys.readouterr().out)["max_response_length"] == positions - 7


def test_main_with_math(tiny_model, device, tmp_path, capsys):
    """Questions of another source: Math-Verify, no judge; an unreadable answer is dropped and counted."""
    rows = [row("math", "3a+4"), row("math", "3a+4"), row("math", "1a+6"), row("math", "2a+5", "E_{1},E_{2}")]
    argv = command(tiny_model, write(tmp_path / "math.jsonl", rows), "--max_response_length", "5")
    scores = evaluation.main(argv)
    assert set(scores) == {"pass_at_1/math", "reward/math", "length/math", "truncated/math"}
    counts = json.loads(capsys.readouterr().out)["questions"]
    assert counts == {"read": 4, "repeated": 1, "answers unreadable": 1}


def test_the_papers_protocol_in_one_command(tiny_model, device, tmp_path, capsys):
    """--avg_samples counts for AIME and AMC alone: Avg@3 of one, Pass@1 of the others."""
    rows = [row("aime", "3a+4"), row("arc_c", "3a+4", "C"), row("mine", "3a+4")]
    argv = command(tiny_model, write(tmp_path / "papers.jsonl", rows), "--max_response_length", "5")
    evaluation.main([*argv, "--avg_samples", "3"])
    report = json.loads(capsys.readouterr().out)
    assert [report[f"samples/{source}"] for source in ("aime", "arc_c", "mine")] == [3, 1, 1]
    assert "maj_at_3/aime" in report and report["average_of/in_distribution"] == ["AIME24"]
    assert report["average_of/out_of_distribution"] == ["ARC-c"]


def test_a_prompt_that_fills_the_model_is_refused(tiny_model, device, tmp_path):
    """Where the longest prompt leaves no position for a response, the error names the knobs."""
    file = write(tmp_path / "long.jsonl", [row("arithmetic", "1" * 600)])
    with pytest.raises(ValueError, match="no room.*takes 603 of 512 positions.*--max_prompt_length"):
        evaluation.main(["--model", tiny_model, "--data", file, "--engine", "hf"])


def test_output_is_continued(tiny_model, device, file, tmp_path, monkeypatch):
    """A command broken off is continued: what is missing is generated, the scores are those of one go."""
    argv = command(tiny_model, file, "--max_response_length", "20", "--samples")
    one_go = evaluation.main([*argv, "2"])
    out, asked, respond = tmp_path / "out", [], evaluation.respond
    argv = [*argv[:-1], "--output", str(out), "--samples"]

    def counting(engine, grader, wanted, *options, **more):
        asked.append(len(wanted))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return respond(engine, grader, wanted, *options, **more)

    monkeypatch.setattr(evaluation, "respond", counting)
    monkeypatch.setattr(evaluation, "SAVE_EVERY", 4)
    with pytest.raises(KeyboardInterrupt):
        evaluation.main([*argv, "2"])
    lines = (out / "responses.jsonl").read_text().splitlines()
    assert len(lines) == 8
    (out / "responses.jsonl").write_text("\n".join(lines)[:-9])  # killed in the middle of its last line
    assert evaluation.main([*argv, "2"]) == one_go and asked == [4, 4, 2, 3]
    rows = [json.loads(line) for line in (out / "responses.jsonl").read_text().splitlines()]
    assert len({(r["question"], r["sample"]) for r in rows}) == len(rows) == 10
    scores = json.loads((out / "scores.json").read_text())
    assert one_go.items() <= scores.items() and scores["questions/arithmetic"] == 5
    assert evaluation.main([*argv, "3"]) and asked[4:] == [4, 1]  # more samples: only those
    with pytest.raises(ValueError, match="eval_temperature.*0.6 -> 1.0.*another --output"):
        evaluation.main([*argv, "3", "--eval_temperature", "1"])


@pytest.mark.parametrize("changed", ["model.safetensors", "pytorch_model.bin", "tokenizer_config.json"])
def test_output_of_other_weights_is_not_reported(tiny_model, device, file, tmp_path, changed):
    """A model whose weights (of any format) or tokenizer changed gets no scores of what it was."""
    model = shutil.copytree(tiny_model, tmp_path / "model")
    (model / "pytorch_model.bin").write_bytes(b"not read: there is a model.safetensors")
    argv = command(str(model), file, "--max_response_length", "5", "--output", str(tmp_path / "out"))
    scores = evaluation.main(argv)
    (model / "README.md").write_text("a card, written later")
    assert evaluation.main(argv) == scores
    os.utime(model / changed, (1, 1))
    with pytest.raises(ValueError, match=f"other settings.*{changed}"):
        evaluation.main(argv)


def test_output_on_two_ranks(tiny_model, file, tmp_path):
    """Work is split over the ranks, one of them writes: every response once, and the scores of one rank."""
    argv = command(tiny_model, file, "--max_response_length", "20")
    alone = evaluation.main(argv)
    assert on_ranks(2, evaluation.main, [*argv, "--output", str(tmp_path / "out")]) == [alone, alone]
    assert len((tmp_path / "out" / "responses.jsonl").read_text().splitlines()) == 5


@pytest.mark.parametrize("argv, reason", [
    ([], "needs --model DIR, --data FILE"), (["--model", "x"], "needs --model"),
    (["--model", "x", "--data", "eval.py", "--samples", "0"], "--samples of at least 1"),
    (["--model", "x", "--data", "missing.parquet"], "no such file: missing.parquet"),
    (["--model", "x", "--max_tokens", "5"], "unknown flag --max_tokens; nearest: .*--max_response_length"),
    (["--memory", "0.5"], "unknown flag --memory; nearest: --rollout_memory"),
    (["--temperature=1"], "unknown flag --temperature; nearest: --eval_temperature"),
    (["--compare", "a.json"], "unknown flag --compare"),
])
def test_main_says_what_is_missing(argv, reason, device):
    """A command that cannot work fails with the reason; flags of former days lead to those of training."""
    with pytest.raises((SystemExit, ValueError), match=reason):
        evaluation.main(argv)


def test_the_shared_knobs_are_those_of_training():
    """The same thing has the same flag, type and help in train.py and eval.py."""
    ours, theirs = evaluation.EvalConfig.__dataclass_fields__, Config.__dataclass_fields__
    for name in evaluation.SHARED:
        assert (ours[name].type, ours[name].metadata) == (theirs[name].type, theirs[name].metadata)
    assert set(evaluation.DEFAULTS) < set(evaluation.SHARED) < set(ours) > set(evaluation.FREE)
