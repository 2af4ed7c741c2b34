"""Turn a data set into the questions of a run: verl-LUFFY columns, answers that can be verified (Sec. 5.1).

    python -m tools.convert mine.jsonl --output train.parquet --question problem --answer solution
    python -m tools.convert openai/gsm8k --subset main --output gsm8k.parquet --extract "####"
    python -m tools.convert Elliott/Openr1-Math-46k-8192 --output data/openr1.parquet    # the paper's
    python -m tools.convert gym:chain_sum --output sums.parquet --set max_terms=3      # worlds/gym.py

The input is a parquet, JSONL, JSON or CSV file or the name of a data set on the Hugging Face hub, with a
column for the question (text or chat turns) and one for the answer, or already in the layout; or gym:NAME, a
task of the library reasoning-gym. Held-out questions go to FILE-test.parquet.
"""

import argparse
import json
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import yaml

from runtime.console import printable
from runtime.flags import or_refuse
from tools.sources import open_source, pick, write

# usual names of columns, the first that is there counts
QUESTION = ("question", "problem", "prompt", "query")
ANSWER = ("answer", "reward_model", "ground_truth", "final_answer", "solution")


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
        if not isinstance(source, str):
            raise ValueError(f"data_source must be text, got {source!r}: name one with --data_source")
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
    p.add_argument("--held_out", type=int, metavar="N",
                   help="questions that go to FILE-test.parquet, drawn at random; 0, of a gym task 200")
    p.add_argument("--seed", type=int, default=0, help="of what is drawn")
    only = p.add_argument_group("gym:NAME only")
    only.add_argument("--size", type=int, help="training questions drawn, default 2000; repeated ones go")
    only.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="setting of the task")
    return p


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The flags; ValueError where the output is there already, or is no .parquet."""
    a = parser().parse_args(argv)
    task = a.input.startswith("gym:")
    if (a.size is not None or a.set) and not task:
        raise ValueError("--size and --set are for gym:NAME")
    a.size = 2000 if a.size is None else a.size
    a.held_out = 200 * task if a.held_out is None else a.held_out
    if a.held_out < 0:
        raise ValueError(f"--held_out must be at least 0, got {a.held_out}")
    if a.output.suffix != ".parquet":
        raise ValueError("--output must end in .parquet")
    for path in (a.output, held_out(a.output))[: 1 + bool(task or a.held_out)]:
        if path.exists() and not a.overwrite:
            raise ValueError(f"{path} exists; --overwrite replaces it")
    return a


def held_out(output: Path) -> Path:
    """Where held-out questions go."""
    return output.with_stem(f"{output.stem}-test")


def convert_gym(a: argparse.Namespace) -> Counter:
    """Make training and held-out questions of a task; the training file stands when both do."""
    from worlds import gym

    name = a.input.removeprefix("gym:")
    settings = {key: yaml.safe_load(value) for key, _, value in (item.partition("=") for item in a.set)}
    train, test = gym.rows(name, settings, a.seed, a.size, a.held_out, a.data_source or name, a.system)
    if test:
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

    checks = {}
    with Verifier(2, function=a.reward) as verifier:

        def readable(answers: list[str]) -> list[bool]:
            checks.update(zip(answers, verifier.check_golds(answers)))
            return [checks[answer]["score"] == 1.0 for answer in answers]

        rows, counts, unreadable = convert(items, readable, system, a.extract)
    print(printable(f"{a.input}: question from column {question!r}, answer from column {answer!r}"))
    print("\n".join(f"{count:8} {name}" for name, count in counts.items()))
    tell([value for _, _, value, _ in items if answer_of(value, a.extract) is None], "without an answer")
    tell(unreadable, "unreadable answers")
    kept = [row["reward_model"]["ground_truth"] for row in rows]
    malformed = [answer for answer in kept if checks[answer].get("malformed")]
    tell(malformed, f"{len(malformed)} kept are no plain mathematics (others need a --reward of yours)")
    if len(rows) <= a.held_out:
        raise ValueError(f"{len(rows)} questions are left, {a.held_out} to be held out" if rows else
                         "no question is left: is --answer the right column, and does it need --extract? An "
                         "answer is one text or number; tests of a program, say, go into a column extra_info")
    longest = max(kept, key=len)
    print(printable(f"longest answer: {longest:.200}"))  # a whole solution, where --extract was forgotten
    if a.held_out:
        random.Random(a.seed).shuffle(rows)
        write(rows[: a.held_out], held_out(a.output))
    write(rows[a.held_out :], a.output)
    return counts


def tell(values: list, what: str) -> None:
    """Say what they are, with examples."""
    if values:
        print(printable(f"{what}, for example: {', '.join(f'{value!r:.60}' for value in values[:3])}"))


def command() -> Counter:
    """`main`; ValueError too where the reward or a library cannot be imported, or a setting is no YAML."""
    try:
        return main()
    except (RuntimeError, yaml.YAMLError) as error:
        raise ValueError(str(error)) from error


if __name__ == "__main__":
    or_refuse(command)
