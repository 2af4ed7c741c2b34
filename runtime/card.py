"""Write what stands beside a trained model's weights: its card and its generation settings."""

import json
import math
import re
from datetime import date
from pathlib import Path

from runtime.chat import DAY, is_dated
from runtime.console import optional, printable
from runtime.faults import say
from runtime.tracking import validation

# Knobs that the card does not list: those that are paths.
LEFT_OUT = ("model", "train_files", "val_files", "run_dir")

TAGS = "tags: [exgrpo, grpo, rlvr]"  # by this line of a card a model from here is known


def describe_model(directory: Path, state: dict, tokenizer, rows: list[dict]) -> None:
    """Write README.md and generation_config.json into the directory of a trained model.

    state: the plain state of a checkpoint, with the step and the run's knobs. rows: the run's
    metrics so far.

    The model generates as in validation, and ends its turns as in training: the base model's own
    settings (penalties) are not what was trained.
    """
    from transformers import GenerationConfig

    knobs = state["config"]
    step = state["step"]
    ids = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": state["turn_ends"],
        "pad_token_id": tokenizer.pad_token_id,
    }
    temperature = knobs["eval_temperature"]
    sampling = {}
    if temperature:
        sampling = {"temperature": temperature, "top_p": 1.0, "top_k": 0}
    GenerationConfig(do_sample=bool(temperature), **sampling, **ids).save_pretrained(directory)
    tested = {row["step"]: validation(row) for row in rows if validation(row)}
    base = next(iter(tested.values()), {})
    trained = tested.get(step, {})  # an earlier step's scores are another model's
    with optional("the model card"):
        day = DAY if is_dated(tokenizer) else None
        card = model_card(knobs, step, base, trained, day)
        (directory / "README.md").write_text(card, encoding="utf-8")


def say_unfit(model: str, reward: str, scores: dict[str, float]) -> None:
    """Print a note where a base model has too little right to begin with, or too much.

    Nothing is said on the built-in world, nor of a model that was trained here.
    """
    card = Path(model) / "README.md"
    trained = card.is_file() and TAGS.encode() in card.read_bytes()
    if trained or reward.startswith("worlds.arithmetic:"):
        return
    for name, score in scores.items():
        if name.startswith("pass_at_1/") and not 0.03 <= score <= 0.9:
            say(
                f"note: {printable(name)} is {score:.3f}. Below 3% or above 90% right, change the"
                " task before you train: a group that is all wrong or all right teaches nothing"
            )


def is_hub_name(model: str) -> bool:
    """Return whether a model is named as on the Hugging Face hub and is no directory here."""
    return bool(re.fullmatch(r"[\w.-]+/[\w.-]+", model)) and not Path(model).exists()


def plain(text: str) -> str:
    r"""Return foreign text as one line that Markdown shows letter by letter.

    `<b>|$x$` becomes `\<b\>\|\$x\$`.
    """
    marks = r"[\\`*\[\]<>|$~&#]|\b_|_\b"  # an underscore inside a word marks nothing
    return re.sub(f"({marks})", r"\\\1", " ".join(printable(text).split()))


def model_card(
    knobs: dict, steps: int, base: dict[str, float], trained: dict[str, float], day: date | None
) -> str:
    """Return the README.md of a model directory, with the head that the Hugging Face hub reads.

    day: the date that the chat template wrote into the prompts of training, or None.
    """
    model = knobs["model"]
    data = [Path(file).name for file in knobs["train_files"]]
    method = (
        "ExGRPO" if knobs["rho"] > 0 else "on-policy Dr. GRPO (the baseline of ExGRPO, no replay)"
    )
    origin = f"base_model: {json.dumps(model)}\n" if is_hub_name(model) else ""
    scores = "**Not validated** after that."
    if trained:
        rows = [
            f"| {plain(name)} | {base.get(name, math.nan):.3f} | {value:.3f} |\n"
            for name, value in trained.items()
        ]
        scores = "| score | base | trained |\n|---|---|---|\n" + "".join(rows)
    dated = f" on {day}, the date in its prompts," if day else ""
    # Markdown shows lines letter by letter that are indented by four spaces.
    settings = [
        f"    {name}: {printable(repr(value))}\n"
        for name, value in knobs.items()
        if name not in LEFT_OUT
    ]
    return f"""---
library_name: transformers
pipeline_tag: text-generation
{origin}{TAGS}
---

# {plain(Path(knobs["run_dir"]).name)}: {plain(Path(model).name)} trained with {method}

From {plain(model)}, {steps} steps on {plain(", ".join(data))}, by a from-scratch implementation of
[arXiv 2510.02245](https://arxiv.org/abs/2510.02245).

{scores}

Ask it as it was trained,{dated} with the `prompt_template` and the `response_prefix` below;
generation_config.json has the sampling of these scores. It is only as reliable as they are, on
questions like those of training. The weights are saved in the dtype of the starting model: where
that is bfloat16, `eval.py` may differ from the last validation by its rounding.
The license of the starting model and of the data applies to this model too.

{"".join(settings)}"""
