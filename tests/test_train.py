"""Whole runs on a tiny world: what torchrun leaves, one rank against two, shipped files."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import arguments, jsonl, on_ranks, write_jsonl
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import eval as evaluation
from config import parse_config
from data import load_questions
from policy import Policy
from tools import export
from train import train

STEPS = 3
PHASES = {"plan", "rollout", "store", "update", "sync"}


def train_from(argv: list[str]) -> dict[str, float]:
    return train(parse_config(argv))


def metrics(run_dir: Path) -> list[dict]:
    return jsonl(run_dir / "metrics.jsonl")


def test_a_run_logs_what_it_did(finished_run):
    """Every step has finite numbers, little drift and its times, and replay begins in step 2."""
    start, *rows = metrics(finished_run)
    assert start["step"] == 0 and [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert all(math.isfinite(value) for row in rows for value in row.values())
    for number, row in enumerate(rows):
        # The engine runs the policy's weights before and after a sync, to 1e-4 nats a token.
        assert row["engine/drift"] < 1e-4
        assert row["loss/skipped"] == 0 and row["loss/grad_norm"] > 0 and row["loss/entropy"] > 0
        assert all(row.get(f"time/{phase}", 0) > 0 for phase in PHASES)
        assert row["replay/questions"] == (4 if number else 0)
        assert row["buckets/questions"] == sum(row[f"buckets/k={k}"] for k in range(1, 8))
        if number:
            assert 0.5 < row["replay/ratio"] < 2 and row["replay/ratio_max"] < 10
            assert 0 < row["replay/gradient_share"] < 0.5


def test_a_run_ends_with_table_curve_scores_and_an_example(finished_run):
    """Validation comes first, every second step and last; table and result.json have the ends.

    A question stands there with the base's kept response and the trained model's.
    """
    scores = [
        {name.removeprefix("val/"): v for name, v in row.items() if name.startswith("val/")}
        for row in metrics(finished_run)
    ]
    assert [bool(s) for s in scores] == [True, False, True, True]
    ends = {"base": scores[0], "trained": scores[-1]}
    assert json.loads((finished_run / "result.json").read_text()) == ends
    names = ("pass_at_1", "reward", "valid", "shortcut", "length", "truncated", "timeout")
    sources = ("arithmetic", "arithmetic-ood")
    assert {f"{name}/{source}" for name in names for source in sources} == set(scores[-1])
    assert (finished_run / "curve.png").read_bytes().startswith(b"\x89PNG")
    output = (finished_run.parent / "output.txt").read_text()
    assert output.count("\nstep ") == STEPS
    assert f"{scores[-1]['pass_at_1/arithmetic']:8.3f}" in output
    kept = (finished_run / "example.txt").read_text()
    last = output.rsplit("base     ", 1)[1]
    assert last.startswith(f"{kept}\ntrained  ") and "reward: " in last


def test_the_trained_model_is_an_ordinary_directory(finished_run, world):
    """transformers loads model and tokenizer, and all weights have moved and are finite."""
    directory = finished_run / "model"
    before = AutoModelForCausalLM.from_pretrained(world / "model").state_dict()
    after = AutoModelForCausalLM.from_pretrained(directory).state_dict()
    assert all(torch.isfinite(weight).all() for weight in after.values())
    assert not any(torch.equal(weight, after[name]) for name, weight in before.items())
    tokenizer = AutoTokenizer.from_pretrained(directory)
    turns = [{"role": "user", "content": "3a+4"}]
    assert tokenizer.apply_chat_template(turns, tokenize=False) == "<bos><user>3a+4"


def test_a_checkpoint_becomes_a_model(finished_run, tmp_path):
    """The export of the last one is the run's model, file for file, and overwrites nothing."""
    (checkpoint,) = finished_run.glob("checkpoints/step-*")
    export.main([str(checkpoint), "--output", str(tmp_path / "model")])
    files, exported = (
        {path.name: path.read_bytes() for path in (d / "model").iterdir()}
        for d in (finished_run, tmp_path)
    )
    assert "model.safetensors" in files and files == exported
    saved = json.loads((checkpoint / "state.json").read_text())["config"]
    going_on = tmp_path / "new"  # a run without a model of its own yet
    old = saved | {"model": "org/Name", "k_max": 5, "grader": "both"}  # removed since
    assert export.configuration(old, going_on).model == "org/Name"
    with pytest.raises(ValueError, match="there is no model in"):
        export.configuration(saved | {"model": str(tmp_path)}, going_on)
    with pytest.raises(ValueError, match="exists: choose another"):
        export.main([str(checkpoint), "--output", str(tmp_path / "model")])
    shutil.copytree(checkpoint, tmp_path / "damaged")
    (tmp_path / "damaged" / "buffer.safetensors").write_bytes(b"")
    damage = "no whole checkpoint: buffer.safetensors is not what was written"
    with pytest.raises(ValueError, match=damage):
        export.main([str(tmp_path / "damaged"), "--output", str(tmp_path / "other")])


def evaluate_args(world: Path, run_dir: Path) -> list[str]:
    files = [f"{world}/test.jsonl", f"{world}/ood.jsonl"]
    limits = ["--max_response_length", "24", "--engine", "hf"]
    return ["--model", f"{run_dir}/model", "--data", *files, *limits]


def test_eval_repeats_the_last_validation(finished_run, world, device):
    """Evaluation on one rank gives exactly the scores that training ended with on two."""
    trained = json.loads((finished_run / "result.json").read_text())["trained"]
    assert evaluation.main(evaluate_args(world, finished_run)) == trained


def test_a_turn_that_ends_otherwise_ends_in_run_and_export_alike(world, tmp_path, device):
    """Where eos_token is not what the template writes, both know the two, and scores are equal.

    The same tokens must end responses after a resume.
    """
    model = shutil.copytree(world / "model", tmp_path / "model")
    for name, changes in (
        ("tokenizer_config", {"eos_token": "<pad>"}),
        ("generation_config", {"eos_token_id": 0}),
    ):
        path = model / f"{name}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    template = model / "chat_template.jinja"
    template.write_text(template.read_text().replace("+ eos_token", "+ '<eos>'"))
    run_dir = tmp_path / "run"
    argv = arguments(world, run_dir, "--model", str(model), "--engine", "hf", "--steps", "1")
    scores = train_from(argv)
    assert scores["truncated/arithmetic"] < 1
    settings = json.loads((run_dir / "model" / "generation_config.json").read_text())
    assert settings["eos_token_id"] == [0, 2]
    assert evaluation.main(evaluate_args(world, run_dir)) == scores
    template.write_text(template.read_text().replace("'<eos>'", "eos_token"))
    with pytest.raises(ValueError, match="whose responses end with other tokens: give it"):
        train_from([*argv, "--steps", "2", "--resume"])


def half_right(kind: str, questions: list, tokenizer, directory: Path) -> None:
    """Save a small model of an architecture, taught to think a little and to answer 2 or 3."""
    auto = AutoConfig.for_model(
        kind,
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(auto)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    prompts = torch.tensor(np.array([question.prompt_ids for question in questions]))
    texts = [rf"So.</think>\boxed{{{n}}}{tokenizer.eos_token}" for n in (2, 3)]
    answers = torch.tensor(tokenizer(texts)["input_ids"])
    for _ in range(60):
        answer = answers[torch.randint(2, [len(prompts)])]
        ids = torch.cat([prompts, answer], dim=1)
        logits = model(ids).logits[:, prompts.shape[1] - 1 : -1]
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), answer.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, name, ranks",
    [("qwen2", "qwen2.5-math-1.5b-lora-1x24gb", 1), ("llama", "llama-3.1-8b", 2)],
)
def test_a_shipped_configuration_runs(kind, name, ranks, tmp_path, tokenizer, device):
    """A small model of its architecture is trained for two steps, with replay in the second.

    The file says all but sizes and lengths. The Llama has all weights trained, on two ranks. Engine
    and policy agree in bfloat16, groups are mixed, and the context extension is saved.
    """
    if "lora" in name:
        pytest.importorskip("peft")
    system = {"role": "system", "content": "Think, then box."}
    rows = [
        {
            "data_source": "differences",
            "prompt": [system, {"role": "user", "content": f"{n + 2}-{n}=?"}],
            "reward_model": {"ground_truth": "2"},
        }
        for n in range(10, 26)
    ]
    file = write_jsonl(tmp_path / "differences.jsonl", rows)
    base, run_dir = tmp_path / "base", tmp_path / "run"
    argv = f"""
        --config configs/{name}.yaml
        --model {base}
        --train_files {file}
        --val_files {file}
        --run_dir {run_dir}
        --batch_size 8
        --steps 2
        --max_response_length 40
        --start_threshold -1
        --engine hf
    """.split()
    config = parse_config(argv)
    questions, _ = load_questions([file], config, tokenizer)
    half_right(kind, questions, tokenizer, base)
    on_ranks(ranks, train_from, argv, timeout=300)
    _, *steps = metrics(run_dir)
    for row in steps:
        assert 0 < row["reward/pass_at_1"] < 1 and 0 < row["engine/drift_bound_share"] < 1
        assert row["loss/skipped"] == 0 and row["loss/grad_norm"] > 0
    assert [row["replay/questions"] for row in steps] == [0, 4]
    assert 0 < steps[1]["replay/gradient_share"] < 0.5
    saved = AutoConfig.from_pretrained(run_dir / "model")
    assert saved.max_position_embeddings == (config.max_position_embeddings or 4096)
    rope = AutoConfig.from_pretrained(base).rope_parameters
    extension = {"rope_theta": config.rope_theta} if config.rope_theta else {}
    assert saved.rope_parameters == {**rope, **extension}


class Recorded(Exception):
    """Ends a run once its first step is recorded."""


def first_step(argv: list[str]) -> dict:
    """Mini-batches, metrics and weights of the first step of a run, in a process of its own."""
    record, update = {}, Policy.update

    def recorded(self, mini_batches, clip_eps):
        record["questions"] = [[(g.question.id, g.replayed) for g in p] for p in mini_batches]
        groups = sum(mini_batches, [])
        record["advantages"] = [g.advantages.tolist() for g in groups]
        responses = [t for g in groups for t in g.trajectories]
        record["responses"] = [(t.token_ids.tolist(), t.reward) for t in responses]
        record["logprobs"] = np.concatenate([t.logprobs for t in responses])
        record["metrics"] = update(self, mini_batches, clip_eps)
        record["weights"] = {name: tensor.numpy().copy() for name, tensor in self.full_weights()}
        raise Recorded

    Policy.update = recorded
    try:
        train_from(argv)
    except Recorded:
        return record


def test_the_first_step_is_the_same_on_one_rank_and_on_two(world, tmp_path):
    """Plans, samples and mini-batches are equal, losses within 1e-5, and weights move alike."""
    knobs = ["--engine", "hf", "--tokens_per_micro_batch", "700", "--entropy_coef", "0.001"]
    argv = arguments(world, tmp_path, *knobs)
    (one,) = on_ranks(1, first_step, [*argv, "--run_dir", str(tmp_path / "one")])
    two, other = on_ranks(2, first_step, [*argv, "--run_dir", str(tmp_path / "two")])
    for name in ("questions", "advantages", "responses"):
        assert one[name] == two[name] == other[name], name
    np.testing.assert_allclose(one["logprobs"], two["logprobs"], atol=1e-5)
    for name in ("loss/policy", "loss/entropy", "loss/grad_norm", "loss/ratio"):
        assert two["metrics"][name] == pytest.approx(one["metrics"][name], rel=1e-5, abs=1e-7), name
        assert two["metrics"][name] == other["metrics"][name], name
    lr = parse_config(argv).lr
    for name, weight in one["weights"].items():
        assert np.array_equal(two["weights"][name], other["weights"][name])
        assert np.abs(weight - two["weights"][name]).mean() < 0.01 * lr, name
