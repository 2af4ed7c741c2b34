"""The 48 runs of the deciding study, two at a time, and a record of each in records.jsonl."""

import json
import os
import shutil
import subprocess
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "studies/records.jsonl"
SCRATCH = ROOT / "runs/study"
TREE = SCRATCH / "tree"  # a clone at COMMIT with an environment of its own
COMMIT = "97311f2"  # whose train.py makes all runs
SEEDS = range(100, 116)
METHODS = {"R0": "--rho 0 --lr 4.5e-4", "P": "--lr 4.5e-4", "HC": "--mu 0.125 --clip on --lr 3e-4"}
K = 8
BUILD = """
from worlds.base_model import World, build_world, training_file
world = World(seed={seed})
print(training_file(world, build_world(".cache", world)))
"""


def read() -> dict[tuple[int, str], dict]:
    """{(seed, method): record}; ValueError where a seed's runs differ in base or processor."""
    records = {}
    builds = {}
    if not RECORDS.exists():
        return records
    for line in RECORDS.read_text().splitlines():
        record = json.loads(line)
        seed = record["seed"]
        records[seed, record["method"]] = record
        build = record["base"], record["processor"]
        if builds.setdefault(seed, build) != build:
            raise ValueError(f"seed {seed} has two bases, or ran on two kinds of processor")
    return records


def make() -> None:
    """All runs that have no record yet, seed by seed; a base is built beside the runs before it."""
    if not TREE.exists():
        subprocess.check_call(["git", "clone", "--quiet", ROOT, TREE])
        subprocess.check_call(["git", "checkout", "--quiet", COMMIT], cwd=TREE)
        subprocess.check_call(["make", "install"], cwd=TREE)
    done = read()
    missing = {}
    for seed in SEEDS:
        methods = [method for method in METHODS if (seed, method) not in done]
        if methods:
            missing[seed] = methods
    seeds = list(missing)
    with ThreadPoolExecutor(2) as pool:
        bases = {}
        for seed in seeds[:1]:
            bases[seed] = pool.submit(build, seed)
        for number, seed in enumerate(seeds):
            for following in seeds[number + 1 : number + 2]:
                bases[following] = pool.submit(build, following)
            for method in missing[seed]:
                pool.submit(make_one, seed, method, bases[seed])


def build(seed: int) -> Path:
    """The training file of a seed's world, which is built on first use."""
    command = [".venv/bin/python", "-c", BUILD.format(seed=seed)]
    output = subprocess.check_output(command, cwd=TREE, env=environment(), text=True)
    return TREE / output.splitlines()[-1]


def environment() -> dict:
    """One thread a process, so that two runs share two cores."""
    return os.environ | {"OMP_NUM_THREADS": "1"}


def make_one(seed: int, method: str, base: Future) -> None:
    """Train and write the record; a run that graded an answer too late gets none."""
    questions = base.result()
    place = questions.parent
    directory = SCRATCH / f"{seed}-{method}"
    shutil.rmtree(directory, ignore_errors=True)  # of one that was interrupted
    directory.mkdir(parents=True)
    flags = f"--config configs/arithmetic.yaml {METHODS[method]} --seed {seed}".split()
    flags += ["--model", place / "model", "--train_files", questions]
    flags += ["--val_files", place / "test.jsonl", place / "ood.jsonl"]
    flags += ["--save_every", "0", "--run_dir", directory / "run"]
    with open(directory / "log", "w") as log:
        command = [".venv/bin/python", "train.py", *map(str, flags)]
        code = subprocess.call(command, cwd=TREE, stdout=log, stderr=log, env=environment())
    if code:
        print(f"seed {seed}, {method} failed, see {directory}/log: the same command makes it again")
        return
    lines = (directory / "run/metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    if any(row.get("reward/timeouts") for row in rows):
        print(f"seed {seed}, {method} graded an answer too late: the same command makes it again")
        return
    sums = ["sha256sum", place / "model/model.safetensors"]
    record = {
        "seed": seed,
        "method": method,
        **measured(rows),
        "base": subprocess.check_output(sums, text=True)[:16],
        "processor": processor(),
        "commit": COMMIT,
    }
    with open(RECORDS, "a") as file:
        file.write(json.dumps(record) + "\n")  # one write, so that two threads do not mix
    shutil.rmtree(directory)


def processor() -> str:
    """The kind of processor: its model and what vectors it computes with."""
    import torch

    model = ""
    for line in open("/proc/cpuinfo"):
        if line.startswith(("model name", "model\t", "cpu family")):
            model += line.partition(":")[2].strip() + " "
        if not line.strip():
            break
    return model + torch.backends.cpu.get_cpu_capability()


def measured(rows: list[dict]) -> dict:
    """What a record keeps of a run's metrics."""
    tested = [row for row in rows if "val/pass_at_1/arithmetic" in row]
    steps = [row for row in rows if "rollout/tokens" in row]
    replaying = [row for row in steps if row["replay/questions"]]
    drawn = [sum(row[f"replay/from_k={k}"] for row in replaying) for k in range(1, K + 1)]
    stored = [steps[-1][f"buckets/k={k}"] for k in range(1, K + 1)]
    return {
        "step": [row["step"] for row in tested],
        "near": [row["val/pass_at_1/arithmetic"] for row in tested],
        "far": [row["val/pass_at_1/arithmetic-ood"] for row in tested],
        "drawn_from_k": drawn,  # k = 1 to 8, over the whole run
        "stored_at_end_by_k": stored,
        "replay_from": replaying[0]["step"] if replaying else None,
        "gradient_share": [round(row["replay/gradient_share"], 5) for row in replaying],
        "token_share": [round(row["replay/token_share"], 5) for row in replaying],
        "retired": steps[-1]["buckets/retired"],
        "last_step": steps[-1]["step"],
        "tokens": sum(row["rollout/tokens"] for row in steps),
    }
