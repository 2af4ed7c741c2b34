"""Runs of train.py, one after another, and a record of each."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

from runtime import tables
from studies.arms import ARMS, CHOOSING, MIXES, STEPS, Run

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "studies" / "records.jsonl"
SCRATCH = ROOT / "runs" / "studies"
SAME = "--eval_every 20 --save_every 0 --keep 1"
REWARD = "--reward worlds.arithmetic:reward"
CURVES = {  # name in a record -> metric
    "step": "step",
    "near": "val/pass_at_1/arithmetic",
    "far": "val/pass_at_1/arithmetic-ood",
    "valid": "val/valid/arithmetic",
    "cut": "val/truncated/arithmetic",
    "cut_far": "val/truncated/arithmetic-ood",
}


def read(path: Path = RECORDS) -> dict[Run, dict]:
    """The record of each run; ValueError for two commits, or for two builds of a base."""
    records = {}
    builds = {}
    for record in tables.read_jsonl(path):
        run = Run(*[record[field] for field in Run._fields])
        records[run] = record
        build = record["weights"], record["processor"]
        whose = (run.base, run.arm) if run.base in CHOOSING else run.base
        if builds.setdefault(whose, build) != build:
            raise ValueError(f"{whose} was built twice, or run on two kinds of processor")
    commits = {record["commit"] for record in records.values()}
    if len(commits) > 1:
        raise ValueError("the records are of several commits")
    return records


def make(wanted: list[Run], tree: Path) -> None:
    """All runs that have no record yet, in a clone that stands at the commit of the records."""
    show = "git rev-parse --short=12 HEAD".split()
    commit = subprocess.check_output(show, cwd=tree, text=True).strip()
    there = {record["commit"] for record in read().values()}
    if there - {commit}:
        raise ValueError(
            f"the records are of commit {there.pop()}, and {tree} is at {commit}: make a clone that"
            " stands there, and give it as --tree"
        )
    for number, run in enumerate(wanted, 1):
        if run in read():
            continue
        start = time.monotonic()
        found = train(run, tree)
        minutes = round((time.monotonic() - start) / 60, 1)
        if found:
            record = run._asdict() | found | {"commit": commit, "minutes": minutes}
            with open(RECORDS, "a") as file:
                file.write(json.dumps(record, separators=(",", ":")) + "\n")
        said = "done" if found else f"failed, see {SCRATCH}; the same command repeats it"
        print(f"{number} of {len(wanted)}: {tuple(run)}, {minutes} min, {said}", flush=True)


def train(run: Run, tree: Path) -> dict | None:
    """What is recorded of one run, whose directory is removed; None if it must be repeated."""
    place, questions = build(run, tree)
    directory = SCRATCH / "-".join(map(str, run))
    arm = ARMS[run.arm]
    own = f"{arm.script} {arm.flags} --lr={run.lr} --steps={STEPS} --seed={run.base}"
    flags = f"{own} {SAME} {REWARD}".split()
    flags += [f"--model={place}/model", f"--train_files={questions}", f"--run_dir={directory}"]
    flags += ["--val_files", f"{place}/test.jsonl", f"{place}/ood.jsonl"]
    shutil.rmtree(directory, ignore_errors=True)  # of one that was interrupted
    if not torchrun(flags, tree, directory):
        return None
    rows = tables.read_jsonl(directory / "metrics.jsonl")
    if any(value for row in rows for name, value in row.items() if "timeout" in name):
        return None
    shutil.rmtree(directory)
    return {
        "flags": arm.flags,
        **measured(rows),
        "weights": sha256(place / "model" / "model.safetensors"),
        "questions": sha256(questions),
        "processor": torch.backends.cpu.get_cpu_capability(),
    }


def torchrun(arguments: list[str], tree: Path, directory: Path) -> bool:
    """Whether two ranks that run this in the clone come to a good end; the log is beside it."""
    SCRATCH.mkdir(parents=True, exist_ok=True)
    command = f"{sys.executable} -m torch.distributed.run --standalone --nproc_per_node=2".split()
    command += arguments
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with open(f"{directory}.log", "w") as log:
        return not subprocess.call(command, cwd=tree, stdout=log, stderr=log, env=environment)


def build(run: Run, tree: Path) -> tuple[Path, Path]:
    """The directory of the base, built on first use, which takes minutes; and its questions."""
    from worlds.base_model import World, build_world, training_file

    torch.set_num_threads(1)  # sums are taken in the same order
    world = World(seed=run.base, mix=MIXES.get(run.world, World.mix))
    place = build_world(ROOT / ".cache", world)
    questions = training_file(world, place)
    if run.world == "rival":
        questions = solved_sometimes(run.base, questions, tree)
    return place, questions


def solved_sometimes(base: int, questions: Path, tree: Path) -> Path:
    """Those questions of which the base answers 1 to 7 of 8 right."""
    kept = questions.with_name("train-sometimes.jsonl")
    if kept.exists():
        return kept
    output = SCRATCH / f"asked-{base}"
    asking = "eval.py --samples=8 --eval_temperature=1 --max_response_length=72"
    flags = f"{asking} --seed={base} {REWARD}".split()
    flags += [f"--model={kept.parent}/model", f"--data={questions}", f"--output={output}"]
    if not torchrun(flags, tree, output):
        raise RuntimeError(f"see {output}.log")
    answers = tables.read_jsonl(output / "responses.jsonl")  # 8 of each question, in order
    right = np.reshape([answer["success"] for answer in answers], (-1, 8)).sum(1)
    lines = questions.read_text().splitlines(keepends=True)
    kept.write_text("".join(line for line, k in zip(lines, right, strict=True) if 0 < k < 8))
    return kept


def sha256(file: Path) -> str:
    """The hash of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def measured(rows: list[dict]) -> dict:
    """What a run's rows of metrics say."""
    tested = [row for row in rows if CURVES["near"] in row]
    # A run that ended early has a last row of validation alone.
    steps = [row for row in rows if "rollout/tokens" in row]
    silent = [row["fresh/silent"] for row in steps]
    replaying = (row["step"] for row in steps if row["replay/questions"])
    return {
        **{name: [round(row[metric], 5) for row in tested] for name, metric in CURVES.items()},
        "tokens": sum(row["rollout/tokens"] for row in steps),
        "silent_first": round(fmean(silent[:10]), 4),
        "silent": round(fmean(silent), 4),
        "replay_from": next(replaying, None),
        "retired": steps[-1]["buckets/retired"],
    }
