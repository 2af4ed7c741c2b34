"""Faults planted one at a time into copies of the files in TESTS: their tests catch every one."""

import os
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import FORKS, ROOT

TESTS = {
    "loss.py": "tests/test_loss.py",
    "sampler.py": "tests/test_sampler.py",
    "runtime/metrics.py": "tests/runtime/test_metrics.py",
}
NEEDED = ["pyproject.toml", "tests/conftest.py", "runtime/__init__.py", *TESTS, *TESTS.values()]

FAULTS = {  # what stands in the file exactly once, and what is put there
    "loss.py": [
        ("loss = -objective", "loss = objective"),
        # N of the micro-batch
        ("(max_length * num_responses)", "(max_length * len(logprobs))"),
        ("objective.sum() / (max_length * num_responses)", "objective.mean()"),
        ("ratio / (ratio + beta)", "ratio / (ratio + 1 - beta)"),
        ("ratio.clamp(1 - clip_eps,", "ratio.clamp(0,"),
        ("torch.minimum(", "torch.maximum("),
        # replayed and new swapped
        (
            "torch.where(replayed, shaped * advantages, new_term)",
            "torch.where(replayed, new_term, shaped * advantages)",
        ),
        # the weight of what CLIP cut
        ("ratio.masked_fill(new_term < plain, 0)", "ratio"),
        ("log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)", "log_ratio"),
        ("log_ratio = logprobs.float()", "log_ratio = logprobs.float().detach()"),
        # the value of f for its slope
        ("shaped * (1 - shaped)", "shaped"),
        # the mean over questions, not over a group
        ("rewards.mean(dim=1,", "rewards.mean(dim=0,"),
        # K for K - 1
        ("rewards.std(dim=1, keepdim=True)", "rewards.std(dim=1, keepdim=True, correction=0)"),
        # rounding for 0
        ("return advantages.masked_fill(equal, 0.0)", "return advantages"),
    ],
    "runtime/metrics.py": [
        # pulls that cancel
        ("advantages.float().abs()", "advantages"),
        # w* among the maxima of w
        ("ratio.masked_fill(replayed, 0)", "ratio"),
        # w among the sums of w*
        ("ratio[replayed]", "ratio"),
        ("max(values) if name.endswith", "sum(values) if name.endswith"),
    ],
    "sampler.py": [
        ("center = mu * num_rollouts", "center = mu * (num_rollouts - 1)"),
        ("center = mu * num_rollouts", "center = mu"),
        ("(2 * sigma**2)", "sigma**2"),
        # weights that vanish
        ("squared_distance - squared_distance.min()", "squared_distance"),
        # the deficit given to nobody
        ("while remaining:", "if remaining:"),
        # a bucket that gives more than it has
        ("count, sizes[k] - taken[k])", "count, sizes[k])"),
        # every bucket drawn twice
        ("in counts.items()", "in [*counts.items()] * 2"),
        # a question drawn twice from its bucket
        ("size=count, replace=False", "size=count"),
        # buckets drawn alike, whatever their sizes
        ("list(sizes.values())", "[max(sizes.values())] * len(sizes)"),
        # a draw that depends on the mapping's order
        ("in sorted(buckets)", "in buckets"),
    ],
}


def passes(name: str, fault: tuple[str, str] | None) -> bool:
    """Whether the tests of a file pass in a copy of what they need, with the fault in it.

    The copy holds a `transformers.py` that cannot be imported: they do not need it.
    """
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory)
        (copy / "tests" / "runtime").mkdir(parents=True)
        (copy / "runtime").mkdir()
        for needed in NEEDED:
            shutil.copy(ROOT / needed, copy / needed)
        (copy / "transformers.py").write_text("raise ImportError('not needed here')")
        if fault:
            text = (copy / name).read_text()
            assert text.count(fault[0]) == 1, fault
            (copy / name).write_text(text.replace(*fault))
        run = FORKS.Process(target=run_tests, args=(directory, TESTS[name]))
        run.start()
        run.join(120)
    if run.exitcode not in (0, 1):  # neither passed nor failed: the copy does not even load
        raise RuntimeError(f"{fault}: pytest ended with {run.exitcode}")
    return run.exitcode == 0


def run_tests(copy: str, tests: str) -> None:
    """Leaves this process with what pytest makes of the copy.

    The process has torch loaded, but nothing of the root.
    """
    for loaded in [*sys.modules]:
        if loaded in ("conftest", "loss", "sampler") or loaded.startswith(
            ("test_", "transformers", "runtime")
        ):
            del sys.modules[loaded]
    os.chdir(copy)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.path.insert(0, copy)
    sys.exit(pytest.main(["-x", "-p", "no:cacheprovider", tests]))


@pytest.mark.slow
def test_every_fault_is_caught():
    """The tests pass on the code as it is, without transformers, and fail on every fault."""
    runs = [(name, fault) for name in TESTS for fault in (None, *FAULTS[name])]
    with ThreadPoolExecutor(2) as pool:
        passed = [*pool.map(lambda run: passes(*run), runs)]
    assert [run for run, ok in zip(runs, passed) if ok] == [(name, None) for name in TESTS]
