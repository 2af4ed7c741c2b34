"""Look into a model's tokenizer and settings: special tokens, what ends a turn, the day, RoPE."""

import re

import numpy as np
from jinja2 import TemplateError
from transformers import AutoConfig, GenerationConfig, PreTrainedConfig, PreTrainedTokenizerBase

from runtime import ranks
from runtime.faults import say


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> re.Pattern:
    """Find the tokenizer's special tokens in a text, the reserved ones too, which have no role."""
    added = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    return re.compile("|".join(map(re.escape, {*tokenizer.all_special_tokens, *added})) or "(?!)")


def turn_ends(model: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the ids of all tokens that end a response, in order, and say which they are.

    They are the tokenizer's eos_token, those of the model's generation settings, and the special
    token that its chat template puts behind the assistant's turn. Base models and chat models
    differ in these, and engines in which of them they know.
    """
    try:
        settings = GenerationConfig.from_pretrained(model)
    except OSError:  # without such a file they stand in config.json
        own = AutoConfig.from_pretrained(model, trust_remote_code=False)
        settings = GenerationConfig.from_model_config(own)
    ids = {tokenizer.eos_token_id}
    if settings.eos_token_id is not None:  # one or several
        ids.update(np.atleast_1d(settings.eos_token_id).tolist())
    behind = rendered(tokenizer, ("user", "question"), ("assistant", "RESPONSE"))
    behind = behind.rpartition("RESPONSE")[2].lstrip()
    if found := special_tokens(tokenizer).match(behind):
        ids.add(tokenizer.convert_tokens_to_ids(found[0]))
    ends = sorted(ids)
    if ranks.rank() == 0:
        names = [f"{tokenizer.convert_ids_to_tokens(i)!r} ({i})" for i in ends]
        say(f"a response ends with {' or '.join(names)}")
    return ends


def rendered(tokenizer: PreTrainedTokenizerBase, *turns: tuple[str, str], **options) -> str:
    """Return what the chat template makes of (role, content) turns.

    The text is empty where there is no template, or where it refuses such turns.
    """
    chat = [{"role": role, "content": content} for role, content in turns]
    try:
        return tokenizer.apply_chat_template(chat, tokenize=False, **options)
    except (TemplateError, ValueError):  # ValueError: there is none
        return ""


def warn_of_rope(theta: float, own: PreTrainedConfig) -> None:
    """Warn where the knob `rope_theta` is below the base of the model's own config, and spoils it.

    theta: the knob's value, of which 0 leaves the model as it is.
    """
    base = (getattr(own, "rope_parameters", None) or {}).get("rope_theta", 0.0)
    if 0 < theta < base and ranks.rank() == 0:
        say(
            f"warning: rope_theta={theta:g} is below the {base:g} of the model, whose positions it"
            " garbles: set it to 0 for the model's own, or above it for a longer context"
        )
