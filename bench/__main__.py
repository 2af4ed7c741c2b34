"""Speed and memory, phase by phase: one table per section (figures and their discussion: bench/README.md).

    python -m bench                    every section but `real`, small sizes: about 15 minutes on two cores
    python -m bench real               the step of SmolLM2-135M, after `make smollm-ready`
    python -m bench buffer --full      one section, at the paper's scale

TRL is needed only by the sections `step` and `real`; where it is not installed beside this project,
`TRL_PATH` may name a directory of
`pip install --no-deps --target DIR trl accelerate datasets dill multiprocess xxhash pandas`.
"""

import argparse
import importlib
import os
import platform
import time

SECTIONS = {  # name -> (module, function that takes the command line's arguments and yields rows)
    "step": ("bench.step", "bench_step"),
    "real": ("bench.step", "bench_real"),
    "policy": ("bench.update", "bench_policy"),
    "head": ("bench.update", "bench_head"),
    "verify": ("bench.verify", "bench_verify"),
    "buffer": ("bench.store", "bench_buffer"),
}


def main() -> None:
    """Print a table per section."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m bench", description=__doc__, formatter_class=raw)
    parser.add_argument("sections", nargs="*", help=f"of {', '.join(SECTIONS)}; else all but real")
    parser.add_argument("--full", action="store_true", help="the paper's scale instead of a smaller one")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="of step and real; else both")
    args = parser.parse_args()
    if unknown := set(args.sections) - set(SECTIONS):
        parser.error(f"unknown sections {sorted(unknown)}; there are {', '.join(SECTIONS)}")
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"{machine}, {time.strftime('%F')}, load average before the start {os.getloadavg()[0]:.1f}")
    for name in args.sections or [name for name in SECTIONS if name != "real"]:
        module, function = SECTIONS[name]
        print(f"\n## {name}\n\n| what | ours | reference / bar |\n|---|---|---|", flush=True)
        for row in getattr(importlib.import_module(module), function)(args):
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
