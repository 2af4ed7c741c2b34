"""The study of studies/PROTOCOL.md:

    python -m studies                     tables and pictures of what is complete, in seconds
    python -m studies run                 the runs, in a tree that stands at the records' commit
    python -m studies run --tree DIR      the same in a clone that does

A run that has a record is not made again: the same command goes on where it was stopped.
"""

import argparse
from pathlib import Path

from runtime.flags import or_refuse
from studies import arms, runs


def main() -> None:
    """Run the command line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m studies", description=__doc__, formatter_class=raw)
    parser.add_argument("command", nargs="?", choices=["run"])
    parser.add_argument("--tree", type=Path, default=runs.ROOT, help="Whose train.py runs.")
    args = parser.parse_args()
    if args.command == "run":
        runs.make(arms.wanted(), args.tree)
        return
    from studies import analysis, pictures

    blocks = analysis.complete(runs.read())
    print(analysis.report(blocks))
    pictures.draw(blocks)


if __name__ == "__main__":
    or_refuse(main)
