"""A run directory belongs to one run, and is one directory for all nodes (collectives)."""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runtime import ranks
from runtime.rundir import PATIENCE, lock


@contextmanager
def claim(run_dir: str | Path) -> Iterator[None]:
    """Keep run_dir to this run, by a lock of rank 0's process, not of its children (a collective); ValueError
    names the process that has it, or says that not all nodes see it."""
    file = error = None
    try:
        file = lock(str(run_dir)) if ranks.rank() == 0 else None
    except ValueError as taken:
        error = taken
    if error := ranks.gather(error)[0]:
        raise error
    check_shared(run_dir)
    yield
    if file:
        file.close()


def check_shared(directory: str | Path, patience: float = PATIENCE) -> None:
    """ValueError on all ranks where one does not see within `patience` seconds what rank 0 writes into
    `directory`, if any is named (a collective)."""
    if ranks.world_size() == 1 or not directory:
        return
    directory = Path(directory)
    mark = directory / f"seen-{ranks.gather(uuid.uuid4().hex)[0]}"
    if ranks.rank() == 0:
        directory.mkdir(parents=True, exist_ok=True)
        mark.touch()
    ranks.barrier()
    deadline = time.monotonic() + patience
    while not (seen := mark.exists()) and time.monotonic() < deadline:
        time.sleep(0.2)
    blind = [r for r, there in enumerate(ranks.gather(seen)) if not there]
    if ranks.rank() == 0:
        mark.unlink()
    if blind:
        raise ValueError(f"{directory} is not one directory for all nodes: what rank 0 writes there is not "
                         f"seen by ranks {blind}. Name one on a file system that they share.")
