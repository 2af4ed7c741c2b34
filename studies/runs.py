"""The runs of studies/arms.py, two at a time, and a record of each."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

import numpy as np
import torch
from tqdm import tqdm

from runtime import tables
from studies import arms
from studies.arms import STEPS, Run

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "studies/records-few.jsonl"
SCRATCH = ROOT / "runs/studies"
TREE = SCRATCH / "tree"  # a checkout of arms.COMMIT
K = 8
CURVES = {  # name in a record -> metric
    "step": "step",
    "near": "val/pass_at_1/arithmetic",
    "far": "val/pass_at_1/arithmetic-ood",
    "valid": "val/valid/arithmetic",
    "cut": "val/truncated/arithmetic",
}
BUILDING = Lock()  # a base is built once, by whoever needs it first


def read() -> dict[Run, dict]:
    """The record of each run; ValueError for another commit, or for two builds of a base."""
    records = {}
    builds = {}
    for record in tables.read_jsonl(RECORDS):
        run = Run(*[record[field] for field in Run._fields])
        records[run] = record
        if record["commit"] != arms.COMMIT:
            raise ValueError(f"{run} was made at another commit than {arms.COMMIT}")
        build = record["weights"], record["processor"]
        if builds.setdefault(run.base, build) != build:
            raise ValueError(f"{run.base} was built twice, or run on two kinds of processor")
    return records


def make() -> None:
    """All runs that have no record yet, in the order of arms.py."""
    if not TREE.exists():
        add = ["git", "worktree", "add", "--force", "--detach", TREE, arms.COMMIT]
        subprocess.check_call(add, cwd=ROOT)
    RECORDS.touch()
    records = read()
    missing = [run for run in arms.all_runs() if run not in records]
    with ThreadPoolExecutor(2) as pool:
        list(tqdm(pool.map(make_one, missing), total=len(missing)))


def make_one(run: Run) -> None:
    """Train, and write the record; a run that graded an answer too late gets none."""
    with BUILDING:
        place, questions = build(run)
    directory = SCRATCH / "-".join(map(str, run))
    shutil.rmtree(directory, ignore_errors=True)  # of one that was interrupted
    directory.mkdir(parents=True)
    rows = train(run, place, questions, directory)
    if any(value for row in rows for name, value in row.items() if "timeout" in name):
        print(f"{run} graded an answer too late: the same command makes it again")
        return
    groups = [json.loads(line) for line in open(directory / "groups.jsonl")]
    weights = (place / "model" / "model.safetensors").read_bytes()
    record = {
        **run._asdict(),
        **measured(rows, groups),
        "weights": hashlib.sha256(weights).hexdigest(),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "commit": arms.COMMIT,
    }
    with open(RECORDS, "a") as file:
        file.write(json.dumps(record) + "\n")  # one write, so that two threads do not mix
    shutil.rmtree(directory)


def train(run: Run, place: Path, questions: Path, directory: Path) -> list[dict]:
    """The metrics of a run in one process; beside them stands a log."""
    flags = f"{arms.COMMANDS[run.arm]} --lr {run.lr} --seed {run.base} --steps {STEPS}".split()
    flags += "--eval_every 20 --save_every 0 --keep 1 --reward worlds.arithmetic:reward".split()
    flags += ["--model", f"{place}/model", "--train_files", questions]
    flags += ["--val_files", f"{place}/test.jsonl", f"{place}/ood.jsonl"]
    flags += ["--run_dir", directory / "run"]
    groups = {"OMP_NUM_THREADS": "1", "GROUPS_FILE": f"{directory}/groups.jsonl"}
    with open(directory / "log", "w") as log:
        command = [sys.executable, "-m", "studies.experience", *flags]
        environment = os.environ | groups
        subprocess.check_call(command, cwd=TREE, stdout=log, stderr=log, env=environment)
    return tables.read_jsonl(directory / "run/metrics.jsonl")


def build(run: Run) -> tuple[Path, Path]:
    """The directory of the base, built on first use, which takes minutes; and its questions."""
    from worlds.base_model import World, build_world, training_file

    world = World(seed=run.base)
    place = build_world(ROOT / ".cache", world)
    if run.world == "natural":
        return place, place / "train.jsonl"
    file = training_file(world, place)
    first = file.with_name(f"first-{run.world}.jsonl")
    lines = file.read_text().splitlines(keepends=True)
    first.write_text("".join(lines[: int(run.world)]))
    return place, first


def measured(rows: list[dict], groups: list[list]) -> dict:
    """What a run's rows of metrics and its groups say.

    A group is [step, question, k, bucket from which it was drawn or None]. It taught if 0 < k < K.
    """
    tested = [row for row in rows if CURVES["near"] in row]
    # A run that ended early has a last row of validation alone.
    steps = [row for row in rows if "rollout/tokens" in row]
    replaying = [row["step"] for row in steps if row["replay/questions"]]
    so_far = {"tokens": [], "questions_taught": [], "fresh_taught": [], "returned_taught": []}
    for row in tested:
        done = row["step"]
        taught = [group for group in groups if group[0] < done and 0 < group[2] < K]
        fresh = [group for group in taught if group[3] is None]
        tokens = sum(step["rollout/tokens"] for step in steps if step["step"] <= done)
        so_far["tokens"].append(tokens)
        so_far["questions_taught"].append(len({q for _, q, _, _ in taught}))
        so_far["fresh_taught"].append(len(fresh))
        so_far["returned_taught"].append(len(taught) - len(fresh))
    returns = np.zeros((K + 1, K + 1), int)  # [bucket, k when it returned]
    for _, _, k, bucket in groups:
        if bucket is not None:
            returns[bucket, k] += 1
    return {
        **{name: [round(row[metric], 5) for row in tested] for name, metric in CURVES.items()},
        **so_far,
        "returns": returns.tolist(),
        "silent": round(np.mean([row["fresh/silent"] for row in steps]), 4),
        "left_least": min(row["buckets/left"] for row in steps),
        "ended": steps[-1]["step"],
        "replay_from": min(replaying, default=None),
    }
