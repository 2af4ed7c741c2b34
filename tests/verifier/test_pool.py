"""The workers: no answer, no reward function and no death can hurt a run."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import ROOT

from verifier import pool
from verifier.pool import Verifier

LATE = {"score": 0.0, "timeouts": 1.0}


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module of reward functions that workers can import."""

    def write(source: str) -> str:
        (tmp_path / "my_reward.py").write_text(textwrap.dedent(source))
        monkeypatch.syspath_prepend(tmp_path)
        return "my_reward:reward"

    return write


def ends(pid: int, seconds: float = 10) -> bool:
    """Whether the process is gone, or a zombie, within some seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with open(f"/proc/{pid}/stat") as stat:
                if stat.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


def test_scores_come_in_order_from_any_thread():
    """Whichever worker is done first, and whichever thread asks; None scores 0."""
    golds = [str(i % 7) for i in range(60)]
    texts = [None if i % 5 == 0 else rf"\boxed{{{i % 7 + (i % 3 == 0)}}}" for i in range(60)]
    expected = [float(i % 5 != 0 and i % 3 != 0) for i in range(60)]
    with Verifier(workers=2, timeout=60) as verifier, ThreadPoolExecutor(3) as threads:
        pending = [threads.submit(verifier.score, texts, golds) for _ in range(3)]
        assert [future.result() for future in pending] == [expected] * 3
        assert verifier.check_golds(["5", "t(0,4]", r"\text{east}"]) == [True, False, True]


def test_hostile_mathematics_is_bounded():
    """What hangs, bloats or breaks a symbolic algebra system scores 0; others are graded."""
    bombs = [
        "5^{5^{5^{5^{5^{5}}}}}",
        "100000000!",
        r"\sum_{n=1}^{10^{12}} \sin(n^n)",
        "1+" * 400 + "1",
        "9" * 900,
        "1," * 400,
        "1=" * 400 + "1",
        r"\sqrt{" * 140 + "2" + "}" * 140,
        400 * "(" + "x" + 400 * ")",
        r"\begin{cases}" * 60,
        "\0\ud800½٣" * 200,
    ]
    texts = [rf"\boxed{{{bomb}}}" for bomb in bombs]
    with Verifier(workers=2, timeout=1.0) as verifier:
        assert sum(verifier.score(texts, ["7"] * len(texts))) == 0
    with Verifier(workers=1, timeout=60) as verifier:
        assert verifier.score([texts[3], r"\boxed{7}"], ["7", "7"]) == [0.0, 1.0]


@pytest.mark.parametrize(
    "fault", ['re.match("(a+)+b", "a" * 60)', "os._exit(3)", "bytearray(2**40)"]
)
def test_what_breaks_a_limit_scores_zero(module, fault):
    """A call into C that holds Python's lock, a death, and too much memory cost one response."""
    name = module(f"""
        import os, re
        def reward(response, answer):
            return {fault} if response == "fault" else 1
    """)
    with Verifier(workers=1, timeout=1.0, function=name) as verifier:
        pending = [verifier.submit(text, "") for text in ("x", "fault", "y")]
        assert [future.result() for future in pending] == [{"score": 1.0}, LATE, {"score": 1.0}]


def test_workers_that_are_killed_or_swollen_are_replaced(module, monkeypatch):
    """Neither changes a score."""
    monkeypatch.setattr(pool, "MEMORY", 2**30)
    name = module("""
        import os
        kept = []
        def reward(response, answer):
            kept.append(bytearray(int(response)))
            return os.getpid()
    """)
    with Verifier(workers=1, timeout=60, function=name) as verifier:
        first, same = verifier.score(["1", str(600 * 2**20)], ["", ""])
        (second,) = verifier.score(["1"], [""])
        os.kill(int(second), signal.SIGKILL)
        (third,) = verifier.score(["1"], [""])
        assert first == same and len({first, second, third}) == 3


@pytest.mark.parametrize("end", ["time-out", "parent"])
def test_what_a_reward_started_ends_with_its_worker(module, tmp_path, end):
    """The whole group is killed, at the time limit as well as when the parent is killed."""
    name = module("""
        import os, pathlib, time
        def reward(response, answer):
            pid = os.fork()
            if pid:
                pathlib.Path(answer).write_text(f"{pid} {os.getpid()}")
            time.sleep(600)
    """)
    file = tmp_path / "pids"
    script = f"""
import sys, time
sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]
from verifier.pool import Verifier
verifier = Verifier(1, {1.0 if end == "time-out" else 600.0}, {name!r})
verifier.submit("", {str(file)!r}).result()
time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", script])
    try:
        while not (file.exists() and len(file.read_text().split()) == 2):
            time.sleep(0.05)
        if end == "parent":
            process.kill()
        assert all(ends(int(pid)) for pid in file.read_text().split())
    finally:
        process.kill()
        process.wait()


FORK = "1/0"
FORGE = """
import os
for line in (b'[0, {"score": 1.0}, null]', b'{"score": 1.0}', b'1'):
    for descriptor in range(3, 100):
        try:
            os.write(descriptor, line + b'\\n')
        except OSError:
            pass
os._exit(7)
"""


@pytest.mark.parametrize("bad", [FORK, FORGE], ids=["a fork that answers too", "forged replies"])
def test_no_response_gets_the_reward_of_another(module, bad):
    """A further line on a worker's pipe shifts no reward after it, and earns nothing."""
    name = module("""
        import os
        def reward(response, answer):
            try:
                pid = os.fork()
                if pid == 0:
                    exec(response, {})
                    os._exit(0)
                return os.waitpid(pid, 0)[1] == 0
            except Exception:
                return 0.0
    """)
    texts = ["x=1", bad, "import os; os._exit(3)", "x=1", "1/", "x=1"]
    with Verifier(workers=1, function=name) as verifier:
        assert verifier.score(texts, [""] * 6) == [1.0, 0.0, 0.0, 1.0, 0.0, 1.0]


def test_a_reward_of_ones_own(module):
    """It gets whole responses and its row, by name, may print, and has named floats."""
    name = module("""
        def reward(answer, response, strict=False, row=None):
            print('[1, {"score": 9}, null]', flush=True)
            return {"score": len(response), "valid": response[:1] == answer, "k": row["k"]}
    """)
    texts = ["", "é\ud800\0\n", 1_000_000 * "数"]
    with Verifier(workers=2, function=name) as verifier:
        pending = [verifier.submit(text, "é", {"k": i}) for i, text in enumerate(texts)]
        assert [list(future.result().values()) for future in pending] == [
            [0.0, 0.0, 0.0],
            [4.0, 1.0, 1.0],
            [1e6, 0.0, 2.0],
        ]
        assert verifier.check_golds([""]) == [True]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("return 1 / 0", "failed: my_reward:reward, .*gold.*3a.*ZeroDivision"),
        ("return float('nan')", "nan: score must be a finite"),
        ("return 1e300", "at most 1e\\+15"),  # infinite in float32
        ("return None", "None: score must be a finite number"),
        ("return '0.5'", "'0.5': score must be a finite number"),
        ("return {'length': 0}", "{'length': 0}: score must be a finite number"),
        ("return dict(score=1, a=[1])", ": a must be a finite number"),
        ("return {'score': 1, 'a/b': 2}", ": a/b may be the name of a metric"),
        ("return dict(score=1, mean=2)", ": mean may be the name of a metric"),
        ("return dict(score=1, length=2)", ": length may be the name of a metric"),
        ("pass\nasync def reward(response, answer): return 1", "<coroutine .*: score must"),
        ("pass\ndef reward(prompts, completions): return 1", "unexpected keyword argument 'respon"),
        ("pass\ndel reward", "failed: my_reward:reward, to start.*no attribute 'reward'"),
        ("pass\nimport no_such", "failed: my_reward:reward, to start.*No module named 'no_such'"),
    ],
)
def test_a_reward_that_fails_ends_the_run_with_the_reason(module, body, told):
    """A failing reward is told, and is never a score of 0."""
    name = module(f"def reward(response, answer): {body}")
    with pytest.raises(RuntimeError, match=f"(?s){told}"):
        with Verifier(workers=1, function=name) as verifier:
            verifier.submit("x", "gold", {"prompt": "3a"}).result()


def test_close_leaves_nothing():
    """No process and no descriptor stays behind."""
    descriptors = len(os.listdir("/proc/self/fd"))
    with Verifier(workers=2) as verifier:
        pids = [worker.process.pid for worker in verifier.workers]
    assert all(ends(pid) for pid in pids)
    assert len(os.listdir("/proc/self/fd")) <= descriptors  # those of tests before may end now
