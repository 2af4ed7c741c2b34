"""Time a training step beside one of TRL's GRPOTrainer, on two quiet CPU cores.

    make world; pip install datasets==5.2.0; pip install --no-deps trl==1.16.0
    OMP_NUM_THREADS=2 python -m bench.step

Both have the same model, prompts, samples and optimiser steps: 32 questions x 8 responses of up to
64 tokens and two optimiser steps, on-policy (`--rho 0`), float32. The model is a random Llama of
4.8M parameters. Ours is the ordinary `train.py` on two ranks of one thread. TRL has one process of
two threads, which is its fastest here, and Hugging Face's generate, as it does not support this
vLLM on CPUs.
"""

import subprocess
import tempfile
import zlib
from pathlib import Path
from statistics import median

from runtime.tables import read_jsonl

QUESTIONS = ".cache/arithmetic/train-30-10-60.jsonl"
TIMED = 5  # steps, after one that is not timed


def coin(response: str, answer: str) -> float:
    """A reward that a random model gets half the time, so that most groups are mixed."""
    return float(zlib.crc32(response.encode()) & 1)


def write_model(directory: Path) -> None:
    """Write a random Llama, larger than the built-in base, with the base's tokenizer."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    config = AutoConfig.from_pretrained(
        "worlds/base",
        hidden_size=256,
        head_dim=128,
        num_hidden_layers=6,
        intermediate_size=688,
        initializer_range=0.02,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    AutoTokenizer.from_pretrained("worlds/base").save_pretrained(directory)


def time_ours(model: Path, run_dir: Path) -> float:
    """The median seconds of a step of train.py, all its phases together."""
    command = f"""
        env OMP_NUM_THREADS=1 torchrun --standalone --nproc_per_node=2 train.py
        --config configs/arithmetic.yaml --model {model} --run_dir {run_dir} --val_files
        --train_files {QUESTIONS} --reward bench.step:coin --max_response_length 64
        --rho 0 --lr 1e-6 --steps {TIMED + 1} --eval_every 0 --save_every 0
    """
    subprocess.run(command.split(), check=True)
    rows = read_jsonl(run_dir / "metrics.jsonl")[-TIMED:]
    phases = ("time/plan", "time/rollout", "time/store", "time/update", "time/sync")
    return median(sum(row[phase] for phase in phases) for row in rows)


def time_trl(model: Path) -> float:
    """The median seconds of two of TRL's optimiser steps, which make a step of ours."""
    import datasets
    from trl import GRPOConfig, GRPOTrainer

    config = GRPOConfig(
        output_dir=model,
        use_cpu=True,
        bf16=False,
        max_steps=2 * TIMED + 2,
        logging_steps=2,
        gradient_checkpointing=False,  # its default is slower
        per_device_train_batch_size=64,
        gradient_accumulation_steps=2,
        steps_per_generation=4,  # 256 responses, for two optimiser steps
        max_completion_length=64,
    )

    def rewards(completions: list, **_) -> list:
        return [coin(turns[0]["content"], "") for turns in completions]

    prompts = datasets.Dataset.from_json(QUESTIONS)
    trainer = GRPOTrainer(str(model), rewards, args=config, train_dataset=prompts)
    trainer.train()
    means = [row["step_time"] for row in trainer.state.log_history if "step_time" in row]
    return 2 * median(means[1:])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        model = Path(directory) / "model"
        write_model(model)
        ours = time_ours(model, Path(directory) / "ours")
        trl = time_trl(model)
    print(f"seconds a step: ours {ours:.2f}, TRL {trl:.2f}, ours / TRL {ours / trl:.2f}")
