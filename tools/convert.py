"""Turn a data set into the questions of a run, in the column layout of verl and LUFFY (Sec. 5.1).

    python -m tools.convert mine.jsonl --output train.parquet --question problem --answer solution
    python -m tools.convert openai/gsm8k --subset main --output gsm8k.parquet --extract "####"
    python -m tools.convert Elliott/Openr1-Math-46k-8192 --output data/openr1.parquet  # the paper's
    python -m tools.convert gym:chain_sum --output sums.parquet --set max_terms=3  # worlds/gym.py

The input is a JSONL, CSV or Parquet file, or the name of a data set on the Hugging Face hub. It has
a column for the question (text or chat turns) and one for the answer, or has the layout already. Or
it is gym:NAME, a task of the library reasoning-gym. Questions whose answer cannot be verified are
dropped. Held-out questions go to FILE-test.parquet.
"""

import csv
import io
import json
import os
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from tyro.conf import Positional, UseAppendAction

from runtime.console import printable
from runtime.faults import or_refuse
from runtime.flags import parse
from runtime.tables import check_row, in_batches, listed, read_jsonl, read_text

# The usual names of the columns. Of those that are there, the first one counts.
QUESTION = ("question", "problem", "prompt", "query")
ANSWER = ("answer", "reward_model", "ground_truth", "final_answer", "solution")

INSTALL_DATASETS = "pip install datasets==5.2.0"  # only data sets of the hub need it
CHOICES = ("choices", "options")  # columns that are not asked, and told
EXACT = 2**53  # from here on a float stands for several whole numbers


# ---- where the rows come from and go to --------------------------------------------------------


def open_source(name: str, subset: str, split: str) -> tuple[list[str], Callable]:
    """The column names of a file or hub data set, and a function that reads rows of some columns.

    ValueError if it is neither, or if the library for data sets of the hub is missing.
    """
    kind = Path(name).suffix
    if kind == ".parquet":
        import pyarrow.parquet

        table = pyarrow.parquet.ParquetFile(name)
        return table.schema_arrow.names, lambda names: in_batches(table, names)
    if kind in (".jsonl", ".json", ".csv"):
        rows = read_csv(name) if kind == ".csv" else read_jsonl(name)
        columns = {column: True for row in rows for column in row}
        return list(columns), lambda names: rows
    try:
        import datasets
    except ImportError:
        raise ValueError(
            f"{name} is no .jsonl, .csv or .parquet; for a data set of the Hugging Face hub:"
            f" {INSTALL_DATASETS}"
        ) from None
    table = datasets.load_dataset(name, subset or None, split=split)
    return table.column_names, table.select_columns


def read_csv(file: str) -> list[dict]:
    """The rows of a CSV file, all values as text: 007 stays 007.

    ValueError names a row that has not one value for each column.
    """
    csv.field_size_limit(1_000_000_000)
    rows = []
    table = csv.DictReader(io.StringIO(read_text(file), newline=""), strict=True)
    try:
        if len({*(table.fieldnames or ())}) < len(table.fieldnames or ()):
            raise ValueError(f"a column stands there twice: {table.fieldnames}")
        for row in table:
            if None in row or None in row.values():
                raise ValueError(f"not one value for each of {table.fieldnames}")
            rows.append(row)
    except (csv.Error, ValueError) as error:
        raise ValueError(f"{file}, line {table.line_num}: {error}; are commas quoted?") from error
    return rows


def pick(given: str, usual: tuple, columns: list[str], flag: str) -> str:
    """The column asked for, or else the first of the usual ones that is there.

    ValueError names the columns that are there if it is none of them.
    """
    wanted = [given] if given else usual
    for column in wanted:
        if column in columns:
            return column
    raise ValueError(
        f"the file has no column {' or '.join(wanted)}, but {columns}: choose one with {flag}"
    )


def write(rows: list[dict], output: Path) -> None:
    """Write the rows as a Parquet file and print the first one; ValueError for a wrong row."""
    import pyarrow.parquet

    for i, row in enumerate(rows):
        check_row(row, f"row {i}")
    output.parent.mkdir(parents=True, exist_ok=True)
    try:
        table = pyarrow.Table.from_pylist(rows)
        for row, extra in zip(rows, table["extra_info"].to_pylist()):
            given = row["extra_info"]
            # As texts 1 and 1.0 differ, as values they would not.
            if json.dumps(given, sort_keys=True) != json.dumps(extra, sort_keys=True):
                raise ValueError(f"{given} would be {extra}")
        pyarrow.parquet.write_table(table, output)
    except (pyarrow.ArrowException, OverflowError, ValueError) as error:
        raise ValueError(
            "extra_info must have the same names and types in all rows, those that parquet has, or"
            f" be one text, json.dumps(...) of it: {error}"
        ) from error
    print(printable(f"first row: {json.dumps(rows[0], ensure_ascii=False):.600}\nwrote {output}"))


# ---- a question and its answer -----------------------------------------------------------------


def turns_of(question, system: str) -> list[dict] | None:
    """The chat turns of a question, the user's last; None if there is no question.

    `system` is the text of a system turn, which replaces one that is there. Turns may hold parts
    beside role and content.
    """
    if isinstance(question, str):
        question = [{"role": "user", "content": question}]
    if not isinstance(question, list):
        return None
    turns = [{"role": "system", "content": system}] if system else []
    for turn in question:
        if not (
            isinstance(turn, dict) and turn.get("role") and isinstance(turn.get("content"), str)
        ):
            return None
        replaced = turn["role"] == "system" and (system or not turn["content"])
        if not replaced:
            turns.append(turn)
    if turns and turns[-1]["role"] == "assistant":  # a worked solution
        turns.pop()
    asked = turns and turns[-1]["role"] == "user" and turns[-1]["content"].strip()
    return turns if asked else None


def inner(value):
    """The one value in a column: of a dict its ground_truth, of a list of one its item."""
    if isinstance(value, dict):
        value = value.get("ground_truth")
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return value


def answer_of(value, extract: str) -> str | None:
    r"""The answer in a text or a number, as text; None if there is none.

    With an `extract` only a part of the text counts: for "box" what its last `\boxed{}` holds, else
    what follows the last `extract`.
    """
    # A column of whole numbers with gaps is read as floats.
    if isinstance(value, float) and value.is_integer() and abs(value) < EXACT:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, str | int | float) or value != value:  # NaN
        return None
    text = str(value)
    if extract == "box":
        from verifier.forms import last_box

        text = last_box(text) or ""
    elif extract:
        _, found, after = text.rpartition(extract)
        text = after if found else ""
    return text.strip() or None


def convert(
    items: list[tuple],
    check_golds: Callable,
    system: str = "",
    extract: str = "",
    reward: str = "math",
) -> tuple[list[dict], dict[str, list]]:
    """The questions as rows in the verl-LUFFY layout, and {what is to be told: its values}.

    items: (data source, question, answer, extra_info or None) values. To be told is what was
    dropped or needs a look. A question that comes again in its data source is kept once, and not at
    all where its answers differ. With a reward of the user's own that is a question with the same
    extra_info.
    """
    told = defaultdict(list)
    found = {}  # {[data source, turns, perhaps extra_info] as JSON: {answer: extra_info}}
    for source, question, value, extra in items:
        turns = turns_of(question, system)
        value = inner(value)
        answer = answer_of(value, extract)
        if answer and reward == "math":
            values = listed(answer)
            answer = values[0] if len(values) == 1 else None
        if turns is None:
            told["without a question"].append(question)
        elif answer is None:
            told["without an answer"].append(value)
        else:
            parts = {name for turn in turns for name, part in turn.items() if part}
            turns = [{"role": turn["role"], "content": turn["content"]} for turn in turns]
            key = [source, turns, None if reward == "math" else extra]
            answers = found.setdefault(json.dumps(key, default=str), {})
            if answer in answers:
                told["repeated"].append(answer)
            answers.setdefault(answer, extra)
            if parts := sorted(parts - {"role", "content"}):  # tool_calls, say
                told["asked without these parts of their turns"].append(parts)

    single = []
    for key, answers in found.items():
        if len(answers) == 1:
            single.append((key, *answers.items()))
        else:
            told["with several answers"].extend(answers)

    rows = []
    checks = check_golds([answer for _, (answer, _) in single])
    for (key, (answer, extra)), check in zip(single, checks):
        if not check["score"]:
            told["answers unreadable"].append(answer)
            continue
        if check.get("as_text"):
            told["compared as text: do they need a --reward of yours?"].append(answer)
        source, turns, _ = json.loads(key)
        rows.append(
            {
                "data_source": source,
                "prompt": turns,
                "reward_model": {"ground_truth": answer, "style": "rule"},
                "extra_info": extra,
            }
        )
    return rows, told


# ---- the command -------------------------------------------------------------------------------


@dataclass
class Command:
    """Turn a data set into the questions of a run; the file tools/convert.py begins with examples.

    ValueError if an output exists already or the flags do not fit together.
    """

    input: Positional[str]  # a JSONL, CSV or Parquet file, a hub data set, or gym:NAME
    output: Path  # the file to write, FILE.parquet
    overwrite: bool = False  # replace what is there
    question: str = ""  # its column, else question, problem, prompt or query
    answer: str = ""  # its column, else answer, reward_model, ground_truth ...
    extract: str = ""  # the answer is what follows this text, or, by `box`, the last box
    system: str = ""  # the system turn of every prompt
    data_source: str = ""  # the name that scores are reported by
    reward: str = "math"  # math drops golds that it cannot read; or MODULE:FUNCTION
    subset: str = ""  # of a hub data set
    split: str = "train"  # of a hub data set
    held_out: int | None = None  # questions that go to FILE-test.parquet; auto: 0, of gym 200
    seed: int = 0  # of what is drawn
    size: int | None = None  # questions of gym:NAME to draw, before repeats go; auto: 2000
    set: UseAppendAction[list[str]] = field(default_factory=list)  # NAME=VALUE of gym:NAME

    def __post_init__(self):
        task = self.input.startswith("gym:")
        if (self.size or self.set) and not task:
            raise ValueError("--size and --set are for gym:NAME")
        if self.held_out is None:
            self.held_out = 200 if task else 0
        if len(self.system.split()) == 1:  # it may be meant as a file's name
            raise ValueError(
                f'--system {self.system} is no sentence; of a file: --system "$(cat FILE)"'
            )
        if self.output.suffix != ".parquet":
            raise ValueError("--output must end in .parquet")
        self.test_output = self.output.with_stem(f"{self.output.stem}-test")
        for path in [self.output, self.test_output] if self.held_out else [self.output]:
            if os.path.lexists(path) and not self.overwrite:  # a link to nothing, too
                raise ValueError(f"{path} exists: choose another --output, or add --overwrite")


def convert_gym(a: Command) -> None:
    """Write training and held-out questions of a gym task.

    The training file is written last: where it exists, both do.
    """
    from worlds import gym

    name = a.input.removeprefix("gym:")
    settings = {}
    for item in a.set:
        key, _, value = item.partition("=")
        settings[key] = yaml.safe_load(value)
    size = a.size or 2000
    train, test = gym.rows(
        name, settings, a.seed, size, a.held_out, a.data_source or name, a.system
    )
    if not train:
        raise ValueError(f"{a.input}: every question is held out; give wider --set or more --size")
    if test:
        write(test, a.test_output)
    write(train, a.output)
    print(
        f"{a.input}: {len(train)} questions and {len(test)} held out, for --reward worlds.gym:score"
    )


def main(argv: list[str] | None = None) -> None:
    """Convert the input of the command line, and tell what was dropped, with examples."""
    a = parse(Command, argv)
    if a.input.startswith("gym:"):
        convert_gym(a)
        return
    columns, read = open_source(a.input, a.subset, a.split)
    question = pick(a.question, QUESTION, columns, "--question")
    answer = pick(a.answer, ANSWER, columns, "--answer")
    items = []
    choices = []
    for row in read([question, answer, *({"data_source", "extra_info", *CHOICES} & set(columns))]):
        source = a.data_source or row.get("data_source") or Path(a.input).stem
        items.append((source, row.get(question), row.get(answer), row.get("extra_info")))
        choices += [row[name] for name in CHOICES if row.get(name)]

    from verifier.pool import Verifier  # imported late, as a refusal does not need it

    with Verifier(2, function=a.reward) as verifier:
        rows, told = convert(items, verifier.check_golds, a.system, a.extract, a.reward)
    if choices:
        told["asked without their choices: are these in the question?"] = choices
    print(f"{len(items):8} read\n{len(rows):8} kept")
    for what, values in told.items():
        examples = ", ".join(f"{value!r:.60}" for value in values[:3])
        print(printable(f"{len(values):8} {what}, for example: {examples}"))
    if not 0 <= a.held_out < len(rows):
        raise ValueError(
            f"{len(rows)} questions are left, {a.held_out} to be held out: is --answer the right"
            " column, and does it need --extract? An answer is one text or number; tests of a"
            " program, say, go into a column extra_info"
        )
    if a.held_out:
        random.Random(a.seed).shuffle(rows)
        write(rows[: a.held_out], a.test_output)
    write(rows[a.held_out :], a.output)


if __name__ == "__main__":
    or_refuse(main)
