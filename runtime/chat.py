"""Write prompts by a chat template, and look into a model's tokenizer for what would not work.

Where a function takes `config`, it reads the knobs `prompt_template` and `response_prefix` of it.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import date

import numpy as np
from jinja2 import TemplateError
from tokenizers import Tokenizer
from transformers import (
    AutoConfig,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.utils import cached_file

from runtime.faults import once

QUESTION = {"role": "user", "content": "1+1=?"}  # to try a template with
ANSWER = {"role": "assistant", "content": "ANSWER"}
PROBE = "Größe  of 1234.5 apples:\n\n\t$\\frac{1}{2}$, 二加三 = 5?\n"
CUT = 0.9  # share of a batch that is cut, from which on it is warned about
DAY = date(2024, 7, 26)  # what a chat template that writes the date gets, on any day and rank


# ---- prompts -------------------------------------------------------------------------------------


def prompt(turns: list[dict], config, tokenizer) -> str:
    """Return chat turns as the text of a prompt: template, generation prompt, `response_prefix`.

    Raises ValueError where there is no chat template, or where it refuses the turns.
    """
    if config.prompt_template == "chat":
        text = rendered(turns, tokenizer)
    else:
        text = config.prompt_template.replace("{question}", turns[-1]["content"])
    prefix = config.response_prefix
    if prefix.strip() and text.rstrip().endswith(prefix.strip()):  # the template ends so by itself
        return text
    return text + prefix


def opens_thought(turns: list[dict], config, tokenizer) -> bool:
    """Return whether a prompt begins the model's own turn with a `<think>` and leaves it open."""
    asked = prompt([*turns[:-1], QUESTION], config, tokenizer)
    _, _, begun = asked.rpartition(QUESTION["content"])
    return begun.rfind("<think>") > begun.rfind("</think>")


def rendered(turns: list[dict], tokenizer, ask: bool = True) -> str:
    """Return what the chat template makes of turns; `ask` adds the generation prompt."""
    if not tokenizer.chat_template:
        raise ValueError(
            "the tokenizer has no chat template; set prompt_template to a text with {question}"
        )
    try:
        return tokenizer.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=ask, strftime_now=DAY.strftime
        )
    except TemplateError as error:
        raise ValueError(f"the chat template refuses it: {error}") from None


def is_dated(tokenizer) -> bool:
    """Return whether the chat template writes the date into prompts."""
    return "strftime_now" in str(tokenizer.chat_template)


# ---- tokens --------------------------------------------------------------------------------------


def as_in_its_file(tokenizer, config, model: str) -> PreTrainedTokenizerBase:
    """Return the tokenizer of the model's tokenizer.json: the given one, if it gives the same ids.

    transformers builds some classes anew, by the name in tokenizer_config.json, with other rules.
    Raises ValueError where the file alone gives other ids, too.
    """
    try:
        file = cached_file(model, "tokenizer.json")
    except OSError:  # then nothing else says how the model's tokens are made
        return tokenizer
    if has_ids_of(file, tokenizer, config):
        return tokenizer
    name = type(tokenizer).__name__
    tokenizer = PreTrainedTokenizerFast.from_pretrained(model)
    if not has_ids_of(file, tokenizer, config):
        raise ValueError(
            f"{model}: tokenizer.json gives other token ids than the {name} that transformers makes"
            " of it by tokenizer_config.json: see which one the model was trained with"
        )
    once(f"note: {name} does not give the token ids of tokenizer.json, which is used as it is")
    return tokenizer


def has_ids_of(file: str, tokenizer, config) -> bool:
    """Return whether a tokenizer gives a prompt the ids of a tokenizer.json."""
    own = Tokenizer.from_file(file)
    own.add_tokens([*tokenizer.added_tokens_decoder.values()])  # some stand in the config alone
    text = PROBE
    with suppress(ValueError):  # no chat template, or one that refuses this turn
        text = prompt([{"role": "user", "content": PROBE}], config, tokenizer)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids == own.encode(text, add_special_tokens=False).ids


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
    eos = None
    with suppress(OSError):
        eos = GenerationConfig.from_pretrained(model).eos_token_id
    if eos is None:  # without such a file, or where it says nothing, they stand in config.json
        own = AutoConfig.from_pretrained(model, trust_remote_code=False)
        eos = GenerationConfig.from_model_config(own).eos_token_id
    ids = {tokenizer.eos_token_id}
    if eos is not None:  # one or several
        ids.update(np.atleast_1d(eos).tolist())
    with suppress(ValueError):  # no chat template, or one that refuses these turns
        _, _, behind = rendered([QUESTION, ANSWER], tokenizer, ask=False).rpartition("ANSWER")
        if found := special_tokens(tokenizer).match(behind.lstrip()):
            ids.add(tokenizer.convert_tokens_to_ids(found[0]))
    ends = sorted(ids)
    names = [f"{tokenizer.convert_ids_to_tokens(i)!r} ({i})" for i in ends]
    once(f"a response ends with {' or '.join(names)}")
    if is_dated(tokenizer):
        once(f"the chat template writes a date, which is always {DAY}")
    return ends


# ---- what would not work -------------------------------------------------------------------------


def problems(config, tokenizer: PreTrainedTokenizerBase, rows: int) -> Iterator[str]:
    """Yield a sentence for what would keep a prompt from being asked, a response from being graded.

    rows: of the model's embeddings.
    """
    last = max(tokenizer.get_vocab().values())
    if last >= rows:
        yield (
            f"its tokenizer has a token {last}, its embeddings have {rows} rows, from 0 on: give it"
            " the tokenizer that belongs to it, or resize its embeddings"
        )
    if tokenizer.eos_token_id is None:
        yield "the tokenizer has no eos_token, so responses could not end; set one"
    with suppress(ValueError):  # where rows are refused, too, that is said with the row
        asked = prompt([QUESTION], config, tokenizer)
        chat = config.prompt_template == "chat"
        if chat and asked == rendered([QUESTION], tokenizer, ask=False):
            yield (  # the model would go on with the question
                "the chat template adds no generation prompt; give its text as response_prefix, or"
                " set prompt_template to a text with {question}"
            )


def warn_of_rope(theta: float, own: PreTrainedConfig) -> None:
    """Warn where the knob `rope_theta` is below the base of the model's own config, and spoils it.

    theta: the knob's value, of which 0 leaves the model as it is.
    """
    base = (getattr(own, "rope_parameters", None) or {}).get("rope_theta", 0.0)
    if 0 < theta < base:
        once(
            f"warning: rope_theta={theta:g} is below the {base:g} of the model, whose positions it"
            " garbles: set it to 0 for the model's own, or above it for a longer context"
        )


def complaint(config, graded: list, text: Callable, thinking: bool) -> str | None:
    """Return a warning where nearly all responses of a batch have the same fault; else None.

    graded: all trajectories. text: from token ids to text. thinking: whether all prompts have
    opened a `<think>`.
    """
    if not graded:
        return None
    if sum(not t.finished for t in graded) >= CUT * len(graded):
        return (
            "warning: nearly all responses are cut: raise max_response_length, or see which token"
            " should end them beside those named at the start"
        )
    best = max(t.reward for t in graded)
    by_spread = config.difficulty == "spread" and config.start_threshold < 0
    if best > 1 and not by_spread:
        return (
            "warning: a reward is above 1, and all above 0.5 are successes: a scale of 0 to 100"
            " would make nearly every response one; divide the rewards"
        )
    if best > 0 and not any(t.is_success for t in graded) and not by_spread:
        return (
            "warning: no reward is above 0.5, and only such a response is a success:"
            " docs/own-task.md says what partial credit needs"
        )
    if config.reward != "math" or best > 0:
        return None
    texts = [text(t.token_ids) for t in graded]
    if thinking and not any("</think>" in said for said in texts):
        return (
            "warning: no response has a </think>, so that none has an answer: the model needs a"
            " longer max_response_length, or does not think, and response_prefix is to be empty"
        )
    strict = config.require_box and config.grader == "strict"
    if strict and not any("\\boxed" in said for said in texts):
        return (
            "warning: no response has a box: ask for \\boxed{} in the question (tools.convert"
            " --system), set require_box false, or raise max_response_length if they are cut"
        )
    return None
