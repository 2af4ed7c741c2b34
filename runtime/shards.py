"""Write weights and AdamW's state to safetensors files that any number of ranks can read back.

torch.distributed.checkpoint does the work. Every rank writes the rows that it holds, one rank
writes what several hold, and a reader copies the rows it needs out of whichever files have them.
Its Hugging Face storage is taken because its usual one is a pickle, which runs code when it is
read. AdamW's state of weight `w` is `w:exp_avg`, `w:exp_avg_sq` and `w:step` (policy.py).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path

import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from runtime import ranks

FILE_BYTES = 1 << 30  # about the size of a file; the writer holds a whole one twice in host memory


def save_shards(tensors: dict[str, Tensor], directory: Path) -> list[str]:
    """Write this rank's rows, and return the names of its files (a collective).

    Raises OSError on all ranks where one of them fails.
    """
    ends = accumulate(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    files = {name: 1 + end // (FILE_BYTES * ranks.world_size()) for name, end in zip(tensors, ends)}
    writer = dcp.HuggingFaceStorageWriter(
        str(directory), fqn_to_index_mapping=files, save_distributed=True
    )
    with _raises(OSError):
        dcp.save(tensors, storage_writer=writer)
    return [path.name for path in directory.glob(f"shard-{ranks.rank() + 1:05d}-*")]


def load_shards(directory: Path, tensors: dict[str, Tensor], moments: bool = True) -> None:
    """Fill this rank's rows of the tensors (a collective).

    moments: whether AdamW's state is among the tensors; without it only weights are read. Raises
    ValueError where the files hold another model.
    """
    with _raises(ValueError):
        saved = dcp.HuggingFaceStorageReader(str(directory)).read_metadata().state_dict_metadata
        found = {
            (name, tuple(entry.size)) for name, entry in saved.items() if moments or ":" not in name
        }
        wanted = {(name, tuple(tensor.shape)) for name, tensor in tensors.items()}
        if other := sorted(found ^ wanted):
            raise ValueError(
                f"the checkpoint is of another model: {other[:4]} are in only one of them"
            )
        dcp.load(tensors, storage_reader=dcp.HuggingFaceStorageReader(str(directory)))


@contextmanager
def _raises(kind: type[Exception]) -> Iterator[None]:
    """Raise whatever goes wrong inside as one kind of exception.

    torch's own is not even an Exception.
    """
    try:
        yield
    except CheckpointException as error:
        causes = {f"rank {rank}: {cause[0]!r}" for rank, cause in error.failures.items()}
        raise kind(f"weights and optimiser state: {'; '.join(sorted(causes))}") from error
    except (SafetensorError, KeyError, TypeError, RuntimeError) as error:
        raise kind(f"weights and optimiser state cannot be read: {error!r}") from error
