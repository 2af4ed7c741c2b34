"""Clocks and meters that the benchmarks share."""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import median

Row = tuple[str, str, str]  # what, ours, reference or bar
ROOT = Path(__file__).resolve().parent.parent


def seconds(function: Callable[[], object], repeats: int = 1) -> float:
    """Median wall time of a call."""
    return interleaved({"it": function}, repeats)["it"]


def interleaved(functions: dict[str, Callable], repeats: int, clock=time.perf_counter) -> dict[str, float]:
    """Median time of each function, called in turns, so that a busy spell of the machine hits them alike."""
    times = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            start = clock()
            function()
            times[name].append(clock() - start)
    return {name: median(values) for name, values in times.items()}


def peak_tensor_bytes(function: Callable[[], object], device: str = "cpu") -> int:
    """The most bytes of tensors alive at once on a device beyond those before; on the CPU by the
    allocator's own events."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    if device == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        function()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        function()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    return max(accumulate(e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())))


def peak_resident_bytes() -> int:
    """The process's largest resident size so far (Linux; getrusage would count the parent's as well)."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))


def torchrun(ranks: int, *command: str) -> list[str]:
    """A command line that runs a script of this repository on `ranks` processes of this machine."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    return [*launcher, *command]


@dataclass
class Steps:
    """What a run took from step to step, the first one left out."""

    lines: list[str]  # everything it printed
    wall: list[float]  # seconds
    cpu: list[float]  # CPU seconds of all its processes: what the step costs, whoever else uses the machine


def run(command: list[str], environment: dict[str, str], mark: str, timeout: float = 3600) -> Steps:
    """Run a command in the repository's root; a step ends with a line that starts with `mark`.

    RuntimeError with the end of the output where the command fails.
    """
    import psutil

    process = subprocess.Popen(command, cwd=ROOT, env=environment | {"PYTHONUNBUFFERED": "1"}, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    lines, marks, end = [], [], time.monotonic() + timeout
    for line in process.stdout:
        lines.append(line.rstrip())
        if line.startswith(mark):
            times = [p.cpu_times() for p in psutil.Process(process.pid).children(recursive=True)]
            marks.append((time.perf_counter(), sum(t.user + t.system for t in times)))
        if time.monotonic() > end:
            process.kill()
    if process.wait():
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}:\n" + "\n".join(lines[-60:]))
    wall, cpu = ([b - a for a, b in zip(t, t[1:])] for t in zip(*marks))
    return Steps(lines, wall, cpu)
