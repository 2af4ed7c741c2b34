"""Evaluation: the means per source by hand, and the command on a tiny model."""

import json
from math import comb

import numpy as np
import pytest
from conftest import on_ranks
from transformers import AutoConfig

import eval as evaluation
from config import Config
from data import Question, Response, sample_seed
from eval import evaluate
from grading import Grader
from scores import AVERAGES, benchmark, compare, interval, majority, pass_at_k, statistics


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
    grader = Grader(Config(reward="worlds.arithmetic:reward"), script, script)
    scores = evaluate(script, grader, questions, temperature=0.6, max_tokens=9, samples=2, seed=7,
                      judges={"valid": lambda text, response: (text, response) == ("q0", "3 3 3")})
    assert scores == {
        "pass_at_1/a": 0.75, "length/a": 5.0, "truncated/a": 0.25, "valid/a": 0.5,
        "pass_at_1/b": 0.5, "length/b": 3.0, "truncated/b": 0.0, "valid/b": 0.0}
    assert script.asked == [([1, q], sample_seed("eval", 7, q, i), 0.6, 9) for q, i in lengths]
    assert "valid/a" not in evaluate(script, grader, questions, temperature=0.6, max_tokens=9, samples=2, seed=7)


def record(source: str, question: str, reward: float, **more) -> dict:
    return {"source": source, "question": question, "reward": reward, "length": 1, "truncated": False, **more}


@pytest.mark.parametrize("n, successes, k, chance", [
    (4, 1, 1, 1 / 4), (4, 1, 2, 1 / 2), (4, 2, 2, 5 / 6), (4, 2, 3, 1), (4, 0, 4, 0), (8, 8, 1, 1), (5, 2, 3, 9 / 10),
])
def test_pass_at_k(n, successes, k, chance):
    """1 - C(n-c, k) / C(n, k), worked out by hand."""
    assert pass_at_k(n, successes, k) == pytest.approx(chance, abs=1e-15)


def test_pass_at_k_is_unbiased():
    """Its mean over 4 responses, each right with chance 0.3, is 1 - 0.7^k exactly."""
    for k in (1, 2, 3, 4):
        mean = sum(comb(4, c) * 0.3**c * 0.7 ** (4 - c) * pass_at_k(4, c, k) for c in range(5))
        assert mean == pytest.approx(1 - 0.7**k, abs=1e-12)


@pytest.mark.parametrize("answers, rewards, value", [
    (["1", "2", " 2 "], [1, 0, 0], 0.0),  # spaces do not count
    (["1", "2", "2", None, None, None], [0, 1, 1, 0, 0, 0], 1.0),  # no box, no vote
    (["1", "2"], [1, 0], 0.5),  # a tie, settled by a coin
    ([None, None], [0, 0], 0.0),
])
def test_majority(answers, rewards, value):
    """Maj@k of one question by hand."""
    assert majority([record("m", "q", r, answer=a) for a, r in zip(answers, rewards)]) == value


def test_intervals():
    """Wilson's by hand for one response a question; wider where the samples of a question agree; normal outside [0, 1]."""
    # 5 of 10, spread 0.5 * sqrt(10/9) / sqrt(10): 9 trials; (0.5 + 1.96²/18 ± 1.96 sqrt(1/36 + 1.96²/324)) / (1 + 1.96²/9)
    assert interval([[1.0], [0.0]] * 5) == pytest.approx([0.22653, 0.77347], abs=1e-5)
    assert interval([[0.0]] * 10) == pytest.approx([0, 3.8416 / 13.8416], abs=1e-9)  # none right: no spread, ten trials
    assert interval([[1.0]]) == pytest.approx([1 / 4.8416, 1], abs=1e-9)
    assert interval([[1.0] * 4, [0.0] * 4] * 5) == interval([[1.0], [0.0]] * 5)  # more of the same is no evidence
    narrow = interval([[1.0, 0.0], [0.0, 1.0]] * 5)  # no spread between questions: 10 trials, not 20
    assert narrow == pytest.approx([0.23659, 0.76341], abs=1e-5)
    assert interval([[-1.0], [1.0]]) == pytest.approx([-1.96, 1.96])


def test_intervals_cover():
    """Of 400 runs of 200 questions of different difficulty, 4 samples each, 92 to 98% of intervals hold the true mean."""
    rng = np.random.default_rng(0)
    chances = rng.beta(0.5, 1.0, (400, 200))  # mean 1/3
    drawn = rng.binomial(1, chances[..., None], (400, 200, 4)).astype(float)
    bounds = [interval(run.tolist()) for run in drawn]
    assert 0.92 < np.mean([low <= 1 / 3 <= high for low, high in bounds]) < 0.98


def test_statistics_by_hand():
    """Pass@2, Maj@2, no-box rate and the averages of Table 1 for two benchmarks and one that is in no average."""
    records = [
        record("aime", "a", 1.0, answer="1"), record("aime", "a", 0.0, answer=None),
        record("aime", "b", 0.0, answer="3"), record("aime", "b", 0.0, answer="4"),
        record("math", "c", 1.0, answer="5"), record("arc_c", "d", 0.0, answer=None), record("mine", "e", 1.0)]
    found = statistics(records)
    assert found | {"interval/aime": 0, "interval/math": 0, "interval/arc_c": 0, "interval/mine": 0} == {
        "questions/aime": 2, "samples/aime": 2, "interval/aime": 0, "pass_at_2/aime": 0.5, "maj_at_2/aime": 0.5,
        "no_box/aime": 0.25, "questions/math": 1, "samples/math": 1, "interval/math": 0, "no_box/math": 0.0,
        "questions/arc_c": 1, "samples/arc_c": 1, "interval/arc_c": 0, "no_box/arc_c": 1.0,
        "questions/mine": 1, "samples/mine": 1, "interval/mine": 0,
        "average/in_distribution": (0.25 + 1.0) / 2, "average_of/in_distribution": ["AIME24", "MATH-500"],
        "average/out_of_distribution": 0.0, "average_of/out_of_distribution": ["ARC-c"]}


@pytest.mark.parametrize("name, sources", [
    ("AIME24", ["aime", "AIME_2024", "math-ai/aime24"]), ("AIME25", ["aime25", "aime-2025"]), ("AMC", ["amc", "amc23"]),
    ("MATH-500", ["math", "MATH-500", "HuggingFaceH4/MATH-500"]), ("Minerva", ["minerva", "minerva_math"]),
    ("OlympiadBench", ["olympiad_bench", "OlympiadBench"]), ("ARC-c", ["arc_c", "ARC-Challenge"]),
    ("GPQA-Diamond", ["gpqa", "gpqa_diamond"]), ("MMLU-Pro", ["mmlu_pro", "TIGER-Lab/MMLU-Pro"]),
    (None, ["mmlu", "math_train", "aime26", "arithmetic", ""]),
])
def test_benchmarks_are_known_by_several_names(name, sources):
    """The first name is the data_source of the official files (GPQA, MMLU-Pro: the file's name); others are no benchmark."""
    assert {benchmark(source) for source in sources} == {name}
    assert name is None or any(name in members for members in AVERAGES.values())


def test_two_names_of_one_benchmark_count_once():
    """AIME24 under two data_sources has the weight of one benchmark in the average."""
    found = statistics([record("aime", "a", 1.0), record("AIME24", "a", 0.0), record("math", "b", 1.0)])
    assert found["average/in_distribution"] == 0.75 and found["average_of/in_distribution"] == ["AIME24", "MATH-500"]


def test_compare(tmp_path, capsys):
    """Two result files side by side, in percent, with intervals; what one of them lacks is a dash, or said of an average."""
    a = {"model": "A", "pass_at_1/aime": 0.316, "interval/aime": [0.2, 0.45], "samples/aime": 32,
         "average/in_distribution": 0.316, "average_of/in_distribution": ["AIME24"]}
    b = {"model": "B", "pass_at_1/aime": 0.25, "samples/aime": 32,
         "pass_at_1/math": 0.5, "interval/math": [0.4, 0.6], "samples/math": 1,
         "average/in_distribution": 0.4, "average_of/in_distribution": list(AVERAGES["in_distribution"])}
    for name, content in (("a", a), ("b", b)):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    files = [str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    assert compare(files).splitlines() == [
        "|  | A | B |", "| --- | --- | --- |", "| aime (Avg@32) | 31.6 [20.0, 45.0] | 25.0 |",
        "| math (Pass@1) | – | 50.0 [40.0, 60.0] |",
        "| in_distribution (average) | 31.6 (1 of 6 benchmarks) | 40.0 |"]
    assert evaluation.main(["--compare", *files]) == {} and "| aime (Avg@32) |" in capsys.readouterr().out


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
    assert set(scores) == {f"{name}/arithmetic" for name in ("pass_at_1", "length", "truncated", "valid", "shortcut")}
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


def test_the_papers_protocol_in_one_command(tiny_model, device, file, capsys):
    """--avg_samples counts for AIME and AMC alone: Avg@3 of one, Pass@1 of a multiple-choice benchmark and of the rest."""
    with open(file) as lines:
        row = json.loads(next(lines))
    with open(file, "w") as lines:
        for source, answer in (("aime", "7"), ("arc_c", "C"), ("mine", "7")):
            lines.write(json.dumps(row | {"data_source": source, "reward_model": {"ground_truth": answer}}) + "\n")
    evaluation.main(["--model", tiny_model, "--data", file, "--engine", "hf", "--max_tokens", "5", "--avg_samples", "3"])
    report = json.loads(capsys.readouterr().out)
    assert [report[f"samples/{source}"] for source in ("aime", "arc_c", "mine")] == [3, 1, 1] and "maj_at_3/aime" in report
    assert report["average_of/in_distribution"] == ["AIME24"] and report["average_of/out_of_distribution"] == ["ARC-c"]


def test_a_prompt_that_fills_the_model_is_refused(tiny_model, device, file, tmp_path):
    """Where the longest prompt leaves no position for a response, the error names the knobs."""
    rows = [json.loads(line) for line in open(file)][:1]
    rows[0]["prompt"][0]["content"] = "1" * 600
    (tmp_path / "long.jsonl").write_text(json.dumps(rows[0]))
    with pytest.raises(ValueError, match="no room.*takes 603 of 512 positions.*--max_prompt_length"):
        evaluation.main(["--model", tiny_model, "--data", str(tmp_path / "long.jsonl"), "--engine", "hf"])


def test_output_is_continued(tiny_model, device, file, tmp_path, capsys, monkeypatch):
    """A command broken off is continued: only what is missing is generated, and the scores are those of one go."""
    limits = ["--max_prompt_length", "30", "--max_tokens", "20", "--samples", "2"]
    argv = ["--model", tiny_model, "--data", file, "--engine", "hf", *limits]
    one_go = evaluation.main(argv)
    out, asked, respond = tmp_path / "out", [], evaluation.respond

    def counting(engine, grader, wanted, **options):
        asked.append(len(wanted))
        if len(asked) == 3:
            raise KeyboardInterrupt
        return respond(engine, grader, wanted, **options)

    monkeypatch.setattr(evaluation, "respond", counting)
    monkeypatch.setattr(evaluation, "SAVE_EVERY", 4)
    with pytest.raises(KeyboardInterrupt):
        evaluation.main([*argv, "--output", str(out)])
    lines = (out / "responses.jsonl").read_text().splitlines()
    assert len(lines) == 8
    first = json.loads(lines[0])
    assert {"source", "question", "sample", "reward", "length", "truncated", "gold", "response"} <= set(first)
    (out / "responses.jsonl").write_text("\n".join(lines)[:-9])  # the last line was cut off when it was killed
    capsys.readouterr()
    assert evaluation.main([*argv, "--output", str(out)]) == one_go and asked == [4, 4, 2, 3]
    rows = [json.loads(line) for line in (out / "responses.jsonl").read_text().splitlines()]
    assert len({(r["question"], r["sample"]) for r in rows}) == len(rows) == 10
    scores = json.loads((out / "scores.json").read_text())
    assert scores["pass_at_1/arithmetic"] == one_go["pass_at_1/arithmetic"] and scores["questions/arithmetic"] == 5
    assert evaluation.main([*argv[:-1], "3", "--output", str(out)]) and asked[4:] == [4, 1]  # more samples: only those
    with pytest.raises(ValueError, match="temperature.*0.6 -> 1.0.*another --output"):
        evaluation.main([*argv, "--output", str(out), "--temperature", "1"])


def test_output_on_two_ranks(tiny_model, file, tmp_path):
    """Work is split over the ranks, one of them writes: every response once, and the scores of one rank."""
    argv = ["--model", tiny_model, "--data", file, "--engine", "hf", "--max_prompt_length", "30", "--max_tokens", "20"]
    alone = evaluation.main(argv)
    assert on_ranks(2, evaluation.main, [*argv, "--output", str(tmp_path / "out")]) == [alone, alone]
    assert len((tmp_path / "out" / "responses.jsonl").read_text().splitlines()) == 5
    assert on_ranks(2, evaluation.main, [*argv, "--output", str(tmp_path / "out")]) == [alone, alone]  # nothing left to do


@pytest.mark.parametrize("argv, reason", [
    ([], "needs --model DIR, --data FILE"), (["--model", "x"], "needs --model"),
    (["--model", "x", "--data", "eval.py", "--samples", "0"], "--samples of at least 1"),
    (["--model", "x", "--data", "missing.parquet"], "no such file: missing.parquet"),
])
def test_main_says_what_is_missing(argv, reason, device):
    """A command that cannot work fails with the reason."""
    with pytest.raises(ValueError, match=reason):
        evaluation.main(argv)
