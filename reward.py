"""The reward of Eq. 1: r(q, o) = 1 if the final answer of response o is right, else 0.

`graded_text` picks the piece of a response that counts; `Verifier` has Math-Verify compare it with the gold
answer (`verdict.py`), in worker processes that can be killed (`worker.py`). Model output is hostile input (towers of
powers, deep nesting, a gigabyte of factorial), Math-Verify's own limits are Unix signals that need a main
thread and cannot interrupt C code, and a thread that hangs cannot be stopped. So a pair that takes too long costs
one process its life and scores 0; nothing else is lost.
"""

import os
import queue
import re
from concurrent.futures import Future, ThreadPoolExecutor

from verifier.worker import Worker

SUCCESS = 0.5  # a response with a larger reward is a success
MAX_BOX = 1000  # characters; a longer box is no answer (the longest gold of the paper's benchmarks has 210)
MAX_TEXT = 2000  # characters, from the end, of a response without a box that Math-Verify may look at
CHUNK = 16  # pairs sent to a worker at once; each has its own deadline

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
        self.function = "verifier.verdict:math_reward" if function == "math" else function
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
        if self.function != "verifier.verdict:math_reward":
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
