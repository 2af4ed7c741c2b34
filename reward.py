"""The reward of Eq. 1: r(q, o) = 1 if the final answer of response o is right, else 0.

`graded_text` picks the piece of a response that counts; `Verifier` has Math-Verify compare it with the gold
answer (`verdict.py`), in worker processes that can be killed. Model output is hostile input (towers of
powers, deep nesting, a gigabyte of factorial), Math-Verify's own limits are Unix signals that need a main
thread and cannot interrupt C code, and a thread that hangs cannot be stopped. So the parent holds the clock:
a pair that takes more than `timeout` seconds costs its worker its life and scores 0; nothing else is lost.

A worker is this file run as a program. It is not forked (CUDA and vLLM may be up), imports nothing but the
reward function, and speaks JSON lines over a socket: `[[text, answer], ...]` in, a `{"score": ...}` each out.
"""

import contextlib
import faulthandler
import importlib
import json
import math
import os
import queue
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from concurrent.futures import Future, ThreadPoolExecutor

MAX_BOX = 1000  # characters; a longer box is no answer (the longest gold of the paper's benchmarks has 210)
MAX_TEXT = 2000  # characters, from the end, of a response without a box that Math-Verify may look at
CHUNK = 16  # pairs sent to a worker at once; each has its own deadline
START_SECONDS = 120.0  # for a worker to import Math-Verify: about 1 s on an idle machine

BRACES = re.compile(r"\\boxed\s*\{|\\.|[{}]", re.DOTALL)  # the second branch skips \{ and \}


def last_box(text: str) -> str | None:
    r"""The content of the `\boxed{...}` that closes last, stripped; None if none closes. Linear time."""
    opened, box = [], None  # for every brace still open: where its box begins, or None if it is no box
    for token in BRACES.finditer(text):
        if token[0].startswith(r"\boxed") and token[0].endswith("{"):
            opened.append(token.end())
        elif token[0] == "{":
            opened.append(None)
        elif token[0] == "}" and opened:
            start = opened.pop()
            box = box if start is None else (start, token.start())
    return text[slice(*box)].strip() if box else None


def graded_text(response: str, thinking: bool, require_box: bool = True) -> str | None:
    r"""The piece of `response` that the verifier sees, or None if there is nothing to grade (reward 0).

    `thinking` says that the prompt opened a `<think>`: then only what follows the last `</think>` counts, and
    a thought that never ends has no answer. Of that, the last balanced `\boxed{...}`, wrapper included, of at
    most `MAX_BOX` characters. Without one: None, or with `require_box=False` the last `MAX_TEXT` characters.
    """
    if thinking:
        _, closed, response = response.rpartition("</think>")
        if not closed:
            return None
    box = last_box(response)
    if box is not None:
        return rf"\boxed{{{box}}}" if 0 < len(box) <= MAX_BOX else None
    return None if require_box else response[-MAX_TEXT:].strip() or None


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


class Pending:
    """Scores under way."""

    def __init__(self, places: list[int | None], futures: list[Future]):
        self.places, self.futures = places, futures

    def result(self) -> list[float]:
        """Waits for the scores and returns them in the order of the texts."""
        scores = [score for future in self.futures for score in future.result()]
        return [0.0 if place is None else scores[place] for place in self.places]


class Verifier:
    """Grades in `workers` processes (default: this machine's cores shared among its ranks, at most 16).

    timeout: seconds for a pair, beyond which it scores 0. function: "math" (Math-Verify; 0.0 or 1.0) or
    "module:function", the user's `(response, answer) -> float`; if it raises, or cannot be imported, so does
    this, with its traceback. memory: bytes of address space for a worker. To be used from any thread.
    """

    def __init__(self, workers: int | None = None, timeout: float = 5.0, function: str = "math",
                 memory: int = 4 * 2**30):  # fmt: skip
        if workers is None:
            workers = min(16, max(1, (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
        if function != "math" and not all(function.partition(":")):
            raise ValueError(f"reward {function!r} is neither 'math' nor 'module:function'")
        self.function = "verdict:math_reward" if function == "math" else function
        self.workers = [Worker(self.function, timeout, memory) for _ in range(workers)]
        self.idle = queue.SimpleQueue()
        self.threads = ThreadPoolExecutor(workers, thread_name_prefix="verifier")
        try:
            for worker in self.workers:
                worker.start()
            for worker in self.workers:
                worker.wait_ready()
                self.idle.put(worker)
        except BaseException:
            self.close()
            raise

    @property
    def timeouts(self) -> int:
        """How many pairs so far ran out of time, or killed their worker."""
        return sum(worker.timeouts for worker in self.workers)

    def score(self, texts: list[str | None], answers: list[str]) -> list[float]:
        """Eq. 1 for every text (what `graded_text` returned; None scores 0) and its gold answer, in order."""
        return self.submit(texts, answers).result()

    def submit(self, texts: list[str | None], answers: list[str]) -> Pending:
        """Starts what `score` does; `.result()` waits for it. Equal pairs are graded once."""
        pairs = zip(texts, answers, strict=True)
        return self._submit([pair if pair[0] is not None else None for pair in pairs])

    def gold_parses(self, answers: list[str]) -> list[bool]:
        """Whether Math-Verify can read each answer as a gold. A user's function reads what it likes: True."""
        if self.function != "verdict:math_reward":
            return [True] * len(answers)
        return [score == 1.0 for score in self._submit([(None, answer) for answer in answers]).result()]

    def _submit(self, pairs: list[tuple | None]) -> Pending:
        distinct = list(dict.fromkeys(pair for pair in pairs if pair is not None))
        place = {pair: i for i, pair in enumerate(distinct)}
        size = max(1, min(CHUNK, len(distinct) // (4 * len(self.workers))))
        chunks = [distinct[i : i + size] for i in range(0, len(distinct), size)]
        futures = [self.threads.submit(self._grade, chunk) for chunk in chunks]
        return Pending([place.get(pair) for pair in pairs], futures)

    def _grade(self, pairs: list[tuple]) -> list[float]:
        worker = self.idle.get()
        try:
            return worker.grade(pairs)
        finally:
            self.idle.put(worker)

    def close(self) -> None:
        """Kills the workers at once; the results of what is still under way raise."""
        self.threads.shutdown(wait=False, cancel_futures=True)
        for worker in self.workers:
            worker.kill()
        self.threads.shutdown()  # each sees its worker die and gives up
        for worker in self.workers:
            worker.stop()

    def __enter__(self) -> "Verifier":
        return self

    def __exit__(self, *_) -> None:
        self.close()


if __name__ == "__main__":
    work(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
