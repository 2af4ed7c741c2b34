"""Turn a data set into the questions of a run: the verl-LUFFY columns, with answers that the verifier can read (Sec. 5.1).

    python -m tools.convert mine.jsonl --output train.parquet --question problem --answer solution --extract box
    python -m tools.convert Elliott/Openr1-Math-46k-8192 --output data/openr1.parquet        # the paper's training questions
    python -m tools.convert openai/gsm8k --subset main --output gsm8k.parquet --extract "####" --system prompt.txt

The input is a JSONL or parquet file or the name of a data set on the Hugging Face hub, with a column for the question
(text or chat turns) and one for the answer, or already in the layout, of which only the questions and answers are kept.
"""

import argparse
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow.parquet

from data import read_jsonl
from reward import Verifier, last_box

INSTALL_DATASETS = "pip install datasets==5.2.0"  # for data sets of the hub, nothing else needs it
QUESTION = ("question", "problem", "prompt", "query")  # usual names of columns, the first that is there counts
ANSWER = ("answer", "reward_model", "ground_truth", "final_answer", "solution")


def open_source(name: str, subset: str | None, split: str) -> tuple[list[str], Callable[[list[str]], Iterable[dict]]]:
    """The column names of a file or hub data set, and a function that reads the rows of some columns."""
    path = Path(name)
    if path.suffix == ".parquet" and path.exists():
        table = pyarrow.parquet.ParquetFile(path)
        return table.schema_arrow.names, lambda names: (r for b in table.iter_batches(1024, columns=names) for r in b.to_pylist())
    if path.suffix == ".jsonl" and path.exists():
        rows = read_jsonl(path)
        return list(dict.fromkeys(name for row in rows for name in row)), lambda names: rows
    if path.suffix in (".parquet", ".jsonl", ".json", ".csv") or path.exists():
        raise ValueError(f"{name}: no such file, or neither .parquet nor .jsonl")
    try:
        import datasets
    except ImportError:
        raise RuntimeError(f"{name} is no file; for a data set of the Hugging Face hub: {INSTALL_DATASETS}") from None
    table = datasets.load_dataset(name, subset, split=split)
    return table.column_names, table.select_columns


def pick(given: str | None, usual: tuple[str, ...], columns: list[str], flag: str) -> str:
    """The column that was asked for, or the first of the usual ones; ValueError with the columns there are."""
    for column in [given] if given else usual:
        if column in columns:
            return column
    raise ValueError(f"no column {given or ' or '.join(usual)} among {', '.join(columns)}: name one with {flag}")


def turns_of(question, system: str | None) -> list[dict] | None:
    """Chat turns that end with the user's, the system turn replaced where one is given; None where there is no question."""
    turns = [{"role": "user", "content": question}] if isinstance(question, str) else question
    if not isinstance(turns, list) or not all(
            isinstance(t, dict) and t.get("role") and isinstance(t.get("content"), str) for t in turns):
        return None
    turns = [{"role": t["role"], "content": t["content"]} for t in turns if t["content"] or t["role"] != "system"]
    if turns and turns[-1]["role"] == "assistant":  # a worked solution
        turns.pop()
    if system:
        turns = [{"role": "system", "content": system}, *(t for t in turns if t["role"] != "system")]
    return turns if turns and turns[-1]["role"] == "user" and turns[-1]["content"].strip() else None


def answer_of(value, extract: str) -> str | None:
    r"""The answer in a column's value: a ground_truth, the only item of a list, all of a text or number, what its last
    `\boxed{}` holds (`box`), or what follows the last `extract`; None where there is none."""
    if isinstance(value, dict):
        value = value.get("ground_truth")
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        value = int(value) if value.is_integer() else value  # a column of whole numbers with gaps
    text = str(value)
    if extract == "box":
        return last_box(text) or None
    if extract:
        _, found, text = text.rpartition(extract)
        text = text if found else ""
    return text.strip() or None


def convert(items: Iterable[tuple], readable: Callable[[list[str]], list[bool]], system: str | None = None,
            extract: str = "") -> tuple[list[dict], Counter, list[str]]:
    """Rows in the verl-LUFFY layout from (data source, question, answer) values; counts; the answers that are unreadable.

    A question that comes again is kept once, and not at all where its answers differ.
    """
    counts, found = Counter(), {}  # {(source, question as JSON): (turns, answers)}
    for source, question, value in items:
        counts["read"] += 1
        turns, answer = turns_of(question, system), answer_of(value, extract)
        if turns is None or answer is None:
            counts["without a question" if turns is None else "without an answer"] += 1
            continue
        answers = found.setdefault((source, json.dumps(turns)), (turns, {}))[1]
        counts["repeated"] += answer in answers
        answers[answer] = True
    counts["with several answers"] = sum(len(answers) for _, answers in found.values() if len(answers) > 1)
    single = [(source, turns, *answers) for (source, _), (turns, answers) in found.items() if len(answers) == 1]
    verdicts = readable([answer for *_, answer in single])
    kept = [item for item, ok in zip(single, verdicts) if ok]
    counts["answers unreadable"], counts["kept"] = len(single) - len(kept), len(kept)
    rows = [{"data_source": source, "prompt": turns, "ability": "math", "reward_model": {"ground_truth": answer, "style": "rule"},
             "extra_info": {"index": i, "split": "default"}} for i, (source, turns, answer) in enumerate(kept)]
    return rows, counts, [answer for (*_, answer), ok in zip(single, verdicts) if not ok]


def parser() -> argparse.ArgumentParser:
    """The flags of the command."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    p.add_argument("input", help="JSONL or parquet file, or hub data set")
    p.add_argument("--output", required=True, type=Path, help="FILE.parquet")
    p.add_argument("--question", metavar="COLUMN", help=f"default: the first of {', '.join(QUESTION)}")
    p.add_argument("--answer", metavar="COLUMN", help=f"default: the first of {', '.join(ANSWER)}")
    p.add_argument("--extract", default="", metavar="box|TEXT", help="the answer is in the last box, or follows the last TEXT")
    p.add_argument("--system", metavar="FILE|TEXT", help="system turn of every question, in place of the data's own")
    p.add_argument("--data_source", help="what scores are reported by; default: that column, or the input's name")
    p.add_argument("--reward", default="math", help="'math' drops answers it cannot read; a module:function reads what it likes")
    p.add_argument("--subset", help="of a hub data set")
    p.add_argument("--split", default="train", help="of a hub data set")
    p.add_argument("--overwrite", action="store_true", help="replace the output")
    return p


def main(argv: list[str] | None = None) -> Counter:
    """Convert, print the report, return its counts."""
    a = parser().parse_args(argv)
    if a.output.suffix != ".parquet" or a.output.exists() and not a.overwrite:
        raise ValueError(f"{a.output} exists; --overwrite replaces it" if a.output.exists() else "--output must end in .parquet")
    columns, read = open_source(a.input, a.subset, a.split)
    question, answer = pick(a.question, QUESTION, columns, "--question"), pick(a.answer, ANSWER, columns, "--answer")
    names, name = [question, answer, *({"data_source"} & set(columns))], Path(a.input).stem
    items = ((a.data_source or row.get("data_source") or name, row.get(question), row.get(answer)) for row in read(names))
    system = Path(a.system).read_text().strip() if a.system and Path(a.system[:255]).is_file() else a.system
    if system and system == a.system and len(system.split()) == 1:
        raise ValueError(f"--system {system}: there is no such file, and it is no sentence either")
    with Verifier(2, function=a.reward) as verifier:
        rows, counts, unreadable = convert(items, verifier.gold_parses, system, a.extract)
    print(f"{a.input}: question from column {question!r}, answer from column {answer!r}")
    print("\n".join(f"{count:8} {name}" for name, count in counts.items()))
    if unreadable:
        print("unreadable answers, for example: " + ", ".join(f"{text:.60}" for text in unreadable[:5]))
    if not rows:
        raise ValueError("no question is left: is --answer the right column, and does it need --extract?")
    longest = max((row["reward_model"]["ground_truth"] for row in rows), key=len)
    print(f"longest answer: {longest:.200}")  # a whole solution, where --extract was forgotten
    a.output.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), aside := a.output.with_suffix(".tmp"))
    os.replace(aside, a.output)
    print(f"first row: {json.dumps(rows[0], ensure_ascii=False):.600}\nwrote {a.output}")
    return counts


if __name__ == "__main__":
    main()
