"""One unit of an arm: train, then answer the validation questions from the checkpoints at its ENDS.

    python -m studies.unit --run_dir DIR [flags of train.py]      continues where it was interrupted

`numbers.json` holds hashes of the base model and of the questions, and for each of these steps and each data
source how many of so many responses to each question were right:
{"base": ..., "questions": ..., "samples": 4, "ends": {"240": {"x": [4, 0, 3]}}, "valid": {...}}. `valid`
counts in the same way those whose steps are right, where a world can tell. A run that ends before its last
step, as nothing is left to ask, its tokens are spent (`dynamic.py`) or an error stops its training twice
after the same checkpoint, has its last three checkpoints there and `"ended": step`.
"""

import hashlib
import json
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import torch

from config import Config, parse_config
from data import (
    fingerprint,
    first_of_each_source,
    load_questions,
    load_tokenizer,
    unreadable,
    with_built_in_world,
)
from eval import respond
from reward import Grader, make_verifier
from rollout import make_engine
from runtime import ranks
from runtime.checkpoint import directories
from runtime.faults import leave
from runtime.rundir import lock
from studies import jobs, processor
from studies.protocol import ENDS, SAMPLES
from studies.records import read, replace
from tools.export import load_policy


def at_ends(run: Path, steps: int, every: int) -> list[Path]:
    """The checkpoints at the ENDS of a run; of one that ended before, the last three. Those that an interrupt
    made are left aside, unless it is the newest: a run keeps one `every` so many steps, and its last.
    KeyError where one is gone."""
    saved = {int(path.name.rpartition("-")[2]): path for path in directories(run / "checkpoints")}
    kept = [step for step in sorted(saved) if step % every == 0 or step == max(saved)]
    wanted = {round(end * steps) for end in ENDS} if steps in saved else kept[-len(ENDS) :]
    return [saved[step] for step in sorted(wanted)]


def trained(run: Path) -> int:
    """When training last wrote its metrics, in ns, 0: never. It first does when model and engine are up."""
    file = run / "metrics.jsonl"
    return file.stat().st_mtime_ns if file.exists() else 0


def note_failure(run: Path) -> bool:
    """Note that an error ended training; returns whether one did before with the same newest checkpoint."""
    newest, note = "".join(path.name for path in directories(run / "checkpoints")[-1:]), run / "failed"
    again = bool(newest) and note.exists() and note.read_text() == newest
    note.write_text(newest)
    if again:
        print(f"stopped by an error twice after {newest}: its last checkpoints are scored", flush=True)
    return again


def ends(config: Config, checkpoints: list[Path]) -> dict[str, str | dict]:
    """`ends` and `valid` of numbers.json from the models of checkpoints, and `questions`, their hash.

    RuntimeError where a verdict ran out of time: it would depend on what else the machine does.
    """
    device = ranks.setup()
    tokenizer = load_tokenizer(config, config.model)
    questions, _ = load_questions(config.val_files, config, tokenizer)
    scores, valid = {}, {}
    with make_verifier(config) as verifier:
        gone, _ = unreadable(questions, verifier.check_golds)
        tests = first_of_each_source([q for q in questions if q.id not in gone], config.eval_questions)
        engine = make_engine(config, config.model, tokenizer.eos_token_id, device)
        grader = Grader(config, tokenizer, verifier)
        for number, path in enumerate(checkpoints):  # of the run; all arms draw the same random numbers
            policy = load_policy(config, path, device)
            engine.load(policy.named_tensors(engine.dtype))
            right, sound = (defaultdict(lambda: defaultdict(int)) for _ in range(2))
            samples = range(SAMPLES * number, SAMPLES * (number + 1))
            for r in respond(engine, grader, [(q, i) for q in tests for i in samples], config):
                right[r["source"]][r["question"]] += r["success"]
                if "valid" in r.get("judged", {}):
                    sound[r["source"]][r["question"]] += int(r["judged"]["valid"])
            step = str(int(path.name.rpartition("-")[2]))
            for kept, counted in ((scores, right), (valid, sound)):
                kept[step] = {source: list(counts.values()) for source, counts in counted.items()}
        if verifier.timeouts and config.reward != "studies.restated:score":  # rows 9 to 11 read no ends
            raise RuntimeError(f"{verifier.timeouts} answers were not graded in time: run it again")
    return {"ends": scores, "valid": valid, "questions": fingerprint(tests)[:16]}


def base_hash(model: str) -> str:
    """Of the base model's weights, so that pairs are known to begin alike; SystemExit without any."""
    digest, files = hashlib.sha256(), sorted(Path(model).glob("*.safetensors"))
    if not files:
        sys.exit(f"no weights in {model}: `make smollm-ready` makes the real model")
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def check_base(run: Path, base: str) -> None:
    """SystemExit where a record of this unit, as long as this run, began from another base model: a pair of
    them would be refused after all the training."""
    if not (run / "job.json").exists():
        return
    job = json.loads((run / "job.json").read_text())
    setting, unit = job["name"].partition("-")[0], job["name"].rpartition("-")[2]
    for file in jobs.RECORDS.glob(f"{setting}-*-{unit}.json.gz"):
        record = read(file)
        theirs = record["result"].get("base", base)
        if theirs != base and record["knobs"].get("steps") == job["knobs"].get("steps"):
            sys.exit(f"{job['name']} would begin from the base model {base}, {file.name} began from "
                     f"{theirs}, of another kind of processor: see `Repeating it` in studies/README.md")


def check_processor(run: Path) -> None:
    """Note the kind of processor of a run that begins; SystemExit where it would go on with another."""
    run.mkdir(parents=True, exist_ok=True)
    kind, note = torch.backends.cpu.get_cpu_capability(), run / "processor"
    if directories(run / "checkpoints") and note.exists() and note.read_text() != kind:
        sys.exit(f"{run} was begun with {note.read_text()}, here it would go on with {kind}: see "
                 "`Repeating it` in studies/README.md")
    note.write_text(kind)


def main(program: tuple[str, ...] = ("train.py",)) -> None:
    """Train in a process of its own, then score; a signal to the group reaches both, and training saves."""
    processor.as_asked()
    if processor.ASKED and program == ("train.py",):
        program = ("-c", "from studies import processor; processor.run()")
    config, training = parse_config(), [sys.executable, *program, *sys.argv[1:], "--resume"]
    run, interrupted = Path(config.run_dir), []
    config = with_built_in_world(config)
    check_base(run, base_hash(config.model))
    check_processor(run)
    before = trained(run)
    process = subprocess.Popen(training)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: interrupted.append(True))  # training has the signal too, and saves
    code, stopped = process.wait(), False
    if interrupted:
        sys.exit(code or 130)
    if code == 1:
        lock(config.run_dir)  # ValueError where an earlier process still trains here: no error of this run
        stopped = trained(run) > before and note_failure(run)  # an error of the set-up does not count
    if code and not stopped:
        sys.exit(code)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    checkpoints = at_ends(run, config.steps, config.save_every)
    made = {"base": base_hash(config.model), "samples": SAMPLES, **ends(config, checkpoints)}
    if (last := max(map(int, made["ends"]))) < config.steps:
        made["ended"] = last
    replace(run / "numbers.json", json.dumps(made).encode())
    leave(0)  # engines are still up, as at the end of train.py


if __name__ == "__main__":
    main()
