"""Write prompts by a chat template, and find the tokens that end a response.

Where a function takes `config`, it reads the knobs `prompt_template` and `response_prefix` of it.
"""

import re
from datetime import date

import numpy as np
from transformers import AutoConfig, GenerationConfig

DAY = date(2024, 7, 26)  # the date for every chat template, on any day and rank


def prompt_text(turns: list[dict], config, tokenizer) -> tuple[str, str]:
    """Return chat turns as the text of a prompt, and that part of it which begins the response.

    It is the chat template's, with its generation prompt, or that of another `prompt_template` with
    the last turn in it; then comes `response_prefix`.
    """
    if config.prompt_template == "chat":
        text = rendered(turns, tokenizer)
        opening = text.removeprefix(rendered(turns, tokenizer, ask=False))
    else:
        before, _, opening = config.prompt_template.partition("{question}")
        text = before + turns[-1]["content"] + opening
    prefix = config.response_prefix
    if prefix.strip() and text.rstrip().endswith(prefix.strip()):  # the template ends so by itself
        prefix = ""
    return text + prefix, opening + prefix


def rendered(turns: list[dict], tokenizer, ask: bool = True) -> str:
    """Return what the chat template makes of turns; `ask` adds the generation prompt."""
    return tokenizer.apply_chat_template(
        turns, tokenize=False, add_generation_prompt=ask, strftime_now=DAY.strftime
    )


def special_tokens(tokenizer) -> re.Pattern:
    """Find the tokenizer's special tokens in a text, the reserved ones too, which have no role."""
    added = tokenizer.added_tokens_decoder.values()
    special = [re.escape(token.content) for token in added if token.special]
    return re.compile("|".join(special) or "(?!)")  # (?!) is found nowhere


def stop_ids_of(model: str, tokenizer) -> list[int]:
    """Return the ids of all tokens that end a response, in order.

    They are the tokenizer's eos_token, the special token that its chat template puts behind the
    assistant's turn, and those of the model's generation settings, or of its config.json where it
    has no file of these. Base models and chat models differ in them, and engines know only some.
    """
    try:
        settings = GenerationConfig.from_pretrained(model)
    except OSError:  # there need not be such a file
        settings = AutoConfig.from_pretrained(model, trust_remote_code=False)
    ids = {tokenizer.eos_token_id}
    ids.update(np.atleast_1d(settings.eos_token_id).tolist())  # none, one or several
    if tokenizer.chat_template:
        turns = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "ANSWER"}]
        _, _, behind = rendered(turns, tokenizer, ask=False).rpartition("ANSWER")
        found = special_tokens(tokenizer).match(behind.lstrip())
        if found:
            ids.add(tokenizer.convert_tokens_to_ids(found[0]))
    return sorted(ids - {None})
