"""Runs of train.py, one after another, and a record of each."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from runtime import tables
from studies.arms import BLOCKS, CHOOSING, COMMANDS, COMMIT, MIXES, STEPS, Run

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "studies/records.jsonl"
SCRATCH = ROOT / "runs/studies"
TREE = SCRATCH / "tree"  # a checkout of COMMIT
REWARD = "--reward worlds.arithmetic:reward"
SAME = f"{REWARD} --steps {STEPS} --eval_every 20 --save_every 0 --keep 1"
CURVES = {  # name in a record -> metric
    "step": "step",
    "near": "val/pass_at_1/arithmetic",
    "far": "val/pass_at_1/arithmetic-ood",
    "valid": "val/valid/arithmetic",
    "cut": "val/truncated/arithmetic",
    "cut_far": "val/truncated/arithmetic-ood",
}


def read(path: Path = RECORDS) -> dict[Run, dict]:
    """The record of each run; ValueError for another commit, or for two builds of a base."""
    records = {}
    builds = {}
    for record in tables.read_jsonl(path):
        run = Run(*[record[field] for field in Run._fields])
        records[run] = record
        if record["commit"] != COMMIT:
            raise ValueError(f"{run} was made at another commit than {COMMIT}")
        build = record["weights"], record["processor"]
        # Rates are chosen within an arm, so there another arm may have another build.
        whose = (run.base, run.arm) if run.base in CHOOSING else run.base
        if builds.setdefault(whose, build) != build:
            raise ValueError(f"{whose} was built twice, or run on two kinds of processor")
    return records


def make() -> None:
    """All runs that have no record yet, base by base."""
    if not TREE.exists():
        subprocess.check_call(
            ["git", "worktree", "add", "--force", "--detach", TREE, COMMIT], cwd=ROOT
        )
    wanted = {
        Run(base, *group) for groups, bases in BLOCKS.values() for group in groups for base in bases
    }
    for run in tqdm(sorted(wanted - read().keys())):
        record = run._asdict() | train(run)
        with open(RECORDS, "a") as file:
            file.write(json.dumps(record) + "\n")


def train(run: Run) -> dict:
    """What is recorded of one run, whose directory is removed; ValueError: repeat it."""
    place, questions = build(run)
    directory = SCRATCH / "-".join(map(str, run))
    flags = f"{COMMANDS[run.arm]} --lr={run.lr} --seed={run.base} {SAME}".split()
    flags += [f"--model={place}/model", f"--train_files={questions}", f"--run_dir={directory}"]
    flags += ["--val_files", f"{place}/test.jsonl", f"{place}/ood.jsonl"]
    shutil.rmtree(directory, ignore_errors=True)  # of one that was interrupted
    torchrun(flags, directory)
    rows = tables.read_jsonl(directory / "metrics.jsonl")
    if any(value for row in rows for name, value in row.items() if "timeout" in name):
        raise ValueError(f"{run} graded an answer too late: give the same command again")
    shutil.rmtree(directory)
    weights = (place / "model" / "model.safetensors").read_bytes()
    return {
        **measured(rows),
        "weights": hashlib.sha256(weights).hexdigest(),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "commit": COMMIT,
    }


def torchrun(arguments: list[str], directory: Path) -> None:
    """Two ranks that run this in TREE, with a log beside the directory."""
    launch = "-m torch.distributed.run --standalone --nproc_per_node=2".split()
    command = [sys.executable, *launch, *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with open(f"{directory}.log", "w") as log:
        subprocess.check_call(command, cwd=TREE, stdout=log, stderr=log, env=environment)


def build(run: Run) -> tuple[Path, Path]:
    """The directory of the base, built on first use, which takes minutes; and its questions."""
    from worlds.base_model import World, build_world, training_file

    torch.set_num_threads(1)  # sums are taken in the same order
    world = World(seed=run.base, mix=MIXES.get(run.world, World.mix))
    place = build_world(ROOT / ".cache", world)
    questions = training_file(world, place)
    if run.world == "rival":
        questions = solved_sometimes(run.base, questions)
    return place, questions


def solved_sometimes(base: int, questions: Path) -> Path:
    """Those questions of which the base answers 1 to 7 of 8 right."""
    output = SCRATCH / f"asked-{base}"
    asking = "eval.py --samples=8 --eval_temperature=1 --max_response_length=72"
    flags = f"{asking} --seed={base} {REWARD}".split()
    flags += [f"--model={questions.parent}/model", f"--data={questions}", f"--output={output}"]
    torchrun(flags, output)
    answers = tables.read_jsonl(output / "responses.jsonl")  # 8 of each question, in order
    right = np.reshape([answer["success"] for answer in answers], (-1, 8)).sum(1)
    lines = questions.read_text().splitlines(keepends=True)
    kept = questions.with_name("train-sometimes.jsonl")
    kept.write_text("".join(line for line, k in zip(lines, right, strict=True) if 0 < k < 8))
    return kept


def measured(rows: list[dict]) -> dict:
    """What a run's rows of metrics say."""
    tested = [row for row in rows if CURVES["near"] in row]
    # A run that ended early has a last row of validation alone.
    steps = [row for row in rows if "rollout/tokens" in row]
    silent = [row["fresh/silent"] for row in steps]
    replaying = [row["step"] for row in steps if row["replay/questions"]]
    return {
        **{name: [round(row[metric], 5) for row in tested] for name, metric in CURVES.items()},
        "tokens": sum(row["rollout/tokens"] for row in steps),
        "silent_first": round(np.mean(silent[:10]), 4),
        "silent": round(np.mean(silent), 4),
        "replay_from": min(replaying, default=None),
    }
