"""The study of studies/PROTOCOL.md:

    python -m studies         tables and pictures, in seconds
    python -m studies run     the runs, two at a time on two cores, each in about six minutes

A run that has a record is not made again: the same command goes on where it was stopped.
"""

import argparse

from runtime.faults import or_refuse
from studies import analysis, few, pictures, runs


def main() -> None:
    """Run the command line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m studies", description=__doc__, formatter_class=raw)
    parser.add_argument("command", nargs="?", choices=["run"])
    if parser.parse_args().command == "run":
        return runs.make()
    records = runs.read()
    blocks = analysis.grouped(records, few.BLOCKS)
    print(f"{len(records)} of {len(few.all_runs())} runs\n\n{analysis.report(blocks, few.ROWS)}")
    pictures.draw(blocks, few.ROWS)


if __name__ == "__main__":
    or_refuse(main)
