"""Grade in worker processes that are killed when they are late.

What a model writes is hostile input: towers of powers, deep nesting, a gigabyte of factorial.
Math-Verify's own time limit is a Unix signal, which needs the main thread and cannot interrupt C
code, and a thread that hangs cannot be stopped. So each response is graded in a process with a
limit on its time and its memory. One that breaks a limit loses its process and scores 0, and
nothing else is lost. This is no sandbox: a reward that runs a model's code has to bring its own.
"""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor

MEMORY = 4 * 2**30  # bytes of address space for a worker
START_SECONDS = 120.0  # for a worker to import its function; Math-Verify takes about one
GRADERS = {  # of mathematics
    "strict": "verifier.math_answers:math_reward",  # Math-Verify, and it has to be an answer
    "official": "verifier.math_answers:official_reward",  # Math-Verify alone
}


class Worker:
    """One worker process, and after its death the next one; for one thread at a time."""

    def __init__(self, function: str, timeout: float):
        self.arguments = [function, str(MEMORY)]
        self.timeout = timeout
        self.start()

    def start(self) -> None:
        """Start a process, and wait until it has imported the function."""
        path = os.pathsep.join(sys.path)  # and `-m` adds the working directory
        self.socket, theirs = socket.socketpair()
        channel = theirs.fileno()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "verifier.worker", str(channel), *self.arguments],
                env=os.environ | {"PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=2,  # what the function prints goes to stderr
                pass_fds=[channel],
                start_new_session=True,  # a group of its own, with all that it starts
            )
        self.replies = self.socket.makefile("rb")
        self.socket.settimeout(START_SECONDS)
        self.reply(0)
        self.socket.settimeout(self.timeout)

    def reply(self, number: int) -> dict[str, float]:
        """Return the rewards in the worker's next line, which has to carry the request's number.

        Raises TimeoutError if it does not come in time, another OSError or ValueError if the worker
        died or said anything else, and RuntimeError with the reason if the function failed.
        """
        answered, rewards, error = json.loads(self.replies.readline())
        if answered != number:
            raise ValueError
        if error:
            raise RuntimeError(f"the reward failed: {error}")
        return rewards

    def grade(self, text: str | None, answer: str, row: dict | None) -> dict[str, float]:
        """Return the named rewards of a text.

        It scores 0, with `timeouts` 1, if it is late, or if its worker dies or answers anything
        else, twice: once may have been another response's doing.
        """
        for _ in range(2):
            number = secrets.randbits(48)  # which the code that a reward runs cannot guess
            request = json.dumps([number, answer, row, text])
            try:
                self.socket.sendall(request.encode() + b"\n")
                return self.reply(number)
            except (OSError, TypeError, ValueError) as problem:
                self.stop()
                self.start()
                if isinstance(problem, TimeoutError):
                    break
        return {"score": 0.0, "timeouts": 1.0}

    def stop(self) -> None:
        """Kill and reap the process, with all that its function has started."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.replies.close()
        self.socket.close()


class Verifier:
    """The worker processes that grade, for any thread to use.

    workers: how many; by default this rank's share of the machine's cores, at most 16.
    timeout: seconds for a response, beyond which it scores 0. function: a name of GRADERS, or the
    user's "module:function" from (response, answer) or (response, answer, row) to a float, or to a
    dict of named floats with `score`. If it cannot be imported, or raises, so does this.
    """

    def __init__(self, workers: int | None = None, timeout: float = 5.0, function: str = "strict"):
        if workers is None:
            ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
            workers = min(16, max(1, os.cpu_count() // ranks_here))
        self.reads_golds = function in GRADERS
        function = GRADERS.get(function, function)
        # There are as many threads as workers, so that a thread always finds an idle worker.
        self.threads = ThreadPoolExecutor(workers)
        starts = [self.threads.submit(Worker, function, timeout) for _ in range(workers)]
        self.workers = [start.result() for start in starts]  # which import side by side
        self.idle = [*self.workers]

    def submit(self, text: str | None, answer: str, row: dict | None = None) -> Future:
        """Start to grade a text, and return the future of its named rewards, `score` among them.

        No text is graded as an empty one. row: JSON values, for a function with a parameter `row`.
        """
        return self.threads.submit(self.grade, text or "", answer, row)

    def score(self, texts: list[str | None], answers: list[str]) -> list[float]:
        """Return the reward of Eq. 1 for every text and its gold, in order."""
        futures = [self.submit(*pair) for pair in zip(texts, answers, strict=True)]
        return [future.result()["score"] for future in futures]

    def check_golds(self, answers: list[str]) -> list[bool]:
        """Return for each answer whether it can serve as a gold: not if Math-Verify cannot read it.

        One whose check is late can serve: a slower machine must not drop more.
        """
        if not self.reads_golds:
            return [True] * len(answers)
        checks = self.threads.map(lambda answer: self.grade(None, answer, None), answers)
        return [check["score"] > 0 or "timeouts" in check for check in checks]

    def grade(self, *request) -> dict[str, float]:
        """Return the named rewards of a text, its answer and its row, by a worker that is idle."""
        worker = self.idle.pop()
        try:
            return worker.grade(*request)
        finally:
            self.idle.append(worker)

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        """End the workers, after what they are at; what still waits for one is cancelled."""
        self.threads.shutdown(cancel_futures=True)
        for worker in self.workers:
            worker.stop()
