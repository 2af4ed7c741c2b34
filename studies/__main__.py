"""The questions of PROTOCOL.md: train what a row needs, decide it, draw it.

    python -m studies 2                 row 2: the runs that are not there yet, then the page anew
    python -m studies primary           both primary rows; secondary, exploratory and all likewise
    python -m studies all --quick       short runs of one unit, to see that it works; nothing is recorded
    python -m studies page              README.md's tables and pictures again, from the records
    python -m studies easy              the easy world: the first studies, and the table of the first page
    python -m studies tune              on-policy runs on the tuning units, to choose the lr of `hard`

One process a core (`taskset` gives it fewer), each a single-rank `train.py`; Ctrl-C at any time, the same
command continues. Records of finished jobs go to studies/results/runs/ and are shared by the rows.
"""

import argparse
import fcntl
import os
import signal
import sys

import numpy as np

from studies import easy, looked, page
from studies.jobs import CACHE, Job, jobs_of
from studies.measures import end, mean_of
from studies.pool import STOPS, run_jobs
from studies.protocol import ROWS, SETTINGS, TUNING_RATES, TUNING_UNITS, Row

FAMILIES = ("primary", "secondary", "exploratory")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line, with the `rows` asked for; SystemExit if it is wrong."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m studies", description=__doc__, formatter_class=raw)
    names = [*(str(row.number) for row in ROWS), *FAMILIES, "all", "page", "easy", "tune"]
    parser.add_argument("what", choices=names, metavar="WHAT", help=", ".join(names))
    parser.add_argument("--quick", action="store_true", help="short runs of one unit")
    args = parser.parse_args(argv)
    if args.quick and args.what in ("page", "easy", "tune"):
        parser.error(f"{args.what} has no trial run")
    args.rows = [row for row in ROWS if args.what in ("all", row.family, str(row.number))]
    return args


def tuning() -> list[Job]:
    """On-policy runs of `hard` on the tuning units, one for each learning rate."""
    return [Job("hard", "on_policy", unit, lr=lr) for unit in TUNING_UNITS for lr in TUNING_RATES]


def print_tuning() -> None:
    """Pass@1 at the end, in and out of distribution, and the share of all-equal groups of each rate."""
    for lr in TUNING_RATES:
        done = [job.record() for job in tuning() if job.lr == lr and job.done]
        held_out = SETTINGS["hard"].held_out
        for name, value in (("trained", [end(r, held_out) for r in done]),
                            ("held out", [end(r, held_out, "held out") for r in done]),
                            ("all-equal groups", [mean_of(r, "reward/all_equal_groups") for r in done])):
            print(f"lr {lr:<8g} {name:17} {np.round(value, 3).tolist()}")


def in_order(rows: list[Row], quick: bool) -> list[Job]:
    """The jobs of rows: a family before the next, and in it unit by unit, so that some are whole if time
    runs out; exploratory rows one by one."""
    jobs = [(FAMILIES.index(row.family), job.unit * (row.family != "exploratory"), job)
            for row in rows for job in jobs_of(row, quick)]
    return list(dict.fromkeys(job for *_, job in sorted(jobs, key=lambda place: place[:2])))


def run_alone(jobs: list[Job]) -> dict[Job, str]:
    """Run what is not done while nobody else does so on this cache; {job: why} for what failed."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit("another `python -m studies` is at work on this cache: wait for it, or stop it")
        for number in STOPS:  # Ctrl-C also where a shell started this deaf to it
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup
                signal.signal(number, signal.default_int_handler)
        left = [job for job in jobs if job.quick or not job.done]  # a trial run is of the code of now
        return run_jobs(left, len(os.sched_getaffinity(0))) if left else {}


def main(argv: list[str] | None = None) -> int:
    """Run the rows named; returns the exit status: 1 where a run failed, 130 when interrupted."""
    args = parse(argv)
    if args.what == "easy":
        print(easy.table(), looked.first_page(), sep="\n")
        return 0
    jobs = tuning() if args.what == "tune" else in_order(args.rows, args.quick)
    print(f"{args.what}: {len(jobs)} jobs, {sum(job.done for job in jobs)} of them done")
    try:
        failed = run_alone(jobs) if jobs else {}
    except KeyboardInterrupt:
        print("\nstopped; the same command continues from here")
        return 130
    if args.what == "tune":
        print_tuning()
    elif args.quick:
        print(page.table(page.decide(quick=True), FAMILIES))
    else:
        families = FAMILIES if args.what in ("all", "page") else tuple({row.family for row in args.rows})
        print(page.table(page.write(), families))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
