"""Is this machine fit for this run? At most three minutes, before the first step on a new machine.

    python -m tools.doctor                                               # the built-in run
    torchrun --nproc_per_node=8 -m tools.doctor --config configs/qwen2.5-math-7b.yaml
    python -m tools.doctor --config FILE --rollout_memory 0.3 --json     # knobs as for train.py

Each line says ok, slow or wrong, what was found, and what to do. Exit code 1 if anything is wrong. Nothing is
trained or saved: the policy's weights are changed in memory only.
"""

import argparse
import json
import os
import platform
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace

import torch

from config import parse_config
from runtime import ranks
from runtime.console import printable
from runtime.faults import leave, tell_torchrun, watchdog
from runtime.flags import or_refuse
from tools.checks import CHECKS, LIMIT, Case, Finding
from tools.trials import TRIALS

LAST_START = 120.0  # seconds, when the last check may begin


def examine(case: Case, checks: Iterable[Callable[[Case], Finding]], tell: Callable[..., None],
            start: float) -> bool:
    """Run the checks in order and `tell(name, finding)` of each; returns whether nothing is wrong.

    Of several ranks the worst finding counts. A check that raises, or does not end, is wrong and the last:
    `tell(name, finding, alone=True)` on that rank, as others may wait for it.
    """
    several, good = os.environ.get("WORLD_SIZE", "1") != "1", True
    own = f"rank {os.environ.get('RANK', 0)}: " if several else ""
    for check in checks:
        name, elapsed = check.__name__.replace("_", " "), max(ranks.gather(time.monotonic() - start))
        watchdog.limit = max(LIMIT - elapsed, 1.0)
        watchdog.enter(name)
        if elapsed > LAST_START:
            tell(name, Finding("slow", f"not tried, {elapsed:.0f} s are over", "again: caches are warm now"))
            continue
        late = Finding("wrong", f"{own}not ended when the {LIMIT:.0f} s of the doctor were over",
                       "where its stacks show that it waits, it hangs; else try a smaller model")
        told = threading.Event()
        alarm = threading.Timer(watchdog.limit - 0.5, _tell_late, (told, tell, name, late))
        alarm.daemon = True
        alarm.start()
        try:
            finding = check(case)
        except Exception as error:  # whatever it is, it is what the doctor is asked for
            message = f"{own}{type(error).__name__}: {error}"
            tell(name, Finding("wrong", message, "mend this first: later checks build on it"), alone=True)
            if several:
                raise  # other ranks may wait for this one: ranks.run ends them
            return False
        finally:
            alarm.cancel()
        if told.is_set():
            if several:
                raise TimeoutError(late.found)  # as above
            return False
        found = ranks.gather(finding)
        worst = max(range(len(found)), key=lambda r: (("ok", "slow", "wrong").index(found[r].verdict), -r))
        finding = found[worst]
        tell(name, replace(finding, found=f"rank {worst}: {finding.found}") if worst else finding)
        good = good and finding.verdict != "wrong"
    return good


def _tell_late(told: threading.Event, tell: Callable[..., None], name: str, finding: Finding) -> None:
    told.set()
    tell(name, finding, alone=True)


def as_text(name: str, finding: Finding) -> str:
    """A line, and what to do below it."""
    line = f"{finding.verdict:5}  {name:22}  {finding.found}"
    return f"{line}\n{'':31}-> {finding.advice}" if finding.advice else line


def as_json(name: str, finding: Finding) -> str:
    """An object a line: nothing is lost where a later check ends the process."""
    return json.dumps({"check": name, **asdict(finding)})


def main() -> None:
    """Examine and leave, with 1 if anything is wrong."""
    start = time.monotonic()
    parser = argparse.ArgumentParser("python -m tools.doctor", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", metavar="FILE", help="YAML file of knobs; flags of train.py override it")
    parser.add_argument("--json", action="store_true", help="a JSON object a line")
    args, flags = parser.parse_known_args()
    case = Case(or_refuse(lambda: parse_config(flags + (["--config", args.config] if args.config else []))))
    page = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what else is printed does not belong to the report
    first, form = os.environ.get("RANK", "0") == "0", as_json if args.json else as_text

    def tell(name: str, finding: Finding, alone: bool = False) -> None:
        if first or alone:
            print(printable(form(name, finding)), file=page, flush=True)

    if first and not args.json:
        print(f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads a rank, "
              f"Python {platform.python_version()}, {time.strftime('%F')}, load average before the start "
              f"{os.getloadavg()[0]:.1f}", file=page, flush=True)
    watchdog.configure(f"rank {os.environ.get('RANK', 0)}", {}, LIMIT, 0)
    good = examine(case, CHECKS + TRIALS, tell, start)
    ranks.barrier()
    watchdog.stop()
    ranks.barrier()  # nobody watches any more: ranks may end one by one
    if not good:
        tell_torchrun("something is wrong with this machine or this run: see the report above")
    leave(0 if good else 1)


if __name__ == "__main__":
    ranks.run(main)
