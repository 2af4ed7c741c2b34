"""Every knob of a run, its meaning, the paper's symbol and the paper's value (Table 4).

The defaults are the built-in run of `make train`: a tiny model on the arithmetic world, made for
two CPU cores. Where the paper has a value, it stands in brackets in the help text; all together
they are in `configs/`.

    config = parse_config(["--config", "configs/qwen2.5-math-7b.yaml", "--rho", "0.25"])

A YAML file sets knobs by name, flags override it; one parser reads both, and `--help` ends with how
lists and empty values are spelt. An unknown name or an impossible value fails at once.
"""

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from runtime.flags import POSITIVE, knob, loading, or_refuse, out_of_range, parse_flags
from runtime.rundir import refuse_remains
from runtime.tables import first_case
from verifier.pool import try_out
from worlds import FIRST_CASE

INSTALL_PEFT = "pip install peft==0.21.2 accelerate==1.15.0"
INSTALL_TRACKER = {
    "tensorboard": "pip install tensorboard==2.21.0",
    "wandb": "pip install wandb==0.31.0",
}


@dataclass
class Config:
    # ---- the ten that a student turns first ------------------------------------------------------
    model: str = knob(
        "", "The Hugging Face directory or hub name of the model; empty: the built-in world's."
    )
    train_files: list[str] = knob(
        [], "The Parquet or JSONL files of training questions, with verl-LUFFY columns."
    )
    reward: str = knob(
        "math",
        "'math' compares the last \\boxed{} with the gold, by Math-Verify; 'module:function' is "
        "your (response, answer[, row]) -> float.",
    )
    steps: int = knob(
        120, "How many batches to train on [700 for Qwen2.5-Math-7B, 500 for others].", 1
    )
    batch_size: int = knob(32, "B, the questions of a batch [128].", 1)
    num_rollouts: int = knob(
        8, "K, the responses to a question; a replayed one gets K - 1 new ones [8]."
    )
    max_response_length: int = knob(
        72, "L_max, the longest response in tokens, by which the loss divides [8192].", 1
    )
    lr: float = knob(4.5e-4, "The learning rate of AdamW, which stays constant [1e-6].", POSITIVE)
    rho: float = knob(
        0.5, "ρ, the share of replayed questions; 0 is on-policy Dr. GRPO [0.5].", 0, 1
    )
    mu: float = knob(
        0.5,
        "μ, the centre of the bucket weights, as an accuracy; 0.125 is one right answer of eight, "
        "so that rarely solved questions come back [0.5].",
        0,
        1,
    )

    # ---- model and data --------------------------------------------------------------------------
    val_files: list[str] = knob(
        [], "Files of validation questions, which are scored per data_source."
    )
    world_seed: int = knob(
        0, "The seed of the built-in world; another one is built on first use.", 0, 2**63 - 1
    )
    prompt_template: str = knob(
        "chat",
        "'chat' is the tokenizer's chat template; another text with {question} leaves other turns "
        "out [Llama-3.1-8B base: 'User: {question}\\nAnswer: ...'].",
    )
    response_prefix: str = knob(
        "", "What ends every prompt, unless the template does so [paper: '<think>\\n']."
    )
    max_prompt_length: int = knob(
        40, "The longest prompt in tokens; longer ones are dropped and counted [1024].", 1
    )
    rope_theta: float = knob(
        0.0, "The base of RoPE; 0 leaves the model's own [40000 for Qwen2.5-Math].", 0
    )
    max_position_embeddings: int = knob(
        0, "The positions of the model; 0 leaves its own [16384 for Qwen2.5-Math].", 0
    )

    # ---- reward (Eq. 1) --------------------------------------------------------------------------
    require_box: bool = knob(
        True,
        "Without a \\boxed{} an answer is wrong; off takes the last statement of an answer, or the "
        "last number, as the Llama-base prompt needs.",
    )
    grader: Literal["strict", "official"] = knob(
        "strict",
        "'official' is Math-Verify alone on all that follows the thought, for published numbers.",
    )
    verify_timeout: float = knob(
        5.0, "The seconds that verifying an answer may take before it scores 0.", POSITIVE, 86400
    )

    # ---- rollouts (Alg. 1, line 23) --------------------------------------------------------------
    temperature: float = knob(
        1.0,
        "The temperature of rollouts, at top-p 1, and of the policy's log-probs [1.0].",
        POSITIVE,
    )
    engine: Literal["auto", "vllm", "hf"] = knob(
        "auto", "What generates; auto takes vLLM where it is installed, else Hugging Face."
    )
    rollout_tp: int = knob(
        1, "How many ranks of a node share one vLLM engine by tensor parallelism [2 officially].", 1
    )
    rollout_memory: float = knob(
        0.4,
        "vLLM's share of GPU memory, weights included [0.8, which leaves no room to train].",
        0,
        1,
    )
    max_drift: float | None = knob(
        None,
        "The run stops where the log-probs of engine and policy differ by more, in nats a token on "
        "average; auto is 0.001 in float32 and 0.15 in bfloat16.",
        POSITIVE,
    )

    # ---- experience management (Sec. 4.1) --------------------------------------------------------
    question_selection: Literal["gaussian", "uniform"] = knob(
        "gaussian",
        "Which stored questions come back; uniform is Table 6's 'no question selection'.",
    )
    sigma: float = knob(
        1.0,
        "σ, the width of the bucket weights N(k; μK, σ), in successes as in the official code; "
        "`--sigma 8`, which is K times as much, is the paper's text, N(k/K; μ, σ) [1.0].",
        0.001,
    )
    trajectory_selection: Literal["entropy", "nll", "random", "highest_entropy", "official"] = knob(
        "entropy",
        "Which stored answer is o*: that with the lowest mean entropy under the policy of now, or "
        "the lowest NLL (Alg. 1); random and highest_entropy are Table 6's; official takes the "
        "lowest *sum* of entropies, which the official code comes to.",
    )
    start_threshold: float = knob(
        0.35,
        "Replay starts once a batch's Pass@1 exceeds this: the next batch is stored, the one after "
        "it may replay. A negative value starts with the first [0.35].",
        most=1,
    )
    retire: Literal["auto", "on", "off"] = knob(
        "auto",
        "Whether questions solved K of K times retire; auto: unless ρ = 0 or difficulty is spread.",
    )
    max_trajectories: int = knob(
        0, "How many responses are stored at most, the newest ones; 0 is no limit [none].", 0
    )
    reinstate_every: int = knob(
        0,
        "How often, in steps, a tenth of the retired questions returns, and at once as many as a "
        "whole batch needs; 0: never, and the run ends where fewer than B are left [Table 7: 25].",
        0,
    )
    difficulty: Literal["success", "spread"] = knob(
        "success",
        "What the buckets go by: success count, or spread of continuous rewards (Sec. 5.3).",
    )

    # ---- objective (Eq. 2-4) ---------------------------------------------------------------------
    clip: Literal["auto", "on", "off"] = knob(
        "auto",
        "Whether on-policy tokens are clipped; auto: until replay starts, or always if ρ = 0.",
    )
    clip_eps: float = knob(0.2, "ε of CLIP [0.2].", POSITIVE, 1)
    shaping: bool = knob(
        True, "Whether f shapes the replayed tokens; off leaves the plain ratio w* (Table 6)."
    )
    beta: float = knob(0.1, "β of the policy shaping f(w) = w / (w + β) [0.1].", POSITIVE)
    importance_correction: bool = knob(
        True, "Whether w* divides by the stored log-probs, or by the policy's own (Table 6)."
    )
    behavior_logprobs: Literal["engine", "recompute"] = knob(
        "engine",
        "Whether π_old of new tokens is the engine's own, or one more forward of the policy.",
    )
    normalize_std: bool = knob(
        False, "Whether advantages are divided by the group's std, as in GRPO [off: Dr. GRPO]."
    )
    alpha_low: float = knob(
        0.0, "Masked GRPO (Eq. 14) leaves out groups with a lower k/K [0].", 0, 1
    )
    alpha_high: float = knob(
        1.0, "Masked GRPO (Eq. 14) leaves out groups with a higher k/K [1].", 0, 1
    )
    entropy_coef: float = knob(
        3e-4,
        "The entropy bonus, normalised as the loss is [0.001 officially, 0.00035 in our scale].",
        0,
    )

    # ---- optimisation (Alg. 1, line 31) ----------------------------------------------------------
    mini_batches: int = knob(
        2, "The optimiser steps of a batch, each on its share of the questions [2].", 1
    )
    weight_decay: float = knob(0.01, "The weight decay of AdamW [0.01].", 0)
    adam_eps: float = knob(
        1e-10, "ε of AdamW [1e-8 in the official scale, 1e-8/64 in ours].", POSITIVE
    )
    max_grad_norm: float = knob(
        0.2,
        "The norm to which gradients are clipped [1.0 in the official scale, 1/64 in ours].",
        POSITIVE,
    )
    skip_grad_norm: float = knob(
        10.0,
        "A step whose gradient norm is larger, or not finite, is skipped [500 in the official "
        "scale, 500/64 in ours].",
        POSITIVE,
    )
    dtype: Literal["float32", "bfloat16"] = knob(
        "float32", "What policy and engine compute in; the trained weights stay float32 [bfloat16]."
    )
    lora_rank: int = knob(
        0, "The rank of the adapters (LoRA) that are trained; 0 trains all weights [0].", 0
    )
    lora_alpha: float = knob(
        32.0, "α of LoRA: what the adapters add is scaled by α / rank.", POSITIVE
    )
    tokens_per_micro_batch: int | None = knob(
        4096,
        "The tokens of a micro-batch on one rank; a shared prompt counts once. auto: what fits.",
        1,
    )
    gradient_checkpointing: bool = knob(
        False, "Whether the backward pass recomputes activations, to save memory [on]."
    )

    # ---- run -------------------------------------------------------------------------------------
    seed: int = knob(
        0, "The seed of the run, for question order, mini-batches and every sample.", 0, 2**63 - 1
    )
    run_dir: str = knob(
        "runs/default",
        "The directory of metrics.jsonl, curve.png, checkpoints and the final model.",
    )
    tracker: Literal["none", "tensorboard", "wandb"] = knob(
        "none", "Where metrics go beside metrics.jsonl: run_dir/tensorboard, or Weights & Biases."
    )
    eval_every: int = knob(
        20, "The steps between validations; 0 validates only before and after [10].", 0
    )
    eval_temperature: float = knob(
        0.6, "The temperature of validation and eval.py, at top-p 1; 0 is greedy [0.6].", 0
    )
    eval_questions: int = knob(
        0, "How many questions of each source are asked in a validation; 0 is all.", 0
    )
    save_every: int = knob(
        20, "The steps between checkpoints; 0 saves only at the end and when interrupted [50].", 0
    )
    keep: int = knob(
        2, "How many of the last checkpoints are kept, beside the best by validation.", 1
    )
    resume: bool = knob(False, "Whether to go on from the newest whole checkpoint in run_dir.")
    hang_timeout: float = knob(
        3600.0,
        "The seconds that a phase may last before the run is stopped; 0 sets no limit.",
        0,
        1e7,
    )

    def __post_init__(self):
        for problem in _problems(self):
            raise ValueError(f"configuration: {problem}")


def _problems(c: Config):
    """Yield a sentence for every impossible value or combination."""
    yield from out_of_range(c)
    if c.num_rollouts < 2:
        yield (
            f"num_rollouts (K) must be at least 2, got {c.num_rollouts}: a group of one has no"
            " advantage"
        )
    if c.mini_batches > c.batch_size:
        yield f"mini_batches ({c.mini_batches}) must not exceed batch_size ({c.batch_size})"
    if c.rho > 0 and int(c.rho * c.batch_size + 1e-9) == 0:  # ⌊ρB⌋
        yield (
            f"rho={c.rho} of batch_size={c.batch_size} is less than one question, so that none"
            " would come back: raise one of them, or set rho to 0 for on-policy Dr. GRPO"
        )
    if c.alpha_low > c.alpha_high:
        yield f"alpha_low ({c.alpha_low}) must not exceed alpha_high ({c.alpha_high})"
    for name in ("prompt_template", "response_prefix"):
        if "\\n" in (text := getattr(c, name)) and "\n" not in text:
            yield (
                f"{name} holds a backslash and an n, no line break: $'\\n' in bash, double quotes"
                " in YAML"
            )
    if c.prompt_template != "chat" and "{question}" not in c.prompt_template:
        yield "prompt_template must be 'chat' or contain {question}"
    if c.train_files and not c.model:
        yield "train_files need a model (without them the built-in questions are used)"
    if c.difficulty == "spread" and c.retire == "on":
        yield "retire='on' needs success counts; with difficulty='spread' nothing retires"
    if not c.run_dir.strip() or "\0" in c.run_dir:
        yield f"run_dir must name a directory, got {c.run_dir!r}"
    if c.lora_rank and not find_spec("peft"):
        yield f"lora_rank needs the library peft, which is not installed: {INSTALL_PEFT}"
    if c.engine == "vllm" and not find_spec("vllm"):
        yield "engine='vllm' is not installed: run `make install`, or choose --engine hf"
    # A mere directory of the library's name is found, too, but has no origin.
    if c.tracker != "none" and not getattr(find_spec(c.tracker), "origin", None):
        yield (
            f"tracker={c.tracker} needs a library that is not installed:"
            f" {INSTALL_TRACKER[c.tracker]}"
        )
    read_only = Path("/dev/shm").exists() and not os.access("/dev/shm", os.W_OK)
    if read_only and c.engine != "hf" and find_spec("vllm"):
        yield (
            "vLLM needs /dev/shm, where nothing can be written: make it writable, or choose"
            " --engine hf"
        )
    for name in c.train_files + c.val_files:
        if not Path(name).exists():
            yield f"no such file: {name}; tools.convert makes files of questions"


def parse_config(argv: list[str] | None = None) -> Config:
    """Read `--config FILE.yaml` and flags into a Config.

    SystemExit with a message for unknown names and values of another kind, ValueError for
    impossible ones.
    """
    return Config(**parse_flags(Config, argv, __doc__.split("\n")[0]))


def ready(config: Config) -> Config:
    """The config, after a reward of the user's own has graded the first answer.

    RuntimeError where it cannot be imported, or raises. Says that the long imports come next.
    """
    if config.reward != "math":
        cases = map(first_case, config.train_files) if config.train_files else [FIRST_CASE]
        try_out(config.reward, config.verify_timeout, cases)
    loading()
    return config


def from_command_line() -> Config:
    """The config, where run_dir is free and the reward works; else a sentence and the end."""

    def read() -> Config:
        config = parse_config()
        refuse_remains(config.run_dir, config.resume)
        return ready(config)

    return or_refuse(read)
