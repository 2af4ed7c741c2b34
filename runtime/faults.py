"""Faults end a run within seconds and say why; Ctrl-C and SIGTERM are noted, for the loop to save and leave.

`torchrun` notices a rank that exits, but not one that waits for ever, and a rank that waits for a dead one may
do so for hours. So a thread of every rank looks once a second: has a rank of this machine (or torchrun) died,
has this rank been in the same phase for longer than `hang_timeout`? It works while the main thread is stuck in
a collective. Only programs started by `ranks.run` are watched.
"""

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

DUMP = signal.SIGUSR1  # makes a rank print its stacks, whatever it is doing


class Watchdog:
    """The watcher of this process."""

    def __init__(self):
        self.name, self.peers, self.limit = "rank 0", {}, 0.0
        self.phase, self.since = "set-up", time.monotonic()
        self.interrupted = False  # has somebody asked this rank to stop
        self._stopped = threading.Event()

    def start(self) -> None:
        """Take over signals and begin to watch (main thread only)."""
        faulthandler.enable()
        faulthandler.register(DUMP, all_threads=True)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        """No more watching: from here on ranks end one by one."""
        self._stopped.set()

    def configure(self, name: str, peers: Mapping[str, int], limit: float) -> None:
        """This rank's name, {name: process id} of the other processes of this machine that it depends on, and
        how many seconds a phase may last (0: any)."""
        self.name, self.peers, self.limit = name, dict(peers), limit
        self.enter("set-up")

    def enter(self, phase: str) -> None:
        """A new phase begins, its time counts from now."""
        self.phase, self.since = phase, time.monotonic()

    def dead(self) -> list[str]:
        """Names of the processes that have died."""
        return [name for name, pid in self.peers.items() if not _alive(pid)]

    def end(self, reason: str) -> None:
        """Say why and leave at once: nothing that could wait for another rank is run."""
        lasted = time.monotonic() - self.since
        print(f"{self.name} stops in phase {self.phase!r}, {lasted:.0f} s into it: {reason}", file=sys.stderr)
        leave(1)

    def _note(self, number, frame) -> None:
        name = signal.Signals(number).name
        if dead := self.dead():  # torchrun ends the others then
            self.end(f"{name}, and {' and '.join(dead)} died: nothing can be saved")
        if self.phase == "set-up":
            self.end(f"{name} outside of the training loop: there is nothing to save")
        if not self.interrupted and self.name == "rank 0":
            print(f"{name}: finishing the step, then saving", file=sys.stderr, flush=True)
        self.interrupted = True

    def _watch(self) -> None:
        while not self._stopped.wait(1.0):
            if dead := self.dead():
                self.end(f"{' and '.join(dead)} died, see above")
            patience = 0 if self.name == "rank 0" else 5  # one rank reports a hang, before the others do
            if self.limit and time.monotonic() - self.since > self.limit + patience:
                self._report_hang()

    def _report_hang(self) -> None:
        """Every rank's stacks, then the end; the others follow and say their phases."""
        print(f"{self.name}: phase {self.phase!r} has lasted longer than hang_timeout={self.limit:g} s", file=sys.stderr)
        for name, pid in {self.name: os.getpid(), **self.peers}.items():
            if name.startswith("rank"):
                print(f"---- stacks of {name} ----", file=sys.stderr, flush=True)
                with contextlib.suppress(ProcessLookupError):  # it has ended just now
                    os.kill(pid, DUMP)
                time.sleep(0.5)  # keeps the stacks apart
        self.end("it hangs, or hang_timeout is too short for this phase; the stacks above show where each rank waits")


def leave(code: int) -> None:
    """End this process at once, output flushed, nothing cleaned up, no thread waited for."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _alive(pid: int) -> bool:
    """Whether a process of this machine runs (a dead one that nobody has waited for does not)."""
    if not Path("/proc/self/stat").exists():  # macOS
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


watchdog = Watchdog()
