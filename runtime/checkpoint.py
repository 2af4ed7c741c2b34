"""Write and read checkpoints, so that a crash at any moment leaves the one before.

    run_dir/checkpoints/step-0000040/
        weights/            every rank's part of the weights and of AdamW's state, in safetensors
        buffer.safetensors  the replay buffer and the retired set
        state.json          the step, the knobs, the stream of fresh questions, and the metrics
        model/              the model as an ordinary Hugging Face directory

A checkpoint is written as `unfinished`, and renamed once all of it is on the disk; one with its
own name is whole. There is no random state to keep: every draw is seeded by the run's seed, the
step and what it is for. torch's usual storage is a pickle, which runs code when it is read; so its
safetensors storage is used, which any number of ranks reads. With several nodes run_dir must lie on
a file system that they share.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from runtime import ranks


def checkpoints(run_dir: Path) -> list:
    """Return the checkpoints that are there, oldest first."""
    return sorted(run_dir.glob("checkpoints/step-???????"))


def save(final: Path, tensors: dict, write_rest: Callable) -> None:
    """Write the checkpoint `final`, unless it is there already (a collective).

    tensors: this rank's parts, by name. write_rest(directory) writes all else; a collective, too.
    Raises Refusal where it cannot be written, as on a full disk, and removes what it wrote.
    """
    if final.exists():
        return
    aside = final.with_name("unfinished")
    main = ranks.rank() == 0
    try:
        if main:
            shutil.rmtree(aside, ignore_errors=True)
        ranks.gather(None)  # which waits for every rank
        # Each rank writes one file, and for that holds its part twice in host memory.
        writer = dcp.HuggingFaceStorageWriter(str(aside / "weights"), save_distributed=True)
        dcp.save(tensors, storage_writer=writer)
        write_rest(aside)
        if main:
            os.sync()  # or a power cut may keep the name and lose the files
            aside.rename(final)
    except (OSError, CheckpointException) as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise ranks.Refusal(
            f"{final} could not be written: {error}. Make room, and --resume from the checkpoint"
            " before"
        ) from error
    # No rank goes on before the name is there, since each looks for it at its next save.
    ranks.gather(None)


def load(path: Path, tensors: dict) -> None:
    """Read this rank's parts into the tensors (a collective).

    torch raises where the checkpoint lacks one of them, or has another shape of it.
    """
    dcp.load(tensors, storage_reader=dcp.HuggingFaceStorageReader(str(path / "weights")))


def prune(run_dir: Path, rows: list[dict]) -> None:
    """Remove all checkpoints but the last two and the one with the best Pass@1 in validation.

    rows: of metrics.jsonl, at least one for every step.
    """
    scores = {}
    for row in rows:
        values = [x for name, x in row.items() if name.startswith("val/pass_at_1/")]
        scores[f"step-{row['step']:07d}"] = sum(values)  # 0 without a validation
    there = checkpoints(run_dir)
    best = max(reversed(there), key=lambda path: scores[path.name])
    for path in there[:-2]:
        if path != best:
            shutil.rmtree(path)
