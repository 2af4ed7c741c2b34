"""Make sure that a directory belongs to one run or evaluation, and is one for all nodes."""

import fcntl
import os
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from runtime import ranks
from runtime.faults import say
from runtime.rundir import restarts


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
    file = open(directory / "lock", "a+")
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
