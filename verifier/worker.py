"""A verifier process: its life, and how the trainer starts, feeds, times, kills and restarts it (reward.py has many).

The process is this file run as a program. It is not forked (CUDA and vLLM may be up), imports nothing but the
reward function, and speaks JSON lines over a socket: `[[text, answer], ...]` in, a `{"score": ...}` each out. The
parent holds the clock: a pair that takes more than `timeout` seconds costs the process its life and scores 0.
"""

import contextlib
import faulthandler
import importlib
import json
import math
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback

START_SECONDS = 120.0  # for a worker to import Math-Verify: about 1 s on an idle machine


def peak_memory() -> int:
    """Most bytes this process has had resident. Not `ru_maxrss` on Linux: a process inherits it from its parent."""
    with contextlib.suppress(FileNotFoundError), open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # macOS: in bytes


def work(descriptor: int, name: str, timeout: float, max_bytes: int) -> None:
    """The life of a worker: until the parent closes the socket, or is gone, or the reward function raises."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's
    with contextlib.suppress(ValueError, OSError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (max_bytes, max_bytes))
    stream = socket.socket(fileno=descriptor).makefile("rw", encoding="ascii", newline="\n")

    def reply(**message) -> None:
        stream.write(json.dumps(message) + "\n")
        stream.flush()

    try:
        module, _, attribute = name.partition(":")
        reward = getattr(importlib.import_module(module), attribute)
        reply(ready=True)
        for line in stream:
            for text, answer in json.loads(line):
                # Should the parent die while this hangs in C code, a watchdog that needs no GIL ends it.
                faulthandler.dump_traceback_later(2 * timeout + 1, exit=True, file=sys.__stderr__)
                score = float(reward(text, answer))
                faulthandler.cancel_dump_traceback_later()
                if not math.isfinite(score):
                    raise ValueError(f"{name} returned {score}")
                # Bloated, it would soon fail good answers for lack of memory: it asks to be replaced.
                reply(score=score, replace=peak_memory() > max_bytes / 2)
    except ConnectionError:  # the parent is gone
        pass
    except BaseException:
        reply(error=traceback.format_exc())


class Worker:
    """One worker process as the trainer sees it: started, fed, timed, killed, started again."""

    def __init__(self, name: str, timeout: float, max_bytes: int):
        self.name, self.timeout, self.max_bytes = name, timeout, max_bytes
        self.process, self.socket, self.received, self.ready = None, None, b"", False
        self.timeouts, self.closed, self.lock = 0, False, threading.Lock()

    def start(self) -> None:
        """Start the process, if there is none; `wait_ready` does the waiting."""
        with self.lock:
            if self.closed:
                raise RuntimeError("the Verifier is closed")
            if self.process is not None:
                return
            self.socket, theirs = socket.socketpair()
            self.received, self.ready = b"", False
            path = os.pathsep.join(entry or os.getcwd() for entry in [*sys.path, ""])
            arguments = [theirs.fileno(), self.name, self.timeout, self.max_bytes]
            with theirs:
                self.process = subprocess.Popen(
                    [sys.executable, os.path.abspath(__file__), *map(str, arguments)],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    env={**os.environ, "PYTHONPATH": path},
                )

    def wait_ready(self) -> None:
        """Until the worker has imported its reward function. RuntimeError with the reason if it cannot."""
        if not self.ready:
            try:
                self.ready = self.receive(START_SECONDS)["ready"]
            except (TimeoutError, EOFError, ConnectionError) as error:
                raise RuntimeError(f"a worker of the reward {self.name!r} did not start") from error

    def receive(self, seconds: float) -> dict:
        """Its next line. TimeoutError after `seconds`; EOFError or ConnectionError if it died; RuntimeError
        with its traceback if its reward function raised."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self.received:
            self.socket.settimeout(max(deadline - time.monotonic(), 1e-3))
            data = self.socket.recv(65536)
            if not data:
                raise EOFError
            self.received += data
        line, _, self.received = self.received.partition(b"\n")
        message = json.loads(line)
        if "error" in message:
            self.stop()
            raise RuntimeError(f"the reward {self.name!r} failed:\n{message['error']}")
        return message

    def kill(self) -> None:
        """End the process for good: whoever waits for it sees it die, and it is not started again."""
        with self.lock:
            self.closed = True
            if self.process is not None:
                self.process.kill()

    def stop(self) -> None:
        """Kill and reap the process, if there is one."""
        with self.lock:
            if self.process is not None:
                self.process.kill()
                self.process.wait()
                self.socket.close()
            self.process, self.ready = None, False

    def grade(self, pairs: list[tuple[str | None, str]]) -> list[float]:
        """The pairs' scores, in order. A pair that outlives `timeout` scores 0, and so does one during which
        the worker dies twice (once may have been somebody else's doing)."""
        scores, died = [], False
        while len(scores) < len(pairs):
            try:
                self.start()
                self.wait_ready()
                self.socket.settimeout(self.timeout)
                self.socket.sendall(json.dumps(pairs[len(scores) :]).encode() + b"\n")
                while self.process is not None and len(scores) < len(pairs):
                    message = self.receive(self.timeout)
                    scores.append(message["score"])
                    died = False
                    if message["replace"]:
                        self.stop()
            except (TimeoutError, EOFError, ConnectionError) as error:
                self.stop()
                died = not died and not isinstance(error, TimeoutError)
                if not died:
                    self.timeouts += 1
                    scores.append(0.0)
        return scores


if __name__ == "__main__":
    work(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
