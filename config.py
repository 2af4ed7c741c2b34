"""Table 4: every knob of a run, with the paper's values or what they are in our units.

    config = parse_config(["--config", "configs/arithmetic.yaml", "--rho", "0.25"])

Those of experience management are inherited from `exgrpo.py:Knobs`.
"""

import argparse
import os
import sys
from contextlib import redirect_stderr
from dataclasses import dataclass, field, fields
from io import StringIO
from pathlib import Path
from typing import Literal

import tyro
import yaml
from typeguard import TypeCheckError, check_type

from exgrpo import Knobs
from runtime.ranks import Refusal

PAPER = "configs/qwen2.5-math-7b.yaml"  # where a command names neither a file nor a model
# The official loss sums over the 64 responses that a rank has of a mini-batch, where ours is a
# mean: its gradients are 64 times ours (docs/official-code.md).
OFFICIAL_SCALE = 64


@dataclass
class Config(Knobs):
    """Train by ExGRPO.

    --config FILE [FILE ...] reads knobs from YAML files; later files win, and flags over all.
    A list is [a, b] or [] in a file; as a flag it is --train_files a b, or bare.
    """

    # ---- model and data --------------------------------------------------------------------------

    # a Hugging Face directory, or a name of the hub
    model: str = ""
    # Parquet or JSONL files of training questions; runtime/tables.py names their columns
    train_files: list[str] = field(default_factory=list)
    # files of validation questions, which are scored per data_source
    val_files: list[str] = field(default_factory=list)
    # "chat": the tokenizer's chat template; else a text in which {question} is replaced by the last
    # turn of a row's prompt; if {question} is not in the text, the turn is put at its end
    prompt_template: str = "chat"
    response_prefix: str = ""  # what ends every prompt, "<think>\n" for example
    max_prompt_length: int = 1024  # tokens; questions with longer prompts are dropped and counted
    # L_max, tokens at which a response is cut; the loss divides by it
    max_response_length: int = 8192
    rope_theta: float = 0.0  # base of RoPE; 0: the model's own
    max_position_embeddings: int = 0  # positions of the model; 0: its own

    # ---- reward (Eq. 1) --------------------------------------------------------------------------

    # "math": the last \boxed{} against the gold, by Math-Verify; "module:function": your own
    # function (response, answer[, row]) -> float
    reward: str = "math"
    # an answer without \boxed{} is wrong; false: the last statement of an answer counts, or the
    # last number, as the prompt of Llama-3.1-8B needs
    require_box: bool = True
    # strict: only what is in the last box, which must be a worked-out answer; official: Math-Verify
    # alone on all that follows the thought, for published numbers
    grader: Literal["strict", "official"] = "strict"

    # ---- rollouts (Alg. 1, line 23) --------------------------------------------------------------

    temperature: float = 1.0  # of rollouts, at top-p 1, and of the policy's log-probs
    # what generates; auto: vLLM where it is installed, else Hugging Face
    engine: Literal["auto", "vllm", "hf"] = "auto"
    # vLLM's share of GPU memory, weights included; officially 0.8, with no room left to train a 7B
    rollout_memory: float = 0.4

    # ---- objective (Eq. 2-4) ---------------------------------------------------------------------

    # β of the policy shaping f(w) = w / (w + β); none: the plain ratio (Table 6)
    beta: float | Literal["none"] | None = 0.1
    # w* divides by the stored π_past; false: by π_θ before the batch's first optimiser step
    # (Table 6)
    importance_correction: bool = True
    # π_old of new tokens: the engine's own, or one more forward pass of the policy
    behavior_logprobs: Literal["engine", "recompute"] = "engine"
    # entropy bonus, normalised as the loss is; officially 0.001 times a mean over tokens, which is
    # about as much (docs/official-code.md)
    entropy_coef: float = 3.5e-4

    # ---- optimisation (Alg. 1, line 31) ----------------------------------------------------------

    steps: int = 700  # batches to train on; 500 for the paper's other models
    lr: float = 1e-6  # of AdamW, constant
    adam_eps: float = 1e-8 / OFFICIAL_SCALE  # ε of AdamW
    # to which gradients are clipped; a step whose norm is over 500 times as large is left out
    max_grad_norm: float = 1 / OFFICIAL_SCALE
    # what policy and engine compute in; the trained weights stay float32
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    lora_rank: int = 0  # of the adapters (LoRA) that are trained; 0: all weights are trained
    tokens_per_micro_batch: int = 16_384  # per rank; equal prompts side by side count once
    gradient_checkpointing: bool = True  # the backward pass recomputes activations, to save memory

    # ---- run -------------------------------------------------------------------------------------

    run_dir: str = "runs/default"  # of metrics.jsonl, run.png, checkpoints and the final model
    # where metrics go beside metrics.jsonl: to run_dir/tensorboard, or to Weights & Biases
    tracker: Literal["none", "tensorboard", "wandb"] = "none"
    eval_every: int = 10  # steps between validations; 0: only before and after
    eval_temperature: float = 0.6  # of validation, at top-p 1; 0: greedy
    eval_questions: int = 0  # of each source in a validation; 0: all
    save_every: int = 50  # steps between checkpoints; 0: only at the end and when interrupted
    resume: bool = False  # go on from the newest checkpoint in run_dir

    # Names of knobs that are ignored where a --config file sets them; eval.py has some.
    NOT_FROM_FILES = set()

    def __post_init__(self):
        """Check the types, which a file may have wrong, then the values."""
        for f in fields(self):
            check_type({f.name: getattr(self, f.name)}, dict[str, f.type])
        super().__post_init__()


def parse_config(argv: list[str] | None = None, cls: type[Config] = Config):
    """Read `--config FILE ...` and flags into a `cls`, Config or eval.py's.

    Refusal for a wrong file, even if flags would mend it; SystemExit with a sentence for a wrong
    flag.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", nargs="+", default=[])
    given, flags = parser.parse_known_args(argv)
    files = given.config
    if not files and not any(flag.startswith("--model") for flag in flags):
        files = [PAPER]
    values = {}
    try:
        for file in files:
            values |= yaml.safe_load(Path(file).read_text())
        for name in cls.NOT_FROM_FILES:
            values.pop(name, None)
        default = cls(**values)
    # TypeError: an unknown knob. TypeCheckError: 1e-6, which YAML reads as text, and the like.
    except (OSError, TypeError, ValueError, TypeCheckError, yaml.YAMLError) as error:
        raise Refusal(f"{' '.join(files)}: {error}") from error
    is_first = os.environ.get("RANK", "0") == "0"
    # tyro reports an impossible value on every rank, whatever `console_outputs` says.
    with redirect_stderr(sys.stderr if is_first else StringIO()):
        return tyro.cli(
            cls, args=flags, default=default, use_underscores=True, console_outputs=is_first
        )
