"""Run a reward function on one response after another, for as long as they come.

`pool.py`, which holds the clock, starts `python -m verifier.worker SOCKET module:function BYTES`.
A JSON line goes each way on the socket: `[number, answer, row, text]`, and with the same number
`[number, {"score": 1.0}, null]`, or `[number, null, reason]` if the function cannot be imported,
raises, or returns no number. Number 0 says that the function is there.
"""

import importlib
import inspect
import json
import os
import resource
import select
import signal
import sys
import threading
import traceback
from numbers import Real

CPU_SECONDS = 1800  # of a worker's life, the next one goes on: an end even if its parent is gone
LARGEST = 1e15  # of a reward: float32 still holds the squares of a group's spread, and their sums
# A run's own metrics have these names, behind reward/ or val/.
TAKEN = ("length", "mean", "pass_at_1", "reward", "timeouts", "truncated")


def named_rewards(value) -> dict[str, float]:
    """Return what a reward function has returned, a number or a dict of numbers with `score`.

    Raises ValueError where it is anything else.
    """
    rewards = value if isinstance(value, dict) else {"score": value}
    for name, x in {"score": None, **rewards}.items():
        if not isinstance(x, Real) or not abs(x) <= LARGEST:  # a nan is not
            raise ValueError(f"{value!r:.400}: {name} must be a finite number, at most {LARGEST:g}")
        if name in TAKEN or "/" in name:
            raise ValueError(f"{value!r:.400}: {name} may be the name of a metric of the run")
    return {name: float(x) for name, x in rewards.items()}


def die_with_parent(channel: int) -> None:
    """End this process, and all that its function has started, when the parent's end closes."""
    poll = select.poll()
    poll.register(channel, 0)  # no event asked for: only a hang-up wakes it
    poll.poll()
    os.killpg(0, signal.SIGKILL)


def work(channel: int, name: str, max_bytes: int) -> None:
    """Grade until the parent closes its end, or is gone, or the function raises."""
    resource.setrlimit(resource.RLIMIT_AS, (max_bytes, max_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    threading.Thread(target=die_with_parent, args=[channel], daemon=True).start()
    requests = os.fdopen(channel)
    replies = os.fdopen(channel, "w", closefd=False)
    pid = os.getpid()

    def reply(request, rewards, error):
        if os.getpid() != pid:
            os._exit(1)  # a child that the function has forked, and that came back from it
        replies.write(json.dumps([request, rewards, error]) + "\n")
        replies.flush()

    request = 0
    line = "to start"
    try:
        module, _, attribute = name.partition(":")
        reward = getattr(importlib.import_module(module), attribute)
        with_row = "row" in inspect.signature(reward).parameters
        reply(request, None, None)
        for line in requests:
            request, answer, row, text = json.loads(line)
            # By their names, as a function with the two in another order would be wrong in silence.
            given = {"response": text, "answer": answer}
            if with_row:
                given["row"] = row
            reply(request, named_rewards(reward(**given)), None)
            with open("/proc/self/statm") as memory:
                resident = int(memory.read().split()[1]) * resource.getpagesize()
            if resident > max_bytes / 2:
                os._exit(0)  # it would soon fail good answers for lack of memory: another starts
    except MemoryError:
        os._exit(1)  # the response's doing, as a time-out is
    except BaseException:
        reply(request, None, f"{name}, {line:.800}\n{traceback.format_exc()}")


if __name__ == "__main__":
    work(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
