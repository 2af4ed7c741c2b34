"""Run a reward function on one answer after another, for as long as they come.

`pool.py`, which holds the clock, starts `python -m verifier.worker module:function SECONDS BYTES`.
It imports nothing but the function. A JSON line goes each way: `[text, answer, row]` on stdin,
and `{"rewards": {"score": 1.0}}` on stdout. The first line out is `{"identity": text}` when the
function is there. `{"error": sentence}` is the last one: the function could not be imported, raised
an exception, or returned no number.
"""

import faulthandler
import gc
import hashlib
import importlib.util
import inspect
import json
import math
import os
import resource
import select
import signal
import sys
import threading
import traceback

LARGEST = 1e15  # of a reward: float32 still holds the squares of a group's spread, and their sums
# Our own metrics have these names, so rewards cannot.
TAKEN = ("mean", "pass_at_1", "pass_at_1_fresh", "none_right", "timeouts")
# What a function gets of its question is in `row`, so that no parameter of these names is filled.
COLUMNS = {"data_source", "extra_info", "prompt", "reward_model"}


def peak_memory() -> int:
    """Return the most bytes that this process has had resident.

    It is not `ru_maxrss`, which is inherited from the parent.
    """
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def number(x) -> float:
    """Return a value as a float: nan where it is no number, or a text that looks like one."""
    try:
        return math.nan if isinstance(x, str | bytes) else float(x)
    except (OverflowError, RuntimeError, TypeError, ValueError):
        return math.nan


def named_rewards(value) -> dict:
    """Return as a dict of floats what a reward function has returned.

    That may be a number, or a dict of numbers with `score`. A dict may have `judged` beside them,
    which goes on as it is: values that evaluation reports, and `marked`, the response for people.
    Raises ValueError, which names what is no number.
    """
    given = dict(value) if isinstance(value, dict) else {"score": value}
    judged = given.pop("judged", None)
    rewards = {name: number(x) for name, x in given.items()}
    if "score" not in rewards:
        raise ValueError(f"the reward function returned {value!r}: a dict needs a `score`")
    if taken := [name for name in rewards if name in TAKEN]:
        raise ValueError(
            f"the reward function returned {value!r}: the run's own metrics have the name "
            f"{taken[0]}, choose another"
        )
    # A nan is not below it either.
    wrong = [str(name) for name, x in rewards.items() if not abs(x) <= LARGEST]
    if wrong:
        raise ValueError(
            f"the reward function returned {value!r:.400}: {', '.join(wrong)} must be a finite"
            f" number below {LARGEST:g}"
        )
    return rewards if judged is None else rewards | {"judged": judged}


def takes_row(reward) -> bool:
    """Return whether a reward function has a parameter called row.

    Raises TypeError if its parameters have other names or another order than those it is called
    with, or if one waits for what is never passed: `**kwargs`, or a column of the file.
    """
    parameters = inspect.signature(reward).parameters
    needed = [name for name, p in parameters.items() if p.default is p.empty]
    swapped = needed[:2] not in (["response", "answer"], ["text", "answer"])
    if swapped or set(needed[2:]) - {"row"} or parameters.keys() & COLUMNS:
        raise TypeError(
            f"the reward function takes ({', '.join(map(str, parameters.values()))}): call its"
            " parameters (response, answer) or (response, answer, row), in this order; options with"
            " defaults may follow, but no **kwargs, and no column of the file, which is in `row`;"
            " docs/own-task.md has an adapter"
        )
    return "row" in parameters


def identity(module: str, function: str) -> str:
    """Return what names a reward: its function, and a hash of the module's file.

    Raises ModuleNotFoundError where no file holds the module.
    """
    found = importlib.util.find_spec(module)
    if not found or not found.has_location:
        raise ModuleNotFoundError(
            f"no file holds a module {module!r}, neither in the working directory nor on the"
            " program's path"
        )
    with open(found.origin, "rb") as file:
        return f"{function} {hashlib.blake2b(file.read(), digest_size=8).hexdigest()}"


def told(error: BaseException) -> str:
    """Return an exception in one line, with the lines of the user's files that led to it."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f for f in frames if f.filename != __file__ and "importlib" not in f.filename]
    places = [f"{os.path.basename(f.filename)}, line {f.lineno}" for f in theirs[-5:]]
    where = f" ({'; '.join(places)})" if places else ""
    return " ".join(f"{type(error).__name__}: {error}{where}".split())


def die_with_parent(requests) -> None:
    """End this process when the parent closes its end, and all that the function has started."""
    poll = select.poll()
    poll.register(requests, 0)  # no event asked for: only a hang-up wakes it
    poll.poll()
    os.killpg(0, signal.SIGKILL)  # the group is this worker's own, see pool.py


def work(name: str, seconds: float, max_bytes: int) -> None:
    """Grade until the parent closes its end, or is gone, or the reward function raises."""
    resource.setrlimit(resource.RLIMIT_AS, (max_bytes, max_bytes))
    # The socket moves to descriptors of its own: what the function prints goes to stderr, and it
    # reads nothing.
    requests = os.fdopen(os.dup(0))
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    threading.Thread(target=die_with_parent, args=[requests], daemon=True).start()

    def reply(**message) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    try:
        module, _, attribute = name.partition(":")
        this = identity(module, attribute)  # first, as the import may take long
        loaded = importlib.import_module(module)
        if not hasattr(loaded, attribute):  # a module of the program may have the same name
            raise AttributeError(f"{loaded.__file__} has no {attribute!r}")
        reward = getattr(loaded, attribute)
        with_row = takes_row(reward)
        gc.freeze()  # what was imported is never garbage, and need not be looked through again
        reply(identity=this)
        for line in requests:
            text, answer, row = json.loads(line)
            # Should the parent die while this hangs in C code, a watchdog without Python's lock
            # ends it.
            faulthandler.dump_traceback_later(2 * seconds + 1, exit=True, file=sys.__stderr__)
            given = {"row": row} if with_row else {}
            rewards = named_rewards(reward(text, answer, **given))
            reply(rewards=rewards)
            faulthandler.cancel_dump_traceback_later()
            if peak_memory() > max_bytes / 2:
                # So large it would soon fail good answers for lack of memory: another starts.
                os._exit(0)
    except BaseException as error:
        reply(error=told(error))


if __name__ == "__main__":
    work(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
