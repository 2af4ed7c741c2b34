"""Two steps in bfloat16, then a third by --resume: what to run first on a machine with a GPU.

    make world && python tests/gpu_smoke.py         five minutes at most; a CPU will do, too

With a GPU the engine is vLLM, which sleeps while the policy trains and wakes for the next rollout.
The drift is the mean difference between the log-probs of engine and policy, in nats a token.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
SETTINGS = {
    "--config": "configs/arithmetic.yaml",
    "--dtype": "bfloat16",
    "--batch_size": "8",
    "--engine": "vllm",
    "--save_every": "1",
    "--eval_every": "0",
    "--eval_questions": "8",
}


def train(run_dir: str, steps: int, *flags: str) -> None:
    """Train up to `steps` on one rank; a failing run ends this script, too."""
    command = [sys.executable, "train.py", *flags]
    command += ["--run_dir", run_dir, "--steps", str(steps)]
    for name, value in SETTINGS.items():
        command += [name, value]
    subprocess.run(command, cwd=ROOT, check=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as run_dir:
        train(run_dir, 2)
        train(run_dir, 3, "--resume")
        lines = (Path(run_dir) / "metrics.jsonl").read_text().splitlines()
    drifts = {}
    for row in map(json.loads, lines):
        if "engine/drift" in row:
            drifts[row["step"]] = row["engine/drift"]
    print("engine/drift by step:", drifts)
    assert [*drifts] == [1, 2, 3], "three steps, one of them resumed, write three rows"
    assert max(drifts.values()) < 0.15, "engine and policy disagree beyond rounding in bfloat16"


if __name__ == "__main__":
    main()
