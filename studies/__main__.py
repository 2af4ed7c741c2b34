"""The study of studies/PROTOCOL.md:

    python -m studies                                             tables and pictures, in seconds
    python -m studies run                                         the ladder
    python -m studies run --bases 30 31 32 --arms R0 R2 R4 H      the pilot
    python -m studies run --bases 10 11 12 13 --arms plain M25 uniform rho25     the spokes
    python -m studies run --bases 10 11 12 13 --settings luck rare few           the dial

A run that has a record is not made again: the same command goes on where it was stopped.
"""

import argparse

from runtime.flags import or_refuse
from studies import runs
from studies.arms import ALL, BASES, SETTINGS


def main() -> None:
    """Run the command line."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m studies", description=__doc__, formatter_class=raw)
    parser.add_argument("command", nargs="?", choices=["run"])
    parser.add_argument("--bases", nargs="+", type=int, default=BASES)
    parser.add_argument("--arms", nargs="+", choices=ALL, help="default: those of the setting")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=["default"])
    args = parser.parse_args()
    if args.command == "run":
        runs.run(args.settings, args.bases, args.arms)
        return
    from studies import analysis, pictures

    records = runs.read()
    print(analysis.report(records))
    pictures.draw_rows(records, runs.ROOT / "studies/anatomy.png")
    pictures.draw_curves(records, ["R0", "P", "PH"], runs.ROOT / "docs/assets/curve.png")


if __name__ == "__main__":
    or_refuse(main)
