"""The replay buffer in bytes: a trajectory (a "record"), and the whole buffer as one safetensors file.

A record is one bytes object, little-endian:
    step int64 | arrival int64 | token_ids int32 [T] | logprobs float32 [T]
The file holds the columns below, then all token ids, then all log-probs, each as one safetensors tensor. The
safetensors library writes only what lies in memory in one piece, and maps a file to read it, which counts as
memory too; so the file is streamed here instead. The library reads it as well (a test has it do so).
A file is trusted only after every claim in it has been checked.
"""

import json
import operator
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

HEAD = struct.Struct("<qq")  # step, arrival
INT64 = struct.Struct("<q")
FORMAT = "exgrpo replay buffer 1"
METADATA = ("format", "max_trajectories", "next_arrival", "checksum")
MAX_HEADER = 1 << 16  # bytes; ours needs about 1,000

# name: (type, bytes, one for every ...). Questions stand bucket by bucket, inside one in the bucket's order.
TENSORS = {
    "question_ids": ("I64", 8, "question"),
    "num_success": ("I64", 8, "question"),  # the latest k
    "num_stored": ("I64", 8, "question"),  # trajectories of the question
    "retired": ("I64", 8, "retired question"),
    "steps": ("I64", 8, "trajectory"),
    "arrivals": ("I64", 8, "trajectory"),
    "lengths": ("I64", 8, "trajectory"),  # T
    "token_ids": ("I32", 4, "token"),
    "logprobs": ("F32", 4, "token"),
}
COLUMNS = tuple(TENSORS)[:7]


@dataclass(slots=True, eq=False)
class Trajectory:
    """A successful response, with the log-probs of its tokens under the policy that made it (pi_past)."""

    token_ids: np.ndarray  # int32 [T], T >= 1, EOS included
    logprobs: np.ndarray  # float32 [T], natural log
    step: int = 0  # training step of the rollout
    reward: float = 1.0
    finished: bool = True


def checked_integer(name: str, value: int, low: int = -(2**63), high: int = 2**63 - 1) -> int:
    """value as a Python int (numpy integers too); ValueError if out of range, TypeError if no integer."""
    value = operator.index(value)
    if not low <= value <= high:
        raise ValueError(f"{name} must be an integer in {low}..{high}, got {value}")
    return value


def pack(trajectory: Trajectory) -> tuple[int, bytes, bytes]:
    """(step, token ids, log-probs), copied to bytes; ValueError where the trajectory is malformed."""
    tokens, logprobs = np.asarray(trajectory.token_ids), np.asarray(trajectory.logprobs)  # [T], [T]
    if tokens.ndim != 1 or tokens.shape != logprobs.shape or not tokens.size:
        raise ValueError(f"token_ids {tokens.shape} and logprobs {logprobs.shape} must both be [T], T >= 1")
    if tokens.dtype.kind not in "iu" or tokens.min() < 0 or tokens.max() >= 2**31:
        raise ValueError(
            f"token_ids must be integers in 0..2^31-1: {tokens.dtype} {tokens.min()}..{tokens.max()}"
        )
    if logprobs.dtype.kind != "f" or not np.isfinite(logprobs := logprobs.astype("<f4")).all():
        raise ValueError(
            "logprobs must be finite floats; a response with others cannot be replayed: leave it out"
        )
    return checked_integer("step", trajectory.step), tokens.astype("<i4").tobytes(), logprobs.tobytes()


def unpack(record: bytes) -> Trajectory:
    """A record as read-only views, nothing copied."""
    length = _length(record)
    tokens = np.frombuffer(record, "<i4", length, HEAD.size)  # [T]
    logprobs = np.frombuffer(record, "<f4", length, HEAD.size + 4 * length)  # [T]
    return Trajectory(tokens, logprobs, step=HEAD.unpack_from(record)[0])


def write_buffer_file(
    path: str | os.PathLike, metadata: dict[str, str], columns: dict[str, list[int]], records: Sequence[bytes]
) -> None:
    """Write metadata, the first four columns and the trajectories (question after question, oldest first).

    It replaces an old file only when it is complete and on the disk; whatever goes wrong leaves the old one.
    """
    path = os.fspath(path)
    heads = [HEAD.unpack_from(record) for record in records]
    columns = columns | {
        "steps": [step for step, _ in heads],
        "arrivals": [arrival for _, arrival in heads],
        "lengths": [_length(record) for record in records],
    }
    counts = {of: len(columns[name]) for name, (_, _, of) in TENSORS.items() if name in columns}
    counts["token"] = sum(columns["lengths"])
    header = json.dumps(_header(counts, {"format": FORMAT} | metadata)).encode()
    header += b" " * (-len(header) % 8)  # tensors start at a multiple of 8, as the format asks
    try:
        with open(path + ".tmp", "wb", buffering=1 << 20) as file:
            file.write(INT64.pack(len(header)) + header)
            for name in COLUMNS:
                file.write(np.array(columns[name], dtype="<i8").tobytes())
            file.writelines(memoryview(r)[HEAD.size : HEAD.size + 4 * _length(r)] for r in records)
            file.writelines(memoryview(r)[HEAD.size + 4 * _length(r) :] for r in records)
            file.flush()
            os.fsync(file.fileno())
        os.replace(path + ".tmp", path)
    except BaseException:
        if os.path.exists(path + ".tmp"):
            os.unlink(path + ".tmp")
        raise
    directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    os.fsync(directory)  # makes the rename itself last
    os.close(directory)


def read_buffer_file(path: str | os.PathLike) -> tuple[dict[str, str], dict[str, list[int]], list[bytes]]:
    """(metadata, all columns, records), all checked; ValueError with the reason if the file is not ours.

    No pickle is ever read, and nothing is allocated before the file's size has been found to justify it.
    """
    with open(path, "rb", buffering=1 << 20) as file, open(path, "rb", buffering=1 << 20) as logprob_file:
        header, start = _read_header(file)
        columns = {}
        for name in COLUMNS:
            columns[name] = np.frombuffer(file.read(8 * header[name]["shape"][0]), "<i8").tolist()
        metadata = {name: header["__metadata__"][name] for name in METADATA[1:]}
        _check_columns(columns, metadata, num_tokens=header["token_ids"]["shape"][0])
        logprob_file.seek(start + header["logprobs"]["data_offsets"][0])
        records = []
        for row in zip(columns["steps"], columns["arrivals"], columns["lengths"], strict=True):
            tokens, logprobs = file.read(4 * row[2]), logprob_file.read(4 * row[2])
            if np.frombuffer(tokens, "<i4").min() < 0:
                raise ValueError(f"trajectory {len(records)} has a negative token id")
            if not np.isfinite(np.frombuffer(logprobs, "<f4")).all():
                raise ValueError(f"trajectory {len(records)} has a log-prob that is not finite")
            records.append(HEAD.pack(*row[:2]) + tokens + logprobs)
    return metadata, columns, records


def _length(record: bytes) -> int:
    return (len(record) - HEAD.size) // 8


def _header(counts: dict[str, int], metadata: dict[str, str]) -> dict:
    """The only header there can be for these counts: fixed names, types and order, no gaps."""
    header, offset = {"__metadata__": metadata}, 0
    for name, (dtype, itemsize, of) in TENSORS.items():
        end = offset + itemsize * counts[of]
        header[name] = {"dtype": dtype, "shape": [counts[of]], "data_offsets": [offset, end]}
        offset = end
    return header


def _read_header(file) -> tuple[dict, int]:
    """(header, start of data). The counts it claims must explain all of the header and the file size."""
    size = os.fstat(file.fileno()).st_size
    length = INT64.unpack(file.read(8))[0] if size >= 8 else -1
    if not 0 < length <= min(MAX_HEADER, size - 8):
        raise ValueError("it does not begin with a safetensors header of a plausible length")
    header = json.loads(file.read(length))
    try:
        metadata = header["__metadata__"]
        counts = {of: header[name]["shape"][0] for name, (_, _, of) in TENSORS.items()}
    except (TypeError, KeyError, IndexError):
        raise ValueError(f"its header lacks the metadata or a tensor of {', '.join(TENSORS)}") from None
    if not all(type(count) is int and count >= 0 for count in counts.values()):
        raise ValueError(f"its header claims the tensor lengths {counts}")
    expected = _header(counts, metadata)
    if json.dumps(header, sort_keys=True) != json.dumps(
        expected, sort_keys=True
    ):  # 3 and 3.0 are not the same
        raise ValueError("its header has other tensors, types, shapes or offsets than a replay buffer's")
    if not isinstance(metadata, dict) or sorted(metadata) != sorted(METADATA) or metadata["format"] != FORMAT:
        raise ValueError(f"its metadata is not that of format {FORMAT!r}")
    if not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("its metadata has values that are not text")
    claimed = 8 + length + expected["logprobs"]["data_offsets"][1]
    if claimed != size:
        raise ValueError(f"its header claims {claimed} bytes, the file has {size}")
    return expected, 8 + length


def _check_columns(columns: dict[str, list[int]], metadata: dict[str, str], num_tokens: int) -> None:
    """What must hold between the columns before a single trajectory is read."""
    ids, arrivals = columns["question_ids"], columns["arrivals"]
    num_trajectories, cap = len(arrivals), metadata["max_trajectories"]
    ends = [0, *accumulate(columns["num_stored"])]  # question i has trajectories ends[i]..ends[i + 1]
    by_question = [arrivals[start:end] for start, end in pairwise(ends)]
    problems = {
        "a question is listed twice": len(set(ids)) < len(ids),
        "a question is retired twice": len(set(columns["retired"])) < len(columns["retired"]),
        "a question is both buffered and retired": not set(ids).isdisjoint(columns["retired"]),
        "a success count is out of range": not all(0 <= k < 2**31 for k in columns["num_success"]),
        "a question has no trajectory": min(columns["num_stored"], default=1) < 1,
        "the questions' trajectories do not add up": ends[-1] != num_trajectories,
        "a trajectory has no token": min(columns["lengths"], default=1) < 1,
        "the trajectories' lengths do not add up": sum(columns["lengths"]) != num_tokens,
        "the trajectories' order of arrival is impossible": len(set(arrivals)) < num_trajectories
        or min(arrivals, default=0) < 0
        or max(arrivals, default=-1) >= int(metadata["next_arrival"])
        or any(own != sorted(own) for own in by_question),
        "there are more trajectories than its cap allows": cap != "None" and num_trajectories > int(cap),
    }
    for problem, found in problems.items():
        if found:
            raise ValueError(problem)
