"""What a command line asks for and this machine has not, a sentence for each with what to do."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

ORIGIN = {  # file -> where it comes from
    "data/openr1.parquet": "`python -m tools.convert Elliott/Openr1-Math-46k-8192 --output"
    " data/openr1.parquet` makes it, and `make train` trains a tiny model without it",
    ".cache/arithmetic/train-30-10-60.jsonl": "`make train` makes it",
    "data/valid.parquet": "it comes with the official code, and a bare --val_files does without",
}
INSTALL_PEFT = "pip install peft==0.21.2 accelerate==1.15.0"
INSTALL_TRACKER = {
    "tensorboard": "pip install tensorboard==2.21.0",
    "wandb": "pip install wandb==0.31.0",
}


def missing(config, files: list[str]) -> Iterator[str]:
    """Yield a sentence for what a prompt, an engine or a file of questions lacks."""
    for name in ("prompt_template", "response_prefix"):
        text = getattr(config, name)
        if "\\n" in text and "\n" not in text:
            yield (
                f"{name} holds a backslash and an n, no line break: $'\\n' in bash, double quotes"
                " in YAML"
            )
    if config.prompt_template != "chat" and "{question}" not in config.prompt_template:
        yield "prompt_template must be 'chat' or contain {question}"
    if config.engine == "vllm" and not find_spec("vllm"):
        yield "engine='vllm' is not installed: run `make install`, or choose --engine hf"
    for file in files:
        if not Path(file).exists():
            yield f"{file} is not there: {ORIGIN.get(file, 'tools.convert makes such files')}"


def missing_libraries(config) -> Iterator[str]:
    """Yield a sentence for what only training may need."""
    if config.lora_rank and not find_spec("peft"):
        yield f"lora_rank needs the library peft, which is not installed: {INSTALL_PEFT}"
    # A mere directory of the library's name is found, too, but has no origin.
    if config.tracker != "none" and not getattr(find_spec(config.tracker), "origin", None):
        yield (
            f"tracker={config.tracker} needs a library that is not installed:"
            f" {INSTALL_TRACKER[config.tracker]}"
        )
