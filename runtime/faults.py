"""Faults end a run within seconds and say why; Ctrl-C,
SIGTERM and SIGHUP make the loop save and leave.

torchrun notices a rank that exits, but not one that waits for ever; and a rank that waits for a
dead one may do so for hours. Two things end such waits, whatever the main thread is stuck in:

- a timer in C (faulthandler), set anew by every phase, prints this rank's stacks and ends it after
  `hang_timeout`. It needs neither Python's lock nor a stderr that somebody reads.
- a thread looks again and again whether another rank of this machine, or torchrun, has died.

Only programs started by `ranks.run` are watched.
"""

import concurrent.futures
import contextlib
import faulthandler
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

TURN = (
    0.5  # seconds between the stacks of neighbouring ranks, which would be mixed up on the console
)
# Phases that are left at once when interrupted.
LEFT = ("plan", "rollout", "validate", "evaluation")
# And those that are finished: they change what is saved.
FINISHED = ("collect", "update", "sync", "save")
OUT_OF_MEMORY = (
    "Lower tokens_per_micro_batch, turn on gradient_checkpointing, train adapters alone "
    "(lora_rank), or run fewer ranks here; python -m tools.doctor --gpus N --memory GB adds up "
    "what a rank holds"
)
SILENT = (
    "died without a message, nobody knows when; what other ranks saw of it stands elsewhere here."
    f" If signal 9 killed it, the machine has probably run out of memory. {OUT_OF_MEMORY}"
)
# Of the kernel: kills for memory are counted here, a container's too.
COUNTERS = Path("/proc/vmstat")


class Interrupted(Exception):
    """Somebody asked the run to stop, in a phase that is left at once."""


class Failure(RuntimeError):
    """What somebody can mend outside of the program: its sentence is all that is said."""


class Watchdog:
    """The watcher of this process."""

    def __init__(self):
        self.name = "rank 0"
        self.peers = {}
        self.limit = 0.0
        self.turn = 0.0
        self.phase = "set-up"
        self.since = time.monotonic()
        self.interrupted = False  # has somebody asked this rank to stop
        self.oom_kills = oom_kills()
        self._ended = threading.Event()
        self._ended.set()

    def start(self) -> None:
        """Take over signals and begin to watch (main thread only)."""
        # Until there is more to say.
        tell_torchrun(f"rank {os.environ.get('RANK', 0)} {SILENT}", later=3e7)
        faulthandler.enable()
        sys.stdout = Console(sys.stdout)
        sys.stderr = Console(sys.stderr)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
                signal.signal(number, self._note)
        self._ended.clear()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        """No more watching: from here on ranks end one by one."""
        self._ended.set()
        faulthandler.cancel_dump_traceback_later()

    def configure(self, name: str, peers: Mapping[str, int], limit: float, turn: int) -> None:
        """This rank's name and number on its machine (`turn`), {name: process id} of the other
        processes of this machine that it depends on, and how many seconds a phase may last (0:
        any).
        """
        self.name = name
        self.peers = dict(peers)
        self.limit = limit
        self.turn = TURN * turn
        self.enter("set-up")

    def enter(self, phase: str) -> None:
        """A new phase begins, its time counts from now."""
        self.phase = phase
        self.since = time.monotonic()
        if self.limit and not self._ended.is_set():
            faulthandler.dump_traceback_later(
                self.limit + self.turn + 0.8 * TURN, exit=True, file=2
            )

    def dead(self) -> list[str]:
        """Names of the processes that have died."""
        return [name for name, pid in self.peers.items() if not _alive(pid)]

    def end(self, reason: str, echo: bool = False) -> None:
        """Say why, or of whose failure this is the echo,
        and leave: nothing that could wait is run.
        """
        lasted = time.monotonic() - self.since
        say(said := f"{self.name} stops in phase {self.phase!r}, {lasted:.0f} s into it: {reason}")
        tell_torchrun(said, later=echo)
        # Others may have died of a hang: here is the rest.
        if self.limit and lasted > self.limit / 2:
            time.sleep(self.turn)
            faulthandler.dump_traceback(file=2)
        leave(1)

    def _note(self, number, frame) -> None:
        name = signal.Signals(number).name
        if dead := self.dead():  # torchrun ends the others then
            self.end(f"{name}, and {self.death(dead)}: nothing can be saved", echo=True)
        phase = self.phase.removeprefix("after ")
        if phase not in LEFT + FINISHED:
            self.end(f"{name} outside of the steps: there is nothing to save")
        if self.interrupted:
            return
        self.interrupted = True
        if self.name == "rank 0":
            what = "finishing" if phase in FINISHED else "leaving"
            say(
                f"{name}: {what} the step ({self.phase}) and saving; torchrun waits 30 s for that,"
                " or what --shutdown-timeout says"
            )
        for peer, pid in self.peers.items():  # perhaps only this rank was told
            if peer.startswith("rank"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def check(self) -> None:
        """Interrupted, where this rank has been asked to stop and the phase is one that is left."""
        if self.interrupted and self.phase in LEFT:
            raise Interrupted

    def wait(self, futures: Iterable[concurrent.futures.Future]) -> None:
        """Until all of them are done; meanwhile Interrupted as by `check`."""
        futures = list(futures)
        while concurrent.futures.wait(futures, timeout=TURN).not_done:
            self.check()

    def death(self, names: list[str]) -> str:
        """That they died, and of what if this machine ran out of memory meanwhile."""
        text = f"{' and '.join(names)} died"
        if oom_kills() > self.oom_kills:
            text += (
                f": the machine ran out of memory, and the kernel killed a process. {OUT_OF_MEMORY}"
            )
        return text

    def _watch(self) -> None:
        while not self._ended.wait(TURN / 2):
            if self.limit and time.monotonic() - self.since > self.limit + self.turn:
                said = (
                    f"{self.name}: phase {self.phase!r} has lasted longer than"
                    f" hang_timeout={self.limit:g} s: it hangs, or needs a longer one; the stacks"
                    " show where it waits"
                )
                say(said)
                tell_torchrun(said)
                time.sleep(1.0)  # the timer ends it
            elif dead := self.dead():
                self.end(f"{self.death(dead)}, see above", echo=True)


class Console:
    """stdout or stderr whose reader may leave (`| head`),
    whose disk may be full: the run goes on without.
    """

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


def oom_kills() -> int:
    """How many processes the kernel of this machine has killed for memory."""
    with contextlib.suppress(OSError):
        if found := re.search(r"^oom_kill (\d+)", COUNTERS.read_text(), re.MULTILINE):
            return int(found[1])
    return 0


def say(text: str) -> None:
    """A line on stderr, from a signal handler or a thread too; lost where nobody reads it."""
    with contextlib.suppress(OSError):
        os.write(2, f"{text}\n".encode())


def tell_torchrun(text: str, later: float = 0) -> None:
    """Leave the text for torchrun's summary of a failed job,
    which ends with its ranks' earliest one.

    An echo says that it is a second `later`, what stands for no message at all a year.
    """
    if summary := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        about = {"timestamp": str(int(time.time() + later)), "py_callstack": text}
        with contextlib.suppress(OSError):
            Path(summary).write_text(json.dumps({"message": {"message": text, "extraInfo": about}}))


def last_word(text: str) -> None:
    """Say it once more when torchrun has ended, whose own traceback on Ctrl-C hides it."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        wait = 'while kill -0 "$0" 2>/dev/null; do sleep 0.1; done; echo "$1" >&2'
        subprocess.Popen(["sh", "-c", wait, str(os.getppid()), text], start_new_session=True)


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
