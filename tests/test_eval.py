"""Evaluation: the means per source by hand, and the command on a tiny model."""

import json

import numpy as np
import pytest
from transformers import AutoConfig

import eval as evaluation
from config import Config
from data import Question, Response, sample_seed
from eval import evaluate
from grading import Grader


class Scripted:
    """An engine whose responses are scripted, a verifier that takes the reward from the text, and what is asked of them."""

    def __init__(self, lengths: dict[int, int]):
        self.lengths, self.asked = lengths, []  # {seed: length of the response}

    def generate(self, requests, temperature, max_tokens, on_finish):
        self.asked += [(r.prompt_ids.tolist(), r.seed, temperature, max_tokens) for r in requests]
        responses = []
        for i, request in enumerate(requests):
            length = self.lengths[request.seed]
            responses.append(Response(np.full(length, length, dtype=np.int32), np.zeros(length, dtype=np.float32), length < 9))
            on_finish(i, responses[-1])
        return responses

    def decode(self, token_ids, skip_special_tokens=True):
        return " ".join(map(str, token_ids))

    def submit(self, texts, answers):
        self.scores = [float(text.split()[0] == answer) for text, answer in zip(texts, answers)]
        return Scores(self.scores)


class Scores:
    def __init__(self, scores):
        self.scores = scores

    def result(self):
        return self.scores


def question(i: int, source: str, answer: str) -> Question:
    return Question(i, f"q{i}", np.array([1, i], dtype=np.int32), answer, source)


def test_means_per_source():
    """Avg@2 of two sources worked out by hand: reward, length, truncation and the judge's verdict, with the fixed seeds."""
    lengths = {(0, 0): 3, (0, 1): 3, (1, 0): 5, (1, 1): 9, (2, 0): 4, (2, 1): 2}  # (question, sample): tokens
    script = Scripted({sample_seed("eval", 7, q, i): n for (q, i), n in lengths.items()})
    questions = [question(0, "a", "3"), question(1, "a", "9"), question(2, "b", "4")]
    grader = Grader(Config(reward="arithmetic:reward"), script, script)
    scores = evaluate(script, grader, questions, temperature=0.6, max_tokens=9, samples=2, seed=7,
                      judges={"valid": lambda text, response: (text, response) == ("q0", "3 3 3")})
    assert scores == {
        "pass_at_1/a": 0.75, "length/a": 5.0, "truncated/a": 0.25, "valid/a": 0.5,
        "pass_at_1/b": 0.5, "length/b": 3.0, "truncated/b": 0.0, "valid/b": 0.0}
    assert script.asked == [([1, q], sample_seed("eval", 7, q, i), 0.6, 9) for q, i in lengths]
    assert "valid/a" not in evaluate(script, grader, questions, temperature=0.6, max_tokens=9, samples=2, seed=7)


@pytest.fixture
def file(tmp_path):
    """Five questions of the built-in world, one of them twice, and one with a prompt that is too long."""
    rows = [{"data_source": "arithmetic", "prompt": [{"role": "user", "content": text}], "reward_model": {"ground_truth": "7"}}
            for text in ("3a+4", "3a+4", "1a+6", "2a+5", "9a-2", "0a+7", "1" * 60)]
    path = tmp_path / "test.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_main_on_a_file(tiny_model, device, file, capsys):
    """The command scores a file with a model directory, says what it dropped, and gives the same again."""
    limits = ["--max_prompt_length", "30", "--max_tokens", "20", "--samples", "3"]
    argv = ["--model", tiny_model, "--data", file, "--engine", "hf", *limits]
    scores = evaluation.main(argv)
    assert set(scores) == {f"{name}/arithmetic" for name in ("pass_at_1", "length", "truncated", "valid")}
    report = json.loads(capsys.readouterr().out)
    assert report["questions"] == {"read": 7, "prompts too long": 1, "repeated": 1, "answers unreadable": 0}
    assert {name: report[name] for name in scores} == scores == evaluation.main(argv)
    assert scores != evaluation.main([*argv, "--seed", "1"])
    greedy = [evaluation.main([*argv, "--temperature", "0", "--seed", seed]) for seed in "01"]
    assert greedy[0] == greedy[1]


def test_the_default_length_is_what_the_model_has_positions_for(tiny_model, device, file, capsys):
    """8192 tokens by default, but no more than the model's positions leave after the longest prompt (7 tokens here)."""
    evaluation.main(["--model", tiny_model, "--data", file, "--engine", "hf", "--max_prompt_length", "30"])
    positions = AutoConfig.from_pretrained(tiny_model).max_position_embeddings
    assert json.loads(capsys.readouterr().out)["max_tokens"] == positions - 7


def test_main_with_math(tiny_model, device, file, tmp_path, capsys):
    """Questions of another source: Math-Verify, no judge; one whose answer cannot be read is dropped with a count."""
    rows = [json.loads(line) | {"data_source": "math"} for line in open(file)][:4]
    rows[3]["reward_model"]["ground_truth"] = "E_{1},E_{2}"
    path = tmp_path / "math.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    scores = evaluation.main(["--model", tiny_model, "--data", str(path), "--engine", "hf", "--max_tokens", "5"])
    assert set(scores) == {"pass_at_1/math", "length/math", "truncated/math"} and scores["pass_at_1/math"] == 0
    assert json.loads(capsys.readouterr().out)["questions"] == {"read": 4, "repeated": 1, "answers unreadable": 1}


@pytest.mark.parametrize("argv, reason", [
    ([], "needs --model DIR, --data FILE"), (["--model", "x"], "needs --model"),
    (["--model", "x", "--data", "eval.py", "--samples", "0"], "--samples of at least 1"),
    (["--model", "x", "--data", "missing.parquet"], "no such file: missing.parquet"),
])
def test_main_says_what_is_missing(argv, reason, device):
    """A command that cannot work fails with the reason."""
    with pytest.raises(ValueError, match=reason):
        evaluation.main(argv)
