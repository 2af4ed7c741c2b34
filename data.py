"""Questions in, prompts out: files and prompt templates (Sec. 5.1, App. G).

Text becomes token ids here, once. Rows of files are read by runtime/tables.py.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

from config import Config
from runtime import ranks
from runtime.chat import as_in_its_file, problems, prompt, special_tokens, warn_of_rope
from runtime.console import printable
from runtime.faults import Failure, once
from runtime.tables import check_row, listed, read_rows


@dataclass(frozen=True)
class Question:
    """A question q with its verifiable answer."""

    id: int  # its number in the files; where answers cannot be read, some are left out
    text: str  # all turns that are asked
    prompt_ids: np.ndarray  # int32 (P,), with the generation prompt
    answer: str
    source: str  # data_source: what validation is reported by
    # data_source, extra_info and prompt as read, for a reward function that asks for them.
    row: dict | None = None


def fingerprint(questions: list[Question]) -> str:
    """A hash of the prompts, answers and rows, in order."""
    digest = hashlib.sha256()
    for q in questions:
        texts = json.dumps([q.answer, q.row], sort_keys=True)
        digest.update(b"%d " % len(q.prompt_ids) + q.prompt_ids.tobytes() + texts.encode() + b"\0")
    return digest.hexdigest()


# ---- what a run trains and validates on ----------------------------------------------------------


def read_questions(
    config: Config, tokenizer, check_golds: Callable, tell: Callable
) -> tuple[list[Question], list[Question], dict]:
    """Training and validation questions, ids from 0 each, whose answers can be read.

    A collective. Tells what was read and left out. Beside them what a resumed run must share:
    hashes of what was read and of what was kept.
    """
    sets_read = []
    sets_kept = []
    for files in (config.train_files, config.val_files):
        questions, counts = load_questions(files, config, tokenizer)
        kept, of_answers = readable(questions, check_golds)
        counts |= {what: n for what, n in of_answers.items() if n}
        tell(f"{', '.join(files) or 'no val_files'}: {len(kept)} questions {counts or ''}")
        sets_read.append(questions)
        sets_kept.append(kept)
    train_set, tests = sets_kept
    both = {q.prompt_ids.tobytes() for q in train_set} & {q.prompt_ids.tobytes() for q in tests}
    if both:
        tell(f"note: {len(both)} validation questions are training questions, too")
    origins = {
        "questions": fingerprint(sets_read[0]),
        "validation": fingerprint(sets_read[1]),
        "readable": fingerprint(train_set + tests),
    }
    return train_set, first_of_each_source(tests, config.eval_questions), origins


def first_of_each_source(questions: list[Question], n: int) -> list[Question]:
    """The first n questions of each data_source, source by source; all, as they are, for n = 0."""
    if not n:
        return questions
    first = []
    for source in sorted({q.source for q in questions}):
        first += [q for q in questions if q.source == source][:n]
    return first


def readable(questions: list[Question], check_golds: Callable) -> tuple[list[Question], dict]:
    """The questions whose answers the verifier can read, and counts (a collective).

    Where that runs out of time the question is kept: a busy machine drops no other questions than
    an idle one. ValueError where none can be read.
    """
    answers = [q.answer for q in questions]
    checks = ranks.map_shares(
        [1] * len(answers), lambda share: check_golds([answers[i] for i in share])
    )
    kept = []
    as_text = 0
    for question, check in zip(questions, checks):
        if check["score"] or check.get("timeouts"):
            kept.append(question)
            as_text += bool(check.get("as_text"))
    if questions and not kept:
        raise ValueError(
            f"the verifier can read none of the answers, {answers[0]!r:.80} for example; "
            "tools.convert --extract takes them out of solutions, a --reward of your own "
            "reads what it likes"
        )
    unreadable = len(questions) - len(kept)
    return kept, {"answers unreadable": unreadable, "answers compared as text": as_text}


# ---- files ---------------------------------------------------------------------------------------


def load_questions(files: list[str], config: Config, tokenizer) -> tuple[list[Question], dict]:
    """All questions of `files`, ids from 0 in file order, and counts of what was read and dropped.

    Dropped with a count are prompts over `max_prompt_length` tokens, rows with a special token as
    text, which the tokenizer would take for its own (`<|im_end|>` ends the user's turn), and
    repeated rows; with a reward of the user's own a row with other extra_info is none. Under a
    `prompt_template` other than "chat" all turns but the last are left out, and counted. ValueError
    names file, row and column for missing columns, empty files, rows of the wrong form, several
    values for an answer, and a question of one data_source with two answers; Failure for a row that
    the template refuses.
    """
    questions = []
    seen = {}  # (data_source, prompt, perhaps extra_info) -> where it stands, and its answer
    counts = Counter()
    special = special_tokens(tokenizer)
    for file in files:
        bar = tqdm(read_rows(file), file, delay=2, mininterval=1, disable=ranks.rank() > 0)
        for row_number, row in enumerate(bar):
            where = f"{file}, row {row_number}"
            turns, answer, given = check_row(row, where)
            values = listed(answer) if config.reward == "math" else [answer]
            if len(values) != 1:
                raise ValueError(
                    f"{where}, column reward_model: ground_truth {answer!r:.200} is a list of "
                    f"{len(values)} values; make one answer of it, such as 2, 3"
                )
            answer = values[0]
            counts["read"] += 1
            if any(special.search(turn["role"] + turn["content"]) for turn in turns):
                counts["special tokens"] += 1
                continue
            try:
                ids = render(turns, config, tokenizer)
            except ValueError as error:
                raise Failure(f"{where}, column prompt: {error}") from None
            if not len(ids):
                raise ValueError(f"{where}, column prompt: comes to no token at all")
            if len(ids) > config.max_prompt_length:
                counts["prompts too long"] += 1
                continue
            key = row["data_source"], ids.tobytes()
            if config.reward != "math":  # it may grade by extra_info
                key += (json.dumps(given["extra_info"], sort_keys=True),)
            again = key in seen
            first_where, first_answer = seen.setdefault(key, (where, answer))
            if first_answer != answer:
                raise ValueError(
                    f"{where}, column reward_model: ground_truth {answer!r}, but the same "
                    f"question has {first_answer!r} in {first_where}; remove one, or let "
                    "tools.convert leave out all such questions"
                )
            if again:  # for Avg@k, say
                counts["repeated"] += 1
                continue
            if config.prompt_template != "chat" and len(turns) > 1:
                counts["turns left out"] += len(turns) - 1
                turns = turns[-1:]
            questions.append(
                Question(
                    id=len(questions),
                    text="\n\n".join(turn["content"] for turn in turns),
                    prompt_ids=ids,
                    answer=answer,
                    source=row["data_source"],
                    row=given,
                )
            )
    if files and not questions:
        raise ValueError(
            f"{', '.join(files)}: no question is left ({dict(counts)}); is max_prompt_length="
            f"{config.max_prompt_length} too small? Do prompts bring a chat template's tokens?"
        )
    return questions, dict(counts)


# ---- prompts -------------------------------------------------------------------------------------


def load_tokenizer(config: Config, model: str) -> PreTrainedTokenizerBase:
    """The model's tokenizer; says so where the Hugging Face hub is asked for it.

    ValueError where there is no such directory, or the tokenizer cannot serve.
    """
    if not Path(model).is_dir():
        if Path(model).is_absolute() or model.count("/") > 1:
            raise ValueError(f"model {model}: there is no such directory")
        once(printable(f"{model} is not a local directory: asking the Hugging Face hub for it"))
    tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    tokenizer = as_in_its_file(tokenizer, config, model)
    own = AutoConfig.from_pretrained(model, trust_remote_code=False)
    for problem in problems(config, tokenizer, own.get_text_config().vocab_size):
        raise ValueError(f"{model}: {problem}")
    warn_of_rope(config.rope_theta, own)
    return tokenizer


def render(turns: list[dict], config: Config, tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    """Prompt token ids int32 (P,): template, generation prompt and `response_prefix`.

    A chat template writes its own special tokens. Before another text stands what the tokenizer
    puts there, unless the text has it, and behind it nothing. ValueError where the chat template
    refuses the turns.
    """
    text = prompt(turns, config, tokenizer)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if ids and config.prompt_template != "chat":
        whole = tokenizer(text)["input_ids"]
        ids = whole[: whole.index(ids[0])] + ids  # BOS, where one is added
    return np.array(ids, dtype=np.int32)
