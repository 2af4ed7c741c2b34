"""Grade in worker processes, each fed by a thread of its own and killed when late.

Model output is hostile input (towers of powers, deep nesting, a gigabyte of factorial),
Math-Verify's own limits are Unix signals that need a main thread and cannot interrupt C code, and a
thread that hangs cannot be stopped. So a pair that takes too long costs one process its life and
scores 0; nothing else is lost.
"""

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

START_SECONDS = 120.0  # for a worker to import Math-Verify: about 1 s on an idle machine
MATH = {  # what judges answers to golds of mathematics
    "math": "verifier.math_answers:math_reward",  # Math-Verify, and the rule that an answer is one
    "official": "verifier.math_answers:official_reward",  # Math-Verify alone
}


class Worker:
    """One worker process, started when first needed and again after it died.

    It is for one thread at a time. identities: where all workers note which function they started.
    """

    def __init__(self, function: str, timeout: float, memory: int, identities: set[str]):
        self.function = function
        self.timeout = timeout
        self.memory = memory
        self.identities = identities
        self.process = None
        self.timeouts = 0
        self.closed = False
        self.lock = threading.Lock()

    def start(self) -> None:
        """Start the process, if there is none, and wait for it to import the function.

        Raises RuntimeError with the reason if it cannot, or if it is another function by now.
        """
        if self.process:
            return
        try:
            self.launch()
            self.recognise(self.reply()["identity"])
            self.socket.settimeout(self.timeout)
        except (EOFError, ConnectionError, TimeoutError):
            self.stop()
            raise RuntimeError(f"a worker of the reward {self.function!r} did not start") from None

    def launch(self) -> None:
        """Start the process as the leader of a session of its own, but none for a closed pool."""
        path = os.pathsep.join(entry or os.getcwd() for entry in [*sys.path, ""])
        with self.lock:
            if self.closed:
                raise RuntimeError("the Verifier is closed")
            self.socket, theirs = socket.socketpair()
            with theirs:
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "verifier.worker"]
                    + [self.function, str(self.timeout), str(self.memory)],
                    env={**os.environ, "PYTHONPATH": path},
                    stdin=theirs,
                    stdout=theirs,
                    start_new_session=True,
                )
            self.socket.settimeout(START_SECONDS)
            self.replies = self.socket.makefile("rb")

    def recognise(self, identity: str) -> None:
        """Note which function the process imported; RuntimeError if it is another than before."""
        self.identities.add(identity)
        if len(self.identities) > 1:
            self.stop()
            raise RuntimeError(
                f"the file of the reward {self.function!r} was edited meanwhile, so that equal"
                " answers would get unequal rewards: put it back and go on, or begin anew"
            )

    def reply(self, where: str = "") -> dict:
        """Return the worker's next line.

        Raises TimeoutError if it does not come in time, EOFError or ConnectionError if the worker
        died, and RuntimeError with the reason if its reward function raised. There is no timer
        thread, as generation shares Python's lock in this process.
        """
        line = self.replies.readline()
        if not line.endswith(b"\n"):
            raise EOFError
        message = json.loads(line)
        if "error" in message:
            self.stop()
            raise RuntimeError(f"the reward {self.function!r} failed{where}: {message['error']}")
        return message

    def grade(self, text: str | None, answer: str, row: dict | None = None) -> dict[str, float]:
        """Return the named rewards of a pair of text and answer.

        It scores 0, with `timeouts` 1, if it outlives the limit, or if the worker dies of it twice:
        once may have been somebody else's doing.
        """
        where = f" for the answer {answer!r:.200}, row {json.dumps(row):.400}"
        line = json.dumps([text, answer, row]).encode() + b"\n"
        for _ in range(2):
            try:
                self.start()
                self.socket.sendall(line)
                return self.reply(where)["rewards"]
            except (EOFError, ConnectionError):
                self.stop()
            except TimeoutError:
                self.stop()
                break
        self.timeouts += 1
        return {"score": 0.0, "timeouts": 1.0}

    def stop(self) -> None:
        """Kill and reap the process, if there is one, with all that its reward function started.

        Whoever waits for it sees it die.
        """
        with self.lock:
            if not self.process:
                return
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.replies.close()
            self.socket.close()
            self.process = None


class Verifier:
    """The worker processes that grade, for any thread to use.

    workers: how many processes; by default this rank's share of the machine's cores, at most 16.
    timeout: seconds for a pair, beyond which it scores 0. function: a name of MATH, or the user's
    "module:function" from (response, answer) or (response, answer, row) to a float or a dict of
    named floats with `score`; if it raises, or cannot be imported, this raises too and says where.
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
        if function not in MATH and (not all(function.partition(":")) or ".py:" in function):
            raise ValueError(
                f"reward must be 'math' or 'module:function', the module without .py: {function!r}"
            )
        self.function = MATH.get(function, function)
        self.identities = set()
        self.workers = [
            Worker(self.function, timeout, memory, self.identities) for _ in range(workers)
        ]
        # There are as many threads as workers, so a thread always finds an idle worker.
        self.idle = queue.SimpleQueue()
        for worker in self.workers:
            self.idle.put(worker)
        self.threads = ThreadPoolExecutor(workers, thread_name_prefix="verifier")
        try:
            list(self.threads.map(Worker.start, self.workers))  # they import side by side
        except BaseException:
            self.close()
            raise

    @property
    def identity(self) -> str | None:
        """What names a reward of the user's own, by its source; None for golds of mathematics."""
        if self.function in MATH.values():
            return None
        return min(self.identities)  # there is one

    @property
    def timeouts(self) -> int:
        """How many pairs so far ran out of time, or killed their worker."""
        return sum(worker.timeouts for worker in self.workers)

    def score(self, texts: list[str | None], answers: list[str]) -> list[float]:
        """Return the reward of Eq. 1 for every text and its gold, in order; None scores 0."""
        futures = [self.submit(*pair) for pair in zip(texts, answers, strict=True)]
        return [future.result()["score"] for future in futures]

    def submit(self, text: str | None, answer: str, row: dict | None = None) -> Future:
        """Start to grade a text, and return the future of its named rewards, `score` among them.

        Without a text that is a score of 0 alone. What is late has `timeouts` beside it. row: what
        a function with a parameter `row` is given, as plain JSON values.
        """
        if text is None:
            return self.threads.submit(dict, score=0.0)
        return self.threads.submit(self._grade, text, answer, row)

    def check_golds(self, answers: list[str]) -> list[dict[str, float]]:
        """Return for each answer whether it can serve as a gold.

        `score` is 0.0 if it cannot be read, or is not right itself in a box, and `as_text` is 1.0
        if responses are compared with it as text. An answer whose check runs out of time can serve,
        as a slower machine must not drop more.
        """
        if self.function not in MATH.values():
            return [{"score": 1.0} for _ in answers]
        checks = self.threads.map(lambda answer: self._grade(None, answer), answers)
        return [{"score": 1.0} if check.get("timeouts") else check for check in checks]

    def _grade(self, *case) -> dict[str, float]:
        worker = self.idle.get()
        try:
            return worker.grade(*case)
        finally:
            self.idle.put(worker)

    def close(self) -> None:
        """Kill the workers at once, so that the results of what is still under way raise."""
        for worker in self.workers:
            worker.closed = True  # so it is not started again
            worker.stop()
        self.threads.shutdown(cancel_futures=True)  # each thread sees its worker die and gives up

    def __enter__(self) -> "Verifier":
        return self

    def __exit__(self, *_) -> None:
        self.close()


def try_out(function: str, timeout: float, cases: Iterable[tuple[str, dict]]) -> None:
    """Import a reward function, and call it with each answer as the response, and the row.

    Raises RuntimeError where it raises, or dies or exceeds the limit twice: its first call may be
    the one that loads something.
    """
    with Verifier(1, timeout, function) as verifier:
        for answer, row in cases:
            for _ in range(2):
                if "timeouts" not in verifier.submit(answer, answer, row).result():
                    break
            else:
                raise RuntimeError(
                    f"the reward {function!r} ended its process, or took longer than {timeout:g} s"
                    f" (--verify_timeout), twice for the answer {answer!r:.200}"
                )
