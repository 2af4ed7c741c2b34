"""The study of studies/PROTOCOL.md:

    python -m studies         tables and pictures, in seconds
    python -m studies run     the runs, two at a time on two cores, each in about six minutes

A run that has a record is not made again: the same command goes on where it was stopped.
"""

import argparse

from runtime.faults import or_refuse
from studies import analysis, arms, pictures, runs


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser("python -m studies")
    parser.add_argument("command", nargs="?", choices=["run"], help="make the missing runs")
    if parser.parse_args().command:
        return runs.make()
    blocks = analysis.grouped(runs.read(), arms.BLOCKS)
    print(analysis.report(blocks, arms.ROWS))
    pictures.draw(blocks, arms.ROWS)


if __name__ == "__main__":
    or_refuse(main)
