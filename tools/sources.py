"""Where questions come from, a file of any columns or a data set of the Hugging Face hub, and go to."""

import csv
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from runtime.console import printable
from runtime.tables import check_row, read_jsonl

INSTALL_DATASETS = "pip install datasets==5.2.0"  # for data sets of the hub, nothing else needs it
Reader = Callable[[list[str]], Iterable[dict]]  # column names -> rows


def open_source(name: str, subset: str | None, split: str) -> tuple[list[str], Reader]:
    """The column names of a file or hub data set, and a function that reads the rows of some columns."""
    path = Path(name)
    if path.suffix == ".parquet" and path.exists():
        import pyarrow.parquet

        table = pyarrow.parquet.ParquetFile(path)
        return table.schema_arrow.names, lambda names: table.read(names).to_pylist()
    if path.suffix in (".jsonl", ".json", ".csv") and path.exists():
        rows = read_any(path)
        return list(dict.fromkeys(name for row in rows for name in row if name)), lambda names: rows
    if path.exists():
        raise ValueError(f"{name}: no .parquet, .jsonl, .json or .csv")
    if path.suffix in (".parquet", ".jsonl", ".json", ".csv"):
        raise ValueError(f"{name}: no such file")
    try:
        import datasets
    except ImportError:
        hint = f"{name} is no file; for a data set of the Hugging Face hub: {INSTALL_DATASETS}"
        raise ValueError(hint) from None
    table = datasets.load_dataset(name, subset, split=split)
    return table.column_names, table.select_columns


def pick(given: str | None, usual: tuple[str, ...], columns: list[str], flag: str) -> str:
    """The column asked for, or the first of the usual ones; ValueError with the columns there are."""
    wanted = [given] if given else usual
    for column in wanted:
        if column in columns:
            return column
    raise ValueError(f"no column {' or '.join(wanted)} among {', '.join(columns)}: name one with {flag}")


def read_any(file: Path) -> list[dict]:
    """Rows of a JSONL file, a JSON array or a CSV file, of any columns; ValueError where there are none."""
    try:
        if file.suffix == ".csv":
            with open(file, newline="", encoding="utf-8-sig") as text:
                rows = list(csv.DictReader(text))
            if ragged := [i for i, row in enumerate(rows) if None in row]:
                raise ValueError(f"{file}, row {ragged[0]}: more cells than columns; text with commas needs "
                                 "quotes")
        elif file.read_bytes()[:100].removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
            rows = json.loads(file.read_text(encoding="utf-8-sig"))
        else:
            rows = read_jsonl(file)
    except (csv.Error, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from error
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{file}: needs rows of named columns, {{\"question\": \"1+1\", \"answer\": 2}}")
    return rows


def write(rows: list[dict], output: Path) -> None:
    """The rows as a parquet file, made aside and moved, and a line on the first."""
    import pyarrow.parquet

    output.parent.mkdir(parents=True, exist_ok=True)
    aside = output.with_name(f"{output.name}.{os.getpid()}.tmp")  # a name that nobody else has
    for i, row in enumerate(rows):
        check_row(row, f"row {i}")
    try:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), aside)
    except (pyarrow.ArrowException, OverflowError) as error:
        aside.unlink(missing_ok=True)
        raise ValueError("the columns of extra_info must have one type in all rows, one that parquet has: "
                         f"{error}") from error
    os.replace(aside, output)
    print(printable(f"first row: {json.dumps(rows[0], ensure_ascii=False):.600}\nwrote {output}"))
