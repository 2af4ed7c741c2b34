"""Write a checkpoint as a model directory that transformers and `vllm serve` can load.

    python -m tools.export runs/default/checkpoints/step-0000040 --output runs/default/step-40

The directory holds weights, tokenizer, generation settings and model card. A run leaves its last
model in run_dir/model by itself. This command is for the best one by validation, or for a run that
still goes on.
"""

import argparse
import json
import os
from dataclasses import fields, replace
from pathlib import Path

from runtime.faults import loading, or_refuse
from runtime.rundir import directories
from runtime.tables import read_jsonl


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The flags of the command; ValueError if --output exists or the checkpoint does not."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path, help="A checkpoint: run_dir/checkpoints/step-...")
    parser.add_argument(
        "--output", required=True, type=Path, help="The new directory of the model."
    )
    args = parser.parse_args(argv)
    if os.path.lexists(args.output):  # a link to nothing, too
        raise ValueError(f"{args.output} exists: choose another --output")
    if not args.checkpoint.is_dir():
        raise ValueError(f"{args.checkpoint}: there is no such checkpoint")
    if inside := directories(args.checkpoint / "checkpoints"):
        raise ValueError(
            f"{args.checkpoint} is a run: name one of its checkpoints, as {inside[-1]}"
        )
    loading()
    return args


ARGS = or_refuse(parse) if __name__ == "__main__" else None  # refuses before the slow imports

import torch

from config import Config
from data import load_tokenizer
from policy import Policy
from runtime import ranks
from runtime.card import describe_model, is_hub_name
from runtime.checkpoint import problem
from runtime.shards import load_shards


def configuration(saved: dict, run: Path) -> Config:
    """The configuration in a checkpoint, with a model that can be loaded here.

    That is a directory that is there, or a model of the hub by name. ValueError if it is neither.
    """
    # A run of an older version may have knobs that are gone.
    known = {f.name: saved[f.name] for f in fields(Config) if f.name in saved}
    # Files, tracker and engine of the run need not be here. Nothing is graded either, and an old
    # run may name a grader that is gone.
    here = {"val_files": [], "tracker": "none", "engine": "auto", "grader": "strict"}
    config = Config(**known | here)
    places = [
        path for path in (run / "model", Path(config.model)) if (path / "config.json").is_file()
    ]
    if places:
        return replace(config, model=str(places[0]))
    if not is_hub_name(config.model):
        raise ValueError(
            f"there is no model in {run / 'model'} (the run has not ended), nor in {config.model!r}"
        )
    return config


def load_policy(config: Config, checkpoint: Path, device: torch.device) -> Policy:
    """The policy π_θ as a checkpoint holds it (a collective)."""
    policy = Policy(config, device)
    weights = {name: p.detach() for name, p in policy.module.lm.named_parameters()}
    # AdamW's moments are not needed, and take twice the memory of the weights.
    load_shards(checkpoint / "weights", weights, moments=False)
    return policy


def main(argv: list[str] | None = None) -> None:
    """Export the checkpoint on the command line; ValueError if it is damaged or --output exists."""
    args = ARGS or parse(argv)
    device = ranks.setup()
    if why := problem(args.checkpoint):
        raise ValueError(f"{args.checkpoint} is no whole checkpoint: {why}")
    state = json.loads((args.checkpoint / "state.json").read_text())
    saved = state["config"] | {"train_files": []}
    config = configuration(saved, args.checkpoint.absolute().parent.parent)
    tokenizer = load_tokenizer(config, config.model)
    load_policy(config, args.checkpoint, device).save_pretrained(args.output)
    if ranks.rank() == 0:
        rows = read_jsonl(args.checkpoint / "metrics.jsonl")
        tokenizer.save_pretrained(args.output)
        describe_model(args.output, state, tokenizer, rows)
        print(f"wrote {args.output}")


if __name__ == "__main__":
    ranks.run(main)
