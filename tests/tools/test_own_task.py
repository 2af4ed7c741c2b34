"""docs/own-task.md works as it stands: its numbered steps, in order, in a fresh copy of the files."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.tables import read_rows

ROOT = Path(__file__).parent.parent.parent
BREAK = "==== next step ===="


def steps() -> list[str]:
    """The code blocks of the numbered sections."""
    numbered = re.split(r"^## (?=\d)|^## ", (ROOT / "docs" / "own-task.md").read_text(), flags=re.M)
    return [block for part in numbered if part[0].isdigit() for block in re.findall(r"^```\n(.*?)^```", part,
                                                                                    flags=re.M | re.S)]


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> tuple[Path, list[str]]:
    """The directory in which the steps were run by one shell, and what each of them printed."""
    directory = tmp_path_factory.mktemp("clone")
    for file in ROOT.glob("*.py"):
        shutil.copy(file, directory)
    for folder in ("worlds", "verifier", "runtime", "tools"):
        shutil.copytree(ROOT / folder, directory / folder)
    (ROOT / ".cache").mkdir(exist_ok=True)
    (directory / ".cache").symlink_to(ROOT / ".cache")  # the base model, if it was built before
    ours = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
            "MASTER_PORT")  # this process's own group
    environment = {name: value for name,
                   value in os.environ.items() if name not in ours} | {"OMP_NUM_THREADS": "1"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    script = f"\necho '{BREAK}'\n".join(steps())
    command = "python -m worlds.base_model"
    assert command in script
    script = script.replace(command, f"{command} --steps 300")  # a weaker model in a fifth of the time
    shell = subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=directory, env=environment,
                           capture_output=True, text=True, timeout=900)
    assert shell.returncode == 0, shell.stdout[-3000:] + shell.stderr[-6000:]
    return directory, shell.stdout.split(BREAK)


@pytest.mark.slow
def test_the_guide_runs_to_its_end(done):
    """Six steps, and at the end a table of the held-out questions before and after training."""
    directory, printed = done
    assert len(printed) == 6
    assert re.search(r"\| digits \(Avg@4\) \| [\d.]+ \[[\d., ]+\] \| [\d.]+ \[[\d., ]+\] \|",
                     printed[5]), printed[5]
    assert json.loads((directory / "runs/digits/result.json").read_text()).keys() == {"base", "trained"}
    metrics = (directory / "runs/digits/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in metrics] == [0, 1, 2]
    assert {"curve.png", "model"} <= {path.name for path in (directory / "runs/digits").iterdir()}


@pytest.mark.slow
def test_questions_are_converted_and_held_out(done):
    """400 and 100 questions with the answer from behind the #, none in both files."""
    train, test = ([(r["prompt"][0]["content"],
                     r["reward_model"]["ground_truth"]) for r in read_rows(str(done[0] / file))]
                   for file in ("digits_train.parquet", "digits_test.parquet"))
    assert (len(train), len(test)) == (400, 100) and not set(train) & set(test)
    for question, answer in train + test:
        assert sum(map(int, re.findall(r"\d", question))) % 10 == int(answer)


@pytest.mark.slow
def test_the_readers_reward_decides(done):
    """Of 400 responses each is worth what the guide's function says, and both verdicts occur."""
    lines = (done[0] / "runs/digits/before/responses.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    reward = {}
    exec((done[0] / "digits.py").read_text(), reward)
    assert len(rows) == 400 and {r["reward"] for r in rows} == {0.0, 1.0}
    assert all(r["reward"] == reward["score"](r["response"], r["gold"]) for r in rows)
