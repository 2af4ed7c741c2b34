"""Eq. 1: what is graded, which answers are equal, and that no answer can hurt a run."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from math_verify import grader, parse, verify

from reward import MAX_BOX, MAX_TEXT, Verifier, graded_text
from verifier import verdict

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


# (gold answer, response without a thought, is it right). Where a line says "lenient" or "strict", Math-Verify
# is more generous or more severe than a teacher would be; the table holds it to that.
VERDICTS = [
    # integers and decimals
    ("204", r"so \boxed{204}", True),
    ("204", r"so \boxed{205}", False),
    ("073", r"\boxed{73}", True),
    ("73", r"\boxed{073}", True),
    ("5.0", r"\boxed{5}", True),
    ("5", r"\boxed{5.0}", True),
    ("5", r"\boxed{-5}", False),
    ("-3", r"\boxed{ -3 }", True),
    ("+2", r"\boxed{2}", True),
    ("1234", r"\boxed{1,234}", True),
    ("1234567", r"\boxed{1,\!234,\!567}", True),
    ("0.5", r"\boxed{.5}", True),
    ("4.49", r"\boxed{4.48}", False),
    # fractions
    (r"\frac{1}{2}", r"\boxed{\frac12}", True),
    (r"\frac{1}{2}", r"\boxed{\dfrac{2}{4}}", True),
    (r"\frac{1}{2}", r"\boxed{1/2}", True),
    (r"\frac{1}{2}", r"\boxed{0.5}", True),
    (r"\frac{1}{2}", r"\boxed{\frac{1}{3}}", False),
    (r"\frac{1}{3}", r"\boxed{0.333333}", True),
    (r"\frac{1}{3}", r"\boxed{0.33}", False),
    ("-1./3", r"\boxed{-\frac{1}{3}}", True),
    (r"2\frac{1}{2}", r"\boxed{\frac{5}{2}}", True),
    # percent
    (r"62.5\%", r"\boxed{62.5\%}", True),
    (r"62.5\%", r"\boxed{0.625}", True),
    ("25", r"\boxed{25\%}", True),
    (r"25\%", r"\boxed{26\%}", False),
    # scientific notation, which Math-Verify alone reads as a multiple of Euler's number
    ("8.49e-4", r"\boxed{8.49 \times 10^{-4}}", True),
    ("8.49e-4", r"\boxed{0.000849}", True),
    ("1e11", r"\boxed{10^{11}}", True),
    ("0.000849", r"\boxed{8.49e-4}", True),
    ("8.49e-4", r"\boxed{8.49 \times 10^{-5}}", False),
    ("7.25e-11", r"\boxed{7.4 \times 10^{-12}}", False),
    # roots, powers, constants, functions
    (r"2\sqrt{3}", r"\boxed{\sqrt{12}}", True),
    (r"2\sqrt{3}", r"\boxed{\sqrt{13}}", False),
    (r"\frac{\sqrt{3}}{3}", r"\boxed{\frac{1}{\sqrt{3}}}", True),
    (r"2\pi", r"\boxed{2}", False),
    (r"2\pi", r"\boxed{2 \pi}", True),
    (r"\log 8", r"\boxed{3\log 2}", True),
    (r"\binom{5}{2}", r"\boxed{10}", True),
    (r"\frac{\log 2}{\log 2-\log 3}", r"\boxed{\frac{\ln 2}{\ln 2 - \ln 3}}", True),
    ("np.arcsin(10/13)", r"\boxed{\arcsin(10/13)}", True),
    # expressions
    ("x^2+2x+1", r"\boxed{(x+1)^2}", True),
    ("x^2+2x+1", r"\boxed{(x-1)^2}", False),
    ("x+1", r"\boxed{y+1}", False),
    ("2k", r"\boxed{k+k}", True),
    (r"\frac{t}{4} \sin (2 t)", r"\boxed{\frac{t}{2}\sin(t)\cos(t)}", True),
    (r"\frac{t}{4} \sin (2 t)", r"\boxed{\frac{t}{2}\sin t\cos t}", False),  # strict: the last t is a unit
    (r"e^{-2t}", r"\boxed{\frac{1}{e^{2t}}}", True),
    (r"1+2i", r"\boxed{2i+1}", True),
    (r"1+2i", r"\boxed{1-2i}", False),
    # equations and assignments
    ("x=5", r"\boxed{5}", True),
    ("5", r"\boxed{x=5}", True),
    ("k=1", r"\boxed{k = 1}", True),
    ("y=2x+1", r"\boxed{2x+1}", True),
    ("y=2x+1", r"\boxed{y - 2x = 1}", True),
    ("y=2x+1", r"\boxed{y=2x-1}", False),
    (r"m_{\max }=n^{2}-n-1", r"\boxed{n^2-n-1}", True),
    # intervals, sets, tuples
    (r"(1,2]", r"\boxed{(1, 2]}", True),
    (r"(1,2]", r"\boxed{[1,2]}", False),
    (r"(-\infty, 2) \cup (3, \infty)", r"\boxed{(3,\infty)\cup(-\infty,2)}", True),
    (r"[0, \frac{1}{2})", r"\boxed{[0, 0.5)}", True),
    (r"\{1,2\}", r"\boxed{\{2,1\}}", True),
    (r"\{1,2\}", r"\boxed{\{1,3\}}", False),
    ("1,2,3", r"\boxed{3, 2, 1}", True),
    ("(1,2)", r"\boxed{(2,1)}", False),
    ("(3,4)", r"\boxed{\left(3, 4\right)}", True),
    ("(1,1), (3,2)", r"\boxed{(1,1),(3,2)}", True),
    (r"\{1,2\}", r"\boxed{(1,2)}", True),  # lenient
    (r"1 \pm \sqrt{19}", r"\boxed{1+\sqrt{19}, 1-\sqrt{19}}", True),
    # matrices
    (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\boxed{\begin{pmatrix}1&2\\3&4\end{pmatrix}}", True),
    (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\boxed{\begin{bmatrix}1&2\\3&4\end{bmatrix}}", True),
    (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\boxed{\begin{pmatrix}1&2\\3&5\end{pmatrix}}", False),
    # units, text, choices
    (r"75^\circ", r"\boxed{75}", True),
    (r"15\mbox{ cm}^2", r"\boxed{15 \text{ cm}^2}", True),
    ("12", r"\boxed{12 \text{ apples}}", True),
    (r"\text{Evelyn}", r"\boxed{Evelyn}", True),
    (r"\text{Evelyn}", r"\boxed{\text{Briana}}", False),
    ("B", r"\boxed{\text{(B)}}", True),
    ("B", r"\boxed{\textbf{B}}", True),
    ("B", r"\boxed{C}", False),
    (r"\$18.90", r"\boxed{18.9}", True),
    ("$2^{k}$", r"\boxed{2^k}", True),
    # which box
    ("2", r"first \boxed{1}, no: \boxed{2}", True),
    ("1", r"first \boxed{1}, no: \boxed{2}", False),
    ("2", r"\boxed{2} and then \boxed{3", True),  # cut off: the last balanced one counts
    ("3", r"\boxed{2} and then \boxed{3", False),
    ("3", r"\boxed{\boxed{3}}", True),
    (r"\{1\}", r"\boxed{\left\{ 1 \right\}}", True),
    ("3", r"the answer is 3", False),
    ("3", r"$3$", False),
    ("3", r"\boxed{}", False),
    ("3", "", False),
    ("3", r"\boxed 3", False),
    ("3", r"\boxed {3}", True),
    ("3", r"\boxed{3}}}} and }", True),
    ("3", r"{ \boxed{3}", True),
]


def test_verdicts(verifier):
    """The table of answer pairs gets the verdicts it says, through the cut and the workers."""
    assert len(VERDICTS) >= 60
    texts = [graded_text(response, thinking=False) for _, response, _ in VERDICTS]
    scores = verifier.score(texts, [gold for gold, _, _ in VERDICTS])
    wrong = [row for row, score in zip(VERDICTS, scores, strict=True) if score != float(row[2])]
    assert not wrong


# ---- What is graded ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("response", "thinking", "require_box", "graded"),
    [
        (r"\boxed{1}</think> so \boxed{2}", True, True, r"\boxed{2}"),
        (r"\boxed{1}</think> so two", True, True, None),  # the box of a thought is no answer
        (r"\boxed{1}", True, True, None),  # the thought never ends
        (r"\boxed{1}", True, False, None),
        (r"\boxed{1}</think>\boxed{2}</think> \boxed{3}", True, True, r"\boxed{3}"),  # after the last one
        (r"\boxed{1}</think> so 2", False, True, r"\boxed{1}"),  # no thought was opened: all of it counts
        (r"\boxed{1}</think> so $2$ ", True, False, "so $2$"),
        ("so 2", False, False, "so 2"),
        ("", False, False, None),
        (r"\boxed{ }", False, False, None),
        (r"\boxed{1}\boxed{\frac{1}{2}", False, True, r"\boxed{1}"),
        (r"\boxed{\{1\}\text{ or \}}}", False, True, r"\boxed{\{1\}\text{ or \}}}"),
        (r"\boxed{a \\{b}}", False, True, r"\boxed{a \\{b}}"),
        (r"\boxed{" + MAX_BOX * "1" + "}", False, True, r"\boxed{" + MAX_BOX * "1" + "}"),
        (r"\boxed{" + (MAX_BOX + 1) * "1" + "}", False, True, None),
        (1_000_000 * "1", False, False, MAX_TEXT * "1"),
    ],
)
def test_graded_text(response, thinking, require_box, graded):
    """The cut of a response is the last balanced box after the last </think>, of bounded length."""
    assert graded_text(response, thinking, require_box) == graded


def test_cut_takes_linear_time():
    """A megabyte of boxes that open, or close, or nest, is cut in seconds."""
    begin = time.monotonic()
    for piece in [r"\boxed{", "{", "}", "\\", r"\boxed{}", r"\boxed", "</think>", r"\boxed{1}"]:
        graded_text(piece * (1_000_000 // len(piece)), thinking=False)
    assert time.monotonic() - begin < 20


# ---- The shortcuts decide as Math-Verify does -------------------------------------------------------------


def math_verify_alone(text: str, answer: str) -> float:
    """The verdict without any shortcut of ours."""
    grader.sympy_symbolic_eq = verdict.symbolic_eq
    try:
        return float(verify(parse(rf"\boxed{{{answer}}}"), parse(text)))
    finally:
        grader.sympy_symbolic_eq = verdict.numeric_then_symbolic_eq


GOLDS = [
    r"\frac{t}{4} \sin (2 t)", r"\frac{e^{t}}{3}+c e^{-2 t}", r"I(0) e^{-\frac{t}{R C}}",
    r"\sqrt{2} \cos (2 t-\pi / 4)", r"\frac{1}{b-a}\left(e^{-a t}-e^{-b t}\right)",
    r"\arcsin{1.3 \sin{\theta_w}}", r"\frac{1}{s}-\frac{1}{s} e^{-s T}",
    r"\frac{v_{0}}{r_{0}} \frac{1}{\left(1+r / r_{0}\right)^{3 / 2}}", r"k\left(4 k^{2}+k-1\right) / 2",
    r"\frac{1}{2 n+2}", r"1 \pm \sqrt{19}", r"(-\infty, 2) \cup (3, \infty)",
    r"\frac{\log 2}{\log 2-\log 3}", r"16 \sqrt{3}", r"\frac{11}{36}", r"(\frac{1}{4}, \frac{1}{27})",
    "1+2i", "y=2x+1", "x^5 - x^4 + x^3 - x^2 + x - 1", r"75^\circ", r"62.5\%", "0.000849", "5.0", "-4",
    "1,2,4,5", r"\cot x", r"\binom{2n}{n}", r"\begin{pmatrix} 1 & x \\ 3 & 4 \end{pmatrix}",
    r"\text{Evelyn}", r"\frac{1}{\sqrt{x^2}}", r"\frac{1}{x}", r"2 \cdot (x+1) / 2", "x+1", "1+x",
    r"\frac{\sqrt{12}}{2}", r"\sqrt{3}", r"\ln x^2", r"2\ln x", r"\frac{e^{i\pi}}{2}", r"-\frac{1}{2}",
    r"\frac{1}{0}", r"10^{-12}", r"2 \cdot 10^{-12}",
]  # fmt: skip


def test_shortcuts_change_no_verdict():
    """Pairs of 43 expressions, equal in other words or not at all, get Math-Verify's own verdict."""
    pairs = [(GOLDS[i], GOLDS[j]) for i in range(len(GOLDS)) for j in range(i % 13, len(GOLDS), 13)]
    pairs += list(zip(GOLDS, GOLDS[1:], strict=False)) + list(zip(GOLDS[1:], GOLDS, strict=False))
    pairs += [(gold, gold) for gold in GOLDS] + [(gold, gold + " + 0") for gold in GOLDS]
    different = []
    for gold, other in pairs:
        text = rf"\boxed{{{other}}}"
        if verdict.math_reward(text, gold) != math_verify_alone(text, gold):
            different.append((gold, other))
    assert not different


NUMBERS = st.one_of(
    st.integers(-20, 20).map(str),
    st.integers(0, 10**20).map(str),
    st.integers(0, 30).map(lambda n: f"{n:04d}"),
    st.decimals(-3, 3, places=2).map(str),
    st.tuples(st.integers(-9, 9), st.integers(1, 9)).map(lambda f: rf"\frac{{{f[0]}}}{{{f[1]}}}"),
    st.tuples(st.integers(-9, 9), st.integers(1, 9)).map(lambda f: f"{f[0]}/{f[1]}"),
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(NUMBERS, NUMBERS)
def test_numbers_get_the_same_verdict(gold, number):
    """Numbers in all spellings, near each other, get Math-Verify's own verdict."""
    text = rf"\boxed{{{number}}}"
    assert verdict.math_reward(text, gold) == math_verify_alone(text, gold)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.decimals(Decimal("0.1"), Decimal("10"), places=2), st.integers(-30, 30))
def test_scientific_notation(mantissa, exponent):
    """`1.5e7` is `1.5 \\times 10^{7}`, whoever writes it, and is no other power."""
    plain, latex = f"{mantissa}e{exponent}", rf"{mantissa} \times 10^{{{exponent}}}"
    assert verdict.math_reward(rf"\boxed{{{latex}}}", plain) == 1.0
    assert verdict.math_reward(rf"\boxed{{{plain}}}", latex) == 1.0
    assert verdict.math_reward(rf"\boxed{{{mantissa}e{exponent + 40}}}", plain) == 0.0


# ---- The workers ------------------------------------------------------------------------------------------


def test_golds(verifier):
    """Golds that Math-Verify can read are told from those it cannot."""
    golds = ["5", r"\sqrt{2}", "$(1,1), (3,2)$", "-3./2", r"\text{Evelyn}", "", "t(0,4]"]
    assert verifier.gold_parses(golds) == [True] * 5 + [False] * 2
    assert verifier.gold_parses([]) == []


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
        thread = threading.Thread(target=lambda: scores.extend(verifier.score(texts, list(map(str, range(40))))))
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
    """A worker cannot allocate beyond its limit, and one that has come near it is replaced; a big parent does not matter."""
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
        assert verifier.gold_parses(["", "{"]) == [True, True]


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


def test_workers_ignore_ctrl_c(verifier):
    """SIGINT, which a terminal sends to every process, leaves the workers working."""
    before = [worker.process.pid for worker in verifier.workers]
    for pid in before:
        os.kill(pid, signal.SIGINT)
    assert verifier.score([rf"\boxed{{{i}.5}}" for i in range(8)], ["3.5"] * 8) == [float(i == 3) for i in range(8)]
    assert [worker.process.pid for worker in verifier.workers] == before


def test_workers_die_with_their_parent(module, tmp_path):
    """When the parent is killed an idle worker ends at once, one that hangs in C after twice the limit."""
    name = module("import re\ndef reward(response, answer):\n    return re.match('(a+)+b', 'a' * 60) is not None\n")
    script = f"""
import os, signal, sys, time
sys.path[:0] = [{str(tmp_path)!r}, {os.path.dirname(os.path.abspath(verdict.__file__))!r}]
from reward import Verifier
verifier = Verifier(workers=2, timeout=1.0, function={name!r})
verifier.submit(["hang"], [""])
time.sleep(0.3)
print(*[worker.process.pid for worker in verifier.workers], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    command = [sys.executable, "-c", script]
    pids = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60).stdout.split()
    assert len(pids) == 2
    assert until(lambda: sum(alive(int(pid)) for pid in pids) <= 1, 2)
    assert until(lambda: not any(alive(int(pid)) for pid in pids), 10)
