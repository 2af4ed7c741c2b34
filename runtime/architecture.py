"""Models that the packed forward pass (model.py) would score wrongly:
refused before the first step.
"""

from torch import nn

# of a Hugging Face config: what some families do to the logits behind the head, or to attention's
# scores
CAPS_AND_SCALES = (
    "final_logit_softcapping",
    "attn_logit_softcapping",
    "logits_scaling",
    "logit_scale",
)
# Ends of names of weights: added to the logits, to attention's softmax.
PARTS = ("lm_head.bias", ".sinks")


def refuse_unknown_parts(lm: nn.Module, model: str, length: int) -> None:
    """ValueError for a model, named in it, with logits that are scaled, capped or have a bias,
    attention with caps or sinks, or a sliding window shorter than `length`, the longest prompt and
    response in tokens.
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
