"""Questions in, prompts out: files in the verl-LUFFY column layout, prompt templates, the fresh stream (Sec. 5.1, App. G).

A file (parquet or JSONL) has the columns `prompt` (a list of chat turns), `reward_model` (with the right answer
as `ground_truth`) and `data_source`; other columns are ignored. Text becomes token ids here, once.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from config import Config
from runtime import ranks

COLUMNS = ("prompt", "reward_model", "data_source")


@dataclass(frozen=True)
class Question:
    """A question q with its verifiable answer."""

    id: int  # its row among the questions loaded together
    text: str  # the last user turn
    prompt_ids: np.ndarray  # int32 (P,), with the generation prompt
    answer: str
    source: str  # data_source: what validation is reported by


def load_tokenizer(config: Config, model: str) -> PreTrainedTokenizerBase:
    """The model's tokenizer; ValueError where it has no end-of-sequence token, its template never hands the turn over, or
    its directory wants code of its own run without `trust_remote_code`. Says so where the hub is asked for the model.
    """
    if not Path(model).is_dir() and ranks.rank() == 0:
        print(f"{model} is not a local directory: asking the Hugging Face hub for it")
    tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=config.trust_remote_code)
    if tokenizer.eos_token_id is None:
        raise ValueError(f"{model}: the tokenizer has no eos_token, so responses could not end; set one in its files")
    if config.prompt_template == "chat" and tokenizer.chat_template and not config.response_prefix:
        question = [{"role": "user", "content": "1+1=?"}]
        plain, ready = (tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=p) for p in (False, True))
        if plain == ready:  # the model would go on with the question
            raise ValueError(f"{model}: the chat template adds no generation prompt; give its text as response_prefix, or set "
                             "prompt_template to a text with {question}")
    return tokenizer


def load_questions(files: list[str], config: Config, tokenizer: PreTrainedTokenizerBase) -> tuple[list[Question], dict]:
    """All questions of `files`, ids from 0 in file order, and counts of what was read and dropped.

    Prompts over `max_prompt_length` tokens and repeated rows are dropped with a count. Raises ValueError naming
    file, row and column for missing columns, empty files, rows of the wrong form, and a question with two answers.
    """
    questions, seen, counts = [], {}, Counter()
    for file in files:
        for row_number, row in enumerate(read_rows(file)):
            where = f"{file}, row {row_number}"
            turns, answer = _check_row(row, where)
            ids = render(turns, config, tokenizer)
            if not len(ids):
                raise ValueError(f"{where}, column prompt: comes to no token at all")
            counts["read"] += 1
            if len(ids) > config.max_prompt_length:
                counts["prompts too long"] += 1
                continue
            key = (row["data_source"], ids.tobytes())
            first_where, first_answer = seen.setdefault(key, (where, answer))
            if first_answer != answer:
                raise ValueError(f"{where}, column reward_model: ground_truth {answer!r}, but the same question has "
                                 f"{first_answer!r} in {first_where}; remove one")
            if first_where != where:  # benchmark files repeat questions for Avg@k; eval.py --samples does that here
                counts["repeated"] += 1
                continue
            questions.append(Question(len(questions), turns[-1]["content"], ids, answer, row["data_source"]))
    if files and not questions:
        raise ValueError(f"{', '.join(files)}: no question is left ({dict(counts)}); is max_prompt_length="
                         f"{config.max_prompt_length} too small?")
    return questions, dict(counts)


def fingerprint(questions: list[Question]) -> str:
    """A hash of the prompts and answers, in order."""
    digest = hashlib.sha256()
    for q in questions:
        digest.update(b"%d " % len(q.prompt_ids) + q.prompt_ids.tobytes() + q.answer.encode() + b"\0")
    return digest.hexdigest()


def read_rows(file: str) -> Iterable[dict]:
    """Rows of a parquet or JSONL file; ValueError where it is empty, of another kind, or lacks a column."""
    if Path(file).suffix == ".parquet":
        import pyarrow.parquet

        try:
            table = pyarrow.parquet.ParquetFile(file)
            names = [name for name in COLUMNS if name in table.schema_arrow.names]  # the others may be long: solutions, say
            rows = table.read(names).to_pylist() if names else [{}] * table.metadata.num_rows
        except (pyarrow.ArrowException, OSError) as error:
            raise ValueError(f"{file}: not a readable parquet file: {error}") from error
    elif Path(file).suffix in (".jsonl", ".json"):
        rows = read_jsonl(file)
    else:
        raise ValueError(f"{file}: must end in .parquet or .jsonl")
    if not rows:
        raise ValueError(f"{file}: holds no rows")
    for number, row in enumerate(rows):
        missing = [c for c in COLUMNS if c not in row] if isinstance(row, dict) else COLUMNS
        if missing:
            raise ValueError(f"{file}, row {number}: column(s) {', '.join(missing)} missing; needed are {', '.join(COLUMNS)}")
    return rows


def read_jsonl(file: str | Path) -> list:
    """What the lines of a JSONL file hold; ValueError names file and line where one is not JSON."""
    rows, lines = [], Path(file).read_text(encoding="utf-8-sig").split("\n")  # not splitlines: a string may hold U+2028
    for number, line in enumerate(lines):
        try:
            rows += [json.loads(line)] if line.strip() else []
        except json.JSONDecodeError as error:
            raise ValueError(f"{file}, line {number + 1}: not JSON: {error}") from error
    return rows


def _check_row(row: dict, where: str) -> tuple[list[dict], str]:
    """The chat turns and the answer of a row, or ValueError naming row and column."""
    turns = row["prompt"]
    if not isinstance(turns, list) or not turns or not all(
            isinstance(t, dict) and isinstance(t.get("role"), str) and isinstance(t.get("content"), str) for t in turns):
        raise ValueError(f"{where}, column prompt: must be a list of turns {{'role': text, 'content': text}}, got {turns!r:.200}")
    if turns[-1]["role"] == "assistant":
        raise ValueError(f"{where}, column prompt: ends with the assistant's turn; convert.py removes it")
    if not isinstance(row["reward_model"], dict) or row["reward_model"].get("ground_truth") in (None, ""):
        raise ValueError(f"{where}, column reward_model: must hold a non-empty ground_truth, got {row['reward_model']!r:.200}")
    truth = row["reward_model"]["ground_truth"]
    if not isinstance(truth, str | int | float) or truth != truth:
        raise ValueError(f"{where}, column reward_model: ground_truth must be text or a number, got {row['reward_model']!r:.200}")
    if not isinstance(row["data_source"], str):
        raise ValueError(f"{where}, column data_source: must be text, got {row['data_source']!r:.200}")
    return turns, str(truth)


def render(turns: list[dict], config: Config, tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    """Prompt token ids int32 (P,): the template, its generation prompt, and `response_prefix` unless it ends so already."""
    if config.prompt_template == "chat":
        if not tokenizer.chat_template:
            raise ValueError("the tokenizer has no chat template; set prompt_template to a text with {question}")
        text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        special = False  # the template writes its own special tokens
    else:
        text = config.prompt_template.replace("{question}", turns[-1]["content"])
        special = True
    prefix = config.response_prefix
    if prefix.strip() and text.rstrip().endswith(prefix.strip()):  # the template ends so by itself
        prefix = ""
    return np.array(tokenizer(text + prefix, add_special_tokens=special)["input_ids"], dtype=np.int32)


def sample_seed(*key) -> int:
    """A 63-bit seed from (run seed, step, question id, index in the group), or any other key of plain values."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@dataclass(frozen=True)
class Request:
    """One response to generate."""

    prompt_ids: np.ndarray  # int32 (P,)
    seed: int


@dataclass
class Response:
    """One generated response o."""

    token_ids: np.ndarray  # int32 (T,), EOS included where there is one
    logprobs: np.ndarray  # float32 (T,), of these tokens under the sampling distribution
    finished: bool  # ended by EOS, not by the length limit


@dataclass
class Sample:
    """One response of the batch B, as the objective sees it."""

    prompt_ids: np.ndarray  # int32 (P,)
    token_ids: np.ndarray  # int32 (T,), the response with its EOS
    old_logprobs: np.ndarray  # float32 (T,), π_old for fresh tokens, π_past for replayed ones
    advantage: float
    replayed: bool  # is it o*

    @property
    def length(self) -> int:
        return len(self.prompt_ids) + len(self.token_ids)


class FreshStream:
    """The fresh questions B_on: a seeded permutation per epoch, without retired questions (Alg. 1, lines 16 and 18)."""

    def __init__(self, num_questions: int, seed: int):
        self.num_questions, self.seed = num_questions, seed
        self.epoch = -1
        self.queue: list[int] = []  # what is left of the epoch, next question last

    def draw(self, n: int, retired: Collection[int], skip: Collection[int] = ()) -> list[int]:
        """The next n distinct questions that are neither retired nor in `skip`.

        Questions passed over because of `skip` go back to the front. Where fewer than n are left in all, the
        draw is shorter.
        """
        skip, taken, passed = set(skip), {}, []  # taken: in order
        n = min(n, self.num_questions - len(retired) - sum(q not in retired for q in skip))
        while len(taken) < n:
            if not self.queue:
                self.epoch += 1
                order = np.random.default_rng([self.seed, self.epoch]).permutation(self.num_questions)
                self.queue = order[::-1].tolist()
            question = self.queue.pop()
            if question in retired:
                continue
            if question in skip or question in taken:
                passed.append(question)
            else:
                taken[question] = True
        self.queue += passed[::-1]
        return list(taken)

    def insert(self, questions: Collection[int], rng: np.random.Generator) -> None:
        """Mix questions (retired ones put back, Table 7) into what is left of the epoch."""
        waiting = set(self.queue)  # a question that retired when it was replayed may not have had its fresh turn
        for question in questions:
            if question not in waiting:
                self.queue.insert(int(rng.integers(len(self.queue) + 1)), question)

    def state_dict(self) -> dict:
        """The position in the stream, as plain JSON values."""
        return {"epoch": self.epoch, "queue": list(self.queue)}

    def load_state_dict(self, state: dict) -> None:
        self.epoch, self.queue = state["epoch"], list(state["queue"])
