"""The deciding study of studies/PROTOCOL.md:

python -m studies run     the runs, two at a time on two cores; goes on where it was stopped
python -m studies         how many runs are recorded; once all are, the tables and pictures
"""

import sys

from studies import runs, tables


def main() -> None:
    """Run the command line."""
    if sys.argv[1:] == ["run"]:
        runs.make()
        return
    records = runs.read()
    print(f"{len(records)} of {len(runs.SEEDS) * len(runs.METHODS)} runs are recorded")
    if len(records) == len(runs.SEEDS) * len(runs.METHODS):
        tables.report(records)


if __name__ == "__main__":
    main()
