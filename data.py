"""Questions in, prompts out: files and prompt templates (Sec. 5.1, App. G).

Text becomes token ids here, once. Rows of files are read by runtime/tables.py.
"""

import hashlib
import json
import unicodedata
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from huggingface_hub import auth_check, try_to_load_from_cache
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from config import Config
from runtime import ranks
from runtime.chat import prompt_text, special_tokens, stop_ids_of
from runtime.tables import check_row, read_rows


@dataclass(frozen=True)
class Question:
    """A question q with its verifiable answer."""

    id: int  # its number among the questions of a run; -1 until `read_questions` gives it one
    text: str  # all turns that are asked
    prompt_ids: np.ndarray  # int32 (P,), with the generation prompt
    thinks: bool  # whether the prompt ends in a `<think>` that is open
    answer: str
    source: str  # data_source: what validation is reported by
    row: dict  # data_source, extra_info and prompt as read, for a reward function that asks for it


def load_tokenizer(config: Config) -> tuple[PreTrainedTokenizerBase, list[int]]:
    """The model's tokenizer, and the ids of all tokens that end a response.

    Refusal within seconds where the model is no directory and the hub does not give it.
    """
    try:
        if not Path(config.model).is_dir() and not try_to_load_from_cache(
            config.model, "config.json"
        ):
            auth_check(config.model)  # transformers would try again for half a minute
        tokenizer = AutoTokenizer.from_pretrained(config.model, trust_remote_code=False)
        stop_ids = stop_ids_of(config.model, tokenizer)
    except Exception as error:  # no network, no such model, or a directory that is none
        raise ranks.Refusal(
            f"--model {config.model} is no model that can be read, such as RUN/model: {error}"
        ) from error
    # tokenizer.json may have been saved with padding or truncation switched on.
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.backend_tokenizer.no_truncation()
    return tokenizer, stop_ids


def read_questions(
    files: list[str], config: Config, tokenizer, grader
) -> tuple[list[Question], dict]:
    """The questions of `files` that can be asked and graded, and counts of all rows (a collective).

    Refusal for a malformed row, which it names, and where nothing is left.
    """
    questions = []
    counts = Counter()
    seen = set()
    special = special_tokens(tokenizer)
    for file in files:
        for number, row in enumerate(read_rows(file)):
            question = to_question(row, f"{file}, row {number}", config, tokenizer)
            # Copies of a question often differ in an index inside `row`. So the row is no part of
            # the key, unless the reward is a user's own, which may read it.
            graded_by = question.row if config.reward != "math" else {}
            key = question.source, fingerprint([replace(question, row=graded_by)])
            if special.search(question.text):
                # The tokenizer would take it for its own: `<|im_end|>` ends the user's turn.
                counts["special token in the text"] += 1
            elif len(question.prompt_ids) > config.max_prompt_length:
                counts["prompt too long"] += 1
            elif key in seen:
                counts["repeated"] += 1
            else:
                questions.append(question)
            seen.add(key)
    for question in questions[:1]:
        check_round_trip(question.text, tokenizer, config.model)
    answers = [q.answer for q in questions]
    readable = ranks.map_shares(
        [1] * len(answers), lambda share: grader.check_golds([answers[i] for i in share])
    )
    kept = []
    for question, is_readable in zip(questions, readable):
        if is_readable:
            kept.append(replace(question, id=len(kept)))
    counts["answer unreadable"] = len(questions) - len(kept)
    counts["kept"] = len(kept)
    if files and not kept:
        raise ranks.Refusal(f"{', '.join(files)}: no question is left: {dict(counts)}")
    return kept, dict(counts)


def to_question(row: dict, where: str, config: Config, tokenizer) -> Question:
    """A row as a question: the one way from text to token ids.

    A chat template writes its own special tokens. The text of any other template gets the
    tokenizer's BOS in front, unless it begins with it, and no EOS. Refusal names the row.
    """
    try:
        turns, answer, given = check_row(row)
        text, opening = prompt_text(turns, config, tokenizer)  # opening: what begins the response
    except Exception as error:  # the template's own, too
        raise ranks.Refusal(f"{where}: {error!r}; runtime/tables.py names the columns") from error
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if config.prompt_template != "chat":
        turns = turns[-1:]
        whole = tokenizer(text)["input_ids"]
        ids = whole[: whole.index(ids[0])] + ids  # its BOS, not its EOS
    return Question(
        id=-1,
        text="\n\n".join(turn["content"] for turn in turns),
        prompt_ids=np.array(ids, dtype=np.int32),
        thinks=opening.rfind("<think>") > opening.rfind("</think>"),
        answer=answer,
        source=str(given["data_source"]),
        row=given,
    )


def check_round_trip(text: str, tokenizer, model: str) -> None:
    """Refusal where the tokenizer loses characters of a question.

    transformers builds some classes anew, with rules that are not those of tokenizer.json, and
    then spaces vanish.
    """
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    back = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    if unicodedata.normalize("NFC", text).split() != back.split():
        raise ranks.Refusal(
            f"the tokenizer of {model} loses characters: of {text[:60]!r} it makes {back[:60]!r};"
            " does its tokenizer_class belong to its tokenizer.json?"
        )


def first_of_each_source(questions: list[Question], n: int) -> list[Question]:
    """The first n questions of each data_source; all for n = 0."""
    counts = Counter()
    first = []
    for q in questions:
        counts[q.source] += 1
        if n == 0 or counts[q.source] <= n:
            first.append(q)
    return first


def fingerprint(questions: list[Question]) -> str:
    """A hash of prompts, answers and rows, in order: a resumed run must have the same."""
    digest = hashlib.sha256()
    for q in questions:
        about = json.dumps([q.prompt_ids.tolist(), q.answer, q.row], sort_keys=True)
        digest.update(about.encode())
    return digest.hexdigest()
