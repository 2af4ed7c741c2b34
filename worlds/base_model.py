"""Build a built-in world: its questions, and its base model, a tiny Llama (pretraining.py).

    python -m worlds.base_model               build the world of configs/arithmetic.yaml
    python -m worlds.base_model --seed 3      build this one and print where it is
    python -m worlds.base_model --rebuild     train the shipped base anew and print where it is

The base of seed 0 is shipped in worlds/base/, since training rounds differently on every processor,
and only has to be copied. Other seeds are other worlds of the same recipe, with other facts, other
questions and another base, and are built on first use.
"""

import argparse
import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path

from worlds.arithmetic import World, draw_sets, draw_training, rows

SHIPPED = Path(__file__).parent / "base"


def place_of(world: World, directory: str | Path) -> Path:
    """Where under `directory` this world is kept, by a name made from its constants."""
    fingerprint = hashlib.sha256(json.dumps(asdict(world)).encode()).hexdigest()[:10]
    return Path(directory) / f"arithmetic-{fingerprint}"


def training_file(world: World, place: Path) -> Path:
    """The file of the world's training questions in its directory, written on first use."""
    file = place / "train-30-10-60.jsonl"  # the percents of MIX
    if not file.exists():
        aside = file.with_suffix(f".{os.getpid()}")
        aside.write_text(rows(draw_training(world), "arithmetic", world.asked))
        aside.rename(file)
    return file


def build_world(directory: str | Path, world: World) -> Path:
    """The directory of this world under `directory`, built if it is not there yet.

    It holds `model/`, natural questions in `train.jsonl`, `test.jsonl` and `ood.jsonl`, and in
    `world.json` the constants; `training_file` adds the training questions. It is built aside
    and moved into place, so a directory that exists is complete.
    """
    final = place_of(world, directory)
    if final.exists():
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=final.name + ".", dir=final.parent) as aside:
        place = Path(aside) / "world"
        place.mkdir()
        for name, questions in draw_sets(world).items():
            source = "arithmetic-ood" if name == "ood" else "arithmetic"
            (place / f"{name}.jsonl").write_text(rows(questions, source, world.asked))
        (place / "world.json").write_text(json.dumps(asdict(world), indent=1) + "\n")
        if world == World():
            shutil.copytree(SHIPPED, place / "model")
        else:
            from worlds.pretraining import train_base  # imports PyTorch, which takes seconds

            train_base(world, place / "model")
        try:
            place.rename(final)
        except OSError:
            if not final.exists():  # another process may have been first: its world is the same
                raise
    return final


def main() -> None:
    """Build the world on the command line and print its directory, or rebuild the shipped base."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--seed", type=int, default=0, help="The seed of the world.")
    parser.add_argument("--rebuild", action="store_true", help="Train the shipped base anew.")
    args = parser.parse_args()
    world = World(seed=args.seed)
    if args.rebuild:
        from worlds.pretraining import train_base

        place = Path(".cache/rebuilt-base")
        train_base(World(), place)
    else:
        place = build_world(".cache", world)
        training_file(world, place)
        if world == World():  # under a name that configs/arithmetic.yaml knows
            link = place.with_name("arithmetic")
            link.unlink(missing_ok=True)
            link.symlink_to(place.name)
    print(place)


if __name__ == "__main__":
    main()
