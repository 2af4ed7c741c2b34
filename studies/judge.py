r"""A chat model as judge of reasoning, for models and questions that are not the built-in ones (Sec. 3.2, App. F).

    python -m studies.judge --model JUDGE_DIR --responses responses.jsonl --out judged.jsonl

A line of the input is `{"question": ..., "answer": ..., "response": ...}`; the output adds `valid` (true, false, or null where
the judge gave no verdict) and `code` (the shortcut detector of App. F.4). The judge runs on the engine that training
uses. It is asked about the reasoning only, whatever the final answer, and must end with \boxed{yes} or \boxed{no}.
"""

import argparse
import json
import re
from pathlib import Path

import numpy as np

from config import Config
from data import Request, render, sample_seed
from reward import last_box

PROMPT = """\
Below are a problem, its correct final answer, and a student's solution. Decide whether the student's reasoning is sound. \
The final answer may be right by luck, so do not go by it: read the solution step by step.

Reasoning is sound if every step follows from the problem or from earlier steps, no step contains an error that is left \
standing, and nothing that the answer depends on is merely asserted. Well-known facts and theorems may be used without proof. \
A slip that the student notices and repairs does not count against it, nor does a clumsy style.

### Problem
{question}

### Correct final answer
{answer}

### Student's solution
{response}

### Your task
Name the first step that is wrong or unsupported, if there is one. Then end with your verdict on a line of its own: \
\\boxed{{yes}} if the reasoning is sound, \\boxed{{no}} if it is not."""

VERDICTS = {"yes": True, "no": False}
FENCE = re.compile(r"^[ \t]*(```|~~~)", re.MULTILINE)
CODE_LINE = re.compile(
    r"^[ \t]*(def \w+\(.*\).*:|class \w+.*:|import \w[\w., ]*|from \w[\w.]* import .+|for \w+ in .+:|while .+:|print\(.*\))"
    r"[ \t]*$", re.MULTILINE)


def parse_verdict(text: str) -> bool | None:
    r"""What the last \boxed{} says: True for yes, False for no, None for anything else or no box."""
    box = last_box(text)
    words = re.sub(r"\\(text|mathrm|textbf)\s*", "", box or "").strip("{} .\n").lower()
    return VERDICTS.get(words)


def has_code(response: str) -> bool:
    """App. F.4: whether a solution in words resorts to code: a fenced block, or two lines or more of Python."""
    return bool(FENCE.search(response)) or len(CODE_LINE.findall(response)) >= 2


def judge(engine, tokenizer, items: list[dict], max_prompt: int = 9216, max_tokens: int = 8192, temperature: float = 0.0,
          seed: int = 0) -> list[bool | None]:
    """The verdict on every item, a dict with `question`, `answer` and `response`; `engine` is one of rollout.py.

    None where there is no verdict: none was written, the judge was cut off at `max_tokens` (it may have quoted the two
    boxes before), or the item makes a prompt of more than `max_prompt` tokens.
    """
    config = Config(prompt_template="chat")
    texts = [PROMPT.format(**{name: item[name] for name in ("question", "answer", "response")}) for item in items]
    prompts = [render([{"role": "user", "content": text}], config, tokenizer) for text in texts]
    short = [i for i, prompt in enumerate(prompts) if len(prompt) <= max_prompt]
    requests = [Request(prompts[i], sample_seed("judge", seed, i)) for i in short]
    verdicts: list[bool | None] = [None] * len(items)
    for i, response in zip(short, engine.generate(requests, temperature, max_tokens)):
        if response.finished:
            verdicts[i] = parse_verdict(tokenizer.decode(response.token_ids, skip_special_tokens=True))
    return verdicts


def main(argv: list[str] | None = None) -> None:
    """Judge the responses of a file from the command line."""
    import parallel
    from data import load_tokenizer
    from rollout import make_engine

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="directory of a chat model")
    parser.add_argument("--responses", required=True, help="JSONL of question, answer, response")
    parser.add_argument("--out", required=True, help="JSONL, with valid and code added")
    parser.add_argument("--max_prompt_length", type=int, default=9216, help="tokens of the longest prompt that is judged")
    parser.add_argument("--max_tokens", type=int, default=8192, help="tokens the judge may write")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"), help="weights of the judge")
    args = parser.parse_args(argv)
    device = parallel.setup()
    items = [json.loads(line) for line in Path(args.responses).read_text().splitlines()]
    config = Config(model=args.model, max_prompt_length=args.max_prompt_length, max_response_length=args.max_tokens,
                    rollout_dtype=args.dtype)
    tokenizer = load_tokenizer(config, args.model)
    engine = make_engine(config, args.model, tokenizer.eos_token_id, device)
    verdicts = judge(engine, tokenizer, items, args.max_prompt_length, args.max_tokens)
    with open(args.out, "w") as file:
        for item, valid in zip(items, verdicts):
            file.write(json.dumps({**item, "valid": valid, "code": has_code(item["response"])}) + "\n")
    known = [v for v in verdicts if v is not None]
    print(f"{len(items)} responses, {len(known)} judged, {np.mean(known or [0]):.3f} of these valid")


if __name__ == "__main__":
    main()
