"""Speed and memory, phase by phase: one table per section (figures and their discussion: BENCHMARKS.md).

    python -m studies.bench                    every section, small sizes: about 15 minutes on two cores
    python -m studies.bench buffer --full      one section, at the paper's scale
    python studies/bench.py --plan configs/qwen2.5-math-7b.yaml --gpus 8 --gpu-memory 80

The last form measures nothing: it prints the memory budget of a rank for a configuration. TRL is needed only by
the section `step`; where it is not installed beside this project, `TRL_PATH` may name a directory that holds it
(`pip install --no-deps --target DIR trl accelerate datasets dill multiprocess xxhash pandas`).
"""

import argparse
import importlib
import os
import platform
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for `python studies/bench.py`

SECTIONS = {  # name -> (module, function that takes the command line's arguments and yields rows)
    "step": ("studies.bench_step", "bench_step"),
    "policy": ("studies.bench_policy", "bench_policy"),
    "head": ("studies.bench_policy", "bench_head"),
    "replay": ("studies.bench_replay", "bench_replay"),
    "verify": ("studies.bench_verify", "bench_verify"),
    "buffer": ("studies.bench_buffer", "bench_buffer"),
}


def main() -> None:
    """Print a table per section, or the plan of a configuration."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", help=f"of {', '.join(SECTIONS)}; all if none is named")
    parser.add_argument("--full", action="store_true", help="the paper's scale instead of a smaller one")
    parser.add_argument("--plan", metavar="CONFIG", help="print the memory budget of a configuration")
    parser.add_argument("--gpus", type=int, default=8, help="ranks that share a model: GPUs of a node")
    parser.add_argument("--gpu-memory", type=float, default=80.0, help="memory of a GPU in GB (1e9 bytes)")
    args = parser.parse_args()
    if unknown := set(args.sections) - set(SECTIONS):
        parser.error(f"unknown sections {sorted(unknown)}; there are {', '.join(SECTIONS)}")
    if args.plan:
        from studies.memory_plan import print_plan

        print_plan(args.plan, args.gpus, args.gpu_memory)
        return
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"{machine}, {time.strftime('%F')}, load average before the start {os.getloadavg()[0]:.1f}")
    for name in args.sections or SECTIONS:
        module, function = SECTIONS[name]
        print(f"\n## {name}\n\n| what | ours | reference / bar |\n|---|---|---|", flush=True)
        for row in getattr(importlib.import_module(module), function)(args):
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
