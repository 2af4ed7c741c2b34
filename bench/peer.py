"""Train with TRL's GRPOTrainer; bench/step.py runs and times it with MODEL QUESTIONS DTYPE.

It prints a line of losses after every two optimiser steps, which are a step of ours.
"""

import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import datasets
import transformers
import trl
from trl import GRPOConfig, GRPOTrainer

from bench.step import MAX_TOKENS, QUESTIONS, RESPONSES, STEPS, coin
from runtime.tables import read_jsonl

MICRO_BATCH = 64  # responses in a forward and backward pass


def rewards(completions: list, **_) -> list[float]:
    """The reward of bench/step.py for the completions that TRL hands over."""
    return [coin(completion[0]["content"], "") for completion in completions]


def main() -> None:
    """Train as the command line says."""
    model, questions, dtype = sys.argv[1:]
    rows = read_jsonl(questions)
    prompts = datasets.Dataset.from_list([{"prompt": row["prompt"]} for row in rows])
    batch = QUESTIONS * RESPONSES // int(os.environ["WORLD_SIZE"])  # of a step, on this process
    with tempfile.TemporaryDirectory() as directory:
        config = GRPOConfig(
            output_dir=directory,
            use_cpu=True,
            seed=0,
            max_steps=2 * (STEPS + 1),
            learning_rate=1e-6,
            bf16=dtype == "bfloat16",
            gradient_checkpointing=False,  # its default is slower
            per_device_train_batch_size=MICRO_BATCH,
            gradient_accumulation_steps=batch // 2 // MICRO_BATCH,
            steps_per_generation=batch // MICRO_BATCH,
            num_generations=RESPONSES,
            max_completion_length=MAX_TOKENS,
            temperature=1.0,
            beta=0.0,
            loss_type="dr_grpo",
            scale_rewards="none",
            report_to="none",
            save_strategy="no",
            logging_steps=2,
            disable_tqdm=True,
        )
        trainer = GRPOTrainer(
            model,
            reward_funcs=rewards,
            args=config,
            train_dataset=prompts,
            processing_class=transformers.AutoTokenizer.from_pretrained(model),
        )
        trainer.train()
    name = "completions/mean_length"
    lengths = [row[name] for row in trainer.state.log_history if name in row]
    if trainer.accelerator.is_main_process:
        print(f"TRL {trl.__version__}; {sum(lengths) / len(lengths):.0f} tokens a response")


if __name__ == "__main__":
    main()
