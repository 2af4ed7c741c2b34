"""Whose is a run directory: what an earlier run has left in it, and the lock of the run that uses it.

Light to import: train.py refuses a directory before it loads anything.
"""

import fcntl
import os
import re
import socket
import time
from pathlib import Path
from typing import TextIO

STEP_DIRECTORY = re.compile(r"step-(\d{7,})")
PATIENCE = 20.0  # seconds that a restarted run waits for the dead one to let go


def directories(root: Path) -> list[Path]:
    """The checkpoints that are there, oldest first, whole or not."""
    found = [path for path in root.glob("step-*") if STEP_DIRECTORY.fullmatch(path.name)]
    return sorted(found, key=lambda path: int(path.name[5:]))


def restarts() -> int:
    """How often torchrun has started these ranks again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))


def refuse_remains(run_dir: str, resume: bool) -> None:
    """ValueError where an earlier run has left something in run_dir, unless this one goes on with it."""
    every = directories(Path(run_dir) / "checkpoints")
    checkpoints = every[-1:]
    others = [Path(run_dir) / name for name in ("metrics.jsonl", "model")]
    remains = [path.name for path in [*checkpoints, *others] if path.exists()
               and (path.is_dir() or path.stat().st_size)]  # an empty file: it ended before its first row
    if remains and not resume and not restarts():
        raise ValueError(f"{run_dir} holds a run ({', '.join(remains)}). Continue it with --resume, start "
                         "another with --run_dir NEW, or remove the directory.")
    if "model" in remains and not checkpoints:  # else the run would begin anew over its own results
        raise ValueError(f"{run_dir} holds a run that has ended, without its checkpoints: nothing is there "
                         "to resume. Start another with --run_dir NEW, or remove the directory.")
    for path in every:
        if path.is_symlink() or not path.is_dir():
            raise ValueError(f"{path} is not a directory of its own, where a checkpoint will be written: put "
                             "the checkpoint itself there, or move it away")


def lock(run_dir: str) -> TextIO | None:
    """Take run_dir for this process; it is free when the file is closed, or the process gone.

    ValueError names the process that has it. What torchrun restarts waits a while: the dead may be dying.
    None, with a note, on a file system without locks.
    """
    Path(run_dir).mkdir(parents=True, exist_ok=True)
    file = open(Path(run_dir) / "lock", "a+")
    deadline = time.monotonic() + (PATIENCE if restarts() else 0)
    while True:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.truncate(0)
            print(f"process {os.getpid()} on {socket.gethostname()}", file=file, flush=True)
            return file
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                file.seek(0)
                raise ValueError(f"{run_dir} is in use by {file.read().strip() or 'another process'}: wait "
                                 "for it, end it, or choose another --run_dir") from error
            time.sleep(0.2)
        except OSError as error:
            print(f"note: {run_dir} cannot be locked ({error}): nothing keeps a second run out of it")
            return None
