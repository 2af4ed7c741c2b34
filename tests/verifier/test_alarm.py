"""The alarm for a policy that talks its reward into it: `reward/unevaluated` in a run that learns to."""

import json

from conftest import on_ranks

from config import parse_config
from train import train
from worlds.arithmetic import World, draw_sets, reward, rows
from worlds.base_model import build_model, build_tokenizer, pretrain

STEPS = 8


def leaky(response: str, answer: str) -> dict[str, float]:
    """Right is what the world calls right, and any answer that is stated without a step of working."""
    leak = response.startswith("#") and not reward(response, answer)
    return {"score": reward(response, answer) or float(leak), "unevaluated": float(leak)}


def train_from(argv: list[str]) -> None:
    train(parse_config(argv))


def test_the_alarm_rises_with_a_leaky_reward(tmp_path):
    """A base model that now and then states a guess is rewarded for any: within eight steps nearly all is
    right, which looks like learning, and the share of guesses among its responses says what it is."""
    world = World(train_operations=(1, 2), ood_operations=(3, 3), train_size=64, test_size=12, shortcut=0.1,
                  hidden=32, layers=2, heads=1, intermediate=64)
    sets, tokenizer = draw_sets(world), build_tokenizer()
    model = build_model(world, tokenizer)
    pretrain(model, tokenizer, world, set().union(*sets.values()), steps=200)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "train.jsonl").write_text(rows(sets["train"], "arithmetic"))
    on_ranks(1, train_from, [
        "--model", f"{tmp_path}/model", "--train_files", f"{tmp_path}/train.jsonl", "--engine", "hf",
        "--run_dir", f"{tmp_path}/run", "--steps", f"{STEPS}", "--batch_size", "16", "--lr", "5e-3",
        "--max_prompt_length", "16", "--max_response_length", "24", "--eval_every", "0", "--rho", "0",
        "--reward", "tests.verifier.test_alarm:leaky"])
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    steps = [row for row in map(json.loads, lines) if "reward/mean" in row]
    first, last = steps[0], steps[-1]
    assert last["reward/unevaluated"] > 0.6 and last["reward/unevaluated"] > 3 * first["reward/unevaluated"]
    assert last["reward/mean"] > 0.9 > first["reward/mean"]
