"""Turn a data set into the questions of a run: verl-LUFFY columns, answers that can be verified (Sec. 5.1).

    python -m tools.convert mine.jsonl --output train.parquet --question problem --answer solution
    python -m tools.convert openai/gsm8k --subset main --output gsm8k.parquet --extract "####"
    python -m tools.convert Elliott/Openr1-Math-46k-8192 --output data/openr1.parquet    # the paper's
    python -m tools.convert gym:chain_sum --output sums.parquet --set max_terms=3      # worlds/gym.py

The input is a JSONL or parquet file or the name of a data set on the Hugging Face hub, with a column for the
question (text or chat turns) and one for the answer, or already in the layout; or gym:NAME, a task of the
library reasoning-gym, which also writes held-out questions, to FILE-test.parquet.
"""

import argparse
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import yaml

from runtime.console import printable
from runtime.flags import or_refuse
from runtime.tables import read_jsonl

INSTALL_DATASETS = "pip install datasets==5.2.0"  # for data sets of the hub, nothing else needs it
# usual names of columns, the first that is there counts
QUESTION = ("question", "problem", "prompt", "query")
ANSWER = ("answer", "reward_model", "ground_truth", "final_answer", "solution")
Reader = Callable[[list[str]], Iterable[dict]]  # column names -> rows


def open_source(name: str, subset: str | None, split: str) -> tuple[list[str], Reader]:
    """The column names of a file or hub data set, and a function that reads the rows of some columns."""
    path = Path(name)
    if path.suffix == ".parquet" and path.exists():
        import pyarrow.parquet

        table = pyarrow.parquet.ParquetFile(path)
        return table.schema_arrow.names, lambda names: table.read(names).to_pylist()
    if path.suffix == ".jsonl" and path.exists():
        rows = read_jsonl(path)
        return list(dict.fromkeys(name for row in rows for name in row)), lambda names: rows
    if path.suffix in (".parquet", ".jsonl", ".json", ".csv") or path.exists():
        raise ValueError(f"{name}: no such file, or neither .parquet nor .jsonl")
    try:
        import datasets
    except ImportError:
        hint = f"{name} is no file; for a data set of the Hugging Face hub: {INSTALL_DATASETS}"
        raise RuntimeError(hint) from None
    table = datasets.load_dataset(name, subset, split=split)
    return table.column_names, table.select_columns


def pick(given: str | None, usual: tuple[str, ...], columns: list[str], flag: str) -> str:
    """The column asked for, or the first of the usual ones; ValueError with the columns there are."""
    wanted = [given] if given else usual
    for column in wanted:
        if column in columns:
            return column
    raise ValueError(f"no column {' or '.join(wanted)} among {', '.join(columns)}: name one with {flag}")


def turns_of(question, system: str | None) -> list[dict] | None:
    """Chat turns that end with the user's, with the given system turn; None if there is no question."""
    turns = [{"role": "user", "content": question}] if isinstance(question, str) else question
    if not isinstance(turns, list) or not all(
            isinstance(t, dict) and t.get("role") and isinstance(t.get("content"), str) for t in turns):
        return None
    turns = [{"role": t["role"], "content": t["content"]} for t in turns]
    if turns and turns[-1]["role"] == "assistant":  # a worked solution
        turns.pop()
    if system:
        others = [t for t in turns if t["role"] != "system"]
        turns = [{"role": "system", "content": system}, *others]
    turns = [t for t in turns if t["content"] or t["role"] != "system"]
    return turns if turns and turns[-1]["role"] == "user" and turns[-1]["content"].strip() else None


def answer_of(value, extract: str) -> str | None:
    r"""The answer in a column's value: a ground_truth, the only item of a list, all of a text or number.

    extract: what a text's last `\boxed{}` holds ("box"), or what follows its last `extract`. None: no answer.
    """
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
        from reward import last_box

        return last_box(text) or None
    if extract:
        _, found, text = text.rpartition(extract)
        text = text if found else ""
    return text.strip() or None


def convert(items: Iterable[tuple], readable: Callable[[list[str]], list[bool]], system: str | None = None,
            extract: str = "") -> tuple[list[dict], Counter, list[str]]:
    """Rows in the verl-LUFFY layout from (data source, question, answer, extra_info or None) values; counts;
    unreadable answers. A question that comes again is kept once, and not at all where its answers differ.
    """
    counts, found = Counter(), {}  # {(source, question as JSON): {answer: extra_info}}
    for source, question, value, extra in items:
        counts["read"] += 1
        turns, answer = turns_of(question, system), answer_of(value, extract)
        if turns is None or answer is None:
            counts["without a question" if turns is None else "without an answer"] += 1
            continue
        answers = found.setdefault((source, json.dumps(turns)), {})
        counts["repeated"] += answer in answers
        answers.setdefault(answer, extra)
    single = [(*question, extra, answer) for question, answers in found.items() if len(answers) == 1
              for answer, extra in answers.items()]
    counts["with several answers"] = sum(len(answers) for answers in found.values()) - len(single)
    verdicts = readable([answer for *_, answer in single])
    kept = [item for item, ok in zip(single, verdicts) if ok]
    counts["answers unreadable"], counts["kept"] = len(single) - len(kept), len(kept)
    rows = [{"data_source": source, "prompt": json.loads(turns), "ability": "math",
             "reward_model": {"ground_truth": answer, "style": "rule"},
             "extra_info": extra or {"index": i, "split": "default"}}
            for i, (source, turns, extra, answer) in enumerate(kept)]
    return rows, counts, [answer for (*_, answer), ok in zip(single, verdicts) if not ok]


def parser() -> argparse.ArgumentParser:
    """The flags of the command."""
    raw = argparse.RawDescriptionHelpFormatter
    p = argparse.ArgumentParser(description=__doc__, formatter_class=raw, allow_abbrev=False)
    p.add_argument("input", help="JSONL or parquet file, hub data set, or gym:NAME")
    p.add_argument("--output", required=True, type=Path, help="FILE.parquet")
    p.add_argument("--question", metavar="COLUMN", help=f"default: the first of {', '.join(QUESTION)}")
    p.add_argument("--answer", metavar="COLUMN", help=f"default: the first of {', '.join(ANSWER)}")
    p.add_argument("--extract", default="", metavar="box|TEXT", help="where in a text the answer is")
    p.add_argument("--system", metavar="FILE|TEXT", help="system turn, in place of its own")
    p.add_argument("--data_source", help="default: that column, or the input's name")
    p.add_argument("--reward", default="math",
                   help="math, which drops what it cannot read, or module:function")
    p.add_argument("--subset", help="of a hub data set")
    p.add_argument("--split", default="train", help="of a hub data set")
    p.add_argument("--overwrite", action="store_true", help="replace the output")
    only = p.add_argument_group("gym:NAME only")
    only.add_argument("--size", type=int, default=2000, help="training questions drawn; repeated ones go")
    only.add_argument("--held_out", type=int, default=200, help="held-out questions drawn, likewise")
    only.add_argument("--seed", type=int, default=0, help="of the questions")
    only.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="setting of the task")
    return p


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The flags; ValueError where the output is there already, or is no .parquet."""
    a = parser().parse_args(argv)
    if a.output.suffix != ".parquet":
        raise ValueError("--output must end in .parquet")
    for path in (a.output, held_out(a.output))[: 1 + a.input.startswith("gym:")]:
        if path.exists() and not a.overwrite:
            raise ValueError(f"{path} exists; --overwrite replaces it")
    return a


def held_out(output: Path) -> Path:
    """Where the held-out questions of a gym task go."""
    return output.with_stem(f"{output.stem}-test")


def write(rows: list[dict], output: Path) -> None:
    """The rows as a parquet file, made aside and moved, and a line on the first."""
    import pyarrow.parquet

    output.parent.mkdir(parents=True, exist_ok=True)
    aside = output.with_name(f"{output.name}.{os.getpid()}.tmp")  # a name that nobody else has
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), aside)
    os.replace(aside, output)
    print(printable(f"first row: {json.dumps(rows[0], ensure_ascii=False):.600}\nwrote {output}"))


def convert_gym(a: argparse.Namespace) -> Counter:
    """Make training and held-out questions of a task; the training file stands when both do."""
    from worlds import gym

    name = a.input.removeprefix("gym:")
    settings = {key: yaml.safe_load(value) for key, _, value in (item.partition("=") for item in a.set)}
    train, test = gym.rows(name, settings, a.seed, a.size, a.held_out, a.data_source or name, a.system)
    write(test, held_out(a.output))
    write(train, a.output)
    counts = Counter({"kept": len(train), "held out": len(test)})
    print(f"{a.input}: {len(train)} questions and {len(test)} held out, for --reward worlds.gym:score")
    return counts


def main(argv: list[str] | None = None) -> Counter:
    """Convert, print the report, return its counts."""
    a = parse(argv)
    if a.input.startswith("gym:"):
        return convert_gym(a)
    columns, read = open_source(a.input, a.subset, a.split)
    question = pick(a.question, QUESTION, columns, "--question")
    answer = pick(a.answer, ANSWER, columns, "--answer")
    names, name = [question, answer, *({"data_source", "extra_info"} & set(columns))], Path(a.input).stem
    items = [(a.data_source or row.get("data_source") or name, row.get(question), row.get(answer),
              row.get("extra_info")) for row in read(names)]
    system = Path(a.system).read_text().strip() if a.system and Path(a.system[:255]).is_file() else a.system
    if system and system == a.system and len(system.split()) == 1:
        raise ValueError(f"--system {system}: there is no such file, and it is no sentence either")
    from reward import Verifier  # seconds of imports, after what can be refused

    with Verifier(2, function=a.reward) as verifier:
        rows, counts, unreadable = convert(items, verifier.gold_parses, system, a.extract)
    print(printable(f"{a.input}: question from column {question!r}, answer from column {answer!r}"))
    print("\n".join(f"{count:8} {name}" for name, count in counts.items()))
    if unreadable:
        examples = printable(", ".join(f"{text:.60}" for text in unreadable[:5]))
        print(f"unreadable answers, for example: {examples}")
    if not rows:
        raise ValueError("no question is left: is --answer the right column, and does it need --extract?")
    longest = max((row["reward_model"]["ground_truth"] for row in rows), key=len)
    print(printable(f"longest answer: {longest:.200}"))  # a whole solution, where --extract was forgotten
    write(rows, a.output)
    return counts


if __name__ == "__main__":
    or_refuse(parse)
    main()
