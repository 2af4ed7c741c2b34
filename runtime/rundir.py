"""Look at what an earlier run has left in a run directory.

This is light to import, because train.py looks before it loads torch.
"""

import os
import re
from pathlib import Path

STEP_DIRECTORY = re.compile(r"step-(\d{7,})")


def directories(root: Path) -> list[Path]:
    """Return the checkpoints that are there, oldest first, whole or not."""
    found = [path for path in root.glob("step-*") if STEP_DIRECTORY.fullmatch(path.name)]
    return sorted(found, key=lambda path: int(path.name[5:]))


def restarts() -> int:
    """Return how often torchrun has started these ranks again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))


def job() -> str:
    """Return what names torchrun's job, which its restarts share: the directory of its attempts."""
    attempt = Path(os.environ.get("TORCHELASTIC_ERROR_FILE", "")).parent.parent
    return f"{os.environ.get('TORCHELASTIC_RUN_ID')} {attempt.parent}"


def is_restart(run_dir: Path) -> bool:
    """Return whether torchrun has restarted these ranks, and the run in run_dir is their own."""
    owner = run_dir / "job"
    return restarts() > 0 and owner.exists() and owner.read_text() == job()


def refuse_obstacles(run_dir: Path) -> None:
    """Raise ValueError where the run could not write into run_dir in the end."""
    for name in ("job", "lock", "metrics.jsonl", "samples.jsonl"):
        if (run_dir / name).is_dir():
            raise ValueError(f"{run_dir / name} is a directory, where the run writes a file")
    for path in (run_dir, run_dir / "checkpoints", run_dir / "model"):
        if path.exists() and not path.is_dir():
            raise ValueError(f"{path} is a file, where the run needs a directory")
    there = run_dir.absolute()
    while not there.exists():
        there = there.parent
    if not os.access(there, os.W_OK):
        raise ValueError(f"{there} cannot be written to: choose another --run_dir")


def refuse_remains(run_dir: str, resume: bool) -> None:
    """Raise ValueError where run_dir has an earlier run, unless this one goes on with it.

    Ranks that torchrun restarts go on with the run that they have begun.
    """
    checkpoints = directories(Path(run_dir) / "checkpoints")[-1:]
    refuse_obstacles(Path(run_dir))
    metrics = Path(run_dir) / "metrics.jsonl"
    model = Path(run_dir) / "model"
    remains = [path.name for path in checkpoints]
    # A run that ended before its first row leaves an empty one.
    if metrics.exists() and metrics.stat().st_size:
        remains.append(metrics.name)
    if model.exists():
        remains.append(model.name)
    if remains and not resume and not is_restart(Path(run_dir)):
        raise ValueError(
            f"{run_dir} holds a run ({', '.join(remains)}). Continue it with --resume, start "
            "another with --run_dir NEW, or remove the directory."
        )
    if "model" in remains and not checkpoints:  # else the run would begin anew over its own results
        raise ValueError(
            f"{run_dir} holds a run that has ended, without its checkpoints: nothing is there "
            "to resume. Start another with --run_dir NEW, or remove the directory."
        )
