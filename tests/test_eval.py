"""A row of Table 1: means, intervals, averages and Avg@k by hand, and a small evaluation."""

import json
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import Future

import numpy as np
import pytest

import eval as evaluation
from buffer import Trajectory
from config import Config
from data import Question, load_tokenizer
from eval import EvalConfig, benchmark, interval, means, respond, statistics, validate
from reward import Grader
from runtime.ranks import Refusal


def record(source: str, text: str, success: bool, **more) -> dict:
    return {"source": source, "text": text, "success": success, **more}


def test_means_by_hand():
    """Per source, of successes and of every named number; one that some lack is of the others."""
    records = [
        record("x", "a", True, sample=0, reward=1.0, length=4, valid=1.0),
        record("x", "a", False, sample=1, reward=0.4, length=8),
        record("y", "b", False, sample=0, reward=0.0, length=9, truncated=True),
    ]
    of_x = {"pass_at_1/x": 0.5, "reward/x": 0.7, "length/x": 6.0, "valid/x": 1.0}
    of_y = {"pass_at_1/y": 0.0, "reward/y": 0.0, "length/y": 9.0, "truncated/y": 1.0}
    assert means(records) == pytest.approx(of_x | of_y)


def test_intervals_by_hand():
    """Wilson's of Pass@1: the question is the unit, however many responses it has."""
    # With z = 1.95996 the bounds are (0.5 + z²/20 ± z sqrt(1/40 + z²/400)) / (1 + z²/10).
    of_ten = pytest.approx([0.23659, 0.76341], abs=1e-5)
    assert interval([[True], [False]] * 5) == of_ten
    assert interval([[True] * 4, [False] * 4] * 5) == of_ten
    assert interval([[False]] * 10) == pytest.approx([0, 3.84146 / 13.84146], abs=1e-5)


def test_averages_by_hand():
    """Benchmarks count alike, with several data_sources too, and other sources do not count."""
    records = [record("aime", "a", True), record("aime", "a", False), record("aime", "b", False)]
    records += [
        record("aime", "b", False),
        record("math", "c", True),
        record("MATH-500", "d", False),
    ]
    records += [record("arc_c", "e", False), record("mine", "f", True)]
    found = statistics(records)
    assert (found["questions/aime"], found["samples/aime"]) == (2, 2)
    assert found["average/in_distribution"] == (0.25 + 0.5) / 2
    assert found["average_of/in_distribution"] == ["AIME24", "MATH-500"]
    assert found["average/out_of_distribution"] == 0.0
    assert found["average_of/out_of_distribution"] == ["ARC-c"]


@pytest.mark.parametrize(
    "name, sources",
    [
        ("AIME24", "aime AIME_2024 math-ai/aime24"),
        ("AMC", "amc AMC23"),
        ("MATH-500", "math MATH-500 HuggingFaceH4/MATH-500"),
        ("ARC-c", "arc_c ARC-Challenge"),
        (None, "mmlu math_train aime26 arithmetic /"),
    ],
)
def test_benchmarks_are_known_by_several_names(name, sources):
    """Only letters and digits behind the last / count, in any case."""
    assert {benchmark(source) for source in sources.split()} == {name}


def test_avg_samples_are_of_aime_and_amc():
    """By any of their names; all other sources have `samples`."""
    config = EvalConfig(samples=2, avg_samples=32)
    small = "AIME24 Maxwell-Jia/AIME_2024 aime26 AI-MO/aimo-validation-amc amc12"
    assert {config.samples_of(source) for source in small.split()} == {32}
    assert {config.samples_of(source) for source in ("math", "gpqa")} == {2}
    assert EvalConfig(samples=2).samples_of("aime") == 2


class Engine:
    """Its one token is made of the seed; the ids of prompts and the temperature are kept."""

    def generate(self, prompts, seeds, temperature, max_tokens, on_finish):
        self.asked = temperature, max_tokens, len(prompts)
        made = []
        for i, seed in enumerate(seeds):
            ids = np.array([20 + seed % 10], dtype=np.int32)
            made.append(Trajectory(ids, np.zeros(1, np.float32), finished=seed % 2 == 0))
            on_finish(i, made[-1])
        return made


class Verifier:
    """Rewards even digits."""

    def submit(self, text: str, answer: str, row: dict) -> Future:
        verdict = Future()
        verdict.set_result({"score": float(int(text) % 2 == 0), "tidy": 0.25})
        return verdict


QUESTIONS = [
    Question(i, f"q{i}", np.array([5], dtype=np.int32), False, "7", "xy"[i % 2], {})
    for i in range(20)
]


def scripted(**knobs) -> tuple[Engine, Grader]:
    config = Config(model="worlds/base", reward="mine:score", **knobs)
    tokenizer, stop_ids = load_tokenizer(config)
    return Engine(), Grader(config, tokenizer, Verifier(), stop_ids)


def test_a_response_depends_on_its_question_and_its_number_alone():
    """Neither on the order nor on what else is asked; another seed has other responses."""
    engine, grader = scripted(eval_temperature=0.7, max_response_length=9)
    wanted = [(q, number) for q in QUESTIONS for number in range(2)]
    records = respond(engine, grader, wanted, 7)
    assert engine.asked == (0.7, 9, 40)
    assert respond(engine, grader, wanted[::-1], 7)[::-1] == records
    assert respond(engine, grader, wanted[10:20], 7) == records[10:20]
    assert respond(engine, grader, wanted, 8) != records
    assert records[::2] != records[1::2]  # the two samples of a question


def test_validation_has_the_same_seeds_in_every_run():
    """One response a question, whatever the run's seed, so that steps and models are compared."""
    scores, _ = validate(*scripted(seed=3), QUESTIONS)
    assert scores == validate(*scripted(seed=4), QUESTIONS)[0]
    assert 0 < scores["val/pass_at_1/x"] < 1 and scores["val/tidy/y"] == 0.25


WORLD = ".cache/arithmetic"
COMMAND = f"""
    eval.py --model worlds/base --data {WORLD}/test.jsonl --reward worlds.arithmetic:reward
    --engine hf --dtype float32 --max_prompt_length 40 --max_response_length 72
    --eval_questions 20
""".split()


def test_scores_are_the_means_of_the_responses(tmp_path):
    """A small evaluation by the command line: what is printed and what the two files hold."""
    output = tmp_path / "out"
    command = [sys.executable, *COMMAND, "--samples", "2", "--output", str(output)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    scores = json.loads((output / "scores.json").read_text())
    assert json.loads(done.stdout) == scores
    lines = [json.loads(line) for line in (output / "responses.jsonl").read_text().splitlines()]
    assert len({line["text"] for line in lines}) == 20 and len(lines) == 40
    assert scores["samples/arithmetic"] == 2 and scores["rows"]["kept"] == 800
    sums = defaultdict(float)
    for line in lines:
        right = line["response"].rpartition("#")[2] == line["gold"] and "#" in line["response"]
        assert line["success"] == right and line["reward"] == float(right)
        for name in ("success", "reward", "valid", "length", "truncated"):
            sums[name] += line[name] / 40
    sums["pass_at_1"] = sums.pop("success")
    for name, mean in sums.items():
        assert scores[f"{name}/arithmetic"] == pytest.approx(mean)


def test_avg_samples_that_fit_no_source_are_refused(monkeypatch):
    """Else one response would be taken where 32 are asked for."""
    monkeypatch.setattr(sys, "argv", [*COMMAND, "--avg_samples", "32"])
    with pytest.raises(Refusal, match="none holds aime or amc"):
        evaluation.main()
