"""One training of TRL's GRPOTrainer, run and timed by the section `step` of bench/__main__.py.

It prints a line of losses after every two optimiser steps, which is a step of ours, and JSON at the end.
"""

import argparse
import json
import os
import sys
import tempfile
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

from bench.step import MAX_TOKENS, RESPONSES, coin


def rewards(completions: list, **_) -> list[float]:
    return [coin(completion[0]["content"], "") for completion in completions]


def main() -> None:
    """Train as the command line says and print what the section reads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--questions", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True, help="questions of a step")
    parser.add_argument("--micro_batch", type=int, required=True, help="responses of a forward and backward")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--checkpointing", action="store_true")
    args = parser.parse_args()
    # responses of a step, in two optimiser steps
    batch = args.batch * RESPONSES // int(os.environ.get("WORLD_SIZE", 1))
    rows = [json.loads(line) for line in Path(args.questions).read_text().splitlines()]
    with tempfile.TemporaryDirectory() as directory:
        config = GRPOConfig(
            output_dir=directory, use_cpu=True, max_steps=2 * args.steps, learning_rate=1e-6, bf16=args.bf16,
            gradient_checkpointing=args.checkpointing, per_device_train_batch_size=args.micro_batch,
            gradient_accumulation_steps=batch // 2 // args.micro_batch,
            steps_per_generation=batch // args.micro_batch,
            num_generations=RESPONSES, max_completion_length=MAX_TOKENS, temperature=1.0, beta=0.0,
            loss_type="dr_grpo", scale_rewards="none", report_to="none", save_strategy="no", logging_steps=2,
            disable_tqdm=True, seed=0)
        trainer = GRPOTrainer(
            args.model, reward_funcs=rewards, args=config,
            train_dataset=datasets.Dataset.from_list([{"prompt": r["prompt"]} for r in rows]),
            processing_class=transformers.AutoTokenizer.from_pretrained(args.model))
        trainer.train()
    name = "completions/mean_length"
    lengths = [row[name] for row in trainer.state.log_history if name in row]
    if trainer.accelerator.is_main_process:
        print(json.dumps({"version": trl.__version__, "length": sum(lengths) / len(lengths)}))


if __name__ == "__main__":
    main()
