"""A row of Table 1: means, intervals, averages and Avg@k by hand, and a small evaluation."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import eval as evaluation
from eval import EvalConfig, means, statistics
from runtime.ranks import Refusal
from runtime.tables import read_jsonl


def record(source: str, text: str, success: bool, **more) -> dict:
    return {"source": source, "text": text, "gold": "1", "success": success, **more}


def test_means_by_hand():
    """Per source, of successes and of every named number; one that some lack is of the others."""
    records = [
        record("x", "a", True, reward=1.0, length=4, valid=1.0),
        record("x", "a", False, reward=0.4, length=8),
        record("y", "b", False, reward=0.0, length=9, truncated=True),
    ]
    of_x = {"pass_at_1/x": 0.5, "reward/x": 0.7, "length/x": 6.0, "valid/x": 1.0}
    of_y = {"pass_at_1/y": 0.0, "reward/y": 0.0, "length/y": 9.0, "truncated/y": 1.0}
    assert means(records) == pytest.approx(of_x | of_y)


def test_intervals_by_hand():
    """Wilson's of Pass@1: the question is the unit, however many responses it has."""
    # With z = 1.95996 the bounds are (0.5 + z²/20 ± z sqrt(1/40 + z²/400)) / (1 + z²/10).
    of_ten = pytest.approx([0.23659, 0.76341], abs=1e-5)
    records = []
    for text in "0123456789":
        records += [record("x", text, int(text) % 2 == 0)] * 4
    assert statistics(records)["interval/x"] == of_ten


def test_averages_by_hand():
    """Benchmarks count alike, whatever a data_source calls them; other sources do not count."""
    records = [record("math-ai/aime24", "a", True), record("math-ai/aime24", "a", False)]
    records += [record("AIME 2025", "c", True), record("HuggingFaceH4/MATH-500", "d", True)]
    records += [record("ARC-Challenge", "e", False), record("aime26", "f", True)]
    found = statistics(records)
    assert (found["questions/math-ai/aime24"], found["samples/math-ai/aime24"]) == (1, 2)
    three = ["math-ai/aime24", "AIME 2025", "HuggingFaceH4/MATH-500"]
    assert found["average_of/in_distribution"] == three
    assert found["average/in_distribution"] == (0.5 + 1 + 1) / 3
    assert found["average_of/out_of_distribution"] == ["ARC-Challenge"]
    assert found["average/out_of_distribution"] == 0.0


def test_avg_samples_are_of_aime_and_amc():
    """By any of their names; all other sources have `samples`."""
    config = EvalConfig(samples=2, avg_samples=32)
    sources = "AIME24 Maxwell-Jia/AIME_2024 AI-MO/aimo-validation-amc math gpqa".split()
    asked = [config.samples_of(SimpleNamespace(source=source)) for source in sources]
    assert asked == [32, 32, 32, 2, 2]


@pytest.fixture
def evaluate(monkeypatch, tmp_path):
    """Evaluates the built-in base on its world; returns scores and responses as written."""

    def evaluate(*flags: str) -> tuple[dict, list[dict]]:
        output = tmp_path / flags[-1]
        command = f"""
            eval.py --model worlds/base --data .cache/arithmetic/test.jsonl --engine hf
            --reward worlds.arithmetic:reward --dtype float32
            --max_prompt_length 40 --max_response_length 72 --output {output}
        """
        monkeypatch.setattr(sys, "argv", [*command.split(), *flags])
        evaluation.main()
        return json.loads((output / "scores.json").read_text()), read_jsonl(
            output / "responses.jsonl"
        )

    return evaluate


def test_scores_are_the_means_of_the_responses(evaluate):
    """20 questions asked twice, graded by hand; half of them asked once have the same responses."""
    scores, lines = evaluate("--samples", "2", "--eval_questions", "20")
    assert len({line["text"] for line in lines}) == 20 and len(lines) == 40
    assert scores["samples/arithmetic"] == 2 and scores["rows"]["kept"] == 800
    right = []
    for line in lines:
        _, mark, stated = line["response"].rpartition("#")
        right.append(mark + stated == "#" + line["gold"])
        assert line["success"] == right[-1] and line["reward"] == float(right[-1])
    assert scores["pass_at_1/arithmetic"] == pytest.approx(np.mean(right))
    for name in ("reward", "valid", "length", "truncated"):
        mean = np.mean([line[name] for line in lines])
        assert scores[f"{name}/arithmetic"] == pytest.approx(mean)
    _, fewer = evaluate("--eval_questions", "10")
    assert fewer == lines[:20:2]
    assert lines[::2] != lines[1::2]


def test_avg_samples_that_fit_no_source_are_refused(evaluate):
    """Else one response would be taken where 32 are asked for."""
    with pytest.raises(Refusal, match="none holds aime or amc"):
        evaluate("--avg_samples", "32")
