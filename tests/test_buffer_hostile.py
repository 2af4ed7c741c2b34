"""Files that are not, or no longer, a replay buffer are refused with name and reason; nothing runs."""

import json
import os
import pickle
import re
import struct
import tracemalloc

import numpy as np
import pytest
from safetensors.numpy import save_file
from test_buffer import example

from buffer import ReplayBuffer

DTYPES = {"I64": np.int64, "I32": np.int32, "F32": np.float32}


def framed(text):
    return struct.pack("<Q", len(text)) + text


def header_and_body(path):
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def read_parts(path):
    """(header, {name: list of values}) of a safetensors file, by the format's description."""
    header, body = header_and_body(path)
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            tensors[name] = np.frombuffer(body[start:end], DTYPES[entry["dtype"]]).tolist()
    return header, tensors


def write_parts(path, header, tensors):
    """A well-formed file of these tensors: shapes and offsets are made to fit, whatever the values are."""
    body = b""
    for name, values in tensors.items():
        piece = np.array(values, DTYPES[header[name]["dtype"]]).tobytes()
        header[name].update(shape=[len(values)], data_offsets=[len(body), len(body) + len(piece)])
        body += piece
    path.write_bytes(framed(json.dumps(header).encode()) + body)


def refusal(path) -> str:
    """Why the file is not taken, a message that names it."""
    with pytest.raises(ValueError) as error:
        ReplayBuffer.load(path)
    assert str(path) in str(error.value)
    return str(error.value)


def test_the_parts_put_together_again_load(tmp_path):
    """The tampering below is what is refused, not its tools."""
    example().save(tmp_path / "buffer")
    write_parts(tmp_path / "buffer", *read_parts(tmp_path / "buffer"))
    assert ReplayBuffer.load(tmp_path / "buffer").checksum() == example().checksum()


# example(): questions 13, 10, 11, 12, 14 with 2 trajectories of 2 and 3 tokens each; 99 and 7 retired
CONTRADICTIONS = {
    "a question is listed twice": ("question_ids", [13, 10, 11, 12, 10]),
    "a question is retired twice": ("retired", [7, 7]),
    "both buffered and retired": ("retired", [99, 13]),
    "success count is out of range": ("num_success", [2, 4, 4, 4, -7]),
    "a question has no trajectory": ("num_stored", [2, 2, 2, 4, 0]),
    "trajectories do not add up": ("num_stored", [2, 2, 2, 2, 2**62]),
    "a trajectory has no token": ("lengths", [-2, 7, 2, 3, 2, 3, 2, 3, 2, 3]),
    "lengths do not add up": ("lengths", [2, 3, 2, 3, 2, 3, 2, 3, 2, 2**62]),
    "a negative token id": ("token_ids", [-1] * 25),
    "a log-prob that is not finite": ("logprobs", [0.0] * 24 + [np.nan]),
    "order of arrival is impossible": ("arrivals", [0, 1, 2, 3, 4, 5, 6, 7, 8, 8]),
    "of arrival is impossible": ("arrivals", [1, 0, 2, 3, 4, 5, 6, 7, 8, 9]),
    "arrival is impossible": ("arrivals", [0, 1, 2, 3, 4, 5, 6, 7, 8, 10]),
    "is impossible": ("arrivals", [-1, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
    "match the checksum": ("steps", [5] * 10),
}


@pytest.mark.parametrize("reason", CONTRADICTIONS)
def test_contents_that_contradict_each_other_are_refused(tmp_path, reason):
    """A well-formed file with one column changed: refused with the file's name and this reason."""
    path = tmp_path / "buffer"
    example().save(path)
    header, tensors = read_parts(path)
    name, values = CONTRADICTIONS[reason]
    assert values != tensors[name] and len(values) == len(tensors[name])
    write_parts(path, header, tensors | {name: values})
    assert re.search(reason, refusal(path))


def entry(**changes):
    return lambda header: header["token_ids"].update(changes)


def metadata(**changes):
    return lambda header: header["__metadata__"].update(changes)


LYING_HEADERS = {
    "offsets beyond the file": entry(data_offsets=[496, 10**15]),
    "offsets backwards": entry(data_offsets=[596, 496]),
    "offsets that overlap": entry(data_offsets=[396, 496]),
    "a negative length": entry(shape=[-25]),
    "a huge length": entry(shape=[2**60]),
    "a length that is no integer": entry(shape=[25.0]),
    "no length": entry(shape=[]),
    "another type": entry(dtype="F32"),
    "an unknown key": entry(extra=1),
    "a tensor too many": lambda header: header.update(
        code={"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}
    ),
    "no metadata": lambda header: header.pop("__metadata__"),
    "metadata of another kind": lambda header: header.update(__metadata__=["format"]),
    "another format": metadata(format="something else"),
    "metadata that is no text": metadata(max_trajectories=[]),
    "a cap of 3 for 10": metadata(max_trajectories="3"),
    "a cap of 0": metadata(max_trajectories="0"),
    "a cap that is no number": metadata(max_trajectories="many"),
    "another checksum": metadata(checksum="0"),
}


def test_a_consistent_claim_of_terabytes_is_refused(tmp_path):
    """Shapes and offsets that agree with each other, but not with the size of the file."""
    example().save(tmp_path / "buffer")
    header, body = header_and_body(tmp_path / "buffer")
    start, n = header["token_ids"]["data_offsets"][0], 10**12
    header["token_ids"].update(shape=[n], data_offsets=[start, start + 4 * n])
    header["logprobs"].update(shape=[n], data_offsets=[start + 4 * n, start + 8 * n])
    (tmp_path / "buffer").write_bytes(framed(json.dumps(header).encode()) + body)
    assert re.search("its header claims 8000000.* bytes, the file has", refusal(tmp_path / "buffer"))


@pytest.mark.parametrize("lie", LYING_HEADERS)
def test_lying_headers_are_refused_before_anything_is_allocated(tmp_path, lie):
    """One claim in the header changed, data untouched: refused, and hardly anything is allocated."""
    path = tmp_path / "buffer"
    example().save(path)
    header, body = header_and_body(path)
    LYING_HEADERS[lie](header)
    path.write_bytes(framed(json.dumps(header).encode()) + body)
    tracemalloc.start()
    assert re.search("not a usable replay buffer", refusal(path))
    assert tracemalloc.get_traced_memory()[1] < 4e6  # two read-ahead blocks of 1 MiB are part of it
    tracemalloc.stop()


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(Bomb()),
        b"",
        b"PK\x03\x04" + bytes(100),
        struct.pack("<Q", 2**63 - 1) + b"{}",
        struct.pack("<Q", 2**64 - 1) + b"{}",
        framed(b"[" * 60_000),
        framed(b"\xff\xfe"),
        framed(b"null"),
        framed(b'{"__metadata__": {}}'),
        framed(b"1" * 5_000),
    ],
    ids=range(10),
)
def test_other_files_are_refused(tmp_path, data, monkeypatch):
    """Pickles (never run), archives, absurd headers: ValueError with the file's name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "buffer").write_bytes(data)
    assert re.search("not a usable replay buffer", refusal(tmp_path / "buffer"))
    assert os.listdir(tmp_path) == ["buffer"]


def test_another_safetensors_file_is_refused(tmp_path):
    """A model's weights are not a buffer."""
    save_file({"weight": np.zeros(3)}, tmp_path / "model.safetensors", {"format": "pt"})
    assert re.search("lacks the metadata or a tensor", refusal(tmp_path / "model.safetensors"))


def test_cut_or_lengthened_files_are_refused(tmp_path):
    """Cut at any byte, or with more after the end."""
    path = tmp_path / "buffer"
    example().save(path)
    data = path.read_bytes()
    for content in [data[:n] for n in range(0, len(data), 7)] + [data + b"\0"]:
        path.write_bytes(content)
        assert re.search("not a usable replay buffer", refusal(path))


def test_one_flipped_bit_is_noticed(tmp_path):
    """Wherever it is: refused, or (in the spaces after the header, which mean nothing) without effect."""
    path = tmp_path / "buffer"
    example().save(path)
    data, rng = path.read_bytes(), np.random.default_rng(0)
    for position in rng.integers(0, len(data), 300).tolist():
        flipped = bytearray(data)
        flipped[position] ^= 1 << int(rng.integers(8))
        path.write_bytes(flipped)
        try:
            loaded = ReplayBuffer.load(path)
        except ValueError as error:
            assert str(path) in str(error)
        else:
            assert loaded.checksum() == example().checksum() and list(loaded.retired) == [99, 7]
