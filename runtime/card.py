"""What stands beside the weights of a trained model: its card (README.md) and its generation settings."""

import json
import math
import re
from pathlib import Path

from runtime.console import optional, printable
from runtime.tracking import validation

# knobs that say nothing of the method; of the files the names are on the card
PLACES = ("model", "train_files", "val_files", "run_dir", "resume", "tracker", "keep", "save_every",
          "eval_every", "hang_timeout")
# change what the model is asked, and how its answer is graded
ASKED = ("prompt_template", "response_prefix", "max_prompt_length", "max_response_length", "rope_theta",
         "max_position_embeddings", "eval_temperature", "eval_questions", "dtype")
GRADED = ("reward", "grader", "require_box", "verify_timeout")


def describe_model(directory: Path, knobs: dict, tokenizer, rows: list[dict],
                   step: int | None = None) -> None:
    """Write README.md and generation_config.json; `knobs` are the run's, `rows` its metrics so far, `step`
    how many steps the weights have had, where the last row may be an earlier one's.

    Generation is that of validation, with the one stop token of training: the base model's own settings
    (penalties, further stop tokens) are not what was trained.
    """
    from transformers import GenerationConfig

    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    sampling = {"do_sample": True, "temperature": knobs["eval_temperature"], "top_p": 1.0, "top_k": 0}
    if not knobs["eval_temperature"]:
        sampling = {"do_sample": False}
    GenerationConfig(**sampling, **ids).save_pretrained(directory)
    tested = [(row["step"], scores) for row in rows if (scores := validation(row))] or [(0, {})]
    steps = step if step is not None else rows[-1]["step"] if rows else 0
    base, trained = tested[0][1], dict(tested).get(steps, {})  # an earlier step's scores are another model's
    with optional("the model card"):
        card = model_card(knobs, steps, base, trained)
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
    data, tests = (plain(", ".join(Path(file).name for file in k[files]))
                   for files in ("train_files", "val_files"))
    data = f"{data}; validated on {tests or 'nothing'}"
    if any(Path(file).parent.name.startswith("arithmetic-") for file in k["train_files"]):
        data += f" (the built-in arithmetic world, {k['world']}, seed {k['world_seed']})"
    asked, graded = (", ".join(code(f"{name}={k[name]!r}") for name in names) for names in (ASKED, GRADED))
    adapters = f"LoRA adapters of rank {k['lora_rank']}, α = {k['lora_alpha']:g}, merged"
    trained_part = adapters if k["lora_rank"] else "all weights"
    rows = [f"| {plain(name)} | {base.get(name, math.nan):.3f} | {value:.3f} |"
            for name, value in trained.items()]
    table = "\n".join(["| score | base | trained |", "|---|---|---|", *rows])
    scores = f"Validation, top-p 1, one response a question; before and after:\n\n{table}"
    if not trained:
        scores = f"**Not validated**: after step {steps} no score was taken."
    return f"""---
library_name: transformers
pipeline_tag: text-generation
{origin}tags: [exgrpo, grpo, rlvr]
---

# {plain(Path(k["run_dir"]).name)}: {plain(Path(model).name) or "a model"} trained with {method}

- **Method**: {method}, [arXiv 2510.02245](https://arxiv.org/abs/2510.02245), from-scratch implementation.
- **Start**: {plain(model) or "the built-in base model"}
- **Data**: {data}
- **Steps**: {steps} batches of {k["batch_size"]} questions x {k["num_rollouts"]} responses
- **Trained**: {trained_part}
- **Knobs**: {", ".join(f"{name}={k[name]}" for name in k if name not in PLACES + ASKED + GRADED)}
- **Asked** (evaluate and serve alike): {asked}
- **Graded**: {graded}

{scores}

The answer is only as reliable as these scores, on questions like those above; nothing else was measured.
The license of the starting model and of the data applies to this model too.
"""
