"""The first held-out questions, whatever they are, and what two models answered, in full.

    python -m tools.answers runs/smollm2/base runs/smollm2/trained

The directories are what `eval.py --output` wrote, for the same questions.
"""

import argparse
from pathlib import Path

from runtime.console import printable
from runtime.tables import read_jsonl
from tools.compare import labels


def first_answers(directory: Path, n: int) -> dict[str, dict]:
    """The first response to each of the first n questions, by question key, in order."""
    responses = [r for r in read_jsonl(directory / "responses.jsonl") if r["sample"] == 0]
    return {r["question"]: r for r in responses[:n]}


def side_by_side(directories: list[Path], n: int) -> str:
    """n questions, each with its gold answer and every model's response; ValueError if they differ."""
    if n < 1:
        raise ValueError(f"--first must be at least 1, got {n}")
    names = labels(list(map(str, directories)))
    answers = [first_answers(directory, n) for directory in directories]
    if len(set(map(tuple, answers))) > 1:
        raise ValueError(f"{' and '.join(map(str, directories))} hold responses to other questions")
    lines = []
    for key, asked in answers[0].items():
        lines.append(f"---- {asked['text']}  [{asked['gold']}]")
        for name, found in zip(names, answers):
            lines.append(f"{name}, {'right' if found[key]['success'] else 'wrong'}: {found[key]['response']}")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> None:
    """Print them for the directories of the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.answers", description=__doc__.split("\n")[0])
    parser.add_argument("directories", nargs="+", type=Path, metavar="DIR", help="eval.py --output DIR")
    parser.add_argument("--first", type=int, default=3, help="how many questions")
    args = parser.parse_args(argv)
    try:
        print(printable(side_by_side(args.directories, args.first)))
    except (OSError, ValueError) as error:
        raise SystemExit(f"tools.answers: {error}") from error


if __name__ == "__main__":
    main()
