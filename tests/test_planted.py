"""Faults planted one at a time into copies of the files in FILES: their tests catch every one.

python tests/test_planted.py        # a line for each, "caught" or "MISSED"
"""

import os
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import FORKS, ROOT

FILES = {"loss": "loss.py", "sampler": "sampler.py", "metrics": "runtime/metrics.py"}
TESTS = {
    "loss": "tests/test_loss.py",
    "sampler": "tests/test_sampler.py",
    "metrics": "tests/runtime/test_metrics.py",
}
NEEDED = ["pyproject.toml", "tests/conftest.py", "runtime/__init__.py"]
NEEDED += [*FILES.values(), *TESTS.values()]


class Fault(NamedTuple):
    module: str  # of FILES
    old: str  # stands in the module exactly once
    new: str
    what: str


FAULTS = [
    Fault("loss", "loss = -objective", "loss = objective", "the sign of the loss"),
    Fault(
        "loss",
        "(max_length * num_responses)",
        "(max_length * len(logprobs))",
        "N of the micro-batch",
    ),
    Fault(
        "loss",
        "objective.sum() / (max_length * num_responses)",
        "objective.mean()",
        "a mean for the sum",
    ),
    Fault("loss", "ratio / (ratio + beta)", "ratio / (ratio + 1 - beta)", "1 - β for β"),
    Fault("loss", "ratio.clamp(1 - clip_eps,", "ratio.clamp(0,", "ε on one side"),
    Fault("loss", "torch.minimum(", "torch.maximum(", "the optimistic side of CLIP"),
    Fault(
        "loss",
        "torch.where(replayed, shaped * advantages, on_policy)",
        "torch.where(replayed, on_policy, shaped * advantages)",
        "replayed and new swapped",
    ),
    Fault("loss", "ratio.masked_fill(on_policy < plain, 0)", "ratio", "the pull of what CLIP cut"),
    Fault(
        "loss",
        "log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)",
        "log_ratio",
        "ratios that overflow",
    ),
    Fault(
        "loss",
        "log_ratio = logprobs.float()",
        "log_ratio = logprobs.float().detach()",
        "no gradient",
    ),
    Fault("loss", "shaped * (1 - shaped)", "shaped", "the value of f for its slope"),
    Fault("metrics", "advantages.float().abs()", "advantages", "pulls that cancel"),
    Fault("metrics", "ratio.masked_fill(replayed, 0)", "ratio", "w* among the maxima of w"),
    Fault("metrics", "ratio[replayed]", "ratio", "w among the sums of w*"),
    Fault(
        "metrics", "max(values) if name.endswith", "sum(values) if name.endswith", "sums for maxima"
    ),
    Fault(
        "loss",
        "rewards.mean(dim=1,",
        "rewards.mean(dim=0,",
        "the mean over questions, not over a group",
    ),
    Fault(
        "loss",
        "rewards.std(dim=1, keepdim=True)",
        "rewards.std(dim=1, keepdim=True, correction=0)",
        "K for K - 1 in the std",
    ),
    Fault(
        "loss", "return advantages.masked_fill(equal, 0.0)", "return advantages", "rounding for 0"
    ),
    Fault("sampler", "(k - mu * num_rollouts)", "(k - mu * (num_rollouts - 1))", "off by one in K"),
    Fault("sampler", "(k - mu * num_rollouts)", "(k - mu)", "μ not times K"),
    Fault("sampler", "(2 * sigma**2)", "sigma**2", "a density without its half"),
    Fault(
        "sampler",
        "squared_distance - squared_distance.min()",
        "squared_distance",
        "weights that vanish",
    ),
    Fault("sampler", "while remaining:", "if remaining:", "the deficit given to nobody"),
    Fault(
        "sampler",
        "count, sizes[k] - taken[k])",
        "count, sizes[k])",
        "a bucket that gives more than it has",
    ),
    Fault("sampler", "in counts.items()", "in [*counts.items()] * 2", "every bucket drawn twice"),
    Fault(
        "sampler",
        "size=count, replace=False",
        "size=count",
        "a question drawn twice from its bucket",
    ),
    Fault(
        "sampler",
        "list(sizes.values()), n)",
        "[max(sizes.values())] * len(sizes), n)",
        "buckets drawn alike, whatever their sizes",
    ),
    Fault(
        "sampler", "in sorted(buckets)", "in buckets", "a draw that depends on the mapping's order"
    ),
]


def passes(module: str, fault: Fault | None = None) -> bool:
    """Whether the tests of `module` pass in a copy of what they need, with the fault in it.

    The copy holds a `transformers.py` that cannot be imported: they do not need it.
    """
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory)
        (copy / "tests" / "runtime").mkdir(parents=True)
        (copy / "runtime").mkdir()
        for name in NEEDED:
            shutil.copy(ROOT / name, copy / name)
        (copy / "transformers.py").write_text(
            "raise ImportError('these tests should not need transformers')"
        )
        if fault:
            file = copy / FILES[fault.module]
            text = file.read_text()
            assert text.count(fault.old) == 1, fault
            file.write_text(text.replace(fault.old, fault.new))
        run = FORKS.Process(target=run_tests, args=(directory, module))
        run.start()
        run.join(120)
    if run.exitcode not in (0, 1):  # neither passed nor failed: the copy does not even load
        raise RuntimeError(f"{fault}: pytest ended with {run.exitcode}")
    return run.exitcode == 0


def run_tests(copy: str, module: str) -> None:
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
    sys.exit(pytest.main(["-x", "-p", "no:cacheprovider", TESTS[module]]))


def missed() -> list[Fault]:
    """Plants every fault, prints what became of it, and returns those that no test saw."""
    with ThreadPoolExecutor(2) as pool:
        passed = pool.map(lambda fault: passes(fault.module, fault), FAULTS)
        unseen = []
        for fault, silent in zip(FAULTS, passed):
            print(
                "MISSED" if silent else "caught", f"{FILES[fault.module]}:", fault.what, flush=True
            )
            unseen += [fault] if silent else []
    return unseen


@pytest.mark.slow
def test_every_fault_is_caught():
    """The tests pass on the code as it is, without transformers, and fail on every fault."""
    assert all(map(passes, FILES))
    assert missed() == []


if __name__ == "__main__":
    sys.exit(1 if missed() else 0)
