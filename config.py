"""Every knob of a run, its meaning, the paper's symbol and the paper's value (Table 4).

The defaults are the built-in run of `make train`: a tiny model on the arithmetic world, made for two CPU
cores. The paper's values stand in brackets in each help text and, all together, in `configs/`.

    config = parse_config(["--config", "configs/qwen2.5-math-7b.yaml", "--rho", "0.25"])

A YAML file sets knobs by name, flags override the file. An unknown name or an impossible value fails at
once, before anything is loaded.
"""

import dataclasses
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_args, get_origin

import yaml

INSTALL_PEFT = "pip install peft==0.21.2 accelerate==1.15.0"
INSTALL_TRACKER = {"tensorboard": "pip install tensorboard==2.21.0", "wandb": "pip install wandb==0.31.0"}


def knob(default, help):
    """One configuration field: its default and what `--help` says of it."""
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata={"help": help})
    return field(default=default, metadata={"help": help})


@dataclass
class Config:
    # ---- model and data -----------------------------------------------------------------------------
    model: str = knob("", "Hugging Face directory or hub name; empty: the built-in arithmetic world with its own model and questions.")
    train_files: list[str] = knob([], "Parquet or JSONL files of training questions, verl-LUFFY columns.")
    val_files: list[str] = knob([], "The same for validation questions; scored per data_source.")
    world_dir: str = knob(".cache", "Where the built-in world is built once and kept.")
    base_steps: int = knob(1500, "Pretraining steps of the built-in world's base model; fewer make a weaker one (Fig. 4).")
    prompt_template: str = knob("chat", "'chat': the tokenizer's chat template; else a text with {question} [Llama-3.1-8B base: 'User: {question}\\nAnswer: ...'].")
    response_prefix: str = knob("", "Text that ends every prompt, added where the template does not end so itself [paper: '<think>\\n'].")
    max_prompt_length: int = knob(40, "Tokens; longer prompts are dropped with a count [1024].")
    max_response_length: int = knob(64, "L_max in tokens: the limit of a response and the constant in the loss normaliser [8192].")
    rope_theta: float = knob(0.0, "Override of the model's RoPE base for long responses; 0: as the model has it [40000 for Qwen2.5-Math].")
    max_position_embeddings: int = knob(0, "Override of the model's positions; 0: as the model has it [16384 for Qwen2.5-Math].")
    trust_remote_code: bool = knob(False, "Run Python code shipped with a model directory. Leave off unless you wrote it.")

    # ---- reward (Eq. 1) -----------------------------------------------------------------------------
    reward: str = knob("math", "'math': Math-Verify on the last \\boxed{}; 'module:function': your (response, answer) -> float.")
    require_box: bool = knob(True, "Without a \\boxed{} the reward is 0; off: Math-Verify's own extraction (needed by the Llama-base prompt).")
    grader: Literal["strict", "official"] = knob("strict", "'official': Math-Verify alone on all that follows the thought, no box needed (published numbers).")
    verify_workers: int = knob(1, "Verifier processes per rank.")
    verify_timeout: float = knob(5.0, "Seconds after which an answer under verification scores 0.")

    # ---- rollouts (Alg. 1, line 23) -----------------------------------------------------------------
    num_rollouts: int = knob(8, "K: responses per question; a replayed question gets K-1 new ones [8].")
    temperature: float = knob(1.0, "Sampling temperature of rollouts, top-p 1; the policy's log-probs use the same [1.0].")
    engine: Literal["auto", "vllm", "hf"] = knob("auto", "Generation engine; auto: vLLM where it imports, else Hugging Face.")
    rollout_dtype: Literal["float32", "bfloat16"] = knob("float32", "Weights of the engine [bfloat16].")
    rollout_tp: int = knob(1, "vLLM tensor-parallel ranks per engine, inside a node [2 in the official run].")
    rollout_memory: float = knob(0.4, "GPU memory fraction that vLLM may fill, weights included [0.8, which leaves the trainer nothing].")
    rollout_cache_gb: int = knob(1, "KV-cache size of a CPU engine, in whole GiB.")
    max_drift: float = knob(0.001, "Stop when engine and policy log-probs of the same tokens differ by more on average, in nats [0.05 in bfloat16].")

    # ---- experience management (Sec. 4.1) -----------------------------------------------------------
    rho: float = knob(0.5, "ρ: share of replayed questions in a batch; 0: on-policy Dr. GRPO, the baseline [0.5].")
    mu: float = knob(0.5, "μ: centre of the bucket weights, as an accuracy [0.5].")
    sigma: float = knob(1.0, "σ: their width, in `sigma_unit` [1.0].")
    sigma_unit: Literal["count", "accuracy"] = knob("count", "Scale of p_k: N(k; μK, σ) on success counts, or N(k/K; μ, σ) as printed in the paper.")
    question_selection: Literal["gaussian", "uniform"] = knob("gaussian", "Which buffered questions are replayed; uniform: 'no question selection' of Table 6.")
    trajectory_selection: Literal["entropy", "nll", "random", "highest_entropy", "official"] = knob("entropy", "o* among a question's stored responses: lowest mean entropy under the current policy, or an ablation of Table 6; official: lowest *sum* of entropies, what the official code's rule comes to.")
    k_min: int = knob(1, "Smallest success count that is collected, official experience_lbound + 1 [1].")
    k_max: int = knob(7, "Largest success count that is collected, official experience_rbound [7].")
    start_threshold: float = knob(0.35, "Delayed start: collect and replay once a batch's Pass@1 exceeds this; negative: at once [0.35].")
    retire: Literal["auto", "on", "off"] = knob("auto", "Questions solved K of K times are never drawn again; auto: on unless ρ = 0.")
    max_trajectories: int = knob(0, "Cap of stored responses, the newest are kept; 0: no cap [none].")
    max_candidates: int = knob(0, "The choice of o* is made among this many stored responses of a question, those with the lowest mean NLL when they were made; 0: all [all].")
    reinstate_every: int = knob(0, "Steps between returns of retired questions to the stream (Table 7); 0: never [0; Table 7: 25].")
    reinstate_fraction: float = knob(0.1, "Share of the retired set that returns [Table 7: 0.1].")
    difficulty: Literal["success", "spread"] = knob("success", "Buckets by success count, or by reward spread for continuous rewards (Sec. 5.3).")

    # ---- objective (Eq. 2-4) ------------------------------------------------------------------------
    clip_eps: float = knob(0.2, "ε of CLIP [0.2].")
    clip: Literal["auto", "on", "off"] = knob("auto", "Clip on-policy tokens; auto: until replay starts, and always when ρ = 0.")
    beta: float = knob(0.1, "β of the policy shaping f(w) = w / (w + β) [0.1].")
    shaping: bool = knob(True, "Shape replayed tokens with f; off: the plain ratio w* (Table 6).")
    importance_correction: bool = knob(True, "w* against the stored log-probs; off: against the current policy's (Table 6).")
    behavior_logprobs: Literal["engine", "recompute"] = knob("engine", "π_old of fresh tokens: the engine's own log-probs, or one more forward of the policy.")
    normalize_std: bool = knob(False, "Divide advantages by the group's std (GRPO); off: Dr. GRPO [off].")
    alpha_low: float = knob(0.0, "Masked GRPO (Eq. 14): groups with k/K below this are masked [0].")
    alpha_high: float = knob(1.0, "Masked GRPO (Eq. 14): groups with k/K above this are masked [1].")
    entropy_coef: float = knob(3e-4, "Entropy bonus, in the normalisation of the loss [0.001 in the official scale, about 0.0003 here].")

    # ---- optimisation (Alg. 1, line 31) -------------------------------------------------------------
    batch_size: int = knob(32, "B: questions per batch [128].")
    mini_batches: int = knob(2, "Optimiser steps per batch, each on its share of the questions [2].")
    steps: int = knob(120, "Batches to train on [700 for Qwen2.5-Math-7B, 500 for others].")
    lr: float = knob(4e-5, "Constant AdamW learning rate [1e-6].")
    weight_decay: float = knob(0.01, "AdamW weight decay [0.01].")
    adam_eps: float = knob(1e-10, "AdamW ε [1e-8 in the official scale, 1e-8/64 here].")
    max_grad_norm: float = knob(0.2, "Gradient-norm clip [1.0 in the official scale, 1/64 here].")
    skip_grad_norm: float = knob(10.0, "A step with a larger or non-finite gradient norm is skipped [500 in the official scale, 500/64 here].")
    dtype: Literal["float32", "bfloat16"] = knob("float32", "Compute type of the policy; master weights and optimiser are float32 [bfloat16].")
    lora_rank: int = knob(0, "LoRA: train adapters of this rank on every linear layer of the decoder, the model itself frozen in `dtype`; usually at about ten times the lr. 0: train all weights [0].")
    lora_alpha: float = knob(32.0, "α of LoRA: what the adapters add is scaled by α / rank.")
    tokens_per_micro_batch: int = knob(4096, "Tokens of one forward and backward on one rank; lower it when memory runs out.")
    gradient_checkpointing: bool = knob(False, "Recompute activations in the backward pass [on].")
    shard: bool = knob(True, "Shard weights, gradients and optimiser over the ranks of a node (FSDP2); off: replicate.")
    offload: bool = knob(False, "Keep master weights, gradients and optimiser in host memory and step there (GPUs only; not tested on one).")

    # ---- run ----------------------------------------------------------------------------------------
    seed: int = knob(0, "Seed of the run: question order, mini-batches, every sample.")
    run_dir: str = knob("runs/default", "Where metrics.jsonl, curve.png, checkpoints and the final model go.")
    tracker: Literal["none", "tensorboard", "wandb"] = knob("none", "Where metrics go beside metrics.jsonl: TensorBoard files in run_dir/tensorboard, or a Weights & Biases run.")
    eval_every: int = knob(20, "Steps between validations; 0: only before and after [10].")
    save_every: int = knob(20, "Steps between checkpoints in run_dir/checkpoints; 0: only at the end and when interrupted [20].")
    keep: int = knob(2, "How many of the last checkpoints are kept; the best one by validation is kept too.")
    resume: bool = knob(False, "Continue from the newest whole checkpoint in run_dir, where there is one.")
    hang_timeout: float = knob(3600.0, "Seconds a phase may last before the run is stopped with every rank's stack; 0: any time.")
    eval_temperature: float = knob(0.6, "Validation temperature, one response per question [0.6].")
    eval_questions: int = knob(0, "Validate on the first so many questions of each source; 0: all.")

    def __post_init__(self):
        for problem in _problems(self):
            raise ValueError(f"configuration: {problem}")

    @property
    def retires(self) -> bool:
        """Whether questions solved K of K times leave the stream (Alg. 1, lines 25-26)."""
        if self.difficulty == "spread":
            return False
        return self.rho > 0 if self.retire == "auto" else self.retire == "on"


def _problems(c: Config):
    """Yield a sentence for every impossible value or combination."""
    for f in dataclasses.fields(c):
        value, choices = getattr(c, f.name), get_args(f.type)
        if get_origin(f.type) is Literal and value not in choices:
            yield f"{f.name} must be one of {', '.join(choices)}, got {value!r}"
        if value != value:
            yield f"{f.name} must be a number, got {value}"
    for name in ("max_prompt_length", "max_response_length", "batch_size", "mini_batches", "steps", "verify_workers",
                 "base_steps", "rollout_tp", "tokens_per_micro_batch", "keep"):
        if getattr(c, name) < 1:
            yield f"{name} must be at least 1, got {getattr(c, name)}"
    for name in ("temperature", "sigma", "beta", "lr", "max_grad_norm", "skip_grad_norm", "verify_timeout", "max_drift",
                 "clip_eps", "adam_eps", "eval_temperature", "lora_alpha"):
        if not getattr(c, name) > 0:
            yield f"{name} must be above 0, got {getattr(c, name)}"
    for name in ("entropy_coef", "weight_decay", "rope_theta", "max_position_embeddings", "max_trajectories", "max_candidates",
                 "reinstate_every", "eval_every", "eval_questions", "seed", "save_every", "hang_timeout", "lora_rank"):
        if getattr(c, name) < 0:
            yield f"{name} must not be negative, got {getattr(c, name)}"
    for name in ("rho", "mu", "reinstate_fraction", "alpha_low", "alpha_high", "rollout_memory"):
        if not 0 <= getattr(c, name) <= 1:
            yield f"{name} must lie in [0, 1], got {getattr(c, name)}"
    if c.num_rollouts < 2:
        yield f"num_rollouts (K) must be at least 2, got {c.num_rollouts}: a group of one has no advantage"
    if not 1 <= c.k_min <= c.k_max < c.num_rollouts:
        yield (f"need 1 <= k_min <= k_max < num_rollouts, got {c.k_min}, {c.k_max}, {c.num_rollouts}: with k_max = num_rollouts - 1 "
               "all mixed groups are collected")
    if c.lora_rank and not find_spec("peft"):
        yield f"lora_rank needs the library peft, which is not installed: {INSTALL_PEFT}"
    if c.mini_batches > c.batch_size:
        yield f"mini_batches ({c.mini_batches}) must not exceed batch_size ({c.batch_size})"
    if c.alpha_low > c.alpha_high:
        yield f"alpha_low ({c.alpha_low}) must not exceed alpha_high ({c.alpha_high})"
    for name in ("prompt_template", "response_prefix"):
        if "\\n" in (text := getattr(c, name)) and "\n" not in text:
            yield f"{name} holds a backslash and an n, but no line break: write $'...\\n' in bash, double quotes in YAML"
    if c.prompt_template != "chat" and "{question}" not in c.prompt_template:
        yield "prompt_template must be 'chat' or contain {question}"
    if c.train_files and not c.model:
        yield "train_files need a model (without them the built-in questions are used)"
    if c.difficulty == "spread" and c.retire == "on":
        yield "retire='on' needs success counts; with difficulty='spread' nothing retires"
    if c.reward != "math" and c.reward.count(":") != 1:
        yield f"reward must be 'math' or 'module:function', got {c.reward!r}"
    if c.tracker != "none" and not getattr(find_spec(c.tracker), "origin", None):  # a directory of that name has no origin
        yield f"tracker={c.tracker} needs a library that is not installed: {INSTALL_TRACKER[c.tracker]}"
    for name in c.train_files + c.val_files:
        if not Path(name).exists():
            yield f"no such file: {name}"


def parse_config(argv: list[str] | None = None) -> Config:
    """Read `--config FILE.yaml` and flags into a Config.

    Raises SystemExit with a message (argparse) for unknown flags, ValueError for unknown names in the file
    and for impossible values.
    """
    from transformers import HfArgumentParser  # slow to import, needed only here

    parser = HfArgumentParser(Config, allow_abbrev=False, description=__doc__.split("\n")[0])
    parser.add_argument("--config", metavar="FILE", help="YAML file of knobs; flags override it.")
    file = parser.parse_known_args(argv)[0].config
    if file:
        parser.set_defaults(**read_yaml(file))
    values = vars(parser.parse_args(argv))
    values.pop("config")
    return Config(**values)


def read_yaml(file: str) -> dict:
    """The knobs set in a YAML file; ValueError names unknown ones and values of the wrong type."""
    try:
        knobs = yaml.safe_load(Path(file).read_text()) or {}
    except yaml.YAMLError as error:
        raise ValueError(f"{file}: not YAML: {error}") from error
    defaults = dataclasses.asdict(Config())
    unknown = [name for name in knobs if name not in defaults] if isinstance(knobs, dict) else [knobs]
    if unknown:
        raise ValueError(f"{file}: unknown knobs {unknown}; `train.py --help` lists all")
    for name, value in knobs.items():
        kind = type(defaults[name])
        if kind is float and type(value) in (int, str):
            with suppress(ValueError):
                knobs[name] = value = float(value)  # YAML reads 1e-6 as text
        if type(value) is not kind:
            quotes = " (YAML reads on and off as true and false: put them in quotes)" if kind is str and type(value) is bool else ""
            raise ValueError(f"{file}: {name} must be {kind.__name__}, got {value!r}{quotes}")
    return knobs
