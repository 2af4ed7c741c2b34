"""The workers: scores in order, and no answer, no reward function and no death can hurt a run."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from conftest import ROOT

from verifier.pool import Verifier, try_out

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
    pending = list(map(verifier.submit, texts, golds))
    assert verifier.score([], []) == []
    assert verifier.score([None], ["1"]) == [0.0]
    assert [future.result()["score"] for future in pending] == expected
    with pytest.raises(ValueError):
        verifier.score([r"\boxed{1}"], [])


def test_golds_that_no_answer_can_match(verifier, monkeypatch):
    """They are told, and a gold whose check runs out of time is none of them."""
    golds = ["5", r"\frac{1}{2"]
    assert [check["score"] for check in verifier.check_golds(golds)] == [1.0, 0.0]
    late = {"score": 0.0, "timeouts": 1.0}
    monkeypatch.setattr("verifier.pool.Worker.grade", lambda *case: late)
    assert verifier.check_golds(golds) == [{"score": 1.0}] * 2


@pytest.mark.parametrize(
    "fault", ['re.match("(a+)+b", "a" * 60)', "os._exit(3)"], ids=["hangs in C", "dies"]
)
def test_what_ends_a_worker_scores_zero(module, fault):
    """A call into C that holds Python's lock is cut at the limit, and a death is counted alike."""
    source = f"""
        import os, re
        def reward(response, answer):
            return {fault} if response == "fault" else 1
    """
    with Verifier(workers=1, timeout=0.5, function=module(source)) as verifier:
        assert verifier.score(["x", "fault", "y"], ["", "", ""]) == [1.0, 0.0, 1.0]
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
        idle, busy = [worker.process.pid for worker in verifier.workers]
        os.kill(idle, signal.SIGKILL)
        pending = list(map(verifier.submit, texts, texts))
        time.sleep(0.2)
        os.kill(busy, signal.SIGKILL)
        assert [future.result() for future in pending] == [{"score": float(i)} for i in range(40)]
        assert verifier.timeouts == 0


def test_memory_is_bounded(module):
    """A worker allocates no more than its limit, and is replaced near it; its parent may be big."""
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
    ("source", "told"),
    [
        (
            "def reward(response, answer): return 1 / 0",
            r"answer 'gold', row .*3a.*ZeroDivisionError: .*\(my_reward.py, line 1\)$",
        ),
        ("def reward(response, answer): return float('nan')", "returned nan: score must be a fini"),
        ("def reward(response, answer): return 1e300", "below 1e\\+15"),  # infinite in float32
        (
            "def reward(response, answer): return dict(score=1, a=None, b=True, c=[1], d={})",
            r"}: a, c, d must be a finite number below 1e\+15$",
        ),
        (
            "def reward(response, answer): return {'length': 0}",
            "returned {'length': 0}.*needs a `score`",
        ),
        (
            "def reward(response, answer): return dict(score=1, mean=2)",
            "own metrics have the name mean",
        ),
        ("def reward(prompts, completions): return 1", "docs/own-task.md has an adapter"),
        ("def reward(answer, response): return 1", r"takes \(answer, response\): call its param"),
        (
            "def reward(response, answer, row, **rest): return 1",
            r", row, \*\*rest\): call its param",
        ),
        ("x = 1", "AttributeError: .*my_reward.py has no 'reward'"),
        ("import no_such", "ModuleNotFoundError: No module"),
    ],
)
def test_a_reward_that_fails_ends_the_run_with_the_reason(module, source, told):
    """A failing reward is told in one line, and is never a score of 0."""
    name = module(source)
    with pytest.raises(RuntimeError, match=f"my_reward:reward.*{told}"):
        with Verifier(workers=1, function=name) as verifier:
            verifier.submit("x", "gold", {"prompt": "3a"}).result()


def test_a_module_without_a_file_is_refused():
    """Where no file is found there would be nothing to tell two rewards apart by."""
    with pytest.raises(RuntimeError, match="no file holds a module 'no_such', neither in"):
        Verifier(workers=1, function="no_such:reward")


def test_what_names_a_reward(verifier, tmp_path, monkeypatch):
    """Its function and its file's content do; the file may lie in the working directory alone."""
    monkeypatch.chdir(tmp_path)
    source = "def one(response, answer): return 1\ndef two(response, answer): return 2\n"
    (tmp_path / "here.py").write_text(source)
    (tmp_path / "copied.py").write_text(source)
    (tmp_path / "edited.py").write_text(source + "# a remark")
    found = {}
    for name in ("here:one", "copied:one", "here:two", "edited:one"):
        with Verifier(workers=2, function=name) as one:
            found[name] = one.identity
    assert found["here:one"] == found["copied:one"]
    assert len(set(found.values())) == 3
    assert verifier.identity is None  # golds of mathematics are read by the house's own


def test_a_reward_that_is_edited_meanwhile_ends_the_run(module):
    """A worker that starts anew says so, and does not score by the edited function."""
    name = module("def reward(response, answer): return 1")
    with Verifier(workers=1, function=name) as verifier:
        module("def reward(response, answer): return 0.25")
        assert verifier.score(["a"], [""]) == [1.0]  # by what it has imported
        os.kill(verifier.workers[0].process.pid, signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="my_reward:reward' was edited meanwhile"):
                verifier.score(["b"], [""])


def test_a_worker_that_reads_nothing_is_late(module):
    """The limit covers the sending of a text that is longer than a socket holds."""
    name = module("def reward(response, answer): return 1")
    with Verifier(workers=1, timeout=0.5, function=name) as verifier:
        os.kill(verifier.workers[0].process.pid, signal.SIGSTOP)
        begin = time.monotonic()
        pending = verifier.submit("x" * 2**20, "1")
        assert pending.result() == {"score": 0.0, "timeouts": 1.0}
        assert time.monotonic() - begin < 5
        assert verifier.score(["x"], ["1"]) == [1.0]


@pytest.mark.parametrize(
    "body, works",
    [
        ("os._exit(0)", False),
        ("time.sleep(9)", False),
        ("there.exists() or there.touch() or time.sleep(9)", True),
    ],
)
def test_a_reward_that_grades_nothing_is_refused_at_the_start(module, body, works):
    """Two calls in a row that die or are late refuse it; only the first one may load something."""
    name = module(f"""
        import os, pathlib, time
        there = pathlib.Path(__file__).parent / "there"
        def reward(response, answer):
            {body}
            return 1
    """)
    if works:
        return try_out(name, 0.5, [("7", {})])
    with pytest.raises(RuntimeError, match="longer than 0.5 s .--verify_timeout., twice.*'7'"):
        try_out(name, 0.5, [("7", {})])


def test_close_is_prompt_and_leaves_nothing():
    """Closing amid endless work ends the wait for it, and leaves no process or descriptor."""
    descriptors = len(os.listdir("/proc/self/fd"))
    verifier = Verifier(workers=2, timeout=60)
    pids = [worker.process.pid for worker in verifier.workers]
    texts = [BOMB, BOMB[:-1] + "+1}", r"\boxed{2}"]
    pending = list(map(verifier.submit, texts, ["1", "1", "2"]))
    time.sleep(0.3)
    begin = time.monotonic()
    verifier.close()
    assert time.monotonic() - begin < 5
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    assert len(os.listdir("/proc/self/fd")) == descriptors
    for future in pending:
        with pytest.raises(BaseException):  # noqa: B017  cancelled, or closed
            future.result()


@pytest.mark.parametrize("end", ["time-out", "parent"])
def test_what_a_reward_function_started_ends_with_its_worker(module, tmp_path, end):
    """A process that a reward function started is killed with the worker, however that ends."""
    name = module("""
        import pathlib, subprocess, sys
        def reward(response, answer):
            sleep = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            pathlib.Path(answer).write_text(str(sleep.pid))
            sleep.wait()
    """)
    script = f"""
import os, pathlib, signal, sys, time
sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]
from verifier.pool import Verifier
verifier = Verifier(workers=1, timeout=1.0 if {end!r} == "time-out" else 60.0, function={name!r})
pending = verifier.submit("", {str(tmp_path / "pid")!r})
while not pathlib.Path({str(tmp_path / "pid")!r}).exists():
    time.sleep(0.05)
if {end!r} == "parent":
    os.kill(os.getpid(), signal.SIGKILL)
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


def test_a_function_that_takes_the_row_gets_it(module):
    """The row goes to a parameter called row, whatever stands before; without one it sees none."""
    rows = [{"extra_info": {"k": k, "weight": None}, "data_source": "ä"} for k in (1, 2, 1)]
    name = module("""
        def reward(response, answer, strict=False, row=None):
            return row["extra_info"]["k"] if row and strict is False else 0
    """)
    with Verifier(workers=2, function=name) as verifier:
        pending = [verifier.submit("a", "b", row) for row in rows]
        assert [future.result()["score"] for future in pending] == [1.0, 2.0, 1.0]
        assert verifier.score(["a"], ["b"]) == [0.0]


def test_workers_die_with_their_parent(module, tmp_path):
    """An idle worker ends at once, one that hangs in C after twice the limit."""
    name = module("""
        import re
        def reward(response, answer):
            return re.match("(a+)+b", "a" * 60) is not None
    """)
    script = f"""
import os, signal, sys, time
sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]
from verifier.pool import Verifier
verifier = Verifier(workers=2, timeout=1.0, function={name!r})
verifier.submit("hang", "")
time.sleep(0.3)
print(*[worker.process.pid for worker in verifier.workers], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    command = [sys.executable, "-c", script]
    output = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60
    ).stdout
    pids = output.split()
    assert len(pids) == 2
    assert until(lambda: sum(alive(int(pid)) for pid in pids) <= 1, 2)
    assert until(lambda: not any(alive(int(pid)) for pid in pids), 10)
