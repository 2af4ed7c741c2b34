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

START_SECONDS = 120.0  # for a worker to import its function; Math-Verify takes about one
GRADERS = {  # of mathematics
    "math": "verifier.math_answers:math_reward",  # strict: Math-Verify, and it has to be an answer
    "official": "verifier.math_answers:official_reward",  # Math-Verify alone
}


class Worker:
    """One worker process, which is started when it is needed; for one thread at a time."""

    def __init__(self, function: str, timeout: float, memory: int):
        self.function = function
        self.timeout = timeout
        self.memory = memory
        self.process = None

    def start(self) -> None:
        """Start the process, and wait until it has imported the function.

        Raises RuntimeError with the reason if it cannot.
        """
        path = os.pathsep.join([*sys.path, os.getcwd()])
        self.socket, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "verifier.worker"] + [self.function, str(self.memory)],
                env=os.environ | {"PYTHONPATH": path},
                stdin=theirs,
                stdout=theirs,
                start_new_session=True,  # a group of its own, with all that it starts
            )
        self.replies = self.socket.makefile("rb")
        self.socket.settimeout(START_SECONDS)
        try:
            self.reply(0, "to start")
        except (OSError, ValueError):
            self.stop()
            raise RuntimeError(f"a worker of the reward {self.function!r} did not start") from None
        self.socket.settimeout(self.timeout)

    def reply(self, number: int, what: str) -> dict[str, float]:
        """Return the rewards in the worker's next line, which has to carry the request's number.

        Raises TimeoutError if it does not come in time, another OSError or ValueError if the worker
        died or said anything else, and RuntimeError with the reason if the function raised.
        """
        answered, rewards, error = json.loads(self.replies.readline())
        if answered != number:
            raise ValueError
        if error:
            self.stop()
            raise RuntimeError(f"the reward {self.function!r} failed {what}: {error}")
        return rewards

    def grade(self, text: str | None, answer: str, row: dict | None) -> dict[str, float]:
        """Return the named rewards of a text.

        It scores 0, with `timeouts` 1, if it is late, or if its worker dies or answers anything
        else, twice: once may have been another response's doing.
        """
        what = f"for the answer {answer!r:.200}, row {json.dumps(row):.400}"
        for _ in range(2):
            if not self.process:
                self.start()
            number = secrets.randbits(48)  # which the code that a reward runs cannot guess
            request = json.dumps([number, text, answer, row])
            try:
                self.socket.sendall(request.encode() + b"\n")
                return self.reply(number, what)
            except TimeoutError:
                self.stop()
                break
            except (OSError, TypeError, ValueError):
                self.stop()
        return {"score": 0.0, "timeouts": 1.0}

    def stop(self) -> None:
        """Kill and reap the process, if there is one, with all that its function has started."""
        if self.process:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.replies.close()
            self.socket.close()
            self.process = None


class Verifier:
    """The worker processes that grade, for any thread to use.

    workers: how many; by default this rank's share of the machine's cores, at most 16.
    timeout: seconds for a response, beyond which it scores 0. function: a name of GRADERS, or the
    user's "module:function" from (response, answer) or (response, answer, row) to a float, or to a
    dict of named floats with `score`. If it cannot be imported, or raises, so does this.
    memory: bytes of address space for a worker.
    """

    def __init__(
        self,
        workers: int | None = None,
        timeout: float = 5.0,
        function: str = "math",
        memory: int = 4 * 2**30,
    ):
        if workers is None:
            ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
            workers = min(16, max(1, (os.cpu_count() or 1) // ranks_here))
        self.reads_golds = function in GRADERS
        function = GRADERS.get(function, function)
        self.workers = [Worker(function, timeout, memory) for _ in range(workers)]
        # There are as many threads as workers, so that a thread always finds an idle worker.
        self.idle = [*self.workers]
        self.threads = ThreadPoolExecutor(workers, thread_name_prefix="verifier")
        list(self.threads.map(Worker.start, self.workers))  # they import side by side

    def submit(self, text: str | None, answer: str, row: dict | None = None) -> Future:
        """Start to grade a text, and return the future of its named rewards, `score` among them.

        No text is graded as an empty one. row: JSON values, for a function with a parameter `row`.
        """
        return self.threads.submit(self.grade, text or "", answer, row)

    def score(self, texts: list[str | None], answers: list[str]) -> list[float]:
        """Return the reward of Eq. 1 for every text and its gold, in order."""
        futures = [self.submit(*pair) for pair in zip(texts, answers, strict=True)]
        return [future.result()["score"] for future in futures]

    def check_golds(self, answers: list[str]) -> list[dict[str, float]]:
        """Return for each answer whether it can serve as a gold.

        `score` is 0.0 if Math-Verify cannot read it, and `as_text` is 1.0 if responses are compared
        with it as text. One whose check is late can serve: a slower machine must not drop more.
        """
        if not self.reads_golds:
            return [{"score": 1.0} for _ in answers]
        checks = self.threads.map(lambda answer: self.grade(None, answer), answers)
        return [{"score": 1.0} if "timeouts" in check else check for check in checks]

    def grade(self, text: str | None, answer: str, row: dict | None = None) -> dict[str, float]:
        """Return the named rewards of a text, by the first worker that is idle."""
        worker = self.idle.pop()
        try:
            return worker.grade(text, answer, row)
        finally:
            self.idle.append(worker)

    def close(self) -> None:
        """End the workers, after what they are at; what still waits for one is cancelled."""
        self.threads.shutdown(cancel_futures=True)
        for worker in self.workers:
            worker.stop()

    def __enter__(self) -> "Verifier":
        return self

    def __exit__(self, *_) -> None:
        self.close()
