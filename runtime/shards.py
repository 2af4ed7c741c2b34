"""Weights and AdamW state as one safetensors file per shard, readable on any number of ranks.

FSDP2 gives every rank a run of rows of each tensor. A file holds these runs under the tensors' names, and in its
metadata each run's first row; a reader copies the rows it needs from whichever files have them. AdamW's state
of weight `w` is `w:exp_avg`, `w:exp_avg_sq` and `w:step`.
"""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor

from policy import Policy


def save_shard(policy: Policy, directory: Path) -> list[str]:
    """Write this rank's rows, unless another rank holds the same; returns the names of the files written."""
    tensors = _tensors(policy)
    mesh = next(iter(tensors.values())).device_mesh
    if mesh.mesh_dim_names[0] == "replicate" and mesh.get_local_rank("replicate") > 0:
        return []
    name = f"shard-{mesh.get_local_rank('shard'):05d}.safetensors"
    rows = {key: _first_row(tensor) for key, tensor in tensors.items()}
    save_file({key: _local(tensor).cpu().contiguous() for key, tensor in tensors.items()}, directory / name,
              metadata={"first_rows": json.dumps(rows)})
    return [name]


def load_shards(policy: Policy, paths: list[Path]) -> None:
    """Copy what this rank needs out of the files of all shards, whatever their number.

    ValueError names the file or tensor where they do not make up this very model.
    """
    pieces: dict[str, list] = {}
    for path in paths:
        try:
            file = safe_open(path, "pt")
            rows = json.loads(file.metadata()["first_rows"])
            for key in file.keys():
                pieces.setdefault(key, []).append((int(rows[key]), file.get_slice(key)))
        except (SafetensorError, TypeError, KeyError, ValueError) as error:
            raise ValueError(f"{path} is not a shard of a checkpoint: {error!r}") from error
    if any(":" in key for key in pieces):
        for p in (p for p in policy.module.parameters() if p.requires_grad):
            moments = {name: torch.zeros_like(p) for name in ("exp_avg", "exp_avg_sq")}
            policy.optimizer.state[p] = {"step": torch.tensor(0.0), **moments}
    tensors = _tensors(policy)
    if other := set(tensors) ^ set(pieces):
        raise ValueError(f"the checkpoint is of another model: {sorted(other)[:4]} are in only one of them")
    with torch.no_grad():
        for key, tensor in tensors.items():
            _fill(key, tensor, pieces[key])


def _fill(key: str, tensor: torch.Tensor, pieces: list) -> None:
    """Copy the rows of this rank's part of `tensor` from (first row, rows of it) pieces."""
    local, first, filled = _local(tensor), _first_row(tensor), 0
    if local.dim() == 0:
        local.copy_(pieces[0][1][...])
        return
    total = sum(piece.get_shape()[0] for _, piece in pieces)
    if total != len(tensor) or any(piece.get_shape()[1:] != list(local.shape[1:]) for _, piece in pieces):
        raise ValueError(f"the checkpoint is of another model: {key} should have the shape {tuple(tensor.shape)}")
    for start, piece in pieces:
        begin, end = max(first, start), min(first + len(local), start + piece.get_shape()[0])
        if begin < end:
            local[begin - first : end - first] = piece[begin - start : end - start]
            filled += end - begin
    if filled != len(local):
        raise ValueError(f"the checkpoint's shards do not make up {key}")


def _tensors(policy: Policy) -> dict[str, torch.Tensor]:
    """Every weight (tied ones once) and AdamW's state of it, DTensors but for the step counts."""
    tensors = dict(policy.module.lm.named_parameters())
    for name, p in list(tensors.items()):
        tensors |= {f"{name}:{key}": value for key, value in policy.optimizer.state.get(p, {}).items()}
    return tensors


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's rows, sharing memory with the tensor."""
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


def _first_row(tensor: torch.Tensor) -> int:
    """Which row of the whole tensor this rank's part begins with: equal runs, the last ones shorter or empty."""
    if not isinstance(tensor, DTensor):
        return 0
    mesh = tensor.device_mesh
    ranks = mesh.size(mesh.mesh_dim_names.index("shard"))
    return min(mesh.get_local_rank("shard") * -(-len(tensor) // ranks), len(tensor))
