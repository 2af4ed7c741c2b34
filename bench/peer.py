"""One training of TRL's GRPOTrainer, run and timed by the section `step` of bench/__main__.py.

It prints a line of losses after every two optimiser steps, which is a step of ours, and at the end a line of JSON.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
if os.environ.get("TRL_PATH"):
    sys.path.append(os.environ["TRL_PATH"])  # last: torch and transformers stay this project's

try:
    import datasets
    import transformers
    import trl
    from trl import GRPOConfig, GRPOTrainer
except (ImportError, RuntimeError) as error:  # trl's lazy modules raise RuntimeError
    raise SystemExit(f"TRL does not import: {error}") from error

from bench.step import MAX_TOKENS, QUESTIONS, RESPONSES, coin


class TimedTrainer(GRPOTrainer):
    """Notes how long each generation takes."""

    def _generate(self, prompts):
        start = time.perf_counter()
        result = super()._generate(prompts)
        self.generation = [*getattr(self, "generation", []), time.perf_counter() - start]
        return result


def main() -> None:
    """Train as the command line says and print what the section reads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--questions", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--per_device", type=int, default=64, help="responses of a forward and backward")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--checkpointing", action="store_true")
    args = parser.parse_args()
    batch = QUESTIONS * RESPONSES // int(os.environ.get("WORLD_SIZE", 1))  # responses of a step, in two optimiser steps
    rows = [json.loads(line) for line in Path(args.questions).read_text().splitlines()]
    with tempfile.TemporaryDirectory() as directory:
        config = GRPOConfig(
            output_dir=directory, use_cpu=True, max_steps=2 * args.steps, learning_rate=1e-6, bf16=args.bf16,
            gradient_checkpointing=args.checkpointing, per_device_train_batch_size=args.per_device,
            gradient_accumulation_steps=batch // 2 // args.per_device, steps_per_generation=batch // args.per_device,
            num_generations=RESPONSES, max_completion_length=MAX_TOKENS, temperature=1.0, beta=0.0, loss_type="dr_grpo",
            scale_rewards="none", report_to="none", save_strategy="no", disable_tqdm=True, logging_steps=2, seed=0)
        trainer = TimedTrainer(
            args.model, reward_funcs=lambda completions, **_: [coin(c[0]["content"], "") for c in completions], args=config,
            train_dataset=datasets.Dataset.from_list([{"prompt": r["prompt"]} for r in rows]),
            processing_class=transformers.AutoTokenizer.from_pretrained(args.model))
        trainer.train()
    length = [r["completions/mean_length"] for r in trainer.state.log_history if "completions/mean_length" in r]
    if trainer.accelerator.is_main_process:
        print(json.dumps({"version": trl.__version__,
                          "generation": trainer.generation[1:], "length": sum(length) / len(length)}))


if __name__ == "__main__":
    main()
