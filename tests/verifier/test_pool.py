"""The workers: scores in order, and no answer, no reward function and no death can hurt a run."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from verifier.pool import Verifier

ROOT = Path(__file__).parents[2]
BOMB = r"\boxed{5^{5^{5^{5^{5^{5}}}}}}"  # no end to it


@pytest.fixture(scope="module")
def verifier():
    with Verifier(workers=2) as verifier:
        yield verifier


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module of reward functions that workers can import."""

    def write(source: str) -> str:
        (tmp_path / "my_reward.py").write_text(textwrap.dedent(source))
        monkeypatch.syspath_prepend(tmp_path)
        return "my_reward:reward"

    return write


def alive(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(condition, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def test_order_duplicates_and_nothing(verifier):
    """Scores come in the order of the texts, whichever worker is done first, and None scores 0."""
    golds = [str(i % 97) for i in range(500)]
    texts = [None if i % 5 == 0 else rf"\boxed{{{i % 97 + (i % 3 == 0)}}}" for i in range(500)]
    expected = [float(i % 5 != 0 and i % 3 != 0) for i in range(500)]
    pending = verifier.submit(texts, golds)
    assert verifier.score([], []) == []
    assert verifier.score([None], ["1"]) == [0.0]
    assert pending.result() == expected == pending.result()
    with pytest.raises(ValueError):
        verifier.score([r"\boxed{1}"], [])


def test_any_thread_may_ask(verifier):
    """Eight threads at once get their own scores: no signals, no main thread needed."""

    def ask(k: int) -> list[float]:
        return verifier.score([rf"\boxed{{\frac{{{i}}}{{{k}}}}}" for i in range(20)], [f"{k}/{k}"] * 20)

    with ThreadPoolExecutor(8) as threads:
        scores = list(threads.map(ask, range(1, 9)))
    assert scores == [[float(i == k) for i in range(20)] for k in range(1, 9)]


def test_a_hostile_answer_costs_only_itself():
    """Asked from a thread other than the main one: a bomb scores 0 in about the time limit, is counted, and
    its neighbours are graded right."""
    with Verifier(workers=2, timeout=1.0) as verifier:
        texts = [rf"\boxed{{{i}}}" for i in range(40)]
        texts[7] = BOMB
        scores, begin = [], time.monotonic()
        golds = [str(i) for i in range(40)]
        thread = threading.Thread(target=lambda: scores.extend(verifier.score(texts, golds)))
        thread.start()
        thread.join(30)
        assert time.monotonic() - begin < 15
        assert scores == [float(i != 7) for i in range(40)]
        assert verifier.timeouts == 1


def test_limit_holds_against_c_code(module):
    """A call into C that never returns and holds the interpreter lock is cut at the limit."""
    source = """
        import re
        def reward(response, answer):
            return bool(re.match("(a+)+b", "a" * 60)) if response == "hang" else 1
    """
    with Verifier(workers=1, timeout=0.5, function=module(source)) as verifier:
        assert verifier.score(["x", "hang", "y"], ["", "", ""]) == [1.0, 0.0, 1.0]
        assert verifier.timeouts == 1


def test_killed_worker_is_replaced(module):
    """Workers killed from outside, idle or busy, change no score."""
    source = """
        import time
        def reward(response, answer):
            time.sleep(0.05)
            return float(response)
    """
    with Verifier(workers=2, function=module(source)) as verifier:
        texts = [str(i) for i in range(40)]
        first = [worker.process.pid for worker in verifier.workers]
        os.kill(first[0], signal.SIGKILL)
        pending = verifier.submit(texts, texts)
        time.sleep(0.2)
        os.kill(first[1], signal.SIGKILL)
        assert pending.result() == [float(i) for i in range(40)]
        assert verifier.timeouts == 0
        assert not set(first) & {worker.process.pid for worker in verifier.workers}


def test_a_pair_that_kills_its_worker_scores_zero(module):
    """A pair that ends its worker every time scores 0, is counted, and its neighbours are graded."""
    source = """
        import os
        def reward(response, answer):
            return os._exit(3) if response == "die" else 1
    """
    with Verifier(workers=1, function=module(source)) as verifier:
        assert verifier.score(["a", "die", "b"], ["", "", ""]) == [1.0, 0.0, 1.0]
        assert verifier.timeouts == 1


def test_memory_is_bounded(module):
    """A worker cannot allocate beyond its limit, and is replaced near it; a big parent does not matter."""
    parent = b"x" * 700 * 2**20
    source = """
        import os
        def reward(response, answer):
            try:
                block = bytearray(int(response))
            except MemoryError:
                return -1
            return os.getpid()
    """
    with Verifier(workers=1, timeout=60, function=module(source), memory=2**30) as verifier:
        assert verifier.score([str(2**30)], [""]) == [-1.0]
        (before,) = verifier.score(["1"], [""])
        assert verifier.score([str(700 * 2**20), "2"], ["", ""])[0] == before
        assert verifier.score(["3"], [""]) != [before]
        assert verifier.timeouts == 0
    del parent


def test_user_function(module):
    """A user's function sees whole responses, a megabyte of any characters too, and may print."""
    source = """
        def reward(response, answer):
            print("hello")
            return len(response) + 0.5 * (response[:1] == answer)
    """
    texts = ["", "é\ud800\0\n", 1_000_000 * "数"]
    with Verifier(workers=1, function=module(source)) as verifier:
        assert verifier.score(texts, ["x", "é", "数"]) == [0.0, 4.5, 1_000_000.5]
        assert [check["score"] for check in verifier.check_golds(["", "{"])] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("body", "message"),
    [("1 / 0", "ZeroDivisionError"), ("'a'", "could not convert"), ("float('nan')", "returned nan")],
)
def test_user_function_that_fails(module, body, message):
    """A user's function that raises, or returns no finite number, is an error with its traceback, not a 0."""
    name = module(f"def reward(response, answer):\n    return {body} if response == 'x' else 1\n")
    with Verifier(workers=1, function=name) as verifier:
        with pytest.raises(RuntimeError, match=rf"(?s)my_reward:reward.*{message}"):
            verifier.score(["a", "x", "b"], ["", "", ""])
        assert verifier.score(["a", "b"], ["", ""]) == [1.0, 1.0]


def test_function_that_cannot_be_loaded(module):
    """A missing module or function and a malformed name fail when the Verifier is made, with the reason."""
    with pytest.raises(RuntimeError, match="(?s)no_such.*ModuleNotFoundError"):
        Verifier(workers=2, function="no_such:reward")
    with pytest.raises(RuntimeError, match="(?s)my_reward.*AttributeError"):
        Verifier(workers=1, function=module("x = 1"))
    for impossible in [dict(function="nonsense"), dict(workers=0)]:
        with pytest.raises(ValueError):
            Verifier(**impossible)


def test_close_is_prompt_and_leaves_nothing():
    """Closing in the middle of endless work takes no time, ends the wait for it, and leaves no process and no
    file descriptor."""
    descriptors = len(os.listdir("/proc/self/fd"))
    verifier = Verifier(workers=2, timeout=60)
    pids = [worker.process.pid for worker in verifier.workers]
    pending = verifier.submit([BOMB, BOMB[:-1] + "+1}", r"\boxed{2}"], ["1", "1", "2"])
    time.sleep(0.3)
    begin = time.monotonic()
    verifier.close()
    assert time.monotonic() - begin < 5
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    assert len(os.listdir("/proc/self/fd")) == descriptors
    with pytest.raises(BaseException):  # noqa: B017  cancelled, or closed
        pending.result()
    with pytest.raises(RuntimeError):
        verifier.score([r"\boxed{1}"], ["1"])
    verifier.close()


def test_ctrl_c_does_not_reach_the_workers(verifier):
    """A terminal's signals go to the session of the trainer; each worker has one of its own."""
    assert all(os.getsid(worker.process.pid) == worker.process.pid for worker in verifier.workers)


@pytest.mark.parametrize("end", ["time-out", "error", "close", "parent"])
def test_what_a_reward_function_started_ends_with_its_worker(module, tmp_path, end):
    """A process that a reward function started is killed with the worker, however that ends."""
    name = module("""
        import pathlib, subprocess, sys
        def reward(response, answer):
            sleep = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            pathlib.Path(answer).write_text(str(sleep.pid))
            return 1 / 0 if response == "error" else sleep.wait()
    """)
    script = f"""
import os, pathlib, signal, sys, time
sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]
from verifier.pool import Verifier
verifier = Verifier(workers=1, timeout=1.0 if {end!r} == "time-out" else 60.0, function={name!r})
pending = verifier.submit([{end!r}], [{str(tmp_path / "pid")!r}])
while not pathlib.Path({str(tmp_path / "pid")!r}).exists():
    time.sleep(0.05)
if {end!r} == "parent":
    os.kill(os.getpid(), signal.SIGKILL)
if {end!r} == "close":
    verifier.close()
try:
    pending.result()
except BaseException:
    pass
print("over", flush=True)
time.sleep(60)
"""
    command = [sys.executable, "-c", script]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        process.stdout.readline()  # "over", or nothing if it is gone
        assert until(lambda: not alive(int((tmp_path / "pid").read_text())), 10)
    finally:
        process.kill()
        process.wait()


def test_a_reward_that_forks_shifts_no_score(module):
    """A child that comes back from the reward function, or that writes a reply, changes no other score."""
    source = """
        import json, os, sys
        def reward(response, answer):
            if response == "fork":
                os.fork()
            if response == "stray":
                for descriptor in range(3, 20):
                    try:
                        os.write(descriptor, b'{"index": 0, "rewards": {"score": 9.0}, "bloated": false}\\n')
                    except OSError:
                        pass
            return float(answer)
    """
    with Verifier(workers=1, function=module(source)) as verifier:
        texts = ["", "fork", "", "stray", "", "fork", ""]
        assert verifier.score(texts, list("1234567")) == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
        assert verifier.timeouts == 0


def test_a_child_that_comes_back_is_ended(module):
    """A reward that forks at every answer leaves no process behind: the child ends as it returns."""
    source = """
        import os
        def reward(response, answer):
            return 0.3 if os.fork() == 0 else 1.0
    """
    with Verifier(workers=1, function=module(source)) as verifier:
        assert verifier.score(list("abcd"), list("1234")) == [1.0] * 4
        worker = psutil.Process(verifier.workers[0].process.pid)

        def living() -> list:
            return [child for child in worker.children() if child.status() != psutil.STATUS_ZOMBIE]

        deadline = time.monotonic() + 10
        while living() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert living() == []


def test_a_worker_killed_while_starting_is_started_once_more(module, tmp_path):
    """Killed once during its import it is started again; killed every time it is an error that says so."""
    source = """
        import os, pathlib, signal
        count = pathlib.Path(__file__).parent / "starts"
        count.write_text(count.read_text() + "x" if count.exists() else "x")
        if len(count.read_text()) < LIMIT:
            os.kill(os.getpid(), signal.SIGKILL)
        def reward(response, answer):
            return 1
    """
    with Verifier(workers=1, function=module(source.replace("LIMIT", "2"))) as verifier:
        assert verifier.score([""], [""]) == [1.0]
    (tmp_path / "starts").unlink()
    with pytest.raises(RuntimeError, match="did not start"):
        Verifier(workers=1, function=module(source.replace("LIMIT", "9")))
    assert (tmp_path / "starts").read_text() == "xx"


def test_named_rewards(module):
    """A dict of named floats comes back whole; its `score` is the score, and without one it is an error."""
    name = module("""
        def reward(response, answer):
            return {"score": 0.5, "length": len(response)} if response else {"length": 0}
    """)
    with Verifier(workers=1, function=name) as verifier:
        pending = verifier.submit(["abc", None], ["", ""])
        assert pending.result() == [0.5, 0.0]
        assert pending.rewards() == [{"score": 0.5, "length": 3.0}, {"score": 0.0}]
        with pytest.raises(RuntimeError, match="returned {'length': 0}"):
            verifier.score([""], [""])


def test_the_row_reaches_a_function_of_three_parameters(module):
    """The third parameter is the row, where there is one; a function of two never sees it; equal pairs with
    other rows are graded apart."""
    rows = [{"extra_info": {"k": k, "weight": None}, "data_source": "ä"} for k in (1, 2, 1)]
    for head in ("def reward(response, answer, row):", "def reward(*given):\n    *_, row = given"):
        name = module(f"{head}\n    return row['extra_info']['k'] if row else 0")
        with Verifier(workers=2, function=name) as verifier:
            assert verifier.submit(["a"] * 3, ["b"] * 3, rows).result() == [1.0, 2.0, 1.0]
            assert verifier.score(["a"], ["b"]) == [0.0]
        (Path(sys.path[0]) / "my_reward.py").unlink()
    with Verifier(workers=1, function=module("def reward(response, answer):\n    return 7")) as verifier:
        assert verifier.submit(["a"], ["b"], rows[:1]).result() == [7.0]
    with pytest.raises(ValueError):
        verifier.submit(["a"], ["b"], rows)


@pytest.mark.parametrize("head, told", [
    ("data_source, solution_str, ground_truth, extra_info=None", "docs/own-task.md has an adapter"),
    ("prompts, completions", "docs/own-task.md has an adapter"),
    ("response, answer, strict=False", "if strict is for the row, call it row"),
    ("response, answer, row=None, strict=False", ""),
    ("response, answer, *, strict=False", ""),
])
def test_a_reward_written_for_others_is_refused(module, head, told):
    """Arguments in another order, or the row in place of an option, would grade wrongly without a word."""
    name = module(f"def reward({head}):\n    return 1.0")
    refused = pytest.raises(RuntimeError, match=re.escape(told)) if told else contextlib.nullcontext()
    with refused, Verifier(workers=1, function=name) as verifier:
        assert verifier.submit(["a"], ["b"], [{"prompt": "c"}]).result() == [1.0]


def test_a_name_of_the_runs_own_metrics_is_refused(module):
    """`reward/mean` is the run's: a reward called mean would be lost."""
    name = module("def reward(*given):\n    return dict(score=1, mean=2)")
    with Verifier(workers=1, function=name) as verifier:
        with pytest.raises(RuntimeError, match="own metrics have the name mean, choose another"):
            verifier.score([""], [""])


def test_a_reward_too_large_for_float32_names_the_question(module):
    """1e300 is finite, and would be infinite in training: an error that names the answer and the row."""
    name = module("def reward(response, answer):\n    return 1e300")
    with Verifier(workers=1, function=name) as verifier:
        with pytest.raises(RuntimeError, match=r"(?s)answer 'gold', row .*3a\+4.*1e\+300.*below 1e\+15"):
            verifier.submit(["x"], ["gold"], [{"prompt": "3a+4"}]).result()


def test_both_graders_at_once():
    """`score` is the rule's verdict on the box, `official` Math-Verify's on all of the text, box or not."""
    with Verifier(workers=1, function="both") as verifier:
        said = [(r"it is \boxed{5-9}", r"\boxed{5-9}"), ("so $-4$", None), (r"\boxed{-4}", r"\boxed{-4}")]
        rows = [{"boxed": boxed} for _, boxed in said]
        rewards = verifier.submit([text for text, _ in said], ["-4"] * 3, rows).rewards()
        assert rewards == [{"score": 0.0, "unevaluated": 1.0, "official": 1.0},
                           {"score": 0.0, "official": 1.0},
                           {"score": 1.0, "unevaluated": 0.0, "official": 1.0}]
        assert verifier.check_golds(["-4", "t(0,4]]"]) == [
            {"score": 1.0, "malformed": 0.0}, {"score": 0.0, "malformed": 1.0}]


def test_workers_die_with_their_parent(module, tmp_path):
    """When the parent is killed an idle worker ends at once, one that hangs in C after twice the limit."""
    name = module("""
        import re
        def reward(response, answer):
            return re.match("(a+)+b", "a" * 60) is not None
    """)
    script = f"""
import os, signal, sys, time
sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]
from reward import Verifier
verifier = Verifier(workers=2, timeout=1.0, function={name!r})
verifier.submit(["hang"], [""])
time.sleep(0.3)
print(*[worker.process.pid for worker in verifier.workers], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    command = [sys.executable, "-c", script]
    output = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60).stdout
    pids = output.split()
    assert len(pids) == 2
    assert until(lambda: sum(alive(int(pid)) for pid in pids) <= 1, 2)
    assert until(lambda: not any(alive(int(pid)) for pid in pids), 10)
