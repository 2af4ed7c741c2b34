"""Look at what an earlier run has left in a directory, and keep the directory to one job."""

import fcntl
import os
import re
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from runtime import ranks
from runtime.faults import say


def directories(root: Path) -> list[Path]:
    """Return the checkpoints that are there, oldest first, whole or not."""
    found = [path for path in root.glob("step-*") if re.fullmatch(r"step-\d{7,}", path.name)]
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


def refuse_remains(run_dir: str, resume: bool) -> None:
    """Raise ValueError where run_dir has an earlier run, unless this one goes on with it.

    Ranks that torchrun restarts go on with the run that they have begun.
    """
    checkpoints = directories(Path(run_dir) / "checkpoints")[-1:]
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


# ---- one job at a time, on all nodes -------------------------------------------------------------


@contextmanager
def claim(directory: str | Path) -> Iterator[None]:
    """Keep the directory, where one is named, to this job until the context ends (a collective).

    The lock belongs to rank 0's process, not to its children. Raises ValueError, which names the
    process that has the directory, or says that not all nodes see it.
    """
    file = error = None
    try:
        if directory and ranks.rank() == 0:
            file = lock(Path(directory))
    except ValueError as taken:
        error = taken
    if error := ranks.gather(error)[0]:
        raise error
    check_shared(directory)
    yield
    if file:
        file.close()


def lock(directory: Path) -> TextIO:
    """Take the directory for this process, until the returned file is closed or the process ends.

    Raises ValueError, which names the process that has it. A process that torchrun has restarted
    waits 20 s for the one before it, which may still be dying.
    """
    directory.mkdir(parents=True, exist_ok=True)
    try:  # a link is refused, as its target would be overwritten
        handle = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise ValueError(f"{directory} cannot be locked: {error}; remove its lock") from None
    file = os.fdopen(handle, "r+")
    for _ in range(100 if restarts() else 1):
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.truncate(0)
            print(f"process {os.getpid()} on {socket.gethostname()}", file=file, flush=True)
            return file
        except BlockingIOError:
            time.sleep(0.2)
        except OSError as error:
            say(f"note: {directory} cannot be locked ({error}): nothing keeps a second job out")
            return file
    file.seek(0)
    raise ValueError(
        f"{directory} is in use by {file.read().strip() or 'another process'}: wait for it, "
        "end it, or choose another directory"
    )


def check_shared(directory: str | Path) -> None:
    """Raise ValueError on all ranks where one does not see what rank 0 writes (a collective).

    Rank 0 writes into `directory`; where none is named, there is nothing to check.
    """
    if not directory:
        return
    mark = Path(directory) / f"seen-{ranks.gather(uuid.uuid4().hex)[0]}"
    # Every rank makes the directory, because a network file system may remember that it was not
    # there, and only asks again when it is told to make it.
    mark.parent.mkdir(parents=True, exist_ok=True)
    ranks.barrier()
    if ranks.rank() == 0:
        mark.touch()
    ranks.barrier()
    seen = ranks.gather(mark.exists())
    if ranks.rank() == 0:
        mark.unlink()
    if not all(seen):
        raise ValueError(
            f"{directory} is not one directory for all nodes: what rank 0 writes there is not "
            f"seen by rank {seen.index(False)}. Name one on a file system that they share."
        )
