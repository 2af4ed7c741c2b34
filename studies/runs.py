"""Runs of train.py, one after another, and a record of each."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from runtime import tables
from studies.arms import ALL, SAME, SETTINGS, STEPS, in_drawn_order
from worlds.arithmetic import World

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "studies" / "records.jsonl"
SCRATCH = ROOT / "runs" / "studies"
K = 8
CURVES = ("pass_at_1/arithmetic", "valid/arithmetic", "pass_at_1/arithmetic-ood")


def read(path: Path = RECORDS) -> dict[tuple[str, str, int], dict]:
    """{(setting, arm, base): record}"""
    records = tables.read_jsonl(path) if path.exists() else []
    return {(r["setting"], r["arm"], r["base"]): r for r in records}


def run(settings: list, bases: list, arms: list | None, path: Path = RECORDS) -> None:
    """All runs that have no record yet: base by base, the arms of each in the order drawn."""
    wanted = []
    for base in bases:
        for setting in settings:
            for arm in in_drawn_order(base, arms or SETTINGS[setting].arms):
                wanted.append((setting, arm, base))
    for i, key in enumerate(wanted, 1):
        if key in read(path):
            continue
        start = time.monotonic()
        record = train(*key)
        minutes = round((time.monotonic() - start) / 60, 1)
        if record:
            with open(path, "a") as file:
                line = json.dumps(record | {"minutes": minutes}, separators=(",", ":"))
                file.write(line + "\n")
        # No score is shown: nothing is read before all blocks are complete.
        said = "done" if record else f"failed, see {SCRATCH}; the same command repeats it"
        print(f"{i} of {len(wanted)}: {key}, {minutes} min, {said}", flush=True)


def train(setting: str, arm: str, base: int) -> dict | None:
    """The record of one run, whose directory is removed; None if it crashed."""
    place = build(setting, base)
    directory = SCRATCH / f"{setting}-{arm}-{base}"
    shutil.rmtree(directory, ignore_errors=True)  # of one that was interrupted
    directory.mkdir(parents=True)
    questions = directory / "questions.jsonl"
    lines = (place / "train.jsonl").read_text().splitlines(keepends=True)
    questions.write_text("".join(lines[: SETTINGS[setting].questions]))
    flags = f"{ALL[arm].flags} {SETTINGS[setting].flags}".split()
    command = f"{sys.executable} -m torch.distributed.run --standalone --nproc_per_node=2".split()
    command += ["-m", "studies.experience", "star" if ALL[arm].star else "new"]
    command += [*flags, *SAME.split(), f"--steps={STEPS}", f"--seed={base}"]
    command += [f"--model={place}/model", f"--train_files={questions}", f"--run_dir={directory}"]
    command += ["--val_files", f"{place}/test.jsonl", f"{place}/ood.jsonl"]
    log = directory.with_suffix(".log")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with open(log, "w") as output:
        failed = subprocess.call(command, cwd=ROOT, stdout=output, stderr=output, env=environment)
    if failed:
        return None
    weights = (place / "model" / "model.safetensors").read_bytes()
    show = "git rev-parse --short=12 HEAD".split()
    record = {
        "setting": setting,
        "arm": arm,
        "base": base,
        "flags": " ".join(flags),
        **measured(directory),
        "weights": hashlib.sha256(weights).hexdigest(),
        "commit": subprocess.check_output(show, cwd=ROOT, text=True).strip(),
        "processor": torch.backends.cpu.get_cpu_capability(),
    }
    shutil.rmtree(directory)
    log.unlink()
    return record


def build(setting: str, base: int) -> Path:
    """The directory of the world of a base, built on first use, which takes minutes."""
    from worlds.base_model import build_world

    torch.set_num_threads(1)  # sums are taken in the same order
    world = replace(World(), seed=base, **SETTINGS[setting].constants)
    return build_world(ROOT / ".cache", world)


def measured(directory: Path) -> dict:
    """Curve and doses of a run."""
    rows = tables.read_jsonl(directory / "metrics.jsonl", growing=True)
    tested = [row for row in rows if "val/pass_at_1/arithmetic" in row]
    curve = {"step": [row["step"] for row in tested]}
    for name in CURVES:
        curve[name] = [round(row[f"val/{name}"], 5) for row in tested]
    asked = tables.read_jsonl(directory / "asked.jsonl", growing=True)
    # A run that ended early has a row of validation alone.
    return {"curve": curve, "dose": doses([r for r in rows if "replay/questions" in r], asked)}


def doses(rows: list[dict], asked: list) -> dict:
    """What was done, by the rows of the training steps and the questions of each step."""

    def column(name: str) -> np.ndarray:
        return np.array([row[name] for row in rows])

    with_star = max(1, np.count_nonzero(column("replay/questions")))  # steps
    # Of K - 1 new answers beside an o*, k - 1 are right: their advantages sum to -(K - k) / K.
    push = [column(f"replay/k={k}") * (k - K) / K for k in range(1, K + 1)]
    back = []
    everything = []
    for fresh, came_back in asked:
        back += came_back
        everything += fresh + came_back
    found = {
        "pull": column("replay/gradient_share").sum() / with_star,
        "ratio": column("replay/ratio").sum() / with_star,
        "choice": (column("replay/candidate_score") - column("replay/selected_score")).mean(),
        "push": np.sum(push, axis=0).mean(),
        "push_k1": push[0].mean(),
        "back": len(back),
        "different": len(set(back)),
        "questions": len(set(everything)),
        "visits": len(everything) / len(set(everything)),
        "tokens": column("rollout/tokens").sum(),
        "entropy": column("loss/entropy").mean(),
        "active": 1 - column("reward/all_equal_groups").mean(),
        "none": column("reward/none_right").mean(),
        "none_first": column("reward/none_right")[:10].mean(),
        "retired": rows[-1]["buckets/retired"],
    }
    found = {name: round(float(value), 5) for name, value in found.items()}
    return found | {"from_k": [int(column(f"replay/from_k={k}").sum()) for k in range(1, K)]}
