"""What a run writes beside the weights: the model card and the generation settings."""

import dataclasses

import pytest
import yaml
from transformers import GenerationConfig

from config import Config
from tracking import Tracker, model_card


@pytest.fixture
def config(tmp_path) -> Config:
    questions = tmp_path / "openr1.parquet"
    questions.touch()
    return Config(model="org/Model-7B", train_files=[str(questions)], run_dir=str(tmp_path / "my-run"),
                  response_prefix="<think>\n", rope_theta=40000.0, batch_size=128, lr=1e-6)


def test_the_card_states_method_data_steps_and_scores(config):
    """Everything that the issue asks of a card, and a head that the hub can read."""
    card = model_card(config, 700, {"pass_at_1/aime": 0.115}, {"pass_at_1/aime": 0.316, "length/aime": 1100.0})
    _, head, body = card.split("---\n", 2)
    assert yaml.safe_load(head) == {"library_name": "transformers", "pipeline_tag": "text-generation",
                                    "base_model": "org/Model-7B", "tags": ["exgrpo", "grpo", "rlvr"]}
    assert "# my-run: Model-7B trained with ExGRPO" in body and "RoPE base 40000" in body
    assert "700 batches of 128 questions x 8" in body
    assert "openr1.parquet" in body and "reward `math`" in body and "ending in '<think>\\n'" in body and "lr=1e-06" in body
    assert "| pass_at_1/aime | 0.115 | 0.316 |" in body and "| length/aime | nan | 1100.000 |" in body


def test_the_baseline_says_what_it_is_and_a_local_model_is_no_hub_name(config, tmp_path):
    """ρ = 0 is not called ExGRPO; a directory gives no `base_model` to the hub."""
    card = model_card(dataclasses.replace(config, rho=0.0, model=str(tmp_path)), 1, {}, {})
    assert "trained with on-policy Dr. GRPO" in card and "base_model" not in card


def test_generation_follows_validation_not_the_base_model(config, tokenizer, tmp_path, device):
    """The settings saved beside the weights replace the base model's penalties and stop tokens."""
    directory = tmp_path / "my-run" / "model"
    GenerationConfig(repetition_penalty=1.5, top_k=5, do_sample=True, eos_token_id=[1, 2, 3]).save_pretrained(directory)
    tracker = Tracker(config.run_dir, 10)
    tracker.start()
    tracker.log(7, {"val/pass_at_1/mine": 0.25})
    tracker.describe_model(config, tokenizer)
    settings = GenerationConfig.from_pretrained(directory)
    assert (settings.temperature, settings.top_p, settings.do_sample, settings.repetition_penalty) == (0.6, 1.0, True, None)
    assert settings.eos_token_id == tokenizer.eos_token_id and not settings.top_k
    card = (directory / "README.md").read_text()
    assert "7 batches" in card and "pass_at_1/mine | 0.250 | 0.250" in card
