"""Faults end a run within seconds and say why; Ctrl-C and SIGTERM are noted, for the loop to save and leave.

torchrun notices a rank that exits, but not one that waits for ever; and a rank that waits for a dead one may
do so for hours. Two things end such waits, whatever the main thread is stuck in:

- a timer in C (faulthandler), set anew by every phase, prints this rank's stacks and ends it after
  `hang_timeout`. It needs neither Python's lock nor a stderr that somebody reads.
- a thread looks again and again whether another rank of this machine, or torchrun, has died.

Only programs started by `ranks.run` are watched.
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

TURN = 0.5  # seconds between the stacks of neighbouring ranks, which would be mixed up on the console


class Watchdog:
    """The watcher of this process."""

    def __init__(self):
        self.name, self.peers, self.limit, self.turn = "rank 0", {}, 0.0, 0.0
        self.phase, self.since = "set-up", time.monotonic()
        self.interrupted = False  # has somebody asked this rank to stop
        self._ended = threading.Event()
        self._ended.set()

    def start(self) -> None:
        """Take over signals and begin to watch (main thread only)."""
        faulthandler.enable()
        sys.stdout, sys.stderr = Console(sys.stdout), Console(sys.stderr)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)
        self._ended.clear()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        """No more watching: from here on ranks end one by one."""
        self._ended.set()
        faulthandler.cancel_dump_traceback_later()

    def configure(self, name: str, peers: Mapping[str, int], limit: float, turn: int) -> None:
        """This rank's name and number on its machine (`turn`), {name: process id} of the other processes of
        this machine that it depends on, and how many seconds a phase may last (0: any)."""
        self.name, self.peers, self.limit, self.turn = name, dict(peers), limit, TURN * turn
        self.enter("set-up")

    def enter(self, phase: str) -> None:
        """A new phase begins, its time counts from now."""
        self.phase, self.since = phase, time.monotonic()
        if self.limit and not self._ended.is_set():
            faulthandler.dump_traceback_later(self.limit + self.turn + 0.8 * TURN, exit=True, file=2)

    def dead(self) -> list[str]:
        """Names of the processes that have died."""
        return [name for name, pid in self.peers.items() if not _alive(pid)]

    def end(self, reason: str) -> None:
        """Say why and leave at once: nothing that could wait for another rank is run."""
        lasted = time.monotonic() - self.since
        say(f"{self.name} stops in phase {self.phase!r}, {lasted:.0f} s into it: {reason}")
        if self.limit and lasted > self.limit / 2:  # others may have died of a hang: here is the rest
            time.sleep(self.turn)
            faulthandler.dump_traceback(file=2)
        leave(1)

    def _note(self, number, frame) -> None:
        name = signal.Signals(number).name
        if dead := self.dead():  # torchrun ends the others then
            self.end(f"{name}, and {' and '.join(dead)} died: nothing can be saved")
        if self.phase == "set-up":
            self.end(f"{name} outside of the training loop: there is nothing to save")
        if not self.interrupted and self.name == "rank 0":
            say(f"{name}: finishing the step, then saving")
        self.interrupted = True

    def _watch(self) -> None:
        while not self._ended.wait(TURN / 2):
            if self.limit and time.monotonic() - self.since > self.limit + self.turn:
                say(f"{self.name}: phase {self.phase!r} has lasted longer than hang_timeout={self.limit:g} "
                    "s: it hangs, or needs a longer one; the stacks show where it waits")
                time.sleep(1.0)  # the timer ends it
            elif dead := self.dead():
                self.end(f"{' and '.join(dead)} died, see above")


class Console:
    """stdout or stderr whose reader may leave (`| head`), whose disk may be full: the run goes on without."""

    def __init__(self, stream):
        self.stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self.stream.flush()

    def __getattr__(self, name: str):
        return getattr(self.stream, name)


def say(text: str) -> None:
    """A line on stderr, from a signal handler or a thread too; lost where nobody reads it."""
    with contextlib.suppress(OSError):
        os.write(2, f"{text}\n".encode())


def leave(code: int) -> None:
    """End this process at once, output flushed, nothing cleaned up, no thread waited for."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
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
