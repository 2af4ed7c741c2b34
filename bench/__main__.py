"""Measure speed on this machine, and print one table per section.

    python -m bench           every section, about ten minutes on two cores
    python -m bench step      a training step, ours beside TRL's
    python -m bench sampler   a step's draw and moves, at two sizes of the buffer
    python -m bench grader    answers a second

Earlier figures, and what they mean, are in bench/README.md. Only `step` needs TRL; without it our
step is timed alone.
"""

import argparse
import os
import platform
import time

from runtime.faults import loading

SECTIONS = ("step", "sampler", "grader")


def main() -> None:
    """Print a table for the section on the command line, or one for each."""
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("section", nargs="?", choices=SECTIONS, help="Else all.")
    asked = parser.parse_args().section

    loading()

    from bench.draws import bench_sampler
    from bench.grading import bench_grader
    from bench.step import bench_step

    machine = f"{platform.machine()}, {os.cpu_count()} cores, {time.strftime('%F')}"
    print(f"{machine}, load average before the start {os.getloadavg()[0]:.1f}")
    sections = [asked] if asked else SECTIONS
    for section in sections:
        print(f"\n## {section}\n\n| what | measured | beside it |\n|---|---|---|", flush=True)
        if section == "step":
            rows = bench_step()
        elif section == "sampler":
            rows = bench_sampler()
        else:
            rows = bench_grader()
        for row in rows:
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
