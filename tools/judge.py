r"""Let a chat model judge the reasoning in responses, as the paper does (Sec. 3.2, App. F).

    python -m tools.judge --model JUDGE_DIR --responses responses.jsonl --out judged.jsonl

This is for models and questions that are not built in; the built-in world has a judge of its own. A
line of the input is `{"question": ..., "answer": ..., "response": ...}`, or one that eval.py wrote.
The output adds `valid` (true, false, or null where the judge gave no verdict) and `code` (whether
the shortcut detector of App. F.4 found code). The judge runs on the engine that training uses. It
is asked about the reasoning only, whatever the final answer, and must end with \boxed{yes} or
\boxed{no}.
"""

import argparse
import json
import os
import re

from config import Config
from runtime.faults import loading, or_refuse
from runtime.tables import read_jsonl


def read_items(file: str) -> list[dict]:
    """The items of a JSONL file, each with a question, an answer and a response.

    The file may be eval.py's responses.jsonl. ValueError names an item that lacks something.
    """
    items = []
    for number, row in enumerate(read_jsonl(file)):
        names = {"question", "answer", "response"}
        if "gold" in row:  # a line of eval.py, whose `question` is a hash
            names = {"text", "gold", "response"}
        if missing := [name for name in sorted(names) if row.get(name) is None]:
            raise ValueError(f"{file}, item {number + 1} lacks {', '.join(missing)}")
        if not isinstance(row["response"], str):
            raise ValueError(f"{file}, item {number + 1}: the response is no text")
        items.append(
            row | {"question": row["text"], "answer": row["gold"]} if "gold" in row else row
        )
    return items


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The flags, with the items read; ValueError if one lacks something or --out exists."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--model", required=True, help="The directory of a chat model.")
    parser.add_argument(
        "--responses", required=True, help="A JSONL file of question, answer, response."
    )
    parser.add_argument(
        "--out", required=True, help="The JSONL file to write, with valid and code added."
    )
    parser.add_argument(
        "--dtype",
        default="float32",
        choices=("float32", "bfloat16"),
        help="What the judge computes in.",
    )
    parser.add_argument(
        "--rollout_memory", type=float, default=0.8, help="vLLM's share of GPU memory."
    )
    parser.add_argument(
        "--rollout_tp", type=int, default=1, help="The GPUs that share a judge: all of torchrun's."
    )
    args = parser.parse_args(argv)
    args.items = read_items(args.responses)
    if os.path.exists(args.out):
        raise ValueError(f"{args.out} exists: choose another --out")
    loading()
    return args


# What can be refused is refused before the imports that take seconds.
ARGS = or_refuse(parse) if __name__ == "__main__" else None

import numpy as np
from tqdm import tqdm

from data import load_tokenizer, render
from reward import last_box
from rollout import make_engine
from runtime import ranks
from runtime.chat import agreed_day, special_tokens, turn_ends
from sampler import sample_seed

PROMPT = """\
Below are a problem, its correct final answer, and a student's solution. Decide whether the student's \
reasoning is sound. The final answer may be right by luck, so do not go by it: read the solution step by step.

Reasoning is sound if every step follows from the problem or from earlier steps, no step contains an error \
that is left standing, and nothing that the answer depends on is merely asserted. Well-known facts and \
theorems may be used without proof. A slip that the student notices and repairs does not count against it, \
nor does a clumsy style.

### Problem
{question}

### Correct final answer
{answer}

### Student's solution
{response}

### Your task
Name the first step that is wrong or unsupported, if there is one. Then end with your verdict on a line of \
its own: \\boxed{{yes}} if the reasoning is sound, \\boxed{{no}} if it is not."""

LONGEST_PROMPT = 9216  # tokens of a prompt that is judged
LONGEST_VERDICT = 8192  # tokens that the judge may write
BLOCK = 512  # responses judged between two writes
VERDICTS = {"yes": True, "no": False}
FENCE = re.compile(r"^[ \t]*(```|~~~)", re.MULTILINE)
CODE_LINE = re.compile(
    r"^[ \t]*(def \w+\(.*\).*:|class \w+.*:|import \w[\w., ]*|from \w[\w.]* import .+"
    r"|for \w+ in .+:|while .+:|print\(.*\))[ \t]*$",
    re.MULTILINE,
)


def parse_verdict(text: str) -> bool | None:
    r"""The verdict in the last \boxed{}: True for yes, False for no, None for another or no box."""
    box = last_box(text)
    words = re.sub(r"\\(text|mathrm|textbf)\s*", "", box or "").strip("{} .\n").lower()
    return VERDICTS.get(words)


def has_code(response: str) -> bool:
    """Whether a solution in words resorts to code (App. F.4).

    Code is a fenced block, or two or more lines of Python.
    """
    return bool(FENCE.search(response)) or len(CODE_LINE.findall(response)) >= 2


def judge(
    engine, tokenizer, items: list[dict], config: Config, day: str | None = None
) -> list[bool | None]:
    """The verdict on every item, a dict with `question`, `answer` and `response`.

    It is None where the judge wrote none, or was cut off, as it may have quoted both boxes before.
    It is None, too, for an item whose prompt has more than `max_prompt_length` tokens, or that has
    a special token as text, which could end its turn and write the judge's.
    """
    verdicts: list[bool | None] = [None] * len(items)
    asked = []
    prompts = []
    special = special_tokens(tokenizer)
    for i, item in enumerate(items):
        text = PROMPT.format_map(item)
        if special.search(text):
            continue
        prompt = render([{"role": "user", "content": text}], config, tokenizer, day)
        if len(prompt) <= config.max_prompt_length:
            asked.append(i)
            prompts.append(prompt)
    seeds = [sample_seed("judge", i) for i in asked]
    for i, reply in zip(asked, engine.generate(prompts, seeds, 0.0, config.max_response_length)):
        if reply.finished:
            verdicts[i] = parse_verdict(tokenizer.decode(reply.token_ids, skip_special_tokens=True))
    return verdicts


def main(argv: list[str] | None = None) -> None:
    """Judge the responses in the file on the command line, and write them block by block."""
    args = ARGS or parse(argv)
    device = ranks.setup(hang_timeout=0)
    main_rank = ranks.rank() == 0
    if ranks.world_size() != args.rollout_tp:
        raise ValueError(
            f"{ranks.world_size()} ranks, but --rollout_tp {args.rollout_tp}: "
            "every rank has to be a part of the one judge"
        )
    config = Config(
        model=args.model,
        train_files=[],
        val_files=[],
        response_prefix="",
        rope_theta=0,  # the judge's own
        max_position_embeddings=0,
        max_prompt_length=LONGEST_PROMPT,
        max_response_length=LONGEST_VERDICT,
        dtype=args.dtype,
        rollout_memory=args.rollout_memory,
        rollout_tp=args.rollout_tp,
    )
    tokenizer = load_tokenizer(config, args.model)
    engine = make_engine(config, args.model, turn_ends(args.model, tokenizer), device)
    day = agreed_day(None, tokenizer)
    verdicts = []
    with open(args.out if main_rank else os.devnull, "w") as file:
        for start in tqdm(
            range(0, len(args.items), BLOCK), unit="block", disable=None if main_rank else True
        ):
            block = args.items[start : start + BLOCK]
            verdicts += judge(engine, tokenizer, block, config, day)
            for item, valid in zip(block, verdicts[start:]):
                file.write(
                    json.dumps({**item, "valid": valid, "code": has_code(item["response"])}) + "\n"
                )
            file.flush()
    known = [v for v in verdicts if v is not None]
    if main_rank:
        print(
            f"{len(args.items)} responses, {len(known)} judged, {np.mean(known or [0]):.3f} of these"
            " valid"
        )


if __name__ == "__main__":
    ranks.run(main)
