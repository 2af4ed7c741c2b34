"""Refuse, before the first step, models that engine or policy would take wrongly."""

from pathlib import Path

from torch import nn

from runtime.faults import Failure

# Settings of a Hugging Face config by which some families scale or cap the logits behind the head,
# or attention's scores.
CAPS_AND_SCALES = (
    "final_logit_softcapping",
    "attn_logit_softcapping",
    "logits_scaling",
    "logit_scale",
)
# Weights whose names end so are added to the logits, or to attention's softmax.
PARTS = ("lm_head.bias", ".sinks")


def refuse_unknown_parts(lm: nn.Module, model: str, length: int) -> None:
    """Raise ValueError, naming the model, where model.py would score it wrongly.

    Such a model has logits that are scaled, capped or have a bias, attention with caps or sinks, or
    a sliding window shorter than `length`, the longest prompt and response in tokens.
    """
    window = getattr(lm.config, "sliding_window", None)
    if window and length > window:
        raise ValueError(
            f"{model} attends over the last {window} tokens only, which is not built in: "
            f"keep max_prompt_length + max_response_length = {length} to that"
        )
    found = [name for name in CAPS_AND_SCALES if getattr(lm.config, name, None) not in (None, 1)]
    found += [name for name, _ in lm.named_parameters() if name.endswith(PARTS)]
    if found:
        raise ValueError(
            f"{model} has {found[0]}, which is not built in: see 'Another model family' in "
            "docs/change-it.md, or choose another model"
        )


def refuse_two_sets(model: str) -> None:
    """Raise Failure where a directory has two sets of weights: engines take different ones."""
    folder = Path(model)
    index = folder / "model.safetensors.index.json"
    first = index.read_text() if index.exists() else '"model.safetensors"'
    files = [*folder.glob("adapter_config.json"), *folder.glob("*.safetensors")]
    second = sorted(file.name for file in files if f'"{file.name}"' not in first)
    if second:
        raise Failure(
            f"{model} has two sets of weights, the second in {', '.join(second)}, and engines would"
            " take different ones: remove one, or merge the adapter"
        )
