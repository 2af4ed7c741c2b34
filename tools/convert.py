r"""Turn a data set into a file of questions for training or evaluation (Sec. 5.1).

    python -m tools.convert mine.jsonl --output train.parquet --held_out 200
    python -m tools.convert openai/gsm8k:main --output gsm8k.parquet --extract "####"
    python -m tools.convert Elliott/Openr1-Math-46k-8192 --output data/openr1.parquet \
        --question prompt --answer reward_model                        # the paper's questions
    python -m tools.convert gym:chain_sum --output sums.parquet --set max_terms=3

The input is a JSONL, CSV or Parquet file with a column for the question (text or chat turns) and
one for the answer; or a data set of the Hugging Face hub, as NAME or NAME:SUBSET (pip install
datasets); or gym:TASK, a task of the library reasoning-gym. The output, Parquet or JSONL by its
name, has the columns of verl and LUFFY: data_source, prompt, reward_model and extra_info. Rows
without a question or an answer are left out and named by their numbers. Held-out questions go to a
second file, FILE-test.
"""

import csv
import random
import sys
from collections import defaultdict
from pathlib import Path

import pyarrow.parquet
import tyro
import yaml
from tyro.conf import Positional, UseAppendAction

from runtime.tables import read_rows, write_jsonl
from verifier.pool import Verifier


def read(name: str, split: str) -> list[dict]:
    """The rows of a file, or of a data set of the hub; the values of a CSV file are text."""
    if name.endswith((".jsonl", ".parquet")):
        return read_rows(name)
    if name.endswith(".csv"):
        with open(name, encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
        for number, row in enumerate(rows):
            # A comma without quotes would leave half of a question, and half of it as the answer.
            if None in row or None in row.values():
                sys.exit(f"{name}, row {number}: not one value for each column")
        return rows
    import datasets

    return datasets.load_dataset(*name.split(":"), split=split)


def answer_of(value, extract: str) -> str:
    r"""The answer in a text or a whole number, as text; empty if there is none.

    With an `extract` only a part of the text counts: for "box" what its last `\boxed{}` holds, else
    what follows the last `extract`. A float is refused, as 0.1 may be read as 0.10000000149.
    """
    if isinstance(value, dict):
        value = value.get("ground_truth")
    if isinstance(value, float):
        sys.exit(f"answers are floats, as {value}, maybe not as they were written: make them text")
    text = "" if value is None else str(value)
    if extract == "box":
        from reward import last_box  # imported late, as it takes seconds

        text = last_box(text) or ""
    elif extract:
        _, found, after = text.rpartition(extract)
        text = after if found else ""
    return text.strip()


def hold_out(rows: list[dict], number: int, seed: int) -> tuple:
    """Rows to train on, and one row of each of `number` questions that none of them asks.

    Questions that differ in blanks, in the case of letters or in their data_source are one.
    """
    groups = defaultdict(list)
    for row in rows:
        words = [turn["content"].lower().split() for turn in row["prompt"]]
        groups[str(words)].append(row)
    drawn = random.Random(seed).sample(list(groups), number)
    test = [groups.pop(question)[0] for question in drawn]
    train = [row for group in groups.values() for row in group]
    return train, test


def write(rows: list[dict], output: Path) -> None:
    """Write rows as Parquet or JSONL; a name in extra_info that a row lacks is None in Parquet."""
    output.parent.mkdir(parents=True, exist_ok=True)
    if output.suffix == ".jsonl":
        write_jsonl(output, rows)
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), output)
    print(f"{output}: {len(rows)} rows")


def try_reward(reward: str, row: dict) -> None:
    """Print what a reward function gives to the gold and to nothing; RuntimeError if it fails."""
    gold = row["reward_model"]["ground_truth"]
    with Verifier(1, function=reward) as verifier:
        for response in (gold, ""):
            rewards = verifier.submit(response, gold, row).result()
            print(f"{reward} for the gold {gold!r}, response {response!r}: {rewards}")


def convert(
    input: Positional[str],
    output: Path,
    question: str = "question",
    answer: str = "answer",
    extract: str = "",
    system: str = "",
    data_source: str = "",
    reward: str = "",
    split: str = "train",
    held_out: int = 0,
    size: int = 2000,
    seed: int = 0,
    set: UseAppendAction[tuple[str, ...]] = (),
) -> None:
    r"""Turn a data set into a file of questions; the module begins with examples.

    Args:
        input: a JSONL, CSV or Parquet file, a data set of the hub, or gym:TASK
        output: the file to write, .parquet or .jsonl
        question: its column
        answer: its column
        extract: box: the answer is in the last \boxed{}; another text: behind the last of these
        system: the system turn of every prompt
        data_source: the name that scores are reported by; by default the row's own, or the file's
        reward: MODULE:FUNCTION, to be called once on a right response and on an empty one
        split: of a data set of the hub
        held_out: questions that go to FILE-test
        size: questions of gym:TASK to train on
        seed: of what is held out, and of gym:TASK
        set: NAME=VALUE of gym:TASK; may be repeated
    """
    kind, _, task = input.partition(":")
    if kind == "gym":
        from worlds.gym import gym_rows

        settings = yaml.safe_load("\n".join(set).replace("=", ": ")) or {}
        items = gym_rows(task, size + held_out, seed, settings)
    else:
        items = read(input, split)

    rows = []
    for number, item in enumerate(items):
        turns = item.get(question)
        gold = answer_of(item.get(answer), extract)
        if not turns or not gold:
            print(f"row {number} is left out: it has no question, or no answer")
            continue
        if isinstance(turns, str):
            turns = [{"role": "user", "content": turns}]
        if system:
            turns = [{"role": "system", "content": system}, *turns]
        rows.append(
            {
                "data_source": data_source or item.get("data_source") or Path(input).stem,
                "prompt": turns,
                "reward_model": {"ground_truth": gold},
                "extra_info": item.get("extra_info"),
            }
        )
    if not rows:
        sys.exit(f"no row has both {question} and {answer}: --question and --answer name columns")
    if reward:
        try_reward(reward, rows[0])
    if held_out:
        rows, test = hold_out(rows, held_out, seed)
        write(test, output.with_stem(f"{output.stem}-test"))
    write(rows, output)


if __name__ == "__main__":
    tyro.cli(convert)
