"""The paper's claims on the built-in world: train what a study needs, measure, decide, draw.

    python -m studies fig1a                 one study with 5 seeds
    python -m studies all                   every study; Ctrl-C at any time, the same command continues
    python -m studies fig1a --fresh         the same, the runs recorded in studies/results/runs/ made anew
    python -m studies all --quick           2 seeds and short runs, to see that it works: not for README.md

One process a core (`taskset` gives it fewer), each a single-rank `train.py`. Finished runs are recorded and
shared by the studies. Results go to studies/results/NAME/ (with --quick: studies/cache/quick/NAME/), and into
the table of studies/README.md.
"""

import argparse
import fcntl
import os
import signal
import sys

from studies import decide
from studies.claims import ALIASES, STUDIES
from studies.jobs import CACHE, FULL, QUICK, Job
from studies.measures import Data
from studies.pool import make_places, run_jobs
from studies.records import EDITION


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line, `names` (the studies asked for) and `seeds` filled in; SystemExit if it is wrong."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m studies", description=__doc__, formatter_class=raw)
    parser.add_argument("study", choices=["all", *STUDIES, *ALIASES], metavar="NAME",
                        help=f"all, {', '.join(STUDIES)}")
    parser.add_argument("--seeds", type=int, help="runs of every kind, 2 to 10 [5; with --quick 2]")
    parser.add_argument("--quick", action="store_true", help="short runs on few questions")
    parser.add_argument("--fresh", action="store_true",
                        help="remove the records of these runs and make them anew; not to continue them")
    args = parser.parse_args(argv)
    args.seeds = args.seeds or (2 if args.quick else 5)
    if not 2 <= args.seeds <= 10:
        parser.error("--seeds must be 2 to 10: an interval needs two")
    args.names = list(STUDIES) if args.study == "all" else [ALIASES.get(args.study, args.study)]
    return args


def main(argv: list[str] | None = None) -> int:
    """Run the studies named; returns the exit status: 1 where a run failed, 130 when interrupted."""
    args = parse(argv)
    data = Data(args.seeds, QUICK if args.quick else FULL)
    needed = {name: decide.jobs_of(STUDIES[name], data) for name in args.names}
    jobs = dict.fromkeys(job for name in args.names for job in needed[name])
    # the two runs whose seconds are compared first, all workers free, so that they run side by side; the
    # others seed by seed, so that some seeds are whole if time runs out
    jobs = sorted(jobs, key=lambda job: (job.name not in ("exgrpo", "on_policy"), job.seed))
    workers = len(os.sched_getaffinity(0))
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit("another `python -m studies` is at work on this cache: wait for it, or stop it")
        for job in jobs if args.fresh else ():
            job.forget()
        for number in (signal.SIGINT,
                       signal.SIGTERM):  # also where a shell started this in the background, deaf to Ctrl-C
            signal.signal(number, signal.default_int_handler)
        done = sum(job.done for job in jobs)
        print(f"{', '.join(args.names)}: {len(jobs)} jobs, {done} of them done, {workers} at a time")
        check_editions(needed)
        try:
            failed = run_jobs(jobs, workers, make_places(jobs)) if done < len(jobs) else {}
        except KeyboardInterrupt:
            print("\nstopped; the same command continues from here")
            return 130
    for name in args.names:
        if missing := [f"{job.name}/{job.seed}" for job in needed[name] if not job.done]:
            print(f"\n{name}: not written, without {', '.join(missing)}")
            continue
        print(decide.text(decide.write(name, data, CACHE / "quick" if args.quick else decide.RESULTS)))
    if data.budget == FULL and data.seeds >= 3:  # what studies/README.md may hold
        decide.update()
    return 1 if failed else 0


def check_editions(needed: dict[str, list[Job]]) -> None:
    """Say which studies stand on records of an earlier edition; SystemExit where one would mix editions."""
    old = {}
    for name, jobs in needed.items():
        editions = {job.record()["edition"] if job.done else EDITION for job in jobs}
        first = min(editions)
        if len(editions) > 1:
            sys.exit(f"{name}: edition {first} of this code recorded some of its runs, and edition {EDITION} "
                     "repeats none. Ask for no more --seeds than there are, or for all anew with --fresh.")
        if first < EDITION:
            old.setdefault(first, []).append(name)
    for edition, names in old.items():
        print(f"recorded by edition {edition} of this code (today's is {EDITION}): {', '.join(names)}")


if __name__ == "__main__":
    sys.exit(main())
