"""The program that grades: it runs a reward function on one answer after another, for as long as it is fed.

`python -m verifier.worker module:function SECONDS BYTES`, started by `pool.py`, which holds the clock. It
imports nothing but the function. A JSON line each way: `[index, text, answer, row]` (the row a JSON text) on
stdin, and on stdout `{"index": index, "rewards": {"score": 1.0}, "bloated": false}`. The first line out is
`{"index": 0}`: the function is there; `{"error": traceback}` is the last: no import, an exception, no number.
"""

import contextlib
import faulthandler
import gc
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

LARGEST = 1e15  # of a reward: float32 holds the squares of a group's spread, and their sums
FOREIGN = ("data_source", "prompt", "prompts", "question", "completions", "ground_truth")  # first parameters
TAKEN = ("mean", "pass_at_1", "pass_at_1_fresh", "none_right", "all_equal_groups", "timeouts")  # our metrics


def peak_memory() -> int:
    """Most bytes this process has had resident. Not `ru_maxrss` on Linux: inherited from the parent."""
    with contextlib.suppress(FileNotFoundError), open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # macOS: in bytes


def named_rewards(value) -> dict[str, float]:
    """What a reward function returned, a number or a dict of numbers with `score`, as a dict of floats."""
    rewards = {name: float(x) for name, x in (value if isinstance(value, dict) else {"score": value}).items()}
    if "score" not in rewards:
        raise ValueError(f"the reward function returned {value!r}: a dict needs a `score`")
    if taken := [name for name in rewards if name in TAKEN]:
        raise ValueError(f"the reward function returned {value!r}: the run's own metrics have the name "
                         f"{taken[0]}, choose another")
    if not all(abs(x) <= LARGEST for x in rewards.values()):  # nor nan
        raise ValueError(f"the reward function returned {value!r}: numbers must be finite, below {LARGEST:g}")
    return rewards


def takes_row(reward) -> bool:
    """Whether a reward function has a third parameter, for the row; TypeError where it is one of another
    framework, or its third is optional and not called row."""
    try:
        signature = inspect.signature(reward)
    except (TypeError, ValueError):  # no function; written in C, without a signature
        return False
    in_order = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [(p.name, p.default is not p.empty) for p in signature.parameters.values() if p.kind in in_order]
    if names and names[0][0] in FOREIGN:
        raise TypeError(f"the reward function has {signature}: it is called with (response, answer) or "
                        "(response, answer, row), in this order; docs/own-task.md has an adapter")
    if len(names) > 2 and names[2][1] and names[2][0] != "row":
        raise TypeError(f"the reward function has {signature}: if {names[2][0]} is for the row, call it row; "
                        f"if not, put a * before it: (response, answer, *, {names[2][0]}=...)")
    try:
        signature.bind("response", "answer", {})
    except TypeError:
        return False
    return True


def die_with_parent(requests) -> None:
    """End this process, and all that the reward function has started, when the parent closes the pipe."""
    poll = select.poll()
    poll.register(requests, 0)  # no event asked for: only a hang-up wakes it
    poll.poll()
    os.killpg(0, signal.SIGKILL)  # its own session, see pool.py


def work(name: str, seconds: float, max_bytes: int) -> None:
    """The life of a worker: until the parent closes the pipe, or is gone, or the reward function raises."""
    with contextlib.suppress(ValueError, OSError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (max_bytes, max_bytes))
    # The pipes move to descriptors of their own: what the function prints goes to stderr, it reads nothing.
    requests, replies, me = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w"), os.getpid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    threading.Thread(target=die_with_parent, args=[requests], daemon=True).start()

    def end_child() -> None:
        if os.getpid() != me:  # the function forked, and this is not the process that was asked
            os._exit(0)

    def reply(**message) -> None:
        end_child()
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    try:
        module, _, attribute = name.partition(":")
        reward = getattr(importlib.import_module(module), attribute)
        with_row = takes_row(reward)
        gc.freeze()  # what was imported is never garbage: not to be looked through again and again
        reply(index=0)
        for line in requests:
            index, text, answer, row = json.loads(line)
            # Should the parent die while this hangs in C code, a watchdog without Python's lock ends it.
            faulthandler.dump_traceback_later(2 * seconds + 1, exit=True, file=sys.__stderr__)
            rewards = named_rewards(reward(text, answer, *([json.loads(row)] if with_row else [])))
            end_child()  # before the line below, which waits for a thread that a child has not got
            faulthandler.cancel_dump_traceback_later()
            # Bloated, it would soon fail good answers for lack of memory: it asks to be replaced.
            reply(index=index, rewards=rewards, bloated=peak_memory() > max_bytes / 2)
    except BaseException:
        reply(error=traceback.format_exc())


if __name__ == "__main__":
    work(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
