"""Evaluation: records and means by hand on scripted responses, and the command on a tiny model."""

import json
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import Future
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
from rollout import HFEngine
from runtime import ranks, responses
from runtime.faults import watchdog
from runtime.responses import made_with, open_kept
from verifier.pool import Pending

SCRIPT = {  # {(question, sample): (response, a letter a token; reward; finished)}
    (0, 0): ("a3+4=7#7", 1.0, True), (0, 1): ("#7", 0.6, True),
    (1, 0): ("a3+5=7#7", 0.5, True), (1, 1): ("8", 0.0, False)}
QUESTIONS = [Question(0, "3a+4", np.array([5, 6], dtype=np.int32), "7", "x"),
             Question(1, "3a+5", np.array([5, 7], dtype=np.int32), "8", "y")]
BY_SEED = {sample_seed("eval", seed, *key): value for key, value in SCRIPT.items() for seed in (0, 7)}


class Engine:
    """Responses that were written beforehand, found by seed; what was asked for."""

    def __init__(self):
        self.asked, self.breaks_after = [], None

    def generate(self, prompts, seeds, temperature, max_tokens, on_finish):
        self.asked.append(([p[-1] for p in prompts], temperature, max_tokens))
        made = []
        for index, seed in enumerate(seeds):
            if index == self.breaks_after:
                raise KeyboardInterrupt
            text, reward, finished = BY_SEED[seed]
            token_ids = [ord(c) for c in text]
            made.append(SimpleNamespace(token_ids=token_ids, finished=finished))
            on_finish(index, made[-1])
        return made


def grader(config: Config, hangs: str = "") -> SimpleNamespace:
    """Gives the rewards of the script, but none to the text that hangs."""
    rewards = {text: reward for text, reward, _ in SCRIPT.values()}

    def submit(question, ids):
        if (text := "".join(map(chr, ids))) != hangs:
            (graded := Future()).set_result({"score": rewards[text]})
        return Pending([graded if text != hangs else Future()])

    return SimpleNamespace(
        config=config, submit=submit, text=lambda ids: "".join(map(chr, ids)),
        piece=lambda question, ids: rf"\boxed{{{len(ids)}}}", warn=lambda *_: None)


class Kept(list):
    """Takes records as the command does; with `every`, after so many responses."""

    shown, bar = True, SimpleNamespace(close=lambda: None)
    __bool__ = lambda self: True  # noqa: E731

    def __init__(self, every: int = 100):
        self.every, self.seen = every, 0

    def begin(self, total):
        self.total = total

    def due(self, tokens):
        self.seen += 1
        return self.seen % self.every == 0

    def write(self, records):
        self.append(records)


def test_means_per_source():
    """Avg@2 of two sources: a reward above 0.5 is a success; its mean, length, truncation, judges."""
    config = Config(reward="worlds.arithmetic:graded_reward", eval_temperature=0.7, max_response_length=9)
    wanted, engine = [(q, i) for q in QUESTIONS for i in range(2)], Engine()
    records = respond(engine, grader(config), wanted, config, seed=7)
    assert means(records) == {
        "pass_at_1/x": 1.0, "reward/x": 0.8, "length/x": 5.0, "truncated/x": 0.0, "timeout/x": 0.0,
        "pass_at_1/y": 0.0, "reward/y": 0.25, "length/y": 4.5, "truncated/y": 0.5, "timeout/y": 0.0,
        "valid/x": 0.5, "shortcut/x": 0.5, "valid/y": 0.0, "shortcut/y": 0.5}
    assert engine.asked == [([6, 6, 7, 7], 0.7, 9)] and not {"response", "answer"} & set(records[0])


def test_a_response_without_a_verdict_that_others_have_is_no_average():
    """Kept by an earlier command: a mean over seven of eight would be passed off as one over eight."""
    record = {"source": "x", "success": True, "reward": 1.0, "length": 1, "truncated": False}
    with pytest.raises(ValueError, match="not judged as others"):
        means([record | {"source": "first"}, record | {"judged": {"valid": True}}, record])


def test_records_are_kept_with_their_texts_and_returned_without():
    """Text, gold and response; what is boxed where a box is wanted; judges only in the built-in world."""
    for config, boxed in ((Config(), {"answer": "2"}), (Config(require_box=False), {})):
        (returned,) = respond(Engine(), grader(config), [(QUESTIONS[0], 1)], config, 7, kept := Kept())
        short = {"source": "x", "sample": 1, "reward": 0.6, "success": True, "length": 2, "truncated": False,
                 "timeout": False}
        [[record]] = kept
        assert record.pop("question") == returned.pop("question") and returned == short | boxed
        assert record == short | boxed | {"text": "3a+4", "gold": "7", "response": "#7"}


def test_responses_are_kept_as_they_end_also_when_the_rest_does_not():
    """Every second response asks for a write, and an interrupt loses none that has ended."""
    wanted, engine, kept = [(q, i) for q in QUESTIONS for i in range(2)], Engine(), Kept(every=2)
    engine.breaks_after = 3
    with pytest.raises(KeyboardInterrupt):
        respond(engine, grader(Config()), wanted, Config(), 7, kept)
    assert kept.total == 4 and [[r["length"] for r in records] for records in kept] == [[8, 2], [8]]


def test_an_interrupt_does_not_wait_for_verdicts(monkeypatch):
    """A reward that takes for ever: asked to stop, `respond` leaves with the records that have a verdict."""
    monkeypatch.setattr(evaluation, "LAST_VERDICTS", 0.1)
    wanted, kept = [(q, i) for q in QUESTIONS for i in range(2)], Kept()
    monkeypatch.setattr(watchdog, "phase", "evaluation")
    monkeypatch.setattr(watchdog, "interrupted", True)
    with pytest.raises(ranks.Interrupted):
        respond(Engine(), grader(Config(), hangs="#7"), wanted, Config(), 7, kept)
    assert [r["length"] for records in kept for r in records] == [8, 8, 1]


def test_validation_is_one_response_a_question_whatever_the_seed_of_the_run():
    """Seed 3 of the run, seed 0 of the samples: two runs are compared on the same random numbers."""
    engine = Engine()
    scores = validate(engine, grader(Config()), QUESTIONS, Config(seed=3))
    assert scores["val/pass_at_1/x"] == 1.0 and scores["val/length/y"] == 8.0
    assert engine.asked == [([6, 7], 0.6, 64)]


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
        "pass_at_1", "reward", "length", "truncated", "timeout", "valid", "shortcut"}
    report = json.loads(capsys.readouterr().out)
    assert report["questions"] == {"read": 7, "prompts too long": 1, "repeated": 1, "answers unreadable": 0,
                                   "answers malformed": 0}
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
    kept = ("pass_at_1", "reward", "length", "truncated", "timeout")
    assert set(scores) == {f"{name}/math" for name in kept}
    counts = json.loads(capsys.readouterr().out)["questions"]
    assert counts == {"read": 4, "repeated": 1, "answers unreadable": 1, "answers malformed": 0}


def test_the_papers_protocol_in_one_command(tiny_model, device, tmp_path, capfd):
    """--avg_samples counts for AIME and AMC alone: Avg@3 of one, Pass@1 of the others."""
    rows = [row("aime", "3a+4"), row("arc_c", "3a+4", "C"), row("mine", "3a+4")]
    argv = command(tiny_model, write(tmp_path / "papers.jsonl", rows), "--max_response_length", "5")
    evaluation.main([*argv, "--avg_samples", "3"])
    report = json.loads(capfd.readouterr().out)
    assert [report[f"samples/{source}"] for source in ("aime", "arc_c", "mine")] == [3, 1, 1]
    assert "maj_at_3/aime" in report and report["average_of/in_distribution"] == ["AIME24"]
    assert report["average_of/out_of_distribution"] == ["ARC-c"]
    argv = command(tiny_model, write(tmp_path / "mine.jsonl", rows[2:]), "--max_response_length", "5")
    evaluation.main([*argv, "--avg_samples", "3"])
    assert "none is here" in capfd.readouterr().err


def test_rows_that_repeat_a_question_are_samples_of_it(tiny_model, device, tmp_path, capsys):
    """Three rows of each question of a source: Avg@3, as in the official test file; not where some are alone.
    More may be asked for."""
    rows = [row("aime", text) for text in ("3a+4", "1a+6")] * 3 + [row("mine", t) for t in ("3a", "3a", "4a")]
    argv = command(tiny_model, write(tmp_path / "q.jsonl", rows), "--max_response_length", "5")
    for samples, expected in (("1", [3, 1]), ("4", [4, 4])):
        evaluation.main([*argv, "--samples", samples])
        report = json.loads(capsys.readouterr().out)
        assert [report[f"samples/{source}"] for source in ("aime", "mine")] == expected
        assert [report[f"questions/{source}"] for source in ("aime", "mine")] == [2, 2]


def test_a_prompt_that_fills_the_model_is_refused(tiny_model, device, tmp_path):
    """Where the longest prompt leaves no position for a response, the error names the knobs."""
    file = write(tmp_path / "long.jsonl", [row("arithmetic", "1" * 600)])
    with pytest.raises(ValueError, match="no room.*takes 603 of 512 positions.*--max_prompt_length"):
        evaluation.main(["--model", tiny_model, "--data", file, "--engine", "hf"])


def test_output_is_continued(tiny_model, device, file, tmp_path, monkeypatch):
    """A command broken off is continued: what is missing is generated, the scores are those of one go."""
    argv = command(tiny_model, file, "--max_response_length", "20", "--samples")
    one_go = evaluation.main([*argv, "2"])
    out, asked, generate = tmp_path / "out", [], HFEngine.generate
    argv = [*argv[:-1], "--output", str(out), "--samples"]

    def counting(self, prompts, seeds, *options):
        asked.append(len(prompts))
        made = generate(self, prompts[:8], seeds[:8], *options)
        if len(prompts) > 8:
            raise KeyboardInterrupt
        return made

    monkeypatch.setattr(HFEngine, "generate", counting)
    with pytest.raises(KeyboardInterrupt):
        evaluation.main([*argv, "2"])
    part = out / "responses-0.jsonl"
    lines = part.read_text().splitlines()
    assert len(lines) == 8
    part.write_text("\n".join(lines)[:-9])  # killed in the middle of its last line
    assert evaluation.main([*argv, "2"]) == one_go and asked == [10, 3]
    rows = [json.loads(line) for line in (out / "responses.jsonl").read_text().splitlines()]
    assert len({(r["question"], r["sample"]) for r in rows}) == len(rows) == 10 and not part.exists()
    scores = json.loads((out / "scores.json").read_text())
    assert one_go.items() <= scores.items() and scores["questions/arithmetic"] == 5
    assert evaluation.main([*argv, "3"]) and asked[2:] == [5]  # more samples: only those
    rows = [json.loads(line) for line in (out / "responses.jsonl").read_text().splitlines()]
    asked = [json.loads(line)["prompt"][-1]["content"] for line in Path(file).read_text().splitlines()]
    kept = [(r["text"], r["sample"]) for r in rows]  # in the file's order, whichever ended first
    assert kept == [(t, i) for t in dict.fromkeys(asked) if len(t) < 30 for i in range(3)]
    with pytest.raises(ValueError, match="eval_temperature.*0.6 -> 1.0.*another --output"):
        evaluation.main([*argv, "3", "--eval_temperature", "1"])


@pytest.mark.slow
def test_a_stopped_evaluation_keeps_what_has_ended(tiny_model, tmp_path):
    """Told to stop as it begins: it ends by itself within seconds, names the phase, and says how to go on."""
    data = write(tmp_path / "many.jsonl", [row("x", f"{i}a+1") for i in range(64)])
    argv = command(tiny_model, data, "--max_response_length", "400", "--output", str(tmp_path / "out"))
    environment = {name: value for name, value in os.environ.items() if name != "MASTER_PORT"}  # is in use
    process = subprocess.Popen([sys.executable, "eval.py", *argv, "--samples", "8"], stderr=subprocess.PIPE,
                               cwd=Path(evaluation.__file__).parent, env=environment, text=True)
    seen = ""
    while "0%" not in seen:
        seen += process.stderr.read(1) or pytest.fail(seen)
    process.send_signal(signal.SIGTERM)
    seen += process.communicate(timeout=60)[1]
    assert process.returncode == 130 and "(evaluation)" in seen and "same command goes on" in seen
    kept = (tmp_path / "out" / "responses-0.jsonl").read_text().splitlines()
    assert len(kept) < 512 and not (tmp_path / "out" / "scores.json").exists()


def test_what_lies_beside_the_responses_is_left_alone(tmp_path):
    """A backup is no rank's part: neither read nor deleted; responses without settings.json are refused."""
    record = {"source": "x", "question": "q", "success": True, "reward": 1, "length": 3, "truncated": False}
    lines = [json.dumps(record | {"sample": i}) for i in range(3)]
    for name, line in zip(("responses", "responses-0", "responses-backup"), lines):
        (tmp_path / f"{name}.jsonl").write_text(line + "\n")
    with pytest.raises(ValueError, match="no settings.json.*choose another --output"):
        open_kept(tmp_path, {})
    with pytest.raises(ValueError, match="is a file: name a directory"):
        open_kept(tmp_path / "responses.jsonl", {})
    (tmp_path / "settings.json").write_text("{}")
    assert sorted(i for _, i in open_kept(tmp_path, {})[0]) == [0, 1]
    assert {path.name for path in tmp_path.iterdir()} == {
        "responses.jsonl", "responses-backup.jsonl", "settings.json"}


def test_a_reward_that_was_edited_is_another_setting(tmp_path, monkeypatch):
    """Verdicts of two versions of a function are not mixed in one set of scores."""
    monkeypatch.syspath_prepend(tmp_path)
    settings = []
    for score in (0.0, 1.0):
        (tmp_path / "edited_reward.py").write_text(f"def score(response, answer): return {score}")
        settings.append(made_with({"model": str(tmp_path), "reward": "edited_reward:score"}))
    assert settings[0]["reward_source"] != settings[1]["reward_source"]


@pytest.mark.parametrize("text", [b"[]", b"{", b'{"source": "x"}', json.dumps({
    "source": "x", "question": "q", "sample": 0, "success": "yes", "reward": 1, "length": 3,
    "truncated": False}).encode(), b"\xff\xfe", b"null", b"[" * 9000])
def test_damaged_responses_are_named(tmp_path, text):
    """A line that is no record: file, line and what to do, whatever stands in it, and nothing is changed."""
    record = {"source": "x", "question": "q", "sample": 0, "success": True, "reward": 1.0, "length": 3,
              "truncated": False}
    file = tmp_path / "responses.jsonl"
    file.write_bytes(json.dumps(record).encode() + b"\n" + text + b"\n")
    before = file.read_bytes()
    (tmp_path / "settings.json").write_text("{}")
    with pytest.raises(ValueError, match=r"responses.jsonl, line 2 is damaged .* remove it and give the com"):
        open_kept(tmp_path, {})
    assert file.read_bytes() == before
    (tmp_path / "settings.json").write_bytes(text)
    with pytest.raises(ValueError, match="damaged"):
        open_kept(tmp_path, {})


def test_the_bar_says_tokens_a_second_and_when_to_write(tmp_path, monkeypatch, capsys):
    """By a clock that is set by hand: 300 tokens in 10 s, 10 of 20 responses; a write every 30 s."""
    now = [100.0]
    monkeypatch.setattr(responses.time, "monotonic", lambda: now[0])
    kept = responses.Kept(str(tmp_path))
    kept.begin(20)
    now[0] = 110.0
    assert not any([kept.due(30) for _ in range(10)])
    kept.bar.refresh()
    shown = capsys.readouterr().err
    assert "responses:  50%" in shown and "10/20" in shown and "30 tokens/s" in shown
    now[0] = 130.0
    assert kept.due(30)
    kept.write([{"source": "x"}])
    assert not kept.due(30) and (tmp_path / "responses-0.jsonl").read_text() == '{"source": "x"}\n'
    silent = responses.Kept(shown=False)
    silent.begin(20)
    assert not silent.due(30) and capsys.readouterr().err == ""


def test_a_reward_that_is_too_slow_is_told(tiny_model, device, file, tmp_path, monkeypatch, capfd):
    """A score of 0 for lack of time looks like a result: it is counted, and said."""
    (tmp_path / "slow_reward.py").write_text("import time\ndef score(*given): time.sleep(60)")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    evaluation.main(command(tiny_model, file, "--max_response_length", "5", "--limit", "2", "--reward",
                            "slow_reward:score", "--verify_timeout", "0.2"))
    said = capfd.readouterr()
    assert json.loads(said.out)["timeout/arithmetic"] == 1.0 and "2 responses score 0" in said.err


def test_a_limit_is_per_source(tiny_model, device, tmp_path, capsys):
    """--limit 2, or eval_questions from training's file: the first two of each source, and no response is
    made anew where the limit grows."""
    rows = [row(source, text) for source in ("a", "b") for text in ("3a+4", "1a+6", "2a+5")]
    data = write(tmp_path / "two.jsonl", rows)
    settings = tmp_path / "training.yaml"
    settings.write_text(f"eval_questions: 1\nlr: 1e-6\nval_files: [{data}]\n")
    argv = ["--model", tiny_model, "--engine", "hf", "--max_response_length", "5", "--output",
            str(tmp_path / "out"), "--max_prompt_length", "30"]
    evaluation.main([*argv, "--config", str(settings)])
    report = json.loads(capsys.readouterr().out)
    assert report["questions/a"] == report["questions/b"] == 1
    kept = (tmp_path / "out" / "responses.jsonl").read_text()
    evaluation.main([*argv, "--config", str(settings), "--limit", "2"])
    report = json.loads(capsys.readouterr().out)
    assert report["questions/a"] == report["questions/b"] == 2
    after = (tmp_path / "out" / "responses.jsonl").read_text()
    assert set(kept.splitlines()) < set(after.splitlines()) and len(after.splitlines()) == 4


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
    ([], "needs --model DIR and --data FILE"), (["--model", "x"], "needs --model"),
    (["--model", "x", "--data", "eval.py", "--samples", "0"], "samples must be at least 1, got 0"),
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
