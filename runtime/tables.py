"""Read files of questions, which are Parquet or JSONL in the verl-LUFFY columns; write JSONL.

A file has the columns `prompt` (a list of chat turns), `reward_model` (with the right answer as
`ground_truth`), `data_source` and, where a reward function wants more, `extra_info`. A row that
cannot be used is named with its number; `python -m tools.convert` makes such files.
"""

import json

GIVEN = ("data_source", "extra_info", "prompt")  # columns that a reward function gets


def read_rows(file: str) -> list[dict]:
    """Return the rows of a Parquet or JSONL file; pyarrow's own error for another kind."""
    if file.endswith(".jsonl"):
        return read_jsonl(file)
    from pyarrow.parquet import ParquetFile

    rows = []
    # pyarrow cannot convert nested columns of more than 2 GiB at once.
    for batch in ParquetFile(file).iter_batches(1000):
        rows += batch.to_pylist()
    return rows


def read_jsonl(file) -> list[dict]:
    """Return what the lines of a JSONL file hold; ValueError names a line that is not JSON."""
    rows = []
    for number, line in enumerate(open(file, encoding="utf-8"), 1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise ValueError(f"{file}, line {number}: {error}") from error
    return rows


def write_jsonl(file, rows: list[dict], mode: str = "w") -> None:
    """Write, or with mode "a" append, a line of JSON for each row."""
    with open(file, mode) as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)


def check_row(row: dict) -> tuple[list, str, dict]:
    """Return the chat turns and the answer of a row, and what a reward function is given of it.

    Raises KeyError, TypeError or ValueError for a row that lacks any of that.
    """
    turns = [{"role": turn["role"], "content": turn["content"]} for turn in row["prompt"]]
    answer = row["reward_model"]["ground_truth"]
    given = {name: row.get(name) for name in GIVEN}
    json.dumps(given)  # as it goes to the reward
    # A float may have lost digits.
    if not isinstance(answer, str | int) or not str(answer).strip():
        raise ValueError(f"ground_truth must be text or an integer, got {answer!r}")
    if not turns:
        raise ValueError("prompt must have a turn")
    return turns, str(answer), given
