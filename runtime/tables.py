"""Read and check files of questions, which are Parquet or JSONL in the verl-LUFFY columns.

Rows come as plain values. A file has the columns `prompt` (a list of chat turns), `reward_model`
(with the right answer as `ground_truth`), `data_source` and, where a reward function wants more,
`extra_info`; others are ignored. What is wrong with a file is a ValueError that names the file, the
row or the line, and says what to do.
"""

import json
import re
from pathlib import Path

COLUMNS = ("prompt", "reward_model", "data_source")
READ = (*COLUMNS, "extra_info")  # other columns are not read, as they may be long
GIVEN = ("data_source", "extra_info", "prompt")  # for a reward function that asks for the row
QUOTED = re.compile(r"""(?<!\\)(["'])((?:\\.|(?!\1)[^\\])*)\1""", re.DOTALL)


def read_rows(file: str) -> list[dict]:
    """Return the rows of a Parquet or JSONL file.

    Raises ValueError where it is empty, of another kind, or lacks a column.
    """
    if Path(file).suffix == ".parquet":
        import pyarrow.parquet

        try:
            table = pyarrow.parquet.ParquetFile(file)
            names = [name for name in READ if name in table.schema_arrow.names]
            rows = in_batches(table, names)
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            # ValueError is about a value in the file.
            raise ValueError(f"{file}: not a readable parquet file: {error}") from error
    elif Path(file).suffix in (".jsonl", ".json"):
        rows = read_jsonl(file)
    else:
        raise ValueError(
            f"{file}: must end in .parquet or .jsonl; of .csv `python -m tools.convert` makes one"
        )
    if not rows:
        raise ValueError(f"{file}: holds no rows")
    for number, row in enumerate(rows):
        missing = [c for c in COLUMNS if c not in row]
        if missing:
            raise ValueError(
                f"{file}, row {number}: column(s) {', '.join(missing)} missing; "
                f"needed are {', '.join(COLUMNS)}; tools.convert makes them"
            )
    return rows


def in_batches(table, names: list[str]) -> list[dict]:
    """Return all rows of a ParquetFile, with these columns.

    At once pyarrow cannot convert nested columns of more than 2 GiB.
    """
    rows = []
    for batch in table.iter_batches(1000, columns=names):
        rows += batch.to_pylist()
    return rows


def first_case(file: str) -> tuple[str, dict]:
    """Return the answer of a file's first row, and what a reward function is given of it."""
    _, answer, given = check_row(read_rows(file)[0], f"{file}, row 0")
    return answer, given | {"response_prefix": ""}


def read_jsonl(file: str | Path, growing: bool = False) -> list[dict]:
    """Return what the lines of a JSONL file hold.

    growing: as for `read_text`. Raises ValueError, which names the file and the line of a bad one.
    """
    text = read_text(file, growing)
    if text.lstrip().startswith("["):
        raise ValueError(
            f"{file}: a JSON array, where JSONL has one {{...}} a line; `jq -c '.[]'` makes it"
        )
    rows = []
    for number, line in enumerate(text.split("\n")):  # not splitlines: text may hold U+2028
        where = f"{file}, line {number + 1}"
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where}: not JSON: {error}") from error
        if not isinstance(row, dict):
            raise ValueError(f"{where}: not an object {{...}}, but {line:.60}")
        rows.append(row)
    return rows


def read_text(file: str | Path, growing: bool = False) -> str:
    """Return the text of a UTF-8 file, with or without a byte-order mark.

    growing: the file is still written, so that a last line without its end is left out. Raises
    ValueError, which names the file and the line, for other encodings.
    """
    data = Path(file).read_bytes()
    if growing:
        data = data[: data.rfind(b"\n") + 1]
    if b"\0" in data[:4]:  # its first letters are two bytes each
        raise ValueError(f"{file}: UTF-16; `iconv -f UTF-16 -t UTF-8` converts it")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ValueError(
            f"{file}, line {line}: not UTF-8 ({error.reason}, byte {error.object[error.start]:#x});"
            " `iconv -f LATIN1 -t UTF-8` converts most such files"
        ) from error


def check_row(row: dict, where: str) -> tuple[list[dict], str, dict]:
    """Return the chat turns and the answer of a row, and what a reward function is given of it.

    Raises ValueError, which names the row (`where`) and the column.
    """
    turns = row["prompt"]
    source = row["data_source"]

    def wrong(column: str, what: str) -> ValueError:
        return ValueError(f"{where}, column {column}: {what}, got {row[column]!r:.200}")

    def is_turn(t) -> bool:
        return (
            isinstance(t, dict)
            and isinstance(t.get("role"), str)
            and isinstance(t.get("content"), str)
        )

    for column in (c for c in READ if c in row):
        try:
            # In this form the row goes to a reward function.
            json.dumps(row[column], ensure_ascii=False).encode()
        except (TypeError, ValueError) as error:  # a date, bytes, half a character
            raise wrong(
                column, f"must be what JSON can hold ({error}); make it text or numbers"
            ) from error
    if not isinstance(turns, list) or not turns or not all(map(is_turn, turns)):
        raise wrong("prompt", "must be a list of turns {'role': text, 'content': text}")
    if turns[-1]["role"] == "assistant":
        raise wrong("prompt", "ends with the assistant's turn, which tools.convert removes")
    model = row["reward_model"]
    truth = model.get("ground_truth") if isinstance(model, dict) else None
    if truth is None or not str(truth).strip():
        raise wrong("reward_model", "must hold a non-empty ground_truth")
    if not isinstance(truth, str | int | float) or truth != truth:
        raise wrong("reward_model", "ground_truth must be text or a number")
    # Scores in metrics, plots and cards are named after it.
    if not isinstance(source, str) or not source.isprintable():
        raise wrong("data_source", "must be printable text")
    return turns, str(truth), {name: row.get(name) for name in GIVEN}


def listed(text: str) -> list[str]:
    r"""Return the values of a list or dictionary that is stored as text; any other text is one.

    `["2"]` and `{"answer": "2"}` hold one. Without quotes it is mathematics: the interval [1, 2].
    """
    if not re.fullmatch(r"[\[({][\[({\s]*[\"'].*[\])}]", text.strip(), re.DOTALL):
        return [text]
    text = re.sub(rf"{QUOTED.pattern}\s*:", " ", text)  # keys
    values = re.findall(r"[^\s,\[\](){}]+", QUOTED.sub(" ", text))  # those without quotes
    for quoted in QUOTED.finditer(text):
        value = quoted[2].strip()
        if not re.search(r"(?<!\\)(?:\\\\)*\\[a-zA-Z]", value):  # then it is LaTeX as it stands
            value = re.sub(r"\\([\\\"'])", r"\1", value)
        values.append(value)
    return [value for value in values if value]
