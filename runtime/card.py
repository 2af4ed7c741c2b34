"""What stands beside the weights of a trained model: its card (README.md) and its generation settings."""

import json
import math
import re
from pathlib import Path

from runtime.console import optional, printable
from runtime.tracking import validation

KNOBS = ("rho", "beta", "num_rollouts", "batch_size", "lr", "start_threshold", "max_response_length",
         "temperature", "seed")  # named on the card


def describe_model(directory: Path, knobs: dict, tokenizer, rows: list[dict]) -> None:
    """Write README.md and generation_config.json; `knobs` are the run's, `rows` its metrics so far.

    Generation is that of validation, with the one stop token of training: the base model's own settings
    (penalties, further stop tokens) are not what was trained.
    """
    from transformers import GenerationConfig

    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    sampling = {"do_sample": True, "temperature": knobs["eval_temperature"], "top_p": 1.0, "top_k": 0}
    if not knobs["eval_temperature"]:
        sampling = {"do_sample": False}
    GenerationConfig(**sampling, **ids).save_pretrained(directory)
    tested = [scores for row in rows if (scores := validation(row))] or [{}]
    steps = rows[-1]["step"] if rows else 0
    with optional("the model card"):
        card = model_card(knobs, steps, tested[0], tested[-1])
        (directory / "README.md").write_text(card, encoding="utf-8")


def is_hub_name(model: str) -> bool:
    """Whether a model is named as the Hugging Face hub does, and no directory here has that name."""
    return bool(re.fullmatch(r"[\w.-]+/[\w.-]+", model)) and not Path(model).exists()


def plain(text: str) -> str:
    r"""Foreign text for Markdown to show letter by letter, in one line: `<b>|$x$` is `\<b\>\|\$x\$`."""
    marks = r"[\\`*\[\]<>|$~&#]|\b_|_\b"  # an underscore inside a word is none
    return re.sub(f"({marks})", r"\\\1", " ".join(printable(text).split()))


def code(text: str) -> str:
    """Foreign text as a code span of Markdown, fenced by more backticks than it holds in a row."""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    pad = " " if fence != "`" else ""
    return f"{fence}{pad}{printable(text)}{pad}{fence}"


def model_card(knobs: dict, steps: int, base: dict[str, float], trained: dict[str, float]) -> str:
    """README.md of a model directory with the head that the Hugging Face hub reads."""
    k, model = knobs, knobs["model"]
    method = "ExGRPO" if k["rho"] > 0 else "on-policy Dr. GRPO (the baseline of ExGRPO, no replay)"
    origin = f"base_model: {json.dumps(model)}\n" if is_hub_name(model) else ""
    data = plain(", ".join(Path(file).name for file in k["train_files"])) or "the built-in arithmetic world"
    chat = k["prompt_template"] == "chat"
    prompt = "the tokenizer's chat template" if chat else f"the text {code(repr(k['prompt_template']))}"
    if k["response_prefix"]:
        prompt += f", ending in {code(repr(k['response_prefix']))}"
    context = f", RoPE base {k['rope_theta']:g}" if k["rope_theta"] else ""
    adapters = f"LoRA adapters of rank {k['lora_rank']}, α = {k['lora_alpha']:g}, merged"
    trained_part = adapters if k["lora_rank"] else "all weights"
    table = "\n".join(f"| {plain(name)} | {base.get(name, math.nan):.3f} | {value:.3f} |"
                      for name, value in trained.items())
    return f"""---
library_name: transformers
pipeline_tag: text-generation
{origin}tags: [exgrpo, grpo, rlvr]
---

# {plain(Path(k["run_dir"]).name)}: {plain(Path(model).name) or "a model"} trained with {method}

- **Method**: {method}, [arXiv 2510.02245](https://arxiv.org/abs/2510.02245), from-scratch implementation.
- **Start**: {plain(model) or "the built-in base model"}{context}
- **Data**: {data}; reward {code(k["reward"])}
- **Steps**: {steps} batches of {k["batch_size"]} questions x {k["num_rollouts"]} responses
- **Trained**: {trained_part}
- **Knobs**: {", ".join(f"{name}={k[name]}" for name in KNOBS)}
- **Prompt**: {prompt}; at most {k["max_prompt_length"]} tokens

Validation at temperature {k["eval_temperature"]:g}, top-p 1, one response a question; before and after:

| score | base | trained |
|---|---|---|
{table}

The answer is only as reliable as these scores, on questions like those above; nothing else was measured.
The license of the starting model and of the data applies to this model too.
"""
