"""End a run within seconds of a fault and say why, and let it save and leave on Ctrl-C.

SIGTERM and SIGHUP do what Ctrl-C does. torchrun notices a rank that exits, but not one that waits
for ever; and a rank that waits for a dead one may do so for hours. Two things end such waits,
whatever the main thread is stuck in:

- a timer in C (faulthandler), set anew by every phase, prints this rank's stacks and ends it after
  `hang_timeout`. It needs neither Python's lock nor a stderr that somebody reads.
- a thread looks again and again whether another rank of this machine, or torchrun, has died.

Only programs started by `ranks.run` are watched.
"""

import concurrent.futures
import contextlib
import faulthandler
import gc
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import psutil
import yaml

from runtime.console import printable

# Seconds between the stacks of neighbouring ranks, which would be mixed up on the console.
TURN = 0.5
# Phases that are left at once when interrupted.
LEFT = ("plan", "rollout", "validate", "evaluation")
# Phases that are finished first, because they change what is saved.
FINISHED = ("store", "update", "sync", "save")
OUT_OF_MEMORY = (
    "Lower tokens_per_micro_batch, turn on gradient_checkpointing, train adapters alone "
    "(lora_rank), or run fewer ranks here"
)
SILENT = (
    "died without a message, nobody knows when; what other ranks saw of it stands elsewhere here."
    f" If signal 9 killed it, the machine has probably run out of memory. {OUT_OF_MEMORY}"
)
# Here the kernel counts the processes that it has killed for memory, a container's too.
COUNTERS = Path("/proc/vmstat")


class Interrupted(Exception):
    """Somebody asked the run to stop, in a phase that is left at once."""


class Failure(RuntimeError):
    """An error that somebody can mend outside of the program, told by its sentence alone."""


class Watchdog:
    """The watcher of this process, which ends it where it hangs or another rank has died."""

    def __init__(self):
        self.name = "rank 0"
        self.peers = {}
        self.limit = 0.0
        self.turn = 0.0
        self.phase = "set-up"
        self.since = time.monotonic()
        self.interrupted = False  # whether somebody has asked this rank to stop
        self.oom_kills = oom_kills()
        self._ended = threading.Event()
        self._ended.set()

    def start(self) -> None:
        """Take over signals and begin to watch, which only the main thread may ask for."""
        # torchrun's summary says this of a rank that dies without a word.
        tell_torchrun(f"rank {os.environ.get('RANK', 0)} {SILENT}", later=3e7)
        faulthandler.enable()
        sys.stdout = Console(sys.stdout)
        sys.stderr = Console(sys.stderr)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # what nohup has ignored stays so
                signal.signal(number, self._note)
        self._ended.clear()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        """Stop watching, as ranks end one by one from here on."""
        self._ended.set()
        faulthandler.cancel_dump_traceback_later()

    def configure(self, name: str, peers: Mapping[str, int], limit: float, turn: int) -> None:
        """Set who this rank is, which processes it depends on, and how long a phase may last.

        peers: {name: process id} of the other processes of this machine that it depends on.
        limit: seconds that a phase may last; 0 for any. turn: this rank's number on its machine.
        """
        self.name = name
        self.peers = dict(peers)
        self.limit = limit
        self.turn = TURN * turn
        self.enter("set-up")

    def enter(self, phase: str) -> None:
        """Begin a new phase, whose time counts from now."""
        self.phase = phase
        self.since = time.monotonic()
        if self.limit and not self._ended.is_set():
            faulthandler.dump_traceback_later(
                self.limit + self.turn + 0.8 * TURN, exit=True, file=2
            )

    def dead(self) -> list[str]:
        """Return the names of the peers that have died."""
        return [name for name, pid in self.peers.items() if not _alive(pid)]

    def end(self, reason: str, echo: bool = False) -> None:
        """Say why this process stops, and end it without running anything that could wait.

        echo: whether it only stops because another process has failed.
        """
        lasted = time.monotonic() - self.since
        say(said := f"{self.name} stops in phase {self.phase!r}, {lasted:.0f} s into it: {reason}")
        tell_torchrun(said, later=echo)
        # The others may have died because all hung: then this rank's stacks are wanted too.
        if self.limit and lasted > self.limit / 2:
            time.sleep(self.turn)
            faulthandler.dump_traceback(file=2)
        leave(1)

    def _note(self, number, frame) -> None:
        name = signal.Signals(number).name
        if dead := self.dead():  # then it is torchrun that sends the signal, to end the others
            self.end(f"{name}, and {self.death(dead)}: nothing can be saved", echo=True)
        phase = self.phase.removeprefix("after ")
        if phase not in LEFT + FINISHED:
            self.end(f"{name} outside of the steps: there is nothing to save")
        if self.interrupted:
            return
        self.interrupted = True
        if self.name == "rank 0":
            what = "finishing" if phase in FINISHED else "leaving"
            wait = "torchrun waits 30 s for that, or what --shutdown-timeout says"
            limit = f"; {wait}" if "torchrun" in self.peers else ""
            say(f"{name}: {what} the step ({self.phase}) and saving{limit}")
        for peer, pid in self.peers.items():  # perhaps only this rank was told
            if peer.startswith("rank"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def check(self) -> None:
        """Raise Interrupted where this rank was asked to stop, in a phase that is left at once."""
        if self.interrupted and self.phase in LEFT:
            raise Interrupted

    def wait(self, futures: Collection[concurrent.futures.Future]) -> None:
        """Wait until all of the futures are done, or until `check` raises Interrupted."""
        while concurrent.futures.wait(futures, timeout=TURN).not_done:
            self.check()

    def death(self, names: list[str]) -> str:
        """Return that they died, and of what if this machine ran out of memory meanwhile."""
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
                time.sleep(1.0)  # meanwhile the timer of `enter` ends this process
            elif dead := self.dead():
                self.end(f"{self.death(dead)}, see above", echo=True)


class Console:
    """A stdout or stderr that a run can go on without.

    Its reader may leave (`| head`), or its disk may be full.
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
    """Return how many processes the kernel of this machine has killed for memory."""
    with contextlib.suppress(OSError):
        if found := re.search(r"^oom_kill (\d+)", COUNTERS.read_text(), re.MULTILINE):
            return int(found[1])
    return 0


def say(text: str) -> None:
    """Write a line to stderr, which a signal handler or a thread may do too.

    The line is lost where nobody reads it.
    """
    with contextlib.suppress(OSError):
        os.write(2, f"{text}\n".encode())


def once(text: str) -> None:
    """Print a line on stderr, by one rank of each machine."""
    if is_first():
        print(text, file=sys.stderr)


def is_first() -> bool:
    """Return whether this is the rank of its machine that speaks for all."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def loading() -> None:
    """Say what the user is waiting for while imports last."""
    gc.set_threshold(50_000)  # imports leave no garbage to look for; `ranks.setup` sets it back
    once("loading PyTorch and transformers, then the model ...")


def or_refuse(read: Callable):
    """Return what `read()` returns, or end this process with its refusal.

    The refusal is one sentence on stderr, without traceback; torchrun's summary repeats it. What
    `read()` prints there itself, as tyro does, is one rank's, too.
    """
    sys.stdout.reconfigure(errors="backslashreplace")  # an ASCII terminal shows escapes
    try:
        with contextlib.redirect_stderr(sys.stderr if is_first() else io.StringIO()):
            return read()
    except (OSError, RuntimeError, ValueError, yaml.YAMLError) as error:
        said = printable(str(error))
        once(said)
        tell_torchrun(said)
        sys.exit(1)


def tell_torchrun(text: str, later: float = 0) -> None:
    """Leave the text for torchrun's summary of a failed job.

    The summary ends with the earliest text of all ranks. So an echo is dated a second `later`, and
    what stands for no message at all a year.
    """
    if summary := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        about = {"timestamp": str(int(time.time() + later)), "py_callstack": text}
        with contextlib.suppress(OSError):
            Path(summary).write_text(json.dumps({"message": {"message": text, "extraInfo": about}}))


def last_word(text: str) -> None:
    """Print the text once more after torchrun, whose own traceback on Ctrl-C would hide it."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        wait = 'while kill -0 "$0" 2>/dev/null; do sleep 0.1; done; echo "$1" >&2'
        subprocess.Popen(["sh", "-c", wait, str(os.getppid()), text], start_new_session=True)


def leave(code: int) -> None:
    """Flush the output and end this process at once, without clean-up or waiting for threads."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


def _alive(pid: int) -> bool:
    """Return whether a process of this machine runs, which a zombie does not."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


watchdog = Watchdog()


@contextlib.contextmanager
def out_of_memory_names_knobs(tokens_per_micro_batch: int, gradient_checkpointing: bool):
    """Turn "out of memory" inside into a RuntimeError that names the knobs and their values."""
    import torch

    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch.cuda.OutOfMemoryError is a RuntimeError
        known = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if not known and "can't allocate memory" not in str(error):
            raise
        raise RuntimeError(
            "out of memory in the policy. Lower tokens_per_micro_batch (now"
            f" {tokens_per_micro_batch}), turn on gradient_checkpointing (now"
            f" {gradient_checkpointing}), or use more ranks: none of these changes the gradient. On"
            " a GPU rollout_memory is what the engine may keep. lora_rank trains adapters alone,"
            " in less memory"
        ) from error
