"""Table 4: every knob of a run; the defaults are the paper's run of Qwen2.5-Math-7B.

    config = parse_config(["--config", "configs/arithmetic.yaml", "--rho", "0.25"])

Those of experience management are inherited from `exgrpo.py:Knobs`. Our loss is a 64th of the
official one (docs/official-code.md), and so are adam_eps, max_grad_norm and skip_grad_norm.
"""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

# torch reads this when exgrpo.py imports it: segments that grow leave fewer gaps on a GPU. A value
# that is set stays, also under the older name.
if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")

from exgrpo import Knobs
from runtime.faults import loading, once, or_refuse
from runtime.flags import parse
from runtime.preflight import missing, missing_libraries
from runtime.rundir import refuse_remains
from runtime.tables import first_case
from verifier.pool import try_out
from worlds import FIRST_CASE

DEFAULT_MODEL = "Qwen/Qwen2.5-Math-7B"
AUTO = {  # knob -> its value for the default model, and for others
    "response_prefix": ("<think>\n", ""),
    "rope_theta": (40_000.0, 0.0),
    "max_position_embeddings": (16_384, 0),
}


@dataclass
class Config(Knobs):
    """Train by ExGRPO. The defaults are the paper's run of Qwen2.5-Math-7B (Table 4).

    --config FILE [FILE ...] reads knobs from YAML files; later files win, and flags over all.
    A list is [a, b] in a file and --train_files a b as a flag; empty it is [], and the bare flag.
    """

    # `auto` is read as None: `fill_in` replaces it, for max_drift policy.py does.

    # ---- model and data --------------------------------------------------------------------------

    # a Hugging Face directory, or a name of the hub
    model: str = DEFAULT_MODEL
    # Parquet or JSONL files of training questions; runtime/tables.py names their columns
    train_files: list[str] = field(default_factory=lambda: ["data/openr1.parquet"])
    # files of validation questions, which are scored per data_source
    val_files: list[str] = field(default_factory=lambda: ["data/valid.parquet"])
    # "chat": the tokenizer's chat template; else a text with {question}, which is the last turn;
    # earlier turns are dropped
    prompt_template: str = "chat"
    # what ends every prompt; auto: "<think>\n" for the default model, nothing for others
    response_prefix: str | None = None
    max_prompt_length: int = 1024  # tokens; questions with longer prompts are dropped and counted
    # L_max, tokens at which a response is cut; the loss divides by it
    max_response_length: int = 8192
    # base of RoPE; 0: the model's own; auto: 40000 for the default model, 0 for others
    rope_theta: float | None = None
    # positions of the model; 0: its own; auto: 16384 for the default model, 0 for others
    max_position_embeddings: int | None = None

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
    verify_timeout: float = 5.0  # seconds that grading an answer may take before it scores 0

    # ---- rollouts (Alg. 1, line 23) --------------------------------------------------------------

    temperature: float = 1.0  # of rollouts, at top-p 1, and of the policy's log-probs
    # what generates; auto: vLLM where it is installed, else Hugging Face
    engine: Literal["auto", "vllm", "hf"] = "auto"
    rollout_tp: int = 1  # ranks of a node that share a vLLM engine; officially 2
    # vLLM's share of GPU memory, weights included; officially 0.8, with no room left to train a 7B
    rollout_memory: float = 0.4
    # the run stops where log-probs of engine and policy differ by more, in nats a token on average;
    # auto, or 0: 0.001 in float32, 0.15 in bfloat16
    max_drift: float | None = None

    # ---- objective (Eq. 2-4) ---------------------------------------------------------------------

    shaping: bool = True  # f shapes the replayed tokens; false: the plain ratio w* (Table 6)
    beta: float = 0.1  # β of the policy shaping f(w) = w / (w + β)
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
    adam_eps: float = 1e-8 / 64  # ε of AdamW; officially 1e-8
    max_grad_norm: float = 1 / 64  # to which gradients are clipped; officially 1
    # an optimiser step whose gradient norm is larger, or not finite, is skipped; officially 500
    skip_grad_norm: float = 500 / 64
    # what policy and engine compute in; the trained weights stay float32
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    lora_rank: int = 0  # of the adapters (LoRA) that are trained; 0: all weights are trained
    tokens_per_micro_batch: int = 16_384  # per rank; equal prompts side by side count once
    gradient_checkpointing: bool = True  # the backward pass recomputes activations, to save memory

    # ---- run -------------------------------------------------------------------------------------

    run_dir: str = "runs/default"  # of metrics.jsonl, curve.png, checkpoints and the final model
    # where metrics go beside metrics.jsonl: to run_dir/tensorboard, or to Weights & Biases
    tracker: Literal["none", "tensorboard", "wandb"] = "none"
    eval_every: int = 10  # steps between validations; 0: only before and after
    eval_temperature: float = 0.6  # of validation, at top-p 1; 0: greedy
    eval_questions: int = 0  # of each source in a validation; 0: all
    save_every: int = 50  # steps between checkpoints; 0: only at the end and when interrupted
    keep: int = 2  # the last checkpoints that are kept, beside the best by validation
    resume: bool = False  # go on from the newest whole checkpoint in run_dir
    # seconds after which a phase counts as hung and the run is stopped; 0: no limit
    hang_timeout: float = 3600.0

    def __post_init__(self):
        fill_in(self)
        super().__post_init__()

    def problems(self) -> Iterator[str]:
        """A sentence for each impossible value or combination, and for what is not there."""
        yield from super().problems()
        # At 0 all of these would train without an error, and not as anybody wants.
        for name in ("temperature", "lr", "beta", "max_grad_norm", "verify_timeout", "keep"):
            if not getattr(self, name) > 0:
                yield f"{name} must be above 0, got {getattr(self, name)}"
        yield from missing_libraries(self)
        yield from missing(self, self.train_files + self.val_files)


def fill_in(config) -> None:
    """Give what is `auto` its value: the paper's for the default model, none for another."""
    for name, (of_default, of_others) in AUTO.items():
        if getattr(config, name) is None:
            value = of_default if config.model == DEFAULT_MODEL else of_others
            setattr(config, name, value)


def parse_config(argv: list[str] | None = None) -> Config:
    """Read `--config FILE ...` and flags into a Config; a resumed run's own knobs stand between.

    SystemExit for a wrong flag, ValueError for a wrong file and impossible values.
    """
    argv = sys.argv[1:] if argv is None else argv
    config = parse(Config, argv)
    of_run = Path(config.run_dir) / "knobs.yaml"  # which a checkpoint leaves there
    if not config.resume or not of_run.is_file():
        return config
    resumed = parse(Config, [*argv, "--config", str(of_run)])
    kept = [name for name in vars(config) if getattr(config, name) != getattr(resumed, name)]
    if kept:
        once(f"note: {', '.join(kept)} as in {of_run}: only a flag changes a knob of a run")
    return resumed


def ready(config, files: list[str]) -> None:
    """Let a reward of the user's own grade the first answer, and say that long imports come next.

    RuntimeError where it cannot be imported, or raises.
    """
    if config.reward != "math":
        cases = map(first_case, files) if files else [FIRST_CASE]
        try_out(config.reward, config.verify_timeout, cases)
    loading()


def from_command_line() -> Config:
    """The config, where run_dir is free and the reward works; else a sentence and the end."""

    def read() -> Config:
        config = parse_config()
        refuse_remains(config.run_dir, config.resume)
        ready(config, config.train_files)
        return config

    return or_refuse(read)
